//! The host, as the control thread needs it: sockets, and word of changes to the interface and to
//! routes.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use adit_io::{Offloads, UdpSocket};
use adit_proto::Endpoint;
use adit_proto::config::PublicKey;
use rustix::event::epoll::EventFlags;

use crate::shared::event::Event;
use crate::shared::sockets::Sockets;

/// The host that an engine runs on: the kernel, or a test's network in memory.
pub trait Platform: Send + 'static {
    /// Its UDP sockets.
    type Socket: UdpSocket + 'static;

    /// Binds sockets to `port`, 0 for any that is free in both families.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if the port is taken, `PermissionDenied` if the process may not have it, and
    /// those of the host.
    fn bind(&self, port: u16, fwmark: u32) -> io::Result<Sockets<Self::Socket>>;

    /// Changes the mark of what a socket sends.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` without the right to it, and those of the host.
    fn set_mark(&self, socket: &Self::Socket, fwmark: u32) -> io::Result<()>;

    /// The offloads of a socket that are in force, among those that are allowed.
    fn offloads(&self, socket: &Self::Socket) -> Offloads;

    /// Routes changed: what a socket learned about paths may be wrong.
    fn forget_paths(&self, socket: &Self::Socket);

    /// Events to wait for: one of these is ready when something changed. Ask
    /// [`Platform::was_cloned`] then, before anything else, and [`Platform::handle_events`].
    fn events(&self) -> Vec<(BorrowedFd<'_>, EventFlags)>;

    /// Sources to poll, too, once for all interfaces that name the same one; they may change
    /// with each [`Platform::handle_events`].
    fn sources(&self) -> Vec<Arc<dyn EventSource>> {
        Vec::new()
    }

    /// Consumes what happened and tells how things are now. An error says that the interface is
    /// gone.
    ///
    /// # Errors
    ///
    /// The interface is gone.
    fn handle_events(&mut self) -> io::Result<PlatformEvent>;

    /// Whether the virtual machine was cloned, or reset to a snapshot, since the last call.
    fn was_cloned(&mut self) -> bool {
        false
    }

    /// Whether the source kept with an endpoint is no longer what routing would use.
    fn source_is_stale(&mut self, to: Endpoint, fwmark: u32) -> bool;

    /// Has a socket ignore what ICMP says of paths, or believe it as before.
    ///
    /// # Errors
    ///
    /// Those of the host.
    fn ignore_icmp(&self, _socket: &Self::Socket, _ignore: bool) -> io::Result<()> {
        Ok(())
    }

    /// How many bytes an IP packet to an endpoint may have that leaves this host whole.
    fn path_mtu(&mut self, _to: Endpoint, _fwmark: u32) -> Option<PathMtu> {
        None
    }

    /// The interface goes on after a pause, perhaps in another process than before it: what the
    /// kernel tells a process, it tells this one from now on.
    fn resumed(&mut self, _sockets: &Sockets<Self::Socket>) {}

    /// The number of this gateway, if it is one of several with one key.
    fn gateway_id(&self) -> Option<u8> {
        None
    }

    /// The TUN has been full for a while, and may have dropped packets: senders on this host should
    /// slow down instead.
    fn tun_is_behind(&mut self);

    /// Whether to look for the longest packet that the path to each peer takes, by packets inside
    /// the tunnel that the peers' hosts answer; it is asked whenever the MTU may have changed.
    fn probes_paths(&self) -> bool {
        false
    }

    /// Gives this host a packet, as if it had come through the tunnel. It may be lost.
    fn deliver(&self, _packet: &[u8]) {}

    /// Packets that were lost before anybody could read them from the TUN, since this was last
    /// asked.
    fn tun_drops(&mut self) -> TunDrops {
        TunDrops::default()
    }

    /// What the process before this one left; it is asked once.
    fn remembered(&mut self) -> RememberedPeers {
        RememberedPeers::default()
    }

    /// Keeps something for the next process, should this one be killed, in pieces: all of it takes the
    /// place of what was kept before when the last one came. False if that failed.
    fn remember(&mut self, _some: &RememberedPeers, _is_last: bool) -> bool {
        true
    }

    /// The interface ends, and no process goes on with it. What peers have used of their quotas is for
    /// the next one of this name.
    fn ended(&self, _used: Vec<(PublicKey, u64)>) {}

    /// Bytes of memory that the process may have beyond what it has; `None` if nothing limits it.
    fn memory_left(&self) -> Option<u64> {
        None
    }

    /// Something failed that no caller waits for.
    fn log_error(&self, message: &str);

    /// Whether anybody reads what [`Platform::log_verbose`] is given; it is asked once.
    fn is_verbose(&self) -> bool;

    /// Writes one line of the verbose log.
    fn log_verbose(&self, line: fmt::Arguments<'_>);

    /// Tells the listener; it must not block.
    fn tell(&self, _event: &Event) {}
}

/// Descriptors that several interfaces share; `Arc::ptr_eq` tells whether two sources are one.
pub trait EventSource: Send + Sync {
    /// Readable when [`Self::take`] has something to do.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Takes what happened, and makes [`Platform::events`] ready for each interface that it
    /// concerns.
    fn take(&self);
}

/// What a process leaves to the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RememberedPeers {
    /// Where peers are that have a session.
    pub endpoints: Vec<(PublicKey, SocketAddr)>,
    /// Bytes that peers have used of their quotas.
    pub used: Vec<(PublicKey, u64)>,
}

/// Packets that were to leave through the TUN and that its queue did not take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunDrops {
    /// Packets that found it full.
    pub full: u64,
    /// Packets that found too many bytes in it, and whose sender does not keep what is refused.
    pub limit: u64,
}

/// How many bytes an IP packet may have that leaves this host whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMtu {
    /// The MTU that the device and the route have for the path.
    pub takes: u32,
    /// The MTU of the device alone.
    pub device: u32,
    /// The MTU that ICMP told, which may be forged, and for how long the host believes it.
    pub learned: Option<(u32, Duration)>,
}

/// How the host's side of the tunnel stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlatformEvent {
    /// The interface is up.
    pub up: bool,
    /// Its MTU.
    pub mtu: usize,
    /// A route or an address changed since the last call.
    pub routes_changed: bool,
    /// The network is another one, since the last call: sockets are to be replaced.
    pub rebinds: bool,
}
