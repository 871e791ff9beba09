//! Peers of an interface that are not in its file. Those that an agent brought are the agent's: a command about the
//! file changes none of them, nor what the process was told of them.

use std::collections::HashSet;
use std::net::SocketAddr;

use adit_proto::config::{DeviceChange, DeviceStatus, PeerChange, PublicKey, Secret};

use super::Quick;
use crate::agent;

/// The peers of an interface that are not in its file.
pub(super) struct Others {
    /// An agent has brought peers: then nothing is said of all others at once.
    pub(super) has_agent: bool,
    /// Those that no agent brought.
    pub(super) of_nobody: Vec<PublicKey>,
}

impl Quick {
    /// Those of an interface that was so a moment ago: an agent writes down what it brings, and only then brings it.
    pub(super) fn others(&self, status: Option<&DeviceStatus>) -> Others {
        let brought = agent::brought_to(&self.name);
        let in_file: HashSet<PublicKey> = self.keys().collect();
        let peers = status.into_iter().flat_map(|status| &status.peers);
        let peers = peers.map(|peer| peer.public_key);
        Others {
            has_agent: !brought.is_empty(),
            of_nobody: peers
                .filter(|key| !in_file.contains(key) && !brought.contains_key(key))
                .collect(),
        }
    }

    /// The peers of the file.
    pub(super) fn keys(&self) -> impl Iterator<Item = PublicKey> + '_ {
        self.config.peers.iter().map(|peer| peer.public_key)
    }

    /// Brings the interface to what the file says: peers that are nobody's go.
    pub(super) fn to_change(
        &self,
        endpoints: &[Option<SocketAddr>],
        others: &Others,
    ) -> DeviceChange {
        let mut change = self.config.to_change(endpoints);
        if !others.has_agent {
            return change;
        }
        // It says nothing of the agent's peers, which may come and go meanwhile.
        change.replace_peers = false;
        let mut known = HashSet::new();
        for peer in &mut change.peers {
            if known.insert(peer.public_key) {
                peer.replace_allowed_ips = true;
                peer.preshared_key.get_or_insert_with(Secret::zero);
                peer.persistent_keepalive.get_or_insert(0);
            }
        }
        let gone = others.of_nobody.iter().map(|key| PeerChange {
            remove: true,
            ..PeerChange::new(*key)
        });
        change.peers.splice(..0, gone);
        change
    }
}
