//! Ten thousand peers, and how fast a responder answers.

mod common;

use std::time::Instant;

use adit_proto::config::{DeviceChange, PeerChange, PublicKey};
use adit_proto::{Endpoint, Output};
use common::*;

fn many(count: usize) -> DeviceChange {
    let sections = (0..count).map(|n| {
        let mut key = [9; 32];
        key[..8].copy_from_slice(&n.to_le_bytes());
        let mut section = PeerChange::new(PublicKey(key));
        let [_, _, _, _, _, a, b, c] = n.to_be_bytes();
        section.endpoint = Some(format!("192.{a}.{b}.{c}:1").parse().unwrap());
        section.allowed_ips = vec![add(&format!("10.{a}.{b}.{c}/32"))];
        section.persistent_keepalive = Some(25);
        section
    });
    DeviceChange {
        peers: sections.collect(),
        ..DeviceChange::default()
    }
}

#[test]
fn ten_thousand_peers_keep_their_timers() {
    let mut net = Net::of(1, 1);
    net.apply(A, &many(10_000));
    assert_eq!(net.stats(A).initiations_sent, 10_000);
    let start = net.now;
    net.run_for(millis(5400));
    // Each was retried once, in its own time.
    assert_eq!(net.stats(A).initiations_sent, 20_000);
    let retries = net.sent(A, "initiation", start + millis(1));
    let first_half = retries
        .iter()
        .filter(|sent| sent.at.since(start) < millis(5166));
    assert!(
        (4000..6000).contains(&first_half.count()),
        "spread by jitter"
    );
    net.apply(
        A,
        &DeviceChange {
            replace_peers: true,
            ..DeviceChange::default()
        },
    );
    assert_eq!(net.hosts[A].device.next_deadline(), None);
}

/// Prints; run with `--release -- --ignored --nocapture`.
#[test]
#[ignore = "prints a rate and asserts nothing"]
fn how_many_handshakes_a_responder_answers() {
    const PEERS: usize = 1000;
    let mut net = Net::of(1, 2);
    let responder = net.hosts[A].addr;
    let mut initiations = Vec::new();
    for n in 0..PEERS {
        let mut secret = private_key(100);
        secret.bytes_mut()[1..9].copy_from_slice(&n.to_le_bytes());
        net.apply(
            A,
            &DeviceChange {
                peers: vec![PeerChange::new(public_of(&secret))],
                ..DeviceChange::default()
            },
        );
        let mut client = device(n as u64);
        let mut change = peer(A, |peer| {
            peer.endpoint = Some(responder);
            peer.persistent_keepalive = Some(1);
        });
        change.private_key = Some(secret);
        client.apply(net.now, &change).unwrap();
        client.handle_timeout(net.now, net.wall(A));
        while let Some(output) = client.poll_output() {
            if let Output::Handshake { datagram, .. } = output {
                initiations.push(datagram);
            }
        }
    }
    let wall = net.wall(A);
    let device = &mut net.hosts[A].device;
    let from = Endpoint::from(responder);
    let begin = Instant::now();
    for initiation in &initiations {
        device.handle_handshake(net.now, wall, from, initiation, false);
    }
    let took = begin.elapsed();
    assert_eq!(device.handshake_stats().initiations_accepted, PEERS as u64);
    println!(
        "{:.0} handshakes/s answered on one core",
        PEERS as f64 / took.as_secs_f64()
    );
}

/// Prints; run with `--release -- --ignored --nocapture`.
#[test]
#[ignore = "prints times and asserts nothing"]
fn what_a_look_up_costs_at_10_and_at_500_000_peers() {
    const LOOK_UPS: u32 = 2_000_000;
    for count in [10_u32, 500_000] {
        let mut net = Net::of(1, 3);
        let now = net.now;
        let device = &mut net.hosts[A].device;
        let change = many(count as usize);
        device.apply(now, &change).unwrap();
        let shared = device.shared();
        let routes = shared.routes();
        let measure = |addresses: &[std::net::IpAddr]| {
            let begin = Instant::now();
            let mut found = 0_u32;
            for ip in addresses.iter().cycle().take(LOOK_UPS as usize) {
                found += u32::from(routes.lookup(*ip).is_some());
            }
            assert_eq!(found, LOOK_UPS);
            begin.elapsed().as_nanos() as f64 / f64::from(LOOK_UPS)
        };
        let mut random = Random(7);
        let mut any = || {
            let [_, a, b, c] = u32::try_from(random.below(count.into()))
                .unwrap()
                .to_be_bytes();
            std::net::IpAddr::from([10, a, b, c])
        };
        let [few, all] = [10, LOOK_UPS].map(|n| (0..n).map(|_| any()).collect::<Vec<_>>());
        println!(
            "{count} peers: {:.1} ns for 10 addresses in turn, {:.1} ns for random ones",
            measure(&few),
            measure(&all)
        );
    }
}
