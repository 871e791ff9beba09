//! Landlock: which files the process may open, whoever in it asks.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus,
};

/// What is known of Landlock here; the kernel may know less.
const KNOWN: ABI = ABI::V6;

/// Read, by the keeper alone: how much memory and how many CPUs there are, the CPU time of threads,
/// the name of the program that changed the configuration, the namespace of a thread. What others
/// must not know of a process below /proc takes the right to trace it, which Landlock takes away.
const READ: [&str; 3] = ["/proc", "/sys/fs/cgroup", "/sys/devices/system/cpu"];

/// Where a process has its sockets and other files.
#[derive(Clone, Debug, Default)]
pub struct Folders {
    /// It makes and removes files there and below. They must exist.
    pub own: Vec<PathBuf>,
    /// It removes empty directories there and below.
    pub removable_in: Option<PathBuf>,
}

/// Limits the calling thread and those that it starts to `folders`, to the devices, and to what is
/// read of the kernel. It also takes away TCP. Signals stay: a hand-over may have to kill. False where
/// the kernel cannot.
pub(crate) fn limit(folders: &Folders) -> Result<bool, RulesetError> {
    let everything = AccessFs::from_all(KNOWN);
    let mut rules = Ruleset::default()
        // Without this right (Linux before 5.19) no socket could be moved to where it belongs.
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::Refer)?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(everything)?
        .handle_access(AccessNet::from_all(KNOWN))?
        .create()?;
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    for path in READ {
        rules = allow(rules, Path::new(path), read)?;
    }
    rules = allow(rules, Path::new("/dev/net/tun"), device)?;
    rules = allow(
        rules,
        Path::new("/dev/null"),
        AccessFs::ReadFile | AccessFs::WriteFile,
    )?;
    rules = allow(rules, Path::new("/dev/kmsg"), AccessFs::ReadFile.into())?;
    let own = AccessFs::ReadFile
        | AccessFs::ReadDir
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeSock
        | AccessFs::MakeDir
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
        | AccessFs::Refer;
    for folder in &folders.own {
        rules = allow(rules, folder, own)?;
    }
    if let Some(parent) = &folders.removable_in {
        rules = allow(rules, parent, AccessFs::RemoveDir.into())?;
    }
    Ok(rules.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
}

/// A path that does not exist needs no rule.
fn allow(
    rules: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    match PathFd::new(path) {
        Ok(fd) => rules.add_rule(PathBeneath::new(fd, access)),
        Err(_) => Ok(rules),
    }
}
