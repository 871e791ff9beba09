//! What a datagram says that it is, by its type and length alone.

use std::net::IpAddr;

use adit_proto::wire::{COOKIE_REPLY_LEN, DataHeader, INITIATION_LEN, RESPONSE_LEN};

use crate::noise::errors::WireGuardError;

/// An initiation of a handshake.
#[derive(Debug)]
pub struct HandshakeInit<'a> {
    pub(crate) sender_idx: u32,
    pub(crate) message: &'a [u8],
}

/// The response to one.
#[derive(Debug)]
pub struct HandshakeResponse<'a> {
    pub(crate) sender_idx: u32,
    /// The index of the initiation that it answers; its upper 24 bits are the caller's.
    pub receiver_idx: u32,
    pub(crate) message: &'a [u8],
}

/// The answer of a responder under load.
#[derive(Debug)]
pub struct PacketCookieReply<'a> {
    /// The index of the message that it answers; its upper 24 bits are the caller's.
    pub receiver_idx: u32,
    pub(crate) message: &'a [u8],
}

/// Data of a session.
#[derive(Debug)]
pub struct PacketData<'a> {
    /// The index of the session; its upper 24 bits are the caller's.
    pub receiver_idx: u32,
    pub(crate) counter: u64,
    pub(crate) text: &'a [u8],
}

/// A datagram.
#[derive(Debug)]
pub enum Packet<'a> {
    /// The first message of a handshake.
    HandshakeInit(HandshakeInit<'a>),
    /// The second.
    HandshakeResponse(HandshakeResponse<'a>),
    /// A cookie.
    PacketCookieReply(PacketCookieReply<'a>),
    /// Data.
    PacketData(PacketData<'a>),
}

impl<'a> Packet<'a> {
    pub(crate) fn parse(datagram: &'a [u8]) -> Result<Self, WireGuardError> {
        if let Some(header) = DataHeader::parse(datagram) {
            return Ok(Self::PacketData(PacketData {
                receiver_idx: header.receiver,
                counter: header.counter,
                text: &datagram[DataHeader::LEN..],
            }));
        }
        let word = |at: usize| {
            let bytes = datagram.get(at..).and_then(<[u8]>::first_chunk);
            bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        match (word(0), datagram.len()) {
            (1, INITIATION_LEN) => Ok(Self::HandshakeInit(HandshakeInit {
                sender_idx: word(4),
                message: datagram,
            })),
            (2, RESPONSE_LEN) => Ok(Self::HandshakeResponse(HandshakeResponse {
                sender_idx: word(4),
                receiver_idx: word(8),
                message: datagram,
            })),
            (3, COOKIE_REPLY_LEN) => Ok(Self::PacketCookieReply(PacketCookieReply {
                receiver_idx: word(4),
                message: datagram,
            })),
            _ => Err(WireGuardError::InvalidPacket),
        }
    }

    /// The whole message, unless it is data; and who sends it.
    pub(crate) fn handshake(&self) -> Option<(&'a [u8], Option<u32>)> {
        match self {
            Self::HandshakeInit(it) => Some((it.message, Some(it.sender_idx))),
            Self::HandshakeResponse(it) => Some((it.message, Some(it.sender_idx))),
            Self::PacketCookieReply(it) => Some((it.message, None)),
            Self::PacketData(_) => None,
        }
    }
}

/// An address of an IP packet: that of its source, or that of its destination.
pub(crate) fn address(packet: &[u8], is_destination: bool) -> Option<IpAddr> {
    let index = usize::from(is_destination);
    match packet.first()? >> 4 {
        4 if packet.len() >= 20 => {
            let address: &[u8; 4] = packet[12 + 4 * index..].first_chunk()?;
            Some((*address).into())
        }
        6 if packet.len() >= 40 => {
            let address: &[u8; 16] = packet[8 + 16 * index..].first_chunk()?;
            Some((*address).into())
        }
        _ => None,
    }
}
