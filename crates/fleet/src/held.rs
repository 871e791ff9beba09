//! Keys of etcd by which gateways tell each other which peers they have, and where these are.
//!
//! ```text
//! PREFIX + PUBLIC KEY    {"gateway":"a","endpoint":"192.0.2.1:7","session":1790000000123,"sent":"@4000…","received":"@4000…"}
//! ```
//!
//! The gateway with the latest session has the peer. Timestamps of initiations say which session is later: a peer takes
//! only greater ones, from all gateways. The clocks of gateways differ. etcd removes a key when its lease ends, half of
//! [`LEASE`] to all of it after it was written.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use adit_ctl::keys::public_from_base64;
use adit_ctl::text::is_printable;
use adit_proto::config::PublicKey;
use adit_proto::limits::MAX_PEERS;
use adit_proto::{LastSeen, Tai64N};
use base64ct::{Base64, Encoding};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::etcd::{EtcdPair, EtcdRefusal, EtcdValue, read};

/// Most keys that are written at once: etcd takes 128 operations in a transaction unless it is told otherwise.
pub const HELD_AT_ONCE: usize = 100;
/// Seconds until etcd removes a key that is not written again.
pub const LEASE: u64 = 24 * 3600;
/// Longest name of a gateway.
const MAX_GATEWAY: usize = 64;
/// How much the clocks of gateways may differ, in milliseconds.
const SKEW: u64 = 60_000;

/// A peer that a gateway has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldPeer {
    /// The name of the gateway.
    pub gateway: String,
    /// Where the peer is, and the timestamps of initiations.
    pub last: LastSeen,
    /// When the session began, by the gateway's clock, in milliseconds since the Unix epoch. It is always later than the
    /// value before.
    pub session: u64,
}

/// What its own interface tells a gateway of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerNews {
    /// There is a session, which began at this time.
    Session(LastSeen, u64),
    /// There is a session since this time, with this endpoint, and with timestamps that are not known.
    Since(SocketAddr, u64),
    /// It has moved to this address.
    Moved(SocketAddr),
}

#[derive(Serialize, Deserialize)]
struct HeldJson {
    gateway: String,
    endpoint: SocketAddr,
    session: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    received: Option<String>,
}

/// Whether this can be the name of a gateway, which is one word of a line.
pub fn is_gateway_name(name: &str) -> bool {
    let is_good = |c: char| is_printable(c) && !c.is_whitespace();
    (1..=MAX_GATEWAY).contains(&name.len()) && name.chars().all(is_good)
}

fn known(timestamp: Tai64N) -> Option<String> {
    (timestamp != Tai64N::default()).then(|| timestamp.to_string())
}

impl HeldPeer {
    /// The value of its key; `None` without an endpoint.
    fn to_json(&self) -> Option<String> {
        let json = HeldJson {
            gateway: self.gateway.clone(),
            endpoint: self.last.at?,
            session: self.session,
            sent: known(self.last.sent),
            received: known(self.last.received),
        };
        serde_json::to_string(&json).ok()
    }

    fn from_json(text: &[u8], now: Duration) -> Option<Self> {
        let json: HeldJson = serde_json::from_slice(text).ok()?;
        let timestamp = |text: Option<String>| match text {
            Some(text) => text.parse().ok(),
            None => Some(Tai64N::default()),
        };
        let session = match Duration::from_millis(json.session) > now + LastSeen::AHEAD {
            true => u64::try_from(now.as_millis()).ok()?,
            false => json.session,
        };
        let last = LastSeen {
            at: Some(json.endpoint).filter(|at| at.port() != 0),
            sent: timestamp(json.sent)?,
            received: timestamp(json.received)?,
        };
        last.at?;
        is_gateway_name(&json.gateway).then_some(Self {
            gateway: json.gateway,
            last: last.believed(now),
            session,
        })
    }
}

/// Reads a key of `prefix`: a peer, and the gateway that has it, if the key was not deleted. `None` if it is no such
/// key. Times that are far ahead of `now`, the time since the Unix epoch, are not believed.
pub fn held_change(
    prefix: &str,
    (key, value): EtcdPair,
    now: Duration,
) -> Option<(PublicKey, Option<HeldPeer>)> {
    let name = key.strip_prefix(prefix.as_bytes())?;
    let key = public_from_base64(std::str::from_utf8(name).ok()?)?;
    match value {
        EtcdValue::Deleted => Some((key, None)),
        EtcdValue::TooLong => None,
        EtcdValue::Bytes(text) => Some((key, Some(HeldPeer::from_json(&text, now)?))),
    }
}

/// The request to write these, [`HELD_AT_ONCE`] at most, with a lease.
pub fn hold_request<'a>(
    prefix: &str,
    lease: &str,
    peers: impl Iterator<Item = (&'a PublicKey, &'a HeldPeer)>,
) -> Value {
    let put = |(key, peer): (&PublicKey, &HeldPeer)| {
        let key = Base64::encode_string(format!("{prefix}{key}").as_bytes());
        let value = Base64::encode_string(peer.to_json()?.as_bytes());
        Some(json!({ "request_put": { "key": key, "value": value, "lease": lease } }))
    };
    json!({ "success": peers.filter_map(put).collect::<Vec<_>>() })
}

/// The request for a lease.
pub fn lease_request() -> Value {
    json!({ "TTL": LEASE.to_string() })
}

/// Reads the answer to [`lease_request`]: the lease's number.
///
/// # Errors
/// It is none, or etcd refuses.
pub fn lease(answer: &[u8]) -> Result<String, EtcdRefusal> {
    #[derive(Deserialize)]
    struct LeaseAnswer {
        #[serde(rename = "ID")]
        id: Option<String>,
        error: Option<String>,
        #[serde(default)]
        code: i64,
    }
    let answer: LeaseAnswer = read(answer)?;
    match (answer.id, answer.error) {
        (_, Some(error)) => Err(EtcdRefusal::new(answer.code, &error)),
        (Some(id), None) if id.parse::<i64>().is_ok() => Ok(id),
        _ => Err(EtcdRefusal::none()),
    }
}

/// Peers, and the gateway that has each of them, as this gateway has read it.
#[derive(Default)]
pub struct HeldPeers {
    peers: HashMap<PublicKey, HeldPeer>,
}

impl HeldPeers {
    /// Sets or removes the gateway of a peer. When there are [`MAX_PEERS`], others are left out.
    pub fn change(&mut self, key: PublicKey, peer: Option<HeldPeer>) {
        match peer {
            Some(peer) if self.peers.len() < MAX_PEERS || self.peers.contains_key(&key) => {
                self.peers.insert(key, peer);
            }
            Some(_) => {}
            None => drop(self.peers.remove(&key)),
        }
    }

    /// The entry that the gateway `own` has to write for a peer, if it has the peer and the entry differs.
    pub fn claim(&self, own: &str, key: &PublicKey, news: PeerNews) -> Option<HeldPeer> {
        let known = self.peers.get(key);
        let is_ours = known.is_some_and(|it| it.gateway == own);
        let (last, session) = known.map_or_else(Default::default, |it| (it.last, it.session));
        let (at, now, session) = match news {
            PeerNews::Session(now, since) => {
                let is_later = now.sent > last.sent || now.received > last.received;
                match (is_later || known.is_none(), is_ours) {
                    (true, _) => (now.at, now, since.max(session.saturating_add(1))),
                    (false, true) => (now.at, now, session),
                    (false, false) => return None,
                }
            }
            PeerNews::Since(at, since)
                if known.is_none() || since > session.saturating_add(SKEW) =>
            {
                (Some(at), last, since)
            }
            PeerNews::Since(at, _) | PeerNews::Moved(at) if is_ours => (Some(at), last, session),
            PeerNews::Since(..) | PeerNews::Moved(_) => return None,
        };
        let peer = HeldPeer {
            gateway: own.to_owned(),
            last: LastSeen {
                at,
                sent: now.sent.max(last.sent),
                received: now.received.max(last.received),
            },
            session,
        };
        (known != Some(&peer)).then_some(peer)
    }

    /// Takes the list of a store that has lost revisions. Entries that it lacks stay. Returns those of them that the
    /// gateway `own` has to write again.
    pub fn went_back(&mut self, listed: &Self, own: &str) -> Vec<(PublicKey, HeldPeer)> {
        let mut lost = Vec::new();
        for (key, peer) in &self.peers {
            let is_lost = (listed.peers.get(key)).is_none_or(|it| it.session < peer.session);
            if is_lost && peer.gateway == own {
                lost.push((*key, peer.clone()));
            }
        }
        for (key, peer) in &listed.peers {
            if (self.peers.get(key)).is_none_or(|it| it.session <= peer.session) {
                self.change(*key, Some(peer.clone()));
            }
        }
        lost
    }

    /// The gateway that has this peer.
    pub fn get(&self, key: &PublicKey) -> Option<&HeldPeer> {
        self.peers.get(key)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// Lines for `adit call`, the peers with the latest sessions first: public key, endpoint, timestamps sent and
    /// received, `-` where one is not known, when the session began in seconds since the Unix epoch, and the gateway.
    pub fn list(&self) -> String {
        let mut peers: Vec<_> = self.peers.iter().collect();
        peers.sort_unstable_by_key(|(key, peer)| (std::cmp::Reverse(peer.session), key.0));
        let mut text = String::with_capacity(peers.len() * 160);
        for (key, peer) in peers {
            let or_none = |timestamp| known(timestamp).unwrap_or_else(|| "-".into());
            let (sent, received) = (or_none(peer.last.sent), or_none(peer.last.received));
            let at = peer
                .last
                .at
                .map_or_else(|| "(none)".into(), |at| at.to_string());
            let (since, gateway) = (peer.session / 1000, &peer.gateway);
            let _ = writeln!(text, "{key}\t{at}\t{sent}\t{received}\t{since}\t{gateway}");
        }
        text
    }
}

#[cfg(test)]
#[path = "held_tests.rs"]
mod tests;
