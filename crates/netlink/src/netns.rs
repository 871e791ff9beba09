//! Network namespaces, held by descriptor.
//!
//! A thread belongs to a namespace, so whatever happens inside another one happens on a thread made
//! for it; sockets and TUN devices opened there stay there and can be used from anywhere.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags};
use rustix::thread::{
    CapabilitySet, CapabilitySets, LinkNameSpaceType, UnshareFlags, capabilities,
};

/// A network namespace. It lives as long as something refers to it: this value, a thread, a socket
/// in it.
#[derive(Debug)]
pub struct Netns(OwnedFd);

impl From<OwnedFd> for Netns {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The home namespace of a process which cannot open files.
static HOME: OnceLock<(u64, u64)> = OnceLock::new();

impl Netns {
    /// Has [`Self::current_id`] open no file any more: all threads of the process stay in the
    /// namespace of this one.
    ///
    /// # Errors
    ///
    /// `/proc` is not mounted.
    pub fn stay() -> io::Result<()> {
        let home = Self::current_id()?;
        let _ = HOME.set(home);
        Ok(())
    }

    /// [`Self::id`] of the namespace of the calling thread.
    ///
    /// # Errors
    ///
    /// `/proc` is not mounted.
    pub fn current_id() -> io::Result<(u64, u64)> {
        match HOME.get() {
            Some(home) => Ok(*home),
            None => Self::current()?.id(),
        }
    }

    /// Makes a namespace that has no name. Its loopback interface is down.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` without CAP_SYS_ADMIN, and those of unshare(2) and clone(2).
    pub fn new() -> io::Result<Self> {
        on_a_thread(|| {
            unshare(UnshareFlags::NEWNET).map_err(|error| {
                let advice = "making a network namespace (root, or a user namespace, is needed)";
                io::Error::new(error.kind(), format!("{advice}: {error}"))
            })?;
            Self::current()
        })
    }

    /// The namespace of the calling thread.
    ///
    /// # Errors
    ///
    /// `/proc` is not mounted.
    pub fn current() -> io::Result<Self> {
        Self::at(Path::new("/proc/thread-self/ns/net"))
    }

    /// The namespace that `ip netns add` called `name`.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such namespace.
    pub fn named(name: &str) -> io::Result<Self> {
        Self::at(&Path::new("/run/netns").join(name))
    }

    /// The namespace behind a file, such as `/proc/PID/ns/net`.
    ///
    /// # Errors
    ///
    /// Those of open(2).
    pub fn at(path: &Path) -> io::Result<Self> {
        let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        fd.map(Self)
            .map_err(io::Error::from)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }

    /// Whether both are the same namespace.
    ///
    /// # Errors
    ///
    /// Those of fstat(2).
    pub fn is(&self, other: &Self) -> io::Result<bool> {
        Ok(self.id()? == other.id()?)
    }

    /// Device and inode: no other namespace has them while this one lives.
    ///
    /// # Errors
    ///
    /// Those of fstat(2).
    pub fn id(&self) -> io::Result<(u64, u64)> {
        let stat = rustix::fs::fstat(&self.0)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Whether the calling thread is in it.
    ///
    /// # Errors
    ///
    /// Those of [`Netns::current`].
    pub fn is_current(&self) -> io::Result<bool> {
        Ok(self.id()? == Self::current_id()?)
    }

    /// Moves the calling thread into it, for good.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` without CAP_SYS_ADMIN, and those of setns(2).
    pub fn enter(&self) -> io::Result<()> {
        rustix::thread::move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(io::Error::from)
            .map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!("entering a network namespace: {error}"),
                )
            })
    }

    /// Runs `work` inside it, on a thread of its own unless the calling one is there, and waits for
    /// the result.
    ///
    /// # Errors
    /// Entering another namespace takes CAP_SYS_ADMIN.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        if self.is_current().unwrap_or(false) {
            return Ok(work());
        }
        let may_enter = |own: CapabilitySets| own.effective.contains(CapabilitySet::SYS_ADMIN);
        if !capabilities(None).is_ok_and(may_enter) {
            // No thread is needed to find that out.
            let message = "entering a network namespace: CAP_SYS_ADMIN is missing";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        on_a_thread(|| {
            self.enter()?;
            Ok(work())
        })
    }
}

/// unshare(2). The library has another one, because descriptors that are no more those of all threads
/// would break what it promises; namespaces do not.
#[expect(
    deprecated,
    reason = "the other one is unsafe for a flag that is not used here"
)]
fn unshare(namespaces: UnshareFlags) -> io::Result<()> {
    debug_assert!(!namespaces.contains(UnshareFlags::FILES));
    Ok(rustix::thread::unshare(namespaces)?)
}

/// Runs `work` on a thread of its own, whose namespaces may be changed because it ends with `work`.
/// A panic in `work` continues in the caller.
fn on_a_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netns".into());
        match thread.spawn_scoped(scope, work)?.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Moves the process into a new user namespace, in which it is root, and a new network namespace.
///
/// So everything here works without privileges, where the kernel allows it. The process must have
/// one thread only.
///
/// # Errors
///
/// The kernel does not allow it, or the process has several threads. The message says what to do.
pub fn become_root_in_user_namespace() -> io::Result<()> {
    enter_user_namespace()??;
    Ok(())
}

/// Moves the process as [`become_root_in_user_namespace`] does. The inner result is an error where the process
/// has all rights in the namespaces, but is nobody there, as root without CAP_SETFCAP is.
///
/// # Errors
///
/// Those of [`become_root_in_user_namespace`].
pub fn enter_user_namespace() -> io::Result<io::Result<()>> {
    let uid = rustix::process::getuid().as_raw();
    let gid = rustix::process::getgid().as_raw();
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNET).map_err(|error| {
        let advice = "user namespaces are not allowed here (sysctl user.max_user_namespaces, \
                      kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns): run as root";
        io::Error::new(error.kind(), format!("{advice}: {error}"))
    })?;
    // user_namespaces(7): groups can be mapped without privilege only after setgroups was given up.
    let mapped = std::fs::write("/proc/self/setgroups", "deny")
        .and_then(|()| std::fs::write("/proc/self/uid_map", format!("0 {uid} 1")))
        .and_then(|()| std::fs::write("/proc/self/gid_map", format!("0 {gid} 1")));
    Ok(mapped)
}

/// Gives the calling thread mounts of its own, a copy of those that it has. Changes may still
/// propagate to where the originals are shared (mount_namespaces(7)) until they are made private.
///
/// # Errors
/// It takes CAP_SYS_ADMIN.
pub fn unshare_mounts() -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)
}

/// Sets a sysctl, such as `net.ipv4.ip_forward`; those of `net` in the calling thread's namespace.
///
/// Names of interfaces may contain dots: as in sysctl(8), a `/` in the name makes it a path.
///
/// # Errors
///
/// `NotFound` if the kernel has no such sysctl, `PermissionDenied` without the right to set it.
pub fn set_sysctl(name: &str, value: &str) -> io::Result<()> {
    let path = sysctl_path(name);
    std::fs::write(&path, value)
        .map_err(|error| io::Error::new(error.kind(), format!("sysctl {name}={value}: {error}")))
}

/// Reads a sysctl, without the newline.
///
/// # Errors
///
/// `NotFound` if the kernel has no such sysctl.
pub fn sysctl(name: &str) -> io::Result<String> {
    let value = std::fs::read_to_string(sysctl_path(name))
        .map_err(|error| io::Error::new(error.kind(), format!("sysctl {name}: {error}")))?;
    Ok(value.trim_end().to_owned())
}

fn sysctl_path(name: &str) -> String {
    let path = if name.contains('/') {
        name.to_owned()
    } else {
        name.replace('.', "/")
    };
    format!("/proc/sys/{path}")
}

#[cfg(test)]
#[path = "netns_tests.rs"]
mod tests;
