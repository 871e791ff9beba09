//! Files that are not wg-quick's: which program's they are, in one line.

use crate::config::keywords::{Section, spelling};

/// A program whose files look like WireGuard's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    AmneziaWg,
    Android,
    Warp,
    Wireproxy,
    Networkd,
    NetworkManager,
    Colons,
    Quotes,
}

const AMNEZIA: [&str; 20] = [
    "jc", "jmin", "jmax", "s1", "s2", "s3", "s4", "h1", "h2", "h3", "h4", "i1", "i2", "i3", "i4",
    "i5", "j1", "j2", "j3", "itime",
];
const ANDROID: [&str; 2] = ["includedapplications", "excludedapplications"];
const WARP: [&str; 2] = ["reserved", "clientid"];
const WIREPROXY: [&str; 11] = [
    "checkalive",
    "checkaliveinterval",
    "[socks5]",
    "[http]",
    "[tcpclienttunnel]",
    "[tcpservertunnel]",
    "[stdiotunnel]",
    "[resolve]",
    "[sni]",
    "[udpproxytunnel]",
    "[udpservertunnel]",
];
const NETWORKD: [&str; 5] = [
    "[netdev]",
    "[wireguard]",
    "[wireguardpeer]",
    "[match]",
    "[network]",
];
const NETWORK_MANAGER: [&str; 4] = ["[connection]", "[ipv4]", "[ipv6]", "[proxy]"];

impl Dialect {
    /// The program that has this key or `[section]`.
    pub(super) fn of(word: &str) -> Option<Self> {
        let word: String = word.split_whitespace().collect();
        let word = word.to_ascii_lowercase();
        let has = |words: &[&str]| words.contains(&word.as_str());
        if word.starts_with("[wireguard-peer.") || has(&NETWORK_MANAGER) {
            return Some(Self::NetworkManager);
        }
        let known = [
            (Self::AmneziaWg, &AMNEZIA[..]),
            (Self::Android, &ANDROID),
            (Self::Warp, &WARP),
            (Self::Wireproxy, &WIREPROXY),
            (Self::Networkd, &NETWORKD),
        ];
        known
            .into_iter()
            .find(|(_, words)| has(words))
            .map(|(dialect, _)| dialect)
    }

    /// Whether such a file has another form altogether, so that nothing else need be said of it.
    pub(super) fn is_whole(self) -> bool {
        matches!(self, Self::Networkd | Self::NetworkManager)
    }

    /// Explains these lines.
    pub(super) fn explain(self, lines: &[usize]) -> String {
        let lines = ranges(lines);
        match self {
            Self::AmneziaWg => format!(
                "this is a file of AmneziaWG, which speaks another protocol ({lines}): a peer that has these settings \
                 does not understand WireGuard, so ask for a file for WireGuard"
            ),
            Self::Android => format!(
                "this is a file of WireGuard's Android app, which chooses applications ({lines}): remove that, as \
                 it means nothing here"
            ),
            Self::Warp => format!(
                "this is a file for another program that reaches Cloudflare's WARP ({lines}), and not all of it is \
                 WireGuard's: remove that"
            ),
            Self::Wireproxy => format!(
                "this is a file of a proxy ({lines}), which `adit proxy -c FILE` runs: for an interface, remove the \
                 parts that are a proxy's own, and keep [Interface] and [Peer]"
            ),
            Self::Networkd => format!(
                "this is a file of systemd-networkd ({lines}), see systemd.netdev(5): `networkctl` applies it; here, \
                 [Interface] and [Peer] are expected"
            ),
            Self::NetworkManager => format!(
                "this is a file of NetworkManager ({lines}): `nmcli` applies it; here, [Interface] and [Peer] are \
                 expected"
            ),
            Self::Colons => {
                format!("expected Key = value, got Key: value ({lines}): write '=' for ':'")
            }
            Self::Quotes => {
                format!("values stand without quotes here ({lines}): remove the quotes")
            }
        }
    }
}

/// Whether this is a known key before a colon, as in YAML. Its name, and that section's.
pub(super) fn colon(section: Option<Section>, text: &str) -> Option<&'static str> {
    let (key, _) = text.split_once(':')?;
    spelling(section?, key.trim().trim_matches(['"', '\'', '-']).trim())
}

/// Whether quotes are around a value.
pub(super) fn is_quoted(value: &str) -> bool {
    const QUOTES: [char; 8] = ['"', '\'', '`', '“', '”', '„', '‘', '’'];
    value.len() > 1 && value.starts_with(QUOTES) && value.ends_with(QUOTES)
}

/// What a text is that has no lines as WireGuard's files have them.
pub(super) fn other_file(text: &str) -> Option<&'static str> {
    let start = text.trim_start_matches('\u{feff}').trim_start();
    let begins = |with: &str| start.starts_with(with);
    if begins("\u{ff}\u{fe}") || begins("\u{fe}\u{ff}") || text.contains('\0') {
        return Some(match begins("PK\u{3}\u{4}") || begins("\u{89}PNG") {
            true => {
                "this is an archive or a picture, and no text: unpack it, or scan its code with a telephone"
            }
            false => {
                "this is UTF-16 or no text: `iconv -f UTF-16 -t UTF-8 FILE > NEW` makes the text of it that is expected"
            }
        });
    }
    if text.trim_end().contains('\r') && !text.contains('\n') {
        return Some(
            "the lines end with carriage returns alone: `tr '\\r' '\\n' < FILE > NEW` makes the lines that are expected",
        );
    }
    let has_section = text.lines().any(|line| line.trim_start().starts_with('['));
    let first = start.split_whitespace().next().unwrap_or_default();
    let lower = first.to_ascii_lowercase();
    Some(match lower.as_str() {
        _ if lower.starts_with('{') => {
            "this is JSON: expected wg-quick's file, with [Interface] and [Peer]"
        }
        _ if lower.starts_with("<!doctype")
            || lower.starts_with("<html")
            || lower.starts_with("<?xml") =>
        {
            "this is a web page or XML: what it was downloaded from may ask for a password first"
        }
        _ if has_section => return None,
        "config" => {
            "this is a file of OpenWrt (UCI): `uci` reads it; here, [Interface] and [Peer] are expected"
        }
        "/interface" => "this is an export of RouterOS: here, [Interface] and [Peer] are expected",
        "client" | "dev" | "remote" | "proto" => {
            "this is a file of OpenVPN, which is another protocol"
        }
        "network:" | "wireguard:" | "---" => {
            "this is YAML: expected wg-quick's file, with [Interface] and [Peer]"
        }
        _ => return None,
    })
}

/// Line numbers, for people: `lines 3-5, 9`.
fn ranges(lines: &[usize]) -> String {
    let mut found: Vec<(usize, usize)> = Vec::new();
    for line in lines {
        match found.last_mut() {
            Some((_, last)) if *last + 1 >= *line => *last = *line,
            _ => found.push((*line, *line)),
        }
    }
    let many = found.len() > 8;
    found.truncate(8);
    let texts: Vec<String> = (found.iter())
        .map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        })
        .collect();
    let word = if lines.len() == 1 { "line" } else { "lines" };
    format!(
        "{word} {}{}",
        texts.join(", "),
        if many { " …" } else { "" }
    )
}
