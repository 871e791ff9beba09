//! The sandbox: what a process gives up before it starts its threads, and each thread when it
//! begins its work.
//!
//! 1. [`begin`] limits the whole process, before there are threads: no new privileges, no dumps, no
//!    tracing, memory that is not swapped out, no capability, no file, and the system calls that any
//!    thread may need.
//! 2. [`confine`] leaves to the calling thread only the system calls of its [`Role`].
//! 3. The main thread starts threads for those that are confined ([`start`], [`Starter`]). All else
//!    that takes more than their lists, another process does.
//!
//! Four processes have less: one that looks names up ([`begin_names`]), one that has the files,
//! makes the sockets and does what takes a capability ([`begin_helper`]), one that makes sockets in
//! its network namespace ([`begin_namespace`]), and one that asks its packet filter ([`begin_rules`]). A proxy ([`begin_proxy`]) makes sockets itself. What brings
//! peers from a source ([`begin_agent`]) reads its folders.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod calls;
mod files;
mod only;
mod protections;
mod role;
mod rules;
mod starts;
mod threads;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{
    DumpableBehavior, Gid, Resource, Rlimit, Uid, getrlimit, set_dumpable_behavior, setrlimit,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use rustix::time::{ClockId, clock_gettime};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};

use calls::{Call, INTRUDER, Only};
pub use files::{SandboxFolders, files_for_names};
pub use protections::{Otherwise, Parts};
pub use role::Role;
pub use rules::{begin_rules, begin_rules_with};
pub use starts::{Starter, start};
pub use threads::{register, retain_threads};

static SANDBOX: OnceLock<Sandbox> = OnceLock::new();

struct Sandbox {
    parts: Parts,
    /// None where the kernel does not take them.
    filters: HashMap<Role, Vec<BpfProgram>>,
}

/// Capabilities that the helper keeps, if it has them: for TUN devices, marks, buffers and BPF programs; low ports;
/// the kernel's log; the priority of shards; and CAP_SYS_ADMIN for devices that move to another
/// namespace.
const OF_HELPER: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::SYS_NICE)
    .union(CapabilitySet::SYSLOG);

/// Limits the process, which must have one thread only, for good. What takes a capability, and what is
/// done with files and new sockets, another process does from now on.
///
/// What the kernel does not have is left out: [`parts`] tells what is on.
///
/// # Errors
///
/// no_new_privs is unknown to the kernel (before Linux 3.5).
pub fn begin() -> io::Result<()> {
    begin_with(Otherwise::HERE)
}

/// [`begin`], and what a call does that a thread may not make.
///
/// # Errors
///
/// Those of [`begin`].
pub fn begin_with(otherwise: Otherwise) -> io::Result<()> {
    let roles = [Role::Packets, Role::Control, Role::Sockets];
    begin_threads(files::limit, (Role::Main, &roles), otherwise, &[])
}

/// Limits a proxy, which must have one thread only and have opened all that it does not open as a socket,
/// for good: it removes its sockets from `folders`, and makes no other file. Where `names` are to be looked
/// up, its threads read the single files that this takes, and no others.
/// Each of its threads is still to be confined as [`Role::Proxy`].
///
/// What the kernel does not have is left out: [`parts`] tells what is on. It takes no right.
///
/// # Errors
///
/// no_new_privs is unknown to the kernel (before Linux 3.5).
pub fn begin_proxy(folders: &SandboxFolders, names: bool) -> io::Result<()> {
    begin_proxy_with(folders, names, Otherwise::HERE)
}

/// [`begin_proxy`], and what a call does that a thread may not make.
///
/// # Errors
///
/// Those of [`begin_proxy`].
pub fn begin_proxy_with(
    folders: &SandboxFolders,
    names: bool,
    otherwise: Otherwise,
) -> io::Result<()> {
    let limit = || files::limit_proxy(folders, names);
    let more = match names {
        true => calls::of(Role::Resolver),
        false => Vec::new(),
    };
    let roles = [Role::Proxy, Role::Sockets];
    begin_threads(limit, (Role::ProxyMain, &roles), otherwise, &more)
}

/// Limits a process that brings peers from a source to an interface, which must have one thread only, for good:
/// it reads what is in and below the folders `read`, and has files of its own in `own`. If it asks a store, it
/// connects to these `ports` by TCP, and looks names up for that. Each of its threads has the same limits.
///
/// What the kernel does not have is left out: [`parts`] tells what is on. It takes no right.
///
/// # Errors
///
/// no_new_privs is unknown to the kernel (before Linux 3.5).
pub fn begin_agent(read: &[PathBuf], own: &Path, ports: &[u16]) -> io::Result<()> {
    begin_agent_with(read, own, ports, Otherwise::HERE)
}

/// [`begin_agent`], and what a call does that a thread may not make.
///
/// # Errors
///
/// Those of [`begin_agent`].
pub fn begin_agent_with(
    read: &[PathBuf],
    own: &Path,
    ports: &[u16],
    otherwise: Otherwise,
) -> io::Result<()> {
    let limit = || files::limit_agent(read, own, ports);
    let mut more = match ports {
        [] => Vec::new(),
        _ => calls::of(Role::Resolver),
    };
    // It writes its files: Landlock says which.
    more.retain(|call| !matches!(call.only, Only::Read | Only::ReadOlder));
    begin_threads(limit, (Role::Agent, &[]), otherwise, &more)
}

/// Limits the process and its `main` thread, and makes the filters of its other `roles`, who have `more`
/// calls as well.
fn begin_threads(
    limit_files: impl FnOnce() -> Result<bool, landlock::RulesetError>,
    (main, roles): (Role, &[Role]),
    otherwise: Otherwise,
    more: &[Call],
) -> io::Result<()> {
    let mut parts = Parts {
        no_dumps: forbid_dumps(),
        locked_memory: lock_memory(),
        ..Parts::default()
    };
    set_no_new_privs(true)?;
    // The library looks for the clock of the vDSO once, with calls that threads need for nothing
    // else.
    let _ = clock_gettime(ClockId::Boottime);
    parts.files = limit_files().unwrap_or(false);
    parts.capabilities = keep(CapabilitySet::empty()).is_ok();
    let mut filters = HashMap::new();
    for role in roles {
        filters.insert(*role, filters_with(*role, otherwise, more)?);
    }
    parts.system_calls = match install(&filters_with(main, otherwise, more)?) {
        Ok(()) => true,
        // The kernel has no filters, or the program that started the process lets it have none.
        Err(_) => {
            filters.clear();
            false
        }
    };
    let _ = SANDBOX.set(Sandbox { parts, filters });
    Ok(())
}

/// Takes from the process, which must have one thread only, for good, what the processes do not need
/// that it starts to look names up: it has no capability, and is nobody if it was root and may change
/// the user.
///
/// # Errors
///
/// no_new_privs is unknown to the kernel (before Linux 3.5).
pub fn begin_starting() -> io::Result<()> {
    set_no_new_privs(true)?;
    become_nobody();
    let _ = keep(CapabilitySet::empty());
    forbid_dumps();
    Ok(())
}

/// Limits the process, which must have one thread only, for good, to looking names up: it reads the
/// single files that this takes, as they are now ([`files_for_names`]), has no capability, and is
/// nobody if it was root and may change the user.
/// Each of its threads is still to be confined as [`Role::Resolver`].
///
/// What the kernel does not have is left out.
///
/// # Errors
///
/// no_new_privs is unknown to the kernel (before Linux 3.5).
pub fn begin_names() -> io::Result<()> {
    begin_names_with(Otherwise::HERE)
}

/// [`begin_names`], and what a call does that a thread may not make.
///
/// # Errors
///
/// Those of [`begin_names`].
pub fn begin_names_with(otherwise: Otherwise) -> io::Result<()> {
    set_no_new_privs(true)?;
    let files = files::limit_to_names().unwrap_or(false);
    // A user that is changed may allow dumps again.
    become_nobody();
    let mut parts = Parts {
        no_dumps: forbid_dumps(),
        files,
        capabilities: keep(CapabilitySet::empty()).is_ok(),
        ..Parts::default()
    };
    let mut filters = HashMap::new();
    parts.system_calls = install(&[intruders()?]).is_ok();
    if parts.system_calls {
        filters.insert(Role::Resolver, filters_of(Role::Resolver, otherwise)?);
    }
    let _ = SANDBOX.set(Sandbox { parts, filters });
    Ok(())
}

/// Limits the process, which must have one thread only, for good, to what others ask for: it opens the
/// TUN device and the kernel's log, and has the files in `folders`.
///
/// What the kernel does not have is left out.
///
/// # Errors
///
/// no_new_privs is unknown to the kernel (before Linux 3.5).
pub fn begin_helper(folders: &SandboxFolders) -> io::Result<()> {
    begin_helper_with(folders, Otherwise::HERE)
}

/// [`begin_helper`], and what a call does that the process may not make.
///
/// # Errors
///
/// Those of [`begin_helper`].
pub fn begin_helper_with(folders: &SandboxFolders, otherwise: Otherwise) -> io::Result<()> {
    set_no_new_privs(true)?;
    // Before Linux 5.11, BPF maps count as locked memory.
    let _ = setrlimit(Resource::Memlock, UNLIMITED);
    let mut parts = Parts {
        no_dumps: forbid_dumps(),
        files: files::limit_helper(folders).unwrap_or(false),
        capabilities: keep(OF_HELPER).is_ok(),
        ..Parts::default()
    };
    let more: Vec<Call> = folders.group.map(calls::to_group).into_iter().collect();
    parts.system_calls = install(&filters_with(Role::Helper, otherwise, &more)?).is_ok();
    let filters = HashMap::new();
    let _ = SANDBOX.set(Sandbox { parts, filters });
    Ok(())
}

/// Limits the process, which must have one thread only, for good, to making sockets in its network
/// namespace for another one: it has no capability and no file.
///
/// What the kernel does not have is left out.
///
/// # Errors
///
/// no_new_privs is unknown to the kernel (before Linux 3.5).
pub fn begin_namespace() -> io::Result<()> {
    begin_namespace_with(Otherwise::HERE)
}

/// [`begin_namespace`], and what a call does that the process may not make.
///
/// # Errors
///
/// Those of [`begin_namespace`].
pub fn begin_namespace_with(otherwise: Otherwise) -> io::Result<()> {
    set_no_new_privs(true)?;
    let mut parts = Parts {
        no_dumps: forbid_dumps(),
        files: files::limit().unwrap_or(false),
        capabilities: keep(CapabilitySet::empty()).is_ok(),
        ..Parts::default()
    };
    // A hash table takes random numbers, which are not in the list.
    let none = HashMap::new();
    let filters = filters_of(Role::Namespace, otherwise)?;
    parts.system_calls = install(&[intruders()?])
        .and_then(|()| install(&filters))
        .is_ok();
    let _ = SANDBOX.set(Sandbox {
        parts,
        filters: none,
    });
    Ok(())
}

/// Root without capabilities may still read what belongs to root, as private keys below /etc do.
/// Nothing changes where the user has no other, or the process no right to become it.
fn become_nobody() {
    // As of user_namespaces(7), where a user that has no number appears as this one.
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    let _ = set_thread_groups(&[]);
    let _ = set_thread_res_gid(group, group, group);
    let _ = set_thread_res_uid(user, user, user);
}

/// Keeps the memory of a process without a sandbox, which has keys for a moment, out of dumps and out
/// of the swap, where that is possible. It ends with execve(2); children have nothing of it.
pub fn protect_memory() {
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    lock_memory();
}

/// Which parts are on: none if the process has no sandbox.
pub fn parts() -> Parts {
    let sandbox = SANDBOX.get();
    sandbox.map_or_else(Parts::default, |sandbox| sandbox.parts)
}

/// Leaves to the calling thread what its role needs, for good; nothing happens if the process has
/// no sandbox.
///
/// # Errors
///
/// Those of seccomp(2), as when there is no memory. The thread must not go on.
pub fn confine(role: Role) -> io::Result<()> {
    register(std::thread::current().name().unwrap_or_default());
    let Some(sandbox) = SANDBOX.get() else {
        return Ok(());
    };
    // The library asks for random numbers with a thread's first hash table, and never again.
    let _ = std::hash::RandomState::new();
    if let Some(filters) = sandbox.filters.get(&role) {
        install(filters)?;
    }
    starts::set_confined();
    Ok(())
}

/// Keeps at most these capabilities of the calling thread.
fn keep(these: CapabilitySet) -> io::Result<()> {
    let own = capabilities(None)?.permitted & these;
    let sets = CapabilitySets {
        effective: own,
        permitted: own,
        inheritable: CapabilitySet::empty(),
    };
    Ok(set_capabilities(None, sets)?)
}

/// No dump of the memory, which has keys, and no tracing but by root.
fn forbid_dumps() -> bool {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let limited = setrlimit(Resource::Core, none);
    set_dumpable_behavior(DumpableBehavior::NotDumpable).is_ok() && limited.is_ok()
}

const UNLIMITED: Rlimit = Rlimit {
    current: None,
    maximum: None,
};

/// Keeps the memory out of the swap: all of it, since keys are anywhere in it. Not where the limit
/// is less than everything: then memory could not grow any more.
fn lock_memory() -> bool {
    let is_limited = getrlimit(Resource::Memlock) != UNLIMITED;
    if is_limited && setrlimit(Resource::Memlock, UNLIMITED).is_err() {
        return false;
    }
    // Pages are locked when they are touched: stacks would otherwise be there as a whole.
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT).is_ok()
}

/// The filters of a role, in the order in which they are to be installed.
///
/// # Errors
///
/// None on the architectures that there are lists for.
pub fn filters_of(role: Role, otherwise: Otherwise) -> io::Result<Vec<BpfProgram>> {
    filters_with(role, otherwise, &[])
}

/// The same, with more calls, whose arguments are those that count.
fn filters_with(role: Role, otherwise: Otherwise, more: &[Call]) -> io::Result<Vec<BpfProgram>> {
    let refuse = match otherwise {
        Otherwise::Refuse => SeccompAction::Errno(errno(libc::EPERM)),
        Otherwise::Kill => SeccompAction::KillProcess,
    };
    let mut filters = Vec::new();
    if matches!(
        role,
        Role::Main | Role::Helper | Role::Proxy | Role::ProxyMain | Role::Agent
    ) {
        let only = |call: &Call| call.number == libc::SYS_clone3;
        let clone3: Vec<Call> = calls::of(role).into_iter().filter(only).collect();
        let missing = SeccompAction::Errno(errno(libc::ENOSYS));
        filters.push(compile(&clone3, SeccompAction::Allow, missing)?);
        filters.push(intruders()?);
    }
    let mut calls = calls::of(role);
    calls.extend(more);
    let known: Vec<_> = calls.iter().map(|call| call.number).collect();
    let others = |list: &[Call]| -> Vec<Call> {
        let others = list.iter().filter(|call| !known.contains(&call.number));
        others.copied().collect()
    };
    filters.push(compile(
        &others(calls::FAILING),
        SeccompAction::Allow,
        SeccompAction::KillProcess,
    )?);
    if cfg!(debug_assertions) {
        calls.extend(others(calls::ASSERTIONS));
    }
    if otherwise == Otherwise::Kill {
        let refuse = SeccompAction::Errno(errno(libc::EPERM));
        let tried = others(&[calls::TRIED, calls::TRIED_OLDER].concat());
        filters.push(compile(&tried, SeccompAction::Allow, refuse)?);
        calls.extend(tried);
    }
    filters.push(compile(&calls, refuse, SeccompAction::Allow)?);
    Ok(filters)
}

/// The filter that ends the process.
fn intruders() -> io::Result<BpfProgram> {
    compile(INTRUDER, SeccompAction::Allow, SeccompAction::KillProcess)
}

fn errno(number: libc::c_int) -> u32 {
    number.cast_unsigned()
}

fn compile(
    calls: &[Call],
    mismatch: SeccompAction,
    matches: SeccompAction,
) -> io::Result<BpfProgram> {
    let mut rules = BTreeMap::new();
    for call in calls {
        rules.insert(call.number, call.only.rules().map_err(io::Error::other)?);
    }
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let filter = SeccompFilter::new(rules, mismatch, matches, arch).map_err(io::Error::other)?;
    BpfProgram::try_from(filter).map_err(io::Error::other)
}

/// Installs filters for the calling thread and those that it starts.
///
/// # Errors
///
/// Those of seccomp(2): `InvalidInput` if the kernel has no filters.
pub fn install(filters: &[BpfProgram]) -> io::Result<()> {
    for filter in filters {
        apply_filter(filter).map_err(|error| match error {
            seccompiler::Error::Seccomp(error) | seccompiler::Error::Prctl(error) => error,
            error => io::Error::other(error),
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
