//! Clocks, locks and wake-ups of any thread of the engine.

pub(crate) mod arrivals;
pub(crate) mod clock;
pub(crate) mod contain;
pub(crate) mod lock;
pub(crate) mod ownership;
pub(crate) mod placement;
pub(crate) mod poll;
pub(crate) mod priority;
#[cfg(debug_assertions)]
pub mod progress;
pub(crate) mod random;
pub(crate) mod start;
pub(crate) mod sync;
pub(crate) mod wake;
