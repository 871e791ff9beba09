//! What becomes of a panic in what the owner of a socket does for a client.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does something of a socket's owner on the thread that all sockets share. A panic is the text of
/// what panicked.
///
/// What was changed half belongs to a conversation, which ends, or to the owner, which is told.
pub(super) fn contain<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        text.unwrap_or_else(|| "it does not say why".to_owned())
    })
}
