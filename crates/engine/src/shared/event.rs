//! Events that an interface tells its listener.

use std::net::SocketAddr;

use adit_proto::config::PublicKey;
use adit_proto::{Access, HandshakeOutcome, LastSeen, Liveness};

use crate::shared::rate_limited_log::Incident;

/// Something that a program may want to know at once. Nothing in it is secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// News of whether a peer is there.
    Liveness {
        /// The peer.
        peer: PublicKey,
        /// How it is.
        state: Liveness,
        /// Where it is reached.
        endpoint: Option<SocketAddr>,
    },
    /// A peer's access has ended, or it has access again.
    Access {
        /// The peer.
        peer: PublicKey,
        /// How it is.
        access: Access,
    },
    /// A handshake with a peer succeeded: there is a new session.
    Session {
        /// The peer.
        peer: PublicKey,
        /// Where it is reached, and the timestamps of initiations, for another host that may have it later.
        last: LastSeen,
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
    /// The endpoint of a peer is a name ([`Interface::set_candidates`](crate::Interface)), and an
    /// initiation was not answered: it is time to look the name up.
    Unanswered {
        /// The peer.
        peer: PublicKey,
    },
    /// A handshake was given up.
    GivenUp {
        /// The peer.
        peer: PublicKey,
        /// Initiations that left and were not answered.
        initiations: u32,
    },
    /// An initiation of an unknown peer: there are 512 of these events a second at most, 64 for one address.
    Stranger {
        /// Its refusal, with the key.
        outcome: HandshakeOutcome,
        /// Its sender receives at its address: it has sent a cookie back.
        is_proven: bool,
    },
    /// An incident, as in the verbose log: one a second for each cause and source, with a count.
    Incident {
        /// The last of them.
        incident: Incident,
        /// How many.
        times: u64,
    },
    /// Incidents without an event of their own.
    Others {
        /// How many.
        count: u64,
    },
}
