//! Allowed IPs against a list that is searched from end to end.

use std::net::IpAddr;

use adit_proto::AllowedIps;
use adit_proto::config::Cidr;

use super::naive::NaiveRoutes;
use crate::source::InputBytes;

pub(crate) fn run(input: &[u8]) {
    let mut source = InputBytes::new(input);
    let (mut routes, mut naive) = (AllowedIps::default(), NaiveRoutes::default());
    let mut snapshots = Vec::new();
    while !source.is_empty() {
        let what = source.u8();
        let ip = address(&mut source);
        let bits = if ip.is_ipv4() { 33 } else { 129 };
        let block = Cidr::new(ip, u8::try_from(source.below(bits)).unwrap_or(0)).expect("few bits");
        match what % 8 {
            0..4 => {
                let owner = what >> 3;
                assert_eq!(routes.insert(block, owner), naive.insert(block, owner));
            }
            4 | 5 => assert_eq!(routes.remove(block), naive.remove(block)),
            6 if snapshots.len() < 4 => snapshots.push((routes.clone(), naive.clone())),
            _ => assert_eq!(routes.lookup(ip).copied(), naive.lookup(ip), "{ip}"),
        }
        assert_eq!(routes.len(), naive.0.len());
        assert_eq!(routes.is_empty(), naive.0.is_empty());
    }
    snapshots.push((routes, naive));
    for (routes, naive) in &snapshots {
        for (block, _) in &naive.0 {
            for ip in [block.addr(), last(block), flipped(block)] {
                assert_eq!(routes.lookup(ip).copied(), naive.lookup(ip), "{ip}");
            }
        }
    }
}

/// Mostly zeros, so that blocks nest.
fn address(source: &mut InputBytes<'_>) -> IpAddr {
    let (kind, bits, place) = (source.u8(), source.u8(), source.u8());
    match kind % 4 {
        0 => (u32::from(bits) << (place % 25)).to_be_bytes().into(),
        1 => source.array::<4>().into(),
        2 => (u128::from(bits) << (place % 121)).to_be_bytes().into(),
        _ => source.array::<16>().into(),
    }
}

/// The highest address of the block.
fn last(block: &Cidr) -> IpAddr {
    match block.addr() {
        IpAddr::V4(ip) => {
            let host = u32::MAX.checked_shr(block.prefix_len().into()).unwrap_or(0);
            (u32::from(ip) | host).to_be_bytes().into()
        }
        IpAddr::V6(ip) => {
            let host = u128::MAX
                .checked_shr(block.prefix_len().into())
                .unwrap_or(0);
            (u128::from(ip) | host).to_be_bytes().into()
        }
    }
}

/// An address just outside of it.
fn flipped(block: &Cidr) -> IpAddr {
    let at = u32::from(block.prefix_len().max(1));
    match block.addr() {
        IpAddr::V4(ip) => (u32::from(ip) ^ 1 << (32 - at)).to_be_bytes().into(),
        IpAddr::V6(ip) => (u128::from(ip) ^ 1 << (128 - at)).to_be_bytes().into(),
    }
}
