//! Several threads receive for one interface, each from a socket of its own, and pause anywhere:
//! nothing goes missing, and none is doubled or reordered. Debug builds can pause threads.
//!
//! ```text
//!   leaf 1, leaf 2 … → network → receive queue 0, receive queue 1 … → gateway → TunEnd
//! ```

#![cfg(debug_assertions)]

#[allow(dead_code, reason = "each test file uses a part of this")]
mod common;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use adit_engine::{
    Engine, Interface, MemPlatform, Policy, Resume, Sockets, ThreadSettings, importer,
};
use adit_io::testing::mem::{self, MemNetwork, MemTun, MemUdp, TunEnd};
use adit_io::udp::UdpState;
use adit_io::{Grace, Offloads, RecvBatch, SendReport, Transmit, UdpSocket};
use adit_proto::Time;
use adit_proto::config::{DeviceChange, PeerStatus};
use common::star::{address, configuration, inner, public};
use common::{segments, udp_frame};

const LEAVES: u8 = 6;
const FLOWS: u16 = 2;
/// Of each leaf: the rings in memory have room for those of all.
const IN_FLIGHT: u32 = 150;
const SHARDS: usize = 3;
/// The next power of two.
const RX_QUEUES: usize = 4;

/// A socket of the gateway, which two engines can have, as two processes have one of the kernel.
#[derive(Clone)]
struct Socket {
    device: Arc<MemUdp>,
    v6: bool,
    /// Messages that it received.
    received: Arc<AtomicUsize>,
    all: Arc<Mutex<Vec<Socket>>>,
}

impl Socket {
    fn new(device: MemUdp, all: &Arc<Mutex<Vec<Self>>>) -> Self {
        let socket = Self {
            v6: device.local_addr().is_ipv6(),
            device: Arc::new(device),
            received: Arc::default(),
            all: Arc::clone(all),
        };
        all.lock().expect("no panic").push(socket.clone());
        socket
    }
}

impl UdpSocket for Socket {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        self.device.send(trains, report)
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        doze();
        self.device.recv(batch)?;
        self.received.fetch_add(batch.len(), Ordering::Relaxed);
        Ok(())
    }

    fn further(&self, more: usize) -> io::Result<Vec<Self>> {
        let sockets = self.device.further(more)?.into_iter();
        Ok(sockets.map(|device| Self::new(device, &self.all)).collect())
    }

    fn spread(&self, over: usize) -> io::Result<Grace> {
        let grace = self.device.spread(over);
        // Data arrives in other receive queues, and nobody knows it yet.
        std::thread::sleep(Duration::from_millis(2));
        grace
    }

    fn state(&self) -> UdpState {
        self.device.state()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.device.fd()
    }
}

/// One call in some sleeps for up to 2 ms, and a few of those for 10.
fn doze() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let random = call.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    if random.is_multiple_of(8) {
        let long = (random / 8).is_multiple_of(32);
        let micros = if long { 10_000 } else { random % 2000 };
        std::thread::sleep(Duration::from_micros(micros as u64));
    }
}

/// What pauses threads is there once for the process.
static ALONE: Mutex<()> = Mutex::new(());

type Threads = Engine<Arc<MemTun>, MemPlatform<Socket>>;

struct Leaf {
    // First: it uses the other.
    _interface: Interface,
    tun: TunEnd,
    sent: [u32; FLOWS as usize],
    /// The next number of each flow at the gateway.
    next: [u32; FLOWS as usize],
    /// When something last arrived, or was sent all the same.
    last: Instant,
}

impl Leaf {
    fn send(&mut self, number: u8, flow: u16) {
        let sent = &mut self.sent[usize::from(flow)];
        let payload = sent.to_be_bytes();
        *sent += 1;
        let frame = udp_frame(inner(number), inner(0), (flow, 9), 0, &payload);
        assert!(self.tun.inject(frame), "the ring is full");
    }
}

struct Field {
    gateway: Interface,
    engine: Threads,
    tun: Arc<MemTun>,
    written: TunEnd,
    sockets: Arc<Mutex<Vec<Socket>>>,
    network: MemNetwork,
    leaves: Vec<Leaf>,
    arrived: u32,
    _alone: MutexGuard<'static, ()>,
}

/// Packets of a leaf that have not arrived.
fn in_flight(leaf: &Leaf) -> u32 {
    leaf.sent.iter().sum::<u32>() - leaf.next.iter().sum::<u32>()
}

fn engine() -> Threads {
    let settings = ThreadSettings {
        policy: Policy::Auto,
        ..ThreadSettings::from(SHARDS)
    };
    Engine::with(&settings).expect("an engine")
}

impl Field {
    fn new() -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            adit_engine::progress::assume_idle_cpus();
            adit_engine::progress::pause_with(|_| doze());
        });
        let (network, sockets) = (MemNetwork::new(), Arc::default());
        let (tun, written) = mem::tun().expect("a TUN");
        let (tun, engine) = (Arc::new(tun), engine());
        let platform = host(&network, &sockets);
        let gateway = engine.add(Arc::clone(&tun), platform, Offloads::ALL);
        let gateway = gateway.expect("an interface");
        let change = configuration(0, 1..=LEAVES);
        gateway.set(change).expect("a right configuration");
        let of_leaves = Engine::start(1).expect("an engine");
        let leaf = |number| {
            let (tun, end) = mem::tun().expect("a TUN");
            let platform = MemPlatform::new(&network, address(number)).expect("a host");
            let interface = of_leaves.add(tun, platform.with_gso(false), Offloads::ALL);
            let interface = interface.expect("an interface");
            let change = configuration(number, std::iter::once(0));
            interface.set(change).expect("a right configuration");
            Leaf {
                _interface: interface,
                tun: end,
                sent: [0; FLOWS as usize],
                next: [0; FLOWS as usize],
                last: Instant::now(),
            }
        };
        let mut field = Self {
            leaves: (1..=LEAVES).map(leaf).collect(),
            gateway,
            engine,
            tun,
            written,
            sockets,
            network,
            arrived: 0,
            _alone: alone,
        };
        // Few packets wait for a handshake.
        while field.leaves.iter().any(|leaf| leaf.next == [0; 2]) {
            field.go_on(field.arrived + 1, 1);
        }
        field
    }

    /// Sends what may be in flight, and takes what arrives, until so many more packets have arrived.
    fn exchange(&mut self, packets: u32) {
        self.go_on(self.arrived + packets, IN_FLIGHT);
    }

    /// Until all that was sent has arrived, but for what the share of a peer did not allow.
    fn exchange_rest(&mut self) {
        let sent = self.leaves.iter().flat_map(|leaf| leaf.sent).sum::<u32>();
        let mut last = Instant::now();
        while self.arrived + self.over_share() < sent {
            assert!(last.elapsed() < Duration::from_secs(20), "some are missing");
            if self.take_all() {
                last = Instant::now();
            }
        }
    }

    fn go_on(&mut self, until: u32, may_be_in_flight: u32) {
        let mut last = Instant::now();
        while self.arrived < until {
            assert!(last.elapsed() < Duration::from_secs(20), "nothing arrives");
            for (number, leaf) in (1..).zip(&mut self.leaves) {
                while in_flight(leaf) < may_be_in_flight {
                    let flow = u16::try_from(in_flight(leaf) / 7).expect("few") % FLOWS;
                    leaf.send(number, flow);
                }
                // What was lost of a flow is known by what comes after it.
                if leaf.last.elapsed() > Duration::from_millis(200) {
                    (0..FLOWS).for_each(|flow| leaf.send(number, flow));
                    leaf.last = Instant::now();
                }
            }
            if self.take_all() {
                last = Instant::now();
            }
        }
        self.over_share();
    }

    /// Takes what has arrived. Whether anything has.
    fn take_all(&mut self) -> bool {
        let before = self.arrived;
        while let Some(frame) = self.written.take() {
            for packet in segments(&frame) {
                self.take(&packet);
            }
        }
        self.arrived > before
    }

    fn take(&mut self, packet: &[u8]) {
        let (host, udp) = (packet[15] - 1, &packet[20..]);
        let flow = u16::from_be_bytes([udp[0], udp[1]]);
        let number = u32::from_be_bytes(udp[8..12].try_into().expect("four bytes"));
        let leaf = &mut self.leaves[usize::from(host - 1)];
        leaf.last = Instant::now();
        let next = &mut leaf.next[usize::from(flow)];
        assert!(number >= *next, "{number} after {next} of {flow} of {host}");
        *next = number + 1;
        self.arrived += 1;
    }

    /// Packets that were dropped because a queue stood. None is for any other reason.
    fn over_share(&self) -> u32 {
        let drops = self.gateway.report().drops;
        let others = drops.iter().filter(|(reason, _)| *reason != "over_share");
        for (reason, count) in others {
            assert_eq!(*count, 0, "{reason}");
        }
        let over_share = drops.iter().find(|(reason, _)| *reason == "over_share");
        u32::try_from(over_share.expect("a reason").1).expect("few")
    }

    /// How many receive queues there are.
    fn rx_queues(&self) -> usize {
        self.gateway.report().rx_queues.len().max(1)
    }

    /// Messages that the sockets for IPv4 received, by receive queue.
    fn received(&self) -> Vec<usize> {
        let sockets = self.sockets.lock().expect("no panic");
        let v4 = sockets.iter().filter(|socket| !socket.v6);
        v4.map(|it| it.received.load(Ordering::Relaxed)).collect()
    }

    /// Until all receive queues that there may be have received.
    fn exchange_over_all_rx_queues(&mut self) {
        let begun = Instant::now();
        let is_spread =
            |received: &[usize]| received.len() == RX_QUEUES && received.iter().all(|it| *it > 100);
        while !is_spread(&self.received()) {
            let received = self.received();
            assert!(begun.elapsed() < Duration::from_secs(60), "{received:?}");
            self.exchange(1000);
        }
    }

    /// The receive queue of each leaf.
    fn rx_queues_of_leaves(&self) -> Vec<Option<u8>> {
        let status = self.gateway.get().expect("it runs");
        let rx_queue = |leaf| {
            let of_leaf = |peer: &&PeerStatus| peer.public_key == public(leaf);
            status
                .peers
                .iter()
                .find(of_leaf)
                .and_then(|peer| peer.rx_queue)
        };
        (1..=LEAVES).map(rx_queue).collect()
    }

    /// Has all leaves rekey, half of them from the gateway, and exchanges until they have.
    fn rekey(&mut self) {
        let sessions = |field: &Self| {
            let handshakes = field.gateway.report().handshakes;
            handshakes.confirmed + handshakes.responses_accepted
        };
        let until = sessions(self) + u64::from(LEAVES);
        let begun = Instant::now();
        while sessions(self) < until {
            assert!(begun.elapsed() < Duration::from_secs(60), "no handshake");
            for (number, leaf) in (1..).zip(&self.leaves) {
                let due = match number % 2 {
                    0 => self.gateway.probe(public(number)),
                    _ => leaf._interface.probe(public(0)),
                };
                assert!(due.is_some(), "they are peers");
            }
            self.exchange(300);
        }
    }

    /// Another engine goes on with the gateway.
    fn hand_over(&mut self) {
        self.gateway.pause(Duration::from_secs(5)).expect("a pause");
        let mut import = importer();
        let state = self
            .gateway
            .export(|record| import.take(&record).map_err(io::Error::other))
            .expect("its state");
        let device = import.finish(Time::default()).expect("a device");
        let handed = self.gateway.sockets().expect("its sockets");
        let mut sockets = Sockets::new(None, None, address(0).port());
        // The kernel's descriptors would be as good.
        for v6 in [false, true] {
            let known = self.sockets.lock().expect("no panic").clone();
            let known: Vec<_> = known.into_iter().filter(|it| it.v6 == v6).collect();
            assert_eq!(known.len(), handed.iter().filter(|it| it.v6 == v6).count());
            known.into_iter().for_each(|it| sockets.add(v6, it));
        }
        let (engine, platform) = (engine(), host(&self.network, &self.sockets));
        let tun = Arc::clone(&self.tun);
        let taken = engine.take_over(tun, platform, Offloads::ALL, device, &state, sockets);
        let taken = taken.expect("an interface");
        taken.resume(Resume::AsItWas);
        // The old process ends without a word to anybody.
        self.gateway = taken;
        self.engine = engine;
    }
}

fn host(network: &MemNetwork, sockets: &Arc<Mutex<Vec<Socket>>>) -> MemPlatform<Socket> {
    let sockets = Arc::clone(sockets);
    let platform = MemPlatform::new(network, address(0)).expect("a host");
    platform.with_sockets(move |device| Socket::new(device, &sockets))
}

/// Threads pause with what they took, in a receive, and while the sockets are split.
#[test]
fn peers_are_spread_over_sockets_and_flows_keep_their_order() {
    for _ in 0..3 {
        let mut field = Field::new();
        field.exchange_over_all_rx_queues();
        field.exchange(5000);
        field.exchange_rest();
        let in_rx_queues: HashMap<_, _> = field.received().into_iter().enumerate().collect();
        assert!(
            in_rx_queues[&1] > 1000 && in_rx_queues[&3] > 500,
            "{in_rx_queues:?}"
        );
        let report = field.gateway.report();
        assert_eq!(report.rx_queues.len(), RX_QUEUES);
        assert_eq!(
            report.rx_queues.iter().sum::<u64>(),
            report.inbound.contents
        );
    }
}

#[test]
fn rx_queues_pause_and_go_on_without_a_loss() {
    let mut field = Field::new();
    field.exchange_over_all_rx_queues();
    for round in 0..20 {
        field.exchange(200 + 10 * round);
        let patience = Duration::from_secs(5);
        field.gateway.pause(patience).expect("a pause");
        field.gateway.resume(Resume::AsItWas);
    }
    field.exchange(1000);
    field.exchange_rest();
}

#[test]
fn rx_queues_are_handed_over_without_a_loss() {
    let mut field = Field::new();
    field.exchange_over_all_rx_queues();
    for _ in 0..4 {
        field.exchange(1000);
        field.hand_over();
        field.exchange(1000);
        assert!(field.received().len() == RX_QUEUES, "they stay as they are");
    }
    field.exchange_rest();
}

#[test]
fn threads_and_policy_change_while_there_are_rx_queues() {
    let mut field = Field::new();
    field.exchange_over_all_rx_queues();
    let settings = [
        (1, Policy::Inline),
        (4, Policy::Pipeline),
        (2, Policy::Auto),
        (1, Policy::Auto),
        (3, Policy::Pipeline),
    ];
    for round in 0..20 {
        let (shards, policy) = settings[round % settings.len()];
        field.engine.set_threads(shards, policy).expect("threads");
        field.exchange(500);
    }
    field.exchange_rest();
}

/// Each change is waited for while packets flow, and some datagrams are on their way for long.
#[test]
fn rx_queues_follow_the_number_of_shards_without_a_loss() {
    let mut field = Field::new();
    field.network.delay(doze);
    let changes = [
        (2, Policy::Auto, 2),
        (8, Policy::Auto, 8),
        (3, Policy::Auto, 4),
        (1, Policy::Auto, 1),
        (5, Policy::Auto, 8),
        (2, Policy::Auto, 2),
        (4, Policy::Auto, 4),
        (4, Policy::Inline, 1),
        (4, Policy::Auto, 4),
        (4, Policy::Pipeline, 1),
    ];
    for round in 0..50 {
        let (shards, policy, rx_queues) = changes[round % changes.len()];
        field.engine.set_threads(shards, policy).expect("threads");
        let begun = Instant::now();
        while field.rx_queues() != rx_queues {
            let is = field.rx_queues();
            assert!(
                begun.elapsed() < Duration::from_secs(30),
                "{is} of {rx_queues}"
            );
            field.exchange(100);
        }
        field.exchange(100);
    }
    field.exchange_rest();
    let received = field.received();
    assert_eq!(received.len(), 8, "they are used again");
}

/// All data of a peer arrives in one receive queue, so that none of its new session overtakes that of the one before.
#[test]
fn peers_rekey_and_flows_keep_their_order() {
    let mut field = Field::new();
    field.network.delay(doze);
    field.exchange_over_all_rx_queues();
    let before = field.rx_queues_of_leaves();
    for _ in 0..6 {
        field.rekey();
        assert_eq!(field.rx_queues_of_leaves(), before);
    }
    field.exchange_rest();
}

#[test]
fn peers_rekey_while_rx_queues_pause_and_change() {
    let mut field = Field::new();
    field.exchange_over_all_rx_queues();
    let before = field.rx_queues_of_leaves();
    for _ in 0..3 {
        field.rekey();
        for _ in 0..10 {
            let patience = Duration::from_secs(5);
            field.gateway.pause(patience).expect("a pause");
            field.gateway.resume(Resume::AsItWas);
            field.exchange(50);
        }
        // Two receive queues, and then four again, which takes load.
        for shards in [2, SHARDS] {
            let threads = field.engine.set_threads(shards, Policy::Auto);
            threads.expect("threads");
            let begun = Instant::now();
            field.rekey();
            while field.rx_queues() != shards.next_power_of_two() {
                let is = field.rx_queues();
                let elapsed = begun.elapsed();
                assert!(elapsed < Duration::from_secs(30), "{is} of {shards}");
                field.exchange(100);
            }
        }
        assert_eq!(field.rx_queues_of_leaves(), before);
    }
    field.hand_over();
    field.exchange(1000);
    field.exchange_rest();
    assert_eq!(field.rx_queues_of_leaves(), before);
}

/// Another port has sockets of its own, in one receive queue until they are split.
#[test]
fn sockets_that_are_replaced_are_split_again() {
    let mut field = Field::new();
    for port in 51_821..51_824 {
        field.exchange_over_all_rx_queues();
        field.exchange_rest();
        field.sockets.lock().expect("no panic").clear();
        let change = DeviceChange {
            listen_port: Some(port),
            ..DeviceChange::default()
        };
        field.gateway.set(change).expect("a free port");
        // The leaves learn of it, once nothing leaves from the one before.
        let before = SocketAddr::new(address(0).ip(), port - 1);
        let begun = Instant::now();
        while field.network.bind(before, false).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(5), "it is kept");
            std::thread::sleep(Duration::from_millis(1));
        }
        for (number, leaf) in (1..).zip(&field.leaves) {
            let frame = udp_frame(inner(0), inner(number), (9, 9), 0, &[0; 4]);
            assert!(field.written.inject(frame), "the ring is full");
            let begun = Instant::now();
            while leaf.tun.take().is_none() {
                assert!(begun.elapsed() < Duration::from_secs(5), "no answer");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(field.received().len(), 1);
    }
}
