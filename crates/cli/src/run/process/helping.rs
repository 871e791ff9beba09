//! The process that has the capabilities and the files of this one, and where those are.

use std::path::{Path, PathBuf};

use adit_ctl::{status, uapi};
use adit_io::helper::{self, Folders};
use rustix::process::{Gid, getgroups};
use rustix::thread::set_thread_groups;

use crate::demo::status_directory;
use crate::failure::{Context, Result};
use crate::run::child::{self, Guard};

/// The process that has the capabilities and the files. It removes the folders at the end, if they
/// are this process's own.
pub(super) struct Helping {
    pub(super) folders: Folders,
    _guard: Guard,
}

impl Helping {
    /// Starts it for these interfaces.
    pub(super) fn start(folders: Folders, interfaces: &[String]) -> Result<Self> {
        let failed =
            || "cannot start a process that keeps the rights (--no-sandbox does without)".into();
        let arguments = crate::helper::arguments(&folders, interfaces).context(failed)?;
        let (guard, socket) = child::start(&arguments).context(failed)?;
        helper::connect(socket, [folders.control.clone(), folders.status.clone()]);
        Ok(Self {
            folders,
            _guard: guard,
        })
    }
}

impl Drop for Helping {
    fn drop(&mut self) {
        if self.folders.are_removed {
            helper::files::leave(&self.folders.control, &self.folders.status);
        }
    }
}

/// A member of the group of the status sockets may give them to it without a capability.
pub(crate) fn join_group(group: Option<u32>) {
    if let (Some(group), Ok(mut groups)) = (group.map(Gid::from_raw), getgroups())
        && !groups.contains(&group)
    {
        groups.push(group);
        // Without the right to it, the group has to be one of the process's.
        let _ = set_thread_groups(&groups);
    }
}

pub(super) fn status_dir(control_dir: Option<&Path>) -> PathBuf {
    let dir = control_dir.map(status_directory);
    dir.unwrap_or_else(|| status::DIR.into())
}

/// Where the process has its sockets and files. A directory that is named is removed at the end.
pub(super) fn folders(control_dir: Option<&Path>, group: Option<u32>) -> Folders {
    Folders {
        control: control_dir.unwrap_or(Path::new(uapi::DIR)).to_owned(),
        status: status_dir(control_dir),
        are_removed: control_dir.is_some(),
        group,
    }
}
