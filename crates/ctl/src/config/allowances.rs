//! What a peer may do, in comments of its section: Adit heeds them, and wg-quick passes over them.
//!
//! ```text
//! # Limit = 50M/10M
//! # Quota = 100G
//! # Expires = 2027-01-31T12:00:00Z
//! ```
//!
//! A limit is in bits a second, to the peer and from it; one number is for both. A quota is in bytes, both
//! directions together.

use std::time::{Duration, SystemTime};

use adit_proto::Allowance;
use adit_proto::config::PublicKey;
use zeroize::Zeroizing;

use super::disabled;
use super::layout::Layout;
use super::write::Edits;

/// The comments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// The rates.
    Limit,
    /// How much in all.
    Quota,
    /// Until when.
    Expires,
}

impl Term {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Limit, Self::Quota, Self::Expires];

    /// Its key in the file.
    pub fn key(self) -> &'static str {
        match self {
            Self::Limit => "Limit",
            Self::Quota => "Quota",
            Self::Expires => "Expires",
        }
    }

    /// Its name in events.
    pub fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Quota => "quota",
            Self::Expires => "expires",
        }
    }

    /// The value in the file that says this part of an allowance; `None` if nothing need be said.
    pub fn value(self, of: &Allowance) -> Option<String> {
        match self {
            Self::Limit => match (of.to_peer, of.from_peer) {
                (None, None) => None,
                (to, from) if to == from => Some(rate_text(to)),
                (to, from) => Some(format!("{}/{}", rate_text(to), rate_text(from))),
            },
            Self::Quota => of.quota.map(|bytes| with_unit(bytes, "")),
            Self::Expires => of.expires.map(date_text),
        }
    }

    fn set(self, allowance: &mut Allowance, value: &str) -> Result<(), String> {
        match self {
            Self::Limit => (allowance.to_peer, allowance.from_peer) = limit(value)?,
            Self::Quota => allowance.quota = quota(value)?,
            Self::Expires => allowance.expires = expires(value)?,
        }
        Ok(())
    }

    /// The comment and its value, if a line is one. With two `#` it is switched off.
    fn of(line: &str) -> Option<(Self, &str)> {
        let (key, value) = line.trim().strip_prefix('#')?.split_once('=')?;
        let is_key = |term: &Self| term.key().eq_ignore_ascii_case(key.trim());
        let value = value.split('#').next().unwrap_or_default().trim();
        Some((Self::ALL.into_iter().find(is_key)?, value))
    }
}

/// `20M`, `50M/10M`, `2.5 Gbit/s` or `none`: bytes a second to a peer and from it.
///
/// # Errors
/// What was expected.
pub fn limit(text: &str) -> Result<(Option<u64>, Option<u64>), String> {
    let lower = text.to_ascii_lowercase();
    // "bit/s" has a slash as well.
    let text = ["bits/s", "bit/s", "bps", "bit"]
        .iter()
        .fold(lower, |text, unit| text.replace(unit, ""));
    let one = |text: &str| {
        match text.trim() {
        "none" | "off" | "0" => Ok(None),
        text => match number(text) {
            Some((bits, true)) if bits >= 8_000 => Ok(Some(bits / 8)),
            _ => Err(
                "expected bits a second with a unit, at least 8k, as 20M, or 50M/10M for to and from the peer, or none"
                    .to_owned(),
            ),
        },
    }
    };
    match text.split_once('/') {
        Some((to, from)) => Ok((one(to)?, one(from)?)),
        None => one(&text).map(|both| (both, both)),
    }
}

/// `100G`, `1.5 TB`, `500 MiB` or `none`: bytes.
///
/// # Errors
/// What was expected.
pub fn quota(text: &str) -> Result<Option<u64>, String> {
    let lower = text.trim().to_ascii_lowercase();
    if ["none", "off"].contains(&lower.as_str()) {
        return Ok(None);
    }
    let bytes = match lower.strip_suffix("ib") {
        Some(binary) => number(binary).map(|(bytes, has_unit)| {
            let decimal = f64_of(bytes);
            let factor = binary.trim().chars().last().map_or(1.0, |unit| match unit {
                'k' => 1024.0 / 1e3,
                'm' => 1024.0 * 1024.0 / 1e6,
                'g' => 1024.0 * 1024.0 * 1024.0 / 1e9,
                't' => 1024.0 * 1024.0 * 1024.0 * 1024.0 / 1e12,
                _ => 1.0,
            });
            (whole(decimal * factor), has_unit)
        }),
        None => number(lower.strip_suffix('b').unwrap_or(&lower)),
    };
    match bytes {
        Some((bytes, true)) if bytes > 0 => Ok(Some(bytes)),
        _ => Err("expected bytes with a unit, as 100G, 1.5T or 500MiB, or none".to_owned()),
    }
}

/// `2027-01-31`, which is the end of that day, `2027-01-31T12:00:00Z` or `never`, in UTC: since the Unix
/// epoch.
///
/// # Errors
/// What was expected.
pub fn expires(text: &str) -> Result<Option<Duration>, String> {
    let text = text.trim();
    if ["never", "none"]
        .iter()
        .any(|it| it.eq_ignore_ascii_case(text))
    {
        return Ok(None);
    }
    let wrong = || {
        "expected a day, as 2027-01-31, or a time of UTC, as 2027-01-31T12:00:00Z, or never"
            .to_owned()
    };
    let bare = text.trim_end_matches(['Z', 'z']);
    let (text, more) = match (bare.len(), text.len()) {
        (10, 10) => (format!("{bare} 00:00:00"), Duration::from_secs(86_400)),
        // Without seconds.
        (16, _) => (format!("{bare}:00"), Duration::ZERO),
        _ => (bare.to_owned(), Duration::ZERO),
    };
    let at = humantime::parse_rfc3339_weak(&text).map_err(|_| wrong())?;
    let since = at
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_err(|_| wrong())?;
    Ok(Some(since + more))
}

/// A time of UTC.
pub fn date_text(since_epoch: Duration) -> String {
    let at = SystemTime::UNIX_EPOCH.checked_add(since_epoch);
    // Nobody lives to see others.
    let at = at.filter(|_| since_epoch < Duration::from_secs(253_402_300_800));
    at.map_or("never".into(), |at| {
        humantime::format_rfc3339_seconds(at).to_string()
    })
}

/// A rate in bits a second, as `20M`.
pub fn rate_text(bytes: Option<u64>) -> String {
    bytes.map_or("none".into(), |bytes| {
        with_unit(bytes.saturating_mul(8), "")
    })
}

/// A number with the largest unit that tells it exactly, or nearly.
fn with_unit(number: u64, of: &str) -> String {
    let units = [
        (1_000_000_000_000, "T"),
        (1_000_000_000, "G"),
        (1_000_000, "M"),
        (1_000, "k"),
    ];
    let fits = |(size, _): &&(u64, &str)| number >= *size;
    match units.iter().find(fits) {
        Some((size, unit)) => {
            let thousandths = number % size * 1_000 / size;
            let rest = format!("{thousandths:03}");
            let rest = rest.trim_end_matches('0');
            let point = if rest.is_empty() { "" } else { "." };
            format!("{}{point}{rest}{unit}{of}", number / size)
        }
        None => format!("{number}{of}"),
    }
}

/// A number, and whether it has a unit: k, M, G or T.
fn number(text: &str) -> Option<(u64, bool)> {
    let text = text.trim();
    let (digits, size) = match text.char_indices().last()? {
        (at, 'k') => (&text[..at], 1e3),
        (at, 'm') => (&text[..at], 1e6),
        (at, 'g') => (&text[..at], 1e9),
        (at, 't') => (&text[..at], 1e12),
        _ => (text, 1.0),
    };
    let digits = digits.trim();
    let is_plain = digits.chars().all(|c| c.is_ascii_digit() || c == '.');
    let value: f64 = digits.parse().ok().filter(|_| is_plain)?;
    // Less than a million of the largest unit.
    (value * size < 1e18).then(|| (whole(value * size), size > 1.0))
}

#[allow(clippy::cast_possible_truncation)]
fn whole(value: f64) -> u64 {
    // Both ends are checked, or saturate.
    value.round() as u64
}

fn f64_of(value: u64) -> f64 {
    value as f64
}

/// What the comments of a section say, and what is wrong with any: its line, counted from 1, and the
/// words.
pub(super) fn of_section(layout: &Layout<'_>, section: usize) -> (Allowance, Vec<(usize, String)>) {
    let mut allowance = Allowance::default();
    let mut wrong = Vec::new();
    let block = &layout.sections[section];
    let first = (0..block.header)
        .rev()
        .take_while(|line| layout.owner(*line) == Some(section));
    let first = first.last().unwrap_or(block.header);
    let lines = (first..layout.lines.len())
        .take_while(|line| *line <= block.last || layout.owner(*line) == Some(section));
    for line in lines.filter(|line| layout.owner(*line) == Some(section)) {
        let Some((term, value)) = Term::of(layout.lines[line]) else {
            continue;
        };
        if let Err(expected) = term.set(&mut allowance, value) {
            wrong.push((
                line + 1,
                format!("# {}: {expected}, so that it does nothing", term.key()),
            ));
        }
    }
    (allowance, wrong)
}

/// `text` with another value of a peer's term, or without it; `None` if it has no such peer.
pub fn with_term(
    text: &str,
    peer: PublicKey,
    term: Term,
    value: Option<&str>,
) -> Option<Zeroizing<String>> {
    let mut edits = Edits::new(text);
    let sections = edits.sections_of(peer, |_| true)?;
    let is_it =
        |line: &usize| Term::of(edits.layout.lines[*line]).is_some_and(|(of, _)| of == term);
    let old: Vec<usize> = edits
        .lines_of(&sections)
        .into_iter()
        .filter(is_it)
        .collect();
    for line in &old {
        edits.remove_line(*line);
    }
    if let Some(value) = value {
        // Of several sections the last one counts.
        let section = sections.iter().max().copied()?;
        let below = edits.layout.sections[section].header;
        let line = format!("# {} = {value}", term.key());
        let line = match edits.layout.is_marked(below) {
            true => disabled::marked(&line),
            false => line,
        };
        edits.added.insert(below, Zeroizing::new(line));
    }
    Some(edits.text(value.map_or(0, str::len) + 64, false))
}

#[cfg(test)]
#[path = "allowances_tests.rs"]
mod tests;
