//! The networks that the benchmark runs over: one in memory, and UDP sockets of this host.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;

use adit_engine::{MemPlatform, Platform, PlatformEvent, Sockets};
use adit_io::Offloads;
use adit_io::testing::mem::MemNetwork;
use adit_io::udp::{self, Udp};
use adit_proto::Endpoint;
use rustix::event::epoll::EventFlags;

/// A network between hosts that have numbers.
pub(crate) trait Net {
    type Host: Platform;

    fn host(&self, number: u8) -> io::Result<Self::Host>;

    /// The address of a host, if its socket has this port.
    fn address(&self, number: u8, port: u16) -> SocketAddr;
}

impl Net for MemNetwork {
    type Host = MemPlatform;

    fn host(&self, number: u8) -> io::Result<MemPlatform> {
        MemPlatform::new(self, self.address(number, 51_820))
    }

    fn address(&self, number: u8, port: u16) -> SocketAddr {
        ([192, 0, 2, 1 + number], port).into()
    }
}

/// UDP sockets of this host, each at a port that is free.
pub(crate) struct Loopback;

impl Net for Loopback {
    type Host = UdpHost;

    fn host(&self, _number: u8) -> io::Result<UdpHost> {
        Ok(UdpHost)
    }

    fn address(&self, _number: u8, port: u16) -> SocketAddr {
        (IpAddr::V4(Ipv4Addr::LOCALHOST), port).into()
    }
}

/// A host whose sockets are the kernel's and whose interface is up.
pub(crate) struct UdpHost;

impl Platform for UdpHost {
    type Socket = Udp;

    fn bind(&self, port: u16, fwmark: u32) -> io::Result<Sockets<Udp>> {
        let (v4, v6, port) = udp::bind_pair(port, fwmark, Offloads::ALL)?;
        Ok(Sockets::new(v4, v6, port))
    }

    fn set_mark(&self, socket: &Udp, fwmark: u32) -> io::Result<()> {
        socket.set_mark(fwmark)
    }

    fn offloads(&self, socket: &Udp) -> Offloads {
        Offloads {
            udp_gso: socket.gso(),
            udp_gro: socket.gro(),
            ..Offloads::ALL
        }
    }

    fn forget_paths(&self, socket: &Udp) {
        socket.clear_gso_fallbacks();
    }

    fn events(&self) -> Vec<(BorrowedFd<'_>, EventFlags)> {
        Vec::new()
    }

    fn handle_events(&mut self) -> io::Result<PlatformEvent> {
        Ok(PlatformEvent {
            up: true,
            mtu: 1420,
            routes_changed: false,
            rebinds: false,
        })
    }

    fn source_is_stale(&mut self, _to: Endpoint, _fwmark: u32) -> bool {
        false
    }

    fn tun_is_behind(&mut self) {}

    fn log_error(&self, message: &str) {
        eprintln!("rx_queues: {message}");
    }

    fn is_verbose(&self) -> bool {
        false
    }

    fn log_verbose(&self, _line: fmt::Arguments<'_>) {}
}
