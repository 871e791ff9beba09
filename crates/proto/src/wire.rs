//! The four messages (whitepaper 5.4) as views of bytes: one length check, after which no accessor
//! can panic.

/// Type, reserved zeros, sender, ephemeral, static and tag, timestamp and tag, mac1, mac2 (5.4.2).
pub const INITIATION_LEN: usize = 148;
/// Type, reserved zeros, sender, receiver, ephemeral, empty and tag, mac1, mac2 (5.4.3).
pub const RESPONSE_LEN: usize = 92;
/// Type, reserved zeros, receiver, nonce, cookie and tag (5.4.7).
pub const COOKIE_REPLY_LEN: usize = 64;
/// Header and tag of a transport data message without a packet (6.5).
pub const KEEPALIVE_LEN: usize = DataHeader::LEN + TAG_LEN;
/// First byte and length of every message that is no data.
pub const HANDSHAKE_LENGTHS: [(u8, usize); 3] = [
    (1, INITIATION_LEN),
    (2, RESPONSE_LEN),
    (3, COOKIE_REPLY_LEN),
];
/// mac1 and mac2 at the end of an initiation or response.
pub(crate) const MACS_LEN: usize = 32;
const TAG_LEN: usize = 16;

/// The header of a transport data message (5.4.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// The index that the receiver chose for the session.
    pub receiver: u32,
    /// The nonce.
    pub counter: u64,
}

impl DataHeader {
    /// The first byte of the message; three zero bytes follow.
    pub const TYPE: u8 = 4;
    /// Bytes before the ciphertext.
    pub const LEN: usize = 16;
    /// Where the first byte of [`Self::receiver`] is that a peer's sessions have in common.
    pub const RX_QUEUE_AT: usize = 7;

    /// Writes the header of a message.
    pub fn write(&self, out: &mut [u8; Self::LEN]) {
        out[..4].copy_from_slice(&u32::from(Self::TYPE).to_le_bytes());
        out[4..8].copy_from_slice(&self.receiver.to_le_bytes());
        out[8..].copy_from_slice(&self.counter.to_le_bytes());
    }

    /// The header of a data message; `None` for anything else and for what is too short to hold a
    /// tag.
    #[inline]
    pub fn parse(datagram: &[u8]) -> Option<Self> {
        if datagram.len() < Self::LEN + TAG_LEN {
            return None;
        }
        (message_type(datagram)? == u32::from(Self::TYPE)).then_some(Self {
            receiver: u32::from_le_bytes(*field(datagram, 4)),
            counter: u64::from_le_bytes(*field(datagram, 8)),
        })
    }
}

/// A datagram's claim of what it is, by its type and length alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramKind {
    /// Initiation, response or cookie reply: for
    /// [`Device::handle_handshake`](crate::Device::handle_handshake).
    Handshake,
    /// Transport data: for the shard itself.
    Data,
}

/// Sorts a datagram; `None` if it is no message of the protocol.
#[inline]
pub fn classify(datagram: &[u8]) -> Option<DatagramKind> {
    match (message_type(datagram)?, datagram.len()) {
        (1, INITIATION_LEN) | (2, RESPONSE_LEN) | (3, COOKIE_REPLY_LEN) => {
            Some(DatagramKind::Handshake)
        }
        (4, len) if len >= DataHeader::LEN + TAG_LEN => Some(DatagramKind::Data),
        _ => None,
    }
}

/// The length of a packet of `len` bytes after padding: the next multiple of 16, but not beyond the
/// MTU (5.4.6).
///
/// A packet that is longer than the MTU already stays as it is; an MTU of 0 is unknown and bounds
/// nothing.
#[inline]
pub fn padded_len(len: usize, mtu: usize) -> usize {
    let padded = len.next_multiple_of(16);
    if mtu == 0 {
        padded
    } else {
        padded.min(mtu).max(len)
    }
}

/// The length of a datagram that carries a packet of `len` bytes, with its padding.
#[inline]
pub fn sealed_len(len: usize, mtu: usize) -> usize {
    DataHeader::LEN + padded_len(len, mtu) + TAG_LEN
}

/// The type and the three reserved bytes, which must be zero.
#[inline]
fn message_type(datagram: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(*datagram.first_chunk()?))
}

#[inline]
fn field<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk().expect("the length was checked")
}

/// A handshake message or cookie reply of the right type and length.
#[derive(Clone, Copy)]
pub(crate) enum ParsedMessage<'a> {
    Initiation(Initiation<'a>),
    Response(Response<'a>),
    CookieReply(CookieReply<'a>),
}

impl<'a> ParsedMessage<'a> {
    pub(crate) fn parse(datagram: &'a [u8]) -> Option<Self> {
        match message_type(datagram)? {
            1 => Some(Self::Initiation(Initiation(datagram.try_into().ok()?))),
            2 => Some(Self::Response(Response(datagram.try_into().ok()?))),
            3 => Some(Self::CookieReply(CookieReply(datagram.try_into().ok()?))),
            _ => None,
        }
    }
}

/// The message of the initiator (5.4.2).
#[derive(Clone, Copy)]
pub(crate) struct Initiation<'a>(&'a [u8; INITIATION_LEN]);

impl<'a> Initiation<'a> {
    pub(crate) fn sender(&self) -> u32 {
        u32::from_le_bytes(*field(self.0, 4))
    }
    pub(crate) fn ephemeral(&self) -> &'a [u8; 32] {
        field(self.0, 8)
    }
    pub(crate) fn static_key(&self) -> &'a [u8; 48] {
        field(self.0, 40)
    }
    pub(crate) fn timestamp(&self) -> &'a [u8; 28] {
        field(self.0, 88)
    }

    /// An initiation without its macs.
    pub(crate) fn write(
        sender: u32,
        ephemeral: &[u8; 32],
        static_key: &[u8; 48],
        timestamp: &[u8; 28],
    ) -> [u8; INITIATION_LEN] {
        let mut out = [0; INITIATION_LEN];
        out[0] = 1;
        out[4..8].copy_from_slice(&sender.to_le_bytes());
        out[8..40].copy_from_slice(ephemeral);
        out[40..88].copy_from_slice(static_key);
        out[88..116].copy_from_slice(timestamp);
        out
    }
}

/// The message of the responder (5.4.3).
#[derive(Clone, Copy)]
pub(crate) struct Response<'a>(&'a [u8; RESPONSE_LEN]);

impl<'a> Response<'a> {
    pub(crate) fn sender(&self) -> u32 {
        u32::from_le_bytes(*field(self.0, 4))
    }
    pub(crate) fn receiver(&self) -> u32 {
        u32::from_le_bytes(*field(self.0, 8))
    }
    pub(crate) fn ephemeral(&self) -> &'a [u8; 32] {
        field(self.0, 12)
    }
    pub(crate) fn empty(&self) -> &'a [u8; 16] {
        field(self.0, 44)
    }

    /// A response without its macs.
    pub(crate) fn write(
        sender: u32,
        receiver: u32,
        ephemeral: &[u8; 32],
        empty: &[u8; 16],
    ) -> [u8; RESPONSE_LEN] {
        let mut out = [0; RESPONSE_LEN];
        out[0] = 2;
        out[4..8].copy_from_slice(&sender.to_le_bytes());
        out[8..12].copy_from_slice(&receiver.to_le_bytes());
        out[12..44].copy_from_slice(ephemeral);
        out[44..60].copy_from_slice(empty);
        out
    }
}

/// The answer of a responder under load (5.4.7).
#[derive(Clone, Copy)]
pub(crate) struct CookieReply<'a>(&'a [u8; COOKIE_REPLY_LEN]);

impl<'a> CookieReply<'a> {
    pub(crate) fn receiver(&self) -> u32 {
        u32::from_le_bytes(*field(self.0, 4))
    }
    pub(crate) fn nonce(&self) -> &'a [u8; 24] {
        field(self.0, 8)
    }
    pub(crate) fn cookie(&self) -> &'a [u8; 32] {
        field(self.0, 32)
    }

    pub(crate) fn write(
        receiver: u32,
        nonce: &[u8; 24],
        cookie: &[u8; 32],
    ) -> [u8; COOKIE_REPLY_LEN] {
        let mut out = [0; COOKIE_REPLY_LEN];
        out[0] = 3;
        out[4..8].copy_from_slice(&receiver.to_le_bytes());
        out[8..32].copy_from_slice(nonce);
        out[32..].copy_from_slice(cookie);
        out
    }
}
