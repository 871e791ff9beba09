//! A host in memory: the engine without the kernel's network and without rights, for tests and for
//! programs that embed it.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use adit_io::testing::mem::{MemNetwork, MemUdp, TunEnd};
use adit_io::{Offloads, UdpSocket};
use adit_proto::Endpoint;
use rustix::event::epoll::EventFlags;

use crate::host::platform::{Platform, PlatformEvent, TunDrops};
use crate::shared::sockets::Sockets;
use crate::thread::lock::lock;
use crate::thread::wake::Waker;

/// A [`Platform`] whose sockets are those of a [`MemNetwork`] in memory, each perhaps wrapped to have
/// it misbehave.
pub struct MemPlatform<U = MemUdp> {
    network: MemNetwork,
    addr: SocketAddr,
    gso: bool,
    verbose: bool,
    probes: bool,
    tun: Option<TunEnd>,
    /// Frames that the TUNs had refused when that was last asked.
    refused: u64,
    wrap: Box<dyn Fn(MemUdp) -> U + Send>,
    end: PlatformEnd,
}

/// The other end of a [`MemPlatform`], at which a test changes what is around the engine. Clones
/// are the same end.
#[derive(Clone)]
pub struct PlatformEnd(Arc<MemState>);

struct MemState {
    changed: Waker,
    now: Mutex<PlatformEvent>,
    is_stale: Mutex<IsStale>,
    log: Mutex<VecDeque<String>>,
}

/// Lines of the log that are kept.
const LOG: usize = 1000;

/// Answers [`Platform::source_is_stale`].
type IsStale = Box<dyn FnMut(Endpoint) -> bool + Send>;

impl MemPlatform {
    /// A host at `addr`, whose port is the one that its sockets get if none is configured. Its
    /// interface is up, with an MTU of 1420.
    ///
    /// # Errors
    ///
    /// Those of eventfd(2), as when there are no further descriptors.
    pub fn new(network: &MemNetwork, addr: SocketAddr) -> io::Result<Self> {
        let state = MemState {
            changed: Waker::new()?,
            now: Mutex::new(PlatformEvent {
                up: true,
                mtu: 1420,
                routes_changed: false,
                rebinds: false,
            }),
            is_stale: Mutex::new(Box::new(|_| false)),
            log: Mutex::default(),
        };
        Ok(Self {
            network: network.clone(),
            addr,
            gso: true,
            verbose: false,
            probes: false,
            tun: None,
            refused: 0,
            wrap: Box::new(|socket| socket),
            end: PlatformEnd(Arc::new(state)),
        })
    }
}

impl<U> MemPlatform<U> {
    /// Each socket becomes what `wrap` makes of it.
    #[must_use]
    pub fn with_sockets<V>(self, wrap: impl Fn(MemUdp) -> V + Send + 'static) -> MemPlatform<V> {
        MemPlatform {
            network: self.network,
            addr: self.addr,
            gso: self.gso,
            verbose: self.verbose,
            probes: self.probes,
            tun: self.tun,
            refused: self.refused,
            wrap: Box::new(wrap),
            end: self.end,
        }
    }

    /// Trains travel datagram by datagram unless `gso`.
    #[must_use]
    pub fn with_gso(mut self, gso: bool) -> Self {
        self.gso = gso;
        self
    }

    /// Whether the verbose log is on; [`PlatformEnd::log`] then has it.
    #[must_use]
    pub fn with_verbose_log(mut self, verbose: bool) -> Self {
        self.verbose = verbose;
        self
    }

    /// Paths are probed.
    #[must_use]
    pub fn with_probes(mut self) -> Self {
        self.probes = true;
        self
    }

    /// Frames that find the ring of this TUN full are counted as drops.
    #[must_use]
    pub fn with_tun(mut self, tun: TunEnd) -> Self {
        self.tun = Some(tun);
        self
    }

    /// Its other end.
    pub fn end(&self) -> PlatformEnd {
        self.end.clone()
    }
}

impl PlatformEnd {
    /// The interface goes up or down.
    pub fn set_up(&self, up: bool) {
        self.change(|now| now.up = up);
    }

    /// The interface gets another MTU.
    pub fn set_mtu(&self, mtu: usize) {
        self.change(|now| now.mtu = mtu);
    }

    /// A route or an address changed.
    pub fn change_routes(&self) {
        self.change(|now| now.routes_changed = true);
    }

    /// From now on `is_stale` says whether routing would use another source than the one kept with
    /// an endpoint.
    pub fn judge_sources(&self, is_stale: impl FnMut(Endpoint) -> bool + Send + 'static) {
        *lock(&self.0.is_stale) = Box::new(is_stale);
    }

    /// The last lines of the log: errors, and the verbose log if that is on.
    pub fn log(&self) -> Vec<String> {
        lock(&self.0.log).iter().cloned().collect()
    }

    fn write(&self, line: String) {
        let mut log = lock(&self.0.log);
        if log.len() == LOG {
            log.pop_front();
        }
        log.push_back(line);
    }

    fn change(&self, change: impl FnOnce(&mut PlatformEvent)) {
        change(&mut lock(&self.0.now));
        self.0.changed.wake();
    }
}

impl<U: UdpSocket + 'static> Platform for MemPlatform<U> {
    type Socket = U;

    fn bind(&self, port: u16, _fwmark: u32) -> io::Result<Sockets<U>> {
        let port = if port == 0 { self.addr.port() } else { port };
        let bind = |ip| {
            let socket = self.network.bind(SocketAddr::new(ip, port), self.gso)?;
            Ok::<_, io::Error>(Some((self.wrap)(socket)))
        };
        let (v4, v6) = match self.addr.ip() {
            // Nothing is ever sent to the other one: what it does to this one is the question.
            IpAddr::V4(ip) => (bind(ip.into())?, bind(ip.to_ipv6_mapped().into())?),
            IpAddr::V6(ip) => (None, bind(ip.into())?),
        };
        Ok(Sockets::new(v4, v6, port))
    }

    fn set_mark(&self, _socket: &U, _fwmark: u32) -> io::Result<()> {
        Ok(())
    }

    fn offloads(&self, _socket: &U) -> Offloads {
        Offloads::ALL
    }

    fn forget_paths(&self, _socket: &U) {}

    fn events(&self) -> Vec<(BorrowedFd<'_>, EventFlags)> {
        vec![(self.end.0.changed.as_fd(), EventFlags::IN)]
    }

    fn handle_events(&mut self) -> io::Result<PlatformEvent> {
        self.end.0.changed.clear();
        let mut now = lock(&self.end.0.now);
        let event = *now;
        now.routes_changed = false;
        Ok(event)
    }

    fn source_is_stale(&mut self, to: Endpoint, _fwmark: u32) -> bool {
        lock(&self.end.0.is_stale)(to)
    }

    fn tun_is_behind(&mut self) {}

    fn probes_paths(&self) -> bool {
        self.probes
    }

    fn tun_drops(&mut self) -> TunDrops {
        let refused = self.tun.as_ref().map_or(0, TunEnd::refused);
        let before = std::mem::replace(&mut self.refused, refused);
        TunDrops {
            full: refused - before,
            limit: 0,
        }
    }

    fn log_error(&self, message: &str) {
        self.end.write(message.to_owned());
    }

    fn is_verbose(&self) -> bool {
        self.verbose
    }

    fn log_verbose(&self, line: fmt::Arguments<'_>) {
        self.end.write(line.to_string());
    }
}
