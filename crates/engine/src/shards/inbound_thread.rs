//! The thread that polls sockets while flows are sparse.
//!
//! A packet of a sparse flow waits longest for CPUs to wake up. A packet from the TUN comes from
//! the CPU of its sender, and a datagram from the CPU that serves the network card. Two threads can
//! each run where their packets come from; one cannot. So a shard lends the sockets with sparse
//! flows to a thread that all shards share. Under load that does not help, and the shard does
//! both. Both threads go through the ordered queue, so packets keep their order.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use adit_io::{TunQueue, UdpSocket};
use rustix::event::epoll::{self, EventFlags};

use crate::shards::queues::Queues;
use crate::shards::settings::Liberties;
use crate::shards::thread_state::{SharedBuffers, ThreadState};
use crate::shared::sockets::{Sockets, each};
use crate::thread::clock;
use crate::thread::contain::contain;
use crate::thread::lock::lock;
use crate::thread::placement::Placement;
use crate::thread::poll::{MAX_EVENTS, PollRole, Polled, Token, overwrite_stack};
use crate::thread::priority::ThreadPriority;
use crate::thread::start;
use crate::thread::wake::Waker;

/// Queues by their numbers.
type QueuesByNumber<T, U> = HashMap<u32, Weak<Queues<T, U>>>;

/// The thread that polls sockets with sparse flows, of all shards.
pub(crate) struct InboundThread<T, U> {
    pub(crate) waker: Arc<Waker>,
    /// The epoll set that it sleeps on: its waker, and the sockets that are lent.
    epoll: OwnedFd,
    /// Whose sockets these are, by the number of the queues, until the thread ends. Their owner keeps
    /// them.
    paths: Mutex<Option<QueuesByNumber<T, U>>>,
    buffers: Arc<SharedBuffers>,
    stopping: AtomicBool,
}

impl<T: TunQueue, U: UdpSocket> InboundThread<T, U> {
    pub(crate) fn new(buffers: Arc<SharedBuffers>) -> io::Result<Self> {
        let thread = Self {
            buffers,
            waker: Arc::new(Waker::new()?),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            paths: Mutex::new(Some(HashMap::new())),
            stopping: AtomicBool::new(false),
        };
        let waker = Token::Waker.data();
        epoll::add(&thread.epoll, &*thread.waker, waker, EventFlags::IN)?;
        Ok(thread)
    }

    /// Lends the sockets of a path to the thread: all of them, or none if there is no memory
    /// for that, or no thread any more.
    pub(crate) fn lend(&self, path: &Arc<Queues<T, U>>, sockets: &Sockets<U>) -> bool {
        let number = path.handle().number;
        match &mut *lock(&self.paths) {
            Some(paths) => drop(paths.insert(number, Arc::downgrade(path))),
            None => return false,
        }
        let lent = each(sockets).all(|(socket, descriptor)| {
            let data = Token::Queue(number, descriptor).data();
            epoll::add(&self.epoll, socket.fd(), data, EventFlags::IN).is_ok()
        });
        if !lent {
            self.reclaim(number, sockets);
        }
        lent
    }

    /// Reclaims them.
    pub(crate) fn reclaim(&self, number: u32, sockets: &Sockets<U>) {
        for it in sockets.all() {
            // Fails for one that was not lent.
            let _ = epoll::delete(&self.epoll, it.socket.fd());
        }
        if let Some(paths) = &mut *lock(&self.paths) {
            paths.remove(&number);
        }
    }

    /// The queues with this number, if their sockets are lent.
    fn path(&self, number: u32) -> Option<Arc<Queues<T, U>>> {
        lock(&self.paths).as_ref()?.get(&number)?.upgrade()
    }

    /// Asks the thread to end.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Processes packets from the sockets that are lent, until it is asked to end.
    pub(crate) fn run(&self, liberties: Liberties) -> io::Result<()> {
        let _end = InboundThreadGuard(self);
        if liberties.priority {
            // It keeps it: floods are the shard's.
            ThreadPriority::raise();
        }
        let mut thread = ThreadState::new(&self.buffers, liberties.memory);
        let mut placement = Placement::new(true);
        placement.begins();
        if liberties.sandbox {
            start::confine(start::Role::Packets)?;
        }
        let mut events = Vec::with_capacity(MAX_EVENTS);
        while !self.stopping.load(Ordering::Acquire) {
            thread.wait(&self.epoll, &mut events, None)?;
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
                let Some(path) = self.path(number) else {
                    continue;
                };
                if path.common.is_stopping() {
                    // Its owner reclaims the sockets.
                    std::thread::yield_now();
                    continue;
                }
                let sockets = path.handle().sockets.load();
                let Some(of) = sockets.of(descriptor) else {
                    continue;
                };
                let socket = of.socket;
                let flags = event.flags;
                match contain(|| path.poll_socket(&mut thread, of, flags, now, PollRole::Worker)) {
                    Ok(Polled::Packets { count, .. }) => placement.processed(count),
                    // The owner has it.
                    Ok(_) => std::thread::yield_now(),
                    Err(error) => {
                        path.common.fail(error);
                        thread = ThreadState::new(&self.buffers, liberties.memory);
                    }
                }
                if rested {
                    from = from.or_else(|| socket.last_arrival());
                }
            }
            if let Some(arrival) = from {
                placement.arrived(arrival);
            }
            if placement.is_loaded() {
                let all = lock(&self.paths).clone();
                all.iter().flat_map(HashMap::values).for_each(overload);
            }
        }
        Ok(())
    }
}

/// Has the owner reclaim its sockets.
fn overload<T, U>(path: &Weak<Queues<T, U>>) {
    if let Some(path) = path.upgrade() {
        path.handle().ownership.owner().overload();
    }
}

/// The thread ends, for whatever reason: owners poll their sockets themselves.
struct InboundThreadGuard<'a, T: TunQueue, U: UdpSocket>(&'a InboundThread<T, U>);

impl<T: TunQueue, U: UdpSocket> Drop for InboundThreadGuard<'_, T, U> {
    fn drop(&mut self) {
        let paths = lock(&self.0.paths).take();
        paths.iter().flat_map(HashMap::values).for_each(overload);
    }
}
