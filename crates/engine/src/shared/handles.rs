//! Handles: what other threads see of a shard, and of the queues of an interface.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use adit_proto::{Drops, Peer};
use arc_swap::ArcSwap;

use crate::shared::sockets::Sockets;
use crate::thread::lock::lock;
use crate::thread::ownership::Ownership;
use crate::thread::wake::Waker;

/// The part of a shard that other threads use.
pub(crate) struct ShardHandle {
    pub(crate) waker: Waker,
    /// How many interfaces it serves.
    load: AtomicUsize,
    /// The numbers of the queues that have something for it.
    due: Mutex<Vec<u32>>,
    /// The thread of the inbound path has met load: the shard is to reclaim the sockets.
    overloaded: AtomicBool,
    /// The shard may not run at the priority that it should have.
    priority_refused: AtomicBool,
    /// Whether it sleeps, and nobody has asked it for help since.
    is_idle: AtomicBool,
    /// Whether it is one shard too many: it ends once it serves nothing.
    retires: AtomicBool,
    /// Of the thread of the inbound path, if there is one.
    inbound_thread: Option<Arc<Waker>>,
}

impl ShardHandle {
    pub(crate) fn new(inbound_thread: Option<Arc<Waker>>) -> io::Result<Self> {
        Ok(Self {
            waker: Waker::new()?,
            load: AtomicUsize::new(0),
            due: Mutex::default(),
            overloaded: AtomicBool::new(false),
            priority_refused: AtomicBool::new(false),
            is_idle: AtomicBool::new(false),
            retires: AtomicBool::new(false),
            inbound_thread,
        })
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Whether this thread and that of the inbound path have woken up since the last call, which
    /// woke them.
    pub(crate) fn responds(&self) -> bool {
        // Both are to be woken.
        let inbound = self.inbound_thread.as_ref().map(|it| it.responds());
        self.waker.responds() && inbound.unwrap_or(true)
    }

    /// Wakes it and the thread of the inbound path.
    pub(crate) fn wake_both(&self) {
        self.waker.wake();
        if let Some(inbound) = &self.inbound_thread {
            inbound.wake();
        }
    }

    /// How many interfaces it serves.
    pub(crate) fn load(&self) -> usize {
        self.load.load(Ordering::Acquire)
    }

    /// Has it give away what it serves, and end then.
    pub(crate) fn retire(&self) {
        self.retires.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(crate) fn retires(&self) -> bool {
        self.retires.load(Ordering::Acquire)
    }

    /// The numbers of the queues that have something for the shard, since the last call.
    pub(crate) fn take_due(&self) -> Vec<u32> {
        std::mem::take(&mut *lock(&self.due))
    }

    /// The thread of the inbound path has met load.
    pub(crate) fn overload(&self) {
        if !self.overloaded.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    /// Whether it has since this was last asked.
    pub(crate) fn was_overloaded(&self) -> bool {
        self.overloaded.swap(false, Ordering::AcqRel)
    }

    /// The shard is about to sleep, or awake.
    pub(crate) fn set_idle(&self, is_idle: bool) {
        self.is_idle.store(is_idle, Ordering::Relaxed);
    }

    /// Whether it sleeps; if so, it counts as awake from now on.
    pub(crate) fn ends_idleness(&self) -> bool {
        self.is_idle.load(Ordering::Relaxed) && self.is_idle.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn priority_was_refused(&self) {
        self.priority_refused.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_priority_refused(&self) -> bool {
        self.priority_refused.load(Ordering::Relaxed)
    }
}

/// A count of one for an interface that a shard serves, or is about to serve.
pub(crate) struct Served(pub(crate) Arc<ShardHandle>);

impl Served {
    pub(crate) fn new(shard: &Arc<ShardHandle>) -> Self {
        shard.load.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shard))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.load.fetch_sub(1, Ordering::Release);
        if self.0.retires() {
            self.0.waker.wake();
        }
    }
}

/// The queues of an interface, as other threads than their owner see them.
pub(crate) struct QueuesHandle<U> {
    /// No other queues of the engine have this number.
    pub(crate) number: u32,
    pub(crate) sockets: ArcSwap<Sockets<U>>,
    pub(crate) drops: Arc<Drops>,
    pub(crate) ownership: Ownership<ShardHandle>,
    /// Nothing is read for now.
    is_paused: AtomicBool,
    commands: Mutex<Vec<ShardCommand>>,
    /// The peers that it has frames staged for, or had.
    waits_for: Mutex<HashSet<u32>>,
}

/// A command of the control thread to a shard.
pub(crate) enum ShardCommand {
    /// The peer has a session to send with: what was staged for it can go.
    SessionReady(Arc<Peer>),
    /// The peer will have none: what was staged for it is dropped.
    DropStaged(Arc<Peer>),
    /// The settings of its sockets changed: no peer keeps a socket of its own.
    ClearPaths,
}

impl<U> QueuesHandle<U> {
    pub(crate) fn new(number: u32, shard: Arc<ShardHandle>) -> Self {
        Self {
            number,
            sockets: ArcSwap::from_pointee(Sockets::unbound()),
            drops: Arc::default(),
            ownership: Ownership::new(shard),
            is_paused: AtomicBool::new(false),
            commands: Mutex::default(),
            waits_for: Mutex::default(),
        }
    }

    /// Has the shard look at what changed.
    pub(crate) fn wake(&self) {
        self.ownership.wake(|shard| {
            lock(&shard.due).push(self.number);
            shard.waker.wake();
        });
    }

    /// The shard stages frames for a peer: it wants to hear what becomes of the handshake. To be
    /// called before it asks for a session for the last time.
    pub(crate) fn wait_for(&self, peer: u32) {
        lock(&self.waits_for).insert(peer);
    }

    /// Leaves a command and wakes the shard. What concerns a handshake is left only if the shard
    /// waits for that.
    pub(crate) fn tell(&self, command: ShardCommand) {
        let is_wanted = match &command {
            ShardCommand::SessionReady(peer) | ShardCommand::DropStaged(peer) => {
                lock(&self.waits_for).remove(&peer.id())
            }
            ShardCommand::ClearPaths => true,
        };
        if is_wanted {
            lock(&self.commands).push(command);
            self.wake();
        }
    }

    /// Nothing is read for now, or all goes on.
    pub(crate) fn set_paused(&self, pauses: bool) {
        self.is_paused.store(pauses, Ordering::Release);
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Acquire)
    }

    /// The path pauses: the shard does what it was told when it is woken again.
    pub(crate) fn put_back(&self, command: ShardCommand) {
        lock(&self.commands).push(command);
    }

    pub(crate) fn take_commands(&self) -> Vec<ShardCommand> {
        std::mem::take(&mut *lock(&self.commands))
    }
}
