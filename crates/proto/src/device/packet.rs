//! One packet at a time, with all that belongs to it, for an embedder that needs no trains.
//!
//! Out: route → session → reserve → pad → seal → note. In: look up → open → replay window → roam →
//! note → trim padding → check source.

use std::net::IpAddr;
use std::sync::Arc;

use adit_aead::{OpenJob, SealJob, TAG_LEN};

use super::Device;
use crate::peer::Peer;
use crate::session::Session;
use crate::wire::{DataHeader, padded_len};
use crate::{Endpoint, Tai64N, Time};

/// Why a packet was not sealed.
#[derive(Clone)]
pub enum NotSealed {
    /// Not a whole IPv4 or IPv6 packet.
    NotIp,
    /// No peer's allowed IPs contain its destination.
    NoRoute,
    /// The peer has no known endpoint.
    NoEndpoint(Arc<Peer>),
    /// There is no session yet, and a handshake is started. Keep the packet, a bounded number of
    /// them, until [`Output::SessionReady`](super::Output::SessionReady) or
    /// [`Output::DropStaged`](super::Output::DropStaged) names the peer.
    NoSession(Arc<Peer>),
}

/// Why a datagram was not opened. Up to `NotAuthentic` it has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotOpened {
    /// Not a transport data message.
    Invalid,
    /// No session has its receiver index, or the session is too old.
    NoSession,
    /// A replay, or older than the replay window. Its tag was not looked at.
    Replayed,
    /// Its tag is wrong.
    NotAuthentic,
    /// The plaintext is no whole IPv4 or IPv6 packet.
    NotIp,
    /// The source of what it carries is not in the peer's allowed IPs.
    WrongSource,
}

impl Device {
    /// Seals one IP packet for the peer whose allowed IPs contain its destination: where to send
    /// the datagram to, and the datagram. `mtu` is the tunnel's, beyond which no padding goes.
    ///
    /// The drain rule and the example of the [crate] apply.
    ///
    /// # Errors
    ///
    /// [`NotSealed`] says why; [`NotSealed::NoSession`] asks the caller to keep the packet.
    pub fn seal(
        &mut self,
        now: Time,
        wall: Tai64N,
        packet: &[u8],
        mtu: usize,
    ) -> Result<(Endpoint, Vec<u8>), NotSealed> {
        let inner = InnerHeader::parse(packet).ok_or(NotSealed::NotIp)?;
        let peer = self.routes.lookup(inner.destination).cloned();
        let peer = peer.ok_or(NotSealed::NoRoute)?;
        let to = peer.endpoint();
        let to = to.ok_or_else(|| NotSealed::NoEndpoint(Arc::clone(&peer)))?;
        let Some((session, datagram)) = seal(&peer, now, &packet[..inner.len], mtu) else {
            if peer.want_session() {
                self.handle_event(now, wall, &peer);
            }
            return Err(NotSealed::NoSession(peer));
        };
        if peer.data_sent(now, &session, datagram.len() as u64) {
            self.handle_event(now, wall, &peer);
        }
        Ok((to, datagram))
    }

    /// The datagram that [`Output::Keepalive`](super::Output::Keepalive) asks for; `None` if it
    /// cannot be sent any more.
    pub fn seal_keepalive(
        &mut self,
        now: Time,
        wall: Tai64N,
        peer: &Arc<Peer>,
    ) -> Option<(Endpoint, Vec<u8>)> {
        let to = peer.endpoint()?;
        let (session, datagram) = seal(peer, now, &[], 0)?;
        if peer.keepalive_sent(now, &session, datagram.len() as u64) {
            self.handle_event(now, wall, peer);
        }
        Some((to, datagram))
    }

    /// Opens one transport data message that came from `from`: returns the IP packet in it, or
    /// nothing for a keepalive.
    ///
    /// The drain rule of the [crate] applies. A datagram that [`classify`](crate::wire::classify)
    /// calls a handshake belongs to [`Device::handle_handshake`].
    ///
    /// # Errors
    ///
    /// [`NotOpened`] says why, and up to which one nothing was changed.
    pub fn open(
        &mut self,
        now: Time,
        wall: Tai64N,
        from: Endpoint,
        datagram: &[u8],
    ) -> Result<Vec<u8>, NotOpened> {
        let header = DataHeader::parse(datagram).ok_or(NotOpened::Invalid)?;
        let inbound = self.core.shared.session(header.receiver);
        let inbound = inbound.filter(|inbound| inbound.session.may_receive(now));
        let inbound = inbound.ok_or(NotOpened::NoSession)?;
        let (peer, session) = (&inbound.peer, &inbound.session);
        if !session.window().may_accept(header.counter) {
            return Err(NotOpened::Replayed);
        }
        let mut text = datagram[DataHeader::LEN..].to_vec();
        let mut job = [OpenJob::in_place(
            session.receive_key(),
            header.counter,
            &mut text,
        )];
        adit_aead::open(&mut job);
        if !job[0].is_authentic() {
            return Err(NotOpened::NotAuthentic);
        }
        if !session.window().commit(header.counter) {
            return Err(NotOpened::Replayed);
        }
        text.truncate(text.len() - TAG_LEN);
        peer.roam(from);
        if peer.received(now, session, datagram.len() as u64, !text.is_empty()) {
            self.handle_event(now, wall, peer);
        }
        if text.is_empty() {
            return Ok(text);
        }
        let inner = InnerHeader::parse(&text).ok_or(NotOpened::NotIp)?;
        let owner = self.routes.lookup(inner.source);
        if !owner.is_some_and(|owner| Arc::ptr_eq(owner, peer)) {
            return Err(NotOpened::WrongSource);
        }
        text.truncate(inner.len);
        Ok(text)
    }
}

fn seal(peer: &Peer, now: Time, packet: &[u8], mtu: usize) -> Option<(Arc<Session>, Vec<u8>)> {
    let session = peer.session(now)?;
    let counter = session.reserve(now, 1).ok()?;
    let mut datagram = vec![0; DataHeader::LEN + padded_len(packet.len(), mtu) + TAG_LEN];
    let (header, text) = datagram.split_first_chunk_mut()?;
    let receiver = session.remote_index();
    DataHeader { receiver, counter }.write(header);
    text[..packet.len()].copy_from_slice(packet);
    adit_aead::seal(&mut [SealJob::in_place(session.send_key(), counter, text)]);
    Some((session, datagram))
}

/// The fields of an IP packet that routing needs.
struct InnerHeader {
    source: IpAddr,
    destination: IpAddr,
    /// Without the padding behind it.
    len: usize,
}

impl InnerHeader {
    fn parse(packet: &[u8]) -> Option<Self> {
        let u16_at = |at: usize| {
            Some(usize::from(u16::from_be_bytes(
                *packet.get(at..)?.first_chunk()?,
            )))
        };
        let inner = match packet.first()? >> 4 {
            4 => {
                let at = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<4>()?));
                let len = u16_at(2)?;
                Self {
                    source: at(12)?,
                    destination: at(16)?,
                    len: (len >= 20).then_some(len)?,
                }
            }
            6 => {
                let at = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<16>()?));
                Self {
                    source: at(8)?,
                    destination: at(24)?,
                    len: 40 + u16_at(4)?,
                }
            }
            _ => return None,
        };
        (inner.len <= packet.len()).then_some(inner)
    }
}
