//! Peers of an interface that are not in its file. Those that an agent brought are the agent's: a command about the
//! file changes none of them, nor what the process was told of them.

use std::collections::HashSet;

use adit_proto::config::{DeviceStatus, PublicKey};

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
}
