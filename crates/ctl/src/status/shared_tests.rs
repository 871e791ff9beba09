//! Clients of other users than root, as members of the status group are.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use super::super::{Events, StatusReport, StatusServer, fetch_in};
use super::*;
use crate::socket::tests::Dir;
use crate::{Service, Serving};

/// The member and another one.
const MEMBER: u32 = 65_534;
const OTHER: u32 = 65_533;

/// What a thread of this user does. It is in the group that [`Socket`] is for.
fn as_user<T: Send>(uid: u32, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let (user, group) = (
                rustix::fs::Uid::from_raw(uid),
                rustix::fs::Gid::from_raw(MEMBER),
            );
            rustix::thread::set_thread_res_gid(group, group, group).unwrap();
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}

/// A status socket with many peers, and how many reports it has made.
struct Socket {
    dir: Dir,
    made: Arc<AtomicUsize>,
    service: Service,
    _serving: Mutex<Serving>,
}

impl Socket {
    /// `None` if this user cannot become another one.
    fn new() -> Option<Self> {
        Self::with_reports_of_before(Duration::ZERO)
    }

    /// Its reports were made so long ago.
    fn with_reports_of_before(age: Duration) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("not run: only root can become another user");
            return None;
        }
        let dir = Dir::new();
        let server = StatusServer::bind_in(&dir.0, "wg0", Some(MEMBER)).unwrap();
        let made = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&made);
        let report = move || {
            count.fetch_add(1, Ordering::Relaxed);
            let peer = |n: u32| {
                let mut key = [7; 32];
                key[..4].copy_from_slice(&n.to_ne_bytes());
                PeerStatus::new(PublicKey(key))
            };
            let peers = (0..5000).map(peer).collect();
            Some(Report {
                made: Instant::now().checked_sub(age)?,
                ..Report::new(InterfaceJson::default(), peers, |_| None)
            })
        };
        let service = Service::start().unwrap();
        let events = Events::new("wg0");
        let serving = server
            .serve(&service, &events, report, |_| None, |_| ())
            .unwrap();
        Some(Self {
            dir,
            made,
            service,
            _serving: Mutex::new(serving),
        })
    }

    fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    /// A client that asks this and reads nothing.
    fn ask(&self, question: &[u8]) -> UnixStream {
        let mut stream = UnixStream::connect(self.dir.path()).unwrap();
        stream.write_all(question).unwrap();
        stream
    }

    /// Its number of peers, as root is told it.
    fn peers(&self) -> usize {
        fetch_in(&self.dir.0, "wg0").unwrap().peers.len()
    }
}

#[test]
fn others_than_root_share_a_report_for_a_moment() {
    let Some(socket) = Socket::new() else {
        return;
    };
    let begun = Instant::now();
    as_user(MEMBER, || {
        (0..100).for_each(|_| assert_eq!(socket.peers(), 5000))
    });
    let moments = begun.elapsed().as_millis() / FRESH.as_millis() + 1;
    assert!(socket.made() as u128 <= moments, "{}", socket.made());
    // Root sees what it has just changed.
    let made = socket.made();
    (0..3).for_each(|_| assert_eq!(socket.peers(), 5000));
    assert_eq!(socket.made(), made + 3);
}

#[test]
fn few_reports_are_in_memory_however_slow_readers_are() {
    let Some(socket) = Socket::new() else {
        return;
    };
    let slow: Vec<UnixStream> = as_user(MEMBER, || {
        let one = |_| {
            let stream = socket.ask(b"status\n");
            std::thread::sleep(FRESH + Duration::from_millis(20));
            stream
        };
        (0..6).map(one).collect()
    });
    assert_eq!(socket.made(), ALIVE);
    for mut stream in slow {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let report: StatusReport = serde_json::from_str(&text).unwrap();
        assert_eq!(report.interfaces[0].peers.len(), 5000);
    }
}

/// Where as many are being read as there may be, and have been for long, another client's question ends
/// that.
#[test]
fn who_reads_a_report_for_long_loses_it_to_others() {
    for is_old in [false, true] {
        let age = match is_old {
            true => OLD + Duration::from_secs(1),
            false => OLD / 2,
        };
        let Some(socket) = Socket::with_reports_of_before(age) else {
            return;
        };
        let ask = || {
            let mut stream = socket.ask(b"status\n");
            // It is being answered, and reads no more.
            stream.read_exact(&mut [0; 1]).unwrap();
            stream
        };
        let slow: Vec<UnixStream> = as_user(MEMBER, || (0..ALIVE).map(|_| ask()).collect());
        assert_eq!(socket.made(), ALIVE);
        let late = as_user(OTHER, ask);
        assert_eq!(socket.made(), ALIVE);
        // The late one is told the newest, whole.
        for (n, mut stream) in (1..).zip(slow.into_iter().chain([late])) {
            let mut text = Vec::new();
            stream.read_to_end(&mut text).unwrap();
            let is_whole = !is_old || n >= ALIVE;
            assert_eq!(text.ends_with(b"]}\n"), is_whole, "{n}, is old: {is_old}");
        }
    }
}

#[test]
fn nothing_is_made_for_clients_that_have_hung_up() {
    let Some(socket) = Socket::new() else {
        return;
    };
    // The thread that serves both sockets is held up meanwhile.
    let (go, wait) = mpsc::channel::<()>();
    let (held, is_held) = mpsc::channel();
    let wait = Mutex::new(wait);
    let control = Dir::new();
    let handler = move |_| {
        held.send(()).unwrap();
        _ = wait.lock().unwrap().recv();
        crate::uapi::UapiResponse::Done
    };
    let handler = {
        let handler = Mutex::new(handler);
        move |request| (handler.lock().unwrap())(request)
    };
    let _serving = crate::uapi::UapiServer::bind_in(&control.0, "wg0")
        .unwrap()
        .serve(&socket.service, handler, |_| ())
        .unwrap();
    let mut holder = UnixStream::connect(control.path()).unwrap();
    holder.write_all(b"get=1\n\n").unwrap();
    is_held.recv().unwrap();
    for question in [&b"status\n"[..], b"watch\n"] {
        (0..5).for_each(|_| drop(socket.ask(question)));
    }
    // This one has only stopped writing.
    let mut waits = socket.ask(b"status\n");
    waits.shutdown(std::net::Shutdown::Write).unwrap();
    go.send(()).unwrap();
    let mut text = String::new();
    waits.read_to_string(&mut text).unwrap();
    assert!(text.ends_with("]}\n"), "{text}");
    assert_eq!(socket.made(), 1);
}

/// Whether the service has ended this client's connection.
fn has_ended(client: &mut UnixStream) -> bool {
    client.set_nonblocking(true).unwrap();
    let read = client.read(&mut [0; 4096]);
    read.is_ok_and(|n| n == 0)
}

#[test]
fn no_crowd_of_one_user_takes_a_place_from_another() {
    let Some(socket) = Socket::new() else {
        return;
    };
    let listen = || {
        let mut stream = socket.ask(b"events\n");
        assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
        stream
    };
    let mut of_root = listen();
    let mut of_other = as_user(OTHER, listen);
    for question in ["", "events\n", "watch\n", "sta"] {
        let crowd: Vec<UnixStream> = as_user(MEMBER, || {
            (0..50).map(|_| socket.ask(question.as_bytes())).collect()
        });
        // It is served all the same.
        assert_eq!(socket.peers(), 5000);
        as_user(OTHER, || assert_eq!(socket.peers(), 5000));
        assert!(!has_ended(&mut of_root), "{question}");
        assert!(!has_ended(&mut of_other), "{question}");
        drop(crowd);
    }
    // Where all places are root's, others get none.
    let _roots: Vec<UnixStream> = (0..40).map(|_| listen()).collect();
    let mut of_root = listen();
    for _ in 0..40 {
        let mut late = as_user(MEMBER, || UnixStream::connect(socket.dir.path()).unwrap());
        assert_eq!(late.read(&mut [0; 1]).unwrap_or(0), 0);
    }
    assert!(!has_ended(&mut of_root));
}
