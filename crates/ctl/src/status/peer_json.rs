//! A peer as the status socket tells it: the JSON of [`PeerJson`](super::PeerJson) without one. With
//! thousands of peers, texts of their own for each would cost most of the time of an answer.

use std::borrow::Borrow;
use std::fmt::Display;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use adit_proto::config::{PeerAllowance, PeerHandshakes, PeerStatus};
use base64ct::{Base64, Encoding};
use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::keys::BASE64_LEN;

/// A peer, as the status socket writes it. Its preshared key is not among it.
pub(super) struct NamedPeer<S = PeerStatus> {
    /// Its status in the device.
    pub(super) status: S,
    /// What people call it.
    pub(super) name: Option<String>,
}

/// A value as text, without a string.
struct DisplayText<T>(T);

impl<T: Display> Serialize for DisplayText<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

#[derive(serde::Serialize)]
struct FailureFields {
    at: u64,
    reason: &'static str,
}

impl<B: Borrow<PeerStatus>> Serialize for NamedPeer<B> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (status, name) = (self.status.borrow(), &self.name);
        let mut key = [0; BASE64_LEN];
        let key = Base64::encode(&status.public_key.0, &mut key).unwrap_or_default();
        let preshared = status.preshared_key.as_ref();
        let mut drops = status.drops.clone();
        drops.sort_unstable_by_key(|(reason, _)| reason.name());

        let mut peer = serializer.serialize_struct("Peer", 18)?;
        peer.serialize_field("public_key", key)?;
        if let Some(name) = name {
            peer.serialize_field("name", name)?;
        }
        peer.serialize_field(
            "has_preshared_key",
            &preshared.is_some_and(|key| !key.is_zero()),
        )?;
        peer.serialize_field("endpoint", &status.endpoint.map(DisplayText))?;
        peer.serialize_field("allowed_ips", &BlockTexts(status))?;
        let handshake = status.last_handshake.map(|at| at.as_secs());
        peer.serialize_field("latest_handshake", &handshake)?;
        if let Some(handshakes) = &status.handshakes {
            peer.serialize_field("state", handshakes.state.name())?;
            if let Some(at) = handshakes.last_attempt {
                peer.serialize_field("last_attempt", &at.as_secs())?;
            }
            peer.serialize_field("unanswered", &handshakes.unanswered)?;
            if let Some(failure) = handshakes.last_failure {
                let (at, reason) = (failure.at.as_secs(), failure.reason.name());
                peer.serialize_field("last_failure", &FailureFields { at, reason })?;
            }
            if let Some(latency) = handshakes.latency {
                let latency = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
                peer.serialize_field("handshake_microseconds", &latency)?;
            }
        }
        if let Some(mtu) = status.path_mtu {
            peer.serialize_field("path_mtu", &mtu)?;
        }
        if let Some(rx_queue) = status.rx_queue {
            peer.serialize_field("lane", &rx_queue)?;
        }
        if let Some(allowance) = &status.allowance {
            peer.serialize_field("allowance", &AllowanceFields(allowance))?;
        }
        peer.serialize_field("transfer_rx", &status.rx_bytes)?;
        peer.serialize_field("transfer_tx", &status.tx_bytes)?;
        peer.serialize_field("drops", &DropCounts(&drops))?;
        peer.serialize_field("persistent_keepalive", &status.persistent_keepalive)?;
        peer.end()
    }
}

/// As [`AllowanceJson`](super::AllowanceJson) has it.
struct AllowanceFields<'a>(&'a PeerAllowance);

impl Serialize for AllowanceFields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let PeerAllowance {
            allowance,
            used,
            access,
        } = self.0;
        let bits = |bytes: Option<u64>| bytes.map(|bytes| bytes.saturating_mul(8));
        let mut json = serializer.serialize_struct("Allowance", 6)?;
        for (name, value) in [
            ("to_peer_bits", bits(allowance.to_peer)),
            ("from_peer_bits", bits(allowance.from_peer)),
            ("quota_bytes", allowance.quota),
            ("used_bytes", Some(*used)),
            ("expires", allowance.expires.map(|at| at.as_secs())),
        ] {
            if let Some(value) = value {
                json.serialize_field(name, &value)?;
            }
        }
        json.serialize_field("access", access.name())?;
        json.end()
    }
}

/// All that the JSON is made of, as exactly as that tells it.
impl<B: Borrow<PeerStatus>> Hash for NamedPeer<B> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let (status, name) = (self.status.borrow(), &self.name);
        let PeerStatus {
            public_key,
            preshared_key,
            endpoint,
            last_handshake,
            rx_bytes,
            tx_bytes,
            drops,
            path_mtu,
            rx_queue,
            persistent_keepalive,
            allowed_ips,
            allowance,
            handshakes,
        } = status;
        let is_preshared = preshared_key.as_ref().is_some_and(|key| !key.is_zero());
        let seconds = |at: Option<Duration>| at.map(|at| at.as_secs());
        (public_key, name, is_preshared, endpoint).hash(state);
        (rx_bytes, tx_bytes, seconds(*last_handshake)).hash(state);
        (drops, path_mtu, rx_queue, persistent_keepalive, allowed_ips).hash(state);
        let allowance = allowance.as_ref().map(|it| {
            let adit_proto::Allowance {
                to_peer,
                from_peer,
                quota,
                expires,
            } = it.allowance;
            let expires = seconds(expires);
            (
                to_peer,
                from_peer,
                quota,
                expires,
                it.used,
                it.access.name(),
            )
        });
        allowance.hash(state);
        let handshakes = handshakes.map(|handshakes| {
            let PeerHandshakes {
                state,
                last_attempt,
                unanswered,
                last_failure,
                latency,
            } = handshakes;
            let failure = last_failure.map(|failure| (failure.at.as_secs(), failure.reason));
            let latency = latency.map(|latency| latency.as_micros());
            (state, seconds(last_attempt), unanswered, failure, latency)
        });
        handshakes.hash(state);
    }
}

struct BlockTexts<'a>(&'a PeerStatus);

impl Serialize for BlockTexts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.allowed_ips.iter().map(DisplayText))
    }
}

struct DropCounts<'a>(&'a [(adit_proto::DropReason, u64)]);

impl Serialize for DropCounts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let drops = self.0.iter();
        serializer.collect_map(drops.map(|(reason, packets)| (reason.name(), packets)))
    }
}
