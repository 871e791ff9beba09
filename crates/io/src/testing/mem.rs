//! An in-memory TUN and an in-memory UDP network.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use adit_proto::wire::DataHeader;
use adit_proto::{Endpoint, Source};
use rustix::event::EventfdFlags;
use rustix::io::Errno;

use crate::udp::UdpState;
use crate::{FrameBatch, Grace, RecvBatch, SendReport, Transmit, TunQueue, UdpSocket};

/// Trains that wait at an in-memory socket before further ones are dropped, and frames at an
/// in-memory TUN.
const QUEUE: usize = 1024;

/// A bounded queue with a descriptor that is readable while something is in it.
struct MemQueue<T> {
    items: Mutex<VecDeque<T>>,
    ready: OwnedFd,
    /// Items that found it full.
    lost: AtomicU64,
}

impl<T> MemQueue<T> {
    fn new() -> io::Result<Self> {
        Ok(Self {
            items: Mutex::new(VecDeque::new()),
            ready: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            lost: AtomicU64::new(0),
        })
    }

    /// False, and nothing done, when it is full.
    fn push(&self, item: T) -> bool {
        let mut items = self.lock();
        if items.len() >= QUEUE {
            self.lost.fetch_add(1, Relaxed);
            return false;
        }
        items.push_back(item);
        if items.len() == 1 {
            // An eventfd that holds 0 takes 1: this cannot fail.
            let _ = rustix::io::write(&self.ready, &1_u64.to_ne_bytes());
        }
        true
    }

    fn pop(&self) -> Option<T> {
        let mut items = self.lock();
        let item = items.pop_front();
        if item.is_some() && items.is_empty() {
            let _ = rustix::io::read(&self.ready, &mut [0; 8]);
        }
        item
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An in-memory TUN queue, and the end at which a test plays the kernel.
///
/// # Errors
///
/// Those of eventfd(2), as when there are no further descriptors.
pub fn tun() -> io::Result<(MemTun, TunEnd)> {
    let to_queue = Arc::new(MemQueue::new()?);
    let from_queue = Arc::new(MemQueue::new()?);
    let end = TunEnd {
        to_queue: to_queue.clone(),
        from_queue: from_queue.clone(),
    };
    Ok((
        MemTun {
            to_queue,
            from_queue,
        },
        end,
    ))
}

/// One queue of an in-memory TUN device.
pub struct MemTun {
    to_queue: Arc<MemQueue<Vec<u8>>>,
    from_queue: Arc<MemQueue<Vec<u8>>>,
}

/// The kernel's side of a [`MemTun`]. Frames are whole: virtio header and packet.
#[derive(Clone)]
pub struct TunEnd {
    to_queue: Arc<MemQueue<Vec<u8>>>,
    from_queue: Arc<MemQueue<Vec<u8>>>,
}

impl TunEnd {
    /// Puts a frame where the queue's owner reads it; false if its ring is full.
    pub fn inject(&self, frame: Vec<u8>) -> bool {
        self.to_queue.push(frame)
    }

    /// Frames that found the ring full so far.
    pub fn refused(&self) -> u64 {
        self.to_queue.lost.load(Relaxed)
    }

    /// The next frame that the queue's owner wrote.
    pub fn take(&self) -> Option<Vec<u8>> {
        self.from_queue.pop()
    }

    /// Readable when [`Self::take`] has something.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.from_queue.ready.as_fd()
    }
}

impl MemTun {
    /// Reads one frame.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when none waits.
    pub fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let frame = self.to_queue.pop().ok_or(io::ErrorKind::WouldBlock)?;
        // Like the kernel: what does not fit is cut off.
        let len = frame.len().min(buf.len());
        buf[..len].copy_from_slice(&frame[..len]);
        Ok(len)
    }
}

impl TunQueue for MemTun {
    fn read_batch(&self, batch: &mut FrameBatch) -> io::Result<bool> {
        batch.fill(|buf| self.read(buf))
    }

    fn write(&self, frame: &[IoSlice<'_>]) -> io::Result<()> {
        let frame = frame
            .iter()
            .flat_map(|slice| slice.iter().copied())
            .collect();
        // Like the kernel, which drops what does not fit its backlog without telling.
        self.from_queue.push(frame);
        Ok(())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.to_queue.ready.as_fd()
    }
}

/// A train on its way.
struct MemTrain {
    from: Endpoint,
    ecn: u8,
    stride: usize,
    bytes: Vec<u8>,
}

/// Where a socket receives, and whether it receives trains.
#[derive(Clone)]
struct Binding {
    /// Of the sockets that share the address.
    queues: Vec<Arc<MemQueue<MemTrain>>>,
    /// Over how many of them data is spread.
    over: usize,
    /// A thread that queues something has it for so long.
    in_use: Arc<()>,
    gro: bool,
}

impl Binding {
    /// Where a datagram arrives.
    fn queue(&self, datagram: &[u8]) -> &MemQueue<MemTrain> {
        let rx_queue = match (datagram.first(), datagram.get(DataHeader::RX_QUEUE_AT)) {
            (Some(&DataHeader::TYPE), Some(rx_queue)) => usize::from(*rx_queue),
            _ => 0,
        };
        &self.queues[rx_queue % self.over]
    }
}

/// A UDP network in memory. Clones are the same network.
#[derive(Clone, Default)]
pub struct MemNetwork {
    sockets: Arc<Mutex<HashMap<SocketAddr, Binding>>>,
    delay: Arc<OnceLock<fn()>>,
}

impl MemNetwork {
    /// An empty network.
    pub fn new() -> Self {
        Self::default()
    }

    /// A socket at `addr`. `gso`: trains to and from it travel as trains, else datagram by
    /// datagram.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if the address has a socket, and those of eventfd(2).
    pub fn bind(&self, addr: SocketAddr, gso: bool) -> io::Result<MemUdp> {
        let queue = Arc::new(MemQueue::new()?);
        let mut sockets = self.lock();
        if sockets.contains_key(&addr) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let place = Binding {
            queues: vec![queue.clone()],
            over: 1,
            in_use: Arc::default(),
            gro: gso,
        };
        sockets.insert(addr, place);
        Ok(MemUdp {
            network: self.clone(),
            addr,
            gso,
            queue,
            is_first: true,
        })
    }

    /// Has each datagram wait for this once its socket is chosen, before it arrives there. To be
    /// called once.
    pub fn delay(&self, delay: fn()) {
        let _ = self.delay.set(delay);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, Binding>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A socket of an in-memory [`MemNetwork`]. Dropping it frees its address.
pub struct MemUdp {
    network: MemNetwork,
    addr: SocketAddr,
    gso: bool,
    queue: Arc<MemQueue<MemTrain>>,
    /// The address is free when this one is dropped.
    is_first: bool,
}

impl MemUdp {
    /// The address that it is bound to.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for MemUdp {
    fn drop(&mut self) {
        if self.is_first {
            self.network.lock().remove(&self.addr);
        }
    }
}

impl UdpSocket for MemUdp {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        report.stale_source = None;
        report.resume_at = 0;
        report.lost.clear();
        for (index, train) in trains.iter().enumerate() {
            let stride = train.stride.max(1);
            let datagrams = train.bytes.len().div_ceil(stride).max(1) as u64;
            let Some(to) = self.network.lock().get(&train.to.addr).cloned() else {
                report.lose(index, datagrams);
                report.error = Some(Errno::HOSTUNREACH);
                continue;
            };
            if let Some(delay) = self.network.delay.get() {
                delay();
            }
            let unit = if self.gso && to.gro {
                usize::MAX
            } else {
                stride
            };
            let mut rest = train.bytes;
            loop {
                let (bytes, after) = rest.split_at(rest.len().min(unit));
                // A full queue loses it, as a receive buffer does.
                to.queue(bytes).push(MemTrain {
                    from: Endpoint {
                        addr: self.addr,
                        src: Some(Source {
                            ip: train.to.addr.ip(),
                            ifindex: 1,
                        }),
                    },
                    ecn: train.ecn,
                    stride,
                    bytes: bytes.to_vec(),
                });
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
        }
        trains.len()
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        batch.clear();
        while batch.len() < batch.slots() {
            let Some(train) = self.queue.pop() else {
                break;
            };
            batch.push(train.from, train.ecn, train.stride, &train.bytes);
        }
        if batch.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        batch.add_lost(self.queue.lost.swap(0, Relaxed));
        Ok(())
    }

    fn send_socket(&self) -> io::Result<Self> {
        Ok(Self {
            network: self.network.clone(),
            addr: self.addr,
            gso: self.gso,
            queue: Arc::new(MemQueue::new()?),
            is_first: false,
        })
    }

    fn further(&self, more: usize) -> io::Result<Vec<Self>> {
        let sockets = (0..more).map(|_| self.send_socket());
        let sockets = sockets.collect::<io::Result<Vec<_>>>()?;
        let further = sockets.iter().map(|socket| socket.queue.clone());
        if let Some(binding) = self.network.lock().get_mut(&self.addr) {
            binding.queues.extend(further);
        }
        Ok(sockets)
    }

    fn spread(&self, over: usize) -> io::Result<Grace> {
        let mut network = self.network.lock();
        let binding = network.get_mut(&self.addr);
        let binding = binding.ok_or(io::ErrorKind::NotConnected)?;
        binding.over = over.clamp(1, binding.queues.len());
        let before = std::mem::take(&mut binding.in_use);
        Ok(Grace::until_dropped(&before))
    }

    fn state(&self) -> UdpState {
        let binding = self.network.lock().get(&self.addr).cloned();
        UdpState {
            group: binding.map_or(0, |it| u32::try_from(it.over).unwrap_or_default()),
            ..UdpState::default()
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.queue.ready.as_fd()
    }
}
