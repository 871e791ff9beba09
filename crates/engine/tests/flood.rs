//! What the data path promises while more handshake messages arrive than the control thread can
//! take.

#[allow(dead_code, reason = "each test file uses a part of this")]
mod common;

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use adit_io::testing::mem::MemUdp;
use adit_io::{Filtered, RecvBatch, SendReport, Transmit, UdpSocket};
use adit_proto::config::{DeviceChange, PeerChange, PublicKey, Secret};
use adit_proto::{Device, Endpoint, InUse, Output, Tai64N, Time};
use common::{A, B, EnginePair, Options, inner_ip, public, segments, udp_frame};
use x25519_dalek::StaticSecret;

/// Handshake messages that wait before their senders have to prove their address, and those that
/// may wait then.
const UNPROVEN: usize = 512;
const QUEUE: usize = 2048;
const EXCESS: usize = 5000;
const KEEPALIVE_LEN: usize = 32;
const STRANGER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 3)), 51820);

/// Lets no keepalive pass while it is closed: only the control thread sends those, so that it alone
/// is held.
#[derive(Default)]
struct Gate {
    closed: Mutex<()>,
    held: AtomicBool,
    refused: Mutex<BTreeSet<IpAddr>>,
}

struct Gated<U> {
    socket: U,
    gate: Option<Arc<Gate>>,
}

impl<U: UdpSocket> UdpSocket for Gated<U> {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        if let (Some(gate), true) = (&self.gate, trains[0].bytes.len() == KEEPALIVE_LEN) {
            gate.held.store(true, Ordering::Release);
            drop(gate.closed.lock());
        }
        self.socket.send(trains, report)
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        self.socket.recv(batch)
    }

    fn refuse(&self, source: IpAddr) {
        if let Some(gate) = &self.gate {
            gate.refused.lock().expect("no panic").insert(source);
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }
}

/// A peer of B without an engine: its clock is the test's.
struct Stranger {
    device: Device,
    socket: MemUdp,
    now: Time,
}

impl Stranger {
    fn new(pair: &EnginePair) -> Self {
        let mut seed = 0u8;
        let mut device = Device::new(Box::new(move |bytes| {
            for byte in bytes {
                seed = seed.wrapping_mul(5).wrapping_add(17);
                *byte = seed;
            }
        }));
        let now = Time::default() + Duration::from_secs(1000);
        let change = DeviceChange {
            private_key: Some(Secret::new(Self::secret().as_bytes())),
            peers: vec![PeerChange {
                endpoint: Some(pair.sides[B].addr),
                ..PeerChange::new(public(B))
            }],
            ..DeviceChange::default()
        };
        device.apply(now, &change).expect("a right configuration");
        let socket = pair.network.bind(STRANGER, true).expect("a free address");
        Self {
            device,
            socket,
            now,
        }
    }

    fn secret() -> StaticSecret {
        StaticSecret::from([0x33; 32])
    }

    fn public() -> PublicKey {
        PublicKey(x25519_dalek::PublicKey::from(&Self::secret()).to_bytes())
    }

    fn wall(now: Time) -> Tai64N {
        Tai64N::from_unix(now.since(Time::default()))
    }

    /// The handshake message that the device wants to send.
    fn output(&mut self) -> Vec<u8> {
        loop {
            match self.device.poll_output().expect("a handshake message") {
                Output::Handshake { datagram, .. } => return datagram.to_vec(),
                _ => continue,
            }
        }
    }

    fn initiation(&mut self) -> Vec<u8> {
        let peer = Arc::clone(self.device.peer(&public(B)).expect("configured"));
        assert!(peer.want_session());
        self.device
            .handle_event(self.now, Self::wall(self.now), &peer);
        self.device.handle_timeout(self.now, Self::wall(self.now));
        self.output()
    }

    /// The next initiation of a handshake that got no answer but this cookie reply.
    fn initiation_with(&mut self, pair: &EnginePair, cookie: &[u8]) -> Vec<u8> {
        let from = Endpoint::from(pair.sides[B].addr);
        let wall = Self::wall(self.now);
        self.device
            .handle_handshake(self.now, wall, from, cookie, false);
        assert_eq!(self.device.handshake_stats().cookies_accepted, 1);
        self.now = self.now + Duration::from_secs(6);
        self.device.handle_timeout(self.now, Self::wall(self.now));
        self.output()
    }

    fn send(&self, pair: &EnginePair, stride: usize, bytes: &[u8]) {
        let train = Transmit {
            to: pair.sides[B].addr.into(),
            ecn: 0,
            stride,
            bytes,
        };
        self.socket.send(&[train], &mut SendReport::default());
    }

    /// Takes what has come, so that there is room for more.
    fn drain(&self) {
        let mut batch = RecvBatch::default();
        while self.socket.recv(&mut batch).is_ok() {}
    }

    /// The next datagram of this type.
    fn receive(&self, kind: u8) -> Vec<u8> {
        let mut batch = RecvBatch::default();
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < Duration::from_secs(20), "none came");
            if self.socket.recv(&mut batch).is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
            for (_, bytes) in batch.iter_mut() {
                if bytes[0] == kind {
                    return bytes.to_vec();
                }
            }
        }
    }
}

fn expect_delivery(pair: &EnginePair, from: usize, payload: &[u8]) {
    let frame = udp_frame(inner_ip(from), inner_ip(1 - from), (1, 2), 0, payload);
    pair.inject(from, frame.clone());
    assert!(pair.delivered(1 - from, 1) == segments(&frame));
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Invariant 5, and that a flood of initiations harms no other peer.
#[test]
fn a_full_handshake_queue_stops_neither_data_nor_handshakes() {
    let gate = Arc::new(Gate::default());
    let gate_of_b = Arc::clone(&gate);
    let pair = EnginePair::with_sockets(Options::default(), move |side, socket| Gated {
        socket,
        gate: (side == B).then(|| Arc::clone(&gate_of_b)),
    });
    let mut change = pair.configuration(B);
    change.peers = vec![PeerChange::new(Stranger::public())];
    let interface = &pair.sides[B].interface;
    interface.set(change).expect("a right configuration");
    expect_delivery(&pair, A, b"session");
    let mut stranger = Stranger::new(&pair);
    let initiation = stranger.initiation();

    std::thread::scope(|scope| {
        // A persistent keepalive that is switched on is sent at once, by the control thread.
        let closed = gate.closed.lock().expect("no panic while locked");
        let mut change = pair.configuration(B);
        change.peers[0].persistent_keepalive = Some(60);
        let set = scope.spawn(move || interface.set(change));
        wait_until("the control thread is held", || {
            gate.held.load(Ordering::Acquire)
        });

        let send = |message: &[u8], count: usize| {
            for train in message.repeat(count).chunks(50 * message.len()) {
                stranger.send(&pair, message.len(), train);
            }
        };
        send(&initiation, UNPROVEN + EXCESS);
        // A packet behind the flood is delivered before the control thread has looked at any of it.
        expect_delivery(&pair, A, b"beside the flood");
        expect_delivery(&pair, B, b"beside the flood");
        // Nor is it the control thread that answers, and who has its cookie passes the others.
        let cookie = stranger.receive(3);
        // Cookie replies to nothing do not wait with them, from any sender.
        send(&cookie, QUEUE + EXCESS);
        let proven = stranger.initiation_with(&pair, &cookie);
        stranger.send(&pair, proven.len(), &proven);
        // The shard is through with all of it when what came behind it is delivered.
        expect_delivery(&pair, A, b"behind the flood");
        stranger.drain();
        drop(closed);
        set.join()
            .expect("no panic")
            .expect("a right configuration");
    });

    stranger.receive(2);
    assert_eq!(pair.drops(B, "handshake_queue_full"), 0);
    let handshakes = || pair.sides[B].interface.report().handshakes;
    // The pair's own handshake was the first, and the proven one is the last.
    let sent = (1 + UNPROVEN + EXCESS + 1) as u64;
    wait_until("what waited is looked at", || {
        let counted = handshakes();
        counted.initiations_received == sent
            && counted.cookies_received == (QUEUE + EXCESS) as u64
            && counted.unexpected == counted.cookies_received
    });
    let counted = handshakes();
    // All that was asked for beside the flood, as far as it fits.
    let answered = counted.cookies_sent + counted.send_failed;
    assert!(counted.cookies_sent > 100, "{counted:?}");
    assert!(
        answered + counted.rate_limited >= EXCESS as u64,
        "{counted:?}"
    );
    assert_eq!(counted.bad_mac1, 0);
    // Only what its own source sends without a cookie is not even queued.
    let refused = gate.refused.lock().expect("no panic");
    assert!(refused.iter().all(|source| *source == STRANGER.ip()));
    expect_delivery(&pair, A, b"after the flood");
}

/// A wrong mac1 is refused by the shard while messages wait.
#[test]
fn a_flood_without_our_key_asks_nobody_for_a_cookie() {
    let pair = EnginePair::new(Options::default());
    let mut change = pair.configuration(B);
    change.peers = vec![PeerChange::new(Stranger::public())];
    pair.sides[B]
        .interface
        .set(change)
        .expect("a right configuration");
    let mut stranger = Stranger::new(&pair);
    let initiation = stranger.initiation();
    let mut wrong = initiation.clone();
    wrong[20] ^= 1;
    for train in wrong.repeat(UNPROVEN + EXCESS).chunks(50 * wrong.len()) {
        stranger.send(&pair, wrong.len(), train);
    }
    stranger.send(&pair, initiation.len(), &initiation);
    stranger.receive(2);
    let handshakes = || pair.sides[B].interface.report().handshakes;
    wait_until("all are refused", || {
        handshakes().bad_mac1 == (UNPROVEN + EXCESS) as u64
    });
    assert_eq!(handshakes().cookies_sent, 0);
    assert_eq!(pair.drops(B, "handshake_queue_full"), 0);
}

/// A socket that receives nothing while the gate is locked.
struct Shut(MemUdp, Arc<Mutex<()>>);

impl UdpSocket for Shut {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        self.0.send(trains, report)
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        drop(self.1.lock());
        self.0.recv(batch)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

/// Invariant 10.
#[test]
fn datagrams_that_find_the_receive_buffer_full_are_counted() {
    /// Datagrams that a socket in memory holds.
    const ROOM: u64 = 1024;
    const SENT: u64 = 3000;
    let gate = Arc::<Mutex<()>>::default();
    let of_sockets = Arc::clone(&gate);
    let pair = EnginePair::with_sockets(Options::default(), move |_, socket| {
        Shut(socket, Arc::clone(&of_sockets))
    });
    let stranger = Stranger::new(&pair);
    let shut = gate.lock().expect("no panic while locked");
    for _ in 0..SENT {
        stranger.send(&pair, 5, b"hello");
    }
    drop(shut);
    pair.wait_for_drops(B, "malformed_datagram", ROOM);
    assert_eq!(pair.drops(B, "receive_buffer_full"), SENT - ROOM);
    assert_eq!(pair.drops(B, "malformed_datagram"), ROOM);
}

/// A socket that drops before it queues.
struct Dropping(MemUdp, Arc<Known>);

/// What it dropped, and what it knows of indices.
#[derive(Default)]
struct Known {
    filtered: Mutex<Filtered>,
    in_use: Mutex<BTreeSet<usize>>,
    is_complete: AtomicBool,
}

impl InUse for Known {
    fn set(&self, bucket: usize, is_used: bool) {
        let mut in_use = self.in_use.lock().expect("no panic");
        match is_used {
            true => in_use.insert(bucket),
            false => in_use.remove(&bucket),
        };
    }

    fn set_complete(&self, is_complete: bool) {
        self.is_complete.store(is_complete, Ordering::SeqCst);
    }
}

impl UdpSocket for Dropping {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        self.0.send(trains, report)
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        self.0.recv(batch)?;
        for (_, bytes) in batch.iter_mut() {
            if let [4, 0, 0, 0, low, high, ..] = bytes {
                let bucket = u16::from_le_bytes([*low, *high]) & 0x7fff;
                let in_use = self.1.in_use.lock().expect("no panic");
                assert!(in_use.contains(&bucket.into()), "it would be dropped");
            }
        }
        Ok(())
    }

    fn in_use(&self) -> Option<Arc<dyn InUse>> {
        Some(Arc::clone(&self.1) as _)
    }

    fn take_filtered(&self) -> Filtered {
        std::mem::take(&mut self.1.filtered.lock().expect("no panic"))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

/// Invariant 10.
#[test]
fn what_sockets_drop_before_they_queue_it_counts_as_received() {
    let known = [Arc::<Known>::default(), Arc::default()];
    let of_sockets = known.clone();
    let pair = EnginePair::with_sockets(Options::default(), move |side, socket| {
        Dropping(socket, Arc::clone(&of_sockets[side]))
    });
    assert!(known[B].is_complete.load(Ordering::SeqCst));
    expect_delivery(&pair, A, b"an index is told before it is needed");
    expect_delivery(&pair, B, b"in both directions");
    let passed = |name: &str| {
        let passed = pair.sides[B].interface.report().passed;
        passed
            .into_iter()
            .find(|(of, _)| *of == name)
            .expect("a counter")
            .1
    };
    let names = ["received", "handshake_messages"];
    let before = names.map(passed);
    *known[B].filtered.lock().expect("no panic") = Filtered {
        malformed: 1,
        unknown: 2,
        refused: 3,
    };
    assert_eq!(names.map(passed), [before[0] + 6, before[1] + 3]);
    assert_eq!(pair.drops(B, "malformed_datagram"), 1);
    assert_eq!(pair.drops(B, "unknown_session"), 2);
    let handshakes = pair.sides[B].interface.report().handshakes;
    assert_eq!(handshakes.rate_limited, 3);
}

/// The datagrams that B's sockets have received and sent.
#[derive(Default)]
struct Seen {
    received: AtomicUsize,
    /// Paths that had been looked at.
    lookups: AtomicUsize,
    /// And when a response left, how many had then.
    answered: AtomicUsize,
}

struct Watched(MemUdp, Option<Arc<Seen>>);

impl UdpSocket for Watched {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        if let (Some(seen), 2) = (&self.1, trains[0].bytes[0]) {
            let lookups = seen.lookups.load(Ordering::SeqCst);
            seen.answered.store(lookups, Ordering::SeqCst);
        }
        self.0.send(trains, report)
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        self.0.recv(batch)?;
        if let Some(seen) = &self.1 {
            seen.received.fetch_add(batch.len(), Ordering::SeqCst);
        }
        Ok(())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

/// Routes may change hundreds of times a second, and there may be tens of thousands of peers.
#[test]
fn handshakes_are_answered_between_looks_at_paths() {
    const PEERS: u32 = 2000;
    const ASKED: usize = 10;
    let seen = Arc::<Seen>::default();
    let of_b = Arc::clone(&seen);
    let pair = EnginePair::with_sockets(Options::default(), move |side, socket| {
        Watched(socket, (side == B).then(|| Arc::clone(&of_b)))
    });
    let peer = |number: u32| {
        let mut key = [0x55; 32];
        key[..4].copy_from_slice(&number.to_le_bytes());
        PeerChange {
            endpoint: Some(SocketAddr::from(([198, 51, 100, 1], 9))),
            // A silent peer has no path that could be looked at.
            persistent_keepalive: Some(60),
            ..PeerChange::new(PublicKey(key))
        }
    };
    let change = DeviceChange {
        peers: (1..PEERS)
            .map(peer)
            .chain([PeerChange::new(Stranger::public())])
            .collect(),
        ..DeviceChange::default()
    };
    let interface = &pair.sides[B].interface;
    interface.set(change).expect("a right configuration");
    wait_until("a handshake with each is under way", || {
        let handshakes = interface.report().handshakes;
        handshakes.initiations_sent + handshakes.send_failed >= u64::from(PEERS) - 1
    });

    // In the middle of it an initiation comes, and the shard has it in the queue before the next
    // look.
    let mut stranger = Stranger::new(&pair);
    let initiation = stranger.initiation();
    let (to, noted) = (pair.sides[B].addr, Arc::clone(&seen));
    pair.sides[B].host.judge_sources(move |_| {
        if noted.lookups.fetch_add(1, Ordering::SeqCst) + 1 == ASKED {
            // A datagram is received when the one before it is dealt with.
            for datagram in [&initiation, &vec![0]] {
                let before = noted.received.load(Ordering::SeqCst);
                let train = Transmit {
                    to: to.into(),
                    ecn: 0,
                    stride: datagram.len(),
                    bytes: datagram,
                };
                stranger.socket.send(&[train], &mut SendReport::default());
                wait_until("it is received", || {
                    noted.received.load(Ordering::SeqCst) > before
                });
            }
        }
        false
    });
    pair.sides[B].host.change_routes();
    wait_until("every path is looked at", || {
        seen.lookups.load(Ordering::SeqCst) >= PEERS as usize - 1
    });
    let answered = seen.answered.load(Ordering::SeqCst);
    assert!(
        (ASKED..ASKED + 100).contains(&answered),
        "answered after {answered} look-ups"
    );
}
