use std::net::{IpAddr, SocketAddr};

/// Where a peer is reached: its address, and our own address that it last talked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The peer's address and port.
    pub addr: SocketAddr,
    /// The source to send from; `None` lets the kernel's routing choose.
    pub src: Option<Source>,
}

/// A local address as IP_PKTINFO and IPV6_PKTINFO carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Our address.
    pub ip: IpAddr,
    /// The index of the interface that the datagram came in on; 0 when unknown.
    pub ifindex: u32,
}

impl From<SocketAddr> for Endpoint {
    fn from(addr: SocketAddr) -> Self {
        Self { addr, src: None }
    }
}
