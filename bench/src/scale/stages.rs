//! What the stages of the engine cost: CPU time of the thread that runs them, between the calls of
//! its devices.
//!
//! ```text
//! outbound   take: read the TUN   work: route, append, seal   put: send
//! inbound    take: receive        work: open                  put: commit, merge, write the TUN
//! ```
//!
//! The devices see where `take` and `put` of the outbound path begin and end. Inbound, only the
//! calls are seen: what lies between `receive` and the next call is opening, committing and merging.
//! What opening costs is measured apart, by the same calls of the AEAD, and subtracted.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use adit_aead::{Key, OpenJob, SealJob, TAG_LEN};
use adit_io::udp::UdpState;
use adit_io::{
    Arrival, FrameBatch, Grace, IcmpError, RecvBatch, SendReport, ShortBuffers, Transmit, TunQueue,
    UdpSocket,
};
use adit_proto::wire::DataHeader;
use adit_testbed::proc;
use serde::Serialize;

use crate::sandbox::Failure;

/// Octets of an inner packet of the tunnel's MTU, and what its datagram has more.
const INNER: f64 = 1420.0;
const OVERHEAD: f64 = 32.0;

/// CPU time of the stages of one direction, in nanoseconds a packet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct StageCosts {
    pub(super) take_ns: f64,
    pub(super) work_ns: f64,
    pub(super) put_ns: f64,
    /// Polls that find nothing, and what a shard does between two polls.
    pub(super) poll_ns: f64,
    /// Octets of a datagram of data, and how many of them a batch has.
    pub(super) packet_bytes: f64,
    pub(super) batch_packets: f64,
}

impl StageCosts {
    /// What one thread needs for a packet.
    pub(super) fn total_ns(&self) -> f64 {
        self.take_ns + self.work_ns + self.put_ns + self.poll_ns
    }

    /// Each value is the median of those of all rounds.
    pub(super) fn median(rounds: &[Self]) -> Option<Self> {
        let of = |value: fn(&Self) -> f64| {
            let values: Vec<f64> = rounds.iter().map(value).collect();
            adit_testbed::stats::median(&values)
        };
        Some(Self {
            take_ns: of(|costs| costs.take_ns)?,
            work_ns: of(|costs| costs.work_ns)?,
            put_ns: of(|costs| costs.put_ns)?,
            poll_ns: of(|costs| costs.poll_ns)?,
            packet_bytes: of(|costs| costs.packet_bytes)?,
            batch_packets: of(|costs| costs.batch_packets)?,
        })
    }
}

/// Sums of CPU nanoseconds, while it is on.
#[derive(Default)]
pub(super) struct Clock {
    is_on: AtomicBool,
    outbound: Sums,
    inbound: Sums,
    poll: AtomicU64,
    /// Octets of inner packets that were written to the TUN.
    written: AtomicU64,
}

#[derive(Default)]
struct Sums {
    take: AtomicU64,
    /// Between the calls of the devices.
    between: AtomicU64,
    put: AtomicU64,
    bytes: AtomicU64,
    packets: AtomicU64,
    batches: AtomicU64,
}

/// What a thread does between two calls of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Polling,
    Outbound,
    Inbound,
}

thread_local! {
    /// Since this much CPU time of the thread it does this.
    static SINCE: Cell<Option<(u64, Doing)>> = const { Cell::new(None) };
}

impl Clock {
    /// From now on what happens counts, or no longer.
    pub(super) fn set_on(&self, is_on: bool) {
        self.is_on.store(is_on, Relaxed);
    }

    /// A call of a device begins: what lay before it counts. Returns the time.
    fn begin(&self) -> Option<u64> {
        if !self.is_on.load(Relaxed) {
            SINCE.set(None);
            return None;
        }
        let now = now();
        if let Some((since, doing)) = SINCE.get() {
            let sum = match doing {
                Doing::Polling => &self.poll,
                Doing::Outbound => &self.outbound.between,
                Doing::Inbound => &self.inbound.between,
            };
            sum.fetch_add(between(since, now), Relaxed);
        }
        Some(now)
    }

    /// The call ends, and the thread does something else. Returns how long the call took.
    fn end(begun: u64, doing: Doing) -> u64 {
        let now = now();
        SINCE.set(Some((now, doing)));
        between(begun, now)
    }

    /// What a packet of the outbound path cost.
    pub(super) fn outbound(&self) -> Result<StageCosts, Failure> {
        let sums = &self.outbound;
        let ns = sums.by_packet()?;
        Ok(StageCosts {
            take_ns: ns(&sums.take),
            work_ns: ns(&sums.between),
            put_ns: ns(&sums.put),
            poll_ns: ns(&self.poll),
            packet_bytes: ns(&sums.bytes),
            batch_packets: sums.batch_packets(),
        })
    }

    /// How many full packets were written to the TUN.
    pub(super) fn written(&self) -> f64 {
        real(&self.written) / INNER
    }

    /// What so many packets of the outbound path cost, if only the TUN has a clock: the work is
    /// that of `memory`, and the rest until the batch is processed is sending.
    pub(super) fn outbound_of_tun(
        &self,
        memory: &StageCosts,
        packets: f64,
    ) -> Result<StageCosts, Failure> {
        if packets == 0.0 {
            return Err("no packet came through the TUN".into());
        }
        let ns = |sum: &AtomicU64| real(sum) / packets;
        let sums = &self.outbound;
        let between = ns(&sums.between) + ns(&sums.put);
        let work_ns = memory.work_ns.min(between);
        Ok(StageCosts {
            take_ns: ns(&sums.take),
            work_ns,
            put_ns: between - work_ns,
            poll_ns: ns(&self.poll) + ns(&self.inbound.between) + ns(&self.inbound.put),
            packet_bytes: INNER + OVERHEAD,
            batch_packets: packets / real(&sums.batches).max(1.0),
        })
    }

    /// What so many packets of the inbound path cost, if only the TUN has a clock: opening,
    /// committing and merging are those of `memory`, and the rest until something is written is
    /// receiving.
    pub(super) fn inbound_of_tun(
        &self,
        memory: &StageCosts,
        packets: f64,
    ) -> Result<StageCosts, Failure> {
        if packets == 0.0 {
            return Err("no packet came through the TUN".into());
        }
        let ns = |sum: &AtomicU64| real(sum) / packets;
        let between = ns(&self.inbound.between) + ns(&self.poll);
        let work_ns = memory.work_ns.min(between);
        let merge_ns = memory.put_ns.min(between - work_ns);
        Ok(StageCosts {
            take_ns: between - work_ns - merge_ns,
            work_ns,
            put_ns: ns(&self.inbound.put) + merge_ns,
            poll_ns: ns(&self.outbound.take) + ns(&self.outbound.between) + ns(&self.outbound.put),
            packet_bytes: INNER + OVERHEAD,
            batch_packets: memory.batch_packets,
        })
    }

    /// What a packet of the inbound path cost.
    pub(super) fn inbound(&self) -> Result<StageCosts, Failure> {
        let sums = &self.inbound;
        let ns = sums.by_packet()?;
        let packet_bytes = ns(&sums.bytes);
        let between = ns(&sums.between);
        let work = open_ns(packet_bytes).min(between);
        Ok(StageCosts {
            take_ns: ns(&sums.take),
            work_ns: work,
            put_ns: ns(&sums.put) + between - work,
            poll_ns: ns(&self.poll),
            packet_bytes,
            batch_packets: sums.batch_packets(),
        })
    }
}

impl Sums {
    fn by_packet(&self) -> Result<impl Fn(&AtomicU64) -> f64, Failure> {
        let packets = real(&self.packets);
        if packets == 0.0 {
            return Err("no packet came while the stages were measured".into());
        }
        Ok(move |sum: &AtomicU64| real(sum) / packets)
    }

    fn batch_packets(&self) -> f64 {
        real(&self.packets) / real(&self.batches).max(1.0)
    }
}

#[expect(clippy::cast_precision_loss, reason = "less than 2^52")]
fn real(sum: &AtomicU64) -> f64 {
    sum.load(Relaxed) as f64
}

/// CPU nanoseconds of this thread.
fn now() -> u64 {
    u64::try_from(proc::thread_cpu_time().as_nanos()).unwrap_or(u64::MAX)
}

/// CPU nanoseconds between two looks, without what a look itself takes: with short trains there is one
/// for every few packets.
fn between(since: u64, now: u64) -> u64 {
    const TIMES: usize = 1001;
    static LOOK: OnceLock<u64> = OnceLock::new();
    let look = LOOK.get_or_init(|| {
        let mut looks = [0; TIMES];
        for look in &mut looks {
            let since = self::now();
            *look = self::now() - since;
        }
        looks.sort_unstable();
        looks[TIMES / 2]
    });
    (now - since).saturating_sub(*look)
}

/// Datagrams in so many bytes.
fn packets(bytes: usize, stride: usize) -> u64 {
    bytes.div_ceil(stride.max(1)) as u64
}

/// CPU nanoseconds for opening a datagram of so many octets, of a batch that fills the second-level
/// cache, as `work` of the inbound path does.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "octets of a datagram"
)]
fn open_ns(packet_bytes: f64) -> f64 {
    const BATCH: usize = 176;
    const TIMES: usize = 24;
    let len = (packet_bytes as usize).saturating_sub(DataHeader::LEN);
    let len = len.max(TAG_LEN);
    let key = Key::new(&[7; 32]);
    let mut sealed = vec![0x5a; len * BATCH];
    let mut jobs: Vec<SealJob<'_>> = (0..)
        .zip(sealed.chunks_exact_mut(len))
        .map(|(counter, out)| SealJob::in_place(&key, counter, out))
        .collect();
    adit_aead::seal(&mut jobs);
    drop(jobs);
    let mut text = sealed.clone();
    let mut times: Vec<f64> = Vec::new();
    for _ in 0..TIMES {
        // As `receive` leaves it.
        text.copy_from_slice(&sealed);
        let mut jobs: Vec<OpenJob<'_>> = (0..)
            .zip(text.chunks_exact_mut(len))
            .map(|(counter, text)| OpenJob::in_place(&key, counter, text))
            .collect();
        let begun = now();
        adit_aead::open(&mut jobs);
        let took = AtomicU64::new(now() - begun);
        times.push(real(&took) / adit_testbed::stats::to_f64(BATCH));
    }
    adit_testbed::stats::median(&times).unwrap_or(f64::NAN)
}

/// A device with a clock.
pub(super) struct Clocked<D>(pub(super) D, pub(super) Arc<Clock>);

impl<T: TunQueue> TunQueue for Clocked<T> {
    fn read_batch(&self, batch: &mut FrameBatch) -> io::Result<bool> {
        let Self(tun, clock) = self;
        let Some(begun) = clock.begin() else {
            return tun.read_batch(batch);
        };
        let result = tun.read_batch(batch);
        if result.is_ok() && !batch.is_empty() {
            let took = Clock::end(begun, Doing::Outbound);
            clock.outbound.take.fetch_add(took, Relaxed);
            clock.outbound.batches.fetch_add(1, Relaxed);
        } else {
            let took = Clock::end(begun, Doing::Polling);
            clock.poll.fetch_add(took, Relaxed);
        }
        result
    }

    fn processed(&self, batch: &FrameBatch) {
        let Self(tun, clock) = self;
        let Some(begun) = clock.begin() else {
            return tun.processed(batch);
        };
        tun.processed(batch);
        let took = Clock::end(begun, Doing::Polling);
        clock.outbound.put.fetch_add(took, Relaxed);
    }

    fn write(&self, frame: &[IoSlice<'_>]) -> io::Result<()> {
        let Self(tun, clock) = self;
        let Some(begun) = clock.begin() else {
            return tun.write(frame);
        };
        let result = tun.write(frame);
        let took = Clock::end(begun, Doing::Inbound);
        let bytes: usize = frame.iter().map(|piece| piece.len()).sum();
        clock.written.fetch_add(bytes as u64, Relaxed);
        clock.inbound.put.fetch_add(took, Relaxed);
        result
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    fn last_arrival(&self) -> Option<Arrival> {
        self.0.last_arrival()
    }
}

impl<U: UdpSocket> UdpSocket for Clocked<U> {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        let Self(socket, clock) = self;
        let Some(begun) = clock.begin() else {
            return socket.send(trains, report);
        };
        let taken = socket.send(trains, report);
        let took = Clock::end(begun, Doing::Outbound);
        let sums = &clock.outbound;
        sums.put.fetch_add(took, Relaxed);
        for train in &trains[..taken.min(trains.len())] {
            let bytes = train.bytes.len();
            sums.bytes.fetch_add(bytes as u64, Relaxed);
            sums.packets
                .fetch_add(packets(bytes, train.stride), Relaxed);
        }
        taken
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        let Self(socket, clock) = self;
        let Some(begun) = clock.begin() else {
            return socket.recv(batch);
        };
        let result = socket.recv(batch);
        if result.is_err() {
            let took = Clock::end(begun, Doing::Polling);
            clock.poll.fetch_add(took, Relaxed);
            return result;
        }
        let took = Clock::end(begun, Doing::Inbound);
        let sums = &clock.inbound;
        sums.take.fetch_add(took, Relaxed);
        sums.batches.fetch_add(1, Relaxed);
        for message in batch.received() {
            sums.bytes.fetch_add(message.len as u64, Relaxed);
            sums.packets
                .fetch_add(packets(message.len, message.stride), Relaxed);
        }
        result
    }

    fn send_socket(&self) -> io::Result<Self> {
        Ok(Self(self.0.send_socket()?, Arc::clone(&self.1)))
    }

    fn further(&self, more: usize) -> io::Result<Vec<Self>> {
        let further = self.0.further(more)?.into_iter();
        Ok(further.map(|it| Self(it, Arc::clone(&self.1))).collect())
    }

    fn spread(&self, over: usize) -> io::Result<Grace> {
        self.0.spread(over)
    }

    fn set_send_buffer(&self, bytes: usize) {
        self.0.set_send_buffer(bytes);
    }

    fn take_errors(&self, each: &mut dyn FnMut(IcmpError, u64)) {
        self.0.take_errors(each);
    }

    fn short_buffers(&self) -> ShortBuffers {
        self.0.short_buffers()
    }

    fn state(&self) -> UdpState {
        self.0.state()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    fn last_arrival(&self) -> Option<Arrival> {
        self.0.last_arrival()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_between_calls_counts_for_the_call_before() {
        let clock = Clock::default();
        assert_eq!(clock.begin(), None, "it is off");
        clock.set_on(true);
        let begun = clock.begin().unwrap();
        Clock::end(begun, Doing::Outbound);
        while now() < begun + 2_000_000 {}
        let begun = clock.begin().unwrap();
        Clock::end(begun, Doing::Polling);
        while now() < begun + 1_000_000 {}
        clock.begin().unwrap();
        let sums = &clock.outbound;
        assert!(sums.between.load(Relaxed) > 1_500_000);
        assert!(clock.poll.load(Relaxed) > 900_000);
        assert_eq!(clock.inbound.between.load(Relaxed), 0);
        assert!(clock.outbound().is_err(), "no packet came");
        sums.packets.store(10, Relaxed);
        sums.batches.store(2, Relaxed);
        sums.bytes.store(14_520, Relaxed);
        let costs = clock.outbound().unwrap();
        assert!(costs.work_ns > 150_000.0 && costs.take_ns == 0.0);
        assert_eq!((costs.packet_bytes, costs.batch_packets), (1452.0, 5.0));
        SINCE.set(None);
    }

    #[test]
    fn opening_a_datagram_costs_something_and_grows_with_it() {
        let (short, long) = (open_ns(96.0), open_ns(1452.0));
        assert!(short > 0.0 && long > short, "{short} {long}");
    }
}
