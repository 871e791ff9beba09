//! A TUN queue or UDP socket with faults: what networks and kernels do on bad days, on purpose and
//! repeatably.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use adit_proto::{Endpoint, InUse};
use rustix::io::Errno;

use crate::udp::UdpState;
use crate::{
    Arrival, Cut, Filtered, FrameBatch, Grace, IcmpError, IcmpKind, RecvBatch, SendReport,
    ShortBuffers, Transmit, TunQueue, UdpSocket,
};

/// Which faults, each as a probability between 0 and 1, and the seed of the dice.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Equal seeds and equal calls give equal faults.
    pub seed: u64,
    /// A datagram, or a frame written to the TUN, vanishes.
    pub loss: f64,
    /// A datagram, or a frame written to the TUN, comes twice.
    pub duplication: f64,
    /// A datagram is overtaken by up to 16 others.
    pub reordering: f64,
    /// A train is cut after a datagram, so that shorter trains arrive.
    pub split: f64,
    /// The queue or buffer is full: a send takes fewer trains, a write says EAGAIN. A read or
    /// receive finds nothing.
    pub full: f64,
    /// A receive fails with ECONNREFUSED, a read with EINTR, a write with EIO.
    pub error: f64,
    /// The TUN refuses a GRO packet with EINVAL.
    pub refusal: f64,
    /// Up to 64 datagrams in a row vanish.
    pub bursts: f64,
    /// A bit of a datagram is flipped.
    pub corruption: f64,
    /// The kernel refuses a train: ENOBUFS, EPERM, EMSGSIZE, EINVAL or EIO.
    pub not_sent: f64,
    /// The buffer becomes full in the middle of a train, and the caller offers its rest again.
    pub partial: f64,
    /// An ICMP error comes back.
    pub icmp: f64,
}

/// A handle that ends the faults, and tells how much got through.
#[derive(Clone, Default)]
pub struct Injector(Arc<Injected>);

#[derive(Default)]
struct Injected {
    is_over: AtomicBool,
    datagrams: AtomicU64,
}

impl Injector {
    /// Nothing goes wrong any more.
    pub fn end(&self) {
        self.0.is_over.store(true, Relaxed);
    }

    /// Datagrams that the faults left to the network, copies included.
    pub fn datagrams(&self) -> u64 {
        self.0.datagrams.load(Relaxed)
    }
}

/// Errors of a kernel that refuses a send.
const ERRORS: [Errno; 5] = [
    Errno::NOBUFS,
    Errno::PERM,
    Errno::MSGSIZE,
    Errno::INVAL,
    Errno::IO,
];

/// `T` with faults.
pub struct Faulty<T> {
    inner: T,
    faults: Faults,
    injector: Injector,
    state: Mutex<FaultState>,
}

struct FaultState {
    dice: u64,
    /// Datagrams that are being overtaken, with how many still overtake each.
    late: VecDeque<(usize, Part)>,
    /// Datagrams that still vanish.
    burst: u64,
    /// ICMP errors that nobody has taken yet, by where the datagrams were sent.
    icmp: Vec<Endpoint>,
}

/// Datagrams that are sent together.
struct Part {
    to: Endpoint,
    ecn: u8,
    stride: usize,
    bytes: Vec<u8>,
}

impl<T> Faulty<T> {
    /// `inner` with `faults`.
    pub fn new(inner: T, faults: Faults) -> Self {
        Self::with(inner, faults, Injector::default())
    }

    /// The same; the faults last until the injector ends them.
    pub fn with(inner: T, faults: Faults, injector: Injector) -> Self {
        Self {
            inner,
            faults,
            injector,
            state: Mutex::new(FaultState {
                dice: faults.seed,
                late: VecDeque::new(),
                burst: 0,
                icmp: Vec::new(),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, FaultState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn happens(&self, probability: f64) -> bool {
        !self.injector.0.is_over.load(Relaxed) && self.state().happens(probability)
    }

    /// The faults of this moment.
    fn faults(&self) -> Faults {
        if self.injector.0.is_over.load(Relaxed) {
            return Faults::default();
        }
        self.faults
    }
}

impl FaultState {
    fn happens(&mut self, probability: f64) -> bool {
        // What never happens leaves the dice alone.
        if probability == 0.0 {
            return false;
        }
        // 53 bits make every value of an f64 in [0, 1) that is a multiple of 2^-53.
        let bits = self.roll() >> 11;
        (bits as f64) / ((1_u64 << 53) as f64) < probability
    }

    /// SplitMix64 (Steele, Lea, Flood 2014).
    fn roll(&mut self) -> u64 {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.dice;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The fate of a train.
    fn distort(&mut self, faults: &Faults, train: &Transmit<'_>, out: &mut Vec<Part>) {
        let stride = train.stride.max(1);
        let part = |bytes: &[u8]| Part {
            to: train.to,
            ecn: train.ecn,
            stride,
            bytes: bytes.to_vec(),
        };
        let mut run = Vec::new();
        let flush = |run: &mut Vec<u8>, out: &mut Vec<Part>| {
            if !run.is_empty() {
                out.push(part(run));
                run.clear();
            }
        };
        for datagram in train.bytes.chunks(stride) {
            if self.happens(faults.bursts) {
                self.burst = self.roll() % 64 + 1;
            } else if faults.bursts == 0.0 {
                self.burst = 0;
            }
            if self.happens(faults.loss) || self.burst > 0 {
                self.burst = self.burst.saturating_sub(1);
                flush(&mut run, out);
            } else if self.happens(faults.corruption) && !datagram.is_empty() {
                flush(&mut run, out);
                let at = usize::try_from(self.roll() >> 32).unwrap_or(0) % datagram.len();
                run.extend_from_slice(datagram);
                run[at] ^= 1 << (self.roll() % 8);
                flush(&mut run, out);
            } else if self.happens(faults.reordering) {
                flush(&mut run, out);
                let others = usize::try_from(self.roll() % 16).unwrap_or(0) + 1;
                self.late.push_back((others, part(datagram)));
            } else {
                run.extend_from_slice(datagram);
                if self.happens(faults.duplication) {
                    flush(&mut run, out);
                    run.extend_from_slice(datagram);
                }
                if self.happens(faults.split) {
                    flush(&mut run, out);
                }
            }
            for (others, _) in &mut self.late {
                *others = others.saturating_sub(1);
            }
            while self.late.front().is_some_and(|(others, _)| *others == 0) {
                flush(&mut run, out);
                out.extend(self.late.pop_front().map(|(_, part)| part));
            }
        }
        flush(&mut run, out);
        if train.bytes.is_empty() && !self.happens(faults.loss) {
            out.push(part(&[]));
        }
    }
}

impl<T: TunQueue> TunQueue for Faulty<T> {
    fn read_batch(&self, batch: &mut FrameBatch) -> io::Result<bool> {
        batch.clear();
        if self.happens(self.faults.full) {
            return Ok(true);
        }
        if self.happens(self.faults.error) {
            return Err(Errno::INTR.into());
        }
        self.inner.read_batch(batch)
    }

    fn processed(&self, batch: &FrameBatch) {
        self.inner.processed(batch);
    }

    fn write(&self, frame: &[IoSlice<'_>]) -> io::Result<()> {
        // Byte 1 of the virtio header is the kind of GRO packet.
        let coalesced = frame.iter().flat_map(|slice| slice.iter()).nth(1) != Some(&0);
        if coalesced && self.happens(self.faults.refusal) {
            return Err(Errno::INVAL.into());
        }
        if self.happens(self.faults.full) {
            return Err(Errno::AGAIN.into());
        }
        if self.happens(self.faults.error) {
            return Err(Errno::IO.into());
        }
        if self.happens(self.faults.loss) {
            return Ok(());
        }
        if self.happens(self.faults.duplication) {
            self.inner.write(frame)?;
        }
        self.inner.write(frame)
    }

    fn flush(&self) {
        self.inner.flush();
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn rests_for(&self) -> Option<Duration> {
        self.inner.rests_for()
    }

    fn has_begun_to_rest(&self) -> bool {
        self.inner.has_begun_to_rest()
    }

    fn last_arrival(&self) -> Option<Arrival> {
        self.inner.last_arrival()
    }
}

impl<T: UdpSocket> Faulty<T> {
    /// Another one of the same port, with dice of its own.
    fn beside(&self, inner: T) -> Self {
        let faults = Faults {
            seed: self.state().roll(),
            ..self.faults
        };
        Self::with(inner, faults, self.injector.clone())
    }

    /// Sends by this method of the socket.
    fn send_by(
        &self,
        trains: &[Transmit<'_>],
        report: &mut SendReport,
        send: impl FnOnce(&T, &[Transmit<'_>], &mut SendReport) -> usize,
    ) -> usize {
        let faults = self.faults();
        let mut state = self.state();
        let mut parts = Vec::new();
        let (mut taken, mut resume_at) = (0, 0);
        let mut refused = Vec::new();
        for train in trains {
            if state.happens(faults.full) {
                break;
            }
            let datagrams = train.bytes.len().div_ceil(train.stride.max(1)).max(1) as u64;
            if state.happens(faults.icmp) {
                state.icmp.push(train.to);
            }
            if state.happens(faults.not_sent) {
                refused.push((taken, datagrams));
            } else if datagrams > 1 && state.happens(faults.partial) {
                let leave = usize::try_from(1 + state.roll() % (datagrams - 1)).unwrap_or(1);
                resume_at = leave * train.stride;
                let bytes = &train.bytes[..resume_at];
                state.distort(&faults, &Transmit { bytes, ..*train }, &mut parts);
                break;
            } else {
                state.distort(&faults, train, &mut parts);
            }
            taken += 1;
        }
        let is_icmp = !state.icmp.is_empty();
        let error =
            (!refused.is_empty()).then(|| ERRORS[usize::try_from(state.roll() % 5).unwrap_or(0)]);
        drop(state);
        let transmits: Vec<_> = parts
            .iter()
            .map(|part| Transmit {
                to: part.to,
                ecn: part.ecn,
                stride: part.stride,
                bytes: &part.bytes,
            })
            .collect();
        // What does not fit the socket is lost on the network: this call has already taken it.
        let sent = send(&self.inner, &transmits, report);
        let datagrams =
            |train: &Transmit<'_>| train.bytes.len().div_ceil(train.stride).max(1) as u64;
        let passed = transmits[..sent].iter().map(datagrams).sum::<u64>() - report.datagrams_lost();
        self.injector.0.datagrams.fetch_add(passed, Relaxed);
        report.lost.clear();
        for (train, datagrams) in refused {
            report.lose(train, datagrams);
            report.error = error;
        }
        report.icmp |= is_icmp;
        report.resume_at = resume_at;
        report.stale_source = report.stale_source.map(|_| taken.max(1) - 1);
        taken
    }
}

impl<T: UdpSocket> UdpSocket for Faulty<T> {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        self.send_by(trains, report, T::send)
    }

    fn send_beside(&self, trains: &[Transmit<'_>], cut: Cut, report: &mut SendReport) -> usize {
        self.send_by(trains, report, |inner, trains, report| {
            inner.send_beside(trains, cut, report)
        })
    }

    fn send_socket(&self) -> io::Result<Self> {
        Ok(self.beside(self.inner.send_socket()?))
    }

    fn further(&self, more: usize) -> io::Result<Vec<Self>> {
        let further = self.inner.further(more)?;
        Ok(further.into_iter().map(|it| self.beside(it)).collect())
    }

    fn spread(&self, over: usize) -> io::Result<Grace> {
        self.inner.spread(over)
    }

    fn set_send_buffer(&self, bytes: usize) {
        self.inner.set_send_buffer(bytes);
    }

    fn short_buffers(&self) -> ShortBuffers {
        self.inner.short_buffers()
    }

    fn state(&self) -> UdpState {
        self.inner.state()
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        batch.clear();
        if self.happens(self.faults.full) {
            return Err(Errno::AGAIN.into());
        }
        if self.happens(self.faults.error) {
            return Err(Errno::CONNREFUSED.into());
        }
        self.inner.recv(batch)
    }

    fn take_errors(&self, each: &mut dyn FnMut(IcmpError, u64)) {
        for to in std::mem::take(&mut self.state().icmp) {
            let error = IcmpError {
                to: to.addr,
                reporter: None,
                kind: IcmpKind::ALL[0],
                code: (3, 1),
                mtu: 0,
            };
            each(error, 1);
        }
        self.inner.take_errors(each);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn in_use(&self) -> Option<Arc<dyn InUse>> {
        self.inner.in_use()
    }

    fn refuse(&self, source: IpAddr) {
        self.inner.refuse(source);
    }

    fn take_filtered(&self) -> Filtered {
        self.inner.take_filtered()
    }

    fn last_arrival(&self) -> Option<Arrival> {
        self.inner.last_arrival()
    }
}
