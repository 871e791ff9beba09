//! Word that the virtual machine was cloned.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::net::sockopt;

use crate::{descriptor, open_socket, receive};

/// The group of the kernel's own uevents; udev has another one.
const KERNEL: u32 = 1;
/// In the uevent of some kernels.
const NEW_ID: &[u8] = b"NEW_VMGENID=1";
/// In the log of every kernel (random(4)).
const RESEEDED: &[u8] = b"crng reseeded due to virtual machine fork";
/// No record of the log is longer.
const RECORD: usize = 8192;

/// Hears when the virtual machine was cloned or reset to a snapshot. Its hypervisor then changes
/// the VM generation ID, and the kernel tells what a process can hear in one or two places:
///
/// - the kernel's log, since Linux 5.18: reading it takes CAP_SYSLOG where `kernel.dmesg_restrict`
///   is set;
/// - a uevent, which Linux 6.8 sends and kernels of some clouds. It takes no right, but goes to
///   network namespaces of the initial user namespace only, so that a rootless container does not
///   hear it.
pub struct CloneMonitor {
    uevents: OwnedFd,
    log: Option<File>,
    /// Reading the log failed: it would be readable for ever.
    log_ended: AtomicBool,
}

impl CloneMonitor {
    /// Listens from now on, to uevents in the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// Those of socket(2), for uevents. A kernel log that cannot be read is no error.
    pub fn open() -> io::Result<Self> {
        let uevents = open_socket(netlink_sys::protocols::NETLINK_KOBJECT_UEVENT, KERNEL)?;
        uevents.set_non_blocking(true)?;
        // Containers that start make hundreds of uevents, and any of them may be lost that does not
        // fit.
        let size = 1 << 20;
        if sockopt::set_socket_recv_buffer_size_force(&uevents, size).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(&uevents, size);
        }
        let uevents = descriptor(&uevents)?;
        Ok(Self::with(uevents, open_log().ok()))
    }

    /// One that [`Self::open`] opened, perhaps in another process, of its [`Self::into_fds`].
    pub fn with(uevents: OwnedFd, log: Option<OwnedFd>) -> Self {
        Self {
            uevents,
            log: log.map(File::from),
            log_ended: AtomicBool::new(false),
        }
    }

    /// The socket, and the log if it can be read.
    pub fn into_fds(self) -> (OwnedFd, Option<OwnedFd>) {
        (self.uevents, self.log.map(OwnedFd::from))
    }

    /// Readable when [`Self::was_cloned`] may be true.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let log = self.readable_log().map(AsFd::as_fd);
        std::iter::once(self.uevents.as_fd()).chain(log)
    }

    fn readable_log(&self) -> Option<&File> {
        let ended = self.log_ended.load(Ordering::Relaxed);
        self.log.as_ref().filter(|_| !ended)
    }

    /// Whether the machine was cloned since the last call, or may have been, because word of
    /// something was lost.
    pub fn was_cloned(&self) -> bool {
        let told = self.told_by_uevents();
        self.told_by_log() || told
    }

    fn told_by_uevents(&self) -> bool {
        let (mut told, mut buffer) = (false, Vec::new());
        loop {
            match receive(&self.uevents, &mut buffer) {
                // ACTION@DEVICE and then NAME=VALUE, each with a zero at its end.
                Ok(()) => told |= buffer.split(|byte| *byte == 0).any(|field| field == NEW_ID),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => told = true,
                Err(_) => return told,
            }
        }
    }

    fn told_by_log(&self) -> bool {
        let Some(mut log) = self.readable_log() else {
            return false;
        };
        let mut record = [0; RECORD];
        let mut told = false;
        loop {
            match log.read(&mut record) {
                Ok(0) => break,
                Ok(len) => told |= tells_of_clone(&record[..len]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return told,
                // Records were overwritten before they were read; the next one can be read.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => told = true,
                Err(_) => break,
            }
        }
        self.log_ended.store(true, Ordering::Relaxed);
        told
    }
}

/// The kernel's log behind its last record.
fn open_log() -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let log = rustix::fs::open("/dev/kmsg", flags, Mode::empty())?;
    rustix::fs::seek(&log, SeekFrom::End(0))?;
    Ok(log)
}

/// A record is "PRIORITY,SEQUENCE,TIME,FLAGS;TEXT". The kernel's own have a priority below 8, which
/// no process can give to what it writes to the log.
pub(super) fn tells_of_clone(record: &[u8]) -> bool {
    let of_kernel = record.get(1) == Some(&b',');
    of_kernel && record.windows(RESEEDED.len()).any(|text| text == RESEEDED)
}
