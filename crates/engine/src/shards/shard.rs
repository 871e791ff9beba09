//! A shard: a thread that processes packets all the way, in both directions, of the queues that it
//! serves. Each queue has its turn; a turn ends when the queue is empty or a batch is full.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use adit_io::{TunQueue, UdpSocket};
use adit_proto::Time;
use arrayvec::ArrayVec;
use rustix::event::epoll::{self, Event, EventFlags};

use crate::shards::mailbox::ShardMailbox;
use crate::shards::owner::{OwnedQueues, Resources};
use crate::shards::thread_pool::{ShardRun, ThreadPool};
use crate::shards::thread_state::ThreadState;
use crate::shards::worker::Worker;
use crate::thread::clock;
use crate::thread::contain::contain;
use crate::thread::placement::Placement;
use crate::thread::poll::{Descriptor, MAX_EVENTS, PollRole, Polled, Token, overwrite_stack};
use crate::thread::priority::ThreadPriority;
use crate::thread::start;

/// Interfaces whose sockets are lent at a time, at most. With more, flows are not sparse.
const MAX_LENT: usize = 16;

/// A shard and what it alone owns.
pub(crate) struct Shard<T, U> {
    mailbox: Arc<ShardMailbox<T, U>>,
    pool: Arc<ThreadPool<T, U>>,
    helps: Vec<Worker<T, U>>,
    queues: HashMap<u32, OwnedQueues<T, U>>,
    resources: Resources<T, U>,
    placement: Placement,
    /// The numbers of the queues whose sockets are lent.
    lent: ArrayVec<u32, MAX_LENT>,
    /// The numbers of those to look at without an event.
    looks_at: Vec<u32>,
    priority: ThreadPriority,
    /// The numbers of those that have something in this turn.
    round: Vec<u32>,
}

impl<T: TunQueue + 'static, U: UdpSocket + 'static> Shard<T, U> {
    /// A shard without queues: what its thread is to run.
    pub(crate) fn prepare(
        mailbox: Arc<ShardMailbox<T, U>>,
        pool: Arc<ThreadPool<T, U>>,
    ) -> io::Result<ShardRun> {
        let shard = Self::new(mailbox, pool)?;
        Ok(Box::new(move || shard.run()))
    }

    pub(crate) fn new(
        mailbox: Arc<ShardMailbox<T, U>>,
        pool: Arc<ThreadPool<T, U>>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = Token::Waker.data();
        epoll::add(&epoll, mailbox.handle.waker(), waker, EventFlags::IN)?;
        Ok(Self {
            mailbox,
            helps: Vec::new(),
            queues: HashMap::new(),
            resources: Resources {
                epoll,
                inbound_thread: Arc::clone(&pool.inbound),
                thread: ThreadState::new(&pool.buffers, pool.liberties.memory),
            },
            placement: Placement::new(pool.liberties.placement),
            pool,
            lent: ArrayVec::new(),
            looks_at: Vec::new(),
            priority: ThreadPriority::leave(),
            round: Vec::new(),
        })
    }

    /// Processes packets until it is asked to end.
    fn run(mut self) -> io::Result<()> {
        let liberties = self.pool.liberties;
        if liberties.priority {
            self.priority = ThreadPriority::raise();
            if !self.priority.is_raised() {
                self.mailbox.handle.priority_was_refused();
            }
        }
        self.placement.begins();
        if liberties.sandbox {
            start::confine(start::Role::Packets)?;
        }
        let mut events = Vec::with_capacity(MAX_EVENTS);
        while !self.mailbox.stopping.load(Ordering::Acquire) && !self.has_retired() {
            self.turn(&mut events, self.timeout())?;
        }
        Ok(())
    }

    /// Sleeps until something happens, not longer than `timeout`, and processes a batch of each queue that
    /// has something.
    /// `events` has room for what may happen.
    pub(crate) fn turn(
        &mut self,
        events: &mut Vec<Event>,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        self.mailbox.handle.set_idle(self.helps.is_empty());
        #[cfg(debug_assertions)]
        for queues in self.queues.values().filter(|_| timeout.is_none()) {
            queues.queues.check_progress();
        }
        let mut round = std::mem::take(&mut self.round);
        let Resources { epoll, thread, .. } = &self.resources;
        thread.wait(epoll, events, timeout)?;
        self.mailbox.handle.set_idle(false);
        let now = clock::now();
        let rested = self.placement.poll_begins(now);
        let role = self.pool.role_of_owners();
        let mut from = None;
        round.append(&mut self.looks_at);
        for event in &*events {
            let (number, descriptor) = match Token::of(event) {
                Token::Waker => {
                    overwrite_stack();
                    self.woken(now, &mut round);
                    continue;
                }
                Token::Queue(number, descriptor) => (number, descriptor),
            };
            if !self.queues.contains_key(&number) {
                continue;
            }
            if !round.contains(&number) {
                round.push(number);
            }
            let event = (descriptor, event.flags);
            self.contained(number, |it| it.event(number, event, (now, role)));
            let queues = self.queues.get(&number).filter(|_| rested);
            from = from.or_else(|| queues?.last_arrival(descriptor));
        }
        self.send_all_ready(&round, (now, role));
        self.help(now);
        if let Some(arrival) = from {
            self.placement.arrived(arrival);
        }
        self.placement.poll_ended(now);
        self.priority.poll_ended(now);
        self.lend(&round);
        round.clear();
        self.round = round;
        self.give_away();
        Ok(())
    }

    /// Sends what these queues have ready, and lets go of those that end.
    fn send_all_ready(&mut self, round: &[u32], (now, role): (Time, PollRole)) {
        for &number in round {
            self.contained(number, |it| it.send_ready(number, (now, role)));
            let Some(queues) = self.queues.get(&number) else {
                continue;
            };
            if queues.common().is_stopping() {
                self.detach(number);
            } else if queues.looks_in().is_some() {
                self.looks_at.push(number);
            }
        }
    }

    /// Helps with the queues of others.
    fn help(&mut self, now: Time) {
        let gives_back = self.pool.liberties.memory;
        let thread = &mut self.resources.thread;
        let force = (self.pool.in_force().1, &*self.pool.load);
        self.helps.retain_mut(|worker| {
            let stays = contain(|| Ok(worker.poll(force, thread, now)));
            stays.unwrap_or_else(|error| {
                worker.fail(error);
                *thread = ThreadState::new(&self.pool.buffers, gives_back);
                false
            })
        });
    }

    /// How long to sleep at most.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        if !self.helps.is_empty() {
            return Some(Duration::ZERO);
        }
        let queues = self
            .looks_at
            .iter()
            .filter_map(|number| self.queues.get(number));
        queues.filter_map(OwnedQueues::looks_in).min()
    }

    /// Another thread left something.
    fn woken(&mut self, now: Time, round: &mut Vec<u32>) {
        self.mailbox.handle.waker().clear();
        if self.mailbox.handle.was_overloaded() {
            self.placement.leave();
        }
        self.helps.extend(self.mailbox.help.take());
        // Before the arrivals: queues arrive before anybody wakes the shard for them.
        let due = self.mailbox.handle.take_due();
        for queues in self.mailbox.arrivals.take() {
            let number = queues.number();
            self.queues.insert(number, queues);
            self.contained(number, |it| {
                let Some(queues) = it.queues.get_mut(&number) else {
                    return Ok(());
                };
                queues.attach(&it.resources.epoll)?;
                queues.changed(&mut it.resources, now)
            });
            round.push(number);
        }
        for number in due {
            if !self.queues.contains_key(&number) {
                continue;
            }
            self.contained(number, |it| match it.queues.get_mut(&number) {
                Some(queues) => queues.changed(&mut it.resources, now),
                None => Ok(()),
            });
            round.push(number);
        }
    }

    /// Does something for one interface, which ends if that fails or panics.
    fn contained(&mut self, number: u32, work: impl FnOnce(&mut Self) -> io::Result<()>) {
        let Err(error) = contain(|| work(self)) else {
            return;
        };
        if let Some(queues) = self.queues.get(&number) {
            queues.common().fail(error);
        }
        // A panic may have left the buffers half changed, and the other interfaces use them, too.
        self.resources.thread = ThreadState::new(&self.pool.buffers, self.pool.liberties.memory);
    }

    /// Takes an event of one of the descriptors of an interface. Errors are final.
    fn event(
        &mut self,
        number: u32,
        (descriptor, flags): (Descriptor, EventFlags),
        (now, role): (Time, PollRole),
    ) -> io::Result<()> {
        let Some(queues) = self.queues.get_mut(&number) else {
            return Ok(());
        };
        let polled = queues.event(&mut self.resources, descriptor, flags, (now, role))?;
        let Some(polled) = polled else {
            return Ok(());
        };
        note(&mut self.placement, polled);
        let found = (descriptor, polled);
        let own = self.pool.polled(&queues.queues, found, (now, role));
        queues.do_jobs(&self.resources, own, now);
        let rx_queues = queues.rx_queues();
        let wanted =
            rx_queues.and_then(|now| self.pool.wanted_rx_queues(&queues.queues, now, polled));
        if let Some(rx_queues) = wanted {
            queues.change_rx_queues(&self.resources, rx_queues, now);
        }
        Ok(())
    }

    /// Sends what an interface has ready. Errors are final.
    fn send_ready(&mut self, number: u32, (now, role): (Time, PollRole)) -> io::Result<()> {
        let Some(queues) = self.queues.get_mut(&number) else {
            return Ok(());
        };
        let polled = queues.send_ready(&mut self.resources, (now, role))?;
        if let Some(polled) = polled {
            note(&mut self.placement, polled);
            let found = (Descriptor::Tun, polled);
            let own = self.pool.polled(&queues.queues, found, (now, role));
            queues.do_jobs(&self.resources, own, now);
        }
        Ok(())
    }

    fn detach(&mut self, number: u32) {
        self.lent.retain(|lent| *lent != number);
        if let Some(mut queues) = self.queues.remove(&number) {
            queues.detach(&self.resources);
        }
    }

    /// Gives interfaces to other shards, if it is asked to. Nothing that they have read is lost: the
    /// ordered queues and what waits in them go along.
    fn give_away(&mut self) {
        let retires = self.mailbox.handle.retires();
        let keeps = match (retires, self.mailbox.keeps.load(Ordering::Acquire)) {
            (true, _) => 0,
            (false, usize::MAX) => return,
            (false, _) => self.mailbox.keeps.swap(usize::MAX, Ordering::AcqRel),
        };
        while self.queues.len() > keeps {
            let Some((other, served)) = self.pool.other_shard(&self.mailbox) else {
                break;
            };
            let Some(number) = self.queues.keys().next().copied() else {
                break;
            };
            self.lent.retain(|of| *of != number);
            if let Some(mut queues) = self.queues.remove(&number) {
                queues.detach(&self.resources);
                queues.set_owner(served);
                other.arrivals.post(queues);
                other.handle.waker().wake();
            }
        }
        if retires {
            self.helps.clear();
        }
    }

    fn has_retired(&self) -> bool {
        let handle = &self.mailbox.handle;
        handle.retires() && handle.load() == 0
    }

    /// While this thread is where the packets of sparse flows come from, it lends the sockets
    /// of the queues that had something; under load it reclaims all.
    fn lend(&mut self, round: &[u32]) {
        if !self.placement.follows() {
            for number in self.lent.drain(..) {
                if let Some(queues) = self.queues.get_mut(&number) {
                    queues.set_lent(&self.resources, false);
                }
            }
            return;
        }
        for &number in round {
            let Some(queues) = self.queues.get_mut(&number) else {
                continue;
            };
            let waits = queues.queues.handle().is_paused() || queues.queues.is_changing();
            if queues.are_lent() || waits || self.lent.is_full() {
                continue;
            }
            queues.set_lent(&self.resources, true);
            if queues.are_lent() && !self.lent.contains(&number) {
                self.lent.push(number);
            }
        }
    }
}

/// Tells what a poll found.
fn note(placement: &mut Placement, polled: Polled) {
    match polled {
        Polled::Packets { count, .. } => placement.processed(count),
        Polled::Blocked => placement.processed(1),
        // The other thread is to get on with it.
        Polled::Busy => std::thread::yield_now(),
        Polled::Full => {}
    }
}

impl<T, U> AsFd for Shard<T, U> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.resources.epoll.as_fd()
    }
}

impl<T, U> Drop for Shard<T, U> {
    fn drop(&mut self) {
        // What arrives from now on finds no shard.
        self.mailbox.arrivals.close();
        self.mailbox.help.close();
    }
}
