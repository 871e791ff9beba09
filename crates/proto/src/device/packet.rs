//! One packet at a time, with all that belongs to it, for an embedder that needs no trains. Nothing
//! here allocates, but for what a session keeps from its first packet on.
//!
//! Out: route → session → reserve → pad → seal → note. In: look up → open → replay window → roam →
//! note → check source → trim padding.

use std::net::IpAddr;
use std::sync::Arc;

use adit_aead::TAG_LEN;

use super::Device;
use crate::peer::Peer;
use crate::secret::PublicKey;
use crate::session::Session;
use crate::wire::{DataHeader, KEEPALIVE_LEN, sealed_len};
use crate::{AllowedIps, Endpoint, Tai64N, Time};

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
    /// The buffer is shorter than [`sealed_len`].
    NoRoom,
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
    /// Seals one IP packet for the peer whose allowed IPs contain its destination, into `out`: where
    /// to send the datagram to, and its length, which is [`sealed_len`]. `mtu` is the tunnel's,
    /// beyond which no padding goes.
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
        out: &mut [u8],
    ) -> Result<(Endpoint, usize), NotSealed> {
        let inner = InnerHeader::parse(packet).ok_or(NotSealed::NotIp)?;
        let peer = self.routes.lookup(inner.destination);
        let peer = peer.ok_or(NotSealed::NoRoute)?;
        let Some(to) = peer.endpoint() else {
            return Err(NotSealed::NoEndpoint(Arc::clone(peer)));
        };
        let session = peer.load_current();
        let Some(session) = session.as_ref().filter(|session| session.may_send(now)) else {
            let peer = Arc::clone(peer);
            return Err(self.want_session(now, wall, peer));
        };
        let len = sealed_len(inner.len, mtu);
        let datagram = out.get_mut(..len).ok_or(NotSealed::NoRoom)?;
        let Some(()) = seal(session, now, &packet[..inner.len], datagram) else {
            let peer = Arc::clone(peer);
            return Err(self.want_session(now, wall, peer));
        };
        if peer.data_sent(now, session, len as u64) {
            let peer = Arc::clone(peer);
            self.handle_event(now, wall, &peer);
        }
        Ok((to, len))
    }

    fn want_session(&mut self, now: Time, wall: Tai64N, peer: Arc<Peer>) -> NotSealed {
        if peer.want_session() {
            self.handle_event(now, wall, &peer);
        }
        NotSealed::NoSession(peer)
    }

    /// The datagram that [`Output::Keepalive`](super::Output::Keepalive) asks for; `None` if it
    /// cannot be sent any more.
    pub fn seal_keepalive(
        &mut self,
        now: Time,
        wall: Tai64N,
        peer: &Arc<Peer>,
    ) -> Option<(Endpoint, [u8; KEEPALIVE_LEN])> {
        let to = peer.endpoint()?;
        let session = peer.session(now)?;
        let mut datagram = [0; KEEPALIVE_LEN];
        seal(&session, now, &[], &mut datagram)?;
        if peer.keepalive_sent(now, &session, KEEPALIVE_LEN as u64) {
            self.handle_event(now, wall, peer);
        }
        Some((to, datagram))
    }

    /// Opens one transport data message that came from `from`, where it stands: returns the IP
    /// packet in it, or nothing for a keepalive. After an error, what is in `datagram` is of no use.
    ///
    /// The drain rule of the [crate] applies. A datagram that [`classify`](crate::wire::classify)
    /// calls a handshake belongs to [`Device::handle_handshake`].
    ///
    /// # Errors
    ///
    /// [`NotOpened`] says why, and up to which one nothing was changed.
    pub fn open<'a>(
        &mut self,
        now: Time,
        wall: Tai64N,
        from: Endpoint,
        datagram: &'a mut [u8],
    ) -> Result<&'a [u8], NotOpened> {
        let header = DataHeader::parse(datagram).ok_or(NotOpened::Invalid)?;
        self.open_text(now, wall, from, header, &mut datagram[DataHeader::LEN..])
    }

    /// The same for a message whose text, with its tag, stands elsewhere than behind its header.
    ///
    /// # Errors
    ///
    /// As of [`Device::open`].
    pub fn open_text<'a>(
        &mut self,
        now: Time,
        wall: Tai64N,
        from: Endpoint,
        header: DataHeader,
        text: &'a mut [u8],
    ) -> Result<&'a [u8], NotOpened> {
        let len = DataHeader::LEN + text.len();
        let sessions = self.core.shared.sessions(header.receiver);
        let inbound = sessions.get(&header.receiver);
        let inbound = inbound.filter(|inbound| inbound.session.may_receive(now));
        let inbound = inbound.ok_or(NotOpened::NoSession)?;
        let (peer, session) = (&inbound.peer, &inbound.session);
        let text = open(session, header.counter, text)?;
        peer.roam(from);
        let wakes = peer.received(now, session, len as u64, !text.is_empty());
        let packet = inner_packet(&self.routes, peer, text);
        if wakes {
            let peer = Arc::clone(peer);
            drop(sessions);
            self.handle_event(now, wall, &peer);
        }
        packet
    }

    /// Begins a handshake with a peer at once: in place of one that is under way, and however short a
    /// time ago the last one was. A caller that does so often floods the peer. False if there is no such
    /// peer.
    pub fn force_handshake(&mut self, now: Time, key: &PublicKey) -> bool {
        let Some(id) = self.by_key.get(key).copied() else {
            return false;
        };
        if let Some(state) = self.peers.get_mut(&id) {
            state.last_sent_handshake = None;
            state.probe(now);
            state.restart_handshake(now);
        }
        self.reschedule(id);
        true
    }

    /// All receiver indices have these upper 24 bits from now on: a program with a device for each peer
    /// tells by them which one a datagram is for. Only for a device with one peer, which has at most six
    /// indices at a time, and with one receive queue.
    pub fn set_index_prefix(&mut self, prefix: u32) {
        self.core.index_prefix = Some(prefix);
    }
}

/// Seals a packet, with as many zeros as there is room for.
fn seal(session: &Session, now: Time, packet: &[u8], datagram: &mut [u8]) -> Option<()> {
    let (header, text) = datagram.split_first_chunk_mut()?;
    let counter = session.reserve(now, 1).ok()?;
    let receiver = session.remote_index();
    DataHeader { receiver, counter }.write(header);
    let (copied, rest) = text.split_at_mut(packet.len());
    copied.copy_from_slice(packet);
    rest.fill(0);
    adit_aead::seal_one(session.send_key(), counter, text);
    Some(())
}

/// Opens a text with its tag, and moves the replay window.
fn open<'a>(session: &Session, counter: u64, text: &'a mut [u8]) -> Result<&'a [u8], NotOpened> {
    let mut window = session.window();
    if !window.may_accept(counter) {
        return Err(NotOpened::Replayed);
    }
    if !adit_aead::open_one(session.receive_key(), counter, text) {
        return Err(NotOpened::NotAuthentic);
    }
    if !window.commit(counter) {
        return Err(NotOpened::Replayed);
    }
    let text = text.split_last_chunk::<TAG_LEN>();
    text.map(|(text, _)| text).ok_or(NotOpened::Invalid)
}

/// The packet of a text without its padding, if its source is the peer's.
fn inner_packet<'a>(
    routes: &AllowedIps<Arc<Peer>>,
    peer: &Arc<Peer>,
    text: &'a [u8],
) -> Result<&'a [u8], NotOpened> {
    if text.is_empty() {
        return Ok(text);
    }
    let inner = InnerHeader::parse(text).ok_or(NotOpened::NotIp)?;
    let owner = routes.lookup(inner.source);
    if !owner.is_some_and(|owner| Arc::ptr_eq(owner, peer)) {
        return Err(NotOpened::WrongSource);
    }
    Ok(&text[..inner.len])
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
