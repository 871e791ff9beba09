//! What the data path promises while the UDP socket's send buffer is full.

#[allow(dead_code, reason = "each test file uses a part of this")]
mod common;

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use adit_engine::{Engine, MemPlatform};
use adit_io::testing::mem::{MemNetwork, MemTun, MemUdp};
use adit_io::{RecvBatch, SendReport, Transmit, UdpSocket};
use adit_proto::config::DeviceChange;
use common::{A, B, EnginePair, Options, Side, inner_ip, segments, udp_frame};

/// A socket that is not closed at once, as one whose shard is busy.
struct SlowToClose(MemUdp);

impl Drop for SlowToClose {
    fn drop(&mut self) {
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl UdpSocket for SlowToClose {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        self.0.send(trains, report)
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        self.0.recv(batch)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

#[test]
fn a_port_that_shards_still_have_open_is_waited_for() {
    let pair = EnginePair::with_sockets(Options::default(), |_, socket| SlowToClose(socket));
    let port = pair.sides[A].addr.port();
    for port in [port + 1, port, port + 1, port] {
        let change = DeviceChange {
            listen_port: Some(port),
            ..DeviceChange::default()
        };
        pair.sides[A].interface.set(change).expect("nobody else's");
        assert_eq!(pair.sides[A].interface.get().unwrap().listen_port, port);
    }
    // A port that another process has is refused.
    let other = SocketAddr::new(pair.sides[A].addr.ip(), port + 2);
    let _theirs = pair.network.bind(other, false).expect("a free port");
    let change = DeviceChange {
        listen_port: Some(port + 2),
        ..DeviceChange::default()
    };
    assert!(pair.sides[A].interface.set(change).is_err());
}

/// What keeps sockets from being closed.
#[derive(Default)]
struct Hold {
    is_on: AtomicBool,
    /// Sockets that were to be closed meanwhile.
    held: AtomicUsize,
}

/// A socket that is not closed while something holds it, whichever thread drops it.
struct Held(Option<MemUdp>, Arc<Hold>);

impl Held {
    fn socket(&self) -> &MemUdp {
        self.0.as_ref().expect("it is not dropped")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (socket, hold) = (self.0.take(), Arc::clone(&self.1));
        if hold.is_on.load(Ordering::SeqCst) {
            hold.held.fetch_add(1, Ordering::SeqCst);
            std::thread::spawn(move || {
                while hold.is_on.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                drop(socket);
            });
        }
    }
}

impl UdpSocket for Held {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        self.socket().send(trains, report)
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        self.socket().recv(batch)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket().fd()
    }
}

/// Two pairs of interfaces on the same engines; what holds sockets is for those of the first pair's A.
struct Two {
    pairs: [EnginePair; 2],
    hold: Arc<Hold>,
    _engines: [Engine<MemTun, MemPlatform<Held>>; 2],
}

impl Two {
    fn new() -> Self {
        let hold = Arc::new(Hold::default());
        let engines = [A, B].map(|_| Engine::start(2).expect("an engine"));
        let network = MemNetwork::new();
        let pair = |number| {
            let held = Arc::clone(&hold);
            let wrap = move |side, socket| {
                let hold = match (number, side) {
                    (0, A) => Arc::clone(&held),
                    _ => Arc::default(),
                };
                Held(Some(socket), hold)
            };
            let options = Options::default();
            EnginePair::on(&engines, &network, number, options, |_, tun| tun, wrap)
        };
        Self {
            pairs: [0, 1].map(pair),
            hold,
            _engines: engines,
        }
    }
}

#[test]
fn a_port_that_is_being_closed_holds_up_no_other_interface() {
    let Two { pairs, hold, .. } = &Two::new();
    let [first, second] = [0, 1].map(|number| &pairs[number].sides[A].interface);
    let change = |port| DeviceChange {
        listen_port: Some(port),
        ..DeviceChange::default()
    };
    let mut port = pairs[0].sides[A].addr.port();
    for other in 7000..7005 {
        hold.is_on.store(true, Ordering::SeqCst);
        first.set(change(other)).expect("a free port");
        let back = std::thread::scope(|scope| {
            let back = scope.spawn(|| first.set(change(port)));
            std::thread::sleep(Duration::from_millis(20));
            second.get().expect("it runs");
            hold.is_on.store(false, Ordering::SeqCst);
            back.join().expect("no panic")
        });
        if back.is_ok() {
            return;
        }
        // It is waited for a second: on a busy machine that may have passed.
        port = other;
    }
    panic!("the other interface was answered when it was over");
}

/// How often a side said that it has not got its port.
fn complaints(side: &Side) -> usize {
    let log = side.host.log();
    log.iter()
        .filter(|line| line.contains("cannot listen"))
        .count()
}

/// Waits until A sends.
fn wait_until_up(pair: &EnginePair) {
    let start = Instant::now();
    while pair.delivered_now(B).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(20), "it is down");
        pair.inject(A, datagram(A, 0));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn coming_up_on_a_port_that_is_being_closed_holds_up_no_other() {
    let Two { pairs, hold, .. } = &Two::new();
    let (first, second) = (&pairs[0].sides[A], &pairs[1].sides[A].interface);
    for _ in 0..5 {
        let (said, before) = (complaints(first), hold.held.load(Ordering::SeqCst));
        hold.is_on.store(true, Ordering::SeqCst);
        first.host.set_up(false);
        let start = Instant::now();
        while hold.held.load(Ordering::SeqCst) == before {
            assert!(start.elapsed() < Duration::from_secs(20), "it is up");
            std::thread::sleep(Duration::from_millis(1));
        }
        first.host.set_up(true);
        std::thread::sleep(Duration::from_millis(20));
        second.get().expect("it runs");
        hold.is_on.store(false, Ordering::SeqCst);
        wait_until_up(&pairs[0]);
        // The port was never another program's.
        if complaints(first) == said {
            return;
        }
        // It is waited for a second: on a busy machine that may have passed.
    }
    panic!("the other interface was answered when it was over");
}

#[test]
fn a_port_that_another_program_has_is_told_of_once() {
    let pair = EnginePair::new(Options::default());
    let side = &pair.sides[A];
    side.host.set_up(false);
    // It is closed before another program can have it.
    let start = Instant::now();
    let theirs = loop {
        match pair.network.bind(side.addr, false) {
            Ok(theirs) => break theirs,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(start.elapsed() < Duration::from_secs(20), "it is up");
    };
    side.host.set_up(true);
    pair.wait_for_line(A, &["cannot listen"]);
    // It is tried again each second.
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(complaints(side), 1);
    drop(theirs);
    wait_until_up(&pair);
    assert_eq!(complaints(side), 1);
}

/// Frames that an in-memory TUN holds.
const RING: usize = 1024;

/// The descriptor of A's socket: like the kernel's, it is writable only while the buffer has room.
///
/// ```text
///   engine a sleeps on `near` ⇄ `far`: B writes a byte for each send; unread bytes of `near` fill the buffer
/// ```
struct Line {
    near: UnixStream,
    far: UnixStream,
    full: AtomicBool,
    refused: AtomicUsize,
    /// It becomes full with the next initiation.
    fill_soon: AtomicBool,
}

impl Line {
    fn new() -> Self {
        let (near, far) = UnixStream::pair().expect("two sockets");
        for end in [&near, &far] {
            end.set_nonblocking(true).expect("a socket");
        }
        Self {
            near,
            far,
            full: AtomicBool::new(false),
            refused: AtomicUsize::new(0),
            fill_soon: AtomicBool::new(false),
        }
    }

    fn fill(&self) {
        self.full.store(true, Ordering::SeqCst);
        while (&self.near).write(&[0; 4096]).is_ok() {}
    }

    fn empty(&self) {
        self.full.store(false, Ordering::SeqCst);
        while (&self.far).read(&mut [0; 4096]).is_ok() {}
    }

    fn refused(&self) -> usize {
        self.refused.load(Ordering::SeqCst)
    }
}

struct OnLine {
    socket: MemUdp,
    side: usize,
    line: Arc<Line>,
}

impl UdpSocket for OnLine {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        if self.side == A && self.line.full.load(Ordering::SeqCst) {
            self.line.refused.fetch_add(1, Ordering::SeqCst);
            return 0;
        }
        if self.side == A && self.line.fill_soon.swap(false, Ordering::SeqCst) {
            self.line.fill();
        }
        let taken = self.socket.send(trains, report);
        if self.side == B {
            // A line that is full of bytes is readable already.
            let _ = (&self.line.far).write(&[0]);
        }
        taken
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        if self.side == A && self.socket.local_addr().is_ipv4() {
            while (&self.line.near).read(&mut [0; 64]).is_ok() {}
        }
        self.socket.recv(batch)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self.side {
            A if self.socket.local_addr().is_ipv4() => self.line.near.as_fd(),
            _ => self.socket.fd(),
        }
    }
}

fn pair() -> (EnginePair, Arc<Line>) {
    let line = Arc::new(Line::new());
    let of_a = Arc::clone(&line);
    let pair = EnginePair::with_sockets(Options::default(), move |side, socket| OnLine {
        socket,
        side,
        line: Arc::clone(&of_a),
    });
    (pair, line)
}

fn datagram(from: usize, number: usize) -> Vec<u8> {
    let id = u16::try_from(number).expect("few frames");
    let payload = [number.to_ne_bytes(); 40].concat();
    udp_frame(inner_ip(from), inner_ip(1 - from), (1, 2), id, &payload)
}

fn expect_delivery(pair: &EnginePair, from: usize, frame: &[u8]) {
    pair.inject(from, frame.to_vec());
    assert_eq!(pair.delivered(1 - from, 1), segments(frame));
}

fn wait_until_refused(line: &Line) {
    let start = Instant::now();
    while line.refused() == 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "nothing sent");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Invariant 6: a shard that waits for a full socket is woken when there is space, and does nothing
/// until then.
#[test]
fn a_full_socket_stops_only_the_tun_and_loses_nothing() {
    let (pair, line) = pair();
    expect_delivery(&pair, A, &datagram(A, 0));

    line.fill();
    let frames: Vec<_> = (1..=1 + RING).map(|n| datagram(A, n)).collect();
    // The first one meets the full socket; none of the others is taken after that.
    pair.inject(A, frames[0].clone());
    wait_until_refused(&line);
    for frame in &frames[1..] {
        pair.inject(A, frame.clone());
    }
    // Each packet on the inbound path is a poll of the shard's loop. The first one may end the poll
    // that met the full socket.
    expect_delivery(&pair, B, &datagram(B, 0));
    let refused = line.refused();
    for n in 1..50 {
        expect_delivery(&pair, B, &datagram(B, n));
    }
    assert_eq!(line.refused(), refused, "a full socket was tried again");
    let further = datagram(A, 0);
    assert!(
        !pair.sides[A].tun.inject(further),
        "a frame was taken from the TUN"
    );
    assert!(pair.delivered_now(B).is_empty());

    line.empty();
    let delivered = pair.delivered(B, frames.len());
    let sent: Vec<_> = frames.iter().flat_map(|frame| segments(frame)).collect();
    assert!(delivered == sent, "{} of {}", delivered.len(), sent.len());
    let drops = pair.sides[A].interface.report().drops;
    for (reason, count) in drops {
        // The one that the ring did not take.
        assert_eq!(count, u64::from(reason == "tun_full"), "{reason}");
    }
    expect_delivery(&pair, A, &datagram(A, 0));
}

/// Invariant 6: frames that waited for the handshake do not wait for other frames after it.
#[test]
fn staged_frames_that_meet_a_full_socket_leave_when_it_has_room() {
    let (pair, line) = pair();
    line.fill_soon.store(true, Ordering::SeqCst);
    pair.inject(A, datagram(A, 1));
    wait_until_refused(&line);
    line.empty();
    assert_eq!(pair.delivered(B, 1), segments(&datagram(A, 1)));
}
