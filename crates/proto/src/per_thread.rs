//! Counters that many threads write, and few read.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads that write without sharing a cache line.
const COPIES: usize = 8;

/// Counters of which each thread writes its own copy. What was counted is the sum of all copies.
#[derive(Default)]
pub struct PerThread<C>([Aligned<C>; COPIES]);

/// No cache line is of two, nor any pair of lines that is fetched together.
#[derive(Default)]
#[repr(align(128))]
struct Aligned<C>(C);

impl<C> PerThread<C> {
    /// The copy of the calling thread. Of more threads than there are copies, some share one.
    pub fn own(&self) -> &C {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
        }
        let number = NUMBER.with(|number| *number);
        &self.0[number % COPIES].0
    }

    /// All copies.
    pub fn all(&self) -> impl Iterator<Item = &C> {
        self.0.iter().map(|copy| &copy.0)
    }
}

impl<C> fmt::Debug for PerThread<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PerThread").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn threads_share_no_cache_line_and_the_sum_is_of_all() {
        let counters = PerThread::<AtomicU64>::default();
        let all_there = Barrier::new(COPIES);
        let lines: HashSet<usize> = std::thread::scope(|scope| {
            let count = || {
                let own = counters.own();
                own.fetch_add(3, Ordering::Relaxed);
                assert!(std::ptr::eq(own, counters.own()));
                all_there.wait();
                std::ptr::from_ref(own).addr() / 128
            };
            let threads: Vec<_> = (0..COPIES).map(|_| scope.spawn(count)).collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            ended.map(|line| line.expect("no panic")).collect()
        });
        // Threads of other tests may have had numbers between theirs.
        assert!(lines.len() > COPIES / 4, "{lines:?}");
        let counted = counters.all().map(|own| own.load(Ordering::Relaxed));
        assert_eq!(counted.sum::<u64>(), 3 * COPIES as u64);
    }
}
