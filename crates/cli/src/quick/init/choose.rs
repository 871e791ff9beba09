//! What `adit init` chooses: networks that collide with nothing, a free port, where peers find this
//! host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use adit_ctl::config::{HostPort, InterfaceAddress};
use adit_netlink::Family;
use adit_proto::config::Cidr;

use super::super::forward::PRIVATE;
use crate::networks::{is_cgnat, overlap};

#[cfg(test)]
#[path = "choose_tests.rs"]
mod tests;

/// The port of WireGuard's documentation.
pub(super) const PORT: u16 = 51820;
/// Shorter prefixes are default routes, or parts of one: the networks of private use are no larger.
const SHORTEST: u8 = 8;

/// Where networks are looked for, and how long their prefixes are.
fn pools(family: Family) -> (Vec<Cidr>, u8) {
    match family {
        Family::V4 => {
            let private = PRIVATE.into_iter().filter(|(ip, _)| ip.is_ipv4());
            let pools = private.filter_map(|(ip, len)| Cidr::new(ip, len));
            (pools.collect(), 24)
        }
        // RFC 4193: the half of fc00::/7 for those who choose a random number.
        Family::V6 => {
            let local = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0);
            (Cidr::new(local.into(), 8).into_iter().collect(), 64)
        }
    }
}

/// A private network that overlaps none of the `taken` ones, if there is one. Default routes, which
/// overlap everything, take nothing. The search begins at a `random` place, so that two hosts seldom
/// have the same network.
pub(super) fn free_network(family: Family, taken: &[Cidr], random: u128) -> Option<Cidr> {
    let ranges = ranges(family, taken);
    let (pools, prefix_len) = pools(family);
    let size = 1_u128 << (family.bits() - prefix_len);
    pools.into_iter().find_map(|pool| {
        let (start, last) = range(pool);
        let count = (last - start) / size + 1;
        let begin = random % count;
        let first = free_from(&ranges, start, size, begin, count)
            .or_else(|| free_from(&ranges, start, size, 0, begin))?;
        Cidr::new(address(family, first), prefix_len)
    })
}

/// The first address of a block without a taken one, among those with the numbers from `begin` on.
fn free_from(
    ranges: &[(u128, u128)],
    start: u128,
    size: u128,
    begin: u128,
    end: u128,
) -> Option<u128> {
    let mut number = begin;
    while number < end {
        let first = start + number * size;
        let next = ranges.partition_point(|(_, last)| *last < first);
        match ranges.get(next) {
            Some((from, last)) if *from < first + size => number = (*last - start) / size + 1,
            _ => return Some(first),
        }
    }
    None
}

/// Networks that are taken, in order and without overlaps.
fn ranges(family: Family, taken: &[Cidr]) -> Vec<(u128, u128)> {
    let counts = |block: &&Cidr| Family::of(block.addr()) == family && is_taking(**block);
    let mut all: Vec<_> = taken
        .iter()
        .filter(counts)
        .map(|block| range(*block))
        .collect();
    all.sort_unstable();
    let mut merged: Vec<(u128, u128)> = Vec::new();
    for (first, last) in all {
        match merged.last_mut() {
            Some((_, end)) if first <= *end => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    merged
}

/// Whether a route's network takes its addresses. A default route does not.
pub(super) fn is_taking(block: Cidr) -> bool {
    block.prefix_len() >= SHORTEST
}

fn range(block: Cidr) -> (u128, u128) {
    let first = match block.addr() {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    let free = Family::of(block.addr()).bits() - block.prefix_len();
    let rest = 1_u128.checked_shl(free.into()).unwrap_or(0).wrapping_sub(1);
    (first, first | rest)
}

fn address(family: Family, number: u128) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::from_bits(u32::try_from(number).unwrap_or_default()).into(),
        Family::V6 => Ipv6Addr::from_bits(number).into(),
    }
}

pub(super) fn is_private(block: Cidr) -> bool {
    let mut private = PRIVATE
        .into_iter()
        .filter_map(|(ip, len)| Cidr::new(ip, len));
    private.any(|pool| pool.contains(block.addr()) && pool.prefix_len() <= block.prefix_len())
}

/// Whether a block holds private addresses.
pub(super) fn has_private(block: Cidr) -> bool {
    let mut private = PRIVATE
        .into_iter()
        .filter_map(|(ip, len)| Cidr::new(ip, len));
    private.any(|pool| overlap(pool, block))
}

/// A network of each family, at most.
pub(super) fn is_one_of_each(networks: &[Cidr]) -> bool {
    let count = |family| {
        let of_family = networks.iter().filter(|it| Family::of(it.addr()) == family);
        of_family.count()
    };
    Family::BOTH.into_iter().all(|family| count(family) <= 1)
}

/// The address of this host in a network: the first one. `None` where no peer has room beside it.
pub(super) fn own_address(network: Cidr) -> Option<InterfaceAddress> {
    let family = Family::of(network.addr());
    let (first, last) = range(network);
    (last - first > 2).then(|| InterfaceAddress {
        ip: address(family, first + 1),
        prefix_len: network.prefix_len(),
    })
}

/// The first free port from the usual one on.
pub(super) fn free_port(is_free: impl Fn(u16) -> bool) -> Option<u16> {
    (PORT..=u16::MAX).find(|port| is_free(*port))
}

/// `HOST`, `HOST:PORT`, `ADDRESS` or `[ADDRESS]:PORT`.
pub(in crate::quick) fn endpoint(text: &str, port: u16) -> Result<HostPort, String> {
    let text = text.trim();
    if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(HostPort {
            host: ip.to_string(),
            port,
        });
    }
    match text.contains(':') {
        _ if text.contains(char::is_whitespace) => Err("expected one name or address".to_owned()),
        true => text.parse(),
        false => format!("{text}:{port}").parse(),
    }
}

/// What has to be done before peers find this host at an address, if anything.
pub(super) fn is_hidden(ip: IpAddr, port: u16) -> Option<String> {
    let block = Cidr::new(ip, Family::of(ip).bits())?;
    if is_cgnat(ip) {
        return Some(format!(
            "{ip} is an address of the provider's NAT (CGNAT), which forwards no port: over IPv4, peers reach this host \
             only if the provider gives it a public address"
        ));
    }
    is_private(block).then(|| {
        format!(
            "{ip} is a private address: peers elsewhere find this host only if the router forwards UDP port {port} to it, \
             and --endpoint is the router's name or public address"
        )
    })
}
