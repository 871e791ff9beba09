//! What a caller has to do.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::noise::errors::WireGuardError;

/// What a caller of [`Tunn`](crate::noise::Tunn) has to do.
#[derive(Debug)]
pub enum TunnResult<'a> {
    /// Nothing.
    Done,
    /// Nothing: this went wrong.
    Err(WireGuardError),
    /// Send these bytes to the peer, as one datagram.
    WriteToNetwork(&'a mut [u8]),
    /// Deliver this packet, whose source is this address, if the peer may have it.
    WriteToTunnelV4(&'a mut [u8], Ipv4Addr),
    /// The same.
    WriteToTunnelV6(&'a mut [u8], Ipv6Addr),
}

impl From<WireGuardError> for TunnResult<'_> {
    fn from(error: WireGuardError) -> Self {
        Self::Err(error)
    }
}
