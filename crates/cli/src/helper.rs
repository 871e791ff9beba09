//! The process that has the capabilities and the files, for one that serves interfaces: `adit
//! --helper`.
//!
//! What serves interfaces has keys, reads what anybody sends, and has neither capabilities nor files.
//! This process does what takes one, a short list (`adit_io::helper`), and ends with the other.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use adit_io::helper::{Folders, HelperServer};
use adit_sandbox::begin_helper;
use rustix::process::Signal;

use crate::failure::{Context, Failure, Result};

/// The argument that starts it.
pub(crate) const ARGUMENT: &str = "--helper";
/// That the folders are removed at the end.
const REMOVED: &str = "removed";

/// The arguments for a process that has its files in these folders, and was started for interfaces of
/// these names.
///
/// # Errors
///
/// The directory that a path is relative to is gone.
pub(crate) fn arguments(
    folders: &Folders,
    interfaces: &[String],
) -> std::io::Result<Vec<OsString>> {
    let group = folders.group.map(|group| group.to_string());
    let removed = if folders.are_removed { REMOVED } else { "" };
    let mut arguments = vec![
        ARGUMENT.into(),
        std::path::absolute(&folders.control)?.into(),
        std::path::absolute(&folders.status)?.into(),
        removed.into(),
        group.unwrap_or_default().into(),
    ];
    arguments.extend(interfaces.iter().map(OsString::from));
    Ok(arguments)
}

/// Answers requests until the other end is closed.
pub(crate) fn serve(mut arguments: impl Iterator<Item = OsString>) -> Result<()> {
    let failed = || "cannot do for another process what takes a capability".to_owned();
    let missing = || Failure::Mistake("--helper is for `adit run` alone".into());
    let mut next = || arguments.next().ok_or_else(missing);
    let folders = Folders {
        control: PathBuf::from(next()?),
        status: PathBuf::from(next()?),
        are_removed: next()? == OsStr::new(REMOVED),
        group: next()?.to_str().and_then(|group| group.parse().ok()),
    };
    let interfaces = arguments.filter_map(|name| name.into_string().ok());
    let _ = rustix::thread::set_name(c"adit-helper");
    adit_io::close_inherited(&[]).context(failed)?;
    let socket = adit_io::duplicate(0).context(failed)?;
    // It may be in a request that takes long.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).context(failed)?;
    let removable_in = folders.control.parent().filter(|_| folders.are_removed);
    let sandbox = adit_sandbox::SandboxFolders {
        own: vec![folders.control.clone(), folders.status.clone()],
        removable_in: removable_in.map(Path::to_owned),
        group: folders.group,
    };
    let server = HelperServer::new(interfaces.collect(), folders);
    begin_helper(&sandbox).context(failed)?;
    server.serve(&socket).context(failed)
}
