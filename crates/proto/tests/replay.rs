//! The replay window: a numbered table, and a deliberately naive oracle.

use std::collections::HashSet;

use adit_proto::ReplayWindow;
use adit_proto::limits::{REJECT_AFTER_MESSAGES, WINDOW_PACKETS};
use proptest::prelude::*;

const W: u64 = WINDOW_PACKETS;
const END: u64 = REJECT_AFTER_MESSAGES;

#[test]
fn every_row_of_the_table_holds_after_those_above_it() {
    #[rustfmt::skip]
    let table = [
        /*  1 */ (0, true),
        /*  2 */ (0, false),
        /*  3 */ (1, true),
        /*  4 */ (1, false),
        /*  5 */ (9, true),
        /*  6 */ (8, true),
        /*  7 */ (7, true),
        /*  8 */ (7, false),
        /*  9 */ (W, true),
        /* 10 */ (W - 1, true),
        /* 11 */ (W - 1, false),
        /* 12 */ (0, false), // older than the window
        /* 13 */ (2, true), // still in it
        /* 14 */ (2, false),
        /* 15 */ (W + 16, true),
        /* 16 */ (3, false),
        /* 17 */ (W + 16, false),
        /* 18 */ (W * 4, true),
        /* 19 */ (W * 4 - (W - 1), true), // the last one in the window
        /* 20 */ (W * 4 - W, false), // the first one out of it
        /* 21 */ (10, false),
        /* 22 */ (W * 4 - (W - 2), true),
        /* 23 */ (W * 4 - (W - 1), false),
        /* 24 */ (W * 4 + 1, true),
        /* 25 */ (W * 4 - (W - 1), false),
        /* 26 */ (1 << 40, true),
        /* 27 */ ((1 << 40) - 1, true),
        /* 28 */ (W * 4 + 2, false),
        /* 29 */ (END, false), // beyond the limit, and moves nothing
        /* 30 */ (u64::MAX, false),
        /* 31 */ ((1 << 40) - 2, true),
        /* 32 */ (END - 1, true),
        /* 33 */ (END - 1, false),
        /* 34 */ (END - 2, true),
        /* 35 */ (END - W, true),
        /* 36 */ (END - W - 1, false),
    ];
    let mut window = ReplayWindow::new();
    for (row, (counter, fresh)) in table.into_iter().enumerate() {
        assert_eq!(window.commit(counter), fresh, "row {}", row + 1);
    }
}

#[test]
fn a_whole_window_backwards_is_fresh_once() {
    let mut window = ReplayWindow::new();
    assert!(window.commit(3 * W));
    assert!(
        (2 * W + 1..3 * W)
            .rev()
            .all(|counter| window.commit(counter))
    );
    assert!((0..=3 * W).all(|counter| !window.commit(counter)));
}

/// Remembers everything.
#[derive(Default)]
struct Naive {
    seen: HashSet<u64>,
    greatest: u64,
}

impl Naive {
    fn commit(&mut self, counter: u64) -> bool {
        let too_old = u128::from(counter) + u128::from(W) <= u128::from(self.greatest);
        if counter >= END || too_old {
            return false;
        }
        self.greatest = self.greatest.max(counter);
        self.seen.insert(counter)
    }
}

proptest! {
    #[test]
    fn the_window_agrees_with_one_that_remembers_everything(
        start in prop_oneof![Just(0_u64), 0..u64::MAX, END - 100_000..END],
        steps in prop::collection::vec(
            prop_oneof![4 => -100_i64..100, 2 => -9000_i64..9000, 1 => -20_000_i64..100_000],
            0..500,
        ),
    ) {
        let (mut window, mut naive) = (ReplayWindow::new(), Naive::default());
        let mut at = start;
        for step in steps {
            at = at.saturating_add_signed(step);
            // A look before the packet is authenticated says the same and changes nothing.
            let looked = window.may_accept(at);
            prop_assert_eq!(looked, window.may_accept(at), "counter {}", at);
            prop_assert_eq!(looked, naive.commit(at), "counter {}", at);
            prop_assert_eq!(looked, window.commit(at), "counter {}", at);
        }
    }
}
