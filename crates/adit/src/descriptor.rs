//! Descriptors as sources of packets.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use adit_io::Offloads;
use adit_io::tun::{PlainTun, Tun, VethQueue};

use crate::builder::Builder;
use crate::error::Error;
use crate::parts::Source;

/// How a descriptor has its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TunFd {
    /// A TUN device with `IFF_VNET_HDR` and `IFF_NO_PI`: packets of one flow come and go as one.
    Vnet,
    /// One IP packet a read and a write, and nothing before it: a TUN device with `IFF_NO_PI` alone, as that of
    /// Android, or a datagram socket.
    Plain,
}

impl Builder {
    /// Takes packets from the TUN device of this name in the network namespace of the calling thread, and
    /// delivers them there. It is made if there is none, which takes CAP_NET_ADMIN, and goes with the tunnel
    /// then. Its addresses, MTU and routes are the caller's to set.
    pub fn tun(self, name: &str) -> Self {
        self.source(
            Tun::open_embedded(name, Offloads::ALL)
                .map(of_tun)
                .map_err(Error::Host),
        )
    }

    /// Takes packets from a descriptor, and delivers them there. It is the tunnel's from now on.
    pub fn tun_fd(self, fd: OwnedFd, kind: TunFd) -> Self {
        let source = match kind {
            TunFd::Vnet => Tun::embedded(fd, Offloads::ALL).map(of_tun),
            TunFd::Plain => PlainTun::new(fd).map(|tun| {
                let offloads = Offloads {
                    tun_gro_tcp: false,
                    tun_gro_udp: false,
                    ..Offloads::ALL
                };
                (Arc::new(tun) as Source, offloads)
            }),
        };
        self.source(source.map_err(Error::Descriptor))
    }

    /// Takes packets from a packet socket that has what arrives at one of two joined interfaces (veth), and
    /// delivers them to the other one. It is the tunnel's from now on.
    #[doc(hidden)]
    pub fn veth_fd(self, fd: OwnedFd) -> Self {
        let source = VethQueue::new(fd).map(|queue| (Arc::new(queue) as Source, Offloads::ALL));
        self.source(source.map_err(Error::Descriptor))
    }
}

fn of_tun(tun: Tun) -> (Source, Offloads) {
    let offloads = tun.offloads();
    (Arc::new(tun), offloads)
}
