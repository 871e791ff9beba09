//! The device: its peers, handshakes and timers.

use std::sync::Arc;

use arrayvec::ArrayVec;

use crate::config::{DeviceChange, DeviceStatus, PublicKey};
use crate::shared::Shared;
use crate::tunnel::Tunnel;
use crate::wire::INITIATION_LEN;
use crate::{Endpoint, Tai64N, Time};

/// A WireGuard interface without its sockets: see the [crate] for how to drive it.
pub struct Device {
    shared: Arc<Shared>,
    #[expect(dead_code)]
    random: Box<dyn FnMut(&mut [u8]) + Send>,
    peers: Vec<Arc<Tunnel>>,
}

/// What the device wants done.
pub enum Output {
    /// Send the datagram on the UDP socket.
    Handshake {
        /// Where to.
        to: Endpoint,
        /// The UDP payload.
        datagram: ArrayVec<u8, INITIATION_LEN>,
        /// The peer it is for; `None` for a cookie reply, which answers before the peer is known.
        tunnel: Option<Arc<Tunnel>>,
    },
    /// Seal and send an empty packet on [`Tunnel::current`], then call [`Tunnel::keepalive_sent`].
    Keepalive {
        /// The peer it is for.
        tunnel: Arc<Tunnel>,
    },
    /// There is a session to send with: send what is staged.
    SessionReady {
        /// The peer that it is with.
        tunnel: Arc<Tunnel>,
    },
    /// No session will come: drop what is staged.
    DropStaged {
        /// The peer that does not answer or was removed.
        tunnel: Arc<Tunnel>,
    },
}

/// How handshakes went, counted since the device was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandshakeStats {
    /// Initiations sent, retries included.
    pub initiations_sent: u64,
    /// Initiations received, good or bad.
    pub initiations_received: u64,
    /// Initiations that were accepted and answered.
    pub initiations_accepted: u64,
    /// Responses sent.
    pub responses_sent: u64,
    /// Responses received, good or bad.
    pub responses_received: u64,
    /// Responses that completed a handshake.
    pub responses_accepted: u64,
    /// Responder's sessions that the peer confirmed.
    pub confirmed: u64,
    /// Cookie replies sent, under load.
    pub cookies_sent: u64,
    /// Cookie replies received, good or bad.
    pub cookies_received: u64,
    /// Cookie replies that were authentic.
    pub cookies_accepted: u64,
    /// Handshakes given up after REKEY_ATTEMPT_TIME.
    pub given_up: u64,
    /// Dropped: neither type nor length of a handshake message, or nobody here to talk to.
    pub invalid: u64,
    /// Dropped: mac1 does not show that the sender knows our public key.
    pub bad_mac1: u64,
    /// Dropped: the source sends too much while we are under load.
    pub rate_limited: u64,
    /// Dropped: the initiation decrypts, but its static key is no peer's.
    pub unknown_peer: u64,
    /// Dropped: the timestamp is not greater than the greatest one received from the peer.
    pub replayed_timestamp: u64,
    /// Dropped: too soon after the peer's last initiation.
    pub flooded: u64,
    /// Dropped: a tag or Diffie-Hellman result is wrong.
    pub not_authentic: u64,
    /// Dropped: a response or cookie reply for no handshake that is under way.
    pub unexpected: u64,
}

/// Why a change was refused; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The device would have more than [`MAX_PEERS`](crate::limits::MAX_PEERS) peers.
    TooManyPeers,
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooManyPeers => {
                write!(f, "a device has at most {} peers", crate::limits::MAX_PEERS)
            }
        }
    }
}

impl std::error::Error for ConfigError {}

impl Device {
    /// `random` fills a buffer with random bytes: the operating system's in production, seeded in tests.
    pub fn new(random: Box<dyn FnMut(&mut [u8]) + Send>) -> Self {
        Self {
            shared: Arc::new(Shared::new()),
            random,
            peers: Vec::new(),
        }
    }

    /// The configuration and counters, as `get` reports them.
    pub fn status(&self) -> DeviceStatus {
        DeviceStatus::default()
    }

    /// All peers.
    pub fn tunnels(&self) -> impl Iterator<Item = &Arc<Tunnel>> {
        self.peers.iter()
    }

    /// The peer with this static key.
    pub fn tunnel(&self, key: &PublicKey) -> Option<&Arc<Tunnel>> {
        self.peers.iter().find(|peer| peer.public_key() == *key)
    }

    /// What the shards read.
    pub fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// How handshakes went so far.
    pub fn handshake_stats(&self) -> HandshakeStats {
        HandshakeStats::default()
    }

    /// A datagram of type 1, 2 or 3 came in. `wall` is the time of day; `under_load` says that the engine's queue of
    /// handshakes is long.
    pub fn handle_handshake(
        &mut self,
        _now: Time,
        _wall: Tai64N,
        _from: Endpoint,
        _datagram: &[u8],
        _under_load: bool,
    ) {
    }

    /// A shard raised a notice for this tunnel.
    pub fn handle_notice(&mut self, _now: Time, _wall: Tai64N, _tunnel: &Arc<Tunnel>) {}

    /// [`Device::next_deadline`] has passed.
    pub fn handle_timeout(&mut self, _now: Time, _wall: Tai64N) {}

    /// Changes the configuration, whole or not at all.
    pub fn apply(
        &mut self,
        _now: Time,
        _wall: Tai64N,
        _change: &DeviceChange,
    ) -> Result<(), ConfigError> {
        Ok(())
    }

    /// When to call [`Device::handle_timeout`] at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        None
    }

    /// The next thing that the device wants done.
    pub fn poll_output(&mut self) -> Option<Output> {
        None
    }
}
