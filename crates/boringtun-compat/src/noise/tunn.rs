//! The tunnel to one peer. A datagram or a packet passes in this order:
//!
//! - out, [`Tunn::encapsulate`]: packets that waited go first → seal, or wait and begin a handshake;
//! - in, [`Tunn::decapsulate`]: parse → limit, of handshake messages → compute, or open → deliver;
//! - [`Tunn::update_timers`]: what is due.
//!
//! After each of them the device says what it wants sent ([`Tunn::drain`]). A call has one result: what else there is
//! waits for the next one.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use adit_proto::config::PublicKey;
use adit_proto::wire::{DataHeader, INITIATION_LEN};
use adit_proto::{Device, Liveness, NotSealed, Output, Peer, PeerEvent, Tai64N, Time};

use crate::log::log;
use crate::noise::clock::Clock;
use crate::noise::config;
use crate::noise::errors::WireGuardError;
use crate::noise::loss::Loss;
use crate::noise::outgoing::Outgoing;
use crate::noise::packet::{Packet, PacketData, address};
use crate::noise::rate_limiter::RateLimiter;
use crate::noise::result::TunnResult;
use crate::x25519;

/// Handshake messages a second that a tunnel looks at before their sender has to prove its address.
const HANDSHAKE_RATE: u64 = 10;
/// Packets are padded up to this length: every path takes it, and what the tunnel's MTU is nobody says here.
const PADDED_LEN: usize = 1280;
/// What a datagram has besides its packet.
const OVERHEAD: usize = 32;
/// How much of the stack sealing and opening use, and more.
const STACK: usize = 64 << 10;
/// A tunnel to one peer, without sockets and threads.
pub struct Tunn {
    device: Device,
    public_key: PublicKey,
    /// `None` for a key that can be no peer's.
    peer: Option<Arc<Peer>>,
    persistent_keepalive: u16,
    clock: Clock,
    limiter: Arc<RateLimiter>,
    /// Nobody else counts its seconds.
    owns_limiter: bool,
    outgoing: Outgoing,
    handshake: HandshakeProgress,
    last_handshake: Time,
    tx_bytes: usize,
    rx_bytes: usize,
    loss: Loss,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum HandshakeProgress {
    /// None is under way.
    None,
    UnderWay,
    /// The peer did not answer, or keys were zeroized because no handshake came.
    Expired,
}

impl Tunn {
    /// A tunnel to the peer with this public key. `index`, of which the lower 24 bits count, is what the upper
    /// 24 bits of all receiver indices are. The keepalive is in seconds. A tunnel without a limiter has one of
    /// its own.
    ///
    /// # Panics
    ///
    /// The system has no random bytes: then, and in a handshake if it has none any more.
    pub fn new(
        static_private: x25519::StaticSecret,
        peer_static_public: x25519::PublicKey,
        preshared_key: Option<[u8; 32]>,
        persistent_keepalive: Option<u16>,
        index: u32,
        rate_limiter: Option<Arc<RateLimiter>>,
    ) -> Self {
        let clock = Clock::new();
        let public_key = PublicKey(peer_static_public.to_bytes());
        let persistent_keepalive = persistent_keepalive.unwrap_or(0);
        let mut peer = config::peer(public_key, preshared_key);
        peer.persistent_keepalive = Some(persistent_keepalive);
        let mut device = config::device(index);
        let change = config::change(&static_private, Some(peer));
        if let Err(error) = device.apply(clock.now(), &change) {
            log(format_args!("this tunnel cannot work: {error}"));
        }
        Self {
            peer: device.peer(&public_key).cloned(),
            device,
            public_key,
            persistent_keepalive,
            owns_limiter: rate_limiter.is_none(),
            limiter: rate_limiter.unwrap_or_else(|| own_limiter(&(&static_private).into())),
            outgoing: Outgoing::default(),
            handshake: HandshakeProgress::None,
            last_handshake: clock.now(),
            tx_bytes: 0,
            rx_bytes: 0,
            loss: Loss::default(),
            clock,
        }
    }

    /// What a datagram says that it is.
    ///
    /// # Errors
    ///
    /// [`WireGuardError::InvalidPacket`]: it is no message of WireGuard.
    pub fn parse_incoming_packet(src: &[u8]) -> Result<Packet<'_>, WireGuardError> {
        Packet::parse(src)
    }

    /// The destination of an IP packet.
    pub fn dst_address(packet: &[u8]) -> Option<IpAddr> {
        address(packet, true)
    }

    /// Whether the peer did not answer for 90 seconds, or there was no session for 9 minutes after the last one.
    pub fn is_expired(&self) -> bool {
        self.handshake == HandshakeProgress::Expired
    }

    /// Has another private key from now on: nothing more is sent on the sessions that there are.
    pub fn set_static_private(
        &mut self,
        static_private: x25519::StaticSecret,
        static_public: x25519::PublicKey,
        rate_limiter: Option<Arc<RateLimiter>>,
    ) {
        let (now, _) = self.clock.look();
        let change = config::change(&static_private, None);
        if let Err(error) = self.device.apply(now, &change) {
            log(format_args!("the private key stays: {error}"));
            return;
        }
        self.owns_limiter = rate_limiter.is_none();
        self.limiter = rate_limiter.unwrap_or_else(|| own_limiter(&static_public));
        // What was made with the old key.
        self.outgoing.drop_datagrams();
        self.drain(now);
    }

    /// Seals a packet for the peer, into `dst`. Without a session the packet waits, at most 256 of them, and a
    /// handshake begins. An empty one is a keepalive.
    ///
    /// `dst` is to have 32 bytes more than the packet, and 148 at least. If it is too small, that is an error.
    pub fn encapsulate<'a>(&mut self, src: &[u8], dst: &'a mut [u8]) -> TunnResult<'a> {
        let now = self.clock.now();
        if src.is_empty() {
            return self.send_keepalive(now, dst);
        }
        if self.outgoing.has_packets() && self.has_session(now) {
            // Those go first.
            self.outgoing.wait(src);
            let sealed = self.seal_waiting(now, dst);
            return sealed.map_or(TunnResult::Done, |sealed| written(sealed, dst));
        }
        match self.seal(now, src, dst) {
            Ok(len) => {
                self.drain(now);
                TunnResult::WriteToNetwork(&mut dst[..len])
            }
            Err(NotSealed::NoSession(_)) => {
                self.outgoing.wait(src);
                self.begin_handshake(dst)
            }
            Err(NotSealed::NoRoom) => WireGuardError::DestinationBufferTooSmall.into(),
            Err(NotSealed::NotIp) => WireGuardError::InvalidPacket.into(),
            // Every address is the peer's: there is none.
            Err(NotSealed::NoRoute | NotSealed::NoEndpoint(_)) => WireGuardError::WrongKey.into(),
        }
    }

    /// Looks at a datagram from the peer, or from anyone; its packet is written to `dst`, which is to be as long as the
    /// datagram. `src_addr` is where it comes from: without, nobody can prove an address under load.
    ///
    /// After [`TunnResult::WriteToNetwork`], call it again with an empty datagram until it returns
    /// [`TunnResult::Done`].
    pub fn decapsulate<'a>(
        &mut self,
        src_addr: Option<IpAddr>,
        datagram: &[u8],
        dst: &'a mut [u8],
    ) -> TunnResult<'a> {
        if datagram.is_empty() {
            let now = self.clock.now();
            return self.send_more(now, dst).unwrap_or(TunnResult::Done);
        }
        // Not `dst`: a result borrows it until it has been looked at.
        let mut reply = [0; 64];
        let packet = match self.limiter.verify_packet(src_addr, datagram, &mut reply) {
            Ok(packet) => packet,
            Err(TunnResult::WriteToNetwork(reply)) => {
                let Some(to) = dst.get_mut(..reply.len()) else {
                    return WireGuardError::DestinationBufferTooSmall.into();
                };
                to.copy_from_slice(reply);
                return TunnResult::WriteToNetwork(to);
            }
            Err(TunnResult::Err(error)) => return error.into(),
            Err(_) => return TunnResult::Done,
        };
        match packet {
            Packet::PacketData(data) => self.open(&data, dst),
            other => self.handle_handshake(&other, dst),
        }
    }

    /// Does what is due: to be called some times a second. After [`TunnResult::WriteToNetwork`] it may be called again
    /// at once.
    pub fn update_timers<'a>(&mut self, dst: &'a mut [u8]) -> TunnResult<'a> {
        if self.owns_limiter {
            self.limiter.reset_count();
        }
        let (now, wall) = self.clock.look();
        self.handle_timeout(now, wall);
        if self.handshake == HandshakeProgress::Expired {
            return WireGuardError::ConnectionExpired.into();
        }
        self.send_more(now, dst).unwrap_or(TunnResult::Done)
    }

    /// Begins a handshake: the initiation, unless one is under way and none is to be forced.
    pub fn format_handshake_initiation<'a>(
        &mut self,
        dst: &'a mut [u8],
        force_resend: bool,
    ) -> TunnResult<'a> {
        if self.handshake == HandshakeProgress::UnderWay && !force_resend {
            return TunnResult::Done;
        }
        let now = self.clock.now();
        if !self.device.force_handshake(now, &self.public_key) {
            return WireGuardError::WrongKey.into();
        }
        self.begin_handshake(dst)
    }

    /// The time since the last handshake, if its session may still be used.
    pub fn time_since_last_handshake(&self) -> Option<Duration> {
        let now = self.clock.now();
        self.has_session(now)
            .then(|| now.since(self.last_handshake))
    }

    /// The keepalive in seconds, if there is one.
    pub fn persistent_keepalive(&self) -> Option<u16> {
        Some(self.persistent_keepalive).filter(|seconds| *seconds > 0)
    }

    /// The time since the last handshake, bytes of packets that were sent and that came, the part of those from the peer
    /// that were lost, and the milliseconds from our last initiation that was answered to its response.
    pub fn stats(&self) -> (Option<Duration>, usize, usize, f32, Option<u32>) {
        let status = self.device.peer_status_of(&[self.public_key]).next();
        let handshakes = status.and_then(|status| status.handshakes);
        let latency = handshakes.and_then(|handshakes| handshakes.latency);
        (
            self.time_since_last_handshake(),
            self.tx_bytes,
            self.rx_bytes,
            self.loss.estimate(),
            latency.map(|latency| u32::try_from(latency.as_millis()).unwrap_or(u32::MAX)),
        )
    }

    fn has_session(&self, now: Time) -> bool {
        let peer = self.peer.as_ref();
        peer.is_some_and(|peer| peer.session(now).is_some())
    }

    /// Seals a packet: the length of its datagram.
    fn seal(&mut self, now: Time, packet: &[u8], dst: &mut [u8]) -> Result<usize, NotSealed> {
        let room = dst.len().saturating_sub(OVERHEAD);
        // An MTU of 0 would be none.
        let padded = room.clamp(1, PADDED_LEN);
        let wall = self.clock.wall();
        let (_, len) = self.device.seal(now, wall, packet, padded, dst)?;
        self.tx_bytes += packet.len();
        Ok(len)
    }

    fn send_keepalive<'a>(&mut self, now: Time, dst: &'a mut [u8]) -> TunnResult<'a> {
        let Some(peer) = self.peer.clone() else {
            return WireGuardError::WrongKey.into();
        };
        let wall = self.clock.wall();
        if let Some((_, datagram)) = self.device.seal_keepalive(now, wall, &peer) {
            self.outgoing.push_data(&datagram);
            self.drain(now);
            return self.outgoing.copy_datagram(dst).unwrap_or(TunnResult::Done);
        }
        match self.handshake {
            HandshakeProgress::UnderWay => TunnResult::Done,
            _ => self.format_handshake_initiation(dst, false),
        }
    }

    /// A packet asked for a session.
    fn begin_handshake<'a>(&mut self, dst: &'a mut [u8]) -> TunnResult<'a> {
        let (now, wall) = self.clock.look();
        self.handle_timeout(now, wall);
        self.outgoing.copy_datagram(dst).unwrap_or(TunnResult::Done)
    }

    /// A datagram that waits for the caller, or a packet that waits for a session, if there is one.
    fn send_more<'a>(&mut self, now: Time, dst: &'a mut [u8]) -> Option<TunnResult<'a>> {
        if self.outgoing.has_datagrams() {
            return self.outgoing.copy_datagram(dst);
        }
        let sealed = self.seal_waiting(now, dst)?;
        Some(written(sealed, dst))
    }

    /// Seals the first packet that waits, if there is a session: the length of its datagram.
    fn seal_waiting(&mut self, now: Time, dst: &mut [u8]) -> Option<Result<usize, WireGuardError>> {
        // A look only: a packet that is sealed in vain asks for a session.
        if !self.has_session(now) {
            return None;
        }
        let packet = self.outgoing.take_packet()?;
        match self.seal(now, &packet, dst) {
            Ok(len) => {
                self.drain(now);
                Some(Ok(len))
            }
            Err(NotSealed::NoSession(_)) => {
                self.outgoing.put_back(packet);
                None
            }
            Err(NotSealed::NoRoom) => {
                self.outgoing.put_back(packet);
                Some(Err(WireGuardError::DestinationBufferTooSmall))
            }
            Err(_) => Some(Err(WireGuardError::InvalidPacket)),
        }
    }

    fn handle_handshake<'a>(&mut self, packet: &Packet<'_>, dst: &'a mut [u8]) -> TunnResult<'a> {
        let Some((message, _)) = packet.handshake() else {
            return TunnResult::Done;
        };
        let (now, wall) = self.clock.look();
        let outcome = self
            .device
            .handle_proven(now, wall, config::somewhere(), message);
        self.drain(now);
        if let Some(refusal) = outcome.refusal {
            log(format_args!("{outcome}"));
            return WireGuardError::of_refusal(refusal).into();
        }
        self.outgoing.copy_datagram(dst).unwrap_or(TunnResult::Done)
    }

    /// Opens data in `dst`.
    fn open<'a>(&mut self, data: &PacketData<'_>, dst: &'a mut [u8]) -> TunnResult<'a> {
        let (now, wall) = (self.clock.now(), self.clock.wall());
        let Some(text) = dst.get_mut(..data.text.len()) else {
            return WireGuardError::DestinationBufferTooSmall.into();
        };
        text.copy_from_slice(data.text);
        let header = DataHeader {
            receiver: data.receiver_idx,
            counter: data.counter,
        };
        let from = config::somewhere();
        let opened = self.device.open_text(now, wall, from, header, text);
        let opened = opened.map(|packet| (packet.len(), address(packet, false)));
        self.drain(now);
        let (len, source) = match opened {
            Ok(opened) => opened,
            Err(why) => return WireGuardError::of_not_opened(why).into(),
        };
        self.loss.note(header.receiver, header.counter);
        self.rx_bytes += len;
        match source {
            Some(IpAddr::V4(source)) => TunnResult::WriteToTunnelV4(&mut dst[..len], source),
            Some(IpAddr::V6(source)) => TunnResult::WriteToTunnelV6(&mut dst[..len], source),
            // A keepalive, which may have confirmed a session.
            None => self.send_more(now, dst).unwrap_or(TunnResult::Done),
        }
    }

    fn handle_timeout(&mut self, now: Time, wall: Tai64N) {
        if self.device.next_deadline().is_some_and(|at| at <= now) {
            self.device.handle_timeout(now, wall);
        }
        self.drain(now);
    }

    /// Takes what the device wants done.
    fn drain(&mut self, now: Time) {
        while let Some(output) = self.device.poll_output() {
            match output {
                Output::Handshake { datagram, peer, .. } => {
                    self.device.handle_sent(&datagram, peer.as_ref(), true);
                    if datagram.len() == INITIATION_LEN {
                        self.handshake = HandshakeProgress::UnderWay;
                        log(format_args!("sending a handshake initiation"));
                    }
                    self.outgoing.push_handshake(&datagram);
                }
                Output::Keepalive { peer } => {
                    let wall = self.clock.wall();
                    if let Some((_, datagram)) = self.device.seal_keepalive(now, wall, &peer) {
                        self.outgoing.push_data(&datagram);
                    }
                }
                Output::SessionReady { .. } => self.seal_first(now),
                Output::DropStaged { given_up_after, .. } => {
                    self.outgoing.drop_packets();
                    if given_up_after.is_some() {
                        self.expire("the peer did not answer for 90 seconds");
                    }
                }
                Output::Event(PeerEvent::Session { .. }) => {
                    self.handshake = HandshakeProgress::None;
                    self.last_handshake = now;
                    log(format_args!("a new session"));
                }
                Output::Event(PeerEvent::Liveness {
                    state: Liveness::Gone,
                    ..
                }) => {
                    self.expire("there was no handshake for too long");
                }
                Output::Event(_) => {}
            }
        }
        if self.device.poll_keys_dropped() {
            adit_aead::zeroizing_stack::<STACK, _>(|| ());
        }
    }

    /// There is a session: the first packet that waits confirms it, in place of a keepalive.
    fn seal_first(&mut self, now: Time) {
        let Some(packet) = self.outgoing.take_packet() else {
            return;
        };
        let mut datagram = vec![0; packet.len() + OVERHEAD];
        match self.seal(now, &packet, &mut datagram) {
            Ok(len) => self.outgoing.push_data(&datagram[..len]),
            Err(_) => self.outgoing.put_back(packet),
        }
    }

    fn expire(&mut self, why: &str) {
        if self.handshake != HandshakeProgress::Expired {
            log(format_args!("the connection has expired: {why}"));
        }
        self.handshake = HandshakeProgress::Expired;
        self.outgoing.drop_packets();
        self.outgoing.drop_datagrams();
    }
}

/// So many bytes are for the network.
fn written(sealed: Result<usize, WireGuardError>, dst: &mut [u8]) -> TunnResult<'_> {
    match sealed {
        Ok(len) => TunnResult::WriteToNetwork(&mut dst[..len]),
        Err(error) => error.into(),
    }
}

fn own_limiter(public_key: &x25519::PublicKey) -> Arc<RateLimiter> {
    Arc::new(RateLimiter::new(public_key, HANDSHAKE_RATE))
}

impl std::fmt::Debug for Tunn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tunn")
            .field("peer", &self.public_key)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "tunn_tests.rs"]
mod tests;
