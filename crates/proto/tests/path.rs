//! The longest packet that the path to a peer takes whole, found by probes inside the tunnel.

mod common;

use std::net::IpAddr;

use adit_proto::Time;
use common::*;

const MTU: u16 = 1420;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A packet of this length leaves A.
fn send(net: &mut Net, len: usize) {
    let peer = net.peer(A, B);
    if peer.path_concerns(|| len) && peer.sample(len, ip("10.0.0.1"), ip("10.0.0.2")) {
        net.event(A, &peer);
    }
}

/// What is between the two.
#[derive(Clone, Copy)]
struct Between {
    /// The longest packet that passes whole.
    limit: u16,
    /// Longer ones pass in fragments.
    fragments: bool,
    /// The longest packet that A itself sends whole, and the longest that its device takes.
    known: u16,
    device: u16,
    /// The longest packet that passes if ICMP is right.
    told: u16,
}

/// Longer packets are lost, and A knows nothing of that.
fn black_hole(limit: u16) -> Between {
    Between {
        limit,
        fragments: false,
        known: u16::MAX,
        device: u16::MAX,
        told: u16::MAX,
    }
}

/// A knows that longer packets leave in fragments.
fn known(known: u16) -> Between {
    Between {
        known,
        fragments: true,
        ..black_hole(u16::MAX)
    }
}

/// The answers that come back, until no more probes are sent. Returns how many were.
fn answer(net: &mut Net, path: Between) -> usize {
    let (peer, mut count) = (net.peer(A, B), 0);
    for _ in 0..40 {
        let probes = std::mem::take(&mut net.probes);
        if probes.is_empty() {
            return count;
        }
        count += probes.len();
        if probes.iter().any(|it| it.is_whole && it.len > path.known) {
            let now = net.now;
            let device = &mut net.hosts[A].device;
            device.path_refused(now, &peer, path.known, path.device);
            net.drain(A);
            continue;
        }
        if probes.iter().any(|it| it.is_whole && it.len > path.told) {
            net.hosts[A].device.path_told(&peer, path.told);
        }
        for probe in &probes {
            let (id, sequence) = (probe.id, probe.sequence);
            assert_eq!(peer.probe_answered(id ^ 1, sequence), None, "of another");
            let passes = match probe.is_whole {
                true => probe.len <= path.limit.min(path.known),
                false => path.fragments,
            };
            if passes && peer.probe_answered(id, sequence) == Some(true) {
                net.event(A, &peer);
            }
        }
        net.run_for(secs(1));
    }
    panic!("the search does not end");
}

/// The next session is there, and a long packet leaves on it.
fn send_on_next_session(net: &mut Net) {
    net.run_for(secs(130));
    net.send(A, B, b"rekey");
    net.run_for(secs(1));
    send(net, 1400);
}

fn probing(seed: u64) -> Net {
    let mut net = Net::pair(seed);
    net.hosts[A].device.probe_paths(Some(MTU));
    net.connect();
    net
}

#[test]
fn a_long_packet_begins_one_search_for_each_session() {
    let mut net = probing(1);
    let peer = net.peer(A, B);
    assert!(!peer.path_concerns(|| 1000), "a short packet");
    send(&mut net, 1400);
    assert_eq!(net.probes.len(), 2);
    assert!(peer.is_probing());
    answer(&mut net, black_hole(MTU));
    assert_eq!(peer.path_limit(), None);
    assert!(!peer.is_probing() && !peer.path_concerns(|| 1400));
    // With the next session, the path has become narrower.
    send_on_next_session(&mut net);
    answer(&mut net, black_hole(1300));
    let limit = usize::from(peer.path_limit().expect("a limit"));
    assert!((1285..=1300).contains(&limit), "{limit}");
    assert!(peer.path_concerns(|| limit + 1) && !peer.path_concerns(|| limit));
    assert!(peer.loses_longer());
    assert!(net.news.contains(&(A, "path")));
    // And wider again.
    send_on_next_session(&mut net);
    answer(&mut net, black_hole(MTU));
    assert_eq!((peer.path_limit(), peer.loses_longer()), (None, false));
}

#[test]
fn what_the_host_knows_of_the_path_is_the_limit_until_it_forgets() {
    let mut net = probing(1);
    let peer = net.peer(A, B);
    send(&mut net, 1400);
    let sent = answer(&mut net, known(1220));
    assert_eq!(
        (peer.path_limit(), peer.loses_longer()),
        (Some(1216), false)
    );
    assert_eq!(sent, 2 + 3, "one round after that which was refused");
    assert_eq!(net.news.iter().filter(|it| it.1 == "path").count(), 1);
    // A router drops fragments now.
    send_on_next_session(&mut net);
    let lossy = Between {
        fragments: false,
        ..known(1220)
    };
    answer(&mut net, lossy);
    assert_eq!((peer.path_limit(), peer.loses_longer()), (Some(1216), true));
    send_on_next_session(&mut net);
    answer(&mut net, known(u16::MAX));
    assert_eq!((peer.path_limit(), peer.loses_longer()), (None, false));
}

/// How often A has doubted what ICMP said.
fn doubts(net: &Net) -> usize {
    let doubts = net.news.iter().filter(|it| **it == (A, "doubts ICMP"));
    doubts.count()
}

#[test]
fn what_icmp_said_is_doubted_if_a_longer_packet_is_answered() {
    let mut net = probing(1);
    let peer = net.peer(A, B);
    // 552 bytes over IPv4, the least that Linux believes, and 1,280 over IPv6.
    for (count, told) in [(1, 552 - 60), (2, 1280 - 80)] {
        send_on_next_session(&mut net);
        let forged = Between {
            told,
            ..black_hole(MTU)
        };
        let sent = answer(&mut net, forged);
        assert_eq!((doubts(&net), sent), (count, 2), "one round");
        assert_eq!(peer.path_limit(), None, "senders were told nothing");
    }
    // It is narrower than its MTU, and wider than ICMP says.
    send_on_next_session(&mut net);
    let forged = Between {
        told: 1200,
        ..black_hole(1300)
    };
    answer(&mut net, forged);
    assert_eq!((doubts(&net), peer.path_limit()), (3, Some(1296)));
    // A device that needs fragments is none of ICMP's business.
    send_on_next_session(&mut net);
    let small = Between {
        told: 492,
        device: 1300,
        ..known(1300)
    };
    answer(&mut net, small);
    assert_eq!((doubts(&net), peer.path_limit()), (4, None));
}

#[test]
fn what_icmp_said_is_believed_where_it_is_right() {
    let mut net = probing(1);
    let peer = net.peer(A, B);
    for fragments in [true, false] {
        for told in [1220, 1300, 540] {
            send_on_next_session(&mut net);
            let narrow = Between {
                told,
                fragments,
                ..black_hole(told)
            };
            answer(&mut net, narrow);
            let limit = told / 16 * 16;
            let limit = Some(limit).filter(|limit| !fragments || *limit >= 1200);
            assert_eq!(peer.path_limit(), limit, "{told}");
            assert_eq!(peer.loses_longer(), !fragments);
        }
    }
    assert_eq!(doubts(&net), 0);
}

/// Then nothing says otherwise.
#[test]
fn what_icmp_said_is_the_limit_if_the_peer_answers_no_probe() {
    let mut net = probing(1);
    let peer = net.peer(A, B);
    let silent = |told| Between {
        told,
        ..black_hole(0)
    };
    for (told, limit, count) in [
        (1200, Some(1200), 0),
        (1300, Some(1296), 0),
        (1199, None, 1),
    ] {
        send_on_next_session(&mut net);
        answer(&mut net, silent(told));
        assert_eq!((peer.path_limit(), doubts(&net)), (limit, count), "{told}");
    }
    // It has been forgotten.
    send_on_next_session(&mut net);
    answer(&mut net, silent(u16::MAX));
    assert_eq!((peer.path_limit(), doubts(&net)), (None, 1));
}

#[test]
fn a_device_that_takes_less_than_the_mtu_needs_is_no_limit() {
    let mut net = probing(1);
    let peer = net.peer(A, B);
    let small = Between {
        device: 1419,
        ..known(1300)
    };
    for (device, limit) in [(1419, None), (1420, Some(1296)), (1300, None)] {
        send_on_next_session(&mut net);
        answer(&mut net, Between { device, ..small });
        assert_eq!(peer.path_limit(), limit, "{device}");
    }
    assert_eq!(net.news.iter().filter(|it| it.1 == "path").count(), 2);
    // Nor where nobody answers.
    send_on_next_session(&mut net);
    let silent = Between {
        limit: 0,
        fragments: false,
        ..small
    };
    answer(&mut net, silent);
    assert_eq!(peer.path_limit(), None);
    // It is one where fragments are lost.
    send_on_next_session(&mut net);
    let lossy = Between {
        fragments: false,
        ..small
    };
    answer(&mut net, lossy);
    assert_eq!((peer.path_limit(), peer.loses_longer()), (Some(1296), true));
}

#[test]
fn an_mtu_that_is_set_to_what_the_path_takes_has_no_limit_left() {
    for (mtu, limit) in [
        (1350, Some(1328)),
        (1344, Some(1328)),
        (1343, None),
        (1300, None),
    ] {
        let mut net = probing(1);
        let peer = net.peer(A, B);
        send(&mut net, 1400);
        answer(&mut net, black_hole(1340));
        assert_eq!(peer.path_limit(), Some(1328));
        net.hosts[A].device.probe_paths(Some(MTU));
        assert!(!peer.path_concerns(|| 1300), "it is the same");
        net.hosts[A].device.probe_paths(Some(mtu));
        assert_eq!(peer.path_limit(), limit, "{mtu}");
        send(&mut net, mtu.into());
        answer(&mut net, black_hole(1340));
        let limit = (mtu > 1340).then_some(1328);
        assert_eq!(peer.path_limit(), limit, "{mtu}");
    }
}

#[test]
fn a_search_does_not_outlive_its_mtu() {
    let mut net = probing(1);
    let peer = net.peer(A, B);
    send(&mut net, 1400);
    net.hosts[A].device.probe_paths(Some(1340));
    assert!(!peer.is_probing());
    net.run_for(secs(5));
    net.probes.clear();
    send(&mut net, 1340);
    assert_eq!(net.probes[0].len, 1340);
    answer(&mut net, black_hole(1340));
    assert_eq!(peer.path_limit(), None);
}

#[test]
fn a_router_that_fragments_leads_to_a_limit_that_costs_nothing() {
    let mut net = probing(1);
    let peer = net.peer(A, B);
    send(&mut net, 1400);
    let cuts = Between {
        fragments: true,
        ..black_hole(1300)
    };
    answer(&mut net, cuts);
    assert_eq!(
        (peer.path_limit(), peer.loses_longer()),
        (Some(1296), false)
    );
}

/// Less than IPv6 takes anywhere is what somebody might forge.
#[test]
fn where_fragments_arrive_no_very_short_packets_are_asked_for() {
    let mut net = probing(1);
    let peer = net.peer(A, B);
    for (mtu, limit) in [(1199, None), (1200, Some(1200)), (524, None)] {
        send_on_next_session(&mut net);
        answer(&mut net, known(mtu));
        assert_eq!(peer.path_limit(), limit, "{mtu}");
    }
}

#[test]
fn what_the_host_knows_counts_also_if_the_peer_answers_no_probe() {
    let mut net = probing(1);
    let peer = net.peer(A, B);
    let silent = |known| Between {
        known,
        ..black_hole(0)
    };
    send(&mut net, 1400);
    answer(&mut net, silent(1300));
    assert_eq!(
        (peer.path_limit(), peer.loses_longer()),
        (Some(1296), false)
    );
    send_on_next_session(&mut net);
    answer(&mut net, silent(u16::MAX));
    assert_eq!(peer.path_limit(), None);
    // That packets are lost was found with the help of the peer, and stays.
    send_on_next_session(&mut net);
    answer(&mut net, black_hole(1300));
    send_on_next_session(&mut net);
    answer(&mut net, silent(u16::MAX));
    assert_eq!((peer.path_limit(), peer.loses_longer()), (Some(1296), true));
}

#[test]
fn datagrams_that_the_kernel_finds_too_long_begin_one_search_at_a_time() {
    let mut net = probing(1);
    let peer = net.peer(A, B);
    send(&mut net, 1400);
    peer.look_at_path();
    assert!(!peer.path_concerns(|| 1400), "a search is under way");
    answer(&mut net, black_hole(MTU));
    send(&mut net, 1400);
    assert!(net.probes.is_empty());
    peer.look_at_path();
    send(&mut net, 1400);
    answer(&mut net, known(1300));
    assert_eq!(peer.path_limit(), Some(1296));
}

#[test]
fn senders_are_told_once_in_a_millisecond_while_packets_arrive() {
    let peer = probing(1).peer(A, B);
    let told = |at: u64| peer.tells_limit(Time(at));
    let told = [1_000_000, 1_999_999, 2_000_000, 2_999_999, 9_000_000].map(told);
    assert_eq!(told, [true, false, true, false, true]);
}

#[test]
fn a_peer_that_answers_no_probe_gets_no_limit() {
    let mut net = probing(1);
    send(&mut net, 1400);
    answer(&mut net, black_hole(0));
    assert_eq!(net.peer(A, B).path_limit(), None);
    assert!(!net.peer(A, B).is_probing());
}

#[test]
fn nothing_is_probed_unless_the_embedder_asks() {
    let mut net = Net::pair(1);
    net.connect();
    send(&mut net, 1400);
    assert!(net.probes.is_empty());
}

/// Of a path that is narrow a limit is known; then the peer is reached by another one.
#[test]
fn a_limit_goes_with_the_path_that_it_was_found_on() {
    // By its address, by ours, and because routing says so.
    for way in 0..3 {
        for (path, limit) in [(black_hole(MTU), None), (black_hole(1299), Some(1296))] {
            let mut net = probing(way);
            let peer = net.peer(A, B);
            let source = |ip: &str| {
                let mut to = peer.endpoint().expect("an endpoint");
                to.src = Some(adit_proto::Source {
                    ip: ip.parse().unwrap(),
                    ifindex: 1,
                });
                to
            };
            peer.roam(source("198.51.100.1"));
            send(&mut net, 1400);
            answer(&mut net, black_hole(1250));
            assert_eq!(peer.path_limit(), Some(1248));
            let now = net.now;
            match way {
                0 => peer.roam(
                    "192.0.2.77:51820"
                        .parse::<std::net::SocketAddr>()
                        .unwrap()
                        .into(),
                ),
                1 => peer.roam(source("198.51.100.2")),
                _ => net.hosts[A].device.path_changed(now, &peer),
            }
            // What arrives wakes the control thread. No long packet leaves.
            let session = net.session(A, B);
            if peer.received(now, &session, 32, false) {
                net.event(A, &peer);
            }
            net.drain(A);
            answer(&mut net, path);
            assert_eq!(peer.path_limit(), limit, "{way}");
        }
    }
}

#[test]
fn a_limit_of_another_path_goes_if_nobody_answers() {
    let mut net = probing(1);
    let peer = net.peer(A, B);
    send(&mut net, 1400);
    answer(&mut net, black_hole(1250));
    let now = net.now;
    net.hosts[A].device.path_changed(now, &peer);
    net.drain(A);
    answer(&mut net, black_hole(0));
    assert_eq!((peer.path_limit(), peer.loses_longer()), (None, false));
    // The next long packet asks again.
    send(&mut net, 1400);
    answer(&mut net, black_hole(1250));
    assert_eq!(peer.path_limit(), Some(1248));
}

#[test]
fn a_limit_is_renewed_without_a_long_packet() {
    let mut net = probing(1);
    let peer = net.peer(A, B);
    send(&mut net, 1400);
    answer(&mut net, black_hole(1250));
    assert_eq!(peer.path_limit(), Some(1248));
    net.run_for(secs(130));
    net.send(A, B, b"rekey");
    net.run_for(millis(500));
    answer(&mut net, black_hole(MTU));
    assert_eq!((peer.path_limit(), peer.loses_longer()), (None, false));
}

#[test]
fn a_peer_that_moves_all_the_time_costs_few_probes() {
    let mut net = probing(1);
    let peer = net.peer(A, B);
    send(&mut net, 1400);
    answer(&mut net, black_hole(1250));
    let mut count = 0;
    for _ in 0..1000 {
        let now = net.now;
        net.hosts[A].device.path_changed(now, &peer);
        net.drain(A);
        net.run_for(millis(10));
        count += std::mem::take(&mut net.probes).len();
    }
    assert!((5..200).contains(&count), "{count} probes in 10 s");
}
