//! Peers of an interface that are not in its file. Those that an agent brought are the agent's: a command about the
//! file changes none of them, nor what the process was told of them.

use std::collections::HashSet;
use std::net::SocketAddr;

use adit_ctl::config::HostPort;
use adit_ctl::uapi::{MAX_NAMES, UapiClient};
use adit_proto::config::{DeviceChange, DeviceStatus, PeerChange, PublicKey, Secret};

use super::Quick;
use crate::agent;
use crate::failure::Result;

/// The peers of an interface that are not in its file.
pub(super) struct Others {
    /// An agent has brought peers: then nothing is said of all others at once.
    pub(super) has_agent: bool,
    /// Those that no agent brought.
    pub(super) of_nobody: Vec<PublicKey>,
}

impl Quick {
    /// Those of an interface that was so a moment ago: an agent writes down what it brings, and only then brings it.
    pub(super) fn others(&self, status: Option<&DeviceStatus>) -> Result<Others> {
        let brought = agent::brought_to(&self.name)?;
        let in_file: HashSet<PublicKey> = self.keys().collect();
        let peers = status.into_iter().flat_map(|status| &status.peers);
        let peers = peers.map(|peer| peer.public_key);
        Ok(Others {
            has_agent: !brought.is_empty(),
            of_nobody: peers
                .filter(|key| !in_file.contains(key) && !brought.contains_key(key))
                .collect(),
        })
    }

    /// Tells the process the names that comments of the file give peers; the `others` have none.
    /// Before a transaction, names of new peers are told without: the log then has them, and still
    /// has those of peers that go. Nothing depends on them, and other implementations have no names.
    pub(super) fn name_peers(&self, others: Option<&Others>) {
        let mut names = self.config.names();
        if let Some(others) = others.filter(|it| it.has_agent) {
            let all = self.keys().chain(others.of_nobody.iter().copied());
            all.for_each(|key| _ = names.entry(key).or_default());
        }
        let replace = others.is_some_and(|it| !it.has_agent);
        if replace || !names.is_empty() {
            let client = UapiClient::connect(&self.name);
            _ = client.map(|mut client| client.name_peers(names.into_iter(), replace));
        }
    }

    /// Tells the process which endpoints are names, which it looks up again when they are needed.
    /// Other implementations do not.
    pub(super) fn name_endpoints(&self, others: &Others) {
        let peers = self.config.peers.iter();
        let named: Vec<(PublicKey, &HostPort)> = peers
            .filter_map(|peer| Some((peer.public_key, peer.endpoint.as_ref()?)))
            .filter(|(_, endpoint)| endpoint.numeric().is_none())
            .collect();
        let Ok(mut client) = UapiClient::connect(&self.name) else {
            return;
        };
        let is_told = client.name_endpoints(named.iter().copied(), !others.has_agent);
        if !others.has_agent || is_told.is_err() {
            return;
        }
        // An address, whichever it is, ends the look-ups of a name.
        let none = HostPort {
            host: "0.0.0.0".into(),
            port: 1,
        };
        let named: HashSet<PublicKey> = named.iter().map(|(key, _)| *key).collect();
        let rest: Vec<PublicKey> = (self.keys()).filter(|key| !named.contains(key)).collect();
        for piece in rest.chunks(MAX_NAMES) {
            _ = client.name_endpoints(piece.iter().map(|key| (*key, &none)), false);
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
