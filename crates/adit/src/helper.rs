//! The process that has the capabilities, for one that serves interfaces: `adit --helper`.
//!
//! What serves interfaces has keys, reads what anybody sends, and has no capability. This process
//! does what takes one, a short list (`adit_io::helper`), and ends with the other.

use adit_sandbox::begin_helper;
use rustix::process::Signal;

use crate::failure::{Context, Result};

/// The argument that starts it.
pub(crate) const ARGUMENT: &str = "--helper";

/// Answers requests until the other end is closed, of a process that is started for interfaces of
/// these names.
pub(crate) fn serve(interfaces: &[String]) -> Result<()> {
    let failed = || "cannot do for another process what takes a capability".to_owned();
    let _ = rustix::thread::set_name(c"adit-helper");
    adit_io::close_inherited(&[]).context(failed)?;
    let socket = adit_io::duplicate(0).context(failed)?;
    // It may be in a request that takes long.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).context(failed)?;
    begin_helper().context(failed)?;
    adit_io::helper::serve(&socket, interfaces).context(failed)
}
