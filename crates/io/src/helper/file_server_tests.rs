//! What the helper does with files, and what it refuses.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use proptest::prelude::*;
use rustix::fs::{FlockOperation, flock};
use rustix::net::listen;

use super::file_request::{FileRequest, Folder, Spot, heard};
use super::messages::HelperAnswer;
use super::name::InterfaceName;
use super::request::HelperRequest;
use super::served_tests::Served;
use crate::files::{Failed, FileRefusal, FileStep, clear};

impl Served {
    fn file(&self, request: FileRequest) -> std::io::Result<HelperAnswer> {
        self.ask(&HelperRequest::File(request), &[])
    }

    fn lay(&self, folder: Folder, name: &str) -> Result<OwnedFd, FileRefusal> {
        let (at, insists) = (spot(folder, name), false);
        let answer = self.file(FileRequest::Lay { at, insists });
        let answer = answer.map_err(|error| Failed::At(FileStep::Bind, error))?;
        heard(answer.numbers)?;
        Ok(answer.one().expect("a socket"))
    }

    /// A socket that listens in its place.
    fn bind(&self, folder: Folder, name: &str) -> OwnedFd {
        let socket = self.lay(folder, name).expect("nobody has it");
        listen(&socket, 1).expect("bound");
        self.file(FileRequest::Show).expect("shown");
        socket
    }

    fn remove(&self, folder: Folder, name: &str) -> std::io::Result<()> {
        let (at, insists) = (spot(folder, name), true);
        self.file(FileRequest::Remove { at, insists }).map(drop)
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.join(folder)).expect("a folder");
        let names = entries.map(|entry| entry.expect("one").file_name());
        let mut names: Vec<String> = names
            .map(|name| name.into_string().expect("text"))
            .collect();
        names.sort();
        names
    }
}

fn name(text: &str) -> InterfaceName {
    InterfaceName::try_from(text.as_bytes()).expect("short")
}

fn spot(folder: Folder, text: &str) -> Spot {
    let name = name(text);
    Spot { folder, name }
}

fn is_refused<T: std::fmt::Debug>(result: std::io::Result<T>) -> bool {
    result.is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL))
}

fn mode(path: &Path) -> u32 {
    path.metadata().expect("it is there").mode() & 0o7777
}

/// One of each kind, and more where their forms differ.
fn all() -> Vec<FileRequest> {
    let lay = |folder, name, insists| FileRequest::Lay {
        at: spot(folder, name),
        insists,
    };
    vec![
        lay(Folder::Control, "wg0", false),
        lay(Folder::Status, "a-long-name.123", true),
        lay(Folder::Upgrade, "", true),
        FileRequest::Show,
        FileRequest::Adopt(spot(Folder::Control, "wg0")),
        FileRequest::Watch(name("wg0")),
        FileRequest::Remove {
            at: spot(Folder::Status, "wg0"),
            insists: false,
        },
        FileRequest::Recall(name("wg0")),
        FileRequest::Remember(name("wg0")),
        FileRequest::Keep(name("wg0")),
        FileRequest::Forget(name("wg0")),
        FileRequest::Leave,
        FileRequest::Caller(7),
        FileRequest::Index(name("lo")),
        FileRequest::Peer,
    ]
}

#[test]
fn a_request_about_files_is_the_same_at_the_other_end() {
    for request in all().into_iter().map(HelperRequest::File) {
        assert_eq!(HelperRequest::parse(&request.to_bytes()), Some(request));
    }
    for refused in [
        FileRefusal::Locked,
        Failed::Running.into(),
        Failed::Occupied.into(),
        Failed::At(
            FileStep::Make,
            std::io::Error::from_raw_os_error(libc::EROFS),
        )
        .into(),
    ] {
        let back = heard(HelperAnswer::say(&super::file_request::told(&refused)).numbers)
            .expect_err("refused");
        assert_eq!(format!("{back:?}"), format!("{refused:?}"));
    }
}

proptest! {
    #[test]
    fn any_bytes_are_one_request_about_files_at_most(
        kind in 0..15_u8,
        rest in prop::collection::vec(0..4_u8, 0..20),
    ) {
        let bytes = [&[13, kind], &rest[..]].concat();
        if let Some(request) = HelperRequest::parse(&bytes) {
            prop_assert_eq!(&request.to_bytes()[..], &bytes[..]);
        }
    }
}

#[test]
fn sockets_and_their_files_come_and_go() {
    let helper = Served::new();
    let _control = helper.bind(Folder::Control, "wg0");
    let _status = helper.bind(Folder::Status, "wg0");
    assert_eq!(helper.names("control"), ["wg0.name", "wg0.sock"]);
    assert_eq!(mode(&helper.dir.join("control")), 0o755);
    assert_eq!(mode(&helper.dir.join("control/wg0.sock")), 0o600);
    assert_eq!(mode(&helper.dir.join("control/wg0.name")), 0o644);
    // Who listens is who called listen(2), not who bound the socket.
    let client = UnixStream::connect(helper.dir.join("control/wg0.sock")).expect("it listens");
    let (pid, _) = crate::sys::os::peer(client.as_fd()).expect("known");
    assert_eq!(pid.unsigned_abs(), std::process::id());
    helper.remove(Folder::Control, "wg0").expect("removed");
    assert!(helper.names("control").is_empty());
    let twice = helper.remove(Folder::Control, "wg0");
    assert!(is_refused(twice), "it is not its own any more");
    helper.remove(Folder::Status, "wg0").expect("removed");
    helper.file(FileRequest::Leave).expect("done");
    assert!(helper.dir.read_dir().expect("a folder").next().is_none());
}

#[test]
fn a_socket_that_is_not_shown_is_found_by_nobody_and_goes() {
    let helper = Served::new();
    let socket = helper.lay(Folder::Control, "wg0").expect("a socket");
    assert_eq!(helper.names("control"), [".wg0.next"]);
    assert_eq!(mode(&helper.dir.join("control/.wg0.next")), 0o600);
    let _other = helper.lay(Folder::Control, "wg1").expect("a socket");
    assert_eq!(helper.names("control"), [".wg1.next"]);
    drop(socket);
    helper.file(FileRequest::Show).expect("the other one");
    assert!(is_refused(helper.file(FileRequest::Show)), "once");
}

#[test]
fn names_that_are_no_part_of_a_file_name_are_refused() {
    let helper = Served::new();
    for text in ["..", ".", "a/b", "/etc/passwd", "a\0", "a b", ""] {
        let refused = helper.lay(Folder::Control, text);
        assert!(refused.is_err(), "{text:?}");
        for request in [
            FileRequest::Recall,
            FileRequest::Remember,
            FileRequest::Keep,
        ] {
            assert!(is_refused(helper.file(request(name(text)))), "{text:?}");
        }
    }
    // 16 bytes, and a name where none belongs.
    let long = [&[13, 0, 0, 0][..], &[b'a'; 16]].concat();
    assert!(is_refused(helper.exchange(&long, &[])));
    assert!(is_refused(helper.exchange(&[13, 0, 0, 2, b'a'], &[])));
    assert!(helper.names("control").is_empty());
}

#[test]
fn what_the_helper_did_not_put_there_stays() {
    let helper = Served::new();
    let theirs = helper.dir.join("control/wg0.sock");
    let _other = UnixListener::bind(&theirs).expect("a socket");
    std::fs::write(helper.dir.join("status/wg0.peers"), "theirs").expect("a file");
    assert!(is_refused(helper.remove(Folder::Control, "wg0")));
    for request in [
        FileRequest::Recall(name("wg0")),
        FileRequest::Remember(name("wg0")),
        FileRequest::Keep(name("wg0")),
        FileRequest::Forget(name("wg0")),
    ] {
        assert!(is_refused(helper.file(request)));
    }
    // A living process keeps its socket, and what is none is left alone.
    let running = helper.lay(Folder::Control, "wg0").expect_err("refused");
    assert!(matches!(running, FileRefusal::Failed(Failed::Running)));
    std::fs::write(helper.dir.join("control/wg1.sock"), "precious").expect("a file");
    let occupied = helper.lay(Folder::Control, "wg1").expect_err("refused");
    assert!(matches!(occupied, FileRefusal::Failed(Failed::Occupied)));
    // Another process has taken the place of its socket.
    let _own = helper.bind(Folder::Control, "wg2");
    let path = helper.dir.join("control/wg2.sock");
    std::fs::remove_file(&path).expect("removed");
    let _next = UnixListener::bind(&path).expect("a socket");
    helper.remove(Folder::Control, "wg2").expect("let go");
    assert!(path.exists() && theirs.exists());
}

#[test]
fn what_a_dead_process_left_goes_unless_the_folder_is_locked() {
    let helper = Served::new();
    let path = helper.dir.join("control/wg0.sock");
    drop(UnixListener::bind(&path).expect("a socket"));
    let handle = std::fs::File::open(helper.dir.join("control")).expect("a folder");
    flock(&handle, FlockOperation::LockExclusive).expect("locked");
    let locked = helper.lay(Folder::Control, "wg0").expect_err("refused");
    assert!(matches!(locked, FileRefusal::Locked));
    let (at, insists) = (spot(Folder::Control, "wg0"), true);
    let answer = helper.file(FileRequest::Lay { at, insists });
    answer
        .and_then(HelperAnswer::one)
        .expect("it need not wait for ever");
    drop(handle);
    helper.bind(Folder::Control, "wg0");
}

#[test]
fn a_listener_is_adopted_where_its_own_file_stands() {
    let helper = Served::new();
    let dir = helper.dir.join("control");
    let adopt = |name: &str, socket: &UnixListener| {
        let adopt = FileRequest::Adopt(spot(Folder::Control, name));
        helper.ask(&HelperRequest::File(adopt), &[socket.as_fd()])
    };
    let bind = |path: &Path| UnixListener::bind(path).expect("a socket");
    let (own, other) = (bind(&dir.join("wg0.sock")), bind(&dir.join("wg1.sock")));
    let elsewhere = bind(&helper.dir.join("wg0.sock"));
    assert!(is_refused(adopt("wg1", &own)), "of another name");
    assert!(is_refused(adopt("wg0", &elsewhere)), "of another folder");
    assert!(is_refused(adopt("wg2", &other)), "no file");
    // Wherever it was bound before it was moved there.
    let moved = bind(&dir.join("x"));
    std::fs::rename(dir.join("x"), dir.join("wg3.sock")).expect("moved");
    adopt("wg3", &moved).expect("its own");
    adopt("wg0", &own).expect("its own");
    helper.remove(Folder::Control, "wg0").expect("removed");
    assert!(is_refused(adopt("wg0", &own)), "its file is gone");
    let no_socket = std::fs::File::open("/dev/null").expect("a device");
    let adopt = HelperRequest::File(FileRequest::Adopt(spot(Folder::Control, "wg1")));
    assert!(is_refused(helper.ask(&adopt, &[no_socket.as_fd()])));
}

#[test]
fn a_file_of_peers_is_replaced_as_a_whole() {
    use std::io::{Read, Write};
    let helper = Served::new();
    let _socket = helper.bind(Folder::Status, "wg0");
    let ask = |request: fn(InterfaceName) -> FileRequest| helper.file(request(name("wg0")));
    assert!(ask(FileRequest::Recall).is_err(), "there is none");
    let write = |text: &[u8]| {
        let file = ask(FileRequest::Remember).and_then(HelperAnswer::one);
        let mut file = std::fs::File::from(file.expect("a file"));
        file.write_all(text).expect("written");
        assert_eq!(file.metadata().expect("known").mode() & 0o7777, 0o600);
    };
    write(b"one");
    ask(FileRequest::Keep).expect("kept");
    // A process that is killed here, and one that writes without end.
    write(b"two");
    write(b"three");
    let new = std::fs::File::options();
    let new = new
        .clone()
        .write(true)
        .open(helper.dir.join("status/wg0.new"));
    new.and_then(|new| new.set_len((256 << 20) + 1))
        .expect("longer");
    assert!(ask(FileRequest::Keep).is_err(), "too long");
    let mut text = String::new();
    let file = ask(FileRequest::Recall).and_then(HelperAnswer::one);
    let mut file = std::fs::File::from(file.expect("a file"));
    file.read_to_string(&mut text).expect("read");
    assert_eq!(text, "one");
    assert!(file.write_all(b"x").is_err(), "to read");
    ask(FileRequest::Forget).expect("removed");
    assert_eq!(helper.names("status"), ["wg0.sock"]);
}

#[test]
fn a_socket_for_upgrades_stands_in_a_folder_of_its_own() {
    let helper = Served::new();
    let _socket = helper.bind(Folder::Upgrade, "");
    let dir = helper.dir.join("status/upgrade");
    assert_eq!(mode(&dir), 0o700);
    assert_eq!(crate::files::private::sockets(&dir).len(), 1);
    helper.remove(Folder::Upgrade, "").expect("removed");
    assert!(!dir.exists(), "the last one takes it along");
}

#[test]
fn programs_and_interfaces_are_named() {
    let helper = Served::new();
    let (one, _other) = UnixStream::pair().expect("sockets");
    let peer = HelperRequest::File(FileRequest::Peer);
    let process = helper
        .ask(&peer, &[one.as_fd()])
        .and_then(HelperAnswer::one);
    process.expect("this one");
    let no_socket = std::fs::File::open("/dev/null").expect("a device");
    assert!(helper.ask(&peer, &[no_socket.as_fd()]).is_err());
    let own = std::process::id().cast_signed();
    let named = helper.file(FileRequest::Caller(own)).expect("it runs");
    assert_ne!(named.numbers, [0; 6]);
    assert!(is_refused(helper.file(FileRequest::Caller(-1))));
    assert!(helper.file(FileRequest::Caller(i32::MAX)).is_err());
    let lo = helper
        .file(FileRequest::Index(name("lo")))
        .expect("it is there");
    assert_eq!(lo.numbers[0], 1);
    assert!(helper.file(FileRequest::Index(name("wg9"))).is_err());
}

/// Whatever comes, and with as many descriptors as may come.
#[test]
fn garbage_leaves_no_descriptor_behind() {
    let helper = Served::new();
    let socket = helper.bind(Folder::Control, "wg0");
    let pipe = std::io::pipe().expect("a pipe").0;
    let newest = || {
        let file = std::fs::File::open("/dev/null").expect("a device");
        file.as_raw_fd()
    };
    let before = newest();
    for n in 0..2000_u32 {
        let bytes = [&[13], &n.to_le_bytes()[..(n % 5) as usize]].concat();
        let fds = [socket.as_fd(), pipe.as_fd()];
        let _ = helper.exchange(&bytes, &fds[..(n % 3) as usize]);
    }
    // Other tests run meanwhile.
    assert!(newest() < before + 200, "{before}");
}

#[test]
fn a_stale_socket_may_vanish_while_it_is_taken_over() {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    let helper = Served::new();
    let path = helper.dir.join("control/wg0.sock");
    let done = AtomicBool::new(false);
    // wg removes a socket that refuses connections.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                _ = std::fs::remove_file(&path);
            }
        });
        for _ in 0..500 {
            drop(UnixListener::bind(&path));
            if let Err(error) = clear(&path) {
                done.store(true, Relaxed);
                panic!("{error:?}");
            }
        }
        done.store(true, Relaxed);
    });
}
