//! The file in which a process leaves to the next one where its peers are: a line for each, its
//! public key in hexadecimal digits and its endpoint.

use std::fmt::Write as _;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::Path;

use adit_io::helper::files;
use adit_proto::config::PublicKey;
use adit_proto::limits::MAX_REMEMBERED;

/// Of a line: 64 digits, a blank, an IPv6 address with its scope and port, a line feed.
const MAX_LINE: usize = 128;
const MAX_FILE: u64 = (MAX_REMEMBERED * MAX_LINE) as u64;

/// Reads the file; nothing if there is none. Lines that say nothing are passed over.
pub(crate) fn load(path: &Path) -> Vec<(PublicKey, SocketAddr)> {
    let mut text = Vec::new();
    let file = split(path).and_then(|(dir, name)| files::recall(dir, name));
    let read = file.and_then(|file| file.take(MAX_FILE).read_to_end(&mut text));
    match read {
        Ok(_) => String::from_utf8_lossy(&text)
            .lines()
            .filter_map(parse)
            .collect(),
        Err(_) => Vec::new(),
    }
}

/// Puts a new file in the place of the last one. Only its owner can read where peers are.
pub(crate) fn store(path: &Path, peers: &[(PublicKey, SocketAddr)]) -> io::Result<()> {
    let mut text = String::with_capacity(peers.len() * 96);
    for (key, endpoint) in peers {
        for byte in key.0 {
            let _ = write!(text, "{byte:02x}");
        }
        let _ = writeln!(text, " {endpoint}");
    }
    let (dir, name) = split(path)?;
    files::remember(dir, name, text.as_bytes())
}

/// Removes it.
pub(crate) fn remove(path: &Path) {
    let _ = split(path).and_then(|(dir, name)| files::forget(dir, name));
}

/// The folder, and the name of the interface.
fn split(path: &Path) -> io::Result<(&Path, &str)> {
    let name = path.file_stem().and_then(|name| name.to_str());
    let parts = path.parent().zip(name);
    parts.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

fn parse(line: &str) -> Option<(PublicKey, SocketAddr)> {
    let (digits, endpoint) = line.split_once(' ')?;
    let digits = digits.as_bytes();
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut key = [0; 32];
    for (byte, pair) in key.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some((PublicKey(key), endpoint.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_stored_is_loaded_and_garbage_is_passed_over() {
        let dir = std::env::temp_dir().join(format!("adit-remembered-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("a directory");
        let path = dir.join("wg0.peers");
        assert!(load(&path).is_empty());
        let peers: Vec<(PublicKey, SocketAddr)> = [
            (7, "192.0.2.1:51820"),
            (255, "[2001:db8::1]:1"),
            (1, "[fe80::1%3]:2"),
        ]
        .map(|(n, addr)| (PublicKey([n; 32]), addr.parse().expect("an address")))
        .to_vec();
        // What a process that was killed left.
        std::fs::write(dir.join("wg0.new"), "half").expect("written");
        store(&path, &peers[..1]).expect("stored");
        store(&path, &peers).expect("stored again");
        assert_eq!(load(&path), peers);
        let mode = std::fs::metadata(&path)
            .expect("a file")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        let good = std::fs::read(&path).expect("a file");
        let garbage = [
            b"\n \n\xff\xfe\n+1 2\n".as_slice(),
            &[b'0'; 5000],
            b"\n",
            &good,
        ]
        .concat();
        std::fs::write(&path, garbage).expect("written");
        assert_eq!(load(&path), peers);
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
