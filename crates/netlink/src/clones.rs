//! Word that the virtual machine was cloned.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::net::sockopt;
use rustix::time::{ClockId, clock_gettime};

use crate::{descriptor, open_socket, receive};

/// The group of the kernel's own uevents; udev has another one.
const KERNEL: u32 = 1;
/// In the uevent of some kernels.
const NEW_ID: &[u8] = b"NEW_VMGENID=1";
/// The whole text of the record that every kernel writes to its log (random(4)). Other records may
/// quote what a stranger chose: the name of a USB device, of a file, of a network.
const RESEEDED: &[u8] = b"random: crng reseeded due to virtual machine fork";
/// No record of the log is longer.
const RECORD: usize = 8192;
/// Records or uevents that are looked at in one call. A stranger may fill the log faster than it can
/// be read.
const BATCH: usize = 256;
/// The clock that the machine's hardware goes on with while the machine stands still, in seconds.
const HARDWARE_CLOCK: &str = "/sys/class/rtc/rtc0/since_epoch";
/// A machine that was restored this long after its snapshot is noticed by its clocks alone.
const LEAST_JUMP: Duration = Duration::from_secs(3);
/// Two clocks that nobody sets part by less than one part in this many.
const DRIFT: u32 = 2000;
/// How often to compare the clocks while nothing was lost, so that drift does not add up.
const COMPARE: Duration = Duration::from_secs(60);
/// How often clocks alone can tell of a clone: sessions are renewed as often without it.
const BY_CLOCKS: Duration = Duration::from_secs(120);

/// Hears when the virtual machine was cloned or reset to a snapshot. Its hypervisor then changes
/// the VM generation ID, and the kernel tells what a process can hear in one or two places:
///
/// - the kernel's log, since Linux 5.18: reading it takes CAP_SYSLOG where `kernel.dmesg_restrict`
///   is set;
/// - a uevent, which Linux 6.8 sends and kernels of some clouds. It takes no right, but goes to
///   network namespaces of the initial user namespace only, so that a rootless container does not
///   hear it.
///
/// Both may lose records, and a stranger can make them do so: whatever a firewall logs is a record.
/// So a loss tells nothing by itself. What is left is read, and a clone is told of only if the
/// hardware's clock has also jumped ahead of the clock that a snapshot keeps.
pub struct CloneMonitor {
    uevents: OwnedFd,
    log: Option<File>,
    /// Reading the log failed: it would be readable for ever.
    log_ended: AtomicBool,
    hardware_clock: Option<File>,
    clocks: Mutex<Clocks>,
}

/// The result of one look at the log, or at the uevents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CloneNews {
    /// Word of a clone.
    pub(crate) told: bool,
    /// Something was lost before it was read.
    pub(crate) lost: bool,
    /// More is left to read.
    pub(crate) more: bool,
    /// Nothing more can ever be read.
    pub(crate) ended: bool,
}

impl CloneMonitor {
    /// Listens from now on, to uevents in the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// Those of socket(2), for uevents. A kernel log that cannot be read is no error.
    pub fn open() -> io::Result<Self> {
        let (uevents, log, clock) = Self::open_fds()?;
        Ok(Self::with(uevents, log, clock))
    }

    /// Opens what [`Self::with`] listens to, perhaps in another process: the socket, and the log and the
    /// hardware's clock if they can be read. Nothing is read yet.
    ///
    /// # Errors
    ///
    /// Those of [`Self::open`].
    pub fn open_fds() -> io::Result<(OwnedFd, Option<OwnedFd>, Option<OwnedFd>)> {
        let uevents = open_socket(netlink_sys::protocols::NETLINK_KOBJECT_UEVENT, KERNEL)?;
        uevents.set_non_blocking(true)?;
        // Containers that start make hundreds of uevents, and any of them may be lost that does not
        // fit.
        let size = 1 << 20;
        if sockopt::set_socket_recv_buffer_size_force(&uevents, size).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(&uevents, size);
        }
        let uevents = descriptor(&uevents)?;
        let clock = File::open(HARDWARE_CLOCK).ok().map(OwnedFd::from);
        Ok((uevents, open_log().ok(), clock))
    }

    /// Listens to what [`Self::open_fds`] opened.
    pub fn with(uevents: OwnedFd, log: Option<OwnedFd>, clock: Option<OwnedFd>) -> Self {
        let hardware_clock = clock.map(File::from);
        let clocks = hardware_clock.as_ref().and_then(ahead);
        Self {
            uevents,
            log: log.map(File::from),
            log_ended: AtomicBool::new(false),
            hardware_clock,
            clocks: Mutex::new(Clocks::new(clocks)),
        }
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

    /// Whether the machine was cloned since the last call. It looks at a bounded number of records:
    /// if more wait, the descriptors stay readable.
    pub fn was_cloned(&self) -> bool {
        let uevents = hear_uevents(|buffer| receive(&self.uevents, buffer));
        let log = match self.readable_log() {
            Some(mut log) => hear_log(|record| log.read(record)),
            None => CloneNews::default(),
        };
        if log.ended {
            self.log_ended.store(true, Ordering::Relaxed);
        }
        let lost = uevents.lost || log.lost;
        let by_clocks = self.jumped(lost, uevents.more || log.more);
        uevents.told || log.told || by_clocks
    }

    /// Whether the clocks tell what records that were lost may have told.
    fn jumped(&self, lost: bool, more: bool) -> bool {
        let Some(clock) = &self.hardware_clock else {
            return false;
        };
        let mut clocks = self.clocks.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = lost || !more && clocks.is_old(boot_time());
        is_due && ahead(clock).is_some_and(|(ahead, now)| clocks.compare(ahead, now, lost))
    }
}

/// How far the hardware's clock was ahead of the clock since the boot, and when.
#[derive(Debug)]
pub(crate) struct Clocks {
    known: Option<(Duration, Duration)>,
    /// When they last told of a clone.
    told: Option<Duration>,
}

impl Clocks {
    pub(crate) fn new(known: Option<(Duration, Duration)>) -> Self {
        Self { known, told: None }
    }

    fn is_old(&self, now: Duration) -> bool {
        self.known
            .is_none_or(|(_, at)| now.saturating_sub(at) >= COMPARE)
    }

    /// Whether the hardware's clock jumped, as when the machine was restored, and word of that may
    /// have been `lost`.
    pub(crate) fn compare(&mut self, ahead: Duration, now: Duration, lost: bool) -> bool {
        let jumped = self.known.is_some_and(|(before, at)| {
            let drift = now.saturating_sub(at) / DRIFT;
            ahead.saturating_sub(before) >= LEAST_JUMP + drift
        });
        let is_soon = (self.told).is_some_and(|told| now.saturating_sub(told) < BY_CLOCKS);
        if jumped && lost && is_soon {
            // The next loss asks again.
            return false;
        }
        self.known = Some((ahead, now));
        let tells = jumped && lost;
        if tells {
            self.told = Some(now);
        }
        tells
    }
}

/// How far the hardware's clock is ahead of the clock since the boot, and that.
fn ahead(clock: &File) -> Option<(Duration, Duration)> {
    let mut text = [0; 24];
    let len = clock.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(&text[..len]).ok()?;
    let now = boot_time();
    let seconds = Duration::from_secs(text.trim().parse().ok()?);
    Some((seconds.checked_sub(now)?, now))
}

/// The clock that goes on during a suspend, and not between a snapshot and its restore.
fn boot_time() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::try_from(now).unwrap_or_default()
}

/// Looks at uevents: "ACTION@DEVICE" and then "NAME=VALUE", each with a zero at its end.
fn hear_uevents(mut next: impl FnMut(&mut Vec<u8>) -> io::Result<()>) -> CloneNews {
    let (mut heard, mut uevent) = (CloneNews::default(), Vec::new());
    for _ in 0..BATCH {
        match next(&mut uevent) {
            Ok(()) => heard.told |= uevent.split(|byte| *byte == 0).any(|field| field == NEW_ID),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => heard.lost = true,
            Err(_) => return heard,
        }
    }
    heard.more = true;
    heard
}

/// Looks at records of the log.
pub(crate) fn hear_log(mut read: impl FnMut(&mut [u8]) -> io::Result<usize>) -> CloneNews {
    let mut heard = CloneNews::default();
    let mut record = [0; RECORD];
    for _ in 0..BATCH {
        match read(&mut record) {
            Ok(0) => heard.ended = true,
            Ok(len) => heard.told |= tells_of_clone(&record[..len]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return heard,
            // Records were overwritten before they were read. The next call reads the oldest one
            // that is left, so that the record itself is found if it is.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => heard.lost = true,
            Err(_) => heard.ended = true,
        }
        if heard.ended {
            return heard;
        }
    }
    heard.more = true;
    heard
}

/// The kernel's log behind its last record.
fn open_log() -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let log = rustix::fs::open("/dev/kmsg", flags, Mode::empty())?;
    rustix::fs::seek(&log, SeekFrom::End(0))?;
    Ok(log)
}

/// A record is "PRIORITY,SEQUENCE,TIME,FLAGS;TEXT", and lines that begin with a blank. The kernel's
/// own have a priority below 8, which no process can give to what it writes to the log. Within TEXT
/// the kernel writes a line feed as `\x0a`.
pub(super) fn tells_of_clone(record: &[u8]) -> bool {
    let of_kernel = record.get(1) == Some(&b',');
    let mut lines = record.splitn(2, |byte| *byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let text = first.splitn(2, |byte| *byte == b';').nth(1);
    of_kernel && text == Some(RESEEDED)
}
