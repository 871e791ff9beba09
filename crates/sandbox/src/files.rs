//! Landlock: which files the process may open, in any of its threads.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath,
    PathFd, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus,
    Scope,
};

/// The version of Landlock that is known here; the kernel may know less.
const KNOWN: ABI = ABI::V6;

/// The hardware's clock, behind a link.
const CLOCK: &str = "/sys/class/rtc/rtc0/since_epoch";

/// Files that a C library reads to look a name up, the modules of nsswitch.conf(5) included: they are
/// libraries, and some have data and sockets of their own.
const READ_FOR_NAMES: [&str; 24] = [
    "/etc/default/nss",
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
    "/etc/mdns.allow",
    "/etc/nsswitch.conf",
    "/etc/resolv.conf",
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/nix/store",
    "/gnu/store",
    "/run/NetworkManager",
    "/run/avahi-daemon",
    "/run/connman",
    "/run/nscd",
    "/run/resolvconf",
    "/run/systemd/resolve",
    "/var/lib/libvirt/dnsmasq",
    "/var/lib/sss",
];

/// Device and inode of what is read to look names up: what a process may read that limits itself
/// now. Links are followed, as they are where a file is opened. A file that has been replaced, made or
/// removed since is another one.
pub fn files_for_names() -> Vec<Option<(u64, u64)>> {
    let identity = |path: &&str| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    };
    READ_FOR_NAMES.iter().map(identity).collect()
}

/// The port that may be connected to by TCP to look names up.
const DNS: u16 = 53;

/// Where a process has its sockets and other files.
#[derive(Clone, Debug, Default)]
pub struct SandboxFolders {
    /// Folders in and below which it makes and removes files. They must exist.
    pub own: Vec<PathBuf>,
    /// The folder in and below which it removes empty directories.
    pub removable_in: Option<PathBuf>,
    /// The group that it may give files to.
    pub group: Option<u32>,
}

/// Takes all files from the calling thread and those that it starts, TCP, and abstract sockets of
/// others. Signals stay: a hand-over may have to kill. False where the kernel cannot.
pub(crate) fn limit() -> Result<bool, RulesetError> {
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::AbstractUnixSocket)?
        .create()?;
    Ok(rules.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
}

/// Limits the calling thread and those that it starts to reading what it takes to look names up, to
/// TCP towards DNS, and to signals and abstract sockets of their own. False where the kernel cannot.
pub(crate) fn limit_to_names() -> Result<bool, RulesetError> {
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()?
        .add_rule(NetPort::new(DNS, AccessNet::ConnectTcp))?;
    let rules = allow_names(rules)?;
    Ok(rules.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
}

/// Limits the calling thread and those that it starts to removing files from `folders`, to reading what it
/// takes to look `names` up, if they are to be, and to abstract sockets of their own. TCP is what a proxy is
/// for. False where the kernel cannot.
pub(crate) fn limit_proxy(folders: &SandboxFolders, names: bool) -> Result<bool, RulesetError> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .scope(Scope::AbstractUnixSocket)?
        .create()?;
    if names {
        rules = allow_names(rules)?;
    }
    for folder in &folders.own {
        rules = allow(rules, folder, AccessFs::ReadDir | AccessFs::RemoveFile)?;
    }
    Ok(rules.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
}

/// Limits the calling thread and those that it starts to reading what is in and below the folders `read`, to
/// files of its own in `own`, to signals and abstract sockets of their own, and to TCP towards these `ports`, and
/// what it takes to look names up if there are any. False where the kernel cannot.
pub(crate) fn limit_agent(
    read: &[PathBuf],
    own: &Path,
    ports: &[u16],
) -> Result<bool, RulesetError> {
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()?;
    let writing = AccessFs::WriteFile | AccessFs::Truncate;
    let files = AccessFs::MakeReg | AccessFs::RemoveFile;
    let mut rules = allow(rules, own, reading() | writing | files)?;
    for folder in read {
        rules = allow(rules, folder, reading())?;
    }
    if !ports.is_empty() {
        rules = allow_names(rules)?;
        for port in ports.iter().chain(&[DNS]) {
            rules = rules.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
        }
    }
    Ok(rules.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
}

/// Limits the calling thread and those that it starts to `folders`, to the devices, to what tells
/// namespaces apart, and to signals and abstract sockets of their own. False where the kernel cannot.
pub(crate) fn limit_helper(folders: &SandboxFolders) -> Result<bool, RulesetError> {
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()?;
    let rules = allow(rules, Path::new("/proc"), reading())?;
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    let rules = allow(rules, Path::new("/dev/net/tun"), device)?;
    let rules = allow(rules, Path::new("/dev/kmsg"), AccessFs::ReadFile.into())?;
    let mut rules = allow(rules, Path::new(CLOCK), AccessFs::ReadFile.into())?;
    let own = AccessFs::ReadFile
        | AccessFs::ReadDir
        | AccessFs::WriteFile
        | AccessFs::MakeReg
        | AccessFs::MakeSock
        | AccessFs::MakeDir
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir;
    for folder in &folders.own {
        rules = allow(rules, folder, own)?;
    }
    if let Some(parent) = &folders.removable_in {
        rules = allow(rules, parent, AccessFs::RemoveDir.into())?;
    }
    Ok(rules.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
}

/// Allows to read what it takes to look names up.
fn allow_names(mut rules: RulesetCreated) -> Result<RulesetCreated, RulesetError> {
    for path in READ_FOR_NAMES.map(Path::new) {
        let access = match path.is_dir() {
            true => reading(),
            false => AccessFs::ReadFile.into(),
        };
        rules = allow(rules, path, access)?;
    }
    Ok(rules)
}

fn reading() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::ReadDir
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
