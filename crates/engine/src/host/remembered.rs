//! The file in which a process leaves to the next one where its peers are, and what they have used of
//! their quotas: lines of a public key in hexadecimal digits, and an endpoint or `used` and bytes.
//!
//! A process that ends leaves only what is used: its peers learn that it ended.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use adit_io::helper::files::{self, NewPeersFile};
use adit_proto::config::PublicKey;
use adit_proto::limits::{MAX_PEERS, MAX_QUOTAS_REMEMBERED};

use crate::host::platform::RememberedPeers;

/// Of an endpoint: 64 digits, a blank, an IPv6 address with its scope and port, a line feed.
const ENDPOINT_LINE: usize = 128;
/// Of a quota: 64 digits, ` used `, 20 digits, a line feed.
const USED_LINE: usize = 96;
const MAX_FILE: usize = MAX_PEERS * ENDPOINT_LINE + MAX_QUOTAS_REMEMBERED * USED_LINE;
const DIGITS: [u8; 16] = *b"0123456789abcdef";
const USED: &str = "used ";

/// Reads the file; nothing if there is none, or one that no process of ours left. Lines that say nothing
/// are passed over, and what is beyond the longest file that is kept.
pub(crate) fn load(path: &Path) -> RememberedPeers {
    let mut remembered = RememberedPeers::default();
    let file = split(path).and_then(|(dir, name)| files::recall(dir, name));
    let Ok(file) = file else {
        return remembered;
    };
    let mut file = BufReader::new(file.take(MAX_FILE as u64));
    let mut line = Vec::new();
    // A longer line is none of ours: what is behind its beginning is read as another one.
    while (file.by_ref().take(ENDPOINT_LINE as u64))
        .read_until(b'\n', &mut line)
        .is_ok_and(|len| len > 0)
    {
        let text = std::mem::take(&mut line);
        let text = String::from_utf8_lossy(&text);
        let Some((key, value)) = parse(text.trim_end_matches('\n')) else {
            continue;
        };
        match value.strip_prefix(USED) {
            Some(used) => remembered
                .used
                .extend(used.parse().ok().map(|it| (key, it))),
            None => (remembered.endpoints).extend(value.parse().ok().map(|it| (key, it))),
        }
    }
    remembered
}

/// Puts a new file in the place of the last one. Only its owner can read where peers are.
pub(crate) fn store(path: &Path, remembered: &RememberedPeers) -> io::Result<()> {
    let mut file = begin(path)?;
    write(&mut file, remembered)?;
    file.keep()
}

/// A new file, to be written.
pub(crate) fn begin(path: &Path) -> io::Result<NewPeersFile> {
    let (dir, name) = split(path)?;
    files::remember(dir, name)
}

pub(crate) fn write(file: &mut impl Write, remembered: &RememberedPeers) -> io::Result<()> {
    let mut put = |key: &PublicKey, value: std::fmt::Arguments<'_>| {
        let mut digits = [0; 64];
        for (pair, byte) in digits.chunks_mut(2).zip(key.0) {
            pair.copy_from_slice(&[byte >> 4, byte & 15].map(|it| DIGITS[usize::from(it)]));
        }
        file.write_all(&digits)?;
        writeln!(file, " {value}")
    };
    for (key, endpoint) in &remembered.endpoints {
        put(key, format_args!("{endpoint}"))?;
    }
    for (key, bytes) in &remembered.used {
        put(key, format_args!("{USED}{bytes}"))?;
    }
    Ok(())
}

/// The process ends: keeps what is used, and removes the file if nothing is.
pub(crate) fn leave(path: &Path, used: Vec<(PublicKey, u64)>) -> io::Result<()> {
    let remembered = RememberedPeers {
        used,
        ..RememberedPeers::default()
    };
    match remembered.used.is_empty() {
        true => split(path).and_then(|(dir, name)| files::forget(dir, name)),
        false => store(path, &remembered),
    }
}

/// Bytes that peers have used of their quotas, for an interface that no process has now.
pub fn used_quotas(path: &Path) -> Vec<(PublicKey, u64)> {
    load(path).used
}

/// Has the next process call no peer that the one which left this file had sessions with. What peers have used
/// of their quotas stays.
///
/// # Errors
///
/// Those of writing or removing the file, such as `NotFound`.
pub fn forget_endpoints(path: &Path) -> io::Result<()> {
    let remembered = load(path);
    match remembered.endpoints.is_empty() && !remembered.used.is_empty() {
        true => Ok(()),
        false => leave(path, remembered.used),
    }
}

/// Has a peer's quota count from 0 in the next process of an interface that no process has now.
///
/// # Errors
///
/// Those of writing the file.
pub fn count_anew(path: &Path, peer: &PublicKey) -> io::Result<()> {
    let mut remembered = load(path);
    let before = remembered.used.len();
    remembered.used.retain(|(key, _)| key != peer);
    match remembered.used.len() == before {
        true => Ok(()),
        false => store(path, &remembered),
    }
}

/// The folder, and the name of the interface.
fn split(path: &Path) -> io::Result<(&Path, &str)> {
    let name = path.file_stem().and_then(|name| name.to_str());
    let parts = path.parent().zip(name);
    parts.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// The key of a line, and what is behind it.
fn parse(line: &str) -> Option<(PublicKey, &str)> {
    let (digits, value) = line.split_once(' ')?;
    let digits = digits.as_bytes();
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut key = [0; 32];
    for (byte, pair) in key.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some((PublicKey(key), value))
}

#[cfg(test)]
#[path = "remembered_tests.rs"]
mod tests;
