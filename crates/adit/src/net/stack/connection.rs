//! One TCP connection: smoltcp's socket while it has something to carry, and the descriptor whose bytes it carries.

use smoltcp::socket::tcp;
use smoltcp::time::Instant;

use super::awake::{Awake, is_half_closed};
use super::clock::{MILLISECOND, Micros, SECOND};
use super::core::Core;
use super::device::Segments;
use super::program_end::{ProgramEnd, TURN};
use super::recovery::Repeat;
use crate::net::shared::{EndReason, OpenConnection, Reply};
use crate::net::wire::{self, Flow, Headers};

/// What was sent is not acknowledged for so long: the other end is gone (Linux gives up after some 15
/// minutes, RFC 9293 §3.8.3 asks for 100 s at least).
const STALLED: Micros = 120 * SECOND;
/// A closed stream waits for the other end's FIN for so long (Linux's `tcp_fin_timeout`).
const ORPHANED: Micros = 60 * SECOND;
/// A connection that carries nothing keeps its rings for so long.
const RESTS: Micros = 10 * SECOND;
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
    /// Nothing until something happens, and its rings are wanted.
    Rest,
    /// It has more to do at once.
    Again,
    /// The tunnel takes no more for now.
    NoRoom,
    /// Nothing any more: what stays is the other end's last acknowledgement, perhaps.
    Remove(Ending),
}

pub(super) struct TcpConnection {
    /// `None` while it rests.
    awake: Option<Awake>,
    pub(super) flow: Flow,
    pub(super) segments: Segments,
    pub(super) stage: Stage,
    /// It waits for its turn.
    pub(super) is_ready: bool,
    /// The earliest timer that is set for it.
    pub(super) timer: Option<Micros>,
    /// When it is given up: a connection that does not come about, or whose program is gone.
    pub(super) deadline: Option<Micros>,
    pub(super) program: ProgramEnd,
    state: tcp::State,
    ending: Option<Ending>,
    /// Since when what was sent has not been answered by anything.
    silent_since: Option<Micros>,
    time_wait_since: Option<Micros>,
    /// When it last carried something.
    used: Micros,
}

impl TcpConnection {
    /// A connection that is closed, with rings of so many bytes. `offset` is of its sequence numbers.
    pub(super) fn new(
        flow: Flow,
        mtu: usize,
        rings: [usize; 2],
        offset: u32,
        stage: Stage,
    ) -> Self {
        let mut segments = Segments::new(flow, mtu, offset);
        segments.set_ring(rings[0]);
        Self {
            awake: Some(Awake::new(rings)),
            flow,
            segments,
            stage,
            is_ready: false,
            timer: None,
            deadline: None,
            program: ProgramEnd::default(),
            state: tcp::State::Closed,
            ending: None,
            silent_since: None,
            time_wait_since: None,
            used: 0,
        }
    }

    fn tcp(&mut self) -> Option<&mut tcp::Socket<'static>> {
        self.awake.as_mut().map(Awake::tcp)
    }

    /// Whether it has no rings.
    pub(super) fn is_resting(&self) -> bool {
        self.awake.is_none()
    }

    /// Whether one that rests has something to carry, or to end.
    pub(super) fn wants_rings(&self, now: Micros) -> bool {
        let program = &self.program;
        let is_late = self.deadline.is_some_and(|at| at <= now);
        program.has_input() || program.is_gone || is_late
    }

    /// Gives up its rings; of so many bytes they were.
    pub(super) fn rest(&mut self) -> Option<[usize; 2]> {
        self.awake.take().map(|awake| awake.rings)
    }

    /// Gets rings again. False if smoltcp does not take it.
    pub(super) fn wake(&mut self, core: &mut Core, rings: [usize; 2]) -> bool {
        self.segments.now = core.now;
        self.segments.set_ring(rings[0]);
        let awake = self.awake.insert(Awake::new(rings));
        awake.revive(&mut core.interface, &mut self.segments)
    }

    /// Begins to connect. False if the addresses are none that can be.
    pub(super) fn connect(&mut self, core: &mut Core) -> bool {
        let Flow { local, remote } = self.flow;
        let Some(socket) = self.awake.as_mut().map(Awake::tcp) else {
            return false;
        };
        let connected = socket.connect(core.interface.context(), remote, local);
        self.state = socket.state();
        connected.is_ok()
    }

    /// Waits for the SYN that it was made for.
    pub(super) fn listen(&mut self) {
        let local = self.flow.local;
        if let Some(socket) = self.tcp() {
            // It is closed, and its port is none that smoltcp refuses.
            let _ = socket.listen(local);
            self.state = tcp::State::Listen;
        }
    }

    /// Hands a packet of its flow to smoltcp.
    pub(super) fn receive(&mut self, core: &mut Core, packet: &mut [u8], headers: &Headers) {
        use tcp::State::{Closed, Closing, LastAck, Listen, SynSent, TimeWait};
        let now = core.now;
        self.segments.now = now;
        let is_open = self.is_established();
        if is_open && !self.segments.is_near(packet, headers.start) {
            // smoltcp answers a keep-alive with the numbers that it expects, at most once a
            // second (RFC 5961 §7). This segment looks like one.
            let (seq, ack) = (self.segments.ack, self.segments.recovery.unacknowledged());
            return self.process_bare(core, seq.wrapping_sub(1), ack, 0);
        }
        // smoltcp takes an end right behind its window, and then refuses everything until it has
        // acknowledged that. Where its acknowledgement finds no room, the segment is lost.
        if is_open && self.segments.is_past_window() {
            self.send(core);
            if self.segments.is_past_window() {
                return;
            }
        }
        let before = self.segments.recovery.unacknowledged();
        let is_expected = matches!(self.state, Listen | SynSent);
        let repeat = self.segments.received(packet, headers, is_expected);
        let news = is_open.then(|| self.segments.recovery.news()).flatten();
        let is_next =
            is_open && !is_half_closed(self.state) && self.segments.is_next(packet, headers);
        // smoltcp ignores the acknowledgement of a segment outside its window. It is told
        // separately, or two ends with full windows would wait for each other (RFC 9293
        // §3.10.7.4).
        if !is_next && let Some((ack, window)) = news {
            self.process_bare(core, self.segments.ack, ack, window);
        }
        let has_ended = self.tcp().is_none_or(|socket| socket.state() == Closed);
        let is_wanted = is_next && news.is_some() || !self.segments.is_bare(packet, headers);
        if !is_open || !has_ended && is_wanted {
            self.segments.limit_window(packet, headers.start, is_open);
            self.process(core, packet, headers.start);
        }
        self.repeat(core, repeat);
        // Once the program is gone, only a new acknowledgement counts as progress.
        if !self.program.is_gone || self.segments.recovery.unacknowledged() != before {
            self.silent_since = None;
        }
        self.used = now;
        let Some(socket) = self.tcp() else { return };
        let state = socket.state();
        if state == self.state {
            return;
        }
        let was = std::mem::replace(&mut self.state, state);
        match state {
            Closed if self.ending.is_none() => {
                self.ending = Some(match was {
                    LastAck | Closing | TimeWait => Ending::Closed,
                    _ => Ending::Reset,
                });
            }
            // The SYN was taken back.
            Listen => self.ending = Some(Ending::Reset),
            TimeWait => self.time_wait_since = Some(now),
            _ => {}
        }
    }

    fn process(&mut self, core: &mut Core, packet: &mut [u8], start: usize) {
        if let Some(awake) = &mut self.awake {
            let (interface, egress) = (&mut core.interface, &mut core.egress);
            awake.receive(interface, egress, &mut self.segments, packet, start);
        }
    }

    /// Hands a segment to smoltcp that the other end did not send, without payload.
    fn process_bare(&mut self, core: &mut Core, seq: u32, ack: u32, window: u16) {
        let mut packet = [0; 60];
        let packet = &mut packet[..wire::bare_segment_len(&self.flow)];
        wire::write_acknowledgement(packet, &self.flow, [seq, ack], window);
        self.process(core, packet, wire::ip_header(self.flow.local.ip()));
    }

    /// Bytes that are not acknowledged.
    fn queued(&mut self) -> usize {
        self.tcp().map_or(0, |socket| socket.send_queue())
    }

    fn repeat(&mut self, core: &mut Core, what: Repeat) {
        // Only the FIN is not acknowledged. smoltcp's fast retransmit does not repeat a FIN and
        // would stop its timer.
        let is_end = self.queued() == 0;
        match what {
            Repeat::Nothing => {}
            Repeat::First if !is_end => self.repeat_first(core),
            Repeat::First | Repeat::All => {
                // What it has to send just now would hide its timer.
                self.send(core);
                if !self.repeat_all(core) && !is_end {
                    self.repeat_first(core);
                }
            }
        }
    }

    /// Has smoltcp repeat the first segment that is not acknowledged.
    fn repeat_first(&mut self, core: &mut Core) {
        let Some((ack, windows)) = self.segments.recovery.duplicates() else {
            return;
        };
        self.segments.recovery.awaits();
        for window in windows {
            self.process_bare(core, self.segments.ack, ack, window);
        }
    }

    /// Has smoltcp send anew all that is not acknowledged: to it the time has passed for which it waits.
    /// False if it waits for none.
    fn repeat_all(&mut self, core: &mut Core) -> bool {
        let Some(awake) = &self.awake else {
            return false;
        };
        let now = Instant::from_micros(self.segments.now);
        let time = core.interface.poll_at(now, &awake.sockets);
        let time = time.filter(|time| *time > now);
        time.map(|time| self.send_segment(core, time)).is_some()
    }

    /// Whether the other end has accepted it, or it theirs.
    pub(super) fn is_established(&self) -> bool {
        use tcp::State::{Closed, Listen, SynReceived, SynSent};
        !matches!(self.state, Closed | Listen | SynSent | SynReceived)
    }

    /// Ends it with a RST, which one that rests cannot send.
    pub(super) fn abort(&mut self, ending: Ending) {
        self.ending.get_or_insert(ending);
        if let Some(socket) = self.tcp() {
            socket.abort();
        }
        self.state = tcp::State::Closed;
    }

    /// Tells the program why its stream ended, and closes the descriptor.
    pub(super) fn finish(&mut self, ending: Ending) {
        let tell = |end: &EndReason| match ending {
            Ending::Closed => {}
            Ending::Reset => end.reset(),
            Ending::TimedOut => end.timed_out(),
        };
        self.program.finish(tell, ending != Ending::Closed);
    }

    /// Its turn: bytes from the descriptor to the ring, segments, bytes from the ring to the descriptor.
    pub(super) fn advance(&mut self, core: &mut Core, is_tight: bool) -> Next {
        let now = core.now;
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.abort(Ending::TimedOut);
        }
        self.segments.now = now;
        if self.is_established() {
            let repeat = self.segments.probes();
            self.repeat(core, repeat);
        }
        let was_read = self.read_fd();
        let mut sent = self.send(core);
        let written = self.write_fd();
        // The window may be open again.
        if written > 0 && sent == Sending::Done {
            sent = self.send(core);
        }
        if was_read + written > 0 {
            self.used = now;
        }
        self.watch(now);
        if let Some(ending) = self.is_over(core, sent) {
            return Next::Remove(ending);
        }
        match sent {
            Sending::NoRoom => Next::NoRoom,
            Sending::More => Next::Again,
            Sending::Done if was_read >= TURN || written >= TURN => Next::Again,
            Sending::Done => self.next_time(core, is_tight),
        }
    }

    fn read_fd(&mut self) -> usize {
        let Some(awake) = &mut self.awake else {
            return 0;
        };
        let socket = awake.tcp();
        let moved = self.program.read(socket);
        if moved.is_broken {
            self.abort(Ending::Reset);
        } else if self.program.has_ended
            && (socket.state() != tcp::State::CloseWait || socket.send_queue() == 0)
        {
            // In LAST-ACK smoltcp ignores window updates, so the ring is sent first. A second
            // `close` does nothing.
            socket.close();
            self.state = socket.state();
        }
        moved.bytes
    }

    fn send(&mut self, core: &mut Core) -> Sending {
        // smoltcp would forget what was received once it no longer waits for repeated segments.
        let is_late = |since| since + SECOND < core.now;
        if self.state == tcp::State::TimeWait && self.time_wait_since.is_some_and(is_late) {
            return Sending::Done;
        }
        let time = Instant::from_micros(core.now);
        let mut sending = Sending::More;
        for _ in 0..SEGMENTS {
            if !core.egress.has_room() {
                return Sending::NoRoom;
            }
            if !self.send_segment(core, time) {
                sending = Sending::Done;
                break;
            }
        }
        if let Some(awake) = &mut self.awake {
            self.state = awake.tcp().state();
        }
        sending
    }

    /// Has smoltcp send a segment. False if it has none to send at this time.
    fn send_segment(&mut self, core: &mut Core, time: Instant) -> bool {
        let Some(awake) = &mut self.awake else {
            return false;
        };
        let (interface, egress) = (&mut core.interface, &mut core.egress);
        let has_sent = awake.send(interface, egress, &mut self.segments, time);
        // The first segment that is sent anew leaves a smaller window to the others.
        if has_sent
            && self.is_established()
            && let Some((ack, window)) = self.segments.recovery.reduced()
        {
            self.process_bare(core, self.segments.ack, ack, window);
        }
        has_sent
    }

    fn write_fd(&mut self) -> usize {
        let Some(awake) = &mut self.awake else {
            return 0;
        };
        let moved = self.program.write(awake.tcp(), is_half_closed(self.state));
        if moved.is_broken {
            // Nobody takes what comes.
            self.abort(Ending::Reset);
        }
        moved.bytes
    }

    /// Gives up a connection whose other end, or whose program, is gone.
    fn watch(&mut self, now: Micros) {
        use tcp::State::{Closing, FinWait1, FinWait2, LastAck};
        let waits = self.queued() > 0 || matches!(self.state, FinWait1 | Closing | LastAck);
        if waits && self.is_established() {
            let since = *self.silent_since.get_or_insert(now);
            if since + STALLED <= now {
                self.abort(Ending::TimedOut);
            }
        } else {
            self.silent_since = None;
        }
        let is_orphan = self.program.is_gone && self.state == FinWait2;
        if is_orphan && self.deadline.is_none() {
            self.deadline = Some(now + ORPHANED);
        }
    }

    /// How it ended, if nothing is left to do.
    fn is_over(&mut self, core: &mut Core, sent: Sending) -> Option<Ending> {
        let Some(awake) = &mut self.awake else {
            return self.ending;
        };
        let is_drained =
            self.program.fd().is_none() || !awake.tcp().can_recv() || self.program.is_gone;
        if !is_drained || sent != Sending::Done {
            return None;
        }
        match self.state {
            // Its last acknowledgement has left. What is left of it answers repeated ones.
            tcp::State::TimeWait => Some(Ending::Closed),
            // A RST may be still to be sent.
            tcp::State::Closed => {
                let now = Instant::from_micros(core.now);
                let time = core.interface.poll_at(now, &awake.sockets);
                time.is_none()
                    .then(|| self.ending.unwrap_or(Ending::Closed))
            }
            tcp::State::Listen => self.ending,
            _ => None,
        }
    }

    /// When smoltcp, or the deadline, wants to be looked at, or it comes to rest.
    fn next_time(&mut self, core: &mut Core, is_tight: bool) -> Next {
        let Some(awake) = &mut self.awake else {
            return Next::Wait(self.deadline);
        };
        let now = Instant::from_micros(core.now);
        let mut rests = None;
        if self.deadline.is_none() && awake.is_at_rest(&mut core.interface, now) {
            let at = self.used + if is_tight { 0 } else { RESTS };
            if at <= core.now {
                return Next::Rest;
            }
            rests = Some(at);
        }
        let mut time = match self.state {
            tcp::State::TimeWait => None,
            _ => core.interface.poll_at(now, &awake.sockets),
        };
        // smoltcp begins to probe a closed window only when it hears of it while nothing is on its way.
        if time.is_none() && self.is_established() && self.queued() > 0 {
            let (ack, window) = self.segments.recovery.tell();
            self.process_bare(core, self.segments.ack, ack, window);
            let sockets = self.awake.as_ref().map(|awake| &awake.sockets);
            time = sockets.and_then(|sockets| core.interface.poll_at(now, sockets));
        }
        // What it could not do just now it cannot do at once.
        let time = time.map(|time| time.total_micros().max(core.now + MILLISECOND));
        let probe = self.segments.probe_at().filter(|_| self.is_established());
        let stalled = self.silent_since.map(|since| since + STALLED);
        let times = [time, probe, self.deadline, rests];
        Next::Wait(times.into_iter().flatten().min().or(stalled))
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
