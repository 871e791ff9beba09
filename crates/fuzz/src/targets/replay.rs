//! The replay window against a model that remembers everything.

use std::collections::HashSet;

use adit_proto::ReplayWindow;
use adit_proto::limits::{REJECT_AFTER_MESSAGES, WINDOW_PACKETS};

use crate::source::InputBytes;

/// Remembers everything.
#[derive(Default)]
pub(crate) struct Model {
    seen: HashSet<u64>,
    greatest: u64,
}

impl Model {
    pub(crate) fn commit(&mut self, counter: u64) -> bool {
        let end = u128::from(counter) + u128::from(WINDOW_PACKETS);
        if counter >= REJECT_AFTER_MESSAGES || end <= u128::from(self.greatest) {
            return false;
        }
        self.greatest = self.greatest.max(counter);
        self.seen.insert(counter)
    }
}

pub(crate) fn run(input: &[u8]) {
    let mut source = InputBytes::new(input);
    let (mut window, mut model) = (ReplayWindow::new(), Model::default());
    let mut at = 0_u64;
    while !source.is_empty() {
        let (how, step) = (source.u8(), u64::from(source.u16()));
        at = match how % 8 {
            0 | 1 => at.wrapping_add(step % 70),
            2 => at.wrapping_sub(step % 70),
            3 => at.wrapping_add(step),
            4 => at.wrapping_sub(step),
            5 => model
                .greatest
                .wrapping_sub(WINDOW_PACKETS)
                .wrapping_add(step % 130)
                .wrapping_sub(65),
            6 => REJECT_AFTER_MESSAGES
                .wrapping_add(step % 64)
                .wrapping_sub(32),
            _ => source.u64(),
        };
        assert_eq!(window.commit(at), model.commit(at), "counter {at}");
    }
}
