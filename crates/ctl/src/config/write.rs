//! Configuration files from configuration files: what `wg` takes of one, and one brought up to
//! date.

use std::collections::HashMap;
use std::fmt::Write;

use adit_proto::config::{AllowedIpChange, DeviceStatus, PeerStatus, PublicKey, Secret};
use zeroize::Zeroizing;

use super::parse::{Line, Section, section, spelling};
use super::{Address, values};
use crate::keys;

/// The keys of `[Interface]` that wg(8) knows; the others are wg-quick's.
const OF_WG: [&str; 3] = ["PrivateKey", "ListenPort", "FwMark"];

/// `text` without what only wg-quick understands, as `wg-quick strip` prints it: what `wg setconf`
/// takes. A blank line keeps a comment above such a line from becoming the name of the peer below.
pub fn strip(text: &str) -> Zeroizing<String> {
    // A blank line takes less room than the line that it stands for.
    let mut out = Zeroizing::new(String::with_capacity(text.len() + 1));
    let mut within = None;
    let (mut below_comment, mut is_cut) = (false, false);
    for line in text.trim_start_matches('\u{feff}').lines() {
        let read = Line::read(line);
        let is_comment = matches!(read, Line::Blank) && line.contains('#');
        let is_header = matches!(read, Line::Section(_));
        match read {
            Line::Section(header) => within = section(header),
            Line::KeyValue(key, _) if within == Some(Section::Interface) => {
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

/// A section of a file: the lines above its header that belong to it, the header, and its lines.
struct Block<'a> {
    kind: Section,
    lead: Vec<&'a str>,
    header: &'a str,
    lines: Vec<&'a str>,
}

/// `original`, brought up to date with a running interface, for `SaveConfig`.
///
/// Lines that are still true stay as they are, comments, order and endpoints that are names
/// included (a name is resolved anew at the next `up`). Lines that are not are replaced where they
/// stand; peers that went go with the comments right above them, new ones come last. `mtu` is only
/// written where the file sets one.
pub fn save(
    original: &str,
    device: &DeviceStatus,
    addresses: &[Address],
    mtu: Option<u16>,
) -> Zeroizing<String> {
    let (head, blocks) = blocks(original.trim_start_matches('\u{feff}'));
    // Room for everything, so that no growing leaves copies of keys behind.
    let ips: usize = device.peers.iter().map(|peer| peer.allowed_ips.len()).sum();
    let room = 2 * original.len() + 4096 + 512 * device.peers.len() + 64 * ips;
    let mut out = Zeroizing::new(String::with_capacity(room));
    head.iter().for_each(|line| put(&mut out, line));
    let mut peers: HashMap<PublicKey, &PeerStatus> =
        (device.peers.iter().map(|peer| (peer.public_key, peer))).collect();
    let mut wrote_interface = false;
    for block in &blocks {
        let wanted = match block.kind {
            Section::Interface => {
                wrote_interface = true;
                interface_lines(device, addresses, mtu)
            }
            Section::Peer => match public_key(block).and_then(|key| peers.remove(&key)) {
                Some(peer) => peer_lines(peer),
                None => continue,
            },
        };
        block.lead.iter().for_each(|line| put(&mut out, line));
        put(&mut out, block.header);
        update(&mut out, block, wanted);
    }
    if !wrote_interface {
        put(&mut out, "[Interface]");
        let lines = interface_lines(device, addresses, None);
        (lines.iter()).for_each(|(name, value)| write_pair(&mut out, name, value.as_ref()));
    }
    for peer in &device.peers {
        if peers.remove(&peer.public_key).is_some() {
            put(&mut out, "\n[Peer]");
            let lines = peer_lines(peer);
            (lines.iter()).for_each(|(name, value)| write_pair(&mut out, name, value.as_ref()));
        }
    }
    out
}

fn put(out: &mut String, line: &str) {
    out.push_str(line);
    out.push('\n');
}

/// `text` without a peer's sections and the comments right above them; `None` if it has no such
/// peer.
pub fn without_peer(text: &str, peer: PublicKey) -> Option<Zeroizing<String>> {
    let (head, blocks) = blocks(text.trim_start_matches('\u{feff}'));
    let is_it = |block: &Block<'_>| block.kind == Section::Peer && public_key(block) == Some(peer);
    if !blocks.iter().any(is_it) {
        return None;
    }
    let mut out = Zeroizing::new(String::with_capacity(text.len() + 1));
    head.iter().for_each(|line| put(&mut out, line));
    for block in blocks.iter().filter(|block| !is_it(block)) {
        block.lead.iter().for_each(|line| put(&mut out, line));
        put(&mut out, block.header);
        block.lines.iter().for_each(|line| put(&mut out, line));
    }
    Some(out)
}

/// The peer with this name in the comment above its section: `# name`, or `# friendly_name = name`;
/// `None` if no peer has it or several have.
pub fn peer_named(text: &str, name: &str) -> Option<PublicKey> {
    let (_, blocks) = blocks(text.trim_start_matches('\u{feff}'));
    let has_name = |line: &&str| {
        let comment = line.trim().trim_start_matches('#').trim();
        let value = comment.strip_prefix("friendly_name");
        let value = value.and_then(|rest| rest.trim().strip_prefix('='));
        value.map_or(comment, str::trim) == name
    };
    let peers = blocks.iter().filter(|block| block.kind == Section::Peer);
    let mut named = peers.filter(|block| block.lead.iter().any(has_name));
    let first = named.next().and_then(public_key)?;
    named.next().is_none().then_some(first)
}

/// Comments and blank lines right above a header belong to that section; a second `[Interface]` to
/// the first.
fn blocks(text: &str) -> (Vec<&str>, Vec<Block<'_>>) {
    let mut head = Vec::new();
    let mut blocks: Vec<Block<'_>> = Vec::new();
    let mut present = usize::MAX;
    for line in text.lines() {
        let above = match blocks.get_mut(present) {
            Some(block) => &mut block.lines,
            None => &mut head,
        };
        let kind = match Line::read(line) {
            Line::Section(header) => section(header),
            _ => None,
        };
        let Some(kind) = kind else {
            above.push(line);
            continue;
        };
        let last = above
            .iter()
            .rposition(|line| !matches!(Line::read(line), Line::Blank));
        // A blank line after the last key of a section ends what is said about it.
        let from = last.map_or(0, |last| last + 1);
        let blank = above[from..].iter().position(|line| line.trim().is_empty());
        let lead = above.split_off(blank.map_or(from, |blank| from + blank));
        let first = (blocks.iter())
            .position(|block| kind == Section::Interface && block.kind == Section::Interface);
        present = first.unwrap_or(blocks.len());
        match blocks.get_mut(present) {
            Some(first) => first.lines.extend(lead),
            None => blocks.push(Block {
                kind,
                lead,
                header: line,
                lines: Vec::new(),
            }),
        }
    }
    (head, blocks)
}

fn public_key(block: &Block<'_>) -> Option<PublicKey> {
    (block.lines.iter().rev()).find_map(|line| match Line::read(line) {
        Line::KeyValue(key, value) if spelling(Section::Peer, key) == Some("PublicKey") => {
            keys::public_from_base64(&values::bare(value))
        }
        _ => None,
    })
}

/// The contents of a section: keys, and values in the form that [`meaning`] gives them. `None`: no
/// such line.
type Wanted = Vec<(&'static str, Option<Zeroizing<String>>)>;

fn write_pair(out: &mut String, name: &str, value: Option<&Zeroizing<String>>) {
    if let Some(value) = value {
        _ = writeln!(out, "{name} = {}", **value);
    }
}

/// Writes the section's lines, those of the `wanted` keys only as far as they are still true.
fn update(out: &mut String, block: &Block<'_>, wanted: Wanted) {
    let mut found: HashMap<&str, Vec<&str>> = HashMap::new();
    for line in &block.lines {
        if let Line::KeyValue(key, value) = Line::read(line)
            && let Some(name) = spelling(block.kind, key)
        {
            found.entry(name).or_default().push(value);
        }
    }
    let mut outdated: Wanted = wanted
        .into_iter()
        .filter(|(name, value)| match (*name, found.get(name)) {
            // A name stays, and so does the address of a peer that has not been heard of.
            ("Endpoint", Some(found)) if value.is_none() || is_name(found) => false,
            ("MTU", None) => false,
            (_, None) => value.is_some(),
            (name, Some(found)) => meaning(name, found) != *value,
        })
        .collect();
    let replaced: Vec<&str> = outdated.iter().map(|(name, _)| *name).collect();
    // Blank lines at the end stay at the end.
    let end = (block.lines.iter()).rposition(|line| !line.trim().is_empty());
    let (lines, blank) = block.lines.split_at(end.map_or(0, |end| end + 1));
    for line in lines {
        let name = match Line::read(line) {
            Line::KeyValue(key, _) => spelling(block.kind, key).unwrap_or_default(),
            _ => "",
        };
        if !replaced.contains(&name) {
            put(out, line);
        } else if let Some(i) = outdated.iter().position(|(other, _)| *other == name) {
            let (name, value) = outdated.remove(i);
            write_pair(out, name, value.as_ref());
        }
    }
    (outdated.iter()).for_each(|(name, value)| write_pair(out, name, value.as_ref()));
    blank.iter().for_each(|line| put(out, line));
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

fn interface_lines(device: &DeviceStatus, addresses: &[Address], mtu: Option<u16>) -> Wanted {
    vec![
        ("Address", list(addresses.to_vec())),
        ("PrivateKey", device.private_key.as_ref().and_then(secret)),
        ("ListenPort", count(device.listen_port)),
        ("FwMark", mark(device.fwmark)),
        ("MTU", mtu.and_then(count)),
    ]
}

fn peer_lines(peer: &PeerStatus) -> Wanted {
    vec![
        ("PublicKey", Some(keys::to_base64(&peer.public_key.0))),
        ("PresharedKey", peer.preshared_key.as_ref().and_then(secret)),
        ("Endpoint", peer.endpoint.and_then(|addr| list(vec![addr]))),
        ("AllowedIPs", list(peer.allowed_ips.clone())),
        ("PersistentKeepalive", count(peer.persistent_keepalive)),
    ]
}
