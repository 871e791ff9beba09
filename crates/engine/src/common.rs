//! What the control thread and the shards share.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use adit_io::{IcmpKind, Offloads, UdpSocket};
use adit_offload::{Merged, TunnelEnds};
use adit_proto::{Drops, Peer, Time};
use arc_swap::ArcSwap;

use crate::inbox::Inbox;
use crate::journal::{Incident, Journal};
use crate::lock::lock;
use crate::wake::Waker;

/// The sockets of one shard: one per address family that the host has, both on one port.
#[derive(Debug)]
pub struct Sockets<U> {
    /// For IPv4; none where the host has no IPv4.
    pub v4: Option<U>,
    /// For IPv6; none where the host has no IPv6.
    pub v6: Option<U>,
    /// 0 while none is bound.
    pub port: u16,
}

impl<U> Sockets<U> {
    /// No socket: nothing arrives and nothing leaves.
    pub(crate) fn unbound() -> Self {
        Self {
            v4: None,
            v6: None,
            port: 0,
        }
    }

    pub(crate) fn family(&self, v6: bool) -> Option<&U> {
        if v6 {
            self.v6.as_ref()
        } else {
            self.v4.as_ref()
        }
    }

    pub(crate) fn both(&self) -> impl Iterator<Item = &U> {
        self.v4.iter().chain(&self.v6)
    }
}

/// What a poll of the outbound path runs with.
pub(crate) struct Context<'a, U> {
    pub(crate) common: &'a Common<U>,
    pub(crate) sockets: &'a Sockets<U>,
    /// The time of this poll.
    pub(crate) now: Time,
}

impl<U> Clone for Context<'_, U> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<U> Copy for Context<'_, U> {}

/// Shared by all threads of one engine.
pub(crate) struct Common<U> {
    /// Routes and sessions, published by the control thread.
    pub(crate) proto: Arc<adit_proto::Shared>,
    pub(crate) control: Inbox,
    pub(crate) shards: Vec<ShardHandle<U>>,
    /// Where UDP tunnels end, unless what is for them is not merged.
    pub(crate) tunnel_ends: Option<TunnelEnds>,
    mtu: AtomicUsize,
    /// What the TUN refused to take merged.
    tun_refuses: [AtomicBool; Merged::COUNT],
    /// A thread that processes packets may not run at the priority that it should have.
    priority_refused: AtomicBool,
    refused_trains: AtomicU64,
    icmp_errors: [AtomicU64; IcmpKind::ALL.len()],
    pub(crate) journal: Journal,
    stopping: AtomicBool,
}

/// The part of a shard that other threads use.
pub(crate) struct ShardHandle<U> {
    pub(crate) sockets: ArcSwap<Sockets<U>>,
    pub(crate) drops: Arc<Drops>,
    pub(crate) waker: Waker,
    /// Of the thread that the inbound path has while little moves.
    pub(crate) inbound_path: Waker,
    messages: Mutex<Vec<ShardCommand>>,
    /// The peers that it has frames staged for, or had.
    waits_for: Mutex<HashSet<u32>>,
}

/// What the control thread tells a shard.
pub(crate) enum ShardCommand {
    /// The peer has a session to send with: what was staged for it can go.
    SessionReady(Arc<Peer>),
    /// The peer will have none: what was staged for it is dropped.
    DropStaged(Arc<Peer>),
    /// The settings of its sockets changed: no peer keeps a socket of its own.
    ClearPaths,
}

impl<U: UdpSocket> ShardHandle<U> {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            sockets: ArcSwap::from_pointee(Sockets::unbound()),
            drops: Arc::default(),
            waker: Waker::new()?,
            inbound_path: Waker::new()?,
            messages: Mutex::default(),
            waits_for: Mutex::default(),
        })
    }

    /// The shard stages frames for a peer: it wants to hear what becomes of the handshake. To be
    /// called before it asks for a session for the last time.
    pub(crate) fn wait_for(&self, peer: u32) {
        lock(&self.waits_for).insert(peer);
    }

    /// Leaves a message and wakes the shard. What concerns a handshake is left only if the shard
    /// waits for that.
    pub(crate) fn tell(&self, message: ShardCommand) {
        let is_due = match &message {
            ShardCommand::SessionReady(peer) | ShardCommand::DropStaged(peer) => {
                lock(&self.waits_for).remove(&peer.id())
            }
            ShardCommand::ClearPaths => true,
        };
        if is_due {
            lock(&self.messages).push(message);
            self.waker.wake();
        }
    }

    pub(crate) fn take_commands(&self) -> Vec<ShardCommand> {
        std::mem::take(&mut *lock(&self.messages))
    }
}

impl<U> Common<U> {
    pub(crate) fn new(
        proto: Arc<adit_proto::Shared>,
        shards: Vec<ShardHandle<U>>,
        offloads: Offloads,
        is_verbose: bool,
    ) -> std::io::Result<Self> {
        Ok(Self {
            proto,
            control: Inbox::new()?,
            shards,
            tunnel_ends: offloads.tun_gro_tunnel.then(TunnelEnds::default),
            mtu: AtomicUsize::new(1420),
            tun_refuses: Default::default(),
            priority_refused: AtomicBool::new(false),
            refused_trains: AtomicU64::new(0),
            icmp_errors: Default::default(),
            journal: Journal::new(is_verbose),
            stopping: AtomicBool::new(false),
        })
    }

    /// The MTU of the TUN, which bounds padding.
    pub(crate) fn mtu(&self) -> usize {
        self.mtu.load(Ordering::Relaxed)
    }

    pub(crate) fn set_mtu(&self, mtu: usize) {
        self.mtu.store(mtu, Ordering::Relaxed);
    }

    /// The TUN refused a GSO packet: from now on the packets of such are written one by one.
    pub(crate) fn tun_refused(&self, kind: Merged) {
        self.tun_refuses[kind as usize].store(true, Ordering::Relaxed);
    }

    pub(crate) fn tun_takes(&self, kind: Merged) -> bool {
        !self.tun_refuses[kind as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn priority_was_refused(&self) {
        self.priority_refused.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_priority_refused(&self) -> bool {
        self.priority_refused.load(Ordering::Relaxed)
    }

    /// Trains that the kernel would not segment.
    pub(crate) fn count_refused_trains(&self, trains: u64) {
        self.refused_trains.fetch_add(trains, Ordering::Relaxed);
    }

    pub(crate) fn refused_trains(&self) -> u64 {
        self.refused_trains.load(Ordering::Relaxed)
    }

    /// Counts the ICMP errors that came back to a socket, and notes them. ICMP is not
    /// authenticated, so nothing else follows from it.
    pub(crate) fn take_errors(&self, socket: &impl UdpSocket, now: Time) {
        socket.take_errors(&mut |error, times| {
            self.icmp_errors[error.kind as usize].fetch_add(times, Ordering::Relaxed);
            self.note(now, times, || Incident::Icmp { peer: None, error });
        });
    }

    pub(crate) fn icmp_errors(&self, kind: IcmpKind) -> u64 {
        self.icmp_errors[kind as usize].load(Ordering::Relaxed)
    }

    /// Something went wrong, so many `times`: the control thread tells of it, if anybody reads
    /// that.
    pub(crate) fn note(&self, now: Time, times: u64, incident: impl FnOnce() -> Incident) {
        if self.journal.note(now, times, incident) {
            self.control.waker.wake();
        }
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.control.waker.wake();
        self.wake_shards();
    }

    /// Both threads of each shard.
    pub(crate) fn wake_shards(&self) {
        for shard in &self.shards {
            shard.waker.wake();
            shard.inbound_path.wake();
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}
