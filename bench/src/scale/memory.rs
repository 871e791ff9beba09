//! The engine over devices in memory: how it scales by itself, without the kernel.
//!
//! ```text
//!   endless TUN → gateway → (counted)          outbound
//!   recorded datagrams → gateway → (counted)   inbound: the leaves sealed them before
//!   leaf 0, leaf 1 … ⇄ gateway                 handshakes, by a network in memory
//! ```

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use adit_engine::{Engine, Interface, MemPlatform, ThreadSettings};
use adit_io::testing::mem::{self, MemNetwork, TunEnd};
use adit_io::{Offloads, SendReport, Transmit, UdpSocket};
use adit_offload::{GSO_TCPV4, NEEDS_CSUM, VNET_HDR_LEN, VnetHdr};
use adit_proto::config::{AllowedIpChange, Cidr, DeviceChange, PeerChange, PublicKey, Secret};
use adit_proto::wire::DataHeader;
use adit_testbed::{interrupt, proc};

use super::devices::{Ends, QUEUES, Tun, Udp, address, lock};
use super::stages::{Clock, Clocked, StageCosts};
use crate::sandbox::Failure;

/// Payload of a TCP segment in a tunnel of the usual MTU.
const MSS: usize = 1368;
/// A full segment with the inner headers, which is 1,408 octets, as a datagram.
const DATAGRAM: u64 = 1408 + 32;
/// What is sent until the threads have settled.
const WARM_UP: Duration = Duration::from_millis(300);
const MEASURED: Duration = Duration::from_secs(1);
/// Of what is received, one part in so many until the threads have settled.
const SETTLING: usize = 3;
const LIMIT: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_micros(200);
const LOOK_SELDOM: Duration = Duration::from_millis(5);

/// Where packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Outbound,
    Inbound,
}

/// What came through.
pub(super) struct Rate {
    pub(super) gbps: f64,
    /// Seconds of CPU time for each GB.
    pub(super) cpu: f64,
    /// The share of the time in which threads were ready and other programs had the CPUs.
    pub(super) waited: f64,
}

fn inner(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 1 + host)
}

fn secret(host: u8) -> Secret {
    Secret::new(&[1 + host; 32])
}

fn public(host: u8) -> PublicKey {
    secret(host).public_key()
}

/// One interface.
struct Side {
    // First: it uses the others.
    interface: Interface,
    ends: Arc<Ends>,
    tun: TunEnd,
    clock: Arc<Clock>,
}

type Threads = Engine<Clocked<Tun>, MemPlatform<Clocked<Udp>>>;

impl Side {
    fn new(
        engine: &Threads,
        network: &MemNetwork,
        host: u8,
        peers: &[u8],
        segments: usize,
    ) -> Result<Self, Failure> {
        let ends = Arc::new(Ends {
            frames: peers
                .iter()
                .map(|peer| frame(host, *peer, segments))
                .collect(),
            ..Ends::default()
        });
        let (tun, end) = mem::tun()?;
        let clock = Arc::<Clock>::default();
        let of_socket = (Arc::clone(&ends), Arc::clone(&clock));
        let platform = MemPlatform::new(network, address(host))?
            .with_tun(end.clone())
            .with_sockets(move |device| {
                let (ends, clock) = &of_socket;
                let socket = Udp {
                    device,
                    ends: Arc::clone(ends),
                    rx_queue: 0,
                    rx_queues: Arc::new(AtomicUsize::new(1)),
                    further: AtomicUsize::new(0),
                    replayed: AtomicUsize::new(0),
                };
                Clocked(socket, Arc::clone(clock))
            });
        let tun = Clocked(Tun(tun, Arc::clone(&ends)), Arc::clone(&clock));
        let interface = engine.add(tun, platform, Offloads::ALL)?;
        let sections = peers.iter().map(|peer| {
            let block = Cidr::new(inner(*peer).into(), 32).ok_or("a wrong prefix")?;
            Ok(PeerChange {
                endpoint: Some(address(*peer)),
                allowed_ips: vec![AllowedIpChange::Add(block)],
                ..PeerChange::new(public(*peer))
            })
        });
        interface.set(DeviceChange {
            private_key: Some(secret(host)),
            peers: sections.collect::<Result<Vec<_>, Failure>>()?,
            ..DeviceChange::default()
        })?;
        Ok(Self {
            interface,
            ends,
            tun: end,
            clock,
        })
    }

    /// Bytes of datagrams that it dropped instead of opening them.
    fn dropped(&self) -> u64 {
        let report = self.interface.report();
        report.drops.iter().map(|(_, drops)| drops * DATAGRAM).sum()
    }

    /// Its TUN becomes readable, and stays so while it reads without end.
    fn kick(&self) {
        self.tun.inject(self.ends.frames[0].clone());
    }
}

/// A TCP GSO packet of so many full segments.
fn frame(from: u8, to: u8, segments: usize) -> Vec<u8> {
    let vnet = VnetHdr {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: 40,
        gso_size: u16::try_from(MSS).unwrap_or(u16::MAX),
        csum_start: 20,
        csum_offset: 16,
        ..VnetHdr::default()
    };
    let len = u16::try_from(40 + segments * MSS).unwrap_or(u16::MAX);
    let mut frame = vnet.write().to_vec();
    frame.extend([0x45, 0]);
    frame.extend(len.to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
    frame.extend(inner(from).octets());
    frame.extend(inner(to).octets());
    frame.extend([0, 9, 0, 9]);
    frame.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    frame.resize(VNET_HDR_LEN + usize::from(len), 0x5a);
    frame
}

fn wait_until(what: &str, every: Duration, mut is_so: impl FnMut() -> bool) -> Result<(), Failure> {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > LIMIT {
            return Err(format!("{what} after {} s", LIMIT.as_secs()).into());
        }
        interrupt::check()?;
        std::thread::sleep(every);
    }
    Ok(())
}

/// A gateway and so many leaves.
struct Hosts {
    gateway: Side,
    leaves: Vec<Side>,
    network: MemNetwork,
    /// The gateway's stages are measured.
    clocked: bool,
}

impl Hosts {
    fn new(settings: &ThreadSettings, leaves: u8) -> Result<Self, Failure> {
        let network = MemNetwork::new();
        // With many peers each has a part of a GSO packet's worth.
        let segments = if leaves == 1 { 45 } else { 16 };
        let numbers: Vec<u8> = (1..=leaves).collect();
        let gateway = Side::new(&Threads::with(settings)?, &network, 0, &numbers, segments)?;
        let engine = Threads::start(1)?;
        let leaves = numbers
            .iter()
            .map(|leaf| Side::new(&engine, &network, *leaf, &[0], segments));
        let leaves = leaves.collect::<Result<Vec<_>, _>>()?;
        let hosts = Self {
            gateway,
            leaves,
            network,
            clocked: false,
        };
        for (leaf, frame) in hosts.leaves.iter().zip(&hosts.gateway.ends.frames) {
            hosts.gateway.tun.inject(frame.clone());
            let written = || leaf.ends.written.load(Ordering::Relaxed) > 0;
            wait_until("a peer has no session", LOOK, written)?;
        }
        Ok(hosts)
    }

    fn outbound(&self) -> Result<Rate, Failure> {
        let ends = &self.gateway.ends;
        ends.counts.store(true, Ordering::Relaxed);
        ends.reads.store(true, Ordering::Relaxed);
        self.gateway.kick();
        std::thread::sleep(WARM_UP);
        self.gateway.clock.set_on(self.clocked);
        let (before, begun) = (usage()?, Instant::now());
        let sent = ends.sent.load(Ordering::Relaxed);
        std::thread::sleep(MEASURED);
        let sent = ends.sent.load(Ordering::Relaxed) - sent;
        let rate = rate(sent, begun, before);
        self.gateway.clock.set_on(false);
        ends.reads.store(false, Ordering::Relaxed);
        rate
    }

    fn inbound(&self, bytes: usize) -> Result<Rate, Failure> {
        // 1. The leaves seal what is to be received.
        let each = bytes / self.leaves.len();
        let mut recorded = Vec::new();
        for leaf in &self.leaves {
            let ends = &leaf.ends;
            ends.counts.store(true, Ordering::Relaxed);
            ends.records.store(true, Ordering::Relaxed);
            ends.reads.store(true, Ordering::Relaxed);
            leaf.kick();
            let enough = || ends.sent.load(Ordering::Relaxed) >= each as u64;
            wait_until("too little was sealed", LOOK, enough)?;
            ends.reads.store(false, Ordering::Relaxed);
            ends.records.store(false, Ordering::Relaxed);
            recorded.push(VecDeque::from(std::mem::take(&mut *lock(&ends.recorded))));
        }
        // 2. The gateway's socket becomes readable.
        let ends = &self.gateway.ends;
        let mut bytes = 0;
        while recorded.iter().any(|left| !left.is_empty()) {
            for train in recorded.iter_mut().filter_map(VecDeque::pop_front) {
                bytes += train.bytes.len();
                let rx_queue = usize::from(train.bytes[DataHeader::RX_QUEUE_AT]);
                lock(&ends.replayed[rx_queue % QUEUES]).push(train);
            }
        }
        let left = || {
            let all = ends.replayed.iter();
            all.map(|replay| lock(replay).left).sum::<usize>()
        };
        let mark = || -> Result<_, Failure> {
            Ok(Mark {
                dropped: self.gateway.dropped(),
                usage: usage()?,
                at: Instant::now(),
                left: left(),
            })
        };
        let begun = mark()?;
        ends.replays.store(true, Ordering::Relaxed);
        let kick = self.network.bind(address(250), false)?;
        let train = Transmit {
            to: address(0).into(),
            ecn: 0,
            stride: 1,
            bytes: &[0],
        };
        kick.send(&[train], &mut SendReport::default());
        // 3. The threads have settled when a part was received. The thread that waits for it seldom looks: where
        // threads wait for a CPU, `auto` does without help. (What is written cannot be waited for: where
        // other programs take the CPUs, most of an endless load may be dropped.)
        let settling = bytes / SETTLING;
        wait_until("too little was received", LOOK_SELDOM, || {
            bytes - left() >= settling
        })?;
        self.gateway.clock.set_on(self.clocked);
        // 4. The end of what is received is not measured: the threads leave then. Where other programs
        // kept this thread from looking until then, all of it is.
        let end = bytes / 10;
        let settled = mark()?;
        let from = if settled.left > end { settled } else { begun };
        wait_until("not all was received", LOOK_SELDOM, || left() <= end)?;
        let received = (from.left - left()) as u64;
        let dropped = self.gateway.dropped() - from.dropped;
        // More arrives than is processed: a peer that is ahead of the others may lose some.
        let rate = match received.checked_sub(dropped) {
            Some(came @ 1..) => rate(came, from.at, from.usage),
            _ => Err(format!("{received} bytes were received, and {dropped} dropped").into()),
        };
        self.gateway.clock.set_on(false);
        ends.replays.store(false, Ordering::Relaxed);
        // What is in batches is written a little later, and without the headers of packets that are merged.
        let taken = (bytes - left()) as u64;
        wait_until("too little was written to the TUN", LOOK, || {
            let opened = taken.saturating_sub(self.gateway.dropped());
            ends.written.load(Ordering::Relaxed) >= opened / 10 * 9
        })?;
        rate
    }
}

/// Where what is received is measured from.
struct Mark {
    /// Bytes of datagrams that were dropped before.
    dropped: u64,
    usage: Usage,
    at: Instant,
    /// Bytes that are left to be received.
    left: usize,
}

/// The CPU time of this process, and how long its threads ran and waited for a CPU.
type Usage = (Duration, [Duration; 2]);

fn usage() -> Result<Usage, Failure> {
    let process = std::process::id();
    Ok((proc::cpu_time(process)?, proc::ready_times(process)?))
}

fn rate(bytes: u64, begun: Instant, before: Usage) -> Result<Rate, Failure> {
    let seconds = begun.elapsed().as_secs_f64();
    let (cpu, ready) = usage()?;
    let spent = cpu.saturating_sub(before.0).as_secs_f64();
    let ready = [0, 1].map(|at: usize| ready[at].saturating_sub(before.1[at]).as_secs_f64());
    #[expect(clippy::cast_precision_loss, reason = "less than 2^52 bytes")]
    let bytes = bytes as f64;
    if bytes == 0.0 {
        return Err("nothing came through".into());
    }
    Ok(Rate {
        gbps: bytes * 8.0 / seconds / 1e9,
        cpu: spent / (bytes / 1e9),
        waited: ready[1] / (ready[0] + ready[1]).max(f64::MIN_POSITIVE),
    })
}

/// What the engine moves with these threads, to or from so many peers: for a second, or so many
/// bytes of what is received.
pub(super) fn measure(
    settings: &ThreadSettings,
    peers: u8,
    direction: Direction,
    received: usize,
) -> Result<Rate, Failure> {
    let hosts = Hosts::new(settings, peers)?;
    match direction {
        Direction::Outbound => hosts.outbound(),
        Direction::Inbound => hosts.inbound(received),
    }
}

/// What the stages cost one thread that does all of them.
pub(super) fn stages(
    peers: u8,
    direction: Direction,
    received: usize,
) -> Result<StageCosts, Failure> {
    let mut hosts = Hosts::new(&ThreadSettings::from(1), peers)?;
    hosts.clocked = true;
    match direction {
        Direction::Outbound => {
            hosts.outbound()?;
            hosts.gateway.clock.outbound()
        }
        Direction::Inbound => {
            hosts.inbound(received)?;
            hosts.gateway.clock.inbound()
        }
    }
}

/// How fast two cores are that move packets outbound, each for a gateway of its own, beside one that
/// does so alone: they share nothing but the machine. By CPU time, which other programs take nothing
/// of.
pub(super) fn side_by_side() -> Result<f64, Failure> {
    let gateway = || Hosts::new(&ThreadSettings::from(1), 1);
    let (one, other) = (gateway()?, gateway()?);
    let alone = one.outbound()?.cpu;
    let both = std::thread::scope(|scope| {
        let other = scope.spawn(|| other.outbound());
        let one = one.outbound()?.cpu;
        let other = other.join().map_err(|_| "a gateway's thread panicked")??;
        // Each counts the CPU time of both.
        Ok::<_, Failure>(f64::midpoint(one, other.cpu) / 2.0)
    })?;
    Ok((alone / both).min(1.0))
}
