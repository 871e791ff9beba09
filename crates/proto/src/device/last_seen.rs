//! What hosts that share a key tell each other of a peer.

use std::net::SocketAddr;
use std::time::Duration;

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
    /// A host does not believe times that are later than its own clock by more: with a timestamp of next year, a peer
    /// would take no handshake for a year.
    pub const AHEAD: Duration = Duration::from_secs(600);

    /// Without the timestamps that are more than [`LastSeen::AHEAD`] later than `now`, the time since the Unix epoch.
    pub fn believed(self, now: Duration) -> Self {
        let most = Tai64N::from_unix(now + Self::AHEAD);
        let or_none = |at: Tai64N| if at > most { Tai64N::default() } else { at };
        Self {
            at: self.at,
            sent: or_none(self.sent),
            received: or_none(self.received),
        }
    }

    /// It was there.
    pub fn at(addr: SocketAddr) -> Self {
        Self {
            at: Some(addr),
            ..Self::default()
        }
    }
}
