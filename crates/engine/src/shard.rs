//! One thread that processes packets all the way, in both directions. While little moves, another
//! one does the inbound path.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use adit_io::tun::TunErrorKind;
use adit_io::{Offloads, TunQueue, UdpSocket};
use adit_proto::Time;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::clock;
use crate::common::{Common, Context, ShardCommand, ShardHandle, Sockets};
use crate::inbound_path::InboundPath;
use crate::outbound::{Outbound, Progress};
use crate::paths::{STALL, TIDY};
use crate::placement::Placement;
use crate::poll::{PATHS, TUN, V6, WAKER, give_priority, overwrite_stack, tokens, wait};

/// A shard and what it alone owns.
pub(crate) struct Shard<T, U> {
    number: usize,
    inbound_path: Arc<InboundPath<T, U>>,
    sockets: Arc<Sockets<U>>,
    epoll: OwnedFd,
    outbound: Outbound<U>,
    /// A socket is full: the TUN waits until it is writable.
    blocked: Option<Blocked>,
    placement: Placement,
    /// Little moves: the inbound path's own thread has the sockets.
    handed_over: bool,
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

impl<T: TunQueue, U: UdpSocket> Shard<T, U> {
    /// A shard, and its inbound path, which is to have a thread of its own.
    pub(crate) fn new(
        number: usize,
        tun: T,
        common: Arc<Common<U>>,
        offloads: Offloads,
    ) -> io::Result<(Self, Arc<InboundPath<T, U>>)> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let handle = &common.shards[number];
        epoll::add(
            &epoll,
            &handle.waker,
            EventData::new_u64(WAKER),
            EventFlags::IN,
        )?;
        epoll::add(&epoll, tun.fd(), EventData::new_u64(TUN), EventFlags::IN)?;
        let outbound = Outbound::new(number, Arc::clone(&handle.drops))?;
        let paths = EventData::new_u64(PATHS);
        epoll::add(&epoll, outbound.paths_fd(), paths, EventFlags::IN)?;
        let inbound_path = Arc::new(InboundPath::new(number, tun, common, offloads)?);
        let shard = Self {
            number,
            inbound_path: Arc::clone(&inbound_path),
            sockets: Arc::new(Sockets::unbound()),
            epoll,
            outbound,
            blocked: None,
            placement: Placement::new(),
            handed_over: false,
        };
        Ok((shard, inbound_path))
    }

    /// Processes packets until the engine stops; an error is the TUN's and final.
    pub(crate) fn run(mut self) -> io::Result<()> {
        give_priority(&self.inbound_path.common);
        let mut events = Vec::with_capacity(8);
        while !self.inbound_path.common.is_stopping() {
            wait(&self.epoll, &mut events, self.timeout())?;
            let now = clock::now();
            let rested = self.placement.poll_begins(now);
            let mut outbound = false;
            let mut from = None;
            for event in &events {
                let flags = event.flags;
                match event.data.u64() {
                    WAKER => {
                        overwrite_stack();
                        self.woken(now)?;
                    }
                    TUN => outbound = true,
                    PATHS => self.with_outbound(now, Outbound::handle_path_events),
                    family => {
                        outbound |= flags.contains(EventFlags::OUT);
                        if flags.intersects(EventFlags::IN | EventFlags::ERR)
                            && let Some(socket) = self.sockets.family(family == V6)
                        {
                            if flags.contains(EventFlags::ERR) {
                                self.inbound_path.common.take_errors(socket, now);
                            }
                            self.placement
                                .processed(self.inbound_path.poll(socket, now)?);
                            if rested {
                                from = from.or_else(|| socket.last_arrival());
                            }
                        }
                    }
                }
            }
            if let Some(blocked) = self.blocked
                && !blocked.accepted
                && now.since(blocked.since) >= STALL
            {
                outbound = self.with_outbound(now, Outbound::isolate);
                self.blocked = Some(Blocked {
                    since: now,
                    accepted: !outbound,
                    ..blocked
                });
            }
            if outbound {
                self.send(now)?;
                self.placement.processed(self.outbound.processed());
                if rested {
                    from = from.or_else(|| self.inbound_path.tun.last_arrival());
                }
            }
            if let Some(arrival) = from {
                self.placement.arrived(arrival);
            }
            if self.outbound.is_untidy() {
                self.with_outbound(now, Outbound::tidy);
            }
            self.placement.poll_ended(now);
            self.set_handed_over(self.placement.follows())?;
        }
        Ok(())
    }

    /// How long to sleep at most.
    fn timeout(&self) -> Option<Duration> {
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
        now: Time,
        method: impl FnOnce(&mut Outbound<U>, Context<'_, U>) -> R,
    ) -> R {
        let context = Context {
            common: &self.inbound_path.common,
            sockets: &self.sockets,
            now,
        };
        method(&mut self.outbound, context)
    }

    fn send(&mut self, now: Time) -> io::Result<()> {
        let path = Arc::clone(&self.inbound_path);
        match self.with_outbound(now, |outbound, context| outbound.poll(context, &path.tun)) {
            Ok(Progress::Blocked) => self.set_blocked(self.outbound.waits_for(), now),
            Ok(Progress::Done) => self.set_blocked(None, now),
            Err(e) if TunErrorKind::of(&e) == TunErrorKind::Gone => Err(e),
            // Anything else concerns what was to be read and passes.
            Err(_) => Ok(()),
        }
    }

    /// While a socket is full the TUN is left alone: the kernel's queues fill, and their owners
    /// notice.
    fn set_blocked(&mut self, v6: Option<bool>, now: Time) -> io::Result<()> {
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
            let tun = &self.inbound_path.tun;
            epoll::modify(&self.epoll, tun.fd(), EventData::new_u64(TUN), events)?;
            self.change_socket_events()?;
        }
        Ok(())
    }

    /// Hands the sockets over to the inbound path's own thread, or reclaims them.
    fn set_handed_over(&mut self, handed_over: bool) -> io::Result<()> {
        if handed_over == self.handed_over {
            return Ok(());
        }
        if handed_over {
            self.handed_over = self.inbound_path.hand_over(&self.sockets);
        } else {
            self.inbound_path.reclaim(&self.sockets);
            self.handed_over = false;
        }
        self.change_socket_events()
    }

    fn change_socket_events(&self) -> io::Result<()> {
        for (socket, token) in tokens(&self.sockets) {
            let data = EventData::new_u64(token);
            epoll::modify(&self.epoll, socket.fd(), data, self.socket_events(token))?;
        }
        Ok(())
    }

    fn socket_events(&self, token: u64) -> EventFlags {
        let mut events = EventFlags::empty();
        events.set(EventFlags::IN, !self.handed_over);
        events.set(
            EventFlags::OUT,
            self.blocked
                .is_some_and(|blocked| blocked.v6 == (token == V6)),
        );
        events
    }

    fn woken(&mut self, now: Time) -> io::Result<()> {
        let inbound_path = Arc::clone(&self.inbound_path);
        let common = &inbound_path.common;
        let handle: &ShardHandle<U> = &common.shards[self.number];
        handle.waker.clear();
        if inbound_path.was_overloaded() {
            self.placement.leave();
        }
        let sockets = handle.sockets.load_full();
        let replaced = !Arc::ptr_eq(&sockets, &self.sockets);
        if replaced {
            self.set_handed_over(false)?;
            for socket in self.sockets.both() {
                epoll::delete(&self.epoll, socket.fd())?;
            }
            self.sockets = sockets;
            self.outbound.clear_paths();
            for (socket, token) in tokens(&self.sockets) {
                let data = EventData::new_u64(token);
                epoll::add(&self.epoll, socket.fd(), data, self.socket_events(token))?;
            }
        }
        for message in handle.take_commands() {
            match message {
                ShardCommand::SessionReady(peer) => {
                    let send = |outbound: &mut Outbound<U>, context: Context<'_, U>| {
                        outbound.send_staged(context, &peer)
                    };
                    if self.with_outbound(now, send) == Progress::Blocked {
                        self.set_blocked(self.outbound.waits_for(), now)?;
                    }
                }
                ShardCommand::DropStaged(peer) => self.outbound.drop_staged(&peer),
                ShardCommand::ClearPaths => self.outbound.clear_paths(),
            }
        }
        // The full socket was replaced, and there may be none of its family now.
        if replaced && self.blocked.is_some() {
            self.send(now)?;
        }
        Ok(())
    }
}
