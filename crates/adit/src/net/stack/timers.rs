//! When connections want to be looked at.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::clock::Micros;

/// Times, each with the number of its connection. One that was set stays set: a connection that is woken looks whether
/// its time has come.
#[derive(Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Micros, u64)>>,
}

impl Timers {
    pub(super) fn set(&mut self, at: Micros, connection: u64) {
        self.heap.push(Reverse((at, connection)));
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
