//! The file in which a process leaves to the next one where its peers are, and what they have used of
//! their quotas: lines of a public key in hexadecimal digits, and an endpoint or `used` and bytes.
//!
//! A process that ends leaves only what is used: its peers learn that it ended.

use std::fmt::Write as _;
use std::io::{self, Read};
use std::path::Path;

use adit_io::helper::files;
use adit_proto::config::PublicKey;
use adit_proto::limits::{MAX_QUOTAS_REMEMBERED, MAX_REMEMBERED};

use crate::host::platform::RememberedPeers;

/// Of an endpoint: 64 digits, a blank, an IPv6 address with its scope and port, a line feed.
const ENDPOINT_LINE: usize = 128;
/// Of a quota: 64 digits, ` used `, 20 digits, a line feed.
const USED_LINE: usize = 96;
const MAX_FILE: usize = MAX_REMEMBERED * ENDPOINT_LINE + MAX_QUOTAS_REMEMBERED * USED_LINE;
const DIGITS: [u8; 16] = *b"0123456789abcdef";
const USED: &str = "used ";

/// Reads the file; nothing if there is none, or one that no process of ours left. Lines that say nothing
/// are passed over.
pub(crate) fn load(path: &Path) -> RememberedPeers {
    let mut remembered = RememberedPeers::default();
    let mut text = Vec::new();
    let file = split(path).and_then(|(dir, name)| files::recall(dir, name));
    // A byte more says that it is longer.
    let read = file.and_then(|file| file.take(MAX_FILE as u64 + 1).read_to_end(&mut text));
    if read.is_err() || text.len() > MAX_FILE {
        return remembered;
    }
    for line in String::from_utf8_lossy(&text).lines() {
        let Some((key, value)) = parse(line) else {
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
    let RememberedPeers { endpoints, used } = remembered;
    let mut text = String::with_capacity(endpoints.len() * 96 + used.len() * USED_LINE);
    let mut put = |key: &PublicKey, value: std::fmt::Arguments<'_>| {
        let mut digits = [0; 64];
        for (pair, byte) in digits.chunks_mut(2).zip(key.0) {
            pair.copy_from_slice(&[byte >> 4, byte & 15].map(|it| DIGITS[usize::from(it)]));
        }
        text.push_str(std::str::from_utf8(&digits).unwrap_or_default());
        let _ = writeln!(text, " {value}");
    };
    for (key, endpoint) in endpoints {
        put(key, format_args!("{endpoint}"));
    }
    for (key, bytes) in used {
        put(key, format_args!("{USED}{bytes}"));
    }
    let (dir, name) = split(path)?;
    files::remember(dir, name, text.as_bytes())
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
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::*;

    /// A new folder, and the file in it.
    fn folder(name: &str) -> (PathBuf, PathBuf) {
        let dir = std::env::temp_dir().join(format!("adit-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("a directory");
        let path = dir.join("wg0.peers");
        (dir, path)
    }

    fn some() -> RememberedPeers {
        let endpoints = [
            (7, "192.0.2.1:51820"),
            (255, "[2001:db8::1]:1"),
            (1, "[fe80::1%3]:2"),
        ];
        let used = [(7, 0), (9, u64::MAX)];
        RememberedPeers {
            endpoints: endpoints
                .map(|(n, addr)| (PublicKey([n; 32]), addr.parse().expect("an address")))
                .to_vec(),
            used: used.map(|(n, used)| (PublicKey([n; 32]), used)).to_vec(),
        }
    }

    #[test]
    fn what_is_stored_is_loaded_and_garbage_is_passed_over() {
        let (dir, path) = folder("remembered");
        assert_eq!(load(&path), RememberedPeers::default());
        let all = some();
        // What a process that was killed left.
        std::fs::write(dir.join("wg0.new"), "half").expect("written");
        store(&path, &RememberedPeers::default()).expect("stored");
        store(&path, &all).expect("stored again");
        assert_eq!(load(&path), all);
        let mode = std::fs::metadata(&path)
            .expect("a file")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        let good = std::fs::read(&path).expect("a file");
        let key = "0".repeat(64);
        let wrong = format!(
            "{key} used\n{key} used -1\n{key} used 18446744073709551616\n{key} used 1 2\n{key}  used 1\n"
        );
        let garbage = [
            b"\n \n\xff\xfe\n+1 2\n".as_slice(),
            &[b'0'; 5000],
            b"\n",
            wrong.as_bytes(),
            &good,
        ]
        .concat();
        std::fs::write(&path, &garbage).expect("written");
        assert_eq!(load(&path), all);
        // One that is too long says nothing.
        let long = [good, vec![b'\n'; MAX_FILE]].concat();
        std::fs::write(&path, long).expect("written");
        assert_eq!(load(&path), RememberedPeers::default());
        std::fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn what_is_used_stays_when_a_process_ends_until_it_counts_anew() {
        let (dir, path) = folder("used");
        let all = some();
        store(&path, &all).expect("stored");
        forget_endpoints(&path).expect("stored");
        assert_eq!(
            (load(&path).endpoints, load(&path).used),
            (vec![], all.used.clone())
        );
        count_anew(&path, &PublicKey([8; 32])).expect("nothing to do");
        count_anew(&path, &PublicKey([9; 32])).expect("stored");
        assert_eq!(used_quotas(&path), all.used[..1]);
        leave(&path, all.used).expect("stored");
        assert_eq!(load(&path).used.len(), 2);
        leave(&path, Vec::new()).expect("removed");
        assert!(!path.exists());
        store(
            &path,
            &RememberedPeers {
                used: Vec::new(),
                ..all
            },
        )
        .expect("stored");
        forget_endpoints(&path).expect("removed");
        assert!(!path.exists());
        count_anew(&path, &PublicKey([9; 32])).expect("nothing to do");
        std::fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn the_longest_file_is_one_that_is_kept() {
        let (dir, path) = folder("longest");
        let key = |n: usize| {
            let mut key = [0xff; 32];
            key[..8].copy_from_slice(&n.to_le_bytes());
            PublicKey(key)
        };
        let addr = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff%4294967295]:65535";
        let addr: std::net::SocketAddr = addr.parse().expect("an address");
        let all = RememberedPeers {
            endpoints: (0..MAX_REMEMBERED).map(|n| (key(n), addr)).collect(),
            used: (0..MAX_QUOTAS_REMEMBERED)
                .map(|n| (key(n), u64::MAX))
                .collect(),
        };
        store(&path, &all).expect("stored");
        assert!(load(&path) == all);
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
