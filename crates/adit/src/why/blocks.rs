//! The blocks of addresses that a peer has.

use adit_ctl::status::Peer;
use adit_proto::config::Cidr;

pub(super) fn blocks(peer: &Peer) -> impl Iterator<Item = Cidr> + '_ {
    peer.allowed_ips.iter().filter_map(|text| {
        let (ip, len) = text.split_once('/')?;
        Cidr::new(ip.parse().ok()?, len.parse().ok()?)
    })
}

pub(crate) fn is_host(block: Cidr) -> bool {
    block.prefix_len() == if block.addr().is_ipv4() { 32 } else { 128 }
}
