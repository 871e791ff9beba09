//! What a request changes, for the log and for events: old and new values, and never a secret.
//!
//! 1. [`ChangePlan::of`] notes what a transaction is about;
//! 2. the interface says how that is before, and after;
//! 3. [`ChangePlan::compare`] tells the difference. A transaction about very many peers is not compared.

use std::collections::{HashMap, HashSet};
use std::fmt::{self, Display, Write as _};

use adit_proto::Allowance;
use adit_proto::config::{DeviceChange, DeviceStatus, PeerStatus, PublicKey, Secret};

use crate::config::Term;
use crate::origin::Caller;

/// Peers that are compared: more take longer than a line is worth.
const MAX_COMPARED: usize = 4096;
/// Peers of which a line says more than their number.
const TOLD: usize = 3;
/// What is kept of a change, for the event.
const MAX_ITEMS: usize = 16;
/// Allowed IPs of a peer that are told.
const BLOCKS: usize = 4;

/// A change, and who made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configured {
    /// The client.
    pub by: Caller,
    /// What it changed.
    pub changed: Changed,
}

/// One line: `wg (pid 17, uid 0) changed fwmark from 0 to 7`.
impl Display for Configured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.by, self.changed.text)
    }
}

/// What changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// For people: `changed fwmark from 0 to 7`.
    pub text: String,
    /// The first of them.
    pub items: Vec<Item>,
    /// Peers that were added, changed or removed.
    pub peers: usize,
}

/// One value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Whose, if it is a peer's.
    pub peer: Option<(PublicKey, Option<String>)>,
    /// Its name; `added` and `removed` are about the whole peer.
    pub what: &'static str,
    /// What it was.
    pub from: Option<String>,
    /// What it is now.
    pub to: Option<String>,
}

/// What people call a peer.
type Namer<'a> = &'a dyn Fn(&PublicKey) -> Option<String>;

/// What a transaction is about.
#[derive(Debug)]
pub struct ChangePlan {
    /// Peers that it names, once each.
    keys: Vec<PublicKey>,
    /// Those whose endpoint it states.
    placed: HashSet<PublicKey>,
    replaces: bool,
    /// There are too many.
    is_counted_only: bool,
}

impl ChangePlan {
    /// Of a transaction, on an interface with so many peers.
    pub fn of(change: &DeviceChange, peers: usize) -> Self {
        let named = change.peers.len();
        let all = named.max(if change.replace_peers { peers } else { 0 });
        let is_counted_only = all > MAX_COMPARED;
        let sections = || change.peers.iter().filter(|_| !is_counted_only);
        let mut known = HashSet::new();
        Self {
            keys: sections()
                .map(|peer| peer.public_key)
                .filter(|key| known.insert(*key))
                .collect(),
            placed: sections()
                .filter(|peer| peer.endpoint.is_some())
                .map(|peer| peer.public_key)
                .collect(),
            replaces: change.replace_peers,
            is_counted_only,
        }
    }

    /// The peers to look at. All, if the others are removed.
    pub fn keys(&self) -> Option<&[PublicKey]> {
        match self.replaces && !self.is_counted_only {
            true => None,
            false => Some(&self.keys),
        }
    }

    /// The difference; `sections` is how many peer sections the transaction had.
    pub fn compare(
        &self,
        before: &DeviceStatus,
        after: &DeviceStatus,
        sections: usize,
        name: Namer<'_>,
    ) -> Changed {
        let mut told = ChangeText::new(name);
        told.settings(before, after);
        if self.is_counted_only {
            let others = if self.replaces { ", and no others" } else { "" };
            told.parts.push(format!("set {sections} peers{others}"));
            return told.end(sections);
        }
        let old = by_key(before);
        let new = by_key(after);
        let mut keys = self.keys.clone();
        if self.replaces {
            let known: HashSet<_> = keys.iter().copied().collect();
            let others = before.peers.iter().map(|peer| peer.public_key);
            keys.extend(others.filter(|key| !known.contains(key)));
        }
        for key in keys {
            match (old.get(&key), new.get(&key)) {
                (None, Some(peer)) => told.added(peer),
                (Some(_), None) => told.removed(key),
                (Some(old), Some(new)) => told.peer(old, new, self.placed.contains(&key)),
                (None, None) => {}
            }
        }
        let peers = told.added.len() + told.removed.len() + told.changed.len();
        told.end(peers)
    }
}

impl Changed {
    /// Whether it is worth no line.
    pub fn is_nothing(&self) -> bool {
        self.text.is_empty()
    }

    /// A setting that is not of a transaction.
    pub fn of_settings(settings: Vec<(&'static str, String, String)>) -> Self {
        let mut told = ChangeText::new(&|_| None);
        for (what, from, to) in settings {
            told.setting(what, from, to);
        }
        told.end(0)
    }

    /// Peers that have other names now: before, and after.
    pub fn of_names(renamed: Vec<(PublicKey, Option<String>, Option<String>)>) -> Self {
        let names: HashMap<_, _> = (renamed.iter())
            .map(|(key, old, new)| (*key, new.clone().or_else(|| old.clone())))
            .collect();
        let name = |key: &PublicKey| names.get(key).cloned().flatten();
        let mut told = ChangeText::new(&name);
        let peers = renamed.len();
        for (key, from, to) in renamed {
            told.values(key, vec![("name", from, to)]);
        }
        told.end(peers)
    }

    /// Peers that may do other things now: before, and after.
    pub fn of_allowances(
        changed: Vec<(PublicKey, Allowance, Allowance)>,
        name: &dyn Fn(&PublicKey) -> Option<String>,
    ) -> Self {
        let mut told = ChangeText::new(name);
        let peers = changed.len();
        for (key, from, to) in changed {
            let terms = Term::ALL.into_iter();
            let values = terms.map(|term| (term.name(), term.value(&from), term.value(&to)));
            told.values(key, values.filter(|(_, from, to)| from != to).collect());
        }
        told.end(peers)
    }

    /// A client is about to delete the interface.
    pub fn of_end() -> Self {
        Self {
            text: "takes the interface down".into(),
            ..Self::default()
        }
    }

    /// A transaction with so many peer sections that was not compared.
    pub fn unknown(sections: usize) -> Self {
        Self {
            text: format!("set something, and {sections} peers (no memory to compare them)"),
            items: Vec::new(),
            peers: sections,
        }
    }

    /// The process serves one more interface.
    pub fn of_interface(name: &str) -> Self {
        Self {
            text: format!("had the process serve {name}, too"),
            items: vec![Item {
                peer: None,
                what: "interface",
                from: None,
                to: Some(name.to_owned()),
            }],
            peers: 0,
        }
    }

    /// The peer that it is about, if it is one.
    pub fn peer(&self) -> Option<&(PublicKey, Option<String>)> {
        let peers = self.items.iter().find_map(|item| item.peer.as_ref());
        peers.filter(|_| self.peers == 1)
    }
}

fn by_key(status: &DeviceStatus) -> HashMap<PublicKey, &PeerStatus> {
    let peers = status.peers.iter();
    peers.map(|peer| (peer.public_key, peer)).collect()
}

/// A difference that is being put into words.
struct ChangeText<'a> {
    name: Namer<'a>,
    items: Vec<Item>,
    /// Settings that changed.
    settings: Vec<String>,
    /// Whole parts of the sentence.
    parts: Vec<String>,
    added: Vec<String>,
    removed: Vec<String>,
    changed: Vec<String>,
}

/// A value of a peer that changed.
type Value = (&'static str, Option<String>, Option<String>);

impl<'a> ChangeText<'a> {
    fn new(name: Namer<'a>) -> Self {
        Self {
            name,
            items: Vec::new(),
            settings: Vec::new(),
            parts: Vec::new(),
            added: Vec::new(),
            removed: Vec::new(),
            changed: Vec::new(),
        }
    }

    fn settings(&mut self, before: &DeviceStatus, after: &DeviceStatus) {
        let key = |status: &DeviceStatus| status.public_key.map(|key| key.to_string());
        if !same(before.private_key.as_ref(), after.private_key.as_ref()) {
            let none = || "none".to_owned();
            self.setting(
                "public_key",
                key(before).unwrap_or_else(none),
                key(after).unwrap_or_else(none),
            );
        }
        for (what, old, new) in [
            (
                "listen_port",
                u32::from(before.listen_port),
                u32::from(after.listen_port),
            ),
            ("fwmark", before.fwmark, after.fwmark),
        ] {
            if old != new {
                self.setting(what, old.to_string(), new.to_string());
            }
        }
    }

    fn setting(&mut self, what: &'static str, from: String, to: String) {
        self.settings.push(format!("{what} from {from} to {to}"));
        self.item(None, (what, Some(from), Some(to)));
    }

    fn item(&mut self, peer: Option<PublicKey>, (what, from, to): Value) {
        if self.items.len() < MAX_ITEMS {
            self.items.push(Item {
                peer: peer.map(|key| (key, (self.name)(&key))),
                what,
                from,
                to,
            });
        }
    }

    fn label(&self, key: &PublicKey) -> String {
        match (self.name)(key) {
            Some(name) => format!("{key} ({name})"),
            None => key.to_string(),
        }
    }

    fn added(&mut self, peer: &PeerStatus) {
        let key = peer.public_key;
        let blocks = blocks(peer);
        let mut text = format!("{} with the allowed IPs {blocks}", self.label(&key));
        if let Some(endpoint) = peer.endpoint {
            _ = write!(text, ", the endpoint {endpoint}");
        }
        if peer.preshared_key.is_some() {
            text += ", a preshared key";
        }
        self.added.push(text);
        self.item(Some(key), ("added", None, Some(blocks)));
    }

    fn removed(&mut self, key: PublicKey) {
        self.removed.push(self.label(&key));
        self.item(Some(key), ("removed", None, None));
    }

    fn peer(&mut self, old: &PeerStatus, new: &PeerStatus, is_placed: bool) {
        let mut values: Vec<Value> = Vec::new();
        let endpoint =
            |peer: &PeerStatus| Some(peer.endpoint.map_or("none".into(), |it| it.to_string()));
        // One that moves meanwhile is none of the client's.
        if is_placed && old.endpoint != new.endpoint {
            values.push(("endpoint", endpoint(old), endpoint(new)));
        }
        if old.allowed_ips != new.allowed_ips {
            values.push(("allowed_ips", Some(blocks(old)), Some(blocks(new))));
        }
        let keepalive = |peer: &PeerStatus| Some(peer.persistent_keepalive.to_string());
        if old.persistent_keepalive != new.persistent_keepalive {
            values.push(("persistent_keepalive", keepalive(old), keepalive(new)));
        }
        if !same(old.preshared_key.as_ref(), new.preshared_key.as_ref()) {
            values.push(("preshared_key", None, None));
        }
        if !values.is_empty() {
            self.values(new.public_key, values);
        }
    }

    fn values(&mut self, key: PublicKey, values: Vec<Value>) {
        let told: Vec<String> = values
            .iter()
            .map(|(what, from, to)| match (from, to) {
                (None, None) => (*what).to_owned(),
                (from, to) => {
                    let [from, to] = [from, to].map(|it| it.as_deref().unwrap_or("none"));
                    format!("{what} from {from} to {to}")
                }
            })
            .collect();
        let label = self.label(&key);
        self.changed.push(format!("{label}: {}", told.join(", ")));
        for value in values {
            self.item(Some(key), value);
        }
    }

    fn end(mut self, peers: usize) -> Changed {
        if !self.settings.is_empty() {
            let settings = self.settings.join(", ");
            self.parts.insert(0, format!("changed {settings}"));
        }
        for (verb, list) in [
            ("added", self.added),
            ("removed", self.removed),
            ("changed", self.changed),
        ] {
            match list.len() {
                0 => {}
                1 => self.parts.push(format!("{verb} the peer {}", list[0])),
                count => {
                    let some = list[..count.min(TOLD)].join("; ");
                    let rest = match count.saturating_sub(TOLD) {
                        0 => String::new(),
                        rest => format!("; and {rest} more"),
                    };
                    self.parts
                        .push(format!("{verb} {count} peers: {some}{rest}"));
                }
            }
        }
        Changed {
            text: self.parts.join("; "),
            items: self.items,
            peers,
        }
    }
}

/// A preshared key of zeros is none.
fn same(old: Option<&Secret>, new: Option<&Secret>) -> bool {
    let key = |secret: Option<&Secret>| secret.filter(|it| !it.is_zero()).cloned();
    key(old) == key(new)
}

fn blocks(peer: &PeerStatus) -> String {
    let some: Vec<String> = (peer.allowed_ips.iter().take(BLOCKS))
        .map(ToString::to_string)
        .collect();
    match (peer.allowed_ips.len().checked_sub(BLOCKS), some.is_empty()) {
        (_, true) => "none".into(),
        (None | Some(0), _) => some.join(", "),
        (Some(rest), _) => format!("{} and {rest} more", some.join(", ")),
    }
}
