//! The names of an interface that goes from one process to another.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_ctl::config::HostPort;
use adit_ctl::keys;
use adit_ctl::uapi::MAX_NAMES;
use adit_engine::Interface;
use serde::{Deserialize, Serialize};

use super::host::{ResolvedName, TTL};
use super::{Named, Resolver};
use crate::resolver::MAX_ADDRESSES;

/// Bytes of a name, at most, as of DNS.
const MAX_HOST: usize = 253;

/// The names of one interface.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(in crate::run) struct HandedNames {
    mark: u32,
    peers: Vec<HandedPeer>,
    hosts: Vec<HandedHost>,
}

#[derive(Debug, Serialize, Deserialize)]
struct HandedPeer {
    /// In base64.
    key: String,
    host: String,
    port: u16,
    claimed: Option<SocketAddr>,
}

#[derive(Debug, Serialize, Deserialize)]
struct HandedHost {
    host: String,
    addrs: Vec<SocketAddr>,
    /// Milliseconds until it is to be looked up.
    due: u64,
    /// Milliseconds since it was.
    asked: Option<u64>,
    failures: u32,
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Resolver {
    /// What is known of the names of an interface. An answer that is under way is asked for again.
    pub(in crate::run) fn export(&self, interface: &str) -> HandedNames {
        let now = Instant::now();
        let state = self.state();
        let of_interface = (state.peers.iter()).filter(|((owner, _), _)| owner == interface);
        let peers = of_interface.map(|((_, key), named)| HandedPeer {
            key: keys::to_base64(&key.0).to_string(),
            host: named.endpoint.host.clone(),
            port: named.endpoint.port,
            claimed: named.claimed,
        });
        let peers: Vec<HandedPeer> = peers.collect();
        let used: BTreeSet<&str> = peers.iter().map(|peer| peer.host.as_str()).collect();
        let hosts = (state.hosts.iter()).filter(|(name, _)| used.contains(name.as_str()));
        let hosts = hosts.map(|(name, host)| HandedHost {
            host: name.clone(),
            addrs: host.addrs.clone(),
            due: match host.is_asked {
                true => 0,
                false => milliseconds(host.due.saturating_duration_since(now)),
            },
            asked: host.asked.map(|at| milliseconds(now.duration_since(at))),
            failures: host.failures,
        });
        let hosts = hosts.collect();
        HandedNames {
            mark: state.marks.get(interface).copied().unwrap_or(0),
            hosts,
            peers,
        }
    }

    /// Goes on with the names of an interface of another process.
    pub(in crate::run) fn import(
        self: &Arc<Self>,
        interface: &str,
        handle: &Arc<Interface>,
        names: HandedNames,
    ) {
        let now = Instant::now();
        let state = &mut *self.state();
        if names.mark != 0 {
            state.marks.insert(interface.to_owned(), names.mark);
        }
        for mut known in names.hosts.into_iter().take(MAX_NAMES) {
            known.addrs.truncate(MAX_ADDRESSES);
            // It may be that of another interface, too.
            let host = state.hosts.entry(known.host);
            host.or_insert_with(|| ResolvedName {
                addrs: known.addrs,
                due: now + Duration::from_millis(known.due).min(*TTL.end()),
                asked: (known.asked).and_then(|ago| now.checked_sub(Duration::from_millis(ago))),
                failures: known.failures,
                is_asked: false,
            });
        }
        for peer in names.peers {
            let Some(key) = keys::public_from_base64(&peer.key) else {
                continue;
            };
            if state.peers.len() >= MAX_NAMES || peer.host.len() > MAX_HOST {
                continue;
            }
            let endpoint = HostPort {
                host: peer.host,
                port: peer.port,
            };
            let named = Named {
                interface: Arc::downgrade(handle),
                endpoint,
                claimed: peer.claimed,
            };
            let key = (interface.to_owned(), key);
            // The device has them already, unless an answer came in between.
            state.tell(&key, &named);
            state.peers.insert(key, named);
        }
        state.forget_unused();
        self.start_thread(state);
    }
}
