//! Interfaces of one engine: an event of one leaves the others alone.

#[allow(dead_code, reason = "each test file uses a part of this")]
mod common;

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use adit_engine::{Engine, StopReason};
use adit_io::testing::mem::{MemNetwork, MemTun, MemUdp};
use adit_io::{FrameBatch, RecvBatch, SendReport, Transmit, TunQueue, UdpSocket};
use adit_proto::config::{AllowedIpChange, Cidr, DeviceChange, PeerChange, PublicKey};
use adit_proto::wire::INITIATION_LEN;
use common::{A, B, EnginePair, Options, inner_ip, udp_frame};

/// Ends `shards` strong, joined by `count` pairs of interfaces.
fn pairs(shards: usize, count: u8) -> Vec<EnginePair> {
    let pair = disturbed(shards, Arc::default(), |tun, _| tun, |socket, _| socket);
    (0..count).map(pair).collect()
}

/// Makes pairs of interfaces whose devices and sockets have flags. That of side A of pair 0 is
/// `flag`, the others are never set.
fn disturbed<T: TunQueue + 'static, U: UdpSocket + 'static>(
    shards: usize,
    flag: Arc<AtomicBool>,
    wrap_tun: impl Fn(MemTun, Arc<AtomicBool>) -> T,
    wrap: impl Fn(MemUdp, Arc<AtomicBool>) -> U + Send + Clone + 'static,
) -> impl Fn(u8) -> EnginePair {
    let engines = [A, B].map(|_| Engine::start(shards).expect("an engine"));
    let network = MemNetwork::new();
    move |number| {
        let (flag, wrap) = (Arc::clone(&flag), wrap.clone());
        let flag = move |side| match (number, side) {
            (0, A) => Arc::clone(&flag),
            _ => Arc::default(),
        };
        let flag_of_tun = flag.clone();
        EnginePair::on(
            &engines,
            &network,
            number,
            Options::default(),
            |side, tun| wrap_tun(tun, flag_of_tun(side)),
            move |side, socket| wrap(socket, flag(side)),
        )
    }
}

/// A datagram that says which pair's it is.
fn datagram(from: usize, pair: u8, id: u16) -> Vec<u8> {
    let (src, dst) = (inner_ip(from), inner_ip(1 - from));
    udp_frame(src, dst, (1, 2), id, &[pair; 100])
}

/// Sends `count` datagrams each way; all arrive, in their order, at this pair and none at another.
fn exchange(pairs: &[EnginePair], numbers: &[usize], count: u16) {
    for from in [A, B] {
        for id in 0..count {
            for &number in numbers {
                let pair = u8::try_from(number).expect("few pairs");
                pairs[number].inject(from, datagram(from, pair, id));
            }
        }
        for &number in numbers {
            let arrived = pairs[number].delivered(1 - from, count.into());
            let pair = u8::try_from(number).expect("few pairs");
            let expected: Vec<_> = (0..count)
                .map(|id| datagram(from, pair, id)[adit_offload::VNET_HDR_LEN..].to_vec())
                .collect();
            assert!(
                arrived == expected,
                "pair {number} from {from}: {} packets",
                arrived.len()
            );
        }
    }
}

#[test]
fn each_interface_of_an_engine_carries_its_own_packets() {
    for shards in [1, 2, 3] {
        exchange(&pairs(shards, 3), &[0, 1, 2], 100);
    }
}

#[test]
fn an_interface_that_ends_leaves_the_others_alone() {
    for shards in [1, 2] {
        let pairs = pairs(shards, 3);
        exchange(&pairs, &[0, 1, 2], 10);
        for side in [A, B] {
            let interface = &pairs[1].sides[side].interface;
            interface.stop();
            assert!(matches!(interface.wait(), StopReason::Asked));
            assert!(interface.get().is_err());
        }
        exchange(&pairs, &[0, 2], 10);
    }
}

#[test]
fn an_interface_can_be_added_to_a_running_engine_and_removed() {
    let engines = [A, B].map(|_| Engine::start(2).expect("an engine"));
    let network = MemNetwork::new();
    let add = |number| {
        let options = Options::default();
        EnginePair::on(
            &engines,
            &network,
            number,
            options,
            |_, tun| tun,
            |_, socket| socket,
        )
    };
    let mut pairs = vec![add(0)];
    for round in 0..20 {
        pairs.push(add(1));
        exchange(&pairs, &[0, 1], 10);
        let removed = pairs.pop().expect("two pairs");
        for (side, end) in removed.sides.into_iter().enumerate() {
            let (told, ended) = std::sync::mpsc::channel();
            end.interface
                .on_end(move || told.send(()).expect("the test listens"));
            drop(end.interface);
            assert_eq!(ended.recv(), Ok(()), "round {round}, side {side}");
        }
    }
}

/// A TUN that is deleted when its flag is set.
struct Deleted(MemTun, Arc<AtomicBool>);

impl Deleted {
    fn check(&self) -> io::Result<()> {
        match self.1.load(Ordering::Relaxed) {
            true => Err(io::Error::from_raw_os_error(gone())),
            false => Ok(()),
        }
    }
}

/// The errno of a TUN whose device is gone.
fn gone() -> i32 {
    rustix::io::Errno::BADFD.raw_os_error()
}

impl TunQueue for Deleted {
    fn read_batch(&self, batch: &mut FrameBatch) -> io::Result<bool> {
        self.check()?;
        self.0.read_batch(batch)
    }

    fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        self.check()?;
        self.0.write(pieces)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

#[test]
fn a_device_that_is_deleted_ends_its_interface_only() {
    let is_deleted = Arc::new(AtomicBool::new(false));
    let pair = disturbed(1, Arc::clone(&is_deleted), Deleted, |socket, _| socket);
    let pairs: Vec<_> = (0..2).map(pair).collect();
    exchange(&pairs, &[0, 1], 10);
    is_deleted.store(true, Ordering::Relaxed);
    pairs[0].inject(A, datagram(A, 0, 1));
    let reason = pairs[0].sides[A].interface.wait();
    assert!(matches!(reason, StopReason::InterfaceGone), "{reason:?}");
    exchange(&pairs, &[1], 10);
}

/// A socket that takes nothing while its flag is set.
struct Full(MemUdp, Arc<AtomicBool>);

impl UdpSocket for Full {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        match self.1.load(Ordering::Relaxed) {
            true => 0,
            false => self.0.send(trains, report),
        }
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        self.0.recv(batch)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

/// Invariant 9, between interfaces.
#[test]
fn a_full_socket_delays_only_its_interface_and_loses_nothing() {
    let is_full = Arc::new(AtomicBool::new(false));
    let pair = disturbed(1, Arc::clone(&is_full), |tun, _| tun, Full);
    let pairs: Vec<_> = (0..2).map(pair).collect();
    exchange(&pairs, &[0, 1], 10);
    is_full.store(true, Ordering::Relaxed);
    // More than one poll reads.
    for id in 0..1000 {
        pairs[0].inject(A, datagram(A, 0, id));
    }
    for _ in 0..20 {
        exchange(&pairs, &[1], 50);
    }
    assert!(pairs[0].delivered_now(B).is_empty());
    is_full.store(false, Ordering::Relaxed);
    let arrived = pairs[0].delivered(B, 1000);
    let expected = (0..1000).map(|id| datagram(A, 0, id)[adit_offload::VNET_HDR_LEN..].to_vec());
    assert!(arrived.into_iter().eq(expected));
}

/// A socket at which handshake messages arrive without end while its flag is set: each call gets
/// some. It counts the calls.
struct Flooded(MemUdp, Arc<AtomicBool>, Arc<AtomicUsize>);

impl UdpSocket for Flooded {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        self.0.send(trains, report)
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        if !self.1.load(Ordering::Relaxed) {
            return self.0.recv(batch);
        }
        self.2.fetch_add(1, Ordering::Relaxed);
        let mut initiation = [0; INITIATION_LEN];
        initiation[0] = 1;
        let from = std::net::SocketAddr::from(([203, 0, 113, 1], 1)).into();
        batch.clear();
        while batch.push(from, 0, INITIATION_LEN, &initiation) {}
        Ok(())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

#[test]
fn a_flooded_interface_leaves_the_handshakes_of_others_alone() {
    let is_flooded = Arc::new(AtomicBool::new(false));
    let calls = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&calls);
    let flooded = move |socket, flag| Flooded(socket, flag, Arc::clone(&count));
    let pair = disturbed(1, Arc::clone(&is_flooded), |tun, _| tun, flooded);
    let first = pair(0);
    is_flooded.store(true, Ordering::Relaxed);
    // The first datagram wakes the shard, which then finds more for ever.
    first.inject(B, datagram(B, 0, 1));
    let start = Instant::now();
    while calls.load(Ordering::Relaxed) < 100 {
        assert!(start.elapsed() < Duration::from_secs(10), "no flood");
        std::thread::sleep(Duration::from_millis(1));
    }
    let before = calls.load(Ordering::Relaxed);
    // New interfaces get their sessions meanwhile.
    let pairs = [first, pair(1), pair(2)];
    exchange(&pairs, &[1, 2], 50);
    assert!(
        calls.load(Ordering::Relaxed) > before,
        "the flood has ended"
    );
}

/// `count` silent peers with an allowed IP each.
fn silent(count: u32) -> DeviceChange {
    let sections = (0..count).map(|n| {
        let mut key = [1; 32];
        key[..4].copy_from_slice(&n.to_le_bytes());
        let block = Cidr::new((0xac10_0000 + n).to_be_bytes().into(), 32);
        PeerChange {
            allowed_ips: vec![AllowedIpChange::Add(block.expect("a prefix"))],
            ..PeerChange::new(PublicKey(key))
        }
    });
    DeviceChange {
        peers: sections.collect(),
        ..DeviceChange::default()
    }
}

/// The control thread makes a change of many peers in turns.
#[test]
fn many_peers_are_configured_while_others_shake_hands() {
    const PEERS: u32 = 20_000;
    let pairs = pairs(1, 2);
    let interface = &pairs[0].sides[A].interface;
    std::thread::scope(|scope| {
        let setting = scope.spawn(|| {
            for remove in [false, true, false, true] {
                let mut change = silent(PEERS);
                for peer in &mut change.peers {
                    peer.remove = remove;
                }
                interface.set(change).expect("a right configuration");
                // What a reader sees is what was before a change or after it.
                let peers = interface.get().expect("it runs").peers.len();
                let silent = if remove { 0 } else { PEERS };
                assert_eq!(peers, 1 + silent as usize);
            }
        });
        exchange(&pairs, &[0, 1], 10);
        setting.join().expect("no panic");
    });
    exchange(&pairs, &[0, 1], 10);
}
