//! Configuration files from configuration files: what `wg` takes of one, and one brought up to date.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Write;

use adit_proto::config::{AllowedIpChange, Cidr, DeviceStatus, PeerStatus, PublicKey};
use zeroize::Zeroizing;

use super::parse::{Line, Section, section, spelling};
use super::{Address, values};
use crate::keys;

/// The keys of `[Interface]` that wg(8) knows; the others are wg-quick's.
const OF_WG: [&str; 3] = ["PrivateKey", "ListenPort", "FwMark"];

/// `text` without what only wg-quick understands, as `wg-quick strip` prints it: what `wg setconf` takes.
pub fn strip(text: &str) -> Zeroizing<String> {
    let mut out = Zeroizing::new(String::with_capacity(text.len() + 1));
    let mut within = None;
    for line in text.trim_start_matches('\u{feff}').lines() {
        match Line::read(line) {
            Line::Section(header) => within = section(header),
            Line::Pair(key, _) if within == Some(Section::Interface) => {
                let name = spelling(Section::Interface, key);
                if name.is_some_and(|name| !OF_WG.contains(&name)) {
                    continue;
                }
            }
            _ => {}
        }
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
/// Lines that are still true stay as they are, comments, order and endpoints that are names included (a name is
/// resolved anew at the next `up`). Lines that are not are replaced where they stand; peers that went go with the
/// comments right above them, new ones come last. `mtu` is only written where the file sets one.
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
        lines.iter().for_each(|line| line.write(&mut out));
    }
    for peer in &device.peers {
        if peers.remove(&peer.public_key).is_some() {
            put(&mut out, "\n[Peer]");
            peer_lines(peer)
                .iter()
                .for_each(|line| line.write(&mut out));
        }
    }
    out
}

fn put(out: &mut String, line: &str) {
    out.push_str(line);
    out.push('\n');
}

/// Comments and blank lines right above a header belong to that section.
fn blocks(text: &str) -> (Vec<&str>, Vec<Block<'_>>) {
    let mut head = Vec::new();
    let mut blocks: Vec<Block<'_>> = Vec::new();
    for line in text.lines() {
        let above = match blocks.last_mut() {
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
        blocks.push(Block {
            kind,
            lead,
            header: line,
            lines: Vec::new(),
        });
    }
    (head, blocks)
}

fn public_key(block: &Block<'_>) -> Option<PublicKey> {
    block.lines.iter().find_map(|line| match Line::read(line) {
        Line::Pair(key, value) if key.eq_ignore_ascii_case("PublicKey") => {
            keys::public_from_base64(value)
        }
        _ => None,
    })
}

/// What a section should say for one key.
struct Wanted {
    name: &'static str,
    /// `None`: the key should not stand there.
    value: Option<Zeroizing<String>>,
    /// Whether the values that the section gives for this key say the same.
    same: Box<dyn Fn(&[&str]) -> bool>,
    /// Written only in place of a line that is there.
    only_in_place: bool,
}

impl Wanted {
    fn new(
        name: &'static str,
        value: Option<Zeroizing<String>>,
        same: impl Fn(&[&str]) -> bool + 'static,
    ) -> Self {
        Self {
            name,
            value,
            same: Box::new(same),
            only_in_place: false,
        }
    }

    fn write(&self, out: &mut String) {
        if let (Some(value), false) = (&self.value, self.only_in_place) {
            _ = writeln!(out, "{} = {}", self.name, **value);
        }
    }
}

/// Writes the section's lines, those of the `wanted` keys only as far as they are still true.
fn update(out: &mut String, block: &Block<'_>, wanted: Vec<Wanted>) {
    let mut values: HashMap<&str, Vec<&str>> = HashMap::new();
    for line in &block.lines {
        if let Line::Pair(key, value) = Line::read(line)
            && let Some(name) = spelling(block.kind, key)
        {
            values.entry(name).or_default().push(value);
        }
    }
    let mut missing: HashMap<&str, Wanted> = HashMap::new();
    for want in wanted {
        let found = values.get(want.name).map_or(&[][..], Vec::as_slice);
        if !(want.same)(found) {
            missing.insert(want.name, want);
        }
    }
    let replaced: Vec<&str> = missing.keys().copied().collect();
    // Blank lines at the end stay at the end.
    let end = block
        .lines
        .iter()
        .rposition(|line| !line.trim().is_empty())
        .map_or(0, |i| i + 1);
    for line in &block.lines[..end] {
        let name = match Line::read(line) {
            Line::Pair(key, _) => spelling(block.kind, key).unwrap_or_default(),
            _ => "",
        };
        if !replaced.contains(&name) {
            put(out, line);
        } else if let Entry::Occupied(entry) = missing.entry(name) {
            let mut want = entry.remove();
            want.only_in_place = false;
            want.write(out);
        }
    }
    let mut rest: Vec<Wanted> = missing.into_values().collect();
    rest.sort_by_key(|want| want.name);
    rest.iter().for_each(|want| want.write(out));
    block.lines[end..].iter().for_each(|line| put(out, line));
}

/// A key that stands once, with the number that its value means.
fn number<T: Copy + PartialEq + Into<u32> + 'static>(
    name: &'static str,
    now: T,
    default: T,
    shown: String,
    parse: fn(&str) -> Result<T, String>,
) -> Wanted {
    let value = (now != default).then(|| Zeroizing::new(shown));
    Wanted::new(name, value, move |found| match found {
        [] => now == default,
        [value] => parse(value) == Ok(now),
        _ => false,
    })
}

fn secret(name: &'static str, key: Option<&adit_proto::config::Secret>) -> Wanted {
    let key = key.filter(|key| !key.is_zero()).cloned();
    let value = key.as_ref().map(|key| keys::to_base64(&key.0));
    Wanted::new(name, value, move |found| match found {
        [] => key.is_none(),
        // An unclamped private key is the same key as the clamped one that the device shows.
        [value] => keys::from_base64(value).is_some_and(|mut found| {
            if name == "PrivateKey" {
                keys::clamp(&mut found);
            }
            Some(&found) == key.as_ref()
        }),
        _ => false,
    })
}

fn join<T: ToString>(items: &[T]) -> Option<Zeroizing<String>> {
    let items: Vec<String> = items.iter().map(T::to_string).collect();
    (!items.is_empty()).then(|| Zeroizing::new(items.join(", ")))
}

/// The items of all the lists, if all are right.
fn items<T>(found: &[&str], parse: fn(&str) -> Result<T, String>) -> Option<Vec<T>> {
    let lists: Result<Vec<Vec<&str>>, String> = found.iter().map(|v| values::list(v)).collect();
    (lists.ok()?.into_iter().flatten())
        .map(|item| parse(item).ok())
        .collect()
}

fn interface_lines(device: &DeviceStatus, addresses: &[Address], mtu: Option<u16>) -> Vec<Wanted> {
    let now = addresses.to_vec();
    let same = move |found: &[&str]| {
        items(found, values::address).is_some_and(|found| {
            found.len() == now.len() && found.iter().all(|address| now.contains(address))
        })
    };
    let port = device.listen_port;
    let mark = device.fwmark;
    let mut wanted = vec![
        Wanted::new("Address", join(addresses), same),
        number("FwMark", mark, 0, format!("{mark:#x}"), values::fwmark),
        number("ListenPort", port, 0, port.to_string(), values::port),
        secret("PrivateKey", device.private_key.as_ref()),
    ];
    if let Some(mtu) = mtu {
        let mut line = number("MTU", mtu, 0, mtu.to_string(), values::mtu);
        line.only_in_place = true;
        wanted.push(line);
    }
    wanted
}

fn peer_lines(peer: &PeerStatus) -> Vec<Wanted> {
    let endpoint = peer.endpoint;
    let same_endpoint = move |found: &[&str]| match found {
        [] => endpoint.is_none(),
        [value] => values::endpoint(value).is_ok_and(|found| match found.numeric() {
            // A name, or an address that nothing better is known than.
            None => true,
            Some(found) => endpoint.is_none_or(|now| now == found),
        }),
        _ => false,
    };
    let mut blocks: Vec<Cidr> = peer.allowed_ips.clone();
    blocks.sort();
    let same_ips = move |found: &[&str]| {
        let found = items(found, values::allowed_ip).and_then(|found| {
            let blocks = found.into_iter().map(|change| match change {
                AllowedIpChange::Add(block) => Some(block),
                AllowedIpChange::Remove(_) => None,
            });
            blocks.collect::<Option<Vec<Cidr>>>()
        });
        found.is_some_and(|mut found| {
            found.sort();
            found.dedup();
            found == blocks
        })
    };
    let key = peer.public_key;
    let keepalive = peer.persistent_keepalive;
    let shown = keepalive.to_string();
    vec![
        Wanted::new(
            "PublicKey",
            Some(keys::to_base64(&key.0)),
            move |found| matches!(found, [value] if keys::public_from_base64(value) == Some(key)),
        ),
        secret("PresharedKey", peer.preshared_key.as_ref()),
        Wanted::new(
            "Endpoint",
            endpoint.and_then(|now| join(&[now])),
            same_endpoint,
        ),
        Wanted::new("AllowedIPs", join(&peer.allowed_ips), same_ips),
        number(
            "PersistentKeepalive",
            keepalive,
            0,
            shown,
            values::keepalive,
        ),
    ]
}
