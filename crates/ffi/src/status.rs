//! The status as JSON: schema 1, to which keys may be added.

use adit::{PeerStatus, Status};
use serde_json::{Value, json};

/// `{"schema":1, "public_key":…, "listen_port":…, "peers":[…]}`.
pub(crate) fn to_json(status: &Status) -> String {
    let peers: Vec<Value> = status.peers.iter().map(peer).collect();
    json!({
        "schema": 1,
        "public_key": status.public_key.map(|key| key.to_string()),
        "listen_port": status.listen_port,
        "peers": peers,
    })
    .to_string()
}

fn peer(peer: &PeerStatus) -> Value {
    let blocks: Vec<String> = peer.allowed_ips.iter().map(ToString::to_string).collect();
    json!({
        "public_key": peer.public_key.to_string(),
        "endpoint": peer.endpoint.map(|endpoint| endpoint.to_string()),
        "last_handshake": peer.last_handshake.map(|at| at.as_secs()),
        "rx_bytes": peer.rx_bytes,
        "tx_bytes": peer.tx_bytes,
        "keepalive": peer.keepalive,
        "allowed_ips": blocks,
    })
}
