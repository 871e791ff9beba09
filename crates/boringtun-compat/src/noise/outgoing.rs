//! What is to be sent: packets that wait for a session, and datagrams that wait for the caller.

use std::collections::VecDeque;

use zeroize::Zeroizing;

use crate::noise::errors::WireGuardError;
use crate::noise::result::TunnResult;

/// Packets that wait for a session. The oldest goes first: what a user wants by now is newer.
const MAX_PACKETS: usize = 256;
/// Bytes of these.
const MAX_BYTES: usize = 1 << 20;
/// Datagrams that wait for the caller's next call.
const MAX_DATAGRAMS: usize = 16;

/// The first byte of an initiation.
const INITIATION: u8 = 1;

#[derive(Default)]
pub(crate) struct Outgoing {
    packets: VecDeque<Zeroizing<Vec<u8>>>,
    bytes: usize,
    datagrams: VecDeque<Vec<u8>>,
}

impl Outgoing {
    /// Keeps a packet until there is a session.
    pub(crate) fn wait(&mut self, packet: &[u8]) {
        while self.packets.len() >= MAX_PACKETS || self.bytes + packet.len() > MAX_BYTES {
            if self.take_packet().is_none() {
                return;
            }
        }
        self.bytes += packet.len();
        self.packets.push_back(Zeroizing::new(packet.to_vec()));
    }

    pub(crate) fn has_packets(&self) -> bool {
        !self.packets.is_empty()
    }

    /// The packet that waited longest.
    pub(crate) fn take_packet(&mut self) -> Option<Zeroizing<Vec<u8>>> {
        let packet = self.packets.pop_front()?;
        self.bytes -= packet.len();
        Some(packet)
    }

    /// It is still the one that waited longest.
    pub(crate) fn put_back(&mut self, packet: Zeroizing<Vec<u8>>) {
        self.bytes += packet.len();
        self.packets.push_front(packet);
    }

    pub(crate) fn drop_packets(&mut self) {
        self.packets.clear();
        self.bytes = 0;
    }

    /// A message of a handshake, which goes before data. An initiation takes the place of the one before.
    pub(crate) fn push_handshake(&mut self, message: &[u8]) {
        if message.first() == Some(&INITIATION) {
            let is_other = |datagram: &Vec<u8>| datagram.first() != Some(&INITIATION);
            self.datagrams.retain(is_other);
        }
        self.datagrams.truncate(MAX_DATAGRAMS - 1);
        self.datagrams.push_front(message.to_vec());
    }

    /// Data. If nobody takes what waits, it is lost, as in any network.
    pub(crate) fn push_data(&mut self, datagram: &[u8]) {
        if self.datagrams.len() < MAX_DATAGRAMS {
            self.datagrams.push_back(datagram.to_vec());
        }
    }

    pub(crate) fn has_datagrams(&self) -> bool {
        !self.datagrams.is_empty()
    }

    pub(crate) fn drop_datagrams(&mut self) {
        self.datagrams.clear();
    }

    /// Copies the first datagram for the caller; `None` if none waits.
    pub(crate) fn copy_datagram<'a>(&mut self, dst: &'a mut [u8]) -> Option<TunnResult<'a>> {
        let len = self.datagrams.front()?.len();
        let Some(to) = dst.get_mut(..len) else {
            return Some(WireGuardError::DestinationBufferTooSmall.into());
        };
        to.copy_from_slice(&self.datagrams.pop_front()?);
        Some(TunnResult::WriteToNetwork(to))
    }
}
