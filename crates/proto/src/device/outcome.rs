//! The outcome of a handshake message: the reasons for a refusal, and how the log says them.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::explained_enum;
use crate::secret::PublicKey;
use crate::wire::ParsedMessage;

/// The outcome of one handshake message that came in.
///
/// Only an accepted message is proven to come from the peer and the address that it names. Every
/// field of a refused message may be forged: the outcome is for people to read, and the program
/// must not act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeOutcome {
    /// The kind of message; `None` if it is no handshake message.
    pub kind: Option<HandshakeKind>,
    /// The address and port that it came from.
    pub from: SocketAddr,
    /// The static key of the peer that it is of, as far as the message says so: by its static key,
    /// or by the handshake that it answers. With [`Refusal::UnknownPeer`] it is the key that no
    /// peer has.
    pub peer: Option<PublicKey>,
    /// Why it was refused; `None` if it was accepted.
    pub refusal: Option<Refusal>,
}

/// The three messages of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandshakeKind {
    /// The first message, type 1.
    Initiation,
    /// The answer to an initiation, type 2.
    Response,
    /// The answer of a responder under load, type 3.
    CookieReply,
}

explained_enum! {
    /// Why a handshake message was refused.
    pub enum Refusal {
        /// Neither type nor length of a handshake message.
        Invalid => "invalid",
        /// The interface has no private key, so that no peer can reach it.
        NoPrivateKey => "no_private_key",
        /// mac1 does not show that the sender knows our public key: it has another one for this
        /// interface.
        BadMac1 => "bad_mac1",
        /// We are under load and the sender has not shown that it receives at its address: it is
        /// sent a cookie.
        CookieRequired => "cookie_required",
        /// We are under load, and more ask for a cookie than can be answered, or a source that has one
        /// sends too much.
        RateLimited => "rate_limited",
        /// The initiation decrypts, but its static key is no peer's.
        UnknownPeer => "unknown_peer",
        /// The timestamp is not greater than the greatest one received from the peer: the sender's
        /// clock was set back, another host has the same private key, or the message is a replay.
        ReplayedTimestamp => "replayed_timestamp",
        /// The peer's access has expired, or its quota is used up.
        NoAccess => "no_access",
        /// The initiation comes too soon after the peer's last one.
        Flooded => "flooded",
        /// A tag or Diffie-Hellman result is wrong: of a response, since the preshared keys differ;
        /// of anything else, since the message is damaged or forged.
        NotAuthentic => "not_authentic",
        /// A response or cookie reply for no handshake that is under way: it comes too late or
        /// twice.
        Unexpected => "unexpected",
    }
}

explained_enum! {
    /// Why a handshake with a peer failed last.
    pub enum FailureReason {
        /// No answer came for 90 seconds: the peer is down, its address or port is another, a
        /// firewall is between, or the peer refuses and its log says why.
        NoAnswer => "no_answer",
        /// Our message could not leave this host: no socket, no route, or a firewall.
        NotSent => "not_sent",
        /// We answered the peer's initiation, and the peer did not use the session: the preshared
        /// keys differ, or the peer does not hear us.
        NotConfirmed => "not_confirmed",
        /// The peer's initiation had a timestamp that is not greater than the last one: the peer's
        /// clock was set back, another host has the same private key, or it was a replay.
        ReplayedTimestamp => "replayed_timestamp",
        /// The peer's response does not decrypt: the preshared keys differ, or it was forged.
        NotAuthentic => "not_authentic",
        /// The peer's initiations come too fast: under load, or too soon after the last one.
        TooMany => "too_many",
    }
}

explained_enum! {
    /// Whether a peer is there, as far as that is known.
    pub enum Liveness {
        /// There was no session with it yet.
        Unknown => "unknown",
        /// The peer has a session, and has not failed to answer since.
        Up => "up",
        /// The peer does not answer: neither data for 15 seconds, nor an initiation for 5 seconds.
        Silent => "silent",
        /// The peer did not answer for 90 seconds, or there was no new session for 9 minutes: its keys
        /// are gone or about to go.
        Gone => "gone",
    }
}

/// A handshake that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeFailure {
    /// Why.
    pub reason: FailureReason,
    /// When, since the Unix epoch.
    pub at: Duration,
}

impl FailureReason {
    /// The reason for the peer that a refused message is of; `None` if the refusal is no failure.
    pub(super) fn of(refusal: Refusal) -> Option<Self> {
        match refusal {
            Refusal::ReplayedTimestamp => Some(Self::ReplayedTimestamp),
            Refusal::NotAuthentic => Some(Self::NotAuthentic),
            Refusal::RateLimited | Refusal::Flooded => Some(Self::TooMany),
            _ => None,
        }
    }
}

impl HandshakeKind {
    pub(crate) fn of(message: &ParsedMessage<'_>) -> Self {
        match message {
            ParsedMessage::Initiation(_) => Self::Initiation,
            ParsedMessage::Response(_) => Self::Response,
            ParsedMessage::CookieReply(_) => Self::CookieReply,
        }
    }
}

impl fmt::Display for HandshakeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Initiation => "handshake initiation",
            Self::Response => "handshake response",
            Self::CookieReply => "cookie reply",
        })
    }
}

/// One line for the log, without the peer: what came, from where, and what is most likely wrong.
impl fmt::Display for HandshakeOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Some(kind) => write!(f, "{kind} from {}", self.from)?,
            None => write!(f, "datagram from {}", self.from)?,
        }
        let Some(refusal) = self.refusal else {
            return f.write_str(" accepted");
        };
        f.write_str(" refused: ")?;
        if let (Refusal::UnknownPeer, Some(key)) = (refusal, self.peer) {
            return write!(f, "its static key {key} is no peer of this interface");
        }
        f.write_str(match (refusal, self.kind) {
            (Refusal::Invalid, _) => "it has neither type nor length of a handshake message",
            (Refusal::NoPrivateKey, _) => "this interface has no private key",
            (Refusal::BadMac1, _) => {
                "mac1 is wrong: the sender has another public key for this interface"
            }
            (Refusal::CookieRequired, _) => {
                "we are under load, and a cookie reply asks the sender to prove its address"
            }
            (Refusal::RateLimited, _) => {
                "we are under load, and more comes than can be answered or computed"
            }
            (Refusal::UnknownPeer, _) => "its static key is no peer of this interface",
            (Refusal::ReplayedTimestamp, _) => {
                "its timestamp is not newer than the last one: the sender's clock was set back, another host has the \
                 same private key, or it is a replay"
            }
            (Refusal::NoAccess, _) => "the peer's access has expired, or its quota is used up",
            (Refusal::Flooded, _) => "it comes too soon after the last one",
            (Refusal::NotAuthentic, Some(HandshakeKind::Response)) => {
                "it does not decrypt: the peer's preshared key differs from ours, or it is forged"
            }
            (Refusal::NotAuthentic, _) => "it does not decrypt: it is damaged or forged",
            (Refusal::Unexpected, _) => "no handshake waits for it: it comes too late or twice",
        })
    }
}
