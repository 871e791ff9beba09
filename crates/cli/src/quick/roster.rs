//! The peers of a file and those of its running interface, together: what `adit peers` lists, and
//! the one place that tells which peer is meant by a name, a key or an address.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use adit_ctl::config::{self, Config, Term};
use adit_ctl::keys;
use adit_ctl::status::{AllowanceJson, InterfaceJson, PeerJson};
use adit_fleet::RecordId;
use adit_proto::Access;
use adit_proto::config::{AllowedIpChange, Cidr, PeerAllowance, PublicKey, Secret};
use serde::Serialize;

use crate::cli;
use crate::failure::{Result, bail};

#[cfg(test)]
#[path = "roster_tests.rs"]
mod tests;

/// Seconds after a handshake in which its session may be used (REJECT_AFTER_TIME).
const SESSION: u64 = 180;
/// Peers that an error lists.
const SOME: usize = 20;
/// Characters of a key that a command takes for it, at least: fewer may be a name mistyped.
const MIN_PREFIX: usize = 4;
/// Characters of a key that stand for a peer without a name, as in `adit show`.
const SHORT: usize = 8;

/// The peers of a file and of an interface.
pub(super) struct Roster {
    pub(super) name: String,
    /// What commands call it by, as of [`super::file::called`].
    pub(super) called: String,
    /// Whether there is a file that could be read.
    pub(super) has_file: bool,
    /// Whether a process serves the interface.
    pub(super) runs: bool,
    /// Those of the file first, in its order.
    pub(super) peers: Vec<Entry>,
}

/// A peer of either.
pub(super) struct Entry {
    pub(super) key: PublicKey,
    pub(super) name: Option<String>,
    /// Whether the file has it as it is to be.
    pub(super) is_enabled: bool,
    /// Whether the file has it as a comment.
    pub(super) is_disabled: bool,
    /// What it may do, as the interface heeds it or else as the file says it.
    pub(super) allowance: Option<AllowanceJson>,
    /// The allowed IPs of the interface or, if it has no such peer, of the file.
    pub(super) blocks: Vec<Cidr>,
    /// As the interface has it.
    pub(super) running: Option<PeerJson>,
    /// What an agent brought it from.
    record: Option<RecordId>,
    /// The key is not a secret in the wrong place.
    can_show: bool,
}

/// Whether a peer uses the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PeerActivity {
    /// It has a session.
    Connected,
    /// It had one.
    Idle,
    /// It has had none since the interface is up.
    Never,
    /// The file has it as a comment.
    Disabled,
    /// Its time is over.
    Expired,
    /// Its quota is used up.
    OverQuota,
}

impl PeerActivity {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Idle => "idle",
            Self::Never => "never",
            Self::Disabled => "disabled",
            Self::Expired => "expired",
            Self::OverQuota => "over quota",
        }
    }
}

impl Roster {
    pub(super) fn new(
        (name, called): (&str, String),
        config: Option<&Config>,
        running: Option<&InterfaceJson>,
    ) -> Self {
        let mut peers: Vec<Entry> = Vec::new();
        let mut places: HashMap<PublicKey, usize> = HashMap::new();
        let sections = config.into_iter().flat_map(|config| {
            let enabled = config.peers.iter().map(|peer| (peer, true));
            let disabled = config.disabled.iter().map(|peer| (peer, false));
            enabled.chain(disabled)
        });
        for (peer, is_enabled) in sections {
            let key = peer.public_key;
            let place = *places.entry(key).or_insert_with(|| {
                peers.push(Entry::new(key));
                peers.len() - 1
            });
            let entry = &mut peers[place];
            if !is_enabled && entry.is_enabled {
                // What counts is the one that is in force.
                entry.is_disabled = true;
                continue;
            }
            entry.is_enabled |= is_enabled;
            entry.is_disabled |= !is_enabled;
            if peer.name.is_some() {
                entry.name.clone_from(&peer.name);
            }
            entry.allowance = of_file(&peer.allowance);
            if !peer.incremental {
                entry.blocks.clear();
            }
            entry
                .blocks
                .extend(peer.allowed_ips.iter().filter_map(AllowedIpChange::added));
        }
        for peer in running.into_iter().flat_map(|interface| &interface.peers) {
            let Some(key) = keys::public_from_base64(&peer.public_key) else {
                continue;
            };
            let place = *places.entry(key).or_insert_with(|| {
                peers.push(Entry::new(key));
                peers.len() - 1
            });
            let entry = &mut peers[place];
            if entry.name.is_none() {
                entry.name.clone_from(&peer.name);
            }
            let blocks = peer.allowed_ips.iter();
            entry.blocks = blocks.filter_map(|it| cli::block(it).ok()).collect();
            entry.allowance.clone_from(&peer.allowance);
            entry.running = Some(peer.clone());
        }
        let secrets = config.map(secrets).unwrap_or_default();
        for entry in &mut peers {
            // What runs is shown by `adit show`.
            let is_public = entry.running.is_some() || keys::is_public(&entry.key);
            entry.can_show = is_public && !secrets.contains(&entry.key.0);
        }
        Self {
            name: name.to_owned(),
            called,
            has_file: config.is_some(),
            runs: running.is_some(),
            peers,
        }
    }

    /// Where no process serves the interface: what its peers used of their quotas until it went down.
    pub(super) fn with_used(mut self, used: impl IntoIterator<Item = (PublicKey, u64)>) -> Self {
        let used: HashMap<PublicKey, u64> = used.into_iter().collect();
        for entry in &mut self.peers {
            if let (Some(of), Some(used)) = (&mut entry.allowance, used.get(&entry.key))
                && let Some(quota) = of.quota_bytes
            {
                of.used_bytes = *used;
                if *used >= quota && of.access == Access::Open.name() {
                    of.access = Access::OverQuota.name().to_owned();
                }
            }
        }
        self
    }

    /// Which peers an agent brought, and what its source calls their records.
    pub(super) fn with_agent(mut self, mut brought: HashMap<PublicKey, RecordId>) -> Self {
        for entry in &mut self.peers {
            entry.record = brought.remove(&entry.key);
        }
        self
    }

    /// The peer that is meant: by its name, by its public key or the beginning of it, or by an address
    /// that belongs to it, in this order.
    pub(super) fn find(&self, words: &str) -> Result<&Entry> {
        let is_named = |it: &&Entry| it.name.as_deref() == Some(words);
        let named: Vec<&Entry> = self.peers.iter().filter(is_named).collect();
        if let Some(found) = self.only(&named, || format!("with the name {words}"))? {
            return Ok(found);
        }
        if let Some(key) = keys::public_from_base64(words) {
            let found = self.peers.iter().find(|it| it.key == key);
            return found.map_or_else(|| self.unknown(words), Ok);
        }
        if let Ok(block) = cli::block(words) {
            let owners = self.owners(block, !words.contains('/'));
            let found = self.only(&owners, || format!("with the address {words}"))?;
            return found.map_or_else(|| self.unknown(words), Ok);
        }
        // As `adit show` shortens keys.
        let start = words.trim_end_matches('…');
        if start.len() >= MIN_PREFIX {
            let begins = |it: &&Entry| keys::to_base64(&it.key.0).starts_with(start);
            let begun: Vec<&Entry> = self.peers.iter().filter(begins).collect();
            let found = self.only(&begun, || format!("whose keys begin with {start}"))?;
            if let Some(found) = found {
                return Ok(found);
            }
        }
        self.unknown(words)
    }

    /// Whose allowed IPs have a block or, of the longest that have it, an address. A default route
    /// means nobody.
    fn owners(&self, block: Cidr, is_address: bool) -> Vec<&Entry> {
        let has = |own: &Cidr| match is_address {
            true => own.prefix_len() > 0 && own.contains(block.addr()),
            false => *own == block,
        };
        let longest = |it: &Entry| {
            it.blocks
                .iter()
                .filter(|own| has(own))
                .map(Cidr::prefix_len)
                .max()
        };
        let best = self.peers.iter().filter_map(longest).max();
        let owns = |it: &&Entry| best.is_some() && longest(it) == best;
        self.peers.iter().filter(owns).collect()
    }

    fn only<'a>(
        &self,
        found: &[&'a Entry],
        how: impl FnOnce() -> String,
    ) -> Result<Option<&'a Entry>> {
        match found {
            [] => Ok(None),
            [only] => Ok(Some(only)),
            several => {
                let mut keys: Vec<String> = several.iter().map(|it| it.key_text()).collect();
                keys.truncate(SOME);
                bail!(
                    Mistake,
                    "{} has {} peers {}: give the public key of the one that is meant, {}",
                    self.name,
                    several.len(),
                    how(),
                    keys.join(", ")
                )
            }
        }
    }

    fn unknown<T>(&self, words: &str) -> Result<T> {
        let mut known: Vec<String> = self.peers.iter().map(Entry::label).collect();
        known.sort_unstable();
        let known = match known.as_slice() {
            [] => "it has none".to_owned(),
            [.., last] if known.len() > SOME => {
                format!("its peers are {} … {last}", known[..SOME].join(", "))
            }
            all => format!("its peers are {}", all.join(", ")),
        };
        // It may be a private key with a letter too many.
        let words = match keys::public_from_base64(words) {
            Some(_) => "this key".into(),
            None => config::clean_name(words).unwrap_or_else(|| "that is given".into()),
        };
        bail!(
            Mistake,
            "{} has no such peer as {words}: {known}",
            self.name
        )
    }
}

impl Entry {
    fn new(key: PublicKey) -> Self {
        Self {
            key,
            name: None,
            is_enabled: false,
            is_disabled: false,
            allowance: None,
            blocks: Vec::new(),
            running: None,
            record: None,
            can_show: false,
        }
    }

    /// Whether the file has it, as it is to be or as a comment.
    pub(super) fn is_in_file(&self) -> bool {
        self.is_enabled || self.is_disabled
    }

    /// Its name, or the beginning of its key.
    pub(super) fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.short_key())
    }

    /// Its key, unless it may be a secret in the wrong place.
    pub(super) fn shown_key(&self) -> Option<String> {
        self.can_show.then(|| self.key.to_string())
    }

    pub(super) fn short_key(&self) -> String {
        let key = self.shown_key();
        key.map_or_else(
            || "-".into(),
            |key| key.chars().take(SHORT).chain(['…']).collect(),
        )
    }

    fn key_text(&self) -> String {
        self.shown_key()
            .unwrap_or_else(|| "whose PublicKey is no public key".into())
    }

    /// What a shell takes for it.
    pub(super) fn word(&self) -> String {
        let word = self.name.clone().or_else(|| self.shown_key());
        quoted(&word.unwrap_or_else(|| "PEER".into()))
    }

    /// Those that mean one address come first, without a length.
    pub(super) fn addresses(&self) -> Vec<String> {
        let is_host =
            |block: &&Cidr| block.prefix_len() == if block.addr().is_ipv4() { 32 } else { 128 };
        let hosts = self.blocks.iter().filter(is_host);
        let others = self.blocks.iter().filter(|block| !is_host(block));
        hosts
            .map(|block| block.addr().to_string())
            .chain(others.map(Cidr::to_string))
            .collect()
    }

    /// By family and number, for an order; those without one come last.
    pub(super) fn first_address(&self) -> (bool, Option<IpAddr>) {
        let first = self.addresses().first().cloned();
        let first = first.and_then(|text| cli::block(&text).ok());
        (first.is_none(), first.map(|block| block.addr()))
    }

    pub(super) fn handshake(&self) -> Option<u64> {
        self.running.as_ref()?.latest_handshake
    }

    /// Bytes received and sent.
    pub(super) fn traffic(&self) -> Option<(u64, u64)> {
        let peer = self.running.as_ref()?;
        Some((peer.transfer_rx, peer.transfer_tx))
    }

    /// Its rates, as the file has them.
    pub(super) fn limit(&self) -> Option<String> {
        let of = self.allowance.as_ref()?;
        let bytes = |bits: Option<u64>| bits.map(|bits| bits / 8);
        let rates = adit_proto::Allowance {
            to_peer: bytes(of.to_peer_bits),
            from_peer: bytes(of.from_peer_bits),
            ..adit_proto::Allowance::default()
        };
        Term::Limit.value(&rates)
    }

    /// When its access ends.
    pub(super) fn expires(&self) -> Option<String> {
        let at = self.allowance.as_ref()?.expires?;
        Some(config::date_text(Duration::from_secs(at)))
    }

    /// `None` if neither the interface has it nor is it disabled.
    pub(super) fn state(&self, now: u64) -> Option<PeerActivity> {
        let Some(peer) = &self.running else {
            return (self.is_disabled && !self.is_enabled).then_some(PeerActivity::Disabled);
        };
        match self.allowance.as_ref().map(|it| it.access.as_str()) {
            Some("expired") => return Some(PeerActivity::Expired),
            Some("over_quota") => return Some(PeerActivity::OverQuota),
            _ => {}
        }
        let is_lost = matches!(peer.state.as_deref(), Some("silent" | "gone"));
        Some(match peer.latest_handshake {
            None => PeerActivity::Never,
            Some(at) if now.saturating_sub(at) < SESSION && !is_lost => PeerActivity::Connected,
            Some(_) => PeerActivity::Idle,
        })
    }

    /// Where file and interface differ, and what brings them together.
    pub(super) fn note(&self, roster: &Roster) -> Option<String> {
        let called = &roster.called;
        if !roster.runs || !roster.has_file {
            return None;
        }
        match (self.is_enabled, self.is_disabled, &self.running) {
            (true, _, None) => Some(format!("only in the file: `adit sync {called}` adds it")),
            (false, true, Some(_)) => Some(format!(
                "disabled in the file, and still running: `adit sync {called}` ends it"
            )),
            (false, false, Some(_)) => Some(match &self.record {
                Some(record) => format!("of the agent's record {record}"),
                None => format!("only running: `adit save {called}` keeps it"),
            }),
            _ => None,
        }
    }
}

/// What a file lets a peer do.
fn of_file(of: &adit_proto::Allowance) -> Option<AllowanceJson> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let is_over = of.expires.is_some_and(|at| at <= now.unwrap_or_default());
    let access = if is_over {
        Access::Expired
    } else {
        Access::Open
    };
    (*of != adit_proto::Allowance::default()).then(|| {
        AllowanceJson::of(&PeerAllowance {
            allowance: *of,
            used: 0,
            access,
        })
    })
}

/// The private and preshared keys of a file.
fn secrets(config: &Config) -> HashSet<&[u8; 32]> {
    let peers = config.peers.iter().chain(&config.disabled);
    let preshared = peers.filter_map(|peer| peer.preshared_key.as_ref());
    let all = preshared.chain(&config.interface.private_key);
    all.map(Secret::bytes).collect()
}

/// A word for a shell.
pub(super) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "._-@+:/=,".contains(c);
    match !word.is_empty() && !word.starts_with('-') && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Whether a file is not there.
pub(super) fn is_missing(path: &Path) -> bool {
    path.try_exists().is_ok_and(|exists| !exists)
}
