//! The addresses of a peer whose endpoint is a name, as its state has them.

use std::net::SocketAddr;

use arrayvec::ArrayVec;

use crate::Time;
use crate::limits::*;
use crate::wire::INITIATION_LEN;

/// All addresses that an initiation may go to: those of the name, and the present one.
pub(super) type Addresses = ArrayVec<SocketAddr, { MAX_CANDIDATES + 1 }>;

#[derive(Default)]
pub(super) struct Candidates {
    /// Of the name: families alternate.
    pub(super) addrs: ArrayVec<SocketAddr, MAX_CANDIDATES>,
    /// How many races began since the last session: each begins with another address. A path that
    /// loses only responses would otherwise win all of them.
    pub(super) races: usize,
    /// The initiation, and where its copies are still to go.
    pub(super) message: ArrayVec<u8, INITIATION_LEN>,
    pub(super) waiting: Addresses,
    pub(super) sent: Addresses,
    /// When the next copy leaves.
    pub(super) due: Option<Time>,
}

impl Candidates {
    pub(super) fn due(&self) -> Option<Time> {
        self.due
    }

    pub(super) fn contains(&self, addr: SocketAddr) -> bool {
        self.addrs.contains(&addr)
    }

    pub(super) fn stop(&mut self) {
        self.waiting.clear();
        self.sent.clear();
        self.due = None;
    }
}
