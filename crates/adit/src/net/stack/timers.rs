//! When connections want to be looked at.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::clock::Micros;

/// Times with whom they are for. One that was set is not taken back: who is woken looks whether it is time.
#[derive(Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Micros, u64)>>,
}

impl Timers {
    pub(super) fn set(&mut self, at: Micros, whom: u64) {
        self.heap.push(Reverse((at, whom)));
    }

    /// The earliest time.
    pub(super) fn next(&self) -> Option<Micros> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// The next whose time has come, and that time.
    pub(super) fn due(&mut self, now: Micros) -> Option<(Micros, u64)> {
        let Reverse((at, _)) = self.heap.peek()?;
        if *at > now {
            return None;
        }
        self.heap.pop().map(|Reverse(due)| due)
    }
}
