//! The inbound path of one interface on one shard, and the thread that polls it while flows are
//! sparse.
//!
//! A packet of a sparse flow waits longest for CPUs to wake up. A packet from the TUN comes from
//! the CPU of its sender, and a datagram from the CPU that serves the network card. Two threads can
//! each run where their packets come from; one cannot. So a shard hands the sockets with sparse
//! flows over to a thread that all shards share. Under load that does not help, and the shard does
//! both. A thread holds the lock for a whole poll, so packets keep their order whichever thread
//! polls.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use adit_io::{Offloads, TunQueue, UdpSocket};
use adit_proto::Time;
use rustix::event::epoll::{self, EventFlags};

use crate::clock;
use crate::common::{Common, Part, QueuesHandle, Sockets};
use crate::inbound::{Context, Inbound};
use crate::lock::lock;
use crate::placement::Placement;
use crate::poll::{Descriptor, MAX_EVENTS, Token, each, give_priority, overwrite_stack, wait};
use crate::shares::Shares;
use crate::wake::Waker;

/// What the two threads that may poll the sockets share.
pub(crate) struct InboundPath<T, U> {
    /// Its index in [`Common::queues`].
    index: usize,
    pub(crate) tun: T,
    pub(crate) common: Arc<Common<U>>,
    offloads: Offloads,
    /// Held during a poll.
    gate: Mutex<Shares>,
    /// The last to go: the interface has ended when its TUN is closed.
    _part: Part<U>,
}

impl<T: TunQueue, U: UdpSocket> InboundPath<T, U> {
    pub(crate) fn new(index: usize, tun: T, common: Arc<Common<U>>, offloads: Offloads) -> Self {
        Self {
            index,
            tun,
            offloads,
            gate: Mutex::default(),
            _part: Part::new(&common),
            common,
        }
    }

    pub(crate) fn handle(&self) -> &QueuesHandle<U> {
        &self.common.queues[self.index]
    }

    /// Handles an event of a socket: processes what waits in it, up to a batch, and returns how
    /// many packets. Errors are the TUN's.
    pub(crate) fn poll(
        &self,
        inbound: &mut Inbound,
        socket: &U,
        flags: EventFlags,
        now: Time,
    ) -> io::Result<usize> {
        if flags.contains(EventFlags::ERR) {
            self.common.take_errors(socket, now);
        }
        let context = Context {
            common: &*self.common,
            drops: &self.handle().drops,
            tun: &self.tun,
            offloads: self.offloads,
            now,
        };
        inbound.poll(context, socket, &mut lock(&self.gate))
    }
}

/// The thread that polls sockets with sparse flows, of all shards.
pub(crate) struct InboundThread<T, U> {
    pub(crate) waker: Arc<Waker>,
    /// What it sleeps on: its waker, and the sockets that are handed over.
    epoll: OwnedFd,
    /// Whose sockets these are, by the number of the queues.
    paths: Mutex<HashMap<u32, Arc<InboundPath<T, U>>>>,
    stopping: AtomicBool,
}

impl<T: TunQueue, U: UdpSocket> InboundThread<T, U> {
    pub(crate) fn new() -> io::Result<Self> {
        let thread = Self {
            waker: Arc::new(Waker::new()?),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            paths: Mutex::default(),
            stopping: AtomicBool::new(false),
        };
        let waker = Token::Waker.data();
        epoll::add(&thread.epoll, &*thread.waker, waker, EventFlags::IN)?;
        Ok(thread)
    }

    /// Hands the sockets of a path over to the thread: all of them, or none if there is no memory
    /// for that.
    pub(crate) fn hand_over(&self, path: &Arc<InboundPath<T, U>>, sockets: &Sockets<U>) -> bool {
        let number = path.handle().number;
        lock(&self.paths).insert(number, Arc::clone(path));
        let handed_over = each(sockets).all(|(socket, descriptor)| {
            let data = Token::Queue(number, descriptor).data();
            epoll::add(&self.epoll, socket.fd(), data, EventFlags::IN).is_ok()
        });
        if !handed_over {
            self.reclaim(number, sockets);
        }
        handed_over
    }

    /// Reclaims them.
    pub(crate) fn reclaim(&self, number: u32, sockets: &Sockets<U>) {
        for socket in sockets.both() {
            // Fails for one that was not handed over.
            let _ = epoll::delete(&self.epoll, socket.fd());
        }
        lock(&self.paths).remove(&number);
    }

    /// Asks the thread to end.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Processes packets from the sockets that are handed over, until it is asked to end.
    pub(crate) fn run(&self) -> io::Result<()> {
        give_priority();
        let mut inbound = Inbound::new();
        let mut placement = Placement::new();
        let mut events = Vec::with_capacity(MAX_EVENTS);
        while !self.stopping.load(Ordering::Acquire) {
            wait(&self.epoll, &mut events, None)?;
            let now = clock::now();
            let rested = placement.poll_begins(now);
            let mut from = None;
            for event in &events {
                let (number, descriptor) = match Token::of(event) {
                    Token::Waker => {
                        self.waker.clear();
                        overwrite_stack();
                        continue;
                    }
                    Token::Queue(number, descriptor) => (number, descriptor),
                };
                let Some(path) = lock(&self.paths).get(&number).map(Arc::clone) else {
                    continue;
                };
                let sockets = path.handle().sockets.load();
                let Some(socket) = sockets.family(descriptor == Descriptor::V6) else {
                    continue;
                };
                match path.poll(&mut inbound, socket, event.flags, now) {
                    Ok(packets) => placement.processed(packets),
                    Err(error) => path.common.fail(error),
                }
                if rested {
                    from = from.or_else(|| socket.last_arrival());
                }
            }
            if let Some(arrival) = from {
                placement.arrived(arrival);
            }
            if placement.is_loaded() {
                for path in lock(&self.paths).values() {
                    path.handle().shard.overload();
                }
            }
        }
        Ok(())
    }
}
