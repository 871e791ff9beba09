//! What is sent anew.

use crate::{LARGE, OtherEnd, SECOND};

#[test]
fn a_silent_path_does_not_get_all_that_was_on_its_way_again() {
    let mut end = OtherEnd::new(LARGE, 4000);
    // Round trips in which the congestion window grows.
    for round in 0.. {
        let mut sent = 0;
        for _ in 0..4 {
            end.write(50_000);
            sent += end.step().iter().map(|segment| segment.len).sum::<u32>();
        }
        if sent == 200_000 {
            break;
        }
        assert!(round < 20, "{sent}");
        end.next = end.next.wrapping_add(sent);
        end.acknowledge();
        end.run(SECOND, OtherEnd::take);
    }
    // Nothing is answered any more.
    let mut most = 0;
    for _ in 0..6000 {
        let sent = end.step();
        most = most.max(sent.iter().map(|segment| segment.len).sum());
    }
    // A packet of 64 KB, and the congestion window of a beginning.
    assert!((20_000..80_000).contains(&most), "{most}");
}
