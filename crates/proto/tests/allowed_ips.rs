//! Longest-prefix match against a list that is searched from end to end.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use adit_proto::AllowedIps;
use adit_proto::config::Cidr;
use proptest::prelude::*;

/// Blocks and owners; the horrible way.
#[derive(Clone, Default)]
struct Naive(Vec<(Cidr, u32)>);

impl Naive {
    fn insert(&mut self, block: Cidr, owner: u32) -> Option<u32> {
        let before = self.remove(block);
        self.0.push((block, owner));
        before
    }

    fn remove(&mut self, block: Cidr) -> Option<u32> {
        let at = self.0.iter().position(|(known, _)| *known == block)?;
        Some(self.0.swap_remove(at).1)
    }

    fn lookup(&self, ip: IpAddr) -> Option<u32> {
        let containing = self.0.iter().filter(|(block, _)| block.contains(ip));
        containing
            .max_by_key(|(block, _)| block.prefix_len())
            .map(|(_, owner)| *owner)
    }
}

fn cidr(text: &str) -> Cidr {
    let (addr, len) = text.split_once('/').unwrap();
    Cidr::new(addr.parse().unwrap(), len.parse().unwrap()).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn the_longest_block_wins_in_both_families() {
    let mut routes = AllowedIps::default();
    for (owner, block) in [
        "0.0.0.0/0",
        "10.0.0.0/8",
        "10.1.0.0/16",
        "10.1.2.3/32",
        "::/0",
        "2001:db8::/32",
        "2001:db8::1/128",
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(routes.insert(cidr(block), owner), None);
    }
    for (addr, owner) in [
        ("192.0.2.1", 0),
        ("10.2.0.0", 1),
        ("10.1.2.4", 2),
        ("10.1.2.3", 3),
        ("fe80::1", 4),
        ("2001:db8::2", 5),
        ("2001:db8::1", 6),
    ] {
        assert_eq!(routes.lookup(ip(addr)), Some(&owner), "{addr}");
    }
    assert_eq!(routes.remove(cidr("10.1.0.0/16")), Some(2));
    assert_eq!(routes.lookup(ip("10.1.2.4")), Some(&1));
    assert_eq!(routes.lookup(ip("10.1.2.3")), Some(&3));
    assert_eq!(routes.remove(cidr("10.1.0.0/16")), None);
    assert_eq!(routes.remove(cidr("10.1.0.0/17")), None);
    assert_eq!(routes.len(), 6);
}

#[test]
fn chains_of_every_length_from_0_to_the_host_work_in_any_order() {
    let chain = |bits: u8, host: IpAddr, reverse: bool| {
        let mut routes = AllowedIps::default();
        let mut lens: Vec<u8> = (0..=bits).collect();
        if reverse {
            lens.reverse();
        }
        for &len in &lens {
            routes.insert(Cidr::new(host, len).unwrap(), len);
        }
        for len in (0..=bits).rev() {
            assert_eq!(routes.lookup(host), Some(&len));
            assert_eq!(routes.remove(Cidr::new(host, len).unwrap()), Some(len));
        }
        assert_eq!(routes.lookup(host), None);
        assert!(routes.is_empty());
    };
    for reverse in [false, true] {
        for host in ["255.255.255.255", "0.0.0.0", "170.85.170.85"] {
            chain(32, ip(host), reverse);
        }
        for host in [
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "::",
            "a55a::5aa5",
        ] {
            chain(128, ip(host), reverse);
        }
    }
}

#[test]
fn a_snapshot_does_not_see_later_changes() {
    let mut routes = AllowedIps::default();
    routes.insert(cidr("10.0.0.0/8"), 1);
    routes.insert(cidr("10.1.0.0/16"), 1);
    let snapshot = routes.clone();
    routes.insert(cidr("10.1.0.0/16"), 2);
    routes.remove(cidr("10.0.0.0/8"));
    assert_eq!(snapshot.lookup(ip("10.1.0.1")), Some(&1));
    assert_eq!(snapshot.lookup(ip("10.2.0.1")), Some(&1));
    assert_eq!(routes.lookup(ip("10.1.0.1")), Some(&2));
    assert_eq!(routes.lookup(ip("10.2.0.1")), None);
}

/// More hosts than a node has, in neighbouring nodes, and every shorter block around them.
#[test]
fn hosts_side_by_side_come_and_go_in_any_order() {
    let block = |n: u32, len| Cidr::new(Ipv4Addr::from(0x0a00_0000 + n).into(), len).unwrap();
    let mut blocks: Vec<_> = (0..200).map(|n| block(n, 32)).collect();
    blocks.extend(
        (24..32)
            .flat_map(|len| (0..200).step_by(1 << (32 - len)).map(move |n| (n, len)))
            .map(|(n, len)| block(n, len)),
    );
    let (mut routes, mut naive) = (AllowedIps::default(), Naive::default());
    let count = blocks.len();
    // No divisor of the steps is one of the count.
    assert!(!count.is_multiple_of(7) && !count.is_multiple_of(11));
    let shuffled = |step: usize| (0..count).map(move |i| i * step % count);
    let check = |routes: &AllowedIps<u32>, naive: &Naive| {
        for n in 0..256 {
            let ip = block(n, 32).addr();
            assert_eq!(routes.lookup(ip).copied(), naive.lookup(ip), "{ip}");
        }
    };
    for i in shuffled(7) {
        let owner = u32::try_from(i).unwrap();
        assert_eq!(
            routes.insert(blocks[i], owner),
            naive.insert(blocks[i], owner)
        );
    }
    check(&routes, &naive);
    for i in shuffled(11) {
        assert_eq!(routes.remove(blocks[i]), naive.remove(blocks[i]));
        if i % 8 == 0 {
            check(&routes, &naive);
        }
    }
    assert!(routes.is_empty());
}

/// Few distinct bits, so that blocks nest and collide.
fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (0_u32..16, 0_u32..29)
            .prop_map(|(bits, shift)| IpAddr::from(Ipv4Addr::from(bits << shift))),
        any::<u32>().prop_map(|bits| IpAddr::from(Ipv4Addr::from(bits & 0xc000_0003))),
        (0_u32..80).prop_map(|host| IpAddr::from(Ipv4Addr::from(0x0a00_0000 + host))),
        (0_u128..80).prop_map(|host| IpAddr::from(Ipv6Addr::from(0xfd << 120 | host))),
        (0_u128..16, 0_u32..125)
            .prop_map(|(bits, shift)| IpAddr::from(Ipv6Addr::from(bits << shift))),
    ]
}

fn block() -> impl Strategy<Value = Cidr> {
    (address(), 0_u8..=128).prop_map(|(addr, len)| {
        Cidr::new(addr, if addr.is_ipv4() { len % 33 } else { len }).unwrap()
    })
}

/// Whether both say the same about the addresses and about all blocks there are.
fn agree(
    routes: &AllowedIps<u32>,
    naive: &Naive,
    questions: &[IpAddr],
) -> Result<(), TestCaseError> {
    prop_assert_eq!(routes.len(), naive.0.len());
    let blocks = naive.0.iter().map(|(block, _)| block.addr());
    for ip in blocks.chain(questions.iter().copied()) {
        prop_assert_eq!(routes.lookup(ip).copied(), naive.lookup(ip), "{}", ip);
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_trie_and_its_snapshots_agree_with_the_list(
        changes in prop::collection::vec((block(), 0_u32..8, any::<bool>()), 0..200),
        again in prop::collection::vec((any::<prop::sample::Index>(), 0_u32..9), 0..100),
        questions in prop::collection::vec(address(), 0..100),
    ) {
        let (mut routes, mut naive) = (AllowedIps::default(), Naive::default());
        let mut snapshots = Vec::new();
        for (block, owner, insert) in changes {
            if insert {
                prop_assert_eq!(routes.insert(block, owner), naive.insert(block, owner));
            } else {
                prop_assert_eq!(routes.remove(block), naive.remove(block));
            }
        }
        agree(&routes, &naive, &questions)?;
        // Blocks that there are go, or go to another owner.
        for (which, owner) in again {
            if naive.0.is_empty() {
                break;
            }
            if owner % 3 == 0 {
                snapshots.push((routes.clone(), naive.clone()));
            }
            let (block, _) = *which.get(&naive.0);
            if owner < 6 {
                prop_assert_eq!(routes.remove(block), naive.remove(block));
            } else {
                prop_assert_eq!(routes.insert(block, owner), naive.insert(block, owner));
            }
            agree(&routes, &naive, &questions)?;
        }
        for (routes, naive) in snapshots {
            agree(&routes, &naive, &questions)?;
        }
    }
}
