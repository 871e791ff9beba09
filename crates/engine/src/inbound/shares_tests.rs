use std::ops::Range;

use super::*;

fn account(peer: u32) -> Account {
    Account {
        peer,
        is_known: true,
    }
}

/// What a poll found where the kernel does not tell how much waits.
fn found(emptied: bool, lost: bool) -> PollResult {
    PollResult {
        taken: 64,
        emptied,
        waiting: None,
        lost,
    }
}

/// Messages of each peer that are processed in 100 intervals at the end of 1,000, when peers send so
/// many in each. In an interval a thread processes 1,000 of 1,000 bytes at most; to drop one takes
/// two fifths of that time. The socket has room for what arrives in one interval.
fn processed(shares: &mut Shares, wants: &[(u32, usize)], emptied: bool) -> Vec<usize> {
    let mut processed = vec![0; wants.len()];
    let total: usize = wants.iter().map(|(_, messages)| messages).sum();
    for interval in 0..1000 {
        let now = Time::default() + INTERVAL * interval;
        shares.poll_ended(now, found(emptied, false));
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
            if shares.admit(account(wants[sender].0), 1000) {
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
    shares.poll_ended(Time::default(), found(false, false));
    for _ in 0..700 {
        assert!(shares.admit(account(1), 1000));
    }
    for _ in 0..300 {
        assert!(shares.admit(account(2), 1000));
    }
    shares.poll_ended(Time::default() + INTERVAL, found(false, false));
    let admitted = (0..700).filter(|_| shares.admit(account(1), 1000)).count();
    assert!((660..700).contains(&admitted), "{admitted}");
    assert!((0..300).all(|_| shares.admit(account(2), 1000)));
}

/// An interval in which peers send so many messages, and what a poll finds at its end. Which of them
/// were admitted.
fn interval(shares: &mut Shares, now: &mut Time, wants: [usize; 2], emptied: bool) -> [usize; 2] {
    let admitted = [(1, wants[0]), (2, wants[1])].map(|(peer, messages)| {
        let admit = |_: &usize| shares.admit(account(peer), 1000);
        (0..messages).filter(admit).count()
    });
    *now = *now + INTERVAL;
    shares.poll_ended(*now, found(emptied, false));
    admitted
}

#[test]
fn a_peer_that_sent_more_while_the_queue_emptied_exceeds_its_share_when_it_stands() {
    let (mut shares, mut now) = (Shares::default(), Time::default());
    interval(&mut shares, &mut now, [0, 0], false);
    for _ in 0..6 {
        interval(&mut shares, &mut now, [800, 200], true);
    }
    for _ in 0..3 {
        let admitted = interval(&mut shares, &mut now, [400, 600], false);
        assert_eq!(admitted, [400, 600]);
    }
    for _ in 0..2 {
        interval(&mut shares, &mut now, [800, 200], false);
    }
    let [more, less] = interval(&mut shares, &mut now, [800, 200], false);
    assert!(more < 800 && less == 200, "{more}, {less}");
}

#[test]
fn what_peers_sent_is_forgotten_when_the_queue_has_not_stood_for_long() {
    let (mut shares, mut now) = (Shares::default(), Time::default());
    interval(&mut shares, &mut now, [0, 0], false);
    for past in 0..INTERVALS {
        assert!(shares.are_in_force(), "{past}");
        interval(&mut shares, &mut now, [500, 500], true);
    }
    assert!(!shares.are_in_force() && shares.peers.is_empty());
    // Nor does it count when nothing was polled meanwhile.
    interval(&mut shares, &mut now, [0, 0], false);
    interval(&mut shares, &mut now, [900, 100], false);
    now = now + Duration::from_secs(1);
    interval(&mut shares, &mut now, [0, 0], false);
    let [before, after] = [0, 1].map(|_| interval(&mut shares, &mut now, [300, 700], false));
    assert_eq!((before, after[0]), ([300, 700], 300));
    let [_, most] = interval(&mut shares, &mut now, [300, 700], false);
    assert!(most < 700, "{most}");
}

#[test]
fn a_queue_that_peers_with_equal_shares_fill_is_no_flood() {
    let (mut shares, mut now) = (Shares::default(), Time::default());
    let waiting = PollResult {
        waiting: Some(5000),
        ..found(false, false)
    };
    for wants in [[510, 490], [900, 100]] {
        for _ in 0..100 {
            assert!(shares.flood_until.is_none());
            for (messages, peer) in wants.into_iter().zip(1..) {
                (0..messages).for_each(|_| _ = shares.admit(account(peer), 1000));
            }
            now = now + INTERVAL;
            shares.poll_ended(now, waiting);
            if wants[0] > 600 && shares.flood_until.is_some() {
                return;
            }
        }
    }
    panic!("one that sends much more is one");
}

#[test]
fn what_is_kept_of_peers_is_bounded() {
    let mut shares = Shares::default();
    shares.poll_ended(Time::default(), found(false, false));
    for peer in 0..100_000 {
        assert!(shares.admit(account(peer), 1000));
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

/// What arrives at a socket with room for 6,000 messages.
#[derive(Default)]
struct Scene {
    /// How many messages of each peer a millisecond. Where it is one, it is short.
    wants: Vec<(u32, usize)>,
    /// So many of them wait already.
    waiting: usize,
    /// The kernel tells how many wait.
    is_told: bool,
}

/// What happens in these seconds. In a millisecond a thread processes 125 messages, or drops two and
/// a half times as many.
fn flood(shares: &mut Shares, scene: &Scene, seconds: Range<usize>) -> Vec<Met> {
    let wants = &scene.wants;
    let mut met = vec![Met::default(); wants.len()];
    let mut queue = std::collections::VecDeque::new();
    let mut lost = false;
    let mut time: i32 = 0;
    let begin = seconds.start * 1000;
    let last_fifth = seconds.end * 1000 - seconds.len() * 200;
    for now in begin..seconds.end * 1000 {
        let counts = now >= last_fifth;
        let most = wants.iter().map(|(_, wants)| *wants).max().unwrap_or(0);
        let mut arrive = |met: &mut Vec<Met>| {
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
            queue.len()
        };
        while arrive(&mut met) < scene.waiting && now == begin {}
        // A poll takes 64 messages at most.
        time = time.min(0) + 625;
        while time >= 5 {
            let polled = queue.len().min(64);
            for (at, peer, arrived) in queue.drain(..polled) {
                let work = if wants[at].1 == 1 { 500 } else { 1000 };
                let is_admitted = shares.admit(account(peer), work);
                time -= if is_admitted { 5 } else { 2 };
                if counts {
                    let met = &mut met[at];
                    met.processed += usize::from(is_admitted);
                    met.dropped += usize::from(!is_admitted);
                    met.waited = met.waited.max(now - arrived);
                }
            }
            let ended = Time::default() + Duration::from_millis(now as u64);
            let found = PollResult {
                taken: polled as u64,
                waiting: scene.is_told.then_some(queue.len() as u64),
                ..found(polled < 64, std::mem::take(&mut lost))
            };
            shares.poll_ended(ended, found);
            if polled < 64 {
                break;
            }
        }
    }
    met
}

/// The same where nothing waits at first, and the kernel tells, or does not, how much does later:
/// that makes no difference to what the test is about.
fn flood_of(wants: &[(u32, usize)], seconds: usize, check: impl Fn(&[Met])) {
    for is_told in [false, true] {
        let scene = Scene {
            wants: wants.to_vec(),
            is_told,
            ..Scene::default()
        };
        check(&flood(&mut Shares::default(), &scene, 0..seconds));
    }
}

#[test]
fn a_peer_that_floods_neither_delays_others_nor_costs_them_packets() {
    flood_of(&[(1, 190), (2, 1)], 10, |met| {
        let [flooder, other] = met else {
            panic!("{met:?}");
        };
        assert_eq!((other.lost, other.dropped), (0, 0), "{met:?}");
        assert!(other.waited <= 10, "{met:?}");
        // Dropping takes time, too: two thirds of what is processed without a flood could be left.
        assert!(flooder.processed > 2000 * 125 / 2, "{met:?}");
    });
}

#[test]
fn peers_that_send_much_share_equally_beside_a_flood() {
    flood_of(&[(1, 130), (2, 60), (3, 1)], 10, |met| {
        assert!(met.iter().all(|met| met.lost == 0), "{met:?}");
        assert_eq!(met[2].dropped, 0, "{met:?}");
        assert!(met[0].processed < met[1].processed * 13 / 10, "{met:?}");
    });
}

#[test]
fn a_flood_alone_loses_nothing_to_a_peer_that_is_silent() {
    flood_of(&[(1, 250)], 5, |met| {
        assert_eq!(met[0].dropped, 0, "{met:?}")
    });
}

#[test]
fn nothing_is_dropped_soon_after_a_flood() {
    let mut shares = Shares::default();
    let of = |messages| Scene {
        wants: vec![(1, messages), (2, 1)],
        ..Scene::default()
    };
    flood(&mut shares, &of(190), 0..5);
    let met = flood(&mut shares, &of(100), 5..10);
    assert_eq!(met[0].dropped, 0, "{met:?}");
}

/// A flood that is processed as fast as it arrives, behind 5,000 messages.
fn standing(wants: &[(u32, usize)], is_told: bool) -> Vec<Met> {
    let scene = Scene {
        wants: wants.to_vec(),
        waiting: 5000,
        is_told,
    };
    flood(&mut Shares::default(), &scene, 0..5)
}

#[test]
fn a_queue_that_stands_and_does_not_run_over_becomes_short() {
    let wants = [(1, 124), (2, 1)];
    let met = standing(&wants, true);
    assert!(met[1].waited <= 10, "{met:?}");
    assert_eq!((met[1].lost, met[1].dropped), (0, 0), "{met:?}");
    assert!(met[0].processed > 1000 * 124 * 9 / 10, "{met:?}");
    // The kernel has to tell.
    let met = standing(&wants, false);
    assert!(met[1].waited > 30, "{met:?}");
}

#[test]
fn one_peer_alone_may_let_its_packets_wait() {
    let met = standing(&[(1, 125)], true);
    assert!(met[0].dropped == 0 && met[0].waited > 30, "{met:?}");
}

#[test]
fn peers_with_equal_shares_lose_nothing_to_a_queue_that_stands() {
    let met = standing(&[(1, 63), (2, 62)], true);
    assert!(met.iter().all(|met| met.dropped == 0), "{met:?}");
}

#[test]
fn small_datagrams_do_not_cost_others_their_time() {
    // As many bytes in small datagrams as in trains, and one of these in a thousand.
    let (mut shares, mut done) = (Shares::default(), [0; 2]);
    let trains = [(1, work(1, 128)), (2, work(45, 64_000))];
    for poll in 0..100_000 {
        let now = Time::default() + Duration::from_micros(400) * poll;
        shares.poll_ended(now, found(false, false));
        for _ in 0..500 {
            done[0] += u64::from(shares.admit(account(1), trains[0].1));
        }
        done[1] += u64::from(shares.admit(account(2), trains[1].1));
    }
    let [small, large] = done.map(|messages| messages as f64);
    let times = [small * trains[0].1 as f64, large * trains[1].1 as f64];
    assert!(large > 99_000.0 && times[0] > times[1], "{done:?}");
    assert!(small < 48_000_000.0, "{done:?}");
}
