//! Whether the user wants to stop. A program that asks for it ends its waits early and reports what
//! it has.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

static ASKED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// From now on SIGINT, SIGTERM and SIGHUP end no process, but every wait of this crate.
///
/// # Errors
/// Those of sigaction(2).
pub fn watch() -> io::Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ASKED))?;
    }
    Ok(())
}

/// Whether one of the signals came since [`watch`]. Every loop that takes long looks here.
pub fn interrupted() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Does nothing as long as no signal came.
///
/// # Errors
/// [`io::ErrorKind::Interrupted`] if one came.
pub fn check() -> io::Result<()> {
    if interrupted() {
        return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
    }
    Ok(())
}
