//! A peer behind a slow path delays no other (invariant 9).
//!
//! ```text
//!   engine a ⇄ socket ⇄ network ⇄ engine b
//!                   └─ ✗ ─ engine c: nothing more leaves for it
//! ```

#[allow(dead_code, reason = "each test file uses a part of this")]
mod common;

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use adit_engine::{Engine, Interface, MemPlatform};
use adit_io::testing::mem::{self, MemUdp, TunEnd};
use adit_io::{Offloads, RecvBatch, SendReport, Transmit, UdpSocket};
use adit_proto::DropReason;
use adit_proto::config::{AllowedIpChange, Cidr, DeviceChange, PeerChange, PublicKey, Secret};
use common::{A, B, EnginePair, Options, inner_ip, public, segments, udp_frame};
use x25519_dalek::StaticSecret;

const SLOW: &str = "192.0.2.3:51820";
const SLOW_INNER: [u8; 4] = [10, 0, 0, 3];

/// The path to C, which all sockets of a host share.
#[derive(Default)]
struct Path {
    /// Nothing leaves any more: it stays in the buffer of the socket that sends it.
    stuck: AtomicBool,
    /// The sender waits.
    holds: AtomicBool,
    /// Sockets beside the shared ones.
    opened: AtomicUsize,
}

/// A socket with a send buffer, as the kernel's: it takes trains until that is full.
struct Buffered {
    socket: MemUdp,
    path: Arc<Path>,
    held: AtomicUsize,
    buffer: AtomicUsize,
}

impl Buffered {
    fn new(socket: MemUdp, path: Arc<Path>) -> Self {
        Self {
            socket,
            path,
            held: AtomicUsize::new(0),
            buffer: AtomicUsize::new(adit_io::udp::SEND_BUFFER),
        }
    }
}

impl UdpSocket for Buffered {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        while self.path.holds.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        for (index, train) in trains.iter().enumerate() {
            if self.held.load(Ordering::SeqCst) >= self.buffer.load(Ordering::SeqCst) {
                return index;
            }
            if train.to.addr == slow() && self.path.stuck.load(Ordering::SeqCst) {
                self.held.fetch_add(train.bytes.len(), Ordering::SeqCst);
            } else {
                self.socket.send(&[*train], report);
            }
        }
        trains.len()
    }

    fn send_socket(&self) -> io::Result<Self> {
        self.path.opened.fetch_add(1, Ordering::SeqCst);
        Ok(Self::new(
            self.socket.send_socket()?,
            Arc::clone(&self.path),
        ))
    }

    fn set_send_buffer(&self, bytes: usize) {
        self.buffer.store(bytes, Ordering::SeqCst);
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        self.socket.recv(batch)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }
}

fn slow() -> SocketAddr {
    SLOW.parse().expect("an address")
}

/// A and B, with C beside them.
struct Hosts {
    pair: EnginePair,
    path: Arc<Path>,
    _c: Interface,
    tun_c: TunEnd,
    key_c: PublicKey,
}

impl Hosts {
    fn new() -> Self {
        Self::with_buffers(adit_io::udp::SEND_BUFFER)
    }

    /// Their sockets have buffers of so many bytes at first.
    fn with_buffers(bytes: usize) -> Self {
        let path = Arc::new(Path::default());
        let of_a = Arc::clone(&path);
        let pair = EnginePair::with_sockets(Options::default(), move |_, socket| {
            let socket = Buffered::new(socket, Arc::clone(&of_a));
            socket.set_send_buffer(bytes);
            socket
        });
        let secret = StaticSecret::from([0x33; 32]);
        let key_c = PublicKey(x25519_dalek::PublicKey::from(&secret).to_bytes());
        let (tun, tun_c) = mem::tun().expect("an in-memory TUN");
        let platform = MemPlatform::new(&pair.network, slow()).expect("a host");
        let engine = Engine::start(1).expect("an engine");
        let c = engine
            .add(tun, platform, Offloads::ALL)
            .expect("an interface");
        let block = |ip: [u8; 4]| AllowedIpChange::Add(Cidr::new(ip.into(), 32).expect("a prefix"));
        let at_c = DeviceChange {
            private_key: Some(Secret::new(secret.as_bytes())),
            peers: vec![PeerChange {
                endpoint: Some(pair.sides[A].addr),
                allowed_ips: vec![block([10, 0, 0, 1])],
                ..PeerChange::new(public(A))
            }],
            ..DeviceChange::default()
        };
        c.set(at_c).expect("a right configuration");
        let at_a = DeviceChange {
            peers: vec![PeerChange {
                endpoint: Some(slow()),
                allowed_ips: vec![block(SLOW_INNER)],
                ..PeerChange::new(key_c)
            }],
            ..DeviceChange::default()
        };
        pair.sides[A]
            .interface
            .set(at_a)
            .expect("a right configuration");
        Self {
            pair,
            path,
            _c: c,
            tun_c,
            key_c,
        }
    }

    fn slow_drops(&self, reason: DropReason) -> u64 {
        let status = self.pair.sides[A].interface.get().expect("it runs");
        let peers = status.peers.iter();
        for peer in peers.clone().filter(|peer| peer.public_key != self.key_c) {
            assert!(peer.drops.is_empty(), "of another peer: {:?}", peer.drops);
        }
        let mut counted = peers.flat_map(|peer| &peer.drops);
        counted
            .find(|(of, _)| *of == reason)
            .map_or(0, |(_, packets)| *packets)
    }
}

fn datagram(to: [u8; 4], number: usize) -> Vec<u8> {
    let id = u16::try_from(number % 65_536).expect("small");
    let payload = [number.to_ne_bytes(); 150].concat();
    udp_frame(inner_ip(A), to.into(), (1, 2), id, &payload)
}

fn to_b(hosts: &Hosts, number: usize) {
    let frame = datagram([10, 0, 0, 2], number);
    hosts.pair.inject(A, frame.clone());
    assert_eq!(hosts.pair.delivered(B, 1), segments(&frame));
}

/// Waits until something is so; less long than for any timer of the protocol.
fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_slow_path_delays_no_other_peer() {
    let hosts = Hosts::new();
    to_b(&hosts, 0);
    hosts.pair.inject(A, datagram(SLOW_INNER, 0));
    wait_until("a session with c", || hosts.tun_c.take().is_some());

    // 1. More than the buffer of the shared socket holds goes where nothing leaves.
    hosts.path.stuck.store(true, Ordering::SeqCst);
    let mut number = 0;
    while hosts.slow_drops(DropReason::SlowPath) == 0 {
        for _ in 0..100 {
            number += 1;
            // The ring is full while the shard waits to see whether the socket drains.
            hosts.pair.sides[A].tun.inject(datagram(SLOW_INNER, number));
        }
        assert!(number < 1_000_000, "nothing was dropped");
    }
    // 2. B gets every packet, among more of them for C.
    for n in 1..200 {
        hosts.pair.sides[A].tun.inject(datagram(SLOW_INNER, n));
        to_b(&hosts, n);
    }
    let opened = hosts.path.opened.load(Ordering::SeqCst);
    assert!((1..=2).contains(&opened), "{opened} sockets");
    assert_eq!(
        hosts.slow_drops(DropReason::SlowPath),
        hosts.pair.drops(A, "slow_path"),
        "counted for the peer and for the device"
    );
}

/// A UDP GSO packet of so many datagrams.
fn gso_datagrams(to: [u8; 4], datagrams: u16, size: u16) -> Vec<u8> {
    let payload = vec![0; usize::from(datagrams * size)];
    let mut frame = udp_frame(inner_ip(A), to.into(), (1, 2), 0, &payload);
    // NEEDS_CSUM, GSO_UDP_L4; headers of 28 bytes; the checksum begins behind 20, its field 6 further.
    frame[..8].copy_from_slice(&[[1, 5, 28, 0], [0, 0, 20, 0]].concat());
    frame[4..6].copy_from_slice(&size.to_le_bytes());
    frame[8..10].copy_from_slice(&[6, 0]);
    frame
}

/// Invariants 6 and 9: a batch is stopped with frames left, and all trains that wait are the slow peer's.
#[test]
fn the_rest_of_a_batch_leaves_when_a_slow_peer_gets_its_socket() {
    let hosts = Hosts::with_buffers(100 << 10);
    to_b(&hosts, 0);
    hosts.pair.inject(A, datagram(SLOW_INNER, 0));
    wait_until("a session with c", || hosts.tun_c.take().is_some());
    // 1. While the shard sends, the next batch gathers: more trains for C than may wait, and last a
    //    datagram for B.
    hosts.path.holds.store(true, Ordering::SeqCst);
    hosts.pair.inject(A, datagram(SLOW_INNER, 1));
    std::thread::sleep(Duration::from_millis(100));
    hosts.path.stuck.store(true, Ordering::SeqCst);
    for size in [[300; 6].as_slice(), &[10; 45]].concat() {
        hosts.pair.inject(A, gso_datagrams(SLOW_INNER, 64, size));
    }
    let last = datagram([10, 0, 0, 2], 1);
    hosts.pair.inject(A, last.clone());
    // 2. The first of them fill the socket.
    hosts.path.holds.store(false, Ordering::SeqCst);
    wait_until("C has a socket of its own", || {
        hosts.path.opened.load(Ordering::SeqCst) > 0
    });
    assert_eq!(hosts.pair.delivered(B, 1), segments(&last));
}

/// Its local TCP had better wait than lose segments.
#[test]
fn a_single_peer_gets_no_socket_of_its_own() {
    let path = Arc::new(Path::default());
    let of_a = Arc::clone(&path);
    let pair = EnginePair::with_sockets(Options::default(), move |_, socket| {
        let socket = Buffered::new(socket, Arc::clone(&of_a));
        socket.set_send_buffer(1 << 20);
        socket
    });
    pair.inject(A, datagram([10, 0, 0, 2], 0));
    assert_eq!(pair.delivered(B, 1).len(), 1);
    let status = pair.sides[A].interface.get().expect("it runs");
    assert_eq!(status.peers.len(), 1);
    // Its socket takes nothing from now on, for longer than a slow path takes to be found.
    path.stuck.store(true, Ordering::SeqCst);
    let at_slow = DeviceChange {
        peers: vec![PeerChange {
            endpoint: Some(slow()),
            ..PeerChange::new(public(B))
        }],
        ..DeviceChange::default()
    };
    pair.sides[A]
        .interface
        .set(at_slow)
        .expect("a right configuration");
    let tun = &pair.sides[A].tun;
    wait_until("the TUN is left alone", || {
        let before = tun.refused();
        for n in 0..2000 {
            tun.inject(datagram([10, 0, 0, 2], n));
        }
        std::thread::sleep(Duration::from_millis(20));
        tun.refused() - before == 2000
    });
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(path.opened.load(Ordering::SeqCst), 0);
    assert_eq!(pair.drops(A, "slow_path"), 0);
}
