//! How much of all addresses blocks are.

use std::net::IpAddr;

use adit_ctl::config::Table;
use adit_netlink::Family;
use adit_proto::config::Cidr;

/// The blocks that together are all addresses of a family, none inside another: 0.0.0.0/0, or its
/// two halves, as many providers write it. Empty if some address is in no block.
pub(crate) fn parts(allowed: &[Cidr], family: Family) -> Vec<Cidr> {
    let blocks = || (allowed.iter()).filter(|block| Family::of(block.addr()) == family);
    // Most have too few: no need to sort a million.
    if share(allowed, family) < 0.999 {
        return Vec::new();
    }
    if let Some(all) = blocks().find(|block| block.prefix_len() == 0) {
        return vec![*all];
    }
    let mut blocks: Vec<Cidr> = blocks().copied().collect();
    blocks.sort_by_key(|block| (block.addr(), block.prefix_len()));
    // The first address that no part has so far.
    let mut next = Some(0);
    let mut parts = Vec::new();
    for block in blocks {
        match next {
            Some(next) if first(block) > next => return Vec::new(),
            Some(at) if first(block) == at => {
                next = last(block).checked_add(1);
                parts.push(block);
            }
            // It lies inside the last part.
            _ => {}
        }
    }
    let last = u128::MAX >> (128 - family.bits());
    match next {
        Some(next) if next <= last => Vec::new(),
        _ => parts,
    }
}

/// Whether all addresses of a family are in the blocks.
pub(crate) fn covers(allowed: &[Cidr], family: Family) -> bool {
    !parts(allowed, family).is_empty()
}

fn first(block: Cidr) -> u128 {
    match block.addr() {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

fn last(block: Cidr) -> u128 {
    let free = Family::of(block.addr()).bits() - block.prefix_len();
    first(block) | 1_u128.checked_shl(free.into()).unwrap_or(0).wrapping_sub(1)
}

/// How much of a family the blocks are, those inside others counted twice.
fn share(allowed: &[Cidr], family: Family) -> f64 {
    let blocks = (allowed.iter()).filter(|block| Family::of(block.addr()) == family);
    blocks
        .map(|block| 0.5_f64.powi(block.prefix_len().into()))
        .sum()
}

/// Says so, if the routes take most of the Internet, and what they take leaves in clear when the
/// tunnel's process is killed. It is blocked only if it is all of a family, and in no table that the
/// file chooses.
pub(crate) fn leaves_in_clear(allowed: &[Cidr], table: &Table) -> Option<String> {
    if *table == Table::Off {
        return None;
    }
    let mut open = Vec::new();
    for family in Family::BOTH {
        let covered = covers(allowed, family);
        // The addresses of the Internet are an eighth of IPv6.
        let most = match family {
            Family::V4 => 0.5,
            Family::V6 => 0.125,
        };
        if covered && *table != Table::Auto || !covered && share(allowed, family) >= most {
            open.push(match family {
                Family::V4 => "IPv4",
                Family::V6 => "IPv6",
            });
        }
    }
    let families = open.join(" and ");
    let all = match families.as_str() {
        "" => return None,
        "IPv4" => "0.0.0.0/0",
        "IPv6" => "::/0",
        _ => "0.0.0.0/0, ::/0",
    };
    Some(match table {
        Table::Auto => format!(
            "the routes take most of {families}, and if the process is killed, that leaves in clear; AllowedIPs = {all} \
             is blocked then"
        ),
        _ => format!(
            "the routes take all or most of {families}, into a table that the file chooses, and if the process is killed, \
             that may leave in clear; without Table, AllowedIPs = {all} is blocked then"
        ),
    })
}
