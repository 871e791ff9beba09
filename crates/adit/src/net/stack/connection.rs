//! One TCP connection: smoltcp's interface and socket, and the descriptor whose bytes it carries.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};

use super::clock::{MILLISECOND, Micros, SECOND};
use super::device::{Segments, SmoltcpDevice};
use super::recovery::Acknowledgement;
use crate::net::link::Egress;
use crate::net::shared::{EndReason, OpenConnection, Reply};
use crate::net::wire::{self, Flow, Headers};

/// What was sent is not acknowledged for so long: the other end is gone (Linux gives up after some 15
/// minutes, RFC 9293 §3.8.3 asks for 100 s at least).
const STALLED: Micros = 120 * SECOND;
/// A closed stream waits for the other end's FIN for so long (Linux's `tcp_fin_timeout`).
const ORPHANED: Micros = 60 * SECOND;
/// Bytes that are moved between a descriptor and a ring before others have their turn.
const TURN: usize = 256 << 10;
/// Segments of up to 64 KB that are sent before others have their turn.
const SEGMENTS: usize = 32;

/// Who waits for a connection.
pub(super) enum Stage {
    /// Who asked for it.
    Connecting(Reply<OpenConnection>),
    /// The listener of the local port.
    Accepting,
    /// Nobody: it is open.
    Open,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Both ends closed it.
    Closed,
    Reset,
    TimedOut,
}

/// What is left to do with a connection after it had its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing until something happens, or this time.
    Wait(Option<Micros>),
    /// It has more to do at once.
    Again,
    /// The tunnel takes no more for now.
    NoRoom,
    /// Nothing any more: what stays is the other end's last acknowledgement, perhaps.
    Remove(Ending),
}

pub(super) struct TcpConnection {
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    pub(super) flow: Flow,
    pub(super) segments: Segments,
    pub(super) stage: Stage,
    /// Bytes of the budget.
    pub(super) reserved: usize,
    /// It waits for its turn.
    pub(super) is_ready: bool,
    /// The earliest timer that is set for it.
    pub(super) timer: Option<Micros>,
    /// When it is given up: a connection that does not come about, or whose program is gone.
    pub(super) deadline: Option<Micros>,
    end: Option<Arc<EndReason>>,
    fd: Option<OwnedFd>,
    fd_state: FdState,
    state: tcp::State,
    ending: Option<Ending>,
    /// Since when what was sent has not been answered by anything.
    silent_since: Option<Micros>,
    time_wait_since: Option<Micros>,
}

#[derive(Clone, Copy, Default)]
struct FdState {
    is_readable: bool,
    is_writable: bool,
    /// Nothing comes from it any more.
    has_ended: bool,
    /// It was told that nothing more comes.
    is_shut: bool,
    /// Its other end is gone.
    is_gone: bool,
}

impl TcpConnection {
    /// A connection that is closed, with rings of so many bytes.
    pub(super) fn new(
        flow: Flow,
        mtu: usize,
        rings: [usize; 2],
        seed: u64,
        stage: Stage,
        egress: &mut Egress,
    ) -> Self {
        let mut segments = Segments::new(flow, mtu);
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut device = SmoltcpDevice {
            received: None,
            egress,
            segments: &mut segments,
        };
        let mut interface = Interface::new(config, &mut device, Instant::ZERO);
        let bits = if flow.local.is_ipv4() { 32 } else { 128 };
        interface.update_ip_addrs(|addresses| {
            let cidr = IpCidr::new(IpAddress::from(flow.local.ip()), bits);
            // It has room for two.
            let _ = addresses.push(cidr);
        });
        // Zeros that nothing has touched take no memory.
        let [receive, transmit] = rings.map(|len| tcp::SocketBuffer::new(vec![0; len]));
        let mut socket = tcp::Socket::new(receive, transmit);
        socket.set_ack_delay(None);
        socket.set_nagle_enabled(false);
        socket.set_congestion_control(tcp::CongestionControl::Cubic);
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let socket = sockets.add(socket);
        Self {
            interface,
            sockets,
            socket,
            flow,
            segments,
            stage,
            reserved: rings.iter().sum(),
            is_ready: false,
            timer: None,
            deadline: None,
            end: None,
            fd: None,
            fd_state: FdState::default(),
            state: tcp::State::Closed,
            ending: None,
            silent_since: None,
            time_wait_since: None,
        }
    }

    fn tcp(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.socket)
    }

    /// Begins to connect. False if the addresses are none that can be.
    pub(super) fn connect(&mut self) -> bool {
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.socket);
        let (remote, local) = (self.flow.remote, self.flow.local);
        let connected = socket.connect(self.interface.context(), remote, local);
        self.state = socket.state();
        connected.is_ok()
    }

    /// Waits for the SYN that it was made for.
    pub(super) fn listen(&mut self) -> bool {
        let local = self.flow.local;
        let listens = self.tcp().listen(local).is_ok();
        self.state = self.tcp().state();
        listens
    }

    /// Hands a packet of its flow to smoltcp.
    pub(super) fn receive(
        &mut self,
        now: Micros,
        packet: &mut [u8],
        headers: &Headers,
        egress: &mut Egress,
    ) {
        self.segments.now = now;
        let repeats = self.segments.received(packet, headers);
        self.process(packet, egress);
        if repeats {
            self.repeat(egress);
        }
        self.silent_since = None;
        let state = self.tcp().state();
        if state == self.state {
            return;
        }
        let was = std::mem::replace(&mut self.state, state);
        match state {
            tcp::State::Closed if self.ending.is_none() => {
                self.ending = Some(match was {
                    tcp::State::LastAck | tcp::State::Closing | tcp::State::TimeWait => {
                        Ending::Closed
                    }
                    _ => Ending::Reset,
                });
            }
            // The SYN was taken back.
            tcp::State::Listen => self.ending = Some(Ending::Reset),
            tcp::State::TimeWait => self.time_wait_since = Some(now),
            _ => {}
        }
    }

    fn process(&mut self, packet: &[u8], egress: &mut Egress) {
        let now = Instant::from_micros(self.segments.now);
        let mut device = SmoltcpDevice {
            received: Some(packet),
            egress,
            segments: &mut self.segments,
        };
        let sockets = &mut self.sockets;
        self.interface
            .poll_ingress_single(now, &mut device, sockets);
    }

    /// Has smoltcp repeat the first segment that is not acknowledged.
    fn repeat(&mut self, egress: &mut Egress) {
        let mut packet = [0; 60];
        let len = wire::bare_segment_len(&self.flow);
        for Acknowledgement { seq, ack, window } in
            self.segments.recovery.duplicates().into_iter().flatten()
        {
            let packet = &mut packet[..len];
            wire::write_acknowledgement(packet, &self.flow, [seq, ack], window);
            self.process(packet, egress);
        }
    }

    /// Whether the other end has accepted it, or it theirs.
    pub(super) fn is_established(&self) -> bool {
        use tcp::State::{Closed, Listen, SynReceived, SynSent};
        !matches!(self.state, Closed | Listen | SynSent | SynReceived)
    }

    /// Its bytes come from this descriptor, and go there.
    pub(super) fn attach(&mut self, fd: OwnedFd, end: Arc<EndReason>) {
        self.fd_state = FdState {
            is_readable: true,
            is_writable: true,
            ..FdState::default()
        };
        self.fd = Some(fd);
        self.end = Some(end);
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// What epoll says of the descriptor.
    pub(super) fn fd_event(&mut self, readable: bool, writable: bool, is_gone: bool) {
        self.fd_state.is_readable |= readable;
        self.fd_state.is_writable |= writable;
        self.fd_state.is_gone |= is_gone;
    }

    /// Ends it with a RST.
    pub(super) fn abort(&mut self, ending: Ending) {
        self.ending.get_or_insert(ending);
        self.tcp().abort();
        self.state = tcp::State::Closed;
    }

    /// Tells the program why its stream ended, and closes the descriptor.
    pub(super) fn finish(&mut self, ending: Ending) {
        let Some(fd) = self.fd.take() else {
            return;
        };
        if let Some(end) = &self.end {
            match ending {
                Ending::Closed => {}
                Ending::Reset => end.reset(),
                Ending::TimedOut => end.timed_out(),
            }
        }
        if ending != Ending::Closed {
            // A TCP socket that was joined is reset, too. Another kind has no such thing.
            let _ = rustix::net::sockopt::set_socket_linger(&fd, Some(std::time::Duration::ZERO));
        }
    }

    /// The stack ends.
    pub(super) fn net_ended(&mut self) {
        if let Some(end) = &self.end {
            end.net_ended();
        }
        self.fd = None;
    }

    /// Its turn: bytes from the descriptor to the ring, segments, bytes from the ring to the descriptor.
    pub(super) fn advance(&mut self, now: Micros, egress: &mut Egress) -> Next {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.abort(Ending::TimedOut);
        }
        self.segments.now = now;
        if self.is_established() && self.segments.probes() {
            self.repeat(egress);
        }
        let was_read = self.read_fd();
        let mut sent = self.send(now, egress);
        let written = self.write_fd();
        // The window may be open again.
        if written > 0 && sent == Sending::Done {
            sent = self.send(now, egress);
        }
        self.watch(now);
        if let Some(ending) = self.is_over(now, sent) {
            return Next::Remove(ending);
        }
        match sent {
            Sending::NoRoom => Next::NoRoom,
            Sending::More => Next::Again,
            Sending::Done if was_read >= TURN || written >= TURN => Next::Again,
            Sending::Done => Next::Wait(self.next_time(now)),
        }
    }

    fn read_fd(&mut self) -> usize {
        let Some(fd) = &self.fd else { return 0 };
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.socket);
        let state = &mut self.fd_state;
        let mut moved = 0;
        let mut is_broken = false;
        while moved < TURN && state.is_readable && !state.has_ended && socket.can_send() {
            let read = socket.send(|ring| {
                let received = recv(fd, &mut *ring, RecvFlags::DONTWAIT);
                (received.map_or(0, |(_, len)| len.min(ring.len())), received)
            });
            match read {
                Ok(Ok((_, 0))) => state.has_ended = true,
                Ok(Ok((_, len))) => moved += len,
                Ok(Err(Errno::INTR)) => {}
                Ok(Err(Errno::AGAIN)) => state.is_readable = false,
                Ok(Err(_)) => {
                    is_broken = true;
                    break;
                }
                Err(_) => break,
            }
        }
        if is_broken {
            self.abort(Ending::Reset);
        } else if state.has_ended {
            // After what the ring has. Nothing happens the second time.
            socket.close();
            self.state = socket.state();
        }
        moved
    }

    fn send(&mut self, now: Micros, egress: &mut Egress) -> Sending {
        let time = Instant::from_micros(now);
        // smoltcp would forget what was received once it no longer waits for repeated segments.
        if self.state == tcp::State::TimeWait
            && self
                .time_wait_since
                .is_some_and(|since| since + SECOND < now)
        {
            return Sending::Done;
        }
        let mut sending = Sending::More;
        for _ in 0..SEGMENTS {
            if !egress.has_room() {
                return Sending::NoRoom;
            }
            let mut device = SmoltcpDevice {
                received: None,
                egress,
                segments: &mut self.segments,
            };
            let polled = self
                .interface
                .poll_egress(time, &mut device, &mut self.sockets);
            if polled == smoltcp::iface::PollResult::None {
                sending = Sending::Done;
                break;
            }
        }
        self.state = self.tcp().state();
        sending
    }

    fn write_fd(&mut self) -> usize {
        let Some(fd) = &self.fd else { return 0 };
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.socket);
        let state = &mut self.fd_state;
        let mut moved = 0;
        let mut is_broken = false;
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        while moved < TURN && state.is_writable && socket.can_recv() {
            let written = socket.recv(|ring| {
                let sent = send(fd, ring, flags);
                (sent.unwrap_or(0), sent)
            });
            match written {
                Ok(Ok(len)) => moved += len,
                Ok(Err(Errno::INTR)) => {}
                Ok(Err(Errno::AGAIN)) => state.is_writable = false,
                Ok(Err(_)) => {
                    is_broken = true;
                    break;
                }
                Err(_) => break,
            }
        }
        let has_finished = !socket.can_recv() && is_half_closed(self.state);
        if is_broken {
            // Nobody takes what comes.
            self.abort(Ending::Reset);
        } else if has_finished && !state.is_shut {
            state.is_shut = true;
            let _ = shutdown(fd, Shutdown::Write);
        }
        moved
    }

    /// Gives up a connection whose other end, or whose program, is gone.
    fn watch(&mut self, now: Micros) {
        use tcp::State::{Closing, FinWait1, FinWait2, LastAck};
        let waits =
            self.tcp().send_queue() > 0 || matches!(self.state, FinWait1 | Closing | LastAck);
        if waits && self.is_established() {
            let since = *self.silent_since.get_or_insert(now);
            if since + STALLED <= now {
                self.abort(Ending::TimedOut);
            }
        }
        let is_orphan = self.fd_state.is_gone && self.state == FinWait2;
        if is_orphan && self.deadline.is_none() {
            self.deadline = Some(now + ORPHANED);
        }
    }

    /// How it ended, if nothing is left to do.
    fn is_over(&mut self, now: Micros, sent: Sending) -> Option<Ending> {
        let is_drained = self.fd.is_none() || !self.tcp().can_recv() || self.fd_state.is_gone;
        if !is_drained || sent != Sending::Done {
            return None;
        }
        match self.state {
            // Its last acknowledgement has left. What is left of it answers repeated ones.
            tcp::State::TimeWait => Some(Ending::Closed),
            // A RST may be still to be sent.
            tcp::State::Closed => {
                let time = self
                    .interface
                    .poll_at(Instant::from_micros(now), &self.sockets);
                time.is_none()
                    .then(|| self.ending.unwrap_or(Ending::Closed))
            }
            tcp::State::Listen => self.ending,
            _ => None,
        }
    }

    /// When smoltcp, or the deadline, wants to be looked at.
    fn next_time(&mut self, now: Micros) -> Option<Micros> {
        let time = match self.state {
            tcp::State::TimeWait => None,
            _ => {
                let now = Instant::from_micros(now);
                self.interface.poll_at(now, &self.sockets)
            }
        };
        // What it could not do just now it cannot do at once.
        let time = time.map(|time| time.total_micros().max(now + MILLISECOND));
        let probe = self.segments.probe_at().filter(|_| self.is_established());
        [time, probe, self.deadline].into_iter().flatten().min()
    }

    /// Whether it answers the repeated segments of its other end for a while.
    pub(super) fn is_in_time_wait(&self) -> bool {
        self.state == tcp::State::TimeWait
    }
}

/// What came of sending segments.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sending {
    Done,
    More,
    NoRoom,
}

/// Whether the other end sends no more.
fn is_half_closed(state: tcp::State) -> bool {
    use tcp::State::{CloseWait, Closing, LastAck, TimeWait};
    matches!(state, CloseWait | Closing | LastAck | TimeWait)
}
