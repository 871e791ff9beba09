use std::os::unix::fs::{FileExt, PermissionsExt};
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
    // What is beyond the longest file is not read.
    let long = std::fs::File::options()
        .write(true)
        .open(&path)
        .expect("a file");
    long.set_len(0).expect("empty");
    long.write_all_at(&good, MAX_FILE as u64).expect("written");
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
fn the_longest_lines_are_read() {
    let (dir, path) = folder("longest");
    let addr = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff%4294967295]:65535";
    let addr: std::net::SocketAddr = addr.parse().expect("an address");
    let key = |n| PublicKey([n; 32]);
    let all = RememberedPeers {
        endpoints: [9, 7, 8].map(|n| (key(n), addr)).to_vec(),
        used: [3, 1].map(|n| (key(n), u64::MAX)).to_vec(),
    };
    store(&path, &all).expect("stored");
    assert_eq!(load(&path), all);
    let mut text = Vec::new();
    write(&mut text, &all).expect("written");
    assert!(text.len() <= 3 * ENDPOINT_LINE + 2 * USED_LINE);
    let used = RememberedPeers {
        endpoints: Vec::new(),
        ..all
    };
    text.clear();
    write(&mut text, &used).expect("written");
    assert!(text.len() <= 2 * USED_LINE);
    std::fs::remove_dir_all(&dir).expect("removed");
}
