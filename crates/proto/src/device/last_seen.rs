//! What hosts that share a key tell each other of a peer.

use std::net::SocketAddr;

use crate::time::Tai64N;

/// What another host tells of a peer that it had until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastSeen {
    /// Where it was, if that is known.
    pub at: Option<SocketAddr>,
    /// The timestamp of the last initiation to it: it takes none but a later one. All zeros if that is not known.
    pub sent: Tai64N,
    /// The greatest timestamp of its own initiations: one that is not later is a copy.
    pub received: Tai64N,
}

impl LastSeen {
    /// It was there.
    pub fn at(addr: SocketAddr) -> Self {
        Self {
            at: Some(addr),
            ..Self::default()
        }
    }
}
