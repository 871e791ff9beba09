//! Requests of a helper: what it understands is what was sent, and it makes nothing but sockets and files of
//! interfaces in its folders.

use std::fs::{self, File};
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use adit_io::fuzzing::Requests;

use crate::source::InputBytes;

/// Names that several requests are about, so that one finds what the other made.
const NAMES: [&[u8]; 6] = [b"wg0", b"wg1", b"..", b"a/b", b"0123456789abcde", b"x\xff"];

pub(crate) fn run(input: &[u8]) {
    let mut source = InputBytes::new(input);
    let folder = InputFolder::new();
    let own = folder.0.join("own");
    let mut requests = Requests::new(&own);
    let (stream, _other) = UnixStream::pair().expect("a pair");
    let udp = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let file = File::open("/dev/null").expect("a device");
    let all = [stream.as_fd(), udp.as_fd(), file.as_fd()];
    while !source.is_empty() {
        let bytes = match source.bool() {
            true => about_a_file(&mut source),
            false => source.piece(40),
        };
        let fds: Vec<BorrowedFd<'_>> = (0..source.below(3))
            .map(|_| all[source.below(all.len())])
            .collect();
        if let Some((sent, _)) = requests.take(&bytes, &fds) {
            assert_eq!(sent, bytes);
        }
    }
    check(&folder.0, &own);
}

/// A request that may be one about the files of an interface: kind, what it says, and a name.
fn about_a_file(source: &mut InputBytes<'_>) -> Vec<u8> {
    let mut bytes = vec![13, source.u8() % 16];
    let more = source.below(3);
    bytes.extend(source.take(more).iter().map(|byte| byte % 4));
    bytes.extend(NAMES[source.below(NAMES.len())]);
    bytes
}

/// What there is, in the folder of the test and in that of the helper.
fn check(around: &Path, own: &Path) {
    let names = |dir: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).into_iter().flatten();
        entries
            .map(|entry| entry.expect("an entry").path())
            .collect()
    };
    for path in names(around) {
        assert_eq!(path, own);
    }
    for dir in names(own) {
        assert!(
            [own.join("control"), own.join("status")].contains(&dir),
            "{dir:?}"
        );
        for path in names(&dir) {
            let kind = fs::symlink_metadata(&path)
                .expect("it is there")
                .file_type();
            assert!(
                kind.is_socket() || kind.is_file() || kind.is_dir(),
                "{path:?}"
            );
            let name = path.file_name().expect("a name").to_string_lossy();
            let is_good = |letter: char| letter.is_ascii_alphanumeric() || "_=+.-".contains(letter);
            assert!(name.chars().all(is_good), "{path:?}");
        }
    }
}

/// A folder of one input, which goes with it.
struct InputFolder(PathBuf);

impl InputFolder {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NUMBER.fetch_add(1, Relaxed);
            let name = format!("adit-fuzz-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            // What a process left that had the same number, and was killed, stays.
            if fs::create_dir(&path).is_ok() {
                return Self(path);
            }
        }
    }
}

impl Drop for InputFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
