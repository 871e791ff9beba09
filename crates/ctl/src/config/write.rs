//! Configuration files from configuration files: what `wg` takes of one, and one brought up to
//! date.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use adit_proto::config::{AllowedIpChange, DeviceStatus, PeerStatus, PublicKey, Secret};
use zeroize::Zeroizing;

use super::layout::{Layout, is_blank};
use super::values;
use crate::config::keywords::{FileLine, Section, section, spelling};
use crate::config::model::InterfaceAddress;
use crate::keys;

/// The keys of `[InterfaceSection]` that wg(8) knows; the others are wg-quick's.
const OF_WG: [&str; 3] = ["PrivateKey", "ListenPort", "FwMark"];

/// `text` without what only wg-quick understands, as `wg-quick strip` prints it: what `wg setconf`
/// takes. A blank line keeps a comment above such a line from becoming the name of the peer below.
pub fn strip(text: &str) -> Zeroizing<String> {
    // A blank line takes less room than the line that it stands for.
    let mut out = Zeroizing::new(String::with_capacity(text.len() + 1));
    let mut within = None;
    let (mut below_comment, mut is_cut) = (false, false);
    for line in text.trim_start_matches('\u{feff}').lines() {
        let read = FileLine::read(line);
        let is_comment = matches!(read, FileLine::Blank) && line.contains('#');
        let is_header = matches!(read, FileLine::Section(_));
        match read {
            FileLine::Section(header) => within = section(header),
            FileLine::KeyValue(key, _) if within == Some(Section::Interface) => {
                let name = spelling(Section::Interface, key);
                if name.is_some_and(|name| !OF_WG.contains(&name)) {
                    is_cut |= below_comment;
                    continue;
                }
            }
            _ => {}
        }
        if is_cut && (is_comment || is_header) {
            out.push('\n');
        }
        (below_comment, is_cut) = (is_comment, false);
        out.push_str(line);
        out.push('\n');
    }
    out
}

/// Edits of a file: some of its lines go, others change, and new ones come.
pub(super) struct Edits<'a> {
    pub(super) layout: Layout<'a>,
    gone: Vec<bool>,
    /// Text in place of a line, or below it.
    pub(super) changed: HashMap<usize, Zeroizing<String>>,
    pub(super) added: HashMap<usize, Zeroizing<String>>,
    /// How this file ends its lines.
    end: &'static str,
}

impl<'a> Edits<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let layout = Layout::of(text);
        let is_dos = layout
            .lines
            .first()
            .is_some_and(|line| line.ends_with("\r\n"));
        Self {
            gone: vec![false; layout.lines.len()],
            layout,
            changed: HashMap::new(),
            added: HashMap::new(),
            end: if is_dos { "\r\n" } else { "\n" },
        }
    }

    /// Takes sections out, with all that is theirs and one blank line above it where another one
    /// is below.
    pub(super) fn remove(&mut self, is_gone: impl Fn(usize) -> bool) {
        let count = self.layout.lines.len();
        let is_blank = |line: usize| is_blank(self.layout.raw(line));
        for line in 0..count {
            self.gone[line] = self.layout.owner(line).is_some_and(&is_gone);
        }
        for line in 1..count {
            let is_first = self.gone[line] && !self.gone[line - 1];
            if !is_first || !is_blank(line - 1) {
                continue;
            }
            let below = (line..count).find(|below| !self.gone[*below]);
            self.gone[line - 1] = below.is_none_or(is_blank);
        }
    }

    pub(super) fn remove_line(&mut self, line: usize) {
        self.gone[line] = true;
    }

    /// The text, `room` bytes longer at most. `parts` puts a blank line between the comments of one
    /// section and the next, so that it stays clear whose they are.
    pub(super) fn text(&self, room: usize, parts: bool) -> Zeroizing<String> {
        let lines = &self.layout.lines;
        let size: usize = (0..lines.len())
            .map(|at| self.layout.raw(at).len() + 2)
            .sum();
        let mut out = Zeroizing::new(String::with_capacity(size + room));
        let mut above = None;
        for at in 0..lines.len() {
            if !self.gone[at] {
                let line = self.layout.raw(at);
                let is_close =
                    |above: &usize| !is_blank(self.layout.raw(*above)) && !is_blank(line);
                if let Some(above) = above.filter(is_close)
                    && parts
                    && self.layout.owner(above) != self.layout.owner(at)
                {
                    out.push_str(self.end);
                }
                above = Some(at);
                out.push_str(self.changed.get(&at).map_or(line, |text| text.as_str()));
            }
            if let Some(added) = self.added.get(&at) {
                self.put(&mut out, added);
            }
        }
        out
    }

    /// Appends whole lines.
    fn put(&self, out: &mut String, lines: &str) {
        if !out.is_empty() && !out.ends_with('\n') {
            out.push_str(self.end);
        }
        for line in lines.lines() {
            out.push_str(line);
            out.push_str(self.end);
        }
    }

    pub(super) fn public_key(&self, section: usize) -> Option<PublicKey> {
        let keys = self.layout.settings(section);
        let keys = keys.filter(|(_, key, _)| spelling(Section::Peer, key) == Some("PublicKey"));
        keys.last()
            .and_then(|(_, _, value)| keys::public_from_base64(&values::bare(value)))
    }

    fn sections(&self, kind: Section) -> impl Iterator<Item = usize> {
        let sections = (0..).zip(&self.layout.sections);
        sections
            .filter(move |(_, block)| block.kind == Some(kind))
            .map(|(at, _)| at)
    }

    /// Brings the lines of `sections`, which are one to wg, to what is `wanted`: those that are
    /// still true stay.
    fn update(&mut self, kind: Section, sections: &[usize], wanted: SectionLines) {
        let mut found: HashMap<&str, Vec<(usize, &str)>> = HashMap::new();
        let settings = sections.iter().flat_map(|at| self.layout.settings(*at));
        for (line, key, value) in settings {
            if let Some(name) = spelling(kind, key) {
                found.entry(name).or_default().push((line, value));
            }
        }
        let Some(first) = sections.first() else {
            return;
        };
        let below = self.layout.sections[*first].last;
        let mut new = Zeroizing::new(String::with_capacity(1024));
        for (name, value) in wanted {
            let Some(lines) = found.get(name) else {
                new.reserve(
                    value
                        .as_ref()
                        .map_or(0, |value| name.len() + value.len() + 4),
                );
                write_pair(&mut new, name, value.as_ref());
                continue;
            };
            let values: Vec<&str> = lines.iter().map(|(_, value)| *value).collect();
            let is_true = match name {
                // A name stays, and so does the address of a peer that has not been heard of.
                "Endpoint" if value.is_none() || is_name(&values) => true,
                "MTU" if value.is_none() => true,
                _ => meaning(name, &values) == value,
            };
            if is_true {
                continue;
            }
            let (first, rest) = lines.split_at(1);
            match (first, value) {
                ([(line, old)], Some(value)) => {
                    let line_now = replaced(self.layout.lines[*line], old, &value);
                    self.changed.insert(*line, line_now);
                }
                (lines, _) => lines.iter().for_each(|(line, _)| self.gone[*line] = true),
            }
            rest.iter().for_each(|(line, _)| self.gone[*line] = true);
        }
        if !new.is_empty() {
            self.added.insert(below, new);
        }
    }
}

/// A line of a setting with another value; what stands around the value stays.
pub(super) fn replaced(line: &str, old: &str, new: &str) -> Zeroizing<String> {
    let value = line.find('=').map_or(line.len(), |at| at + 1);
    let (before, rest) = line.split_at(value);
    let indent = rest.len() - rest.trim_start_matches([' ', '\t']).len();
    let (space, rest) = rest.split_at(indent);
    let space = if space.is_empty() && old.is_empty() {
        " "
    } else {
        space
    };
    let after = &rest[old.len().min(rest.len())..];
    let mut out = Zeroizing::new(String::with_capacity(line.len() + new.len() + 1));
    [before, space, new, after]
        .iter()
        .for_each(|part| out.push_str(part));
    out
}

/// The peers of a file, whether or not it has mistakes.
pub fn peers_of(text: &str) -> HashSet<PublicKey> {
    let edits = Edits::new(text);
    let sections = edits.sections(Section::Peer);
    sections.filter_map(|at| edits.public_key(at)).collect()
}

/// `original`, brought up to date with a running interface, for `SaveConfig`.
///
/// Lines that are still true stay as they are, comments, order and endpoints that are names
/// included (a name is resolved anew at the next `up`). Lines that are not get another value where
/// they stand; peers that went go as
/// [`without_peer`](super::without_peer) takes them, new ones come last. `mtu` is only
/// written where the file sets one.
pub fn save(
    original: &str,
    device: &DeviceStatus,
    addresses: &[InterfaceAddress],
    mtu: Option<u16>,
) -> Zeroizing<String> {
    let mut edits = Edits::new(original);
    let mut peers: HashMap<PublicKey, &PeerStatus> =
        (device.peers.iter().map(|peer| (peer.public_key, peer))).collect();
    let mut kept: Vec<(usize, &PeerStatus)> = Vec::new();
    let mut gone = HashSet::new();
    for section in edits.sections(Section::Peer) {
        match edits.public_key(section).and_then(|key| peers.remove(&key)) {
            Some(peer) => kept.push((section, peer)),
            None => _ = gone.insert(section),
        }
    }
    edits.remove(|section| gone.contains(&section));
    for (section, peer) in kept {
        edits.update(Section::Peer, &[section], peer_lines(peer));
    }
    let interface: Vec<usize> = edits.sections(Section::Interface).collect();
    let wanted = interface_lines(device, addresses, mtu);
    edits.update(Section::Interface, &interface, wanted);

    // Room for everything, so that no growing leaves copies of keys behind.
    let ips: usize = device.peers.iter().map(|peer| peer.allowed_ips.len()).sum();
    let room = original.len() + 4096 + 512 * device.peers.len() + 64 * ips;
    let mut out = edits.text(room, false);
    if interface.is_empty() {
        edits.put(&mut out, "[Interface]");
        let lines = interface_lines(device, addresses, None);
        put_pairs(&edits, &mut out, &lines);
    }
    for peer in &device.peers {
        if peers.remove(&peer.public_key).is_some() {
            edits.put(&mut out, "\n[Peer]");
            put_pairs(&edits, &mut out, &peer_lines(peer));
        }
    }
    out
}

fn put_pairs(edits: &Edits<'_>, out: &mut String, lines: &SectionLines) {
    for (name, value) in lines {
        let mut line = Zeroizing::new(String::with_capacity(
            name.len() + value.as_ref().map_or(0, |value| value.len()) + 4,
        ));
        write_pair(&mut line, name, value.as_ref());
        edits.put(out, &line);
    }
}

/// `text` with one more section at the end, its lines ended as the others are.
pub fn with_section(text: &str, section: &str) -> Zeroizing<String> {
    let edits = Edits::new(text);
    let mut out = edits.text(2 * section.len() + 4, false);
    if !out.is_empty() {
        edits.put(&mut out, "\n");
    }
    edits.put(&mut out, section);
    out
}

/// The contents of a section: keys, and values in the form that [`meaning`] gives them. `None`: no
/// such line.
type SectionLines = Vec<(&'static str, Option<Zeroizing<String>>)>;

fn write_pair(out: &mut String, name: &str, value: Option<&Zeroizing<String>>) {
    if let Some(value) = value {
        _ = writeln!(out, "{name} = {}", **value);
    }
}

fn is_name(endpoint: &[&str]) -> bool {
    (endpoint.last())
        .is_some_and(|value| values::endpoint(value).is_ok_and(|found| found.numeric().is_none()))
}

fn list<T: ToString + Ord>(mut items: Vec<T>) -> Option<Zeroizing<String>> {
    items.sort();
    items.dedup();
    let items: Vec<String> = items.iter().map(T::to_string).collect();
    (!items.is_empty()).then(|| Zeroizing::new(items.join(", ")))
}

fn count(value: impl Into<u32>) -> Option<Zeroizing<String>> {
    let value = value.into();
    (value != 0).then(|| Zeroizing::new(value.to_string()))
}

fn mark(value: u32) -> Option<Zeroizing<String>> {
    (value != 0).then(|| Zeroizing::new(format!("{value:#x}")))
}

fn secret(key: &Secret) -> Option<Zeroizing<String>> {
    (!key.is_zero()).then(|| keys::to_base64(key.bytes()))
}

/// The meaning of the values that a section gives for a key, in one form; `None` if it is the same
/// as without the line.
fn meaning(name: &str, found: &[&str]) -> Option<Zeroizing<String>> {
    let items = || {
        found
            .iter()
            .flat_map(|value| value.split(',').map(str::trim))
    };
    let value = found.last().copied().unwrap_or_default();
    match name {
        "Address" => list(
            items()
                .filter_map(|item| values::address(item).ok())
                .collect(),
        ),
        "AllowedIPs" => {
            let blocks = items().filter_map(|item| values::allowed_ip(item).ok());
            let added = blocks.filter_map(|change| match change {
                AllowedIpChange::Add(block) => Some(block),
                AllowedIpChange::Remove(_) => None,
            });
            list(added.collect())
        }
        "ListenPort" => count(values::port(value).ok()?),
        "MTU" => count(values::mtu(value).ok()?),
        "PersistentKeepalive" => count(values::keepalive(value).ok()?),
        "FwMark" => mark(values::fwmark(value).ok()?),
        "Endpoint" => list(vec![values::endpoint(value).ok()?.numeric()?]),
        _ => {
            let mut key = values::key(value).ok()?;
            if name == "PrivateKey" {
                // A device shows its key clamped.
                keys::clamp(&mut key);
            }
            secret(&key)
        }
    }
}

fn interface_lines(
    device: &DeviceStatus,
    addresses: &[InterfaceAddress],
    mtu: Option<u16>,
) -> SectionLines {
    vec![
        ("Address", list(addresses.to_vec())),
        ("PrivateKey", device.private_key.as_ref().and_then(secret)),
        ("ListenPort", count(device.listen_port)),
        ("FwMark", mark(device.fwmark)),
        ("MTU", mtu.and_then(count)),
    ]
}

fn peer_lines(peer: &PeerStatus) -> SectionLines {
    vec![
        ("PublicKey", Some(keys::to_base64(&peer.public_key.0))),
        ("PresharedKey", peer.preshared_key.as_ref().and_then(secret)),
        ("Endpoint", peer.endpoint.and_then(|addr| list(vec![addr]))),
        ("AllowedIPs", list(peer.allowed_ips.clone())),
        ("PersistentKeepalive", count(peer.persistent_keepalive)),
    ]
}
