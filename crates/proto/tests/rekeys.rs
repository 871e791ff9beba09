//! Rekeys while data flows both ways: what one side seals, the other one can open.
//!
//! Data is neither lost nor overtaken here. Handshake messages meet any fate, and either side may begin
//! a handshake at any time, also both at once.

mod common;

use std::time::Duration;

use common::*;

/// A packet each way, this often.
const EVERY: u64 = 20;
const ONE_WAY: u64 = 30;
const FATES: [Fate; 5] = [
    Fate::Arrives,
    Fate::IsLost,
    Fate::MeetsLoad,
    Fate::Waits(Duration::from_millis(150)),
    Fate::ComesTwice(Duration::from_millis(90)),
];

/// Who begins a handshake, and how long after the beginning.
type Start = &'static [(usize, u64)];

const STARTS: [Start; 6] = [
    &[(A, 0)],
    &[(B, 0)],
    &[(A, 0), (B, 0)],
    &[(A, 0), (B, 40)],
    &[(B, 0), (A, 40)],
    &[(A, 0), (B, 2500)],
];

/// Two hosts that know each other's address, without a session.
fn net(seed: u64) -> Net {
    let mut net = Net::pair(seed);
    let to = net.hosts[A].addr;
    net.apply(B, &peer(A, |peer| peer.endpoint = Some(to)));
    net.weather.delay_min = ONE_WAY;
    net.weather.delay_max = ONE_WAY;
    net
}

fn begin(net: &mut Net, host: usize) {
    let now = net.now;
    let key = public_key(1 - host);
    net.hosts[host].device.probe(now, &key);
    net.drain(host);
}

/// Data both ways, and these handshakes.
fn flow(net: &mut Net, start: Start, length: u64) {
    for at in (0..length).step_by(usize::try_from(EVERY).unwrap()) {
        for (host, when) in start {
            if (at..at + EVERY).contains(when) {
                begin(net, *host);
            }
        }
        for host in [A, B] {
            net.send(host, 1 - host, b"data");
        }
        net.run_for(millis(EVERY));
    }
}

/// No host gets data of a session that it does not know for longer than a round trip.
fn expect_known(net: &Net, what: impl std::fmt::Debug) {
    for host in [A, B] {
        let mut since = None;
        for (at, _, is_known) in net.data.iter().filter(|(_, to, _)| *to == host) {
            if *is_known {
                since = None;
                continue;
            }
            let unknown = at.since(*since.get_or_insert(*at));
            assert!(
                unknown < millis(2 * ONE_WAY),
                "for {unknown:?}, what host {host} got was of an unknown session: {what:?}"
            );
        }
    }
}

#[test]
fn data_stays_known_whatever_handshake_messages_meet() {
    const DEPTH: u32 = 4;
    for first in [STARTS[0], STARTS[2]] {
        for start in STARTS {
            let mut script = 0;
            while script < FATES.len().pow(DEPTH) {
                let digit = |n: u32| FATES[script / FATES.len().pow(n) % FATES.len()];
                let mut net = net(1);
                flow(&mut net, first, 200);
                net.run_for(secs(6));
                // The first one changes slowest: the others need not be tried where they are not sent.
                net.fates = (0..DEPTH).rev().map(digit).collect();
                flow(&mut net, start, 6_000);
                expect_known(
                    &net,
                    (
                        first,
                        start,
                        (0..DEPTH).rev().map(digit).collect::<Vec<_>>(),
                    ),
                );
                let left = u32::try_from(net.fates.len()).unwrap();
                let same = FATES.len().pow(left);
                script = (script / same + 1) * same;
            }
        }
    }
}

#[test]
fn data_stays_known_in_any_number_of_rekeys() {
    for seed in 0..15 {
        let mut net = net(seed);
        let mut random = Random(seed);
        let bad = seed % 5 * 20;
        flow(&mut net, STARTS[usize::try_from(seed % 6).unwrap()], 200);
        for _ in 0..20 {
            for _ in 0..40 {
                let other = FATES[usize::try_from(random.below(5)).unwrap()];
                let fate = if random.chance(bad) {
                    other
                } else {
                    Fate::Arrives
                };
                net.fates.push_back(fate);
            }
            let start = STARTS[usize::try_from(random.below(6)).unwrap()];
            flow(&mut net, start, 3000 + random.below(8000));
            net.fates.clear();
        }
        expect_known(&net, seed);
    }
}
