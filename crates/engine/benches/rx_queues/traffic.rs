//! The TUNs of the benchmark: sources that make frames as fast as they may be sent, and a sink.
//!
//! A bulk flow has a window, as TCP has: so many bytes are on their way at most. What was lost is
//! known by what comes after it. A sparse flow sends a packet with the time every few milliseconds.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use adit_io::{FrameBatch, TunQueue};
use adit_offload::{GSO_TCPV4, NEEDS_CSUM, VNET_HDR_LEN, VnetHdr};
use rustix::event::EventfdFlags;

/// Payload of a TCP segment: a packet of 1,420 bytes.
pub(crate) const SEGMENT: u64 = 1380;
/// Segments of the longest GSO packet.
const SEGMENTS: u64 = 44;
const HEADERS: usize = 40;
/// How often flows are looked at.
const TICK: Duration = Duration::from_micros(100);
/// A sparse flow sends one packet in so many ticks: up to 200 a second.
const SPARSE_TICKS: usize = 50;
/// Ticks without progress after which what is on its way counts as lost.
const LOST_TICKS: u32 = 500;

/// The traffic of one peer. No cache line is of two.
#[repr(align(128))]
pub(crate) struct Flow {
    number: u8,
    /// Bytes on their way at most; 0 for a flow that rests.
    window: AtomicU64,
    is_sparse: AtomicBool,
    /// Packets that a sparse flow may send now.
    due: AtomicU64,
    /// Bytes that were sent, and those of them that are not on their way any more.
    sent: AtomicU64,
    passed: AtomicU64,
    /// Bytes that arrived.
    arrived: AtomicU64,
    /// Its source sleeps.
    sleeps: AtomicBool,
    ready: OwnedFd,
}

/// A flow's state at a moment.
#[derive(Clone, Copy, Default)]
pub(crate) struct Progress {
    pub(crate) sent: u64,
    pub(crate) arrived: u64,
}

fn event() -> io::Result<OwnedFd> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    Ok(rustix::event::eventfd(0, flags)?)
}

impl Flow {
    pub(crate) fn new(number: u8) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            number,
            window: AtomicU64::new(0),
            is_sparse: AtomicBool::new(false),
            due: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            arrived: AtomicU64::new(0),
            sleeps: AtomicBool::new(true),
            ready: event()?,
        }))
    }

    pub(crate) fn set_window(&self, window: u64) {
        self.window.store(window, Relaxed);
    }

    pub(crate) fn set_sparse(&self) {
        self.is_sparse.store(true, Relaxed);
    }

    pub(crate) fn progress(&self) -> Progress {
        Progress {
            sent: self.sent.load(Relaxed),
            arrived: self.arrived.load(Relaxed),
        }
    }

    /// Bytes of the next frame's payload, if it may be sent now.
    fn next_frame(&self) -> Option<u64> {
        let window = self.window.load(Relaxed);
        let segments = (window / 4 / SEGMENT).clamp(2, SEGMENTS);
        let on_their_way = self
            .sent
            .load(Relaxed)
            .saturating_sub(self.passed.load(Relaxed));
        let payload = segments * SEGMENT;
        (on_their_way + payload <= window).then_some(payload)
    }

    /// What ends at this sequence number has arrived.
    fn arrives(&self, end: u32, payload: u64) {
        self.arrived.fetch_add(payload, Relaxed);
        let before = self.passed.load(Relaxed);
        let [.., a, b, c, d] = before.to_be_bytes();
        let ahead = end.wrapping_sub(u32::from_be_bytes([a, b, c, d]));
        // Less than half of all numbers: it is no older one.
        if ahead < 1 << 31 {
            self.passed.fetch_max(before + u64::from(ahead), Relaxed);
        }
    }
}

/// The inner address of a peer; 0 is the hub.
pub(crate) fn inner(number: u8) -> [u8; 4] {
    [10, 0, 0, 1 + number]
}

/// The TUN of a peer.
pub(crate) struct TrafficSource(pub(crate) Arc<Flow>, pub(crate) Instant);

impl TunQueue for TrafficSource {
    fn read_batch(&self, batch: &mut FrameBatch) -> io::Result<bool> {
        let Self(flow, epoch) = self;
        batch.fill(|buf| {
            if let Some(payload) = flow.next_frame() {
                let sequence = flow.sent.fetch_add(payload, Relaxed);
                return Ok(tcp_frame(buf, flow.number, sequence, payload));
            }
            if flow.due.load(Relaxed) > 0 {
                flow.due.fetch_sub(1, Relaxed);
                return Ok(stamped_frame(buf, flow.number, epoch.elapsed()));
            }
            let _ = rustix::io::read(&flow.ready, &mut [0; 8]);
            // The ticker wakes it, later too: nothing is missed.
            flow.sleeps.store(true, Relaxed);
            Err(io::ErrorKind::WouldBlock.into())
        })
    }

    fn write(&self, _frame: &[IoSlice<'_>]) -> io::Result<()> {
        Ok(())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.ready.as_fd()
    }
}

/// Looks at the flows until it is told to end.
pub(crate) fn tick(flows: &[Arc<Flow>], ends: &AtomicBool) {
    let mut seen: Vec<(u64, u32)> = vec![(0, 0); flows.len()];
    let mut ticks = 0_usize;
    while !ends.load(Relaxed) {
        std::thread::sleep(TICK);
        ticks += 1;
        for (index, (flow, (passed, since))) in flows.iter().zip(&mut seen).enumerate() {
            if flow.is_sparse.load(Relaxed) && (ticks + index).is_multiple_of(SPARSE_TICKS) {
                flow.due.store(1, Relaxed);
            }
            let (now, sent) = (flow.passed.load(Relaxed), flow.sent.load(Relaxed));
            *since = if now == *passed { *since + 1 } else { 0 };
            *passed = now;
            if *since >= LOST_TICKS && now < sent {
                flow.passed.fetch_max(sent, Relaxed);
            }
            let may_send = flow.due.load(Relaxed) > 0 || flow.next_frame().is_some();
            if may_send && flow.sleeps.swap(false, Relaxed) {
                let _ = rustix::io::write(&flow.ready, &1_u64.to_ne_bytes());
            }
        }
    }
}

/// The TUN of the hub: copies each frame, as the kernel does, and takes as long as it does.
pub(crate) struct Sink {
    flows: Vec<Arc<Flow>>,
    epoch: Instant,
    /// CPU time for a frame of 64 KB beside the copy; less for shorter ones.
    takes: Duration,
    /// How long packets of sparse flows were on their way, in nanoseconds.
    delays: Mutex<Vec<u64>>,
    never: OwnedFd,
}

impl Sink {
    /// `flows` in the order of their numbers, the first of which is 1.
    pub(crate) fn new(
        flows: Vec<Arc<Flow>>,
        epoch: Instant,
        takes: Duration,
    ) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            flows,
            epoch,
            takes,
            delays: Mutex::default(),
            never: event()?,
        }))
    }

    pub(crate) fn take_delays(&self) -> Vec<u64> {
        let mut delays = self.delays.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut delays)
    }

    fn arrived(&self, packet: &[u8]) {
        let word = |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().expect("four"));
        let number = usize::from(packet[15]).checked_sub(2);
        let Some(flow) = number.and_then(|number| self.flows.get(number)) else {
            return;
        };
        if packet[9] == 17 {
            let sent = packet[28..36].try_into().expect("eight bytes");
            let now = nanos(self.epoch.elapsed());
            let mut delays = self.delays.lock().unwrap_or_else(PoisonError::into_inner);
            delays.push(now.saturating_sub(u64::from_be_bytes(sent)));
            return;
        }
        let payload = packet.len() - HEADERS;
        let len = u32::try_from(payload).expect("64 KB at most");
        flow.arrives(word(24).wrapping_add(len), payload as u64);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl TunQueue for Sink {
    fn read_batch(&self, batch: &mut FrameBatch) -> io::Result<bool> {
        batch.clear();
        Ok(true)
    }

    fn write(&self, frame: &[IoSlice<'_>]) -> io::Result<()> {
        thread_local! {
            static COPY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        let begun = Instant::now();
        COPY.with_borrow_mut(|copy| {
            copy.clear();
            frame.iter().for_each(|slice| copy.extend_from_slice(slice));
            self.arrived(&copy[VNET_HDR_LEN..]);
            let takes = self.takes.mul_f64(copy.len() as f64 / 65_536.0);
            while begun.elapsed() < takes {
                std::hint::spin_loop();
            }
        });
        Ok(())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.never.as_fd()
    }
}

/// Sum of 16-bit words, folded.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2);
    let words = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let mut sum: u32 = words.sum();
    while let Some(carry @ 1..) = sum.checked_shr(16) {
        sum = (sum & 0xffff) + carry;
    }
    u16::try_from(sum).expect("folded")
}

/// Writes an IPv4 header at the start of `packet`, which goes from the peer to the hub.
fn ipv4(packet: &mut [u8], protocol: u8, from: u8) {
    let len = u16::try_from(packet.len()).expect("64 KB at most");
    packet[..20].fill(0);
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet[8..10].copy_from_slice(&[64, protocol]);
    packet[12..16].copy_from_slice(&inner(from));
    packet[16..20].copy_from_slice(&inner(0));
    let checksum = !sum(&packet[..20]);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// A TCP GSO packet as the kernel hands it over. The payload is what stands in `buf`.
fn tcp_frame(buf: &mut [u8], from: u8, sequence: u64, payload: u64) -> usize {
    let len = HEADERS + usize::try_from(payload).expect("64 KB at most");
    let header = VnetHdr {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: 40,
        gso_size: u16::try_from(SEGMENT).expect("short"),
        csum_start: 20,
        csum_offset: 16,
        ..VnetHdr::default()
    };
    buf[..VNET_HDR_LEN].copy_from_slice(&header.write());
    let packet = &mut buf[VNET_HDR_LEN..][..len];
    ipv4(packet, 6, from);
    let [.., a, b, c, d] = sequence.to_be_bytes();
    let fixed = [0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0];
    packet[20..24].copy_from_slice(&[0x12, 0x34, 0x56, 0x78]);
    packet[24..28].copy_from_slice(&[a, b, c, d]);
    packet[28..40].copy_from_slice(&fixed);
    let [high, low] = u16::try_from(len - 20).expect("short").to_be_bytes();
    let mut pseudo = [0; 12];
    pseudo[..8].copy_from_slice(&packet[12..20]);
    pseudo[9..].copy_from_slice(&[6, high, low]);
    let partial = sum(&pseudo);
    packet[36..38].copy_from_slice(&partial.to_be_bytes());
    VNET_HDR_LEN + len
}

/// A UDP datagram with the time since the epoch.
fn stamped_frame(buf: &mut [u8], from: u8, now: Duration) -> usize {
    buf[..VNET_HDR_LEN].fill(0);
    let packet = &mut buf[VNET_HDR_LEN..][..92];
    ipv4(packet, 17, from);
    // No checksum.
    packet[20..28].copy_from_slice(&[0, 7, 0, 9, 0, 72, 0, 0]);
    packet[28..].fill(0);
    packet[28..36].copy_from_slice(&nanos(now).to_be_bytes());
    VNET_HDR_LEN + 92
}
