use std::ops::Range;

use super::*;

/// Messages of each peer that are processed in 100 intervals at the end of 1,000, when peers send so
/// many in each. In an interval a thread processes 1,000 of 1,000 bytes at most; to drop one takes
/// two fifths of that time. The socket has room for what arrives in one interval.
fn processed(shares: &mut Shares, wants: &[(u32, usize)], emptied: bool) -> Vec<usize> {
    let mut processed = vec![0; wants.len()];
    let total: usize = wants.iter().map(|(_, messages)| messages).sum();
    for interval in 0..1000 {
        let now = Time::default() + INTERVAL * interval;
        shares.poll_ended(now, emptied, false);
        let mut time = 5000;
        for message in 0..total {
            // The socket mixes them.
            let mut at = message * 7919 % total;
            let sender = wants.iter().position(|(_, messages)| {
                let is_it = at < *messages;
                at = at.saturating_sub(*messages);
                is_it
            });
            let sender = sender.expect("a sender");
            if time < 5 {
                break;
            }
            if shares.admit(wants[sender].0, 1000) {
                time -= 5;
                processed[sender] += usize::from(interval >= 900);
            } else {
                time -= 2;
            }
        }
    }
    processed
}

#[test]
fn peers_that_send_too_much_get_equal_shares() {
    let wants = [(1, 750), (2, 400)];
    let got = processed(&mut Shares::default(), &wants, false);
    let most = got.iter().max().expect("peers");
    let least = got.iter().min().expect("peers");
    assert!(*most as f64 / *least as f64 <= 1.3, "{got:?}");
    assert!(got.iter().sum::<usize>() > 75_000, "{got:?}");
}

#[test]
fn a_peer_that_sends_little_loses_little() {
    let wants = [(1, 550), (2, 550), (3, 50)];
    let got = processed(&mut Shares::default(), &wants, false);
    assert!(got[2] > 4900, "{got:?}");
    assert!(got[0] + got[1] > 75_000, "{got:?}");
}

#[test]
fn a_flood_that_cannot_even_be_dropped_leaves_most_of_the_time_to_processing() {
    let wants = [(1, 3000), (2, 900), (3, 800)];
    let got = processed(&mut Shares::default(), &wants, false);
    assert!(got.iter().sum::<usize>() > 75_000, "{got:?}");
}

#[test]
fn one_bulk_peer_loses_nothing_to_pings() {
    let got = processed(&mut Shares::default(), &[(1, 997), (2, 1), (3, 2)], false);
    assert_eq!(got, [99_700, 100, 200]);
}

#[test]
fn nothing_is_dropped_while_the_queue_empties() {
    let got = processed(&mut Shares::default(), &[(1, 700), (2, 300)], true);
    assert_eq!(got, [70_000, 30_000]);
}

#[test]
fn a_queue_that_stands_costs_the_largest_share_little_at_first() {
    let mut shares = Shares::default();
    shares.poll_ended(Time::default(), false, false);
    for _ in 0..700 {
        assert!(shares.admit(1, 1000));
    }
    for _ in 0..300 {
        assert!(shares.admit(2, 1000));
    }
    shares.poll_ended(Time::default() + INTERVAL, false, false);
    let admitted = (0..700).filter(|_| shares.admit(1, 1000)).count();
    assert!((660..700).contains(&admitted), "{admitted}");
    assert!((0..300).all(|_| shares.admit(2, 1000)));
}

#[test]
fn what_is_kept_of_peers_is_bounded() {
    let mut shares = Shares::default();
    shares.poll_ended(Time::default(), false, false);
    for peer in 0..100_000 {
        assert!(shares.admit(peer, 1000));
    }
    assert_eq!(shares.peers.len(), MAX_PEERS);
}

/// What a peer's messages met in the last fifth of some seconds.
#[derive(Clone, Debug, Default)]
struct Met {
    processed: usize,
    /// Because the socket had no room.
    lost: usize,
    dropped: usize,
    /// The longest time in the socket, in milliseconds.
    waited: usize,
}

/// Peers send so many messages a millisecond to a socket with room for 6,000, in these seconds. In a
/// millisecond a thread processes 125, or drops two and a half times as many.
fn flood(shares: &mut Shares, wants: &[(u32, usize)], seconds: Range<usize>) -> Vec<Met> {
    let mut met = vec![Met::default(); wants.len()];
    let mut queue = std::collections::VecDeque::new();
    let mut lost = false;
    let last_fifth = seconds.end * 1000 - seconds.len() * 200;
    for now in seconds.start * 1000..seconds.end * 1000 {
        let counts = now >= last_fifth;
        let most = wants.iter().map(|(_, wants)| *wants).max().unwrap_or(0);
        for n in 0..most {
            // The socket mixes them.
            for (at, (peer, wants)) in wants.iter().enumerate() {
                if n * wants / most == (n + 1) * wants / most {
                    continue;
                }
                if queue.len() < 6000 {
                    queue.push_back((at, *peer, now));
                } else {
                    lost = true;
                    met[at].lost += usize::from(counts);
                }
            }
        }
        // A poll takes 64 messages at most.
        let mut time = 625;
        while time >= 5 {
            let polled = queue.len().min(64);
            for (at, peer, arrived) in queue.drain(..polled) {
                let is_admitted = shares.admit(peer, 1000);
                time -= if is_admitted { 5 } else { 2 };
                if counts {
                    let met = &mut met[at];
                    met.processed += usize::from(is_admitted);
                    met.dropped += usize::from(!is_admitted);
                    met.waited = met.waited.max(now - arrived);
                }
            }
            let time = Time::default() + Duration::from_millis(now as u64);
            shares.poll_ended(time, polled < 64, std::mem::take(&mut lost));
            if polled < 64 {
                break;
            }
        }
    }
    met
}

#[test]
fn a_peer_that_floods_neither_delays_others_nor_costs_them_packets() {
    let met = flood(&mut Shares::default(), &[(1, 190), (2, 1)], 0..10);
    let [flooder, other] = &met[..] else {
        panic!("{met:?}");
    };
    assert_eq!((other.lost, other.dropped), (0, 0), "{met:?}");
    assert!(other.waited <= 10, "{met:?}");
    // Dropping takes time, too: two thirds of what is processed without a flood are left.
    assert!(flooder.processed > 2000 * 125 * 3 / 5, "{met:?}");
}

#[test]
fn peers_that_send_much_share_equally_beside_a_flood() {
    let met = flood(&mut Shares::default(), &[(1, 130), (2, 60), (3, 1)], 0..10);
    assert!(met.iter().all(|met| met.lost == 0), "{met:?}");
    assert_eq!(met[2].dropped, 0, "{met:?}");
    assert!(met[0].processed < met[1].processed * 13 / 10, "{met:?}");
}

#[test]
fn a_flood_alone_loses_nothing_to_a_peer_that_is_silent() {
    let met = flood(&mut Shares::default(), &[(1, 250)], 0..5);
    assert_eq!(met[0].dropped, 0, "{met:?}");
}

#[test]
fn nothing_is_dropped_soon_after_a_flood() {
    let mut shares = Shares::default();
    flood(&mut shares, &[(1, 190), (2, 1)], 0..5);
    let met = flood(&mut shares, &[(1, 100), (2, 1)], 5..10);
    assert_eq!(met[0].dropped, 0, "{met:?}");
}
