//! The device: what it has, what it wants done, and what it tells.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use adit_proto::{self as proto, Liveness, Output, Peer, PeerEvent, Shared};

use super::clock::Now;
use super::outbox::Outbox;
use super::scratch::{Handshakes, OpenScratch, UnsealedTrain};
use super::stats::DeviceStats;
use super::waiting::Waiting;
use crate::config::{Change, Config, ConfigError, Status, check_mtu};
use crate::event::Event;
use crate::keys::{PublicKey, RandomError, random};

/// The MTU that a device has unless another is set.
const MTU: usize = 1420;
/// Events that wait to be taken.
const MAX_EVENTS: usize = 256;
/// An outbox with less room takes no message of the protocol.
const ROOM_FOR_ONE: usize = 256;
/// How much of the stack sealing and opening use, and more.
const STACK: usize = 64 << 10;

/// A WireGuard device without sockets, clocks and threads; the [module](super) tells how to drive
/// one.
pub struct Device {
    pub(super) proto: proto::Device,
    pub(super) shared: Arc<Shared>,
    pub(super) mtu: usize,
    latest: Now,
    pub(super) waiting: Waiting,
    /// Peers with a session whose packets did not fit the outbox.
    ready: VecDeque<Arc<Peer>>,
    /// Something is left to do for which the outbox had no room.
    is_behind: bool,
    pub(super) handshakes: Handshakes,
    events: VecDeque<Event>,
    /// Events that are not among them.
    missed: u64,
    pub(super) stats: DeviceStats,
    /// Buffers that are used again.
    pub(super) unsealed: Vec<UnsealedTrain>,
    pub(super) scratch: OpenScratch,
}

/// Why there is no device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceError {
    /// The configuration is wrong.
    Config(ConfigError),
    /// The system has no random bytes.
    Random(RandomError),
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Random(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for DeviceError {}

impl From<ConfigError> for DeviceError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl Device {
    /// A device of this configuration, with the system's random bytes.
    ///
    /// # Errors
    ///
    /// [`DeviceError`]: the configuration is wrong, or the system has no random bytes.
    ///
    /// # Panics
    ///
    /// Handshakes do, if the system has no random bytes any more after it had some: no key may be
    /// made then. No system does that once it is up.
    pub fn new(config: &Config) -> Result<Self, DeviceError> {
        random(&mut [0; 32]).map_err(DeviceError::Random)?;
        let fill = |bytes: &mut [u8]| random(bytes).expect("the system has random bytes");
        Ok(Self::with_random(config, fill)?)
    }

    /// The same with random bytes of the caller's: `fill` fills a buffer. All keys of sessions are
    /// made of them.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: the configuration is wrong.
    pub fn with_random(
        config: &Config,
        fill: impl FnMut(&mut [u8]) + Send + 'static,
    ) -> Result<Self, ConfigError> {
        let change = Change::to(config)?;
        let mut proto = proto::Device::new(Box::new(fill));
        let latest = Now::new(Duration::ZERO, Duration::ZERO);
        proto
            .apply(latest.time, change.as_proto())
            .map_err(ConfigError::of)?;
        Ok(Self {
            shared: proto.shared(),
            proto,
            mtu: MTU,
            latest,
            waiting: Waiting::default(),
            ready: VecDeque::new(),
            is_behind: false,
            handshakes: Handshakes::default(),
            events: VecDeque::new(),
            missed: 0,
            stats: DeviceStats::default(),
            unsealed: Vec::new(),
            scratch: OpenScratch::default(),
        })
    }

    /// Sets the MTU of the tunnel, which is 1420 otherwise. Longer packets are sealed as well, but
    /// none is padded beyond it.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Mtu`]: it is none that a tunnel can have.
    pub fn set_mtu(&mut self, mtu: usize) -> Result<(), ConfigError> {
        self.mtu = check_mtu(mtu)?;
        Ok(())
    }

    /// Changes the configuration.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: nothing was changed.
    pub fn set(&mut self, now: Now, change: &Change) -> Result<(), ConfigError> {
        let now = self.at(now);
        let applied = self.proto.apply(now.time, change.as_proto());
        applied.map_err(ConfigError::of)?;
        self.is_behind = true;
        Ok(())
    }

    /// How it is, and how its peers are.
    pub fn status(&self) -> Status {
        Status::of(self.proto.status())
    }

    /// Begins a handshake with a peer, unless one is under way or was a moment ago. False if there
    /// is no such peer. The message leaves with the next [`handle_timeout`](Self::handle_timeout).
    pub fn probe(&mut self, now: Now, peer: PublicKey) -> bool {
        let now = self.at(now);
        self.proto.probe(now.time, &peer.to_proto()).is_some()
    }

    /// What it has done so far.
    pub fn stats(&self) -> DeviceStats {
        let handshakes = self.proto.handshake_stats();
        DeviceStats {
            waiting_packets: self.waiting.packets(),
            handshakes: handshakes.responses_accepted + handshakes.confirmed,
            given_up: handshakes.given_up,
            refused: handshakes.invalid
                + handshakes.bad_mac1
                + handshakes.rate_limited
                + handshakes.unknown_peer
                + handshakes.replayed_timestamp
                + handshakes.flooded
                + handshakes.not_authentic
                + handshakes.unexpected,
            cookies: handshakes.cookies_sent,
            ..self.stats
        }
    }

    /// Takes the events so far, oldest first. At most 256 wait; how many did not fit is told behind
    /// them, by [`Event::Missed`].
    pub fn events(&mut self) -> impl Iterator<Item = Event> {
        let missed = match std::mem::take(&mut self.missed) {
            0 => None,
            count => Some(Event::Missed { count }),
        };
        self.events.drain(..).chain(missed)
    }

    /// How long until [`handle_timeout`](Self::handle_timeout) is to be called; zero if it is to be
    /// called now, `None` if nothing is to be done until a packet or a datagram comes.
    pub fn next_deadline(&self, now: Now) -> Option<Duration> {
        if self.is_behind || !self.ready.is_empty() || !self.handshakes.is_empty() {
            return Some(Duration::ZERO);
        }
        let time = now.time.max(self.latest.time);
        self.proto.next_deadline().map(|at| at.since(time))
    }

    /// Does what is due: handshakes begin and are repeated, keepalives leave, sessions end.
    /// Harmless at any time. Of many peers that are due at once some may still be afterwards: call
    /// it again when the outbox was sent.
    pub fn handle_timeout(&mut self, now: Now, outbox: &mut Outbox) {
        let now = self.at(now);
        outbox.reclaim();
        self.handle_outputs(now, outbox);
        self.handle_handshakes(now, outbox);
        // What the protocol has to say is not to pile up.
        if !self.is_behind {
            self.proto.handle_timeout(now.time, now.wall);
            self.handle_outputs(now, outbox);
        }
    }

    /// The time, which does not go back whatever the caller says.
    pub(super) fn at(&mut self, now: Now) -> Now {
        let time = now.time.max(self.latest.time);
        self.latest = Now { time, ..now };
        self.latest
    }

    /// A method of the peer said that the protocol is to look at it.
    pub(super) fn look_at(&mut self, now: Now, peer: &Arc<Peer>) {
        self.proto.handle_event(now.time, now.wall, peer);
    }

    /// Does what the protocol wants done, as far as the outbox has room.
    pub(super) fn handle_outputs(&mut self, now: Now, outbox: &mut Outbox) {
        self.is_behind = false;
        while let Some(peer) = self.ready.pop_front() {
            if !self.send_waiting(now, &peer, outbox) {
                self.ready.push_front(peer);
                break;
            }
        }
        loop {
            if outbox.room() < ROOM_FOR_ONE {
                self.is_behind = true;
                break;
            }
            let Some(output) = self.proto.poll_output() else {
                break;
            };
            self.handle_output(now, output, outbox);
        }
        if self.proto.poll_keys_dropped() {
            adit_aead::zeroizing_stack::<STACK, _>(|| ());
        }
    }

    fn handle_output(&mut self, now: Now, output: Output, outbox: &mut Outbox) {
        match output {
            Output::Handshake {
                to, datagram, peer, ..
            } => {
                let left = outbox.put(to, &datagram);
                self.proto.handle_sent(&datagram, peer.as_ref(), left);
            }
            Output::Keepalive { peer } => {
                let sealed = self.proto.seal_keepalive(now.time, now.wall, &peer);
                if let Some((to, datagram)) = sealed {
                    outbox.put(to, &datagram);
                }
            }
            Output::SessionReady { peer } => {
                if !self.send_waiting(now, &peer, outbox) {
                    self.ready.push_back(peer);
                }
            }
            Output::DropStaged {
                peer,
                given_up_after,
            } => {
                let mut queue = self.waiting.take(peer.id());
                self.stats.unsealed.waited += queue.drop_oldest(usize::MAX);
                if let Some(initiations) = given_up_after {
                    let peer = PublicKey::of(peer.public_key());
                    self.tell(Event::GivenUp { peer, initiations });
                }
            }
            Output::Event(event) => self.handle_event(event),
        }
    }

    fn handle_event(&mut self, event: PeerEvent) {
        match event {
            PeerEvent::Session { peer, .. } => self.tell(Event::Session {
                peer: PublicKey::of(peer.public_key()),
                endpoint: peer.endpoint().map(|to| to.addr),
            }),
            PeerEvent::Roamed { peer, from } => {
                if let Some(to) = peer.endpoint() {
                    self.tell(Event::Roamed {
                        peer: PublicKey::of(peer.public_key()),
                        from,
                        to: to.addr,
                    });
                }
            }
            PeerEvent::Liveness { peer, state } => {
                let peer = PublicKey::of(peer.public_key());
                match state {
                    Liveness::Unknown => {}
                    Liveness::Up => self.tell(Event::Reachable { peer }),
                    Liveness::Silent | Liveness::Gone => self.tell(Event::Unreachable { peer }),
                }
            }
            // Names of peers, probes of paths and limits of peers, of which a device here is told
            // nothing.
            PeerEvent::Access { .. }
            | PeerEvent::ProbePath { .. }
            | PeerEvent::PathFound { .. }
            | PeerEvent::DoubtIcmp { .. }
            | PeerEvent::Unanswered { .. } => {}
        }
    }

    fn tell(&mut self, event: Event) {
        if self.events.len() < MAX_EVENTS {
            return self.events.push_back(event);
        }
        self.missed += 1;
        self.stats.missed_events += 1;
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("public_key", &self.proto.settings().public_key)
            .field("peers", &self.proto.peer_count())
            .finish_non_exhaustive()
    }
}
