use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_listener_finds_its_place_while_others_take_the_directory_along() {
    let status = std::env::temp_dir().join(format!("adit-channel-{}", std::process::id()));
    std::fs::create_dir(&status).unwrap();
    let dir = status.join(DIR);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = std::fs::remove_dir(&dir);
                // Faster than any processes end, and not so fast that none of them could bind.
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let bound = (0..500).try_for_each(|_| Listener::bind(&status).map(drop));
        stop.store(true, Ordering::Relaxed);
        assert!(bound.is_ok(), "{}", bound.unwrap_err());
    });
    std::fs::remove_dir(&status).unwrap();
}

#[test]
fn a_directory_that_others_may_enter_is_refused() {
    let dir = std::env::temp_dir().join(format!("adit-channel-open-{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o755).create(&dir).unwrap();
    let refused = make_private(&dir).unwrap_err();
    assert!(refused.to_string().contains("alone"), "{refused}");
    std::fs::remove_dir(&dir).unwrap();
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
                gives.tell_with(Kind::State, &text(state), &fds).unwrap();
            }
        });
        // Here, so that the other thread ends if this one fails.
        let mut takes = Channel::new(other).unwrap();
        for (state, file) in files.iter().enumerate() {
            for n in 0..records(state) {
                let (kind, body, fds) = takes.receive().unwrap();
                assert!(kind == Kind::Record && fds.is_empty());
                assert_eq!(*body, record(state, n));
            }
            let (found, fds): (String, _) = takes.hear_with(Kind::State).unwrap();
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
