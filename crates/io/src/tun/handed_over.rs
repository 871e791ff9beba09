//! A TUN device that goes from one process to another: the same queues, with what waits in them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use super::egress::Egress;
use super::fair_queues::FairQueues;
use super::{QUEUE_BYTES, Tun, check_queue};
use crate::Offloads;
use crate::programs::egress::{LAYOUT, QUEUES};
use crate::sys::tun::context;

/// The state with which another process goes on with a TUN, besides its descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunState {
    /// Offloads in force.
    pub offloads: Offloads,
    /// Whether it was opened for several queues that peers share.
    pub fair: bool,
    /// Queues besides the first that are open.
    pub queues: u32,
    /// The version of the program that limits the queues, if there is one.
    pub limit: Option<u32>,
    /// Another process has queues of the device.
    pub has_other_queues: bool,
}

impl Tun {
    /// What another process needs to go on with this device. This one has processed all that it
    /// read, and reads nothing meanwhile.
    pub fn state(&self) -> (TunState, Vec<BorrowedFd<'_>>) {
        let egress = self.egress.get();
        let fair = self.fair.iter().flat_map(|fair| fair.fds(egress));
        let mut fds = vec![self.fd.as_fd()];
        fds.extend(fair);
        let state = TunState {
            offloads: self.offloads,
            fair: self.fair.is_some(),
            queues: u32::try_from(fds.len() - 1).unwrap_or(u32::MAX),
            limit: egress.map(|_| LAYOUT),
            has_other_queues: self.has_other_queues,
        };
        fds.extend(egress.into_iter().flat_map(Egress::fds));
        (state, fds)
    }

    /// Goes on with the device of another process, which [`Self::state`] described there. It still
    /// says where packets come from to that process: see [`Self::follow_arrivals`].
    ///
    /// # Errors
    ///
    /// `InvalidInput` if these are not the descriptors of such a device; those of epoll_create(2) and
    /// mmap(2).
    pub fn take_over(state: TunState, fds: Vec<OwnedFd>) -> io::Result<Self> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "these are no queues of a TUN");
        let mut fds = fds.into_iter();
        // The other process may be in the hands of an intruder.
        let mut next_queue = || {
            let fd = fds.next().ok_or_else(wrong)?;
            check_queue(fd.as_fd())
                .map(|()| fd)
                .map_err(|error| context(error, "handed over"))
        };
        let fd = next_queue()?;
        let fair = match state.fair {
            true => Some(FairQueues::new(&fd)?),
            false => None,
        };
        match (&fair, usize::try_from(state.queues)) {
            (_, Ok(0)) => {}
            (Some(fair), Ok(QUEUES)) => fair.open(&mut next_queue)?,
            _ => return Err(wrong()),
        }
        let egress = OnceLock::new();
        if let Some(layout) = state.limit {
            let mut next = || fds.next().ok_or_else(wrong);
            let program = [next()?, next()?];
            // Another version's goes when that process does.
            if layout == LAYOUT {
                let taken = Egress::take_over(program, QUEUE_BYTES.into(), state.fair)?;
                fair.iter().for_each(|fair| fair.take_over(&taken));
                let _ = egress.set(taken);
            }
        }
        Ok(Self {
            fd,
            offloads: state.offloads,
            last_arrival: OnceLock::new(),
            egress,
            fair,
            has_other_queues: state.has_other_queues,
        })
    }
}
