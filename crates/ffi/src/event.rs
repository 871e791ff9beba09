//! Events of tunnels and devices.

#![allow(unsafe_code)]

use adit::{Event, PublicKey};

use crate::abi::SizeFirst;
use crate::packets::adit_address;

/// A handshake succeeded: `peer` has a new session, and is reached at `address`.
pub const ADIT_EVENT_SESSION: u32 = 1;
/// `peer` is reached at `address`, and was at `before`.
pub const ADIT_EVENT_ROAMED: u32 = 2;
/// `peer` answers again.
pub const ADIT_EVENT_REACHABLE: u32 = 3;
/// `peer` does not answer any more.
pub const ADIT_EVENT_UNREACHABLE: u32 = 4;
/// A handshake with `peer` was given up after `count` initiations.
pub const ADIT_EVENT_GIVEN_UP: u32 = 5;
/// `count` events were not told, because nobody took those before.
pub const ADIT_EVENT_MISSED: u32 = 6;
/// Something that this version of the header has no name for.
pub const ADIT_EVENT_OTHER: u32 = 7;

/// Something that happened. Nothing in it is secret.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct adit_event {
    /// `sizeof(adit_event)`, set by the caller.
    pub struct_size: usize,
    /// One of ADIT_EVENT_….
    pub kind: u32,
    /// The public key of the peer; zeros where there is none.
    pub peer: [u8; 32],
    /// Where the peer is reached; of family 0 where that is not told.
    pub address: adit_address,
    /// Where it was before.
    pub before: adit_address,
    /// How many.
    pub count: u64,
}

// SAFETY: it is repr(C), its size is first, and it has numbers only.
unsafe impl SizeFirst for adit_event {
    const LEAST: usize = size_of::<Self>();
}

impl From<Event> for adit_event {
    fn from(event: Event) -> Self {
        let none = adit_address::default();
        let of = |kind, peer: PublicKey| Self {
            struct_size: size_of::<Self>(),
            kind,
            peer: *peer.as_bytes(),
            address: none,
            before: none,
            count: 0,
        };
        let nobody = PublicKey::from_bytes([0; 32]);
        match event {
            Event::Session { peer, endpoint } => Self {
                address: endpoint.map_or(none, adit_address::from),
                ..of(ADIT_EVENT_SESSION, peer)
            },
            Event::Roamed { peer, from, to } => Self {
                address: to.into(),
                before: from.into(),
                ..of(ADIT_EVENT_ROAMED, peer)
            },
            Event::Reachable { peer } => of(ADIT_EVENT_REACHABLE, peer),
            Event::Unreachable { peer } => of(ADIT_EVENT_UNREACHABLE, peer),
            Event::GivenUp { peer, initiations } => Self {
                count: initiations.into(),
                ..of(ADIT_EVENT_GIVEN_UP, peer)
            },
            Event::Missed { count } => Self {
                count,
                ..of(ADIT_EVENT_MISSED, nobody)
            },
            _ => of(ADIT_EVENT_OTHER, nobody),
        }
    }
}
