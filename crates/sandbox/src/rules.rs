//! The process that sets the packet filter's elements for an agent.

use std::collections::HashMap;
use std::io;

use rustix::thread::{CapabilitySet, set_no_new_privs};

use crate::{
    Otherwise, Parts, Role, SANDBOX, Sandbox, files, filters_of, forbid_dumps, install, intruders,
    keep,
};

/// Limits the process, which must have one thread only, for good, to requests to the packet filter of its network
/// namespace: it has CAP_NET_ADMIN, if it had it, no other capability and no file.
///
/// What the kernel does not have is left out.
///
/// # Errors
///
/// no_new_privs is unknown to the kernel (before Linux 3.5).
pub fn begin_rules() -> io::Result<()> {
    begin_rules_with(Otherwise::HERE)
}

/// [`begin_rules`], and what a call does that the process may not make.
///
/// # Errors
///
/// Those of [`begin_rules`].
pub fn begin_rules_with(otherwise: Otherwise) -> io::Result<()> {
    set_no_new_privs(true)?;
    let mut parts = Parts {
        no_dumps: forbid_dumps(),
        files: files::limit().unwrap_or(false),
        capabilities: keep(CapabilitySet::NET_ADMIN).is_ok(),
        ..Parts::default()
    };
    // A hash table takes random numbers, which are not in the list.
    let none = HashMap::new();
    let filters = filters_of(Role::Rules, otherwise)?;
    parts.system_calls = install(&[intruders()?])
        .and_then(|()| install(&filters))
        .is_ok();
    let _ = SANDBOX.set(Sandbox {
        parts,
        filters: none,
    });
    Ok(())
}
