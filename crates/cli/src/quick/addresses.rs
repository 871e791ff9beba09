//! Addresses for new peers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use adit_ctl::config::InterfaceAddress;
use adit_proto::config::Cidr;

#[cfg(test)]
#[path = "addresses_tests.rs"]
mod tests;

/// The lowest address of the interface's network that is neither its own nor in one of the `taken`
/// blocks, nor reserved; `None` if all are taken. Blocks that hold the whole network, such as a
/// default route, take nothing of it.
pub(super) fn free(own: InterfaceAddress, taken: &[Cidr]) -> Option<IpAddr> {
    let network = AddressRange::of(own);
    let inside = taken.iter().filter(|block| {
        block.addr().is_ipv4() == own.ip.is_ipv4() && block.prefix_len() > own.prefix_len
    });
    let mut ranges: Vec<(u128, u128)> = inside
        .map(|block| {
            AddressRange::of(InterfaceAddress {
                ip: block.addr(),
                prefix_len: block.prefix_len(),
            })
        })
        .map(|block| (block.first, block.last))
        .chain([(number(own.ip), number(own.ip))])
        .collect();
    ranges.sort_unstable();
    // The first address stands for the network (IPv4) or its routers (IPv6), and the last of IPv4
    // is the broadcast address; networks of two have neither (RFC 3021, RFC 6164).
    let reserved = network.last - network.first > 1;
    let mut candidate = network.first + u128::from(reserved);
    let last = network.last - u128::from(reserved && own.ip.is_ipv4());
    for (first, end) in ranges {
        if first > candidate {
            break;
        }
        candidate = candidate.max(end.saturating_add(1));
    }
    (candidate <= last).then(|| match own.ip {
        // It is between two addresses of the family.
        IpAddr::V4(_) => Ipv4Addr::from(u32::try_from(candidate).unwrap_or_default()).into(),
        IpAddr::V6(_) => Ipv6Addr::from(candidate).into(),
    })
}

struct AddressRange {
    first: u128,
    last: u128,
}

impl AddressRange {
    fn of(address: InterfaceAddress) -> Self {
        let bits: u32 = if address.ip.is_ipv4() { 32 } else { 128 };
        let host_bits = bits.saturating_sub(address.prefix_len.into());
        let hosts = 1u128
            .checked_shl(host_bits)
            .map_or(u128::MAX, |size| size - 1);
        let first = number(address.ip) & !hosts;
        Self {
            first,
            last: first | hosts,
        }
    }
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => v6.into(),
    }
}
