//! A queue of a TUN device and a UDP socket, as those see them who pass packets.

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use adit_proto::InUse;

use crate::batch::RecvBatch;
use crate::frames::FrameBatch;
use crate::transmit::{Arrival, Cut, Filtered, Grace, SendReport, ShortBuffers, Transmit};
use crate::udp::{IcmpError, UdpState};

/// One queue of a TUN device.
///
/// A wrapper passes every method on, those with a default, too: a default means that the device lacks
/// something. `testing/forwarding_tests.rs` looks at all wrappers of this crate.
pub trait TunQueue: Send + Sync {
    /// Clears `batch` and fills it with the frames that wait: true if none waits any more. A frame is a
    /// virtio header and an IP packet of up to 65,535 bytes.
    ///
    /// # Errors
    ///
    /// Why no frame could be read, if none was; [`TunErrorKind::of`](crate::tun::TunErrorKind::of) says what it
    /// means.
    fn read_batch(&self, batch: &mut FrameBatch) -> io::Result<bool>;

    /// All frames of a batch that was read from it have been processed.
    fn processed(&self, batch: &FrameBatch) {
        let _ = batch;
    }

    /// Writes one frame: a virtio header and an IP packet, gathered from `frame`.
    ///
    /// [`TunErrorKind::of`](crate::tun::TunErrorKind::of) says what an error means.
    ///
    /// # Errors
    ///
    /// [`TunErrorKind::of`](crate::tun::TunErrorKind::of) classifies them.
    fn write(&self, frame: &[IoSlice<'_>]) -> io::Result<()>;

    /// The frames of one batch have all been written.
    fn flush(&self) {}

    /// Readable when a frame waits.
    fn fd(&self) -> BorrowedFd<'_>;

    /// How long until frames can be read that have to wait, because their peers are at their limits;
    /// `None` if none have to. Those that have waited for long enough can be read from now on: the thread
    /// that waits for events of this queue is to call this as often as it says.
    fn rests_for(&self) -> Option<Duration> {
        None
    }

    /// Whether frames have begun to wait since this was last asked: the thread that waits for events is to
    /// call [`Self::rests_for`].
    fn has_begun_to_rest(&self) -> bool {
        false
    }

    /// Where the last frame came from, on kernels and with rights that tell.
    fn last_arrival(&self) -> Option<Arrival> {
        None
    }
}

/// A UDP socket of one address family.
///
/// As of [`TunQueue`], a wrapper passes every method on.
pub trait UdpSocket: Send + Sync {
    /// Sends trains in order and returns how many were taken: fewer than given when the socket's
    /// buffer is full.
    ///
    /// A train that the kernel refuses is tried without the offload it refused; what cannot be sent
    /// at all counts as taken and is lost, as UDP loses it. Everything but that number is added to
    /// `report`.
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize;

    /// Sends datagrams as [`Self::send`] does, from the same port, also while this socket is full.
    /// Where sockets cannot do that, it is [`Self::send`]. To be called seldom.
    fn send_beside(&self, trains: &[Transmit<'_>], _cut: Cut, report: &mut SendReport) -> usize {
        self.send(trains, report)
    }

    /// Clears `batch` and fills it with what waits, and with how much was lost before. `WouldBlock`
    /// when nothing waits.
    ///
    /// Errors other than `WouldBlock` concern one datagram (memory was short): call again, a
    /// bounded number of times.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when nothing waits; any other concerns one datagram that is lost.
    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()>;

    /// Opens a further socket on the same port that only sends and has a send buffer of its own:
    /// what arrives at the port still arrives at this one.
    ///
    /// # Errors
    ///
    /// `Unsupported` for sockets that cannot share a port; else what the kernel refused.
    fn send_socket(&self) -> io::Result<Self>
    where
        Self: Sized,
    {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Opens so many further sockets on the same port, at which nothing arrives until
    /// [`Self::spread`] says so. To be called while there are no send sockets.
    ///
    /// # Errors
    ///
    /// `Unsupported` for sockets that cannot share a port; else what the kernel refused.
    fn further(&self, more: usize) -> io::Result<Vec<Self>>
    where
        Self: Sized,
    {
        let _ = more;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Has the data that arrives at the port spread over so many of its sockets: what carries a
    /// receiver index whose last byte is `n`
    /// ([`RX_QUEUE_AT`](adit_proto::wire::DataHeader::RX_QUEUE_AT)) arrives at number `n`, modulo their
    /// number, of which this one is 0, and those from [`Self::further`] follow in their order.
    /// Anything else arrives at this one. What waits anywhere stays.
    ///
    /// # Errors
    ///
    /// `Unsupported` for sockets that cannot share a port; else what the kernel refused.
    fn spread(&self, over: usize) -> io::Result<Grace> {
        let _ = over;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Lets about `bytes` wait to be sent, as far as the kernel allows that.
    fn set_send_buffer(&self, bytes: usize) {
        let _ = bytes;
    }

    /// Takes the ICMP errors that came back, each with how often it did. To be called whenever the
    /// descriptor reports an error (`EPOLLERR`), which it does until they are taken, and when
    /// [`SendReport::icmp`] says so.
    fn take_errors(&self, each: &mut dyn FnMut(IcmpError, u64)) {
        let _ = each;
    }

    /// The buffers that the kernel made shorter than they should be.
    fn short_buffers(&self) -> ShortBuffers {
        ShortBuffers::default()
    }

    /// What is to learn which receiver indices are in use, so that datagrams with others can be
    /// dropped before they are queued; `None` where the kernel does not do that.
    fn in_use(&self) -> Option<Arc<dyn InUse>> {
        None
    }

    /// Initiations from this source that have no mac2 may be dropped before they are queued, for ten
    /// milliseconds. One of them was received.
    fn refuse(&self, source: IpAddr) {
        let _ = source;
    }

    /// How many datagrams were dropped before they were queued, since the last call.
    fn take_filtered(&self) -> Filtered {
        Filtered::default()
    }

    /// The state with which another process goes on with the socket, besides its descriptor.
    fn state(&self) -> UdpState {
        UdpState::default()
    }

    /// Readable when a datagram waits.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Where the last datagram arrived, on kernels and with rights that tell.
    fn last_arrival(&self) -> Option<Arrival> {
        None
    }
}

impl<T: TunQueue + ?Sized> TunQueue for Box<T> {
    fn read_batch(&self, batch: &mut FrameBatch) -> io::Result<bool> {
        (**self).read_batch(batch)
    }

    fn processed(&self, batch: &FrameBatch) {
        (**self).processed(batch)
    }

    fn write(&self, frame: &[IoSlice<'_>]) -> io::Result<()> {
        (**self).write(frame)
    }

    fn flush(&self) {
        (**self).flush();
    }

    fn fd(&self) -> BorrowedFd<'_> {
        (**self).fd()
    }

    fn rests_for(&self) -> Option<Duration> {
        (**self).rests_for()
    }

    fn has_begun_to_rest(&self) -> bool {
        (**self).has_begun_to_rest()
    }

    fn last_arrival(&self) -> Option<Arrival> {
        (**self).last_arrival()
    }
}

impl<T: UdpSocket> UdpSocket for Box<T> {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        (**self).send(trains, report)
    }

    fn send_beside(&self, trains: &[Transmit<'_>], cut: Cut, report: &mut SendReport) -> usize {
        (**self).send_beside(trains, cut, report)
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        (**self).recv(batch)
    }

    fn send_socket(&self) -> io::Result<Self> {
        (**self).send_socket().map(Self::new)
    }

    fn further(&self, more: usize) -> io::Result<Vec<Self>> {
        let further = (**self).further(more)?;
        Ok(further.into_iter().map(Self::new).collect())
    }

    fn spread(&self, over: usize) -> io::Result<Grace> {
        (**self).spread(over)
    }

    fn set_send_buffer(&self, bytes: usize) {
        (**self).set_send_buffer(bytes)
    }

    fn take_errors(&self, each: &mut dyn FnMut(IcmpError, u64)) {
        (**self).take_errors(each)
    }

    fn short_buffers(&self) -> ShortBuffers {
        (**self).short_buffers()
    }

    fn in_use(&self) -> Option<Arc<dyn InUse>> {
        (**self).in_use()
    }

    fn refuse(&self, source: IpAddr) {
        (**self).refuse(source)
    }

    fn take_filtered(&self) -> Filtered {
        (**self).take_filtered()
    }

    fn state(&self) -> UdpState {
        (**self).state()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        (**self).fd()
    }

    fn last_arrival(&self) -> Option<Arrival> {
        (**self).last_arrival()
    }
}

impl<T: TunQueue + ?Sized> TunQueue for std::sync::Arc<T> {
    fn read_batch(&self, batch: &mut FrameBatch) -> io::Result<bool> {
        (**self).read_batch(batch)
    }

    fn processed(&self, batch: &FrameBatch) {
        (**self).processed(batch)
    }

    fn write(&self, frame: &[IoSlice<'_>]) -> io::Result<()> {
        (**self).write(frame)
    }

    fn flush(&self) {
        (**self).flush();
    }

    fn fd(&self) -> BorrowedFd<'_> {
        (**self).fd()
    }

    fn rests_for(&self) -> Option<Duration> {
        (**self).rests_for()
    }

    fn has_begun_to_rest(&self) -> bool {
        (**self).has_begun_to_rest()
    }

    fn last_arrival(&self) -> Option<Arrival> {
        (**self).last_arrival()
    }
}
