//! The blocks of addresses that a peer has.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use adit_ctl::status::{InterfaceJson, PeerJson};
use adit_proto::config::Cidr;

use crate::networks::is_link_local;

pub(super) fn blocks(peer: &PeerJson) -> impl Iterator<Item = Cidr> + '_ {
    peer.allowed_ips.iter().filter_map(|text| {
        let (ip, len) = text.split_once('/')?;
        Cidr::new(ip.parse().ok()?, len.parse().ok()?)
    })
}

pub(crate) fn is_host(block: Cidr) -> bool {
    block.prefix_len() == if block.addr().is_ipv4() { 32 } else { 128 }
}

/// An address in a block to look up a route for; `None` for what is not routed as others are.
pub(super) fn inhabitant(block: Option<Cidr>) -> Option<IpAddr> {
    let block = block?;
    let ip = match block.addr() {
        // Name servers that everybody knows.
        IpAddr::V4(_) if block.prefix_len() == 0 => Ipv4Addr::new(1, 1, 1, 1).into(),
        IpAddr::V6(_) if block.prefix_len() == 0 => {
            Ipv6Addr::new(0x2606, 0x4700, 0x4700, 0, 0, 0, 0, 0x1111).into()
        }
        ip if is_host(block) => ip,
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() | 1).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() | 1).into(),
    };
    (!ip.is_multicast() && !is_link_local(ip)).then_some(ip)
}

/// The peer that is sent what is for an address: that of the narrowest block.
pub(super) fn owner(status: &InterfaceJson, to: IpAddr) -> Option<&PeerJson> {
    let width = |peer: &PeerJson| {
        let holds = blocks(peer).filter(|block| block.contains(to));
        holds.map(|block| block.prefix_len()).max()
    };
    let owners = status
        .peers
        .iter()
        .filter_map(|peer| Some((width(peer)?, peer)));
    owners.max_by_key(|(len, _)| *len).map(|(_, peer)| peer)
}

/// A block of another peer inside one of this peer's.
pub(super) fn nested(status: &InterfaceJson, peer: &PeerJson) -> Option<(Cidr, Cidr, String)> {
    let outer: Vec<Cidr> = blocks(peer)
        .filter(|block| block.prefix_len() > 0)
        .collect();
    let others = status
        .peers
        .iter()
        .filter(|other| other.public_key != peer.public_key);
    others
        .flat_map(|other| blocks(other).map(move |block| (block, other)))
        .find_map(|(inner, other)| {
            let holds = |outer: &&Cidr| {
                outer.contains(inner.addr()) && outer.prefix_len() < inner.prefix_len()
            };
            let outer = outer.iter().find(holds)?;
            Some((inner, *outer, other.public_key.clone()))
        })
}
