//! A shard: a thread that processes packets all the way, in both directions, of the queues that it
//! serves. Each queue has its turn; a turn ends when the queue is empty or a batch is full.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use adit_io::{FrameBatch, TunQueue, UdpSocket};
use adit_proto::Time;
use arrayvec::ArrayVec;
use rustix::event::epoll::{self, EventFlags};

use crate::arrivals::Arrivals;
use crate::clock;
use crate::common::ShardHandle;
use crate::inbound::Inbound;
use crate::inbound_path::InboundThread;
use crate::placement::Placement;
use crate::poll::{MAX_EVENTS, Token, give_priority, overwrite_stack, wait};
use crate::queues::{Queues, Resources};
use crate::sender::Pool;

/// Interfaces whose sockets are handed over at a time, at most. With more, flows are not sparse.
const MAX_HANDED_OVER: usize = 16;

/// What others leave for a shard.
pub(crate) struct ShardInbox<T, U> {
    pub(crate) handle: Arc<ShardHandle>,
    /// Queues that it is to serve.
    pub(crate) arrivals: Arrivals<Queues<T, U>>,
    stopping: AtomicBool,
}

impl<T, U> ShardInbox<T, U> {
    pub(crate) fn new(handle: ShardHandle) -> Self {
        Self {
            handle: Arc::new(handle),
            arrivals: Arrivals::default(),
            stopping: AtomicBool::new(false),
        }
    }

    /// Asks the shard to end.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.handle.waker().wake();
    }
}

/// A shard and what it alone owns.
pub(crate) struct Shard<T, U> {
    inbox: Arc<ShardInbox<T, U>>,
    queues: HashMap<u32, Queues<T, U>>,
    resources: Resources<T, U>,
    placement: Placement,
    /// The numbers of the queues whose sockets are handed over.
    handed_over: ArrayVec<u32, MAX_HANDED_OVER>,
    /// The numbers of those to look at without an event.
    looks_at: Vec<u32>,
}

impl<T: TunQueue, U: UdpSocket> Shard<T, U> {
    /// A shard without queues.
    pub(crate) fn new(
        inbox: Arc<ShardInbox<T, U>>,
        inbound_thread: Arc<InboundThread<T, U>>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = Token::Waker.data();
        epoll::add(&epoll, inbox.handle.waker(), waker, EventFlags::IN)?;
        Ok(Self {
            inbox,
            queues: HashMap::new(),
            resources: Resources {
                epoll,
                inbound_thread,
                inbound: Inbound::new(),
                frames: FrameBatch::default(),
                pool: Pool::default(),
            },
            placement: Placement::new(),
            handed_over: ArrayVec::new(),
            looks_at: Vec::new(),
        })
    }

    /// Processes packets until it is asked to end.
    pub(crate) fn run(mut self) -> io::Result<()> {
        if !give_priority() {
            self.inbox.handle.priority_was_refused();
        }
        let mut events = Vec::with_capacity(MAX_EVENTS);
        // The queues that have something in this round.
        let mut round = Vec::new();
        while !self.inbox.stopping.load(Ordering::Acquire) {
            wait(&self.resources.epoll, &mut events, self.timeout())?;
            let now = clock::now();
            let rested = self.placement.poll_begins(now);
            let mut from = None;
            round.append(&mut self.looks_at);
            for event in &events {
                let (number, descriptor) = match Token::of(event) {
                    Token::Waker => {
                        overwrite_stack();
                        self.woken(now, &mut round);
                        continue;
                    }
                    Token::Queue(number, descriptor) => (number, descriptor),
                };
                let Some(queues) = self.queues.get_mut(&number) else {
                    continue;
                };
                if !round.contains(&number) {
                    round.push(number);
                }
                match queues.event(&mut self.resources, descriptor, event.flags, now) {
                    Ok(None) => {}
                    Ok(Some(packets)) => self.placement.processed(packets),
                    Err(error) => queues.common().fail(error),
                }
                if rested {
                    from = from.or_else(|| queues.last_arrival(descriptor));
                }
            }
            for &number in &round {
                let Some(queues) = self.queues.get_mut(&number) else {
                    continue;
                };
                match queues.send_ready(&mut self.resources, now) {
                    Ok(None) => {}
                    Ok(Some(packets)) => self.placement.processed(packets),
                    Err(error) => queues.common().fail(error),
                }
                if queues.common().is_stopping() {
                    self.detach(number);
                } else if queues.looks_in().is_some() {
                    self.looks_at.push(number);
                }
            }
            if let Some(arrival) = from {
                self.placement.arrived(arrival);
            }
            self.placement.poll_ended(now);
            self.hand_over(&round);
            round.clear();
        }
        Ok(())
    }

    /// How long to sleep at most.
    fn timeout(&self) -> Option<Duration> {
        let queues = self
            .looks_at
            .iter()
            .filter_map(|number| self.queues.get(number));
        queues.filter_map(Queues::looks_in).min()
    }

    /// Another thread left something.
    fn woken(&mut self, now: Time, round: &mut Vec<u32>) {
        self.inbox.handle.waker().clear();
        if self.inbox.handle.was_overloaded() {
            self.placement.leave();
        }
        for queues in self.inbox.arrivals.take() {
            if let Err(error) = queues.attach(&self.resources.epoll) {
                queues.common().fail(error);
            }
            round.push(queues.number());
            self.queues.insert(queues.number(), queues);
        }
        for number in self.inbox.handle.take_due() {
            let Some(queues) = self.queues.get_mut(&number) else {
                continue;
            };
            if let Err(error) = queues.changed(&self.resources, now) {
                queues.common().fail(error);
            }
            round.push(number);
        }
    }

    fn detach(&mut self, number: u32) {
        self.handed_over
            .retain(|handed_over| *handed_over != number);
        if let Some(queues) = self.queues.remove(&number) {
            queues.detach(&self.resources);
        }
    }

    /// While this thread is where the packets of sparse flows come from, it hands over the sockets
    /// of the queues that had something; under load it reclaims all.
    fn hand_over(&mut self, round: &[u32]) {
        if !self.placement.follows() {
            for number in self.handed_over.drain(..) {
                if let Some(queues) = self.queues.get_mut(&number) {
                    queues.set_handed_over(&self.resources, false);
                }
            }
            return;
        }
        for &number in round {
            let Some(queues) = self.queues.get_mut(&number) else {
                continue;
            };
            if queues.is_handed_over() || self.handed_over.is_full() {
                continue;
            }
            queues.set_handed_over(&self.resources, true);
            if queues.is_handed_over() && !self.handed_over.contains(&number) {
                self.handed_over.push(number);
            }
        }
    }
}

impl<T, U> Drop for Shard<T, U> {
    fn drop(&mut self) {
        // What arrives from now on finds no shard.
        self.inbox.arrivals.close();
    }
}
