//! The words of the format: sections, keys, and what a line is.

use crate::config::values;

pub(crate) const INTERFACE_KEYS: [&str; 12] = [
    "PrivateKey",
    "ListenPort",
    "FwMark",
    "Address",
    "DNS",
    "MTU",
    "Table",
    "PreUp",
    "PostUp",
    "PreDown",
    "PostDown",
    "SaveConfig",
];
pub(crate) const PEER_KEYS: [&str; 5] = [
    "PublicKey",
    "PresharedKey",
    "Endpoint",
    "AllowedIPs",
    "PersistentKeepalive",
];

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    Interface,
    Peer,
}

/// A line of a file, without its comment.
pub(super) enum FileLine<'a> {
    Blank,
    Section(&'a str),
    KeyValue(&'a str, &'a str),
    Other(&'a str),
}

impl<'a> FileLine<'a> {
    pub(super) fn read(line: &'a str) -> Self {
        let line = line.split('#').next().unwrap_or("").trim();
        if line.is_empty() {
            Self::Blank
        } else if line.starts_with('[') {
            Self::Section(line)
        } else if let Some((key, value)) = line.split_once('=') {
            Self::KeyValue(key.trim(), value.trim())
        } else {
            Self::Other(line)
        }
    }
}

/// The section that `[name]` starts.
pub(super) fn section(header: &str) -> Option<Section> {
    match values::bare(header).to_ascii_lowercase().as_str() {
        "[interface]" => Some(Section::Interface),
        "[peer]" => Some(Section::Peer),
        _ => None,
    }
}

/// The proper spelling of a key in `section`.
pub(super) fn spelling(section: Section, key: &str) -> Option<&'static str> {
    let known: &[&'static str] = match section {
        Section::Interface => &INTERFACE_KEYS,
        Section::Peer => &PEER_KEYS,
    };
    let key = values::bare(key);
    (known.iter().copied()).find(|known| known.eq_ignore_ascii_case(&key))
}
