//! Events of a tunnel.

use std::fmt;
use std::net::SocketAddr;

use crate::keys::PublicKey;

/// Something that a program may want to know at once. Nothing in it is secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A handshake with a peer succeeded: there is a new session.
    Session {
        /// The peer.
        peer: PublicKey,
        /// Where it is reached.
        endpoint: Option<SocketAddr>,
    },
    /// A peer is reached at another address.
    Roamed {
        /// The peer.
        peer: PublicKey,
        /// Where it was.
        from: SocketAddr,
        /// Where it is.
        to: SocketAddr,
    },
    /// A peer answers again.
    Reachable {
        /// The peer.
        peer: PublicKey,
    },
    /// A peer does not answer any more.
    Unreachable {
        /// The peer.
        peer: PublicKey,
    },
    /// A handshake was given up: what waited for it is lost.
    GivenUp {
        /// The peer.
        peer: PublicKey,
        /// Initiations that left and were not answered.
        initiations: u32,
    },
    /// So many events were not told, because nobody took those before.
    Missed {
        /// How many.
        count: u64,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session {
                peer,
                endpoint: Some(endpoint),
            } => write!(f, "session with {peer} at {endpoint}"),
            Self::Session { peer, .. } => write!(f, "session with {peer}"),
            Self::Roamed { peer, from, to } => write!(f, "{peer} roamed from {from} to {to}"),
            Self::Reachable { peer } => write!(f, "{peer} answers again"),
            Self::Unreachable { peer } => write!(f, "{peer} does not answer"),
            Self::GivenUp { peer, initiations } => {
                write!(
                    f,
                    "handshake with {peer} given up after {initiations} initiations"
                )
            }
            Self::Missed { count } => write!(f, "{count} events missed"),
        }
    }
}
