use super::*;

/// Messages of each peer that are processed in 100 intervals at the end of 1,000, when peers send so
/// many in each. In an interval a thread processes 1,000 of 1,000 bytes at most; to drop one takes
/// two fifths of that time. The socket has room for what arrives in one interval.
fn processed(shares: &mut Shares, wants: &[(u32, usize)], emptied: bool) -> Vec<usize> {
    let mut processed = vec![0; wants.len()];
    let total: usize = wants.iter().map(|(_, messages)| messages).sum();
    for interval in 0..1000 {
        let now = Time::default() + INTERVAL * interval;
        shares.poll_ended(now, emptied);
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
    shares.poll_ended(Time::default(), false);
    for _ in 0..700 {
        assert!(shares.admit(1, 1000));
    }
    for _ in 0..300 {
        assert!(shares.admit(2, 1000));
    }
    shares.poll_ended(Time::default() + INTERVAL, false);
    let admitted = (0..700).filter(|_| shares.admit(1, 1000)).count();
    assert!((660..700).contains(&admitted), "{admitted}");
    assert!((0..300).all(|_| shares.admit(2, 1000)));
}

#[test]
fn what_is_kept_of_peers_is_bounded() {
    let mut shares = Shares::default();
    shares.poll_ended(Time::default(), false);
    for peer in 0..100_000 {
        assert!(shares.admit(peer, 1000));
    }
    assert_eq!(shares.peers.len(), MAX_PEERS);
}
