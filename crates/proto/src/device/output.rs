//! Outputs: what a device wants done.

use std::net::SocketAddr;
use std::sync::Arc;

use arrayvec::ArrayVec;

use crate::Endpoint;
use crate::allowance::Access;
use crate::device::last_seen::LastSeen;
use crate::device::outcome::Liveness;
use crate::device::search::MAX_PROBES;
use crate::peer::Peer;
use crate::wire::INITIATION_LEN;

/// An action that the device wants done.
pub enum Output {
    /// Send the datagram on the UDP socket, then call [`Device::handle_sent`](crate::Device::handle_sent).
    Handshake {
        /// Where to.
        to: Endpoint,
        /// The UDP payload.
        datagram: ArrayVec<u8, INITIATION_LEN>,
        /// The peer it is for; `None` for a cookie reply, which answers before the peer is known.
        peer: Option<Arc<Peer>>,
        /// How many of its kind left before it in vain: initiations without an answer, or responses
        /// that led to no session.
        in_vain: u32,
    },
    /// Seal and send an empty packet on [`Peer::current`], then call [`Peer::keepalive_sent`].
    Keepalive {
        /// The peer it is for.
        peer: Arc<Peer>,
    },
    /// There is a session to send with: send what is staged.
    SessionReady {
        /// The peer that it is with.
        peer: Arc<Peer>,
    },
    /// No session will come: drop what is staged.
    DropStaged {
        /// The peer that does not answer or was removed.
        peer: Arc<Peer>,
        /// How many initiations left until the handshake was given up; `None` if the peer was
        /// removed.
        given_up_after: Option<u32>,
    },
    /// Nothing has to be done: this is for listeners.
    Event(PeerEvent),
}

/// News of a peer.
pub enum PeerEvent {
    /// News of whether the peer is there.
    Liveness {
        /// The peer.
        peer: Arc<Peer>,
        /// How it is now.
        state: Liveness,
    },
    /// The peer's access has ended, or it has access again.
    Access {
        /// The peer.
        peer: Arc<Peer>,
        /// How it is now.
        access: Access,
    },
    /// There is a new session, which is used from now on.
    Session {
        /// The peer that it is with.
        peer: Arc<Peer>,
        /// For another host that may take the place of this one.
        last: LastSeen,
    },
    /// The peer is reached at another address.
    Roamed {
        /// The peer, with its new endpoint.
        peer: Arc<Peer>,
        /// Where it was before.
        from: SocketAddr,
    },
    /// To be sent to the peer, inside the tunnel: echo requests of these sequence numbers and
    /// lengths, from and to these addresses, which any host answers. Only after
    /// [`Device::probe_paths`](crate::Device::probe_paths).
    ProbePath {
        /// The peer.
        peer: Arc<Peer>,
        /// The inner source.
        from: std::net::IpAddr,
        /// The inner destination.
        to: std::net::IpAddr,
        /// The identifier.
        id: u16,
        /// Probes whose datagrams nobody may fragment, this host included: if it refuses one, call
        /// [`Device::path_refused`](crate::Device::path_refused), or
        /// [`Device::path_told`](crate::Device::path_told) and send it all the same.
        whole: ArrayVec<(u16, u16), MAX_PROBES>,
        /// One whose datagram may be fragmented.
        fragmented: Option<(u16, u16)>,
    },
    /// The longest packet that the path to the peer takes whole has changed.
    PathFound {
        /// The peer.
        peer: Arc<Peer>,
        /// Its length; `None` if the path takes all that the interface does.
        limit: Option<u16>,
        /// Longer ones are lost, in fragments, too.
        loses: bool,
    },
    /// An ICMP message about the path to the peer is wrong, or not to be believed: the host is to ignore
    /// it. Only after [`Device::path_told`](crate::Device::path_told).
    DoubtIcmp {
        /// The peer.
        peer: Arc<Peer>,
    },
    /// The peer's endpoint is a name
    /// ([`Device::set_candidates`](crate::Device::set_candidates)), and an initiation was not
    /// answered: the name may lead elsewhere by now.
    Unanswered {
        /// The peer.
        peer: Arc<Peer>,
    },
}
