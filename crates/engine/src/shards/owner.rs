//! The queues of one interface as the shard that owns them has them: it waits for their events.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use adit_io::tun::TunErrorKind;
use adit_io::{Arrival, TunQueue, UdpSocket};
use adit_proto::Time;
use rustix::event::epoll::{self, EventFlags};

use crate::order::rx_queues::RX_QUEUES;
use crate::outbound::Outbound;
use crate::outbound::context::OutboundContext;
use crate::outbound::slow_paths::{STALL, TIDY};
use crate::shards::inbound_thread::InboundThread;
use crate::shards::queues::Queues;
use crate::shards::thread_state::ThreadState;
use crate::shared::common::{Common, EndGuard};
use crate::shared::handles::{Served, ShardCommand};
use crate::shared::sockets::{RxQueueSocket, Sockets, each};
use crate::thread::clock;
use crate::thread::poll::{Descriptor, PollRole, Polled, Token};

/// How often to look how far a change of receive queues has come.
const CHANGE: Duration = Duration::from_millis(1);

/// Resources that a shard has once for all its queues.
pub(crate) struct Resources<T, U> {
    /// The epoll set that the shard sleeps on.
    pub(crate) epoll: OwnedFd,
    pub(crate) inbound_thread: Arc<InboundThread<T, U>>,
    pub(crate) thread: ThreadState,
}

/// The queues of one interface, and what their owner waits for.
pub(crate) struct OwnedQueues<T, U> {
    number: u32,
    served: Served,
    pub(crate) queues: Arc<Queues<T, U>>,
    sockets: Arc<Sockets<U>>,
    /// A socket is full: the TUN waits until it is writable.
    blocked: Option<Blocked>,
    /// Little moves: the inbound path's own thread has the sockets.
    lent: bool,
    /// Something may leave: the TUN queue can be read, or the full socket written.
    ready: bool,
    /// No events of the TUN are waited for.
    tun_waits: bool,
    /// Other threads have taken as many batches as may be, of the TUN and of each receive queue of the
    /// sockets: one of them wakes the owner.
    awaits_tun: bool,
    awaits_rx_queues: [bool; RX_QUEUES],
    /// The kernel refused to spread data over other receive queues than now.
    rx_queues_stay: bool,
    /// Others have the queues, too, for a while: without an owner the interface ends nevertheless.
    _end_guard: EndGuard<U>,
}

/// A socket which all peers share is full.
#[derive(Clone, Copy)]
struct Blocked {
    /// The socket of IPv6.
    v6: bool,
    /// When it last took a train, or something was last done about it.
    since: Time,
    /// How many it had taken then.
    taken: u64,
    /// Nothing more can be done about it.
    accepted: bool,
}

impl<T: TunQueue, U: UdpSocket> OwnedQueues<T, U> {
    pub(crate) fn new(queues: Arc<Queues<T, U>>, served: Served) -> Self {
        Self {
            number: queues.handle().number,
            _end_guard: EndGuard::new(&queues.common),
            served,
            queues,
            sockets: Arc::new(Sockets::unbound()),
            blocked: None,
            lent: false,
            ready: false,
            tun_waits: false,
            awaits_tun: false,
            awaits_rx_queues: [false; RX_QUEUES],
            rx_queues_stay: false,
        }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn common(&self) -> &Arc<Common<U>> {
        &self.queues.common
    }

    /// The shard is to poll them from now on, and to look at what changed.
    pub(crate) fn attach(&self, epoll: &OwnedFd) -> io::Result<()> {
        let data = |descriptor| Token::Queue(self.number, descriptor).data();
        epoll::add(
            epoll,
            self.queues.tun.fd(),
            data(Descriptor::Tun),
            self.tun_events(),
        )?;
        let outbound = &self.queues.outbound;
        let paths = data(Descriptor::Paths);
        epoll::add(epoll, outbound.paths_fd(), paths, EventFlags::IN)?;
        for (socket, descriptor) in each(&self.sockets) {
            let events = self.socket_events(descriptor);
            epoll::add(epoll, socket.fd(), data(descriptor), events)?;
        }
        Ok(())
    }

    /// The shard polls them no longer.
    pub(crate) fn detach(&mut self, resources: &Resources<T, U>) {
        self.set_lent(resources, false);
        // Others may have these open for longer. Errors say that they were never added.
        let epoll = &resources.epoll;
        let _ = epoll::delete(epoll, self.queues.tun.fd());
        let outbound = &self.queues.outbound;
        let _ = epoll::delete(epoll, outbound.paths_fd());
        for it in self.sockets.all() {
            let _ = epoll::delete(epoll, it.socket.fd());
        }
    }

    /// Another shard has them from now on. A thread that wakes their owner may still wake this one: so the
    /// other one looks at them when they arrive, in any case.
    pub(crate) fn set_owner(&mut self, served: Served) {
        let shard = Arc::clone(&served.0);
        self.queues.handle().ownership.change(shard);
        self.served = served;
    }

    /// Takes an event of one of their descriptors. Returns what a poll of a socket found, if one was
    /// polled; errors are the TUN's and final.
    pub(crate) fn event(
        &mut self,
        resources: &mut Resources<T, U>,
        descriptor: Descriptor,
        flags: EventFlags,
        (now, role): (Time, PollRole),
    ) -> io::Result<Option<Polled>> {
        match descriptor {
            Descriptor::Tun => self.ready = true,
            Descriptor::Paths => {
                self.with_outbound(resources, now, |outbound, context, _| {
                    outbound.handle_path_events(context);
                });
            }
            Descriptor::Socket { .. } => {
                self.ready |= flags.contains(EventFlags::OUT);
                let is_inbound = flags.intersects(EventFlags::IN | EventFlags::ERR);
                let socket = self.sockets.of(descriptor).filter(|_| is_inbound);
                if let Some(socket) = socket {
                    let rx_queue = socket.rx_queue;
                    let thread = &mut resources.thread;
                    let polled = self.queues.poll_socket(thread, socket, flags, now, role)?;
                    if polled == Polled::Full {
                        self.awaits_rx_queues[rx_queue % RX_QUEUES] = true;
                        self.change_socket_events(&resources.epoll);
                    }
                    return Ok(Some(polled));
                }
            }
        }
        Ok(None)
    }

    /// How many receive queues are in use, if that can change now.
    pub(crate) fn rx_queues(&self) -> Option<usize> {
        let can_change = !self.rx_queues_stay && !self.queues.is_changing();
        can_change.then(|| self.sockets.in_use())
    }

    /// Begins to spread peers over so many receive queues, as far as the kernel has that.
    pub(crate) fn change_rx_queues(
        &mut self,
        resources: &Resources<T, U>,
        rx_queues: usize,
        now: Time,
    ) {
        self.set_lent(resources, false);
        if rx_queues > self.sockets.rx_queues() {
            // The sockets of receive queues are the first on their port: those of slow peers come again.
            self.with_outbound(resources, now, |outbound, _, _| outbound.clear_paths());
        }
        self.rx_queues_stay = !self.queues.change_rx_queues(&self.sockets, rx_queues);
        for (socket, descriptor) in each(&self.sockets) {
            let data = Token::Queue(self.number, descriptor).data();
            let events = self.socket_events(descriptor);
            // Fails for those that are there already.
            let _ = epoll::add(&resources.epoll, socket.fd(), data, events);
        }
    }

    /// Goes on with a change of receive queues.
    fn go_on_changing(&self, resources: &mut Resources<T, U>, now: Time) -> io::Result<()> {
        let polls = self.queues.rx_queues_to_poll(&self.sockets, now);
        let left = |it: &RxQueueSocket<'_, U>| polls[it.rx_queue % RX_QUEUES];
        for socket in self.sockets.all().filter(left) {
            let thread = &mut resources.thread;
            let nothing = EventFlags::empty();
            self.queues
                .poll_socket(thread, socket, nothing, now, PollRole::Owner)?;
        }
        Ok(())
    }

    /// Works on so many of the batches that wait for that.
    pub(crate) fn do_jobs(&self, resources: &Resources<T, U>, count: usize, now: Time) {
        let mut jobs = 0..count;
        while jobs.next().is_some() && self.queues.do_job(&resources.thread, &self.sockets, now) {}
    }

    /// Where the last packet from this descriptor came from.
    pub(crate) fn last_arrival(&self, descriptor: Descriptor) -> Option<Arrival> {
        match descriptor {
            Descriptor::Tun => self.queues.tun.last_arrival(),
            socket => self.sockets.of(socket)?.socket.last_arrival(),
        }
    }

    /// Sends what is ready. Returns what a poll of the TUN found, if it was polled; errors are the
    /// TUN's and final.
    pub(crate) fn send_ready(
        &mut self,
        resources: &mut Resources<T, U>,
        (now, role): (Time, PollRole),
    ) -> io::Result<Option<Polled>> {
        if let Some(blocked) = self.blocked
            && !blocked.accepted
            && now.since(blocked.since) >= STALL
        {
            self.ready = self.with_outbound(resources, now, Outbound::isolate);
            self.blocked = Some(Blocked {
                since: now,
                accepted: !self.ready,
                ..blocked
            });
        }
        if self.queues.is_changing() {
            self.go_on_changing(resources, now)?;
        }
        let polled = match std::mem::take(&mut self.ready) {
            true => self.send(resources, now, role)?,
            false => None,
        };
        if self.queues.outbound.is_untidy() {
            self.with_outbound(resources, now, |outbound, context, _| {
                outbound.tidy(context)
            });
        }
        Ok(polled)
    }

    /// When to look at them without an event.
    pub(crate) fn looks_in(&self) -> Option<Duration> {
        let rests = self.queues.tun.rests_for();
        let looks = match self.blocked {
            _ if self.queues.is_changing() => Some(CHANGE),
            Some(blocked) if !blocked.accepted => {
                Some(STALL.saturating_sub(clock::now().since(blocked.since)))
            }
            _ => self.queues.outbound.is_untidy().then_some(TIDY),
        };
        looks.into_iter().chain(rests).min()
    }

    /// Calls a method of the outbound path.
    fn with_outbound<R>(
        &self,
        resources: &Resources<T, U>,
        now: Time,
        method: impl FnOnce(&Outbound<U>, OutboundContext<'_, U>, &T) -> R,
    ) -> R {
        let buffers = &resources.thread.buffers.outbound;
        let context = self.queues.context(buffers, &self.sockets, now);
        method(&self.queues.outbound, context, &self.queues.tun)
    }

    fn send(
        &mut self,
        resources: &Resources<T, U>,
        now: Time,
        role: PollRole,
    ) -> io::Result<Option<Polled>> {
        let thread = &resources.thread;
        match self.queues.poll_tun(thread, &self.sockets, now, role) {
            Ok(polled) => {
                self.awaits_tun = polled == Polled::Full;
                self.set_blocked(&resources.epoll, now)?;
                Ok(Some(polled))
            }
            Err(e) if TunErrorKind::of(&e) == TunErrorKind::Gone => Err(e),
            // Anything else concerns what was to be read and passes.
            Err(_) => Ok(None),
        }
    }

    /// While a socket is full the TUN is left alone: the kernel's queues fill, and their owners
    /// notice. The same while other threads have taken all that may be taken.
    fn set_blocked(&mut self, epoll: &OwnedFd, now: Time) -> io::Result<()> {
        let before = self.blocked;
        self.blocked = self.queues.outbound.waits_for().map(|v6| {
            let taken = self.queues.outbound.taken();
            match before {
                Some(blocked) if (blocked.v6, blocked.taken) == (v6, taken) => blocked,
                _ => Blocked {
                    v6,
                    since: now,
                    taken,
                    accepted: false,
                },
            }
        });
        let waits = self.blocked.is_some() || self.awaits_tun;
        if waits != self.tun_waits {
            self.tun_waits = waits;
            let data = Token::Queue(self.number, Descriptor::Tun).data();
            epoll::modify(epoll, self.queues.tun.fd(), data, self.tun_events())?;
        }
        let v6 = |blocked: Option<Blocked>| blocked.map(|blocked| blocked.v6);
        if v6(self.blocked) != v6(before) {
            self.change_socket_events(epoll);
        }
        Ok(())
    }

    /// Whether the inbound path's own thread has the sockets.
    pub(crate) fn are_lent(&self) -> bool {
        self.lent
    }

    /// Lends the sockets to the inbound path's own thread, or reclaims them.
    pub(crate) fn set_lent(&mut self, resources: &Resources<T, U>, lent: bool) {
        if lent == self.lent {
            return;
        }
        let thread = &resources.inbound_thread;
        if lent {
            self.lent = thread.lend(&self.queues, &self.sockets);
        } else {
            thread.reclaim(self.number, &self.sockets);
            self.lent = false;
        }
        self.change_socket_events(&resources.epoll);
    }

    fn change_socket_events(&self, epoll: &OwnedFd) {
        for (socket, descriptor) in each(&self.sockets) {
            let data = Token::Queue(self.number, descriptor).data();
            // Fails for no socket that was added.
            let _ = epoll::modify(epoll, socket.fd(), data, self.socket_events(descriptor));
        }
    }

    fn tun_events(&self) -> EventFlags {
        let mut events = EventFlags::empty();
        events.set(EventFlags::IN, !self.tun_waits);
        events
    }

    fn socket_events(&self, descriptor: Descriptor) -> EventFlags {
        let mut events = EventFlags::empty();
        let Descriptor::Socket { rx_queue, v6 } = descriptor else {
            return events;
        };
        let awaits = self.awaits_rx_queues[usize::from(rx_queue) % RX_QUEUES];
        events.set(EventFlags::IN, !self.lent && !awaits);
        let blocks = |blocked: Blocked| rx_queue == 0 && blocked.v6 == v6;
        events.set(EventFlags::OUT, self.blocked.is_some_and(blocks));
        events
    }

    /// Looks at what another thread changed. Errors are final.
    pub(crate) fn changed(&mut self, resources: &mut Resources<T, U>, now: Time) -> io::Result<()> {
        let queues = Arc::clone(&self.queues);
        let handle = queues.handle();
        handle.ownership.looks();
        if handle.is_paused() {
            self.set_lent(resources, false);
        }
        if std::mem::take(&mut self.awaits_rx_queues) != [false; RX_QUEUES] {
            self.change_socket_events(&resources.epoll);
        }
        if queues.workers() == 0 {
            self.do_jobs(resources, queues.jobs(), now);
        }
        queues.proceed(&mut resources.thread, &self.sockets, now)?;
        let sockets = handle.sockets.load_full();
        let replaced = !Arc::ptr_eq(&sockets, &self.sockets);
        if replaced {
            self.set_lent(resources, false);
            for it in self.sockets.all() {
                epoll::delete(&resources.epoll, it.socket.fd())?;
            }
            queues.replaced(&sockets, now);
            self.sockets = sockets;
            self.rx_queues_stay = !self.sockets.in_use().is_power_of_two();
            self.queues.outbound.clear_paths();
            for (socket, descriptor) in each(&self.sockets) {
                let data = Token::Queue(self.number, descriptor).data();
                let events = self.socket_events(descriptor);
                epoll::add(&resources.epoll, socket.fd(), data, events)?;
            }
        }
        for command in handle.take_commands() {
            match command {
                ShardCommand::SessionReady(peer) => {
                    let sent = self.with_outbound(resources, now, |outbound, context, tun| {
                        outbound.send_staged(context, tun, &peer)
                    });
                    if !sent {
                        handle.put_back(ShardCommand::SessionReady(peer));
                    }
                }
                ShardCommand::DropStaged(peer) => {
                    self.with_outbound(resources, now, |outbound, context, tun| {
                        outbound.drop_staged(context, tun, &peer);
                    });
                }
                ShardCommand::ClearPaths => self.queues.outbound.clear_paths(),
            }
        }
        self.awaits_tun = false;
        self.set_blocked(&resources.epoll, now)?;
        // The full socket was replaced, and there may be none of its family now.
        self.ready |= replaced && self.blocked.is_some();
        Ok(())
    }
}
