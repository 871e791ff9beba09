//! Several threads process the queues of one interface, by each policy, and pause anywhere: nothing
//! is lost, doubled or reordered. Debug builds can pause threads.

#![cfg(debug_assertions)]

#[allow(dead_code, reason = "each test file uses a part of this")]
mod common;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use adit_engine::{Engine, MemPlatform, Policy, ThreadSettings};
use adit_io::testing::mem::{MemNetwork, MemTun, MemUdp};
use adit_io::{FrameBatch, RecvBatch, SendReport, Transmit, TunQueue, UdpSocket};
use common::{A, B, EnginePair, Options, inner_ip, inner_net, segments, udp_frame};

const FLOWS: u16 = 8;
/// Packets that the rings of the network in memory have room for.
const IN_FLIGHT: usize = 600;

/// Numbered datagrams of many lengths, in several flows.
struct Sender {
    side: usize,
    sent: Vec<u32>,
}

impl Sender {
    fn next(&mut self) -> Vec<u8> {
        let all: u32 = self.sent.iter().sum();
        let flow = (all * 5 + all / 7) % u32::from(FLOWS);
        let number = &mut self.sent[flow as usize];
        let mut payload = number.to_be_bytes().to_vec();
        payload.resize(4 + (all as usize * 37) % 1300, 0);
        *number += 1;
        let port = u16::try_from(flow).expect("few flows");
        // Two flows between each two hosts.
        let host = u8::try_from(flow / 2).expect("few flows");
        udp_frame(
            inner_net(self.side, host),
            inner_net(1 - self.side, 3 * host),
            (port, 9),
            0,
            &payload,
        )
    }
}

/// The next number of each flow.
#[derive(Default)]
struct Receiver {
    next: HashMap<u16, u32>,
    received: usize,
}

impl Receiver {
    fn take(&mut self, packet: &[u8]) {
        let udp = &packet[20..];
        let flow = u16::from_be_bytes([udp[0], udp[1]]);
        let number = u32::from_be_bytes(udp[8..12].try_into().expect("four bytes"));
        let next = self.next.entry(flow).or_default();
        assert_eq!(number, *next, "of flow {flow}");
        *next += 1;
        self.received += 1;
    }
}

/// Which thread last read the TUN of a pair's side.
type Readers = Arc<Mutex<BTreeMap<(usize, u8), String>>>;

/// A device whose calls take long now and then, as if the scheduler had stopped the thread.
struct Disturbed<D> {
    device: D,
    pauses: bool,
    of: (usize, u8),
    readers: Readers,
}

impl<D> Disturbed<D> {
    fn doze(&self) {
        if self.pauses {
            doze(256);
        }
    }
}

impl TunQueue for Disturbed<MemTun> {
    fn read_batch(&self, batch: &mut FrameBatch) -> io::Result<bool> {
        batch.fill(|buf| {
            self.doze();
            let read = self.device.read(buf)?;
            let this = std::thread::current();
            let name = this.name().expect("a shard has a name").to_owned();
            self.readers.lock().expect("no panic").insert(self.of, name);
            Ok(read)
        })
    }

    fn write(&self, frame: &[IoSlice<'_>]) -> io::Result<()> {
        self.doze();
        self.device.write(frame)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.device.fd()
    }
}

impl UdpSocket for Disturbed<MemUdp> {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        self.doze();
        self.device.send(trains, report)
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        self.doze();
        self.device.recv(batch)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.device.fd()
    }
}

/// One call in so many sleeps for up to 2 ms, and a few of those for 30.
fn doze(one_in: usize) {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let random = call.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    if random.is_multiple_of(one_in) {
        let long = (random / one_in).is_multiple_of(32);
        let micros = if long { 30_000 } else { random % 2000 };
        std::thread::sleep(Duration::from_micros(micros as u64));
    }
}

/// One batch in so many is held up.
static ONE_IN: AtomicUsize = AtomicUsize::new(16);
/// The next batch that a thread takes waits until this is false.
static HOLD: AtomicBool = AtomicBool::new(false);
/// Threads that wait for that.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// Has threads help though the machine is busy, and pause with what they have taken.
fn disturb_threads() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        adit_engine::progress::assume_idle_cpus();
        adit_engine::progress::pause_with(|_| {
            doze(ONE_IN.load(Ordering::Relaxed));
            if HOLD.load(Ordering::Acquire) && HELD.fetch_add(1, Ordering::AcqRel) == 0 {
                while HOLD.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                HELD.store(0, Ordering::Release);
            }
        });
    });
}

type Threads = Engine<Disturbed<MemTun>, MemPlatform<Disturbed<MemUdp>>>;

/// Two engines with some pairs of interfaces between them.
struct Field {
    flows: Vec<Traffic>,
    readers: Readers,
    engines: [Threads; 2],
    _alone: MutexGuard<'static, ()>,
}

/// What pauses threads is there once for the process.
static ALONE: Mutex<()> = Mutex::new(());

/// What goes to and fro between a pair.
struct Traffic {
    pair: EnginePair,
    senders: [Sender; 2],
    receivers: [Receiver; 2],
    sent: usize,
}

impl Field {
    fn new(pairs: u8, (shards, policy): (usize, Policy), pauses: bool) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        disturb_threads();
        let settings = ThreadSettings {
            policy,
            ..ThreadSettings::from(shards)
        };
        let engines = [A, B].map(|_| Threads::with(&settings).expect("an engine"));
        let (network, readers) = (MemNetwork::new(), Readers::default());
        let traffic = |pair| {
            let (of_tuns, of_sockets) = (Arc::clone(&readers), Arc::clone(&readers));
            let pair = EnginePair::on(
                &engines,
                &network,
                pair,
                Options::default(),
                |side, device| Disturbed {
                    device,
                    pauses,
                    of: (side, pair),
                    readers: Arc::clone(&of_tuns),
                },
                move |side, device| Disturbed {
                    device,
                    pauses,
                    of: (side, pair),
                    readers: Arc::clone(&of_sockets),
                },
            );
            Traffic::new(pair)
        };
        Self {
            flows: (0..pairs).map(traffic).collect(),
            readers,
            engines,
            _alone: alone,
        }
    }

    fn exchange(mut self, packets: usize) {
        self.go_on(packets, |_, _| ());
        self.check();
    }

    /// Until so many packets have arrived at each side since the start. `disturb` hears how many have
    /// been sent.
    fn go_on(&mut self, packets: usize, mut disturb: impl FnMut(&[Threads; 2], usize)) {
        let mut last = Instant::now();
        while self.flows.iter().any(|flow| flow.arrived() < packets) {
            assert!(last.elapsed() < Duration::from_secs(20), "nothing arrives");
            for flow in &mut self.flows {
                if flow.step(packets) {
                    last = Instant::now();
                }
            }
            disturb(&self.engines, self.flows[0].sent);
        }
    }

    /// Nothing was dropped, nor refused as seen before.
    fn check(&self) {
        for flow in &self.flows {
            for side in [A, B] {
                for (reason, count) in flow.pair.sides[side].interface.report().drops {
                    assert_eq!(count, 0, "{reason} of {side}");
                }
            }
        }
    }

    /// The threads of one side that read TUNs since the last call, each with how many.
    fn readers(&self, side: usize) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for ((of, _), thread) in std::mem::take(&mut *self.readers.lock().expect("no panic")) {
            if of == side {
                *counts.entry(thread).or_default() += 1;
            }
        }
        counts
    }
}

impl Traffic {
    fn new(pair: EnginePair) -> Self {
        // The handshake.
        for side in [A, B] {
            let frame = udp_frame(inner_ip(side), inner_ip(1 - side), (99, 99), 0, &[0; 4]);
            pair.inject(side, frame);
            assert_eq!(pair.delivered(1 - side, 1).len(), 1);
        }
        Self {
            pair,
            senders: [A, B].map(|side| Sender {
                side,
                sent: vec![0; usize::from(FLOWS)],
            }),
            receivers: [A, B].map(|_| Receiver::default()),
            sent: 0,
        }
    }

    fn arrived(&self) -> usize {
        let arrived = self.receivers.iter().map(|receiver| receiver.received);
        arrived.min().unwrap_or(0)
    }

    /// Sends what may be sent, and takes what has arrived. Whether anything has.
    fn step(&mut self, packets: usize) -> bool {
        while self.sent < packets && self.sent < self.arrived() + IN_FLIGHT {
            for sender in &mut self.senders {
                self.pair.inject(sender.side, sender.next());
            }
            self.sent += 1;
        }
        self.take()
    }

    fn take(&mut self) -> bool {
        let mut arrived = false;
        for side in [A, B] {
            for frame in self.pair.delivered_now(side) {
                for packet in segments(&frame) {
                    self.receivers[side].take(&packet);
                }
                arrived = true;
            }
        }
        arrived
    }
}

#[test]
fn flows_keep_their_order_with_one_thread_for_each_interface() {
    Field::new(1, (1, Policy::Inline), false).exchange(5_000);
}

#[test]
fn flows_keep_their_order_when_others_encrypt() {
    Field::new(1, (3, Policy::Pipeline), false).exchange(20_000);
}

#[test]
fn flows_keep_their_order_when_idle_threads_join() {
    let mut field = Field::new(1, (3, Policy::Auto), false);
    // Where other programs have the CPUs, it takes longer until something waits often enough.
    let joined = (1..=20).any(|turn| {
        field.go_on(20_000 * turn, |_, _| ());
        let report = field.flows[0].pair.sides[A].interface.report();
        report.outbound.helped > 0
    });
    assert!(joined, "none joined");
    field.check();
}

/// There is no other thread that could do the work.
#[test]
fn a_pipeline_without_further_threads_does_all_itself() {
    Field::new(1, (1, Policy::Pipeline), false).exchange(2_000);
}

/// With a batch, under the take lock and under the commit lock.
#[test]
fn threads_that_pause_anywhere_lose_and_reorder_nothing() {
    for threads in [4, 9] {
        for policy in [Policy::Auto, Policy::Pipeline] {
            Field::new(2, (threads, policy), true).exchange(10_000);
        }
    }
}

/// Batches are split among more and fewer commit locks, with any workers.
#[test]
fn threads_that_commit_at_once_lose_and_reorder_nothing() {
    let mut field = Field::new(2, (4, Policy::Auto), true);
    let mut packets = 0;
    for threads in [2, 8, 1, 4, 1, 2] {
        adit_engine::progress::commit_as_by(threads);
        let before = adit_engine::progress::splits();
        // Beside other programs batches may be too short to be split for a while.
        let are_as_wanted = (0..10).any(|_| {
            packets += 3_000;
            field.go_on(packets, |_, _| ());
            let now = adit_engine::progress::splits();
            let many = [0, 1].map(|direction| now[direction] - before[direction] > 100);
            many == [threads > 1; 2]
        });
        assert!(are_as_wanted, "splits where {threads} threads commit");
    }
    adit_engine::progress::commit_as_by(0);
    field.check();
}

/// Both ways together, by each policy; the number in SPEC.md.
#[test]
#[ignore = "takes an hour; ADIT_DATAGRAMS says how many"]
fn a_hundred_million_datagrams_keep_their_order() {
    let datagrams = std::env::var("ADIT_DATAGRAMS").map_or(Ok(100_000_000), |all| all.parse());
    let datagrams: usize = datagrams.expect("a number");
    let each_way = datagrams.div_ceil(2);
    ONE_IN.store(1024, Ordering::Relaxed);
    for policy in [Policy::Inline, Policy::Pipeline, Policy::Auto] {
        let begun = Instant::now();
        Field::new(1, (3, policy), false).exchange(each_way);
        println!(
            "{policy:?}: {} datagrams in order, {:.0?}",
            2 * each_way,
            begun.elapsed()
        );
    }
}

#[test]
fn threads_and_policy_change_under_load_without_a_loss() {
    let settings = [
        (4, Policy::Pipeline),
        (1, Policy::Inline),
        (3, Policy::Auto),
        (1, Policy::Pipeline),
        (4, Policy::Auto),
        (2, Policy::Inline),
        (2, Policy::Pipeline),
    ];
    let mut field = Field::new(3, (2, Policy::Auto), true);
    let mut changes = 0;
    field.go_on(15_000, |engines, sent| {
        if sent / 200 > changes {
            changes = sent / 200;
            for (side, engine) in engines.iter().enumerate() {
                let (shards, policy) = settings[(changes + side) % settings.len()];
                engine.set_threads(shards, policy).expect("threads");
                assert_eq!(engine.threads(), (shards, policy));
            }
        }
    });
    assert!(changes >= 50);
    field.check();
    let refused = field.engines[A].set_threads(0, Policy::Auto);
    let error = refused.expect_err("some thread has to do it");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

/// The "black hole": all packets arrive on one CPU, and their tunnels pile up there.
#[test]
fn tunnels_do_not_pile_up_on_one_thread() {
    let mut field = Field::new(8, (4, Policy::Inline), false);
    let mut until = 0;
    let mut spread = |field: &mut Field| {
        until += 300;
        // Those that still had something may have read it before they moved.
        field.go_on(until, |_, _| ());
        field.readers(A);
        until += 300;
        field.go_on(until, |_, _| ());
        field.readers(A)
    };
    for (shards, tunnels) in [(4, 2), (2, 4), (1, 8), (3, 3), (4, 2)] {
        field.engines[A]
            .set_threads(shards, Policy::Inline)
            .expect("threads");
        let readers = spread(&mut field);
        assert_eq!(readers.len(), shards, "{readers:?}");
        let most = readers.values().max().copied();
        assert_eq!(most, Some(tunnels), "{readers:?}");
        let threads: BTreeSet<_> = readers.into_keys().collect();
        assert!(threads.iter().all(|name| name.starts_with("adit-shard-")));
    }
    field.check();
}

/// CVE-2026-52945: what is behind a head that is not done is done, its threads sleep, and nothing
/// further arrives. There, the peer stalled for good.
#[test]
fn a_queue_whose_head_was_late_goes_on_without_a_further_arrival() {
    for policy in [Policy::Pipeline, Policy::Auto] {
        let mut field = Field::new(2, (4, policy), false);
        for flow in &mut field.flows {
            flow.pair.delivered_now(A);
        }
        HOLD.store(true, Ordering::Release);
        let start = Instant::now();
        let first = &mut field.flows[0];
        let packets = first.sent + IN_FLIGHT;
        while HELD.load(Ordering::Acquire) == 0 {
            assert!(start.elapsed() < Duration::from_secs(10), "none is held");
            first.step(packets);
        }
        first.step(packets);
        // All other threads have done what there is to do, and sleep.
        std::thread::sleep(Duration::from_millis(100));
        first.take();
        assert!(first.arrived() < packets, "the head was late");
        HOLD.store(false, Ordering::Release);
        while first.arrived() < packets {
            assert!(start.elapsed() < Duration::from_secs(20), "it stands still");
            first.take();
        }
        field.check();
    }
}
