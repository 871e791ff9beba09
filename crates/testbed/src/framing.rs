//! What of a link's octets is left for the application: the theoretical maximum of every measure.
//!
//! WireGuard adds 60 octets to a packet over IPv4 and 80 over IPv6 (outer IP 20 or 40, UDP 8, type
//! and reserved 4, receiver index 4, counter 8, tag 16) and pads what it seals to a multiple of 16
//! up to the MTU. ESP with AES-GCM, in tunnel mode and in UDP (RFC 4303, 4106 and 3948), adds an outer
//! IP header, UDP 8, SPI 4, sequence number 4, IV 8 and tag 16, and pads the packet with its trailer of 2
//! to a multiple of 4. Ethernet adds 38 on the wire (preamble 8, header 14, check sequence 4, gap 12). A
//! veth link has no bit rate of its own: its maximum is what the direct path reached in the same
//! run, times the share that framing leaves.

use crate::stats::to_f64;

/// An IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4, without options.
    V4,
    /// IPv6, without extension headers.
    V6,
}

impl Family {
    /// Length of the IP header.
    const fn header(self) -> usize {
        match self {
            Self::V4 => 20,
            Self::V6 => 40,
        }
    }
}

/// Octets of preamble, header, frame check sequence and the gap between two frames.
pub const ETHERNET: usize = 8 + 14 + 4 + 12;
/// Octets of type, reserved bytes, receiver index, counter and tag of a transport message.
pub const TRANSPORT: usize = 4 + 4 + 8 + 16;
/// Octets of SPI, sequence number, IV and tag of ESP with AES-GCM.
const ESP: usize = 4 + 4 + 8 + 16;
/// Octets of the length of ESP's padding and of the next header.
const ESP_TRAILER: usize = 2;
const UDP: usize = 8;
/// TCP's header with the timestamps that Linux puts into every segment.
const TCP: usize = 20 + 12;
/// Inner Ethernet header and VXLAN header; IP and UDP come on top.
const VXLAN: usize = 14 + 8;

/// The MTU of the link between the hosts, in octets.
pub const LINK_MTU: usize = 1500;
/// The MTU of every tunnel, in octets: the link's, less 80, as wg-quick sets it.
pub const TUNNEL_MTU: usize = 1420;

/// How a measure's packets are framed inside the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Full TCP segments.
    Tcp(Family),
    /// UDP datagrams over IPv4 with this payload.
    Udp(usize),
    /// Full TCP segments over IPv4 in VXLAN over IPv4.
    TcpInVxlan,
}

/// Octets that a packet of `len` octets takes on the wire without a tunnel.
pub const fn plain_wire(len: usize) -> usize {
    len + ETHERNET
}

/// Octets that a packet of `len` octets takes on the wire inside a tunnel with this MTU over
/// `outer`.
pub const fn tunnel_wire(len: usize, mtu: usize, outer: Family) -> usize {
    let padded = len.next_multiple_of(16);
    let padded = if padded > mtu { mtu } else { padded };
    padded + TRANSPORT + UDP + outer.header() + ETHERNET
}

/// Octets that a packet of `len` octets takes on the wire inside ESP with AES-GCM and UDP over `outer`.
pub const fn esp_wire(len: usize, outer: Family) -> usize {
    let padded = (len + ESP_TRAILER).next_multiple_of(4);
    padded + ESP + UDP + outer.header() + ETHERNET
}

impl Load {
    /// Length of an IP packet of this load where the MTU is `mtu`, and its payload.
    fn packet(self, mtu: usize) -> (usize, usize) {
        match self {
            Self::Tcp(family) => (mtu, mtu - family.header() - TCP),
            Self::Udp(payload) => (payload + UDP + Family::V4.header(), payload),
            Self::TcpInVxlan => {
                let outside = Family::V4.header() + UDP + VXLAN;
                (mtu, mtu - outside - Family::V4.header() - TCP)
            }
        }
    }

    /// The share of the direct path's result that the framing of a tunnel over `outer` leaves:
    /// payload octets per octet on the wire in the tunnel, over the same without it. For datagrams
    /// of one size that is the ratio of packet rates.
    pub fn share(self, outer: Family) -> f64 {
        let (plain_len, plain_payload) = self.packet(LINK_MTU);
        let (len, payload) = self.packet(TUNNEL_MTU);
        let plain = efficiency(plain_payload, plain_wire(plain_len));
        efficiency(payload, tunnel_wire(len, TUNNEL_MTU, outer)) / plain
    }
}

fn efficiency(payload: usize, wire: usize) -> f64 {
    to_f64(payload) / to_f64(wire)
}

#[cfg(test)]
#[path = "framing_tests.rs"]
mod tests;
