//! The effect of `set`, key by key, and the settings that it leaves alone.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;

use adit_proto::config::{AllowedIpChange, DeviceChange, PeerChange, PublicKey, Secret};
use adit_proto::limits::MAX_PEERS;
use adit_proto::{ConfigError, Device, Output, Peer, Time};
use common::*;

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn device_change(peers: Vec<PeerChange>) -> DeviceChange {
    DeviceChange {
        peers,
        ..DeviceChange::default()
    }
}

/// The change that `wg syncconf` sends for the pair's A.
fn as_configured(net: &Net) -> DeviceChange {
    let endpoint = net.hosts[B].addr;
    let mut change = peer(B, |peer| {
        peer.endpoint = Some(endpoint);
        peer.replace_allowed_ips = true;
        peer.allowed_ips = vec![add("10.0.0.2/32")];
    });
    change.private_key = Some(private_key(A));
    change
}

fn owner(net: &Net, ip: &str) -> Option<PublicKey> {
    let shared = net.hosts[A].device.shared();
    let routes = shared.routes();
    routes
        .lookup(ip.parse().unwrap())
        .map(|peer| peer.public_key())
}

#[test]
fn an_identical_set_disturbs_nothing() {
    let mut net = Net::pair(1);
    net.connect();
    // B roams, and stays silent for a long time.
    net.hosts[B].addr = addr("198.51.100.1:1");
    net.send(B, A, b"roamed");
    net.run_for(secs(1));
    for pause in [0, 60, 1000] {
        net.run_for(secs(pause));
        let status = net.hosts[A].device.status();
        let deadline = net.hosts[A].device.next_deadline();
        let (current, log) = (net.peer(A, B).current(), net.log.len());
        for replace_peers in [false, true] {
            let mut change = as_configured(&net);
            change.peers[0].endpoint = Some(addr("192.0.2.2:51820"));
            change.replace_peers = replace_peers;
            net.apply(A, &change);
            assert_eq!(net.hosts[A].device.status(), status);
            assert_eq!(net.hosts[A].device.next_deadline(), deadline);
            assert_eq!(net.log.len(), log);
            let now = net.peer(A, B).current();
            assert_eq!(
                now.map(|now| now.local_index()),
                current.as_ref().map(|old| old.local_index())
            );
        }
    }
    net.send(A, B, b"found");
    net.run_for(secs(1));
    assert_eq!(net.hosts[B].delivered.last().unwrap(), b"found");
}

#[test]
fn set_applies_a_new_endpoint_and_resets_that_of_a_dead_peer() {
    let mut net = Net::pair(2);
    net.connect();
    let home = net.hosts[B].addr;
    net.apply(
        A,
        &peer(B, |peer| peer.endpoint = Some(addr("192.0.2.77:7"))),
    );
    assert_eq!(net.status(A, B).endpoint, Some(addr("192.0.2.77:7")));
    net.apply(A, &peer(B, |peer| peer.endpoint = Some(home)));
    // B roams and goes back without a word.
    net.hosts[B].addr = addr("198.51.100.1:1");
    net.send(B, A, b"roamed");
    net.run_for(secs(12));
    assert_eq!(net.status(A, B).endpoint, Some(net.hosts[B].addr));
    net.hosts[B].addr = home;
    net.run_for(secs(200));
    net.send(A, B, b"where are you");
    net.run_for(secs(10));
    assert!(net.hosts[B].delivered.is_empty());
    let reloaded = as_configured(&net);
    net.apply(A, &reloaded);
    net.run_for(secs(1));
    assert_eq!(net.hosts[B].delivered, [b"where are you"]);
    // B is heard from elsewhere again. A reload leaves it there, `wg set` takes it home.
    net.hosts[B].addr = addr("198.51.100.1:1");
    net.send(B, A, b"roamed");
    net.run_for(secs(1));
    let away = net.hosts[B].addr;
    net.apply(A, &reloaded);
    assert_eq!(net.status(A, B).endpoint, Some(away));
    net.apply(A, &peer(B, |peer| peer.endpoint = Some(home)));
    assert_eq!(net.status(A, B).endpoint, Some(home));
}

#[test]
fn an_endpoint_that_comes_late_is_tried_at_once() {
    let mut net = Net::of(2, 3);
    net.apply(A, &peer(B, |_| ()));
    net.apply(B, &peer(A, |_| ()));
    net.send(A, B, b"x");
    net.run_for(secs(7));
    assert!(net.log.is_empty());
    let to = net.hosts[B].addr;
    net.apply(A, &peer(B, |peer| peer.endpoint = Some(to)));
    net.run_for(millis(100));
    assert_eq!(net.hosts[B].delivered, [b"x"]);
}

#[test]
fn replace_peers_removes_every_peer_that_it_does_not_name() {
    let mut net = Net::pair(4);
    net.connect();
    net.apply(
        A,
        &peer(5, |peer| peer.allowed_ips = vec![add("10.5.0.0/16")]),
    );
    let gone = net.peer(A, 5);
    let mut change = as_configured(&net);
    change.replace_peers = true;
    net.apply(A, &change);
    assert!(net.hosts[A].device.peer(&public_key(5)).is_none());
    assert_eq!(owner(&net, "10.5.0.1"), None);
    assert!(net.peer(A, B).current().is_some());
    assert_eq!(net.hosts[A].staged_drops, 1);
    assert!(gone.current().is_none());

    let index = net.session(A, B).local_index();
    net.apply(
        A,
        &DeviceChange {
            replace_peers: true,
            ..DeviceChange::default()
        },
    );
    assert_eq!(net.hosts[A].device.peers().count(), 0);
    assert_eq!(owner(&net, "10.0.0.2"), None);
    assert!(net.hosts[A].device.shared().session(index).is_none());
    assert_eq!(net.hosts[A].device.next_deadline(), None);
}

#[test]
fn replace_peers_resets_what_it_does_not_mention() {
    let mut net = Net::pair(5);
    net.connect();
    net.apply(
        A,
        &peer(B, |peer| {
            peer.preshared_key = Some(Secret::new(&[5; 32]));
            peer.persistent_keepalive = Some(9);
        }),
    );
    let mut change = device_change(vec![PeerChange::new(public_key(B))]);
    change.replace_peers = true;
    net.apply(A, &change);
    let status = net.status(A, B);
    assert_eq!(status.preshared_key, None);
    assert_eq!(status.persistent_keepalive, 0);
    assert!(status.allowed_ips.is_empty());
    assert!(status.last_handshake.is_some() && net.peer(A, B).current().is_some());
}

#[test]
fn a_section_that_comes_twice_adds_to_the_first() {
    let mut net = Net::pair(6);
    let mut first = PeerChange::new(public_key(B));
    first.allowed_ips = vec![add("10.1.0.0/16")];
    let mut second = PeerChange::new(public_key(B));
    second.allowed_ips = vec![add("10.2.0.0/16")];
    let mut change = device_change(vec![first, second]);
    change.replace_peers = true;
    net.apply(A, &change);
    assert_eq!(
        net.status(A, B).allowed_ips,
        [cidr("10.1.0.0/16"), cidr("10.2.0.0/16")]
    );
}

#[test]
fn update_only_and_remove_ignore_unknown_peers() {
    let mut net = Net::of(1, 7);
    net.apply(A, &peer(B, |peer| peer.update_only = true));
    net.apply(
        A,
        &peer(B, |peer| {
            peer.remove = true;
            peer.allowed_ips = vec![add("10.0.0.0/8")];
        }),
    );
    assert_eq!(net.hosts[A].device.peers().count(), 0);
    assert_eq!(owner(&net, "10.0.0.1"), None);
    net.apply(A, &peer(B, |_| ()));
    net.apply(
        A,
        &peer(B, |peer| {
            peer.update_only = true;
            peer.persistent_keepalive = Some(3);
        }),
    );
    assert_eq!(net.status(A, B).persistent_keepalive, 3);
    let mut change = peer(B, |peer| peer.update_only = true);
    change.replace_peers = true;
    net.apply(A, &change);
    assert_eq!(
        net.hosts[A].device.peers().count(),
        0,
        "it was removed before"
    );
}

#[test]
fn a_peer_added_again_after_its_removal_is_a_new_one() {
    let mut net = Net::pair(8);
    net.connect();
    let old = net.peer(A, B);
    let session = net.session(A, B);
    net.apply(A, &peer(B, |peer| peer.remove = true));
    assert!(
        session.reserve(net.now, 1).is_err(),
        "a shard that holds it cannot send"
    );
    net.apply(A, &as_configured(&net));
    let new = net.peer(A, B);
    assert_ne!(old.id(), new.id());
    assert_eq!((new.rx_bytes(), new.tx_bytes()), (0, 0));
    // The remains of the old one are harmless.
    old.want_session();
    net.event(A, &old);
    assert!(new.current().is_none());
    net.run_for(secs(1));
    net.send(A, B, b"x");
    net.run_for(secs(1));
    assert_eq!(net.hosts[B].delivered, [b"x"]);
}

#[test]
fn an_allowed_ip_moves_from_its_owner_and_minus_gives_it_up() {
    let mut net = Net::of(1, 9);
    net.apply(
        A,
        &peer(5, |peer| {
            peer.allowed_ips = vec![add("10.0.0.0/8"), add("10.1.0.0/16")]
        }),
    );
    net.apply(
        A,
        &peer(6, |peer| {
            peer.allowed_ips = vec![add("10.1.0.0/16"), add("fd00::/8")]
        }),
    );
    assert_eq!(net.status(A, 5).allowed_ips, [cidr("10.0.0.0/8")]);
    assert_eq!(owner(&net, "10.1.0.1"), Some(public_key(6)));
    // Only the owner can give a block up, and only the very block.
    let remove = |text| AllowedIpChange::Remove(cidr(text));
    net.apply(
        A,
        &peer(5, |peer| {
            peer.allowed_ips = vec![remove("10.1.0.0/16"), remove("10.0.0.0/9")]
        }),
    );
    assert_eq!(owner(&net, "10.1.0.1"), Some(public_key(6)));
    net.apply(
        A,
        &peer(6, |peer| peer.allowed_ips = vec![remove("10.1.0.0/16")]),
    );
    assert_eq!(owner(&net, "10.1.0.1"), Some(public_key(5)));
    assert_eq!(net.status(A, 6).allowed_ips, [cidr("fd00::/8")]);
    net.apply(
        A,
        &peer(5, |peer| {
            peer.replace_allowed_ips = true;
            peer.allowed_ips = vec![
                add("10.9.0.0/16"),
                remove("10.9.0.0/16"),
                add("10.8.0.0/16"),
            ];
        }),
    );
    assert_eq!(net.status(A, 5).allowed_ips, [cidr("10.8.0.0/16")]);
}

#[test]
fn allowed_ips_swap_owners_in_one_change() {
    let mut net = Net::of(1, 10);
    let set = |blocks: [&str; 2]| {
        let sections = [5, 6].into_iter().zip(blocks).map(|(n, block)| {
            let mut section = PeerChange::new(public_key(n));
            section.replace_allowed_ips = true;
            section.allowed_ips = vec![add(block)];
            section
        });
        device_change(sections.collect())
    };
    net.apply(A, &set(["10.1.0.0/16", "10.2.0.0/16"]));
    let shared = net.hosts[A].device.shared();
    let before = shared.routes();
    net.apply(A, &set(["10.2.0.0/16", "10.1.0.0/16"]));
    assert_eq!(owner(&net, "10.1.0.1"), Some(public_key(6)));
    assert_eq!(owner(&net, "10.2.0.1"), Some(public_key(5)));
    let ip = "10.1.0.1".parse().unwrap();
    assert_eq!(
        before.lookup(ip).map(|peer: &Arc<Peer>| peer.public_key()),
        Some(public_key(5))
    );
}

#[test]
fn a_change_that_fails_changes_nothing() {
    let mut net = Net::of(1, 11);
    let many = |count: usize| {
        let sections = (0..count).map(|n| {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&n.to_le_bytes());
            key[31] = 1;
            PeerChange::new(PublicKey(key))
        });
        device_change(sections.collect())
    };
    let mut change = many(MAX_PEERS + 1);
    change.listen_port = Some(7);
    change.private_key = Some(private_key(3));
    change.replace_peers = true;
    let before = net.hosts[A].device.status();
    let now = net.now;
    let refused = net.hosts[A].device.apply(now, &change);
    assert_eq!(refused, Err(ConfigError::TooManyPeers));
    assert_eq!(net.hosts[A].device.status(), before);
}

#[test]
fn a_whole_configuration_keeps_only_a_learned_endpoint() {
    for heard in [false, true] {
        let mut net = Net::pair(17);
        if heard {
            net.connect();
        }
        let mut change = peer(B, |_| {});
        change.replace_peers = true;
        net.apply(A, &change);
        let expected = heard.then(|| net.hosts[B].addr);
        assert_eq!(net.status(A, B).endpoint, expected);
    }
}

#[test]
fn the_device_reports_what_was_set() {
    let mut net = Net::of(1, 12);
    net.apply(
        A,
        &DeviceChange {
            private_key: Some(Secret::new(&[0xff; 32])),
            listen_port: Some(51820),
            fwmark: Some(9),
            ..DeviceChange::default()
        },
    );
    let status = net.hosts[A].device.status();
    assert_eq!((status.listen_port, status.fwmark), (51820, 9));
    let mut clamped = [0xff; 32];
    clamped[0] = 0xf8;
    clamped[31] = 0x7f;
    assert_eq!(status.private_key, Some(Secret::new(&clamped)));
    net.apply(
        A,
        &DeviceChange {
            fwmark: Some(0),
            ..DeviceChange::default()
        },
    );
    assert_eq!(net.hosts[A].device.status().fwmark, 0);
}

/// `count` peers with three allowed IPs each.
fn many(count: u32) -> DeviceChange {
    let sections = (0..count).map(|n| {
        let mut key = [1; 32];
        key[..4].copy_from_slice(&n.to_le_bytes());
        let [_, a, b, c] = n.to_be_bytes();
        let mut section = PeerChange::new(PublicKey(key));
        section.allowed_ips = [
            format!("10.{a}.{b}.{c}/32"),
            format!("172.16.{b}.{c}/32"),
            format!("fd00::{n:x}/128"),
        ]
        .map(|block| add(&block))
        .into();
        section
    });
    device_change(sections.collect())
}

/// Makes a change in pieces, of which each is as large as the documentation says; `between` looks
/// at the device after each. Returns how many there were.
fn in_pieces(net: &mut Net, change: DeviceChange, mut between: impl FnMut(&mut Device)) -> usize {
    let now = net.now;
    let device = &mut net.hosts[A].device;
    let mut transaction = device.begin(change);
    for pieces in 1.. {
        if device.resume(now, &mut transaction).expect("few peers") {
            return pieces;
        }
        between(device);
    }
    unreachable!()
}

#[test]
fn a_large_change_is_made_in_pieces_and_routes_change_at_once() {
    let mut net = Net::of(1, 18);
    let shared = net.hosts[A].device.shared();
    let (mut peers, mut largest) = (0, 0);
    let pieces = in_pieces(&mut net, many(5000), |device| {
        let count = device.peers().count();
        largest = largest.max(count - std::mem::replace(&mut peers, count));
        assert!(shared.routes().is_empty(), "as before, until all is done");
    });
    // A peer and its three blocks are four steps of 1024.
    assert!((19..25).contains(&pieces), "{pieces} pieces");
    assert!((200..=257).contains(&largest), "{largest} peers in a piece");
    assert_eq!(shared.routes().len(), 15_000);
    assert_eq!(owner(&net, "10.0.0.7"), owner(&net, "fd00::7"));

    // The same once more changes nothing, also in the middle.
    let before = net.hosts[A].device.status();
    let mut again = many(5000);
    again.replace_peers = true;
    again
        .peers
        .iter_mut()
        .for_each(|peer| peer.replace_allowed_ips = true);
    in_pieces(&mut net, again, |device| {
        assert_eq!(shared.routes().len(), 3 * device.peers().count())
    });
    assert_eq!(net.hosts[A].device.status(), before);

    // All peers but a new one go.
    let mut other = peer(B, |peer| peer.allowed_ips = vec![add("10.0.0.7/32")]);
    other.replace_peers = true;
    let mut dropped = 0;
    let pieces = in_pieces(&mut net, other, |device| {
        let outputs = std::iter::from_fn(|| device.poll_output());
        dropped += outputs
            .filter(|output| matches!(output, Output::DropStaged { .. }))
            .count();
        // What waits for a peer is dropped when no route leads there any more: no more of it comes.
        let routes = if dropped > 0 { 1 } else { 15_000 };
        assert_eq!(shared.routes().len(), routes);
    });
    assert!(dropped > 3000, "{dropped} before the last piece");
    assert!(pieces >= 19, "{pieces} pieces");
    assert_eq!(shared.routes().len(), 1);
    assert_eq!(owner(&net, "10.0.0.7"), Some(public_key(B)));
    assert_eq!(net.hosts[A].device.peers().count(), 1);
}

#[test]
fn one_peer_with_many_allowed_ips_is_changed_in_pieces() {
    let mut net = Net::of(1, 19);
    let blocks = |range: std::ops::Range<u32>| {
        let blocks = range.map(|n| add(&format!("fd00::{n:x}/128")));
        peer(5, |peer| {
            peer.replace_allowed_ips = true;
            peer.allowed_ips = blocks.collect();
        })
    };
    assert!(in_pieces(&mut net, blocks(0..10_000), |_| ()) >= 10);
    // Half of them is replaced: those that stay, those that come and those that go take their time.
    assert!(in_pieces(&mut net, blocks(5000..15_000), |_| ()) >= 19);
    assert_eq!(net.status(A, 5).allowed_ips.len(), 10_000);
    assert_eq!(owner(&net, "fd00::1387"), None);
    assert_eq!(owner(&net, "fd00::1388"), Some(public_key(5)));
    assert!(in_pieces(&mut net, peer(5, |peer| peer.remove = true), |_| ()) >= 10);
    assert!(net.hosts[A].device.shared().routes().is_empty());
}

#[test]
fn a_new_private_key_reaches_many_peers_in_pieces() {
    let mut net = Net::pair(20);
    net.connect();
    net.apply(A, &many(5000));
    let key = DeviceChange {
        private_key: Some(private_key(7)),
        ..DeviceChange::default()
    };
    assert!(in_pieces(&mut net, key, |_| ()) >= 5);
    net.drain(A);
    net.publics[A] = public_key(7);
    net.apply(
        B,
        &peer(7, |peer| peer.allowed_ips = vec![add("10.0.0.1/32")]),
    );
    net.connect();
}

#[test]
fn a_table_in_use_is_freed_later_and_in_pieces() {
    let mut net = Net::of(1, 21);
    net.apply(A, &many(5000));
    let shared = net.hosts[A].device.shared();
    let peer = Arc::clone(net.hosts[A].device.peers().next().expect("many"));
    let in_use = shared.routes();
    let all = DeviceChange {
        replace_peers: true,
        ..DeviceChange::default()
    };
    net.apply(A, &all);
    // The table's three references, and ours.
    assert_eq!(Arc::strong_count(&peer), 4);
    drop(in_use);
    assert!(Arc::strong_count(&peer) > 1, "a shard does not free it");
    let (wall, mut calls) = (net.wall(A), 0);
    let device = &mut net.hosts[A].device;
    while let Some(at) = device.next_deadline() {
        device.handle_timeout(at, wall);
        calls += 1;
    }
    assert_eq!(Arc::strong_count(&peer), 1);
    // 15,000 blocks stand in some 240 nodes, and a call frees 8192 of both.
    assert_eq!(calls, 2);
}

#[test]
fn silent_peers_cost_nothing_but_their_place() {
    let mut net = Net::pair(22);
    net.connect();
    net.run_for(secs(60));
    let deadline = net.hosts[A].device.next_deadline();
    net.apply(A, &many(5000));
    let device = &mut net.hosts[A].device;
    assert_eq!(device.next_deadline(), deadline);
    // Whoever looks for paths that changed meets the peers that have one.
    let in_use = device
        .peers_in_use_from(0)
        .map(|(_, peer)| peer.public_key());
    assert_eq!(in_use.collect::<Vec<_>>(), [public_key(B)]);
    device.was_cloned(net.now);
    assert_eq!(device.next_deadline(), deadline);
}

#[test]
fn many_peers_learn_in_pieces_that_the_interface_is_up() {
    let mut net = Net::of(1, 23);
    let mut change = many(5000);
    for peer in &mut change.peers {
        peer.endpoint = Some(addr("192.0.2.9:9"));
        peer.persistent_keepalive = Some(25);
    }
    let (now, wall) = (net.now, net.wall(A));
    let device = &mut net.hosts[A].device;
    device.went_down();
    device.apply(now, &change).unwrap();
    device.came_up(now);
    assert_eq!(
        device.next_deadline(),
        Some(Time::default()),
        "not all have"
    );
    let mut sent = 0;
    for calls in 1.. {
        device.handle_timeout(now, wall);
        let outputs = std::iter::from_fn(|| device.poll_output()).count();
        assert!(outputs <= 32, "{outputs} in call {calls}");
        sent += outputs;
        if device.next_deadline().is_none_or(|at| at > now) {
            break;
        }
    }
    assert_eq!(sent, 5000);
}

#[test]
fn a_status_in_pieces_survives_the_removal_of_all_peers() {
    let mut net = Net::of(1, 50);
    // None is the private key of a host.
    let keys: Vec<_> = (100..200).map(|n| PublicKey([n; 32])).collect();
    let all = DeviceChange {
        replace_peers: true,
        peers: keys.iter().map(|key| PeerChange::new(*key)).collect(),
        ..DeviceChange::default()
    };
    let none = DeviceChange {
        replace_peers: true,
        ..DeviceChange::default()
    };
    // As a reader that takes 30 peers at a time, while all are removed after so many pieces, and
    // others come.
    for removed_after in 0..5 {
        net.apply(A, &all);
        let (mut from, mut seen) = (0, Vec::new());
        for piece in 0.. {
            if piece == removed_after {
                net.apply(A, &none);
                net.apply(
                    A,
                    &device_change(vec![PeerChange::new(PublicKey([200; 32]))]),
                );
            }
            let device = &net.hosts[A].device;
            let peers: Vec<_> = device.peer_status_from(from).take(30).collect();
            let Some((last, _)) = peers.last() else { break };
            from = last + 1;
            seen.extend(peers.iter().map(|(_, status)| status.public_key));
        }
        let before =
            seen.len() - usize::from(removed_after < 5 && seen.contains(&PublicKey([200; 32])));
        assert_eq!(before, (30 * removed_after).min(100));
        assert_eq!(seen[..before], keys[..before]);
    }
}

#[test]
fn no_secret_becomes_the_public_key_of_a_peer() {
    let mut raw = [0x5a; 32];
    (raw[0], raw[31]) = (0xff, 0xff);
    let own = Secret::new(&raw);
    let mut used = raw;
    (used[0], used[31]) = (0xf8, 0x7f);
    let with_key = |key: Option<&Secret>, peers: &[PublicKey]| DeviceChange {
        private_key: key.cloned(),
        ..device_change(peers.iter().copied().map(PeerChange::new).collect())
    };
    let honest = PublicKey([7; 32]);
    for secret in [raw, used].map(PublicKey) {
        for first in [vec![], vec![honest], vec![honest; 3000]] {
            let peers = [first, vec![secret]].concat();
            // Key and peer in one change, and one after the other.
            let cases = [
                vec![with_key(Some(&own), &peers)],
                vec![with_key(Some(&own), &[]), with_key(None, &peers)],
                vec![with_key(None, &peers), with_key(Some(&own), &[])],
            ];
            for changes in cases {
                let (last, before) = changes.split_last().unwrap();
                let mut device = Device::new(Box::new(|bytes| bytes.fill(7)));
                for change in before {
                    device.apply(Time(1), change).unwrap();
                }
                let status = device.status();
                let refused = device.apply(Time(2), last).unwrap_err();
                assert!(
                    matches!(refused, ConfigError::SecretAsPublicKey),
                    "{refused}"
                );
                assert_eq!(device.status(), status, "nothing was changed");
            }
        }
    }
    // A peer's own preshared key.
    let mut twice = PeerChange::new(honest);
    twice.preshared_key = Some(Secret::new(&honest.0));
    let mut device = Device::new(Box::new(|bytes| bytes.fill(7)));
    assert!(device.apply(Time(1), &device_change(vec![twice])).is_err());
    // Its removal passes, and a change that removes it and sets the key.
    let peer = PublicKey(used);
    device.apply(Time(1), &with_key(None, &[peer])).unwrap();
    let mut removal = with_key(None, &[peer]);
    removal.peers[0].remove = true;
    device.apply(Time(2), &removal).unwrap();
    device.apply(Time(3), &with_key(None, &[peer])).unwrap();
    let mut replacement = with_key(Some(&own), &[honest]);
    replacement.replace_peers = true;
    device.apply(Time(4), &replacement).unwrap();
    assert_eq!(device.peers().count(), 1);
}
