//! Records what passes a TUN queue or UDP socket in a file that tcpdump and Wireshark read.

use std::io::{self, IoSlice, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use adit_offload::VNET_HDR_LEN;
use adit_proto::InUse;

use crate::udp::UdpState;
use crate::{
    Arrival, Cut, Filtered, FrameBatch, Grace, IcmpError, RecvBatch, SendReport, ShortBuffers,
    Transmit, TunQueue, UdpSocket,
};

/// A packet begins with its IP header.
const LINKTYPE_RAW: u32 = 101;

/// A recording. Clones write to the same one.
#[derive(Clone)]
pub struct Recorder(Arc<Mutex<Box<dyn Write + Send>>>);

impl Recorder {
    /// Begins a recording on `out`, unbuffered: pass a buffered writer for buffers.
    ///
    /// # Errors
    ///
    /// Those of writing to `out`.
    pub fn new(mut out: impl Write + Send + 'static) -> io::Result<Self> {
        // The format with nanoseconds, in our byte order; version 2.4
        out.write_all(&0xa1b2_3c4d_u32.to_ne_bytes())?;
        out.write_all(&[2_u16.to_ne_bytes(), 4_u16.to_ne_bytes()].concat())?;
        // Zone, accuracy, longest packet
        for field in [0, 0, 1 << 18, LINKTYPE_RAW] {
            out.write_all(&u32::to_ne_bytes(field))?;
        }
        Ok(Self(Arc::new(Mutex::new(Box::new(out)))))
    }

    /// Adds a packet. A packet that cannot be written is left out: a full disk stops no traffic.
    fn record(&self, packet: &[u8]) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        // Seconds wrap in 2106.
        let seconds = u32::try_from(now.as_secs() & u64::from(u32::MAX)).unwrap_or(0);
        let len = u32::try_from(packet.len()).unwrap_or(0);
        let mut record = Vec::with_capacity(16 + packet.len());
        for field in [seconds, now.subsec_nanos(), len, len] {
            record.extend(field.to_ne_bytes());
        }
        record.extend(packet);
        let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = out.write_all(&record);
    }

    /// Adds each datagram of a train, below headers made up for it, whose checksums are left zero.
    fn record_train(&self, from: SocketAddr, to: SocketAddr, ecn: u8, stride: usize, bytes: &[u8]) {
        let mut rest = bytes;
        loop {
            let (datagram, after) = rest.split_at(rest.len().min(stride.max(1)));
            if let Some(packet) = packet(from, to, ecn, datagram) {
                self.record(&packet);
            }
            rest = after;
            if rest.is_empty() {
                return;
            }
        }
    }
}

/// A UDP packet; `None` if it would be too long or the addresses differ in family.
fn packet(from: SocketAddr, to: SocketAddr, ecn: u8, datagram: &[u8]) -> Option<Vec<u8>> {
    let udp_len = u16::try_from(8 + datagram.len()).ok()?;
    let mut packet = Vec::with_capacity(48 + datagram.len());
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            packet.extend([0x45, ecn]);
            packet.extend(udp_len.checked_add(20)?.to_be_bytes());
            packet.extend([0, 0, 0, 0, 64, 17, 0, 0]);
            packet.extend(from.octets());
            packet.extend(to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            packet.extend([0x60, ecn << 4, 0, 0]);
            packet.extend(udp_len.to_be_bytes());
            packet.extend([17, 64]);
            packet.extend(from.octets());
            packet.extend(to.octets());
        }
        _ => return None,
    }
    packet.extend(from.port().to_be_bytes());
    packet.extend(to.port().to_be_bytes());
    packet.extend(udp_len.to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(datagram);
    Some(packet)
}

/// `T`, recorded.
pub struct Recorded<T> {
    inner: T,
    recorder: Recorder,
    /// The socket's own address; its IP address, where a message states another, is that one.
    local: SocketAddr,
}

impl<T> Recorded<T> {
    /// Records a TUN queue: packets and GRO packets, without their virtio headers.
    pub fn tun(inner: T, recorder: Recorder) -> Self {
        let local = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        Self::udp(inner, recorder, local)
    }

    /// Records a UDP socket that is bound to `local`: every datagram that was received, or offered
    /// and taken.
    pub fn udp(inner: T, recorder: Recorder, local: SocketAddr) -> Self {
        Self {
            inner,
            recorder,
            local,
        }
    }
}

impl<T> Recorded<T> {
    /// Another one of the same port, in the same recording.
    fn beside(&self, inner: T) -> Self {
        Self {
            inner,
            recorder: self.recorder.clone(),
            local: self.local,
        }
    }

    fn record_sent(&self, trains: &[Transmit<'_>], taken: usize) {
        for train in trains.iter().take(taken) {
            let src = train.to.src.map_or(self.local.ip(), |src| src.ip);
            let from = SocketAddr::new(src, self.local.port());
            self.recorder
                .record_train(from, train.to.addr, train.ecn, train.stride, train.bytes);
        }
    }
}

impl<T: TunQueue> TunQueue for Recorded<T> {
    fn read_batch(&self, batch: &mut FrameBatch) -> io::Result<bool> {
        let emptied = self.inner.read_batch(batch)?;
        for frame in batch.left() {
            self.recorder
                .record(frame.get(VNET_HDR_LEN..).unwrap_or_default());
        }
        Ok(emptied)
    }

    fn processed(&self, batch: &FrameBatch) {
        self.inner.processed(batch);
    }

    fn write(&self, frame: &[IoSlice<'_>]) -> io::Result<()> {
        self.inner.write(frame)?;
        let bytes: Vec<u8> = frame
            .iter()
            .flat_map(|slice| slice.iter().copied())
            .collect();
        self.recorder
            .record(bytes.get(VNET_HDR_LEN..).unwrap_or_default());
        Ok(())
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

impl<T: UdpSocket> UdpSocket for Recorded<T> {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        let taken = self.inner.send(trains, report);
        self.record_sent(trains, taken);
        taken
    }

    fn send_beside(&self, trains: &[Transmit<'_>], cut: Cut, report: &mut SendReport) -> usize {
        let taken = self.inner.send_beside(trains, cut, report);
        self.record_sent(trains, taken);
        taken
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
        self.inner.recv(batch)?;
        for (received, bytes) in batch.iter_mut() {
            let ip = received.from.src.map_or(self.local.ip(), |src| src.ip);
            let to = SocketAddr::new(ip, self.local.port());
            self.recorder.record_train(
                received.from.addr,
                to,
                received.ecn,
                received.stride,
                bytes,
            );
        }
        Ok(())
    }

    fn take_errors(&self, each: &mut dyn FnMut(IcmpError, u64)) {
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
