//! Which shard owns queues, and how it is woken, also while that changes (invariant 6).
//!
//! ```text
//!   a thread with something   1. leaves it                2. is_due: false → true   3. wakes the owner
//!   the owner                 1. is_due: true → false     2. looks at everything
//!   the old owner             1. names the new one        2. hands the queues over; that one looks
//! ```
//!
//! Between 2 and 3 the owner may change. Then the old one is woken, in vain. The new one looks in any
//! case: if it does so before 2, step 3 finds it.

use std::sync::Arc;

use crate::thread::sync::{AtomicBool, Ordering, Swap};

/// The owner of queues, an `S`.
pub(crate) struct Ownership<S> {
    owner: Swap<S>,
    /// The owner knows that there is something for it.
    is_due: AtomicBool,
}

impl<S> Ownership<S> {
    pub(crate) fn new(owner: Arc<S>) -> Self {
        Self {
            owner: Swap::new(owner),
            is_due: AtomicBool::new(false),
        }
    }

    pub(crate) fn owner(&self) -> Arc<S> {
        self.owner.load_full()
    }

    /// Something was left: has `wake` wake the owner, unless it is going to look anyway.
    pub(crate) fn wake(&self, wake: impl FnOnce(&S)) {
        if !self.is_due.swap(true, Ordering::AcqRel) {
            wake(&self.owner());
        }
    }

    /// The owner looks: from now on it has to be told again.
    pub(crate) fn looks(&self) {
        self.is_due.swap(false, Ordering::AcqRel);
    }

    /// Another one owns the queues, and [looks](Self::looks) at them once it has them.
    pub(crate) fn change(&self, owner: Arc<S>) {
        self.owner.store(owner);
    }

    #[cfg(debug_assertions)]
    pub(crate) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Acquire)
    }
}
