//! What smoltcp has of a connection: only while that has something to carry.
//!
//! An open connection with nothing on its way is a few numbers. So when it has rested for a while its socket
//! and its rings are dropped. When it is to carry something smoltcp gets a new socket, which opens a
//! connection that the other end never hears of:
//!
//! 1. a SYN, which stays here,
//! 2. an answer, with the next sequence number of the other end and what its own SYN said,
//! 3. the window of the other end,
//! 4. an acknowledgement, which stays here.
//!
//! smoltcp draws its first sequence number itself. [`Segments`] has the difference.

use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::{self, DeviceCapabilities};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::HardwareAddress;

use super::device::{Segments, SmoltcpDevice, capabilities};
use crate::net::link::Egress;
use crate::net::wire;

/// The longest segment without payload: both headers, with all options.
const MAX_HEADERS: usize = 40 + 60;

/// An interface for all connections: smoltcp keeps nothing of them in it.
pub(super) fn interface(seed: u64) -> Interface {
    let mut config = Config::new(HardwareAddress::Ip);
    config.random_seed = seed;
    let mut interface = Interface::new(config, &mut Sink::default(), Instant::ZERO);
    // What is not for this end is dropped before.
    interface.set_any_ip(true);
    interface
}

/// smoltcp's socket of a connection.
pub(super) struct Awake {
    pub(super) sockets: SocketSet<'static>,
    socket: SocketHandle,
    /// What its rings take of the budget.
    pub(super) rings: [usize; 2],
}

impl Awake {
    /// A socket that is closed, with rings of so many bytes, to receive and to transmit.
    pub(super) fn new(rings: [usize; 2]) -> Self {
        // Zeros that nothing has touched take no memory.
        let [receive, transmit] = rings.map(|len| tcp::SocketBuffer::new(vec![0; len]));
        let mut socket = tcp::Socket::new(receive, transmit);
        socket.set_ack_delay(None);
        socket.set_nagle_enabled(false);
        // That is done for it.
        socket.set_congestion_control(tcp::CongestionControl::None);
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        Self {
            socket: sockets.add(socket),
            sockets,
            rings,
        }
    }

    pub(super) fn tcp(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.socket)
    }

    /// Hands a packet of its flow to smoltcp, which may answer.
    pub(super) fn receive(
        &mut self,
        interface: &mut Interface,
        egress: &mut Egress,
        segments: &mut Segments,
        packet: &mut [u8],
        start: usize,
    ) {
        segments.translate(packet, start);
        let now = Instant::from_micros(segments.now);
        let (ack, before, had_ended) = (segments.ack, self.tcp().recv_queue(), self.has_ended());
        let mut device = SmoltcpDevice {
            received: Some(packet),
            egress,
            segments,
        };
        interface.poll_ingress_single(now, &mut device, &mut self.sockets);
        let came = self.tcp().recv_queue().saturating_sub(before);
        let end = u32::from(self.has_ended() && !had_ended);
        segments.ack = ack.wrapping_add(u32::try_from(came).unwrap_or(0) + end);
    }

    /// Has smoltcp send a segment. False if it has none to send at this time.
    pub(super) fn send(
        &mut self,
        interface: &mut Interface,
        egress: &mut Egress,
        segments: &mut Segments,
        time: Instant,
    ) -> bool {
        let mut device = SmoltcpDevice {
            received: None,
            egress,
            segments,
        };
        interface.poll_egress(time, &mut device, &mut self.sockets) != PollResult::None
    }

    fn has_ended(&mut self) -> bool {
        is_half_closed(self.tcp().state())
    }

    /// Whether nothing is on its way, and nothing has to be done later.
    pub(super) fn is_at_rest(&mut self, interface: &mut Interface, now: Instant) -> bool {
        let socket = self.tcp();
        socket.state() == tcp::State::Established
            && socket.send_queue() == 0
            && socket.recv_queue() == 0
            && interface.poll_at(now, &self.sockets).is_none()
    }

    /// Opens a connection as it was when it came to rest. False if smoltcp does not take it.
    pub(super) fn revive(&mut self, interface: &mut Interface, segments: &mut Segments) -> bool {
        let flow = segments.flow;
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.socket);
        let connected = socket.connect(interface.context(), flow.remote, flow.local);
        if connected.is_err() {
            return false;
        }
        let mut sink = Sink::default();
        let now = Instant::from_micros(segments.now);
        // As long ago as a round trip takes: smoltcp measures that.
        let sent = segments.now - segments.recovery.round_trip();
        interface.poll_egress(Instant::from_micros(sent), &mut sink, &mut self.sockets);
        let Some(seq) = sink.seq.take() else {
            return false;
        };
        let [answer, window] = segments.answers(seq);
        for segment in [answer, window] {
            sink.received = Some(segment);
            interface.poll_ingress_single(now, &mut sink, &mut self.sockets);
        }
        interface.poll_egress(now, &mut sink, &mut self.sockets);
        self.tcp().state() == tcp::State::Established
    }
}

/// Whether the other end sends no more.
pub(super) fn is_half_closed(state: tcp::State) -> bool {
    use tcp::State::{CloseWait, Closing, LastAck, TimeWait};
    matches!(state, CloseWait | Closing | LastAck | TimeWait)
}

/// A device from which nothing leaves.
#[derive(Default)]
struct Sink {
    received: Option<Vec<u8>>,
    /// The sequence number of the last segment.
    seq: Option<u32>,
}

struct ReceivedSegment(Vec<u8>);

struct Swallow<'a>(&'a mut Option<u32>);

impl phy::RxToken for ReceivedSegment {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&self.0)
    }
}

impl phy::TxToken for Swallow<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut packet = [0; MAX_HEADERS];
        let len = len.min(packet.len());
        let result = write(&mut packet[..len]);
        let header = if packet[0] >> 4 == 4 { 20 } else { 40 };
        *self.0 = Some(wire::wide(&packet, header + 4));
        result
    }
}

impl phy::Device for Sink {
    type RxToken<'a> = ReceivedSegment;
    type TxToken<'a> = Swallow<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(ReceivedSegment, Swallow<'_>)> {
        let received = self.received.take()?;
        Some((ReceivedSegment(received), Swallow(&mut self.seq)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Swallow<'_>> {
        Some(Swallow(&mut self.seq))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities()
    }
}
