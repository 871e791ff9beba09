//! Panics, and what they end.
//!
//! A thread of the engine works for several interfaces. What it does for one of them is contained: a
//! panic there ends that interface, which says why, and the thread goes on with the others. A panic
//! anywhere else ends the thread, and every interface that has an [`EndGuard`](crate::shared::common::EndGuard) there.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does something for one interface. A panic is an error that ends it.
///
/// What was changed half belongs to that interface, which is not used any more: locks are open again,
/// and its ordered queue may stay closed. What the thread has for all interfaces, the caller replaces.
pub(crate) fn contain<R>(work: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        #[cfg(debug_assertions)]
        crate::thread::progress::panicked();
        Err(io::Error::other(format!(
            "{} panicked, which is a defect of this program: {}",
            this_thread(),
            text(&*panic)
        )))
    })
}

/// The calling thread, for a message.
pub(crate) fn this_thread() -> String {
    let this = std::thread::current();
    format!("the thread {}", this.name().unwrap_or("without a name"))
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("it does not say why")
}
