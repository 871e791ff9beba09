//! Queues of TUN devices.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::helper::QueueChoice;
use crate::sys::os::{self, IfReq};

/// The device that a descriptor is attached to: name and flags.
pub(crate) fn attached(tun: BorrowedFd<'_>) -> io::Result<IfReq> {
    let mut request = IfReq::new("")?;
    os::ioctl_ifreq(tun, libc::TUNGETIFF, &mut request)?;
    Ok(request)
}

/// Attaches a new descriptor to the device of that name in the calling thread's network namespace,
/// and creates the device if need be; fails with EBUSY if it exists and may not. Needs CAP_NET_ADMIN.
pub(crate) fn attach(name: &str, queues: QueueChoice, may_exist: bool) -> io::Result<OwnedFd> {
    let mode = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::open("/dev/net/tun", mode, Mode::empty())
        .map_err(|errno| explain_open(errno.into()))?;
    let mut request = IfReq::new(name)?;
    let flags = libc::IFF_TUN
        | libc::IFF_NO_PI
        | libc::IFF_VNET_HDR
        | match queues {
            QueueChoice::One => 0,
            QueueChoice::Several => libc::IFF_MULTI_QUEUE,
            QueueChoice::First => libc::IFF_MULTI_QUEUE | IFF_TUN_EXCL,
        }
        | if may_exist { 0 } else { IFF_TUN_EXCL };
    let flags = u16::try_from(flags).unwrap_or_default();
    request.set_flags(flags);
    os::ioctl_ifreq(fd.as_fd(), libc::TUNSETIFF, &mut request)?;
    Ok(fd)
}

fn explain_open(error: io::Error) -> io::Error {
    let advice = match Errno::from_io_error(&error) {
        Some(Errno::NOENT) => {
            "/dev/net/tun does not exist: load the module (modprobe tun), or in a container pass the device \
             (--device /dev/net/tun)"
        }
        Some(Errno::NODEV | Errno::NXIO) => {
            "/dev/net/tun exists, but the kernel has no TUN driver: modprobe tun"
        }
        Some(Errno::ACCESS | Errno::PERM) => {
            "/dev/net/tun may not be opened: run as root, or allow the device in the container's policy"
        }
        _ => "opening /dev/net/tun",
    };
    context(error, advice)
}

/// `error` with what was attempted; it keeps its kind, and its number as the source.
pub(crate) fn context(error: io::Error, what: impl fmt::Display) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// `error` of an attempt to have the device `name`, with what to do.
pub(crate) fn explain_attach(error: io::Error, name: &str) -> io::Error {
    match Errno::from_io_error(&error) {
        Some(Errno::BUSY) => context(error, format!("{name} is in use by another process")),
        Some(Errno::PERM) => context(
            error,
            format!(
                "no right to make the interface {name}: run as root or with CAP_NET_ADMIN (a container may need \
                 --cap-add NET_ADMIN)"
            ),
        ),
        Some(Errno::EXIST) => context(error, format!("the name {name} is taken")),
        Some(Errno::INVAL) => context(
            error,
            format!(
                "{name} cannot be the name of a TUN device, or is taken by an interface of another kind"
            ),
        ),
        _ => context(error, format!("making the TUN device {name}")),
    }
}

/// `IFF_TUN_EXCL`: the device must not exist.
const IFF_TUN_EXCL: libc::c_int = 0x8000;
