//! What a comment says: the name of a peer, the beginning or the end of what a script wrote, or a
//! setting that is commented out. Which peer it is about is decided in `layout.rs`.
//!
//! | who | how |
//! |---|---|
//! | by hand | `# alice` above `[PeerSection]`, behind it or right below it |
//! | wg-easy | `# Client: alice (ID)` above |
//! | wireguard-ui | `# Name: alice` in a block of such lines above |
//! | angristan's wireguard-install | `### Client alice` above |
//! | Nyr's wireguard-install | `# BEGIN_PEER alice` above, `# END_PEER alice` below |
//! | PiVPN | `### begin alice ###` above, `### end alice ###` below |
//! | WGDashboard | `#Name# = alice` in the section |
//! | WireGuard Portal | `# -WGP- Display name: alice` in the section |
//! | prometheus_wireguard_exporter | `# friendly_name = alice` or `# friendly_json = {…}` in the section |
//! | `adit new-peer` | `# friendly_name = alice` in the section; earlier versions, above it |
//!
//! The lines of a peer that `adit peer disable` made comments of, `disabled.rs`, do not get here.

use crate::config::keywords::{Section, section, spelling};

/// Longest name, in characters.
const MAX_NAME: usize = 64;
/// Labels before `=` or `:` and a name, in lower case, with `_` between words.
const NAME_LABELS: [&str; 8] = [
    "name",
    "friendly_name",
    "display_name",
    "peer_name",
    "client_name",
    "user_name",
    "username",
    "device_name",
];
/// The same, where a program may write something else there.
const OWNER_LABELS: [&str; 4] = ["client", "peer", "user", "device"];
/// Labels before `:` and something that is no name.
const OTHER_LABELS: [&str; 29] = [
    "id",
    "uid",
    "uuid",
    "client_id",
    "peer_id",
    "email",
    "e_mail",
    "mail",
    "telegram",
    "created",
    "created_at",
    "created_by",
    "updated",
    "updated_at",
    "update_at",
    "modified",
    "added",
    "date",
    "expires",
    "expires_at",
    "expiry",
    "ip",
    "address",
    "group",
    "tags",
    "note",
    "notes",
    "comment",
    "description",
];
/// Words that stand above peers and name none.
const HEADINGS: [&str; 9] = [
    "peer",
    "peers",
    "client",
    "clients",
    "user",
    "users",
    "server",
    "interface",
    "settings",
];

/// How surely a comment gives a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// A comment that could be anything.
    Plain,
    /// A label that says whose section this is, as `Client alice` does.
    Owner,
    /// A label that says that it is a name, as `Name = alice` does.
    Name,
}

/// The meaning of a comment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// A name; `None` where the comment has a place for one and leaves it empty.
    Name(Rank, Option<String>),
    /// The beginning of what a script wrote; the name tells which end belongs to it.
    Begin(String),
    /// The end of that.
    End(String),
    /// The header of a section that is commented out.
    OffHeader,
    /// A setting that is commented out.
    OffSetting,
    /// Nothing of these.
    Nothing,
}

/// Understands a comment, from its `#` on.
pub(super) fn said(comment: &str) -> Said {
    let text = comment.trim_matches(|c: char| c == '#' || c.is_whitespace());
    let bare = without_mark(text);
    let header = bare.find(']').and_then(|end| section(&bare[..=end]));
    if header.is_some() {
        return Said::OffHeader;
    }
    let key = bare.split('=').next().unwrap_or_default().trim();
    let is_key = [Section::Interface, Section::Peer]
        .into_iter()
        .any(|section| spelling(section, key).is_some());
    if is_key {
        return match bare.contains('=') {
            true => Said::OffSetting,
            false => Said::Nothing,
        };
    }
    // A mark makes it part of what is switched off.
    if bare.len() != text.len() {
        return Said::Nothing;
    }
    let text = text
        .strip_prefix("-WGP-")
        .unwrap_or(text)
        .trim_start_matches(|c: char| c == '+' || c.is_whitespace());
    labelled(text)
        .or_else(|| marker(text))
        .unwrap_or_else(|| match plain(text) {
            Some(name) => Said::Name(Rank::Plain, Some(name)),
            None => Said::Nothing,
        })
}

/// `text` without the mark of a script for what it switched off, such as `[disabled]`.
fn without_mark(text: &str) -> &str {
    let marked = text
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
        .filter(|(mark, _)| section(&format!("[{mark}]")).is_none());
    let rest = match marked {
        Some((_, rest)) => rest,
        None => {
            let word = text.split([' ', ':', '\t']).next().unwrap_or_default();
            let is_mark = ["disabled", "inactive", "off"]
                .iter()
                .any(|mark| word.eq_ignore_ascii_case(mark));
            match is_mark && word.len() < text.len() {
                true => text[word.len()..].trim_start_matches(':'),
                false => text,
            }
        }
    };
    rest.trim_start_matches(|c: char| c == '#' || c.is_whitespace())
}

/// `Label = value`, `Label: value`, or a title before a name.
fn labelled(text: &str) -> Option<Said> {
    for at in ['=', ':'] {
        let Some((label, value)) = text.split_once(at) else {
            continue;
        };
        let label: String = (label.trim_matches(|c: char| c == '#' || c.is_whitespace()))
            .chars()
            .map(|c| match c {
                ' ' | '-' => '_',
                _ => c.to_ascii_lowercase(),
            })
            .collect();
        let value = value.trim();
        if label == "friendly_json" {
            return Some(Said::Name(Rank::Name, of_json(value)));
        }
        if NAME_LABELS.contains(&label.as_str()) {
            return Some(Said::Name(Rank::Name, clean(without_id(value, false))));
        }
        if OWNER_LABELS.contains(&label.as_str()) {
            let name = clean(without_id(value, label == "client"));
            return Some(Said::Name(Rank::Owner, name));
        }
        if at == ':' && OTHER_LABELS.contains(&label.as_str()) {
            return Some(Said::Nothing);
        }
    }
    let (title, name) = text.split_once(' ')?;
    let name = clean(without_id(name.trim(), false)).filter(|_| !text.contains('='))?;
    (title.eq_ignore_ascii_case("client")).then_some(Said::Name(Rank::Owner, Some(name)))
}

/// A pair's beginning or end. In capitals, the word may also stand behind the name.
fn marker(text: &str) -> Option<Said> {
    let of = |word: &str, name: &str| {
        let name = name.trim_matches(|c: char| c == ':' || c.is_whitespace());
        let lower = word.to_ascii_lowercase();
        let stem = ["_peer", "-peer", "_client", "-client"]
            .iter()
            .find_map(|tail| lower.strip_suffix(tail))
            .unwrap_or(&lower);
        match stem {
            "begin" | ">>>" => Some(Said::Begin(name.to_owned())),
            "end" | "<<<" => Some(Said::End(name.to_owned())),
            "start" if !has_small(word) => Some(Said::Begin(name.to_owned())),
            "stop" if !has_small(word) => Some(Said::End(name.to_owned())),
            _ => None,
        }
    };
    let (first, rest) = text.split_once([' ', ':']).unwrap_or((text, ""));
    of(first, rest).or_else(|| {
        let (rest, last) = text.rsplit_once(' ')?;
        of(last, rest).filter(|_| !has_small(last))
    })
}

fn has_small(word: &str) -> bool {
    word.chars().any(|c| c.is_ascii_lowercase())
}

/// A comment that only might be a name.
fn plain(text: &str) -> Option<String> {
    let is_line = |c: char| matches!(c, '-' | '=' | '*' | '~' | '_');
    let is_framed =
        |text: &str| text.len() > 4 && text.chars().take(2).all(is_line) && text.ends_with(is_line);
    let text = match is_framed(text) {
        true => text.trim_matches(|c: char| is_line(c) || c.is_whitespace()),
        false => text,
    };
    let is_heading = HEADINGS.iter().any(|word| text.eq_ignore_ascii_case(word));
    let is_text = text.chars().any(char::is_alphanumeric);
    if is_heading || !is_text || text.contains('=') || text.starts_with('[') {
        return None;
    }
    clean(without_id(text, false))
}

/// The name in a line of JSON, as its programs write it.
fn of_json(text: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    let text = |key: &str| value.get(key).and_then(serde_json::Value::as_str);
    let whole = || {
        let names = [text("first_name"), text("last_name")];
        let names: Vec<&str> = names.into_iter().flatten().collect();
        (!names.is_empty()).then(|| names.join(" "))
    };
    let keys = [
        "friendly_name",
        "name",
        "display_name",
        "username",
        "user_name",
    ];
    let name = keys.into_iter().find_map(text).map(str::to_owned);
    clean(&name.or_else(whole)?)
}

/// A peer's name as it is stored and shown: one line of at most 64 characters, without control
/// characters and marks that change the direction of text; `None` if nothing is left, or if it
/// might hold a key.
pub fn clean(name: &str) -> Option<String> {
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
    let printable = name
        .chars()
        .filter(|c| !c.is_control() && !is_invisible(*c));
    // A few more than are kept: a key may begin at the end of them.
    let name: String = printable.take(MAX_NAME + 32).collect();
    if name.split(|c| !is_base64(c)).any(|run| run.len() >= 32) {
        return None;
    }
    let name: String = name.trim().chars().take(MAX_NAME).collect();
    let name = name.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

/// Marks that make text look like another one.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Without the identifier in parentheses that wg-easy adds: a UUID or, since its version 15, a
/// number.
fn without_id(name: &str, may_be_number: bool) -> &str {
    let Some((before, id)) = name
        .strip_suffix(')')
        .and_then(|name| name.rsplit_once('('))
    else {
        return name;
    };
    let is_uuid = id.len() == 36
        && id
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let is_number = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
    match is_uuid || may_be_number && is_number {
        true => before.trim(),
        false => name,
    }
}
