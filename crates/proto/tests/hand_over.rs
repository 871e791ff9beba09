//! A device that goes on in another process: nothing that its peers or its user can see changes.

mod common;

use std::collections::BTreeSet;
use std::convert::Infallible;

use adit_proto::config::DeviceChange;
use adit_proto::limits;
use adit_proto::{Allowance, Device, HAND_OVER_FORMAT, Import, NotImported, Time};
use common::*;

fn records(device: &mut Device, now: Time) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    let put = |record: zeroize::Zeroizing<Vec<u8>>| {
        records.push(record.to_vec());
        Ok::<(), Infallible>(())
    };
    let Ok(()) = device.export(now, put);
    records
}

fn import(records: &[Vec<u8>], now: Time) -> Result<Device, NotImported> {
    let mut random = Random(now.0);
    let mut import = Import::new(Box::new(move |buffer| {
        for chunk in buffer.chunks_mut(8) {
            chunk.copy_from_slice(&random.next().to_le_bytes()[..chunk.len()]);
        }
    }));
    for record in records {
        import.take(record)?;
    }
    import.finish(now)
}

/// Another process goes on in place of the host's.
fn hand_over(net: &mut Net, host: usize) {
    let now = net.now;
    net.drain(host);
    let device = &mut net.hosts[host].device;
    let before = (device.status(), device.handshake_stats());
    let deadline = device.next_deadline();
    let records = records(device, now);
    let mut other = import(&records, now).expect("a device");
    assert_eq!((other.status(), other.handshake_stats()), before);
    // What frees old tables stays behind.
    if let (Some(before), Some(after)) = (deadline, other.next_deadline()) {
        assert!(after >= before, "a timer runs out earlier");
    }
    assert_eq!(self::records(&mut other, now), records);
    net.hosts[host].device = other;
}

/// (receiver, counter) of each data message that left.
fn assert_counters_are_new(net: &Net) {
    let mut seen = BTreeSet::new();
    for datagram in &net.log {
        if datagram.bytes[0] == 4 {
            let name = (datagram.from, datagram.bytes[4..16].to_vec());
            assert!(seen.insert(name), "a counter was used twice");
        }
    }
    assert!(seen.len() > 3);
}

#[test]
fn the_format_has_a_number() {
    assert_eq!(
        HAND_OVER_FORMAT, 7,
        "see `handed_over.rs` before this changes"
    );
}

#[test]
fn what_peers_may_do_goes_along() {
    let mut net = Net::pair(11);
    net.connect();
    let allowance = Allowance {
        to_peer: Some(1_000_000),
        from_peer: Some(2_000_000),
        quota: Some(5_000),
        expires: Some(net.wall(A).to_unix() + secs(1_000)),
    };
    let (now, wall) = (net.now, net.wall(A));
    let device = &mut net.hosts[A].device;
    device.remember_used([(public_key(B), 1_500)]);
    device.set_allowance(now, wall, (&public_key(B), &allowance, false));
    net.send(A, B, &[1; 1_000]);
    net.run_for(secs(1));
    let used = net.hosts[A].device.used();
    assert!(used[0].1 > 2_500, "{used:?}");
    hand_over(&mut net, A);
    assert_eq!(net.hosts[A].device.used(), used);
    let peer = net.peer(A, B);
    assert!(
        peer.limits()
            .is_some_and(|it| it.to_peer.is_set() && it.from_peer.is_set())
    );
    assert!(!peer.is_barred());
    // The quota counts on, and the time ends.
    for _ in 0..4 {
        net.send(A, B, &[1; 1_000]);
        net.run_for(secs(2));
    }
    assert!(net.peer(A, B).is_barred());
    hand_over(&mut net, A);
    assert!(net.peer(A, B).is_barred());
}

#[test]
fn sessions_counters_and_windows_go_on_without_a_handshake() {
    let mut net = Net::pair(1);
    net.connect();
    for n in 0..50_u8 {
        net.send(A, B, &[n; 40]);
        net.send(B, A, &[n; 40]);
    }
    net.run_for(secs(1));
    let handshakes = (net.stats(A).initiations_sent, net.stats(B).initiations_sent);
    let drops = net.hosts[A].drops + net.hosts[B].drops;
    let old = net.log.clone();
    for host in [A, B, A] {
        hand_over(&mut net, host);
        net.send(A, B, b"there");
        net.send(B, A, b"back");
        net.run_for(secs(1));
        for host in [A, B] {
            let last = net.hosts[host].delivered.last().expect("a packet");
            assert_eq!(last, if host == A { &b"back"[..] } else { b"there" });
        }
    }
    assert_eq!(net.hosts[A].drops + net.hosts[B].drops, drops);
    // Nothing that came before the hand-over is taken again.
    let delivered = [A, B].map(|host| net.hosts[host].delivered.len());
    for datagram in old.into_iter().filter(|old| old.kind() == "data") {
        net.replay(datagram);
    }
    net.run_for(secs(1));
    assert_eq!(
        [A, B].map(|host| net.hosts[host].delivered.len()),
        delivered
    );
    let after = (net.stats(A).initiations_sent, net.stats(B).initiations_sent);
    assert_eq!(after, handshakes);
    assert_counters_are_new(&net);
}

/// At any moment: while a handshake is under way, before it is confirmed, while both rekey.
#[test]
fn hand_overs_at_any_moment_lose_no_packet() {
    for seed in 0..40 {
        let mut net = Net::pair(seed);
        net.weather.delay_min = 1;
        net.weather.delay_max = 400;
        for n in 0..150_u64 {
            let (from, to) = if n % 3 == 0 { (B, A) } else { (A, B) };
            if n > 2 || from == A {
                net.send(from, to, &n.to_le_bytes());
            }
            let pause = net.random.below(3000);
            net.run_for(millis(pause));
            let host = usize::from(net.random.chance(50));
            hand_over(&mut net, host);
        }
        net.run_for(secs(10));
        for host in [A, B] {
            let delivered = &net.hosts[host].delivered;
            let once: BTreeSet<_> = delivered.iter().collect();
            assert_eq!(once.len(), delivered.len(), "a packet came twice ({seed})");
        }
        let all = net.hosts[A].delivered.len() + net.hosts[B].delivered.len();
        assert!(all >= 149, "{all} of 150 came ({seed})");
        assert_counters_are_new(&net);
        // As often as without any hand-over: every two minutes.
        let initiations = net.stats(A).initiations_sent + net.stats(B).initiations_sent;
        assert!(initiations <= 6, "{initiations} initiations ({seed})");
    }
}

/// The addresses of a name and a race between them, and the limit of a path.
#[test]
fn what_is_known_of_the_way_to_a_peer_goes_along() {
    let mut net = Net::pair(5);
    let addrs = ["[2001:db8::2]:51820", "192.0.2.2:51820"].map(|text| text.parse().unwrap());
    net.hosts[B].aliases = vec![addrs[0]];
    net.black_holes.push(|datagram| datagram.to.is_ipv6());
    net.apply(A, &peer(B, |peer| peer.endpoint = Some(addrs[0])));
    let now = net.now;
    let device = &mut net.hosts[A].device;
    device.set_candidates(now, &public_key(B), Some(&addrs));
    net.send(A, B, b"first");
    hand_over(&mut net, A);
    net.hosts[A].device.probe_paths(Some(1420));
    // The frame that waited is left behind; the copy of the initiation for the next address is not.
    net.run_for(limits::STAGGER + millis(30));
    let endpoint = net.peer(A, B).endpoint().map(|to| to.addr);
    assert_eq!(endpoint, Some(addrs[1]));
    assert_eq!(net.sent(A, "initiation", START).len(), 2);

    let ip = |n| std::net::IpAddr::from([10, 0, 0, n]);
    assert!(
        net.peer(A, B).sample(1400, ip(1), ip(2)),
        "a session is there"
    );
    let peer = net.peer(A, B);
    net.event(A, &peer);
    while let Some(probe) = net.probes.pop() {
        if probe.len <= 1300 && peer.probe_answered(probe.id, probe.sequence) == Some(true) {
            net.event(A, &peer);
        }
        if net.probes.is_empty() {
            net.run_for(secs(1));
        }
    }
    let limit = peer.path_limit();
    assert!(limit.is_some());
    hand_over(&mut net, A);
    assert_eq!(net.peer(A, B).path_limit(), limit);
}

#[test]
fn who_gave_sessions_up_seals_with_none_of_them() {
    let mut net = Net::pair(3);
    net.connect();
    let session = net.session(A, B);
    let now = net.now;
    records(&mut net.hosts[A].device, now);
    net.hosts[A].device.gave_up_sessions(now);
    assert!(session.reserve(now, 1).is_err());
    net.send(A, B, b"after a new handshake");
    net.run_for(secs(6));
    let last = net.hosts[B].delivered.last().expect("a packet");
    assert_eq!(last, b"after a new handshake");
    assert_ne!(net.session(A, B).local_index(), session.local_index());
}

#[test]
fn records_that_were_changed_panic_nowhere_and_make_no_half_a_device() {
    let mut net = Net::pair(4);
    net.connect();
    net.apply(A, &DeviceChange::default());
    let now = net.now;
    let good = records(&mut net.hosts[A].device, now);
    assert!(import(&good, now).is_ok());
    let mut random = Random(4);
    for at in 0..good.len() {
        let mut missing = good.clone();
        missing.remove(at);
        assert!(import(&missing, now).is_err(), "record {at} is missing");
        let mut twice = good.clone();
        twice.insert(at, good[at].clone());
        assert!(import(&twice, now).is_err(), "record {at} is there twice");
        for len in 0..good[at].len() {
            let mut short = good.clone();
            short[at].truncate(len);
            assert!(import(&short, now).is_err(), "record {at} has {len} bytes");
        }
        for _ in 0..2000 {
            let mut other = good.clone();
            let place = usize::try_from(random.below(good[at].len() as u64)).unwrap();
            other[at][place] ^= 1 << random.below(8);
            // A key that is another one still makes a device.
            let _ = import(&other, now);
        }
    }
    assert!(import(&[], now).is_err());
}

/// Under load, who is expected by the one process needs no cookie of the other.
#[test]
fn who_is_expected_goes_along() {
    let mut net = Net::pair(6);
    net.connect();
    net.run_for(secs(10));
    net.under_load = true;
    // B has to expect an initiation, and A the response.
    hand_over(&mut net, B);
    let (now, sessions) = (net.now, net.sessions);
    net.hosts[A].device.probe(now, &public_key(B));
    net.drain(A);
    hand_over(&mut net, A);
    net.run_for(millis(100));
    assert_eq!(net.sessions, sessions + 2, "a new one on each side");
    assert_eq!(net.stats(A).cookies_sent + net.stats(B).cookies_sent, 0);
}
