//! A control group, of version 1 or 2, that gives a process a part of a CPU and of memory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::sandbox::Failure;

const ROOT: &str = "/sys/fs/cgroup";
/// Microseconds of CPU time in each [`PERIOD`]: a quarter.
const QUOTA: u32 = 25_000;
const PERIOD: u32 = 100_000;
/// Octets of memory.
const MEMORY: u32 = 64 << 20;

/// A process keeps to its limits until this is dropped.
pub(super) struct Limits {
    daemon: u32,
    /// A group for CPU time and one for memory, or one for both.
    groups: Vec<PathBuf>,
}

impl Limits {
    /// Puts limits on a process and all its threads.
    pub(super) fn on(daemon: u32) -> Result<Self, Failure> {
        let root = Path::new(ROOT);
        let name = format!("adit-lab-{}", std::process::id());
        let mut limits = Self {
            daemon,
            groups: Vec::new(),
        };
        let done = match root.join("cgroup.controllers").exists() {
            true => limits.unified(root, &name),
            false => limits.by_controller(root, &name),
        };
        done.map_err(|error| format!("{ROOT}: no control group for CPU and memory: {error}"))?;
        Ok(limits)
    }

    fn unified(&mut self, root: &Path, name: &str) -> io::Result<()> {
        fs::write(root.join("cgroup.subtree_control"), "+cpu +memory")?;
        let group = self.group(root.join(name))?;
        fs::write(group.join("cpu.max"), format!("{QUOTA} {PERIOD}"))?;
        fs::write(group.join("memory.max"), MEMORY.to_string())?;
        self.enter(&group)
    }

    fn by_controller(&mut self, root: &Path, name: &str) -> io::Result<()> {
        let cpu = self.group(root.join("cpu").join(name))?;
        fs::write(cpu.join("cpu.cfs_period_us"), PERIOD.to_string())?;
        fs::write(cpu.join("cpu.cfs_quota_us"), QUOTA.to_string())?;
        self.enter(&cpu)?;
        let memory = self.group(root.join("memory").join(name))?;
        fs::write(memory.join("memory.limit_in_bytes"), MEMORY.to_string())?;
        self.enter(&memory)
    }

    /// A new group; an earlier run that was killed may have left it.
    fn group(&mut self, path: PathBuf) -> io::Result<PathBuf> {
        match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => self.groups.push(path.clone()),
        }
        Ok(path)
    }

    fn enter(&self, group: &Path) -> io::Result<()> {
        fs::write(group.join("cgroup.procs"), self.daemon.to_string())
    }
}

impl Drop for Limits {
    fn drop(&mut self) {
        for group in &self.groups {
            if let Some(parent) = group.parent() {
                // Nothing is left to do if the process has ended.
                let _ = fs::write(parent.join("cgroup.procs"), self.daemon.to_string());
            }
            let _ = fs::remove_dir(group);
        }
    }
}
