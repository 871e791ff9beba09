//! One budget for all connections.

/// The least that a connection gets for both rings, and the most.
const LEAST: usize = 4 << 10;
const MOST: usize = 4 << 20;
/// What a connection gets while less than half is left, at most.
const SMALL: usize = 16 << 10;
/// What a connection takes that has nothing to carry, and what one takes beside its rings while it has.
const RECORD: usize = 1 << 10;
const SOCKET: usize = 2 << 10;

/// Bytes that connections may have, and those that they have.
///
/// A connection has rings while it has something to carry: an eighth of what is above half, so that a few
/// have long windows. Half is for small ones, so that there may be many. Of the last eighth new connections
/// get nothing, so that those that are open go on.
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

    /// Whether others may soon want what a connection has that carries nothing.
    pub(super) fn is_tight(&self) -> bool {
        self.reserved > self.total / 8 * 5
    }

    /// Reserves what a new connection takes, and its rings; `None` if there is too little left.
    pub(super) fn admit(&mut self) -> Option<[usize; 2]> {
        let left = self.total.saturating_sub(self.reserved);
        if left < self.total / 8 + RECORD + SOCKET + LEAST {
            return None;
        }
        self.reserved += RECORD;
        self.reserve()
    }

    /// Reserves rings, to receive and to transmit; `None` if there is too little left.
    pub(super) fn reserve(&mut self) -> Option<[usize; 2]> {
        let left = self.total.checked_sub(self.reserved + SOCKET)?;
        if left < LEAST {
            return None;
        }
        let large = left.saturating_sub(self.total / 2) / 8;
        let small = (left / 2048).clamp(LEAST, SMALL);
        let ring = (large.clamp(small, MOST) / 2).next_multiple_of(1024);
        self.reserved += SOCKET + 2 * ring;
        Some([ring, ring])
    }

    /// Reserves what it takes to say a last thing: whatever is left, since that is soon over.
    pub(super) fn reserve_last(&mut self) -> [usize; 2] {
        self.reserved += SOCKET;
        [0, 0]
    }

    /// A connection has no rings any more.
    pub(super) fn release(&mut self, rings: [usize; 2]) {
        self.reserved -= SOCKET + rings.iter().sum::<usize>();
    }

    /// A connection without rings has ended.
    pub(super) fn forget(&mut self) {
        self.reserved -= RECORD;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_connections_get_much_and_the_last_a_little() {
        let mut budget = Budget::new(64 << 20);
        let first = budget.admit().expect("all of it");
        assert!(first[0] >= 2 << 20, "{first:?}");
        let mut rings = vec![first];
        rings.extend(std::iter::from_fn(|| budget.admit()));
        assert!(rings.is_sorted_by(|before, after| before >= after));
        assert!(rings.len() > 1_000, "{}", rings.len());
        // Those that are open have what is left.
        let count = rings.len();
        rings.extend(std::iter::from_fn(|| budget.reserve()));
        assert!(rings.len() > count + 500, "{}", rings.len());
        assert_eq!(rings.last(), Some(&[LEAST / 2; 2]));
        assert!(budget.reserved() <= 64 << 20 && budget.is_tight());
        rings.into_iter().for_each(|rings| budget.release(rings));
        (0..count).for_each(|_| budget.forget());
        assert_eq!(budget.reserved(), 0);
    }

    #[test]
    fn nothing_is_had_of_too_little() {
        let least = LEAST + SOCKET;
        assert_eq!(Budget::new(least - 1).reserve(), None);
        let mut budget = Budget::new(least);
        assert_eq!(budget.reserve(), Some([LEAST / 2; 2]));
        assert_eq!((budget.reserve(), budget.admit()), (None, None));
    }
}
