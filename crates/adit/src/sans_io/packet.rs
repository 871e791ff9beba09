//! Packets that are to be sent.

use crate::frame::Gso;

/// A packet that is to be sent: an IP packet, or a GSO packet, which stands for several of one
/// flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketRef<'a> {
    /// From the IP header on. Bytes behind the length that the header tells are left out.
    pub bytes: &'a [u8],
    /// How it is cut, if it stands for several.
    pub gso: Option<Gso>,
}

impl<'a> PacketRef<'a> {
    /// One IP packet.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, gso: None }
    }

    /// A GSO packet.
    pub fn with_gso(bytes: &'a [u8], gso: Gso) -> Self {
        let gso = Some(gso);
        Self { bytes, gso }
    }
}

/// What can be sent as a packet, so that slices of a caller's own type are batches as they are.
pub trait AsPacket {
    /// The packet.
    fn as_packet(&self) -> PacketRef<'_>;
}

impl AsPacket for PacketRef<'_> {
    fn as_packet(&self) -> PacketRef<'_> {
        *self
    }
}

impl AsPacket for &[u8] {
    fn as_packet(&self) -> PacketRef<'_> {
        PacketRef::new(self)
    }
}

impl AsPacket for Vec<u8> {
    fn as_packet(&self) -> PacketRef<'_> {
        PacketRef::new(self)
    }
}
