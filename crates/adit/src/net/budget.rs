//! One budget for the rings of all connections.

/// The least that a connection gets for both directions, and the most.
const LEAST: usize = 4 << 10;
const MOST: usize = 4 << 20;
/// What a connection gets while less than half is left, at most.
const SMALL: usize = 16 << 10;

/// Bytes that connections may have, and those that they have.
///
/// A connection gets an eighth of what is above half, so that a few have long windows. Half is for small
/// ones, so that there may be many. What is reserved takes memory only once it was written.
#[derive(Debug)]
pub(super) struct Budget {
    total: usize,
    reserved: usize,
}

impl Budget {
    pub(super) fn new(total: usize) -> Self {
        Self { total, reserved: 0 }
    }

    pub(super) fn reserved(&self) -> usize {
        self.reserved
    }

    /// Reserves the rings of a connection, to receive and to transmit; `None` if there is too little left.
    pub(super) fn reserve(&mut self) -> Option<[usize; 2]> {
        let left = self.total - self.reserved;
        if left < LEAST {
            return None;
        }
        let large = left.saturating_sub(self.total / 2) / 8;
        let small = (left / 2048).clamp(LEAST, SMALL);
        let ring = (large.clamp(small, MOST) / 2).next_multiple_of(1024);
        self.reserved += 2 * ring;
        Some([ring, ring])
    }

    pub(super) fn release(&mut self, bytes: usize) {
        self.reserved -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_connections_get_much_and_the_last_a_little() {
        let mut budget = Budget::new(64 << 20);
        let first = budget.reserve().expect("all of it");
        assert_eq!(first, [2 << 20, 2 << 20]);
        let mut rings = vec![first];
        rings.extend(std::iter::from_fn(|| budget.reserve()));
        assert!(rings.is_sorted_by(|before, after| before >= after));
        assert!(rings.len() > 4_000, "{}", rings.len());
        assert_eq!(rings.last(), Some(&[LEAST / 2; 2]));
        assert!(budget.reserved() <= 64 << 20);
        for [receive, transmit] in rings {
            budget.release(receive + transmit);
        }
        assert_eq!(budget.reserved(), 0);
    }

    #[test]
    fn nothing_is_had_of_too_little() {
        assert_eq!(Budget::new(LEAST - 1).reserve(), None);
        let mut least = Budget::new(LEAST);
        assert_eq!(least.reserve(), Some([LEAST / 2; 2]));
        assert_eq!(least.reserve(), None);
    }
}
