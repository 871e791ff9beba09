//! The host of a program that embeds the engine: UDP sockets that nobody else's are touched for, and
//! what the program itself says of the rest.
//!
//! Nothing here asks the kernel about routes or devices, and nothing changes more than the sockets
//! that it makes.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use adit_io::udp::{self, Udp};
use adit_io::{Offloads, TunQueue};
use adit_offload::VNET_HDR_LEN;
use adit_proto::Endpoint;
use rustix::event::epoll::EventFlags;

use crate::host::platform::{Platform, PlatformEvent, TunDrops};
use crate::shared::event::Event;
use crate::shared::sockets::Sockets;
use crate::thread::lock::lock;
use crate::thread::wake::Waker;

/// Called with each UDP socket before it is bound; true for IPv6. An error is that of the bind.
pub type OnSocket = Arc<dyn Fn(BorrowedFd<'_>, bool) -> io::Result<()> + Send + Sync>;

/// A [`Platform`] of plain UDP sockets, for programs that embed the engine.
pub struct Embedded<T> {
    tun: T,
    offloads: Offloads,
    on_socket: Option<OnSocket>,
    tell: Box<dyn Fn(&Event) + Send>,
    log: Box<dyn Fn(&str) + Send>,
    end: EmbeddedEnd,
    /// How often the sockets were to be replaced, when that was last asked.
    rebinds: u64,
}

/// The other end of an [`Embedded`], at which the program says how things are. Clones are the same end.
#[derive(Clone)]
pub struct EmbeddedEnd(Arc<EmbeddedState>);

struct EmbeddedState {
    changed: Waker,
    now: Mutex<EmbeddedNow>,
}

#[derive(Clone, Copy)]
struct EmbeddedNow {
    up: bool,
    mtu: usize,
    rebinds: u64,
}

impl<T: TunQueue + Send + 'static> Embedded<T> {
    /// A host whose interface is up and has this MTU. `tun` gets what the interface itself has to say to
    /// this host, as that a packet was too long.
    ///
    /// # Errors
    ///
    /// Those of eventfd(2), as when there are no further descriptors.
    pub fn new(tun: T, offloads: Offloads, mtu: usize) -> io::Result<Self> {
        let now = EmbeddedNow {
            up: true,
            mtu,
            rebinds: 0,
        };
        let state = EmbeddedState {
            changed: Waker::new()?,
            now: Mutex::new(now),
        };
        Ok(Self {
            tun,
            offloads,
            on_socket: None,
            tell: Box::new(|_| {}),
            log: Box::new(|_| {}),
            end: EmbeddedEnd(Arc::new(state)),
            rebinds: 0,
        })
    }

    /// Has `on_socket` called with each socket.
    #[must_use]
    pub fn with_on_socket(mut self, on_socket: Option<OnSocket>) -> Self {
        self.on_socket = on_socket;
        self
    }

    /// Has `tell` called with each event, on a thread of the engine, which it must not block.
    #[must_use]
    pub fn with_listener(mut self, tell: impl Fn(&Event) + Send + 'static) -> Self {
        self.tell = Box::new(tell);
        self
    }

    /// Has `log` called with what went wrong where no caller waits for an answer.
    #[must_use]
    pub fn with_log(mut self, log: impl Fn(&str) + Send + 'static) -> Self {
        self.log = Box::new(log);
        self
    }

    /// Its other end.
    pub fn end(&self) -> EmbeddedEnd {
        self.end.clone()
    }
}

impl EmbeddedEnd {
    /// The interface goes up, or down: without sockets nothing is sent, received or timed.
    pub fn set_up(&self, up: bool) {
        self.change(|now| now.up = up);
    }

    /// The interface gets another MTU.
    pub fn set_mtu(&self, mtu: usize) {
        self.change(|now| now.mtu = mtu);
    }

    /// The network is another one: the sockets are replaced, and peers hear from the new ones.
    pub fn rebind(&self) {
        self.change(|now| now.rebinds += 1);
    }

    fn change(&self, change: impl FnOnce(&mut EmbeddedNow)) {
        change(&mut lock(&self.0.now));
        self.0.changed.wake();
    }
}

impl<T: TunQueue + Send + 'static> Platform for Embedded<T> {
    type Socket = Udp;

    fn bind(&self, port: u16, _fwmark: u32) -> io::Result<Sockets<Udp>> {
        let on_socket = |socket: BorrowedFd<'_>, v6| match &self.on_socket {
            Some(on_socket) => on_socket(socket, v6),
            None => Ok(()),
        };
        let (v4, v6, port) = udp::bind_embedded(port, self.offloads, &on_socket)?;
        Ok(Sockets::new(v4, v6, port))
    }

    fn set_mark(&self, _socket: &Udp, _fwmark: u32) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn offloads(&self, socket: &Udp) -> Offloads {
        Offloads {
            udp_gso: socket.gso(),
            udp_gro: socket.gro(),
            ..self.offloads
        }
    }

    fn forget_paths(&self, socket: &Udp) {
        socket.clear_gso_fallbacks();
    }

    fn events(&self) -> Vec<(BorrowedFd<'_>, EventFlags)> {
        vec![(self.end.0.changed.as_fd(), EventFlags::IN)]
    }

    fn handle_events(&mut self) -> io::Result<PlatformEvent> {
        self.end.0.changed.clear();
        let now = *lock(&self.end.0.now);
        let rebinds = std::mem::replace(&mut self.rebinds, now.rebinds) != now.rebinds;
        Ok(PlatformEvent {
            up: now.up,
            mtu: now.mtu,
            routes_changed: false,
            rebinds,
        })
    }

    /// Nobody tells: what the kernel refuses to send from such a source does.
    fn source_is_stale(&mut self, _to: Endpoint, _fwmark: u32) -> bool {
        false
    }

    fn tun_is_behind(&mut self) {}

    fn deliver(&self, packet: &[u8]) {
        let header = [0; VNET_HDR_LEN];
        let frame = [io::IoSlice::new(&header), io::IoSlice::new(packet)];
        if self.tun.write(&frame).is_ok() {
            self.tun.flush();
        }
    }

    fn tun_drops(&mut self) -> TunDrops {
        TunDrops::default()
    }

    fn log_error(&self, message: &str) {
        (self.log)(message);
    }

    fn is_verbose(&self) -> bool {
        false
    }

    fn log_verbose(&self, _line: fmt::Arguments<'_>) {}

    fn tell(&self, event: &Event) {
        (self.tell)(event);
    }
}
