//! Why something was not done.

use std::fmt;

use adit_proto::{NotOpened, Refusal};

/// Why something was not done. The order is boringtun's: in C an error is its place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireGuardError {
    /// The result does not fit the caller's buffer.
    DestinationBufferTooSmall,
    /// Not told by this crate.
    IncorrectPacketLength,
    /// A response or a cookie reply for no handshake that is under way.
    UnexpectedPacket,
    /// Not told by this crate.
    WrongPacketType,
    /// Not told by this crate.
    WrongIndex,
    /// The message is of another peer, or a key can be none.
    WrongKey,
    /// Not told by this crate.
    InvalidTai64nTimestamp,
    /// The timestamp of an initiation is not after the one before: a replay, or a clock that went back.
    WrongTai64nTimestamp,
    /// The sender has another public key for us.
    InvalidMac,
    /// The message is damaged or forged, or preshared keys differ.
    InvalidAeadTag,
    /// Not told by this crate: [`DuplicateCounter`](Self::DuplicateCounter) is.
    InvalidCounter,
    /// The datagram came before, or is too old to tell.
    DuplicateCounter,
    /// No message of WireGuard, or no IP packet.
    InvalidPacket,
    /// No session has this index, or it is too old.
    NoCurrentSession,
    /// In C: the tunnel is NULL, or a mistake in this library has happened to it.
    LockFailed,
    /// The peer did not answer for 90 seconds, or there was no new session for 9 minutes. Begin a handshake.
    ConnectionExpired,
    /// More handshake messages come than are looked at.
    UnderLoad,
}

impl fmt::Display for WireGuardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DestinationBufferTooSmall => "the buffer for the result is too small",
            Self::IncorrectPacketLength => "the length of the message is wrong",
            Self::UnexpectedPacket => "no handshake that is under way waits for the message",
            Self::WrongPacketType => "the type of the message is wrong",
            Self::WrongIndex => "the index of the message is wrong",
            Self::WrongKey => "the message is of another peer, or a key can be none",
            Self::InvalidTai64nTimestamp => "the timestamp of the initiation is none",
            Self::WrongTai64nTimestamp => "the initiation is not newer than the one before",
            Self::InvalidMac => "the sender has another public key for us",
            Self::InvalidAeadTag => "the message is damaged or forged, or preshared keys differ",
            Self::InvalidCounter => "the datagram is too old",
            Self::DuplicateCounter => "the datagram came before, or is too old",
            Self::InvalidPacket => "this is no message of WireGuard, or no IP packet",
            Self::NoCurrentSession => "there is no session with this index",
            Self::LockFailed => "the tunnel cannot be used",
            Self::ConnectionExpired => "the peer does not answer: begin a handshake",
            Self::UnderLoad => "more handshakes come than are looked at",
        })
    }
}

impl std::error::Error for WireGuardError {}

impl WireGuardError {
    pub(crate) fn of_refusal(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Invalid => Self::InvalidPacket,
            Refusal::BadMac1 => Self::InvalidMac,
            Refusal::CookieRequired | Refusal::RateLimited | Refusal::Flooded => Self::UnderLoad,
            Refusal::UnknownPeer | Refusal::NoPrivateKey | Refusal::NoAccess => Self::WrongKey,
            Refusal::ReplayedTimestamp => Self::WrongTai64nTimestamp,
            Refusal::NotAuthentic => Self::InvalidAeadTag,
            Refusal::Unexpected => Self::UnexpectedPacket,
        }
    }

    pub(crate) fn of_not_opened(why: NotOpened) -> Self {
        match why {
            // Every source is the peer's: the last is not told.
            NotOpened::Invalid | NotOpened::NotIp | NotOpened::WrongSource => Self::InvalidPacket,
            NotOpened::NoSession => Self::NoCurrentSession,
            NotOpened::Replayed => Self::DuplicateCounter,
            NotOpened::NotAuthentic => Self::InvalidAeadTag,
        }
    }
}
