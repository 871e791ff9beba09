//! One thread that processes packets all the way, in both directions. While little moves, another
//! one does the inbound path.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use adit_io::tun::TunErrorKind;
use adit_io::{Offloads, TunQueue, UdpSocket};
use adit_proto::Time;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::clock;
use crate::common::{Common, ShardCommand, ShardHandle, Sockets};
use crate::inbound_path::InboundPath;
use crate::outbound::{Outbound, Progress};
use crate::placement::Placement;
use crate::poll::{TUN, V6, WAKER, give_priority, overwrite_stack, tokens, wait};

/// A shard and what it alone owns.
pub(crate) struct Shard<T, U> {
    number: usize,
    inbound_path: Arc<InboundPath<T, U>>,
    sockets: Arc<Sockets<U>>,
    epoll: OwnedFd,
    outbound: Outbound,
    /// A socket was full, that of IPv6 if true: the TUN waits until it is writable.
    blocked: Option<bool>,
    placement: Placement,
    /// Little moves: the inbound path's own thread has the sockets.
    handed_over: bool,
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
        let outbound = Outbound::new(number, Arc::clone(&handle.drops));
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
            wait(&self.epoll, &mut events)?;
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
            self.placement.poll_ended(now);
            self.set_handed_over(self.placement.follows())?;
        }
        Ok(())
    }

    fn send(&mut self, now: Time) -> io::Result<()> {
        let InboundPath { tun, common, .. } = &*self.inbound_path;
        match self.outbound.poll(common, &self.sockets, tun, now) {
            Ok(Progress::Blocked) => self.set_blocked(self.outbound.waits_for()),
            Ok(_) => self.set_blocked(None),
            Err(e) if TunErrorKind::of(&e) == TunErrorKind::Gone => Err(e),
            // Anything else concerns what was to be read and passes.
            Err(_) => Ok(()),
        }
    }

    /// While a socket is full the TUN is left alone: the kernel's queues fill, and their owners
    /// notice.
    fn set_blocked(&mut self, blocked: Option<bool>) -> io::Result<()> {
        if blocked != self.blocked {
            self.blocked = blocked;
            let events = if blocked.is_some() {
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
        events.set(EventFlags::OUT, self.blocked == Some(token == V6));
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
            for (socket, token) in tokens(&self.sockets) {
                let data = EventData::new_u64(token);
                epoll::add(&self.epoll, socket.fd(), data, self.socket_events(token))?;
            }
        }
        for message in handle.take_commands() {
            match message {
                ShardCommand::SessionReady(peer) => {
                    let sent = self.outbound.send_staged(common, &self.sockets, &peer, now);
                    if sent == Progress::Blocked {
                        self.set_blocked(self.outbound.waits_for())?;
                    }
                }
                ShardCommand::DropStaged(peer) => self.outbound.drop_staged(peer),
            }
        }
        // The socket that had no room is gone, and there may be none of its family.
        if replaced && self.blocked.is_some() {
            self.send(now)?;
        }
        Ok(())
    }
}
