//! The queues that one shard serves of one interface: a TUN queue and the sockets.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use adit_io::tun::TunErrorKind;
use adit_io::{Arrival, FrameBatch, Offloads, TunQueue, UdpSocket};
use adit_proto::Time;
use rustix::event::epoll::{self, EventFlags};

use crate::clock;
use crate::common::{Common, Context, ShardCommand, Sockets};
use crate::inbound::Inbound;
use crate::inbound_path::{InboundPath, InboundThread};
use crate::outbound::{Outbound, Progress};
use crate::paths::{STALL, TIDY};
use crate::poll::{Descriptor, Token, each};
use crate::sender::Pool;

/// What a shard has once for all its queues.
pub(crate) struct Resources<T, U> {
    /// What the shard sleeps on.
    pub(crate) epoll: OwnedFd,
    pub(crate) inbound_thread: Arc<InboundThread<T, U>>,
    pub(crate) inbound: Inbound,
    pub(crate) frames: FrameBatch,
    pub(crate) pool: Pool,
}

/// The queues of one interface.
pub(crate) struct Queues<T, U> {
    number: u32,
    path: Arc<InboundPath<T, U>>,
    sockets: Arc<Sockets<U>>,
    outbound: Outbound<U>,
    /// A socket is full: the TUN waits until it is writable.
    blocked: Option<Blocked>,
    /// Little moves: the inbound path's own thread has the sockets.
    handed_over: bool,
    /// Something may leave: the TUN queue can be read, or the full socket written.
    ready: bool,
}

/// That a socket which all peers share is full.
#[derive(Clone, Copy)]
struct Blocked {
    /// That of IPv6.
    v6: bool,
    /// When it last took a train, or something was last done about it.
    since: Time,
    /// How many it had taken then.
    taken: u64,
    /// Nothing more can be done about it.
    accepted: bool,
}

impl<T: TunQueue, U: UdpSocket> Queues<T, U> {
    /// Those at `index` in [`Common::queues`].
    pub(crate) fn new(
        index: usize,
        tun: T,
        common: Arc<Common<U>>,
        offloads: Offloads,
    ) -> io::Result<Self> {
        let handle = &common.queues[index];
        Ok(Self {
            number: handle.number,
            outbound: Outbound::new(index, Arc::clone(&handle.drops))?,
            path: Arc::new(InboundPath::new(index, tun, common, offloads)),
            sockets: Arc::new(Sockets::unbound()),
            blocked: None,
            handed_over: false,
            ready: false,
        })
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn common(&self) -> &Arc<Common<U>> {
        &self.path.common
    }

    /// The shard is to poll them from now on.
    pub(crate) fn attach(&self, epoll: &OwnedFd) -> io::Result<()> {
        let tun = Token::Queue(self.number, Descriptor::Tun).data();
        epoll::add(epoll, self.path.tun.fd(), tun, EventFlags::IN)?;
        let paths = Token::Queue(self.number, Descriptor::Paths).data();
        epoll::add(epoll, self.outbound.paths_fd(), paths, EventFlags::IN)?;
        Ok(())
    }

    /// The shard polls them no longer.
    pub(crate) fn detach(mut self, resources: &Resources<T, U>) {
        self.set_handed_over(resources, false);
        // Others may have these open for longer. Errors say that they were never added.
        let _ = epoll::delete(&resources.epoll, self.path.tun.fd());
        for socket in self.sockets.both() {
            let _ = epoll::delete(&resources.epoll, socket.fd());
        }
    }

    /// Takes an event of one of their descriptors. Returns how many packets were received, if a
    /// socket was read; errors are the TUN's and final.
    pub(crate) fn event(
        &mut self,
        resources: &mut Resources<T, U>,
        descriptor: Descriptor,
        flags: EventFlags,
        now: Time,
    ) -> io::Result<Option<usize>> {
        match descriptor {
            Descriptor::Tun => self.ready = true,
            Descriptor::Paths => self.with_outbound(resources, now, Outbound::handle_path_events),
            Descriptor::V4 | Descriptor::V6 => {
                self.ready |= flags.contains(EventFlags::OUT);
                let is_inbound = flags.intersects(EventFlags::IN | EventFlags::ERR);
                let socket = self.sockets.family(descriptor == Descriptor::V6);
                if let Some(socket) = socket.filter(|_| is_inbound) {
                    let inbound = &mut resources.inbound;
                    return self.path.poll(inbound, socket, flags, now).map(Some);
                }
            }
        }
        Ok(None)
    }

    /// Where the last packet from this descriptor came from.
    pub(crate) fn last_arrival(&self, descriptor: Descriptor) -> Option<Arrival> {
        match descriptor {
            Descriptor::Tun => self.path.tun.last_arrival(),
            Descriptor::Paths => None,
            family => self
                .sockets
                .family(family == Descriptor::V6)?
                .last_arrival(),
        }
    }

    /// Sends what is ready. Returns how many packets that were, if anything was; errors are the
    /// TUN's and final.
    pub(crate) fn send_ready(
        &mut self,
        resources: &mut Resources<T, U>,
        now: Time,
    ) -> io::Result<Option<usize>> {
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
        let was_ready = std::mem::take(&mut self.ready);
        if was_ready {
            self.send(resources, now)?;
        }
        if self.outbound.is_untidy() {
            self.with_outbound(resources, now, Outbound::tidy);
        }
        Ok(was_ready.then(|| self.outbound.processed()))
    }

    /// When to look at them without an event.
    pub(crate) fn looks_in(&self) -> Option<Duration> {
        match self.blocked {
            Some(blocked) if !blocked.accepted => {
                Some(STALL.saturating_sub(clock::now().since(blocked.since)))
            }
            _ => self.outbound.is_untidy().then_some(TIDY),
        }
    }

    /// Calls a method of the outbound path.
    fn with_outbound<R>(
        &mut self,
        resources: &Resources<T, U>,
        now: Time,
        method: impl FnOnce(&mut Outbound<U>, Context<'_, U>) -> R,
    ) -> R {
        let context = Context {
            common: &self.path.common,
            sockets: &self.sockets,
            pool: &resources.pool,
            now,
        };
        method(&mut self.outbound, context)
    }

    fn send(&mut self, resources: &mut Resources<T, U>, now: Time) -> io::Result<()> {
        let context = Context {
            common: &self.path.common,
            sockets: &self.sockets,
            pool: &resources.pool,
            now,
        };
        let frames = &mut resources.frames;
        match self.outbound.poll(context, &self.path.tun, frames) {
            Ok(Progress::Blocked) => {
                self.set_blocked(&resources.epoll, self.outbound.waits_for(), now)
            }
            Ok(Progress::Done) => self.set_blocked(&resources.epoll, None, now),
            Err(e) if TunErrorKind::of(&e) == TunErrorKind::Gone => Err(e),
            // Anything else concerns what was to be read and passes.
            Err(_) => Ok(()),
        }
    }

    /// While a socket is full the TUN is left alone: the kernel's queues fill, and their owners
    /// notice.
    fn set_blocked(&mut self, epoll: &OwnedFd, v6: Option<bool>, now: Time) -> io::Result<()> {
        let before = self.blocked;
        let taken = self.outbound.taken();
        self.blocked = v6.map(|v6| match before {
            Some(blocked) if (blocked.v6, blocked.taken) == (v6, taken) => blocked,
            _ => Blocked {
                v6,
                since: now,
                taken,
                accepted: false,
            },
        });
        if v6 != before.map(|blocked| blocked.v6) {
            let events = if v6.is_some() {
                EventFlags::empty()
            } else {
                EventFlags::IN
            };
            let data = Token::Queue(self.number, Descriptor::Tun).data();
            epoll::modify(epoll, self.path.tun.fd(), data, events)?;
            self.change_socket_events(epoll);
        }
        Ok(())
    }

    /// Whether the inbound path's own thread has the sockets.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.handed_over
    }

    /// Hands the sockets over to the inbound path's own thread, or reclaims them.
    pub(crate) fn set_handed_over(&mut self, resources: &Resources<T, U>, handed_over: bool) {
        if handed_over == self.handed_over {
            return;
        }
        let thread = &resources.inbound_thread;
        if handed_over {
            self.handed_over = thread.hand_over(&self.path, &self.sockets);
        } else {
            thread.reclaim(self.number, &self.sockets);
            self.handed_over = false;
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

    fn socket_events(&self, descriptor: Descriptor) -> EventFlags {
        let mut events = EventFlags::empty();
        events.set(EventFlags::IN, !self.handed_over);
        let blocks = |blocked: Blocked| blocked.v6 == (descriptor == Descriptor::V6);
        events.set(EventFlags::OUT, self.blocked.is_some_and(blocks));
        events
    }

    /// Looks at what another thread changed. Errors are final.
    pub(crate) fn changed(&mut self, resources: &Resources<T, U>, now: Time) -> io::Result<()> {
        let path = Arc::clone(&self.path);
        let handle = path.handle();
        handle.looks();
        let sockets = handle.sockets.load_full();
        let replaced = !Arc::ptr_eq(&sockets, &self.sockets);
        if replaced {
            self.set_handed_over(resources, false);
            for socket in self.sockets.both() {
                epoll::delete(&resources.epoll, socket.fd())?;
            }
            self.sockets = sockets;
            self.outbound.clear_paths();
            for (socket, descriptor) in each(&self.sockets) {
                let data = Token::Queue(self.number, descriptor).data();
                let events = self.socket_events(descriptor);
                epoll::add(&resources.epoll, socket.fd(), data, events)?;
            }
        }
        for command in handle.take_commands() {
            match command {
                ShardCommand::SessionReady(peer) => {
                    let send = |outbound: &mut Outbound<U>, context: Context<'_, U>| {
                        outbound.send_staged(context, &peer)
                    };
                    if self.with_outbound(resources, now, send) == Progress::Blocked {
                        self.set_blocked(&resources.epoll, self.outbound.waits_for(), now)?;
                    }
                }
                ShardCommand::DropStaged(peer) => self.outbound.drop_staged(&peer),
                ShardCommand::ClearPaths => self.outbound.clear_paths(),
            }
        }
        // The full socket was replaced, and there may be none of its family now.
        self.ready |= replaced && self.blocked.is_some();
        Ok(())
    }
}
