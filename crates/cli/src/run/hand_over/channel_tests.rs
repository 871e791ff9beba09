use super::*;
use adit_io::{remove_dead, sockets};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_listener_finds_its_place_while_others_take_the_directory_along() {
    let status = std::env::temp_dir().join(format!("adit-channel-{}", std::process::id()));
    std::fs::create_dir(&status).unwrap();
    let dir = status.join(adit_io::UPGRADE_DIR);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = std::fs::remove_dir(&dir);
                // Faster than any processes end, and not so fast that none of them could bind.
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let bound = (0..500).try_for_each(|_| HandOverListener::bind(&status).map(drop));
        stop.store(true, Ordering::Relaxed);
        assert!(bound.is_ok(), "{}", bound.unwrap_err());
    });
    std::fs::remove_dir(&status).unwrap();
}

#[test]
fn a_directory_that_others_may_enter_is_refused() {
    let status = std::env::temp_dir().join(format!("adit-channel-open-{}", std::process::id()));
    let dir = status.join(adit_io::UPGRADE_DIR);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).unwrap();
    let refused = HandOverListener::bind(&status).err().unwrap();
    assert!(refused.to_string().contains("alone"), "{refused}");
    std::fs::remove_dir_all(&status).unwrap();
}

#[test]
fn descriptors_come_with_their_message_however_it_is_cut() {
    let (one, other) = UnixStream::pair().unwrap();
    let files: Vec<_> = (0..8).map(|_| tempfile()).collect();
    let record = |state: usize, n: u8| {
        let n_th = usize::from(n);
        vec![n; n_th * 37 % 3000 + 15_000 * (n_th % 50 / 49) * state]
    };
    let records = |state: usize| if state.is_multiple_of(3) { 200 } else { 2 };
    // Shorter and longer than what is read at once, and than the kernel keeps in one piece.
    let text = |state: usize| "x".repeat(state * 25_000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut gives = Channel::new(one).unwrap();
            for (state, file) in files.iter().enumerate() {
                for n in 0..records(state) {
                    gives.send_record(&record(state, n)).unwrap();
                }
                let fds = [file.as_fd(), file.as_fd()];
                gives
                    .tell_with(MessageKind::State, &text(state), &fds)
                    .unwrap();
            }
        });
        // Here, so that the other thread ends if this one fails.
        let mut takes = Channel::new(other).unwrap();
        for (state, file) in files.iter().enumerate() {
            for n in 0..records(state) {
                let (kind, body, fds) = takes.receive().unwrap();
                assert!(kind == MessageKind::Record && fds.is_empty());
                assert_eq!(*body, record(state, n));
            }
            let (found, fds): (String, _) = takes.hear_with(MessageKind::State).unwrap();
            assert_eq!((found, fds.len()), (text(state), 2));
            let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
            assert!(
                fds.iter().all(|fd| inode(fd) == inode(file)),
                "state {state}"
            );
        }
        assert!(takes.receive().is_err(), "the other end is gone");
    });
}

/// A descriptor unlike any other.
fn tempfile() -> OwnedFd {
    rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap()
}

#[test]
fn only_sockets_are_asked_and_only_dead_ones_go() {
    let dir = std::env::temp_dir().join(format!("adit-channel-kinds-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let path = |name: &str| dir.join(name);
    let _alive = UnixListener::bind(path("1.sock")).unwrap();
    drop(UnixListener::bind(path("2.sock")).unwrap());
    drop(UnixListener::bind(path("elsewhere")).unwrap());
    std::os::unix::fs::symlink("elsewhere", path("3.sock")).unwrap();
    std::os::unix::fs::symlink("1.sock", path("4.sock")).unwrap();
    std::fs::write(path("5.sock"), "a file").unwrap();
    // A connection to a file is refused as one to a dead socket is.
    remove_dead(&dir);
    let found: Vec<i32> = sockets(&dir).into_iter().map(|(_, pid)| pid).collect();
    let names = std::fs::read_dir(&dir).unwrap().count();
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!((found, names), (vec![1], 5));
}

#[test]
fn sockets_that_take_no_connection_keep_nothing_waiting() {
    let dir = std::env::temp_dir().join(format!("adit-channel-full-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let full = |pid: i32| {
        let path = dir.join(format!("{pid}.sock"));
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let short = Duration::from_millis(1);
        let clients: Vec<_> = std::iter::repeat_with(|| adit_ctl::connect(&path, short))
            .map_while(std::io::Result::ok)
            .collect();
        (listener, clients)
    };
    let _full: Vec<_> = (1..=100).map(full).collect();
    let (done, is_done) = std::sync::mpsc::channel();
    let looked_at = dir.clone();
    std::thread::spawn(move || {
        remove_dead(&looked_at);
        let asked = sockets(&looked_at).into_iter();
        let found = asked.filter(|(_, pid)| Channel::connect(&looked_at, *pid).is_ok());
        let _ = done.send(found.count());
    });
    assert_eq!(is_done.recv_timeout(Duration::from_secs(60)), Ok(0));
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A process that an intruder may keep at work.
struct Other(Child);

impl Other {
    fn start(command: &str, argument: &str) -> Self {
        Self(Command::new(command).arg(argument).spawn().unwrap())
    }

    fn peer(&self) -> OtherProcess {
        let pid = Pid::from_child(&self.0);
        OtherProcess {
            pid: pid.as_raw_pid(),
            user: own_user(),
            process: pidfd_open(pid, PidfdFlags::empty()).ok(),
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_that_stays_is_ended() {
    for patience in [Duration::ZERO, Duration::from_millis(10)] {
        let mut other = Other::start("sleep", "1000");
        assert!(other.peer().end_after(patience));
        // By a signal.
        assert_eq!(other.0.wait().unwrap().code(), None);
    }
}

#[test]
fn a_process_that_ends_is_left_to_that() {
    let mut other = Other::start("sleep", "0.2");
    assert!(other.peer().end_after(Duration::from_secs(100)));
    assert_eq!(other.0.wait().unwrap().code(), Some(0));
    // It was waited for: no signal reaches it.
    let gone = Other::start("true", "");
    let peer = gone.peer();
    drop(gone);
    assert!(peer.end_after(Duration::ZERO));
}

#[test]
fn what_cannot_be_ended_or_has_no_handle_counts_as_alive() {
    let mut peer = OtherProcess {
        pid: 1,
        user: 0,
        process: None,
    };
    assert!(!peer.end_after(Duration::ZERO));
    // It takes no signal, and never ends.
    let (reader, _writer) = std::io::pipe().unwrap();
    peer.process = Some(reader.into());
    assert!(!peer.end_after(Duration::ZERO));
}

/// Its number would be 0, or by then that of another process.
#[test]
fn a_handle_is_of_the_process_at_the_other_end() {
    const INSIDE: &str = "ADIT_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        // In a PID namespace that does not see the other one.
        let stream = UnixStream::from(adit_io::duplicate(0).unwrap());
        let peer = OtherProcess::of(&stream).unwrap();
        assert_eq!(peer.pid, 0);
        // Linux 6.5.
        let has_handle = adit_io::peer_process(stream.as_fd()).is_ok();
        assert_eq!(peer.process.is_some(), has_handle);
        assert!(
            !peer.end_after(Duration::ZERO),
            "it may not be ended from here"
        );
        return;
    }
    if !rustix::process::geteuid().is_root() {
        // Only root can make a PID namespace.
        return;
    }
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let name = "a_handle_is_of_the_process_at_the_other_end";
    let test = format!("run::hand_over::channel::tests::{name}");
    let inside = Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &test])
        .env(INSIDE, "1")
        .stdin(OwnedFd::from(theirs))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&inside.stdout).into_owned();
    assert!(
        inside.status.success() && said.contains("1 passed"),
        "{said}"
    );
}
