//! Threads of the engine, which a sandbox may have limits for.

#[cfg(feature = "host")]
pub(crate) use adit_sandbox::{Role, confine, start};
#[cfg(not(feature = "host"))]
pub(crate) use without::{RoleWithout as Role, confine, start};

/// Without a sandbox.
#[cfg(not(feature = "host"))]
mod without {
    use std::io;
    use std::thread::{Builder, JoinHandle};

    /// What a thread does.
    pub(crate) enum RoleWithout {
        Packets,
        Control,
    }

    /// Limits nothing.
    pub(crate) fn confine(_role: RoleWithout) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn start(
        name: String,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        Builder::new().name(name).spawn(work)
    }
}
