//! The atomics by which shards and the control thread tell each other what to look at: the standard
//! library's, or, in a build with `--cfg loom`, those of [loom](https://docs.rs/loom), whose
//! scheduler tries every interleaving.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

#[cfg(loom)]
pub(crate) use modelled::{AtomicBool, AtomicU8, AtomicU64};

/// Loom takes a SeqCst access for an acquire or release one and then finds interleavings that
/// cannot be, but it models `fence(SeqCst)` as the language defines it. So a SeqCst store has such
/// a fence behind it here, and a SeqCst load one before it: a load that follows a store of the same
/// thread is then ordered after it, which is all that this protocol asks of SeqCst. A fence also
/// orders the accesses around it: what relies on a weaker access beside a SeqCst one is not
/// checked.
#[cfg(loom)]
mod modelled {
    use std::sync::atomic::Ordering;

    use loom::sync::atomic::fence;

    fn order_with_others(order: Ordering) {
        if order == Ordering::SeqCst {
            fence(Ordering::SeqCst);
        }
    }

    macro_rules! atomic {
        ($name:ident, $value:ty) => {
            pub(crate) struct $name(loom::sync::atomic::$name);

            impl $name {
                pub(crate) fn new(value: $value) -> Self {
                    Self(loom::sync::atomic::$name::new(value))
                }

                pub(crate) fn load(&self, order: Ordering) -> $value {
                    order_with_others(order);
                    self.0.load(order)
                }
            }
        };
    }

    macro_rules! store {
        ($name:ident, $value:ty) => {
            impl $name {
                pub(crate) fn store(&self, value: $value, order: Ordering) {
                    self.0.store(value, order);
                    order_with_others(order);
                }
            }
        };
    }

    /// Updates read the latest value, and a value that they are ordered with has a fence of its
    /// own.
    macro_rules! update {
        ($name:ident, $value:ty, $method:ident) => {
            impl $name {
                pub(crate) fn $method(&self, value: $value, order: Ordering) -> $value {
                    self.0.$method(value, order)
                }
            }
        };
    }

    atomic!(AtomicBool, bool);
    atomic!(AtomicU8, u8);
    atomic!(AtomicU64, u64);
    store!(AtomicBool, bool);
    store!(AtomicU8, u8);
    store!(AtomicU64, u64);
    update!(AtomicBool, bool, swap);
    update!(AtomicU8, u8, swap);
    update!(AtomicU8, u8, fetch_or);
    update!(AtomicU8, u8, fetch_and);
}
