//! A shard's inbound path, which has a thread of its own while flows are sparse.
//!
//! A packet of a sparse flow waits longest for CPUs to wake up. A packet from the TUN comes from
//! the CPU of its sender, and a datagram from the CPU that serves the network card. Two threads can
//! each run where their packets come from; one cannot. Under load that does not help, and the shard
//! does both. A thread holds the lock for a whole poll, so packets keep their order whichever
//! thread polls.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use adit_io::{Offloads, TunQueue, UdpSocket};
use adit_proto::Time;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::clock;
use crate::common::{Common, Sockets};
use crate::inbound::Inbound;
use crate::lock::lock;
use crate::placement::Placement;
use crate::poll::{V6, WAKER, give_priority, overwrite_stack, tokens, wait};

/// What the two threads of a shard share.
pub(crate) struct InboundPath<T, U> {
    number: usize,
    pub(crate) tun: T,
    pub(crate) common: Arc<Common<U>>,
    inbound: Mutex<Inbound>,
    /// What the inbound path's own thread sleeps on: its waker, and the sockets while they are
    /// handed over.
    epoll: OwnedFd,
    /// That thread has met load: it asks the shard to reclaim the sockets.
    overloaded: AtomicBool,
}

impl<T: TunQueue, U: UdpSocket> InboundPath<T, U> {
    pub(crate) fn new(
        number: usize,
        tun: T,
        common: Arc<Common<U>>,
        offloads: Offloads,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let handle = &common.shards[number];
        let waker = EventData::new_u64(WAKER);
        epoll::add(&epoll, &handle.inbound_path, waker, EventFlags::IN)?;
        Ok(Self {
            number,
            tun,
            inbound: Mutex::new(Inbound::new(offloads, Arc::clone(&handle.drops))),
            common,
            epoll,
            overloaded: AtomicBool::new(false),
        })
    }

    /// Processes what waits in `socket`, up to a batch, and returns how many packets. Errors are
    /// the TUN's.
    pub(crate) fn poll(&self, socket: &U, now: Time) -> io::Result<usize> {
        lock(&self.inbound).poll(&self.common, socket, &self.tun, now)
    }

    /// Hands the sockets over to the inbound path's own thread: all of them, or none if there is no
    /// memory for that.
    pub(crate) fn hand_over(&self, sockets: &Sockets<U>) -> bool {
        let handed_over = tokens(sockets).all(|(socket, token)| {
            let data = EventData::new_u64(token);
            epoll::add(&self.epoll, socket.fd(), data, EventFlags::IN).is_ok()
        });
        if !handed_over {
            self.reclaim(sockets);
        }
        handed_over
    }

    /// Reclaims them.
    pub(crate) fn reclaim(&self, sockets: &Sockets<U>) {
        for socket in sockets.both() {
            // Fails for one that was not handed over.
            let _ = epoll::delete(&self.epoll, socket.fd());
        }
    }

    /// Whether the inbound path's own thread has met load since this was last asked.
    pub(crate) fn was_overloaded(&self) -> bool {
        self.overloaded.swap(false, Ordering::AcqRel)
    }

    /// Processes packets from the sockets that are handed over, until the engine stops.
    pub(crate) fn run(&self) -> io::Result<()> {
        give_priority(&self.common);
        let handle = &self.common.shards[self.number];
        let mut placement = Placement::new();
        let mut events = Vec::with_capacity(8);
        while !self.common.is_stopping() {
            wait(&self.epoll, &mut events, None)?;
            let now = clock::now();
            let rested = placement.poll_begins(now);
            let sockets = handle.sockets.load();
            let mut from = None;
            for event in &events {
                match event.data.u64() {
                    WAKER => {
                        handle.inbound_path.clear();
                        overwrite_stack();
                    }
                    family => {
                        if let Some(socket) = sockets.family(family == V6) {
                            let flags = event.flags;
                            if flags.contains(EventFlags::ERR) {
                                self.common.take_errors(socket, now);
                            }
                            placement.processed(self.poll(socket, now)?);
                            if rested {
                                from = from.or_else(|| socket.last_arrival());
                            }
                        }
                    }
                }
            }
            if let Some(arrival) = from {
                placement.arrived(arrival);
            }
            if placement.is_loaded() && !self.overloaded.swap(true, Ordering::AcqRel) {
                handle.waker.wake();
            }
        }
        Ok(())
    }
}
