//! Devices in memory for the engine: a TUN that is read without end, a socket that counts, records and
//! replays.

use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use adit_io::testing::mem::{MemTun, MemUdp};
use adit_io::{FrameBatch, Grace, RecvBatch, SendReport, Transmit, TunQueue, UdpSocket};

/// The first type of a data message.
const DATA: u8 = 4;
/// Bytes of datagrams in a receive batch, as from a socket.
const BATCH: usize = 256 << 10;

/// What a TUN reads and what becomes of what is written to it.
#[derive(Default)]
pub(super) struct Ends {
    /// Frames that are read without end while `reads`.
    pub(super) frames: Vec<Vec<u8>>,
    pub(super) reads: AtomicBool,
    pub(super) next: AtomicUsize,
    /// Bytes that were written to the TUN.
    pub(super) written: AtomicU64,
    /// Data messages are not sent but counted, and kept while `records`.
    pub(super) counts: AtomicBool,
    pub(super) sent: AtomicU64,
    pub(super) records: AtomicBool,
    pub(super) recorded: Mutex<Vec<Train>>,
    /// What is received while `replays`, by the receive queues of peers modulo [`QUEUES`].
    pub(super) replays: AtomicBool,
    pub(super) replayed: [Mutex<Replay>; QUEUES],
}

/// As many as the receive queues that a gateway has at most.
pub(super) const QUEUES: usize = 8;

/// A message of data.
pub(super) struct Train {
    pub(super) stride: usize,
    pub(super) bytes: Box<[u8]>,
}

/// What is received, in this order. It is kept until all is over: to free megabytes takes the kernel
/// milliseconds, in which no other thread gets memory.
#[derive(Default)]
pub(super) struct Replay {
    pub(super) trains: Vec<Train>,
    /// How many of them were received.
    pub(super) received: usize,
    /// Bytes of the others.
    pub(super) left: usize,
}

impl Replay {
    pub(super) fn push(&mut self, train: Train) {
        self.left += train.bytes.len();
        self.trains.push(train);
    }

    fn receive(&mut self) -> Option<&Train> {
        let train = self.trains.get(self.received)?;
        self.received += 1;
        self.left -= train.bytes.len();
        Some(train)
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) struct Tun(pub(super) MemTun, pub(super) Arc<Ends>);

impl TunQueue for Tun {
    fn read_batch(&self, batch: &mut FrameBatch) -> io::Result<bool> {
        batch.fill(|buf| {
            if !self.1.reads.load(Ordering::Relaxed) {
                return self.0.read(buf);
            }
            let next = self.1.next.fetch_add(1, Ordering::Relaxed);
            let frame = &self.1.frames[next % self.1.frames.len()];
            buf[..frame.len()].copy_from_slice(frame);
            Ok(frame.len())
        })
    }

    fn write(&self, frame: &[IoSlice<'_>]) -> io::Result<()> {
        let bytes: usize = frame.iter().map(|piece| piece.len()).sum();
        self.1.written.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

pub(super) struct Udp {
    pub(super) device: MemUdp,
    pub(super) ends: Arc<Ends>,
    /// Which one it is of all that share the port, and how many these are.
    pub(super) rx_queue: usize,
    pub(super) rx_queues: Arc<AtomicUsize>,
    /// How many were opened behind the first.
    pub(super) further: AtomicUsize,
    /// Trains that it has replayed.
    pub(super) replayed: AtomicUsize,
}

impl UdpSocket for Udp {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        let is_data = |train: &Transmit<'_>| train.bytes.first() == Some(&DATA);
        let ends = &self.ends;
        if !ends.counts.load(Ordering::Relaxed) || !trains.iter().all(is_data) {
            return self.device.send(trains, report);
        }
        let bytes: usize = trains.iter().map(|train| train.bytes.len()).sum();
        ends.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        if ends.records.load(Ordering::Relaxed) {
            let copies = trains.iter().map(|train| Train {
                stride: train.stride,
                bytes: train.bytes.into(),
            });
            lock(&ends.recorded).extend(copies);
        }
        report.lost.clear();
        report.resume_at = 0;
        trains.len()
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        if !self.ends.replays.load(Ordering::Relaxed) {
            return self.device.recv(batch);
        }
        batch.clear();
        let own = self.ends.replayed.iter().skip(self.rx_queue);
        let own = own.step_by(self.rx_queues.load(Ordering::Relaxed));
        let mut own: Vec<_> = own.map(lock).collect();
        let mut next = self.replayed.load(Ordering::Relaxed);
        let mut bytes = 0;
        while bytes < BATCH && batch.len() < batch.slots() && !own.is_empty() {
            // The peers send in turn.
            next %= own.len();
            let Some(train) = own[next].receive() else {
                drop(own.swap_remove(next));
                continue;
            };
            batch.push(address(1).into(), 0, train.stride, &train.bytes);
            bytes += train.bytes.len();
            next += 1;
        }
        if bytes == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.replayed.fetch_add(batch.len(), Ordering::Relaxed);
        if own.iter().any(|replay| replay.left > 0) {
            batch.leave_more();
        }
        Ok(())
    }

    fn further(&self, more: usize) -> io::Result<Vec<Self>> {
        let first = 1 + self.further.fetch_add(more, Ordering::Relaxed);
        let devices = self.device.further(more)?.into_iter();
        let further = (first..).zip(devices).map(|(rx_queue, device)| Self {
            device,
            ends: Arc::clone(&self.ends),
            rx_queue,
            rx_queues: Arc::clone(&self.rx_queues),
            further: AtomicUsize::new(0),
            replayed: AtomicUsize::new(0),
        });
        Ok(further.collect())
    }

    fn spread(&self, over: usize) -> io::Result<Grace> {
        let grace = self.device.spread(over)?;
        self.rx_queues.store(over, Ordering::Relaxed);
        for rx_queue in (1_u8..).take(over - 1) {
            // It becomes readable, and stays so while it receives what is replayed.
            let kick = Transmit {
                to: self.device.local_addr().into(),
                ecn: 0,
                stride: 8,
                bytes: &[DATA, 0, 0, 0, 0, 0, 0, rx_queue],
            };
            self.device.send(&[kick], &mut SendReport::default());
        }
        Ok(grace)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.device.fd()
    }
}

/// The gateway is number 0, the leaves follow.
pub(super) fn address(host: u8) -> SocketAddr {
    (Ipv4Addr::new(192, 0, 2, 1 + host), 51_820).into()
}
