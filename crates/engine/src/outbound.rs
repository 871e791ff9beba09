//! TUN to UDP: read → route → append → seal → send, each once a frame or a train.
//!
//! 1. `read` (this shard's queue): frames until none waits or the arena is full;
//! 2. `route`: a frame's destination chooses the peer, and its session; without one the frame is
//!    staged;
//! 3. `append`: each segment goes into a slot of the peer's open train, headers finished;
//! 4. `seal`: a train that is full, or that nothing waits to join, takes its counters and is
//!    sealed;
//! 5. `send`: sealed trains leave in the order in which they were closed.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use adit_io::{MAX_FRAME, SendReport, Transmit, TunQueue, UdpSocket};
use adit_offload::Frame;
use adit_proto::{Endpoint, Peer, Time};
use arrayvec::ArrayVec;

use crate::common::{Common, ShardCommand, Sockets};
use crate::drops::{DropReason, Drops};
use crate::journal::Incident;
use crate::staged::{Staged, packets};
use crate::train::{OpenTrain, SealedTrain, TRAIN_BYTES, datagram_len, max_bytes};

/// Room for frames read at once: four GSO packets or thousands of small packets. More would leave
/// the second-level cache before they are sealed.
const ARENA_BYTES: usize = 256 << 10;
/// Trains of different peers (or ECN marks) that are open at once.
const MAX_OPEN: usize = 16;
/// Trains given to one `send`.
const MAX_SEND: usize = 32;
/// A train of this length is worth a system call of its own, while its bytes are in the cache.
const SEND_AT_ONCE: usize = 16 << 10;

/// Turns that find more in the TUN than they can take, one after the other, until its queue counts
/// as standing: 4 MB.
const STANDING: u32 = 16;
/// How often the control thread hears of that.
const TELL_EVERY: Duration = Duration::from_millis(20);

/// What a poll left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// All frames that were read are sent.
    Done,
    /// The socket is full, and sealed trains wait for it: call again when it is writable.
    Blocked,
}

/// One shard's outbound path.
pub(crate) struct Outbound {
    shard: usize,
    arena: Vec<u8>,
    /// Where the frames of the arena that were not yet appended stand.
    frames: VecDeque<(usize, usize)>,
    sender: Sender,
    staged: Staged,
    /// Packets that the last poll processed.
    processed: usize,
    /// Polls since the TUN was last read empty.
    behind: u32,
    /// When the control thread was last told that the TUN is behind.
    told: Time,
}

impl Outbound {
    /// That of this shard.
    pub(crate) fn new(shard: usize, drops: Arc<Drops>) -> Self {
        Self {
            shard,
            arena: vec![0; ARENA_BYTES],
            frames: VecDeque::with_capacity(ARENA_BYTES / 64),
            sender: Sender {
                pool: Vec::new(),
                allocated: 0,
                ready: VecDeque::with_capacity(MAX_TRAINS),
                drops,
            },
            staged: Staged::default(),
            processed: 0,
            behind: 0,
            told: Time::default(),
        }
    }

    /// Reads what waits in the TUN queue and sends it.
    pub(crate) fn poll<U: UdpSocket>(
        &mut self,
        common: &Common<U>,
        sockets: &Sockets<U>,
        tun: &impl TunQueue,
        now: Time,
    ) -> io::Result<Progress> {
        self.processed = 0;
        if !self.sender.flush(common, sockets, now) {
            return Ok(Progress::Blocked);
        }
        if self.frames.is_empty() {
            let emptied = read(&mut self.arena, &mut self.frames, tun)?;
            self.behind = if emptied {
                0
            } else {
                self.behind.saturating_add(1)
            };
            if self.behind >= STANDING && now.since(self.told) >= TELL_EVERY {
                self.told = now;
                common.control.tun_is_behind();
            }
        }
        loop {
            self.forward(common, sockets, now);
            if !self.sender.flush(common, sockets, now) {
                return Ok(Progress::Blocked);
            }
            // A socket that had no room may have some by now. Then nobody wakes this shard for the
            // frames that are left: they go at once (invariant 6).
            if self.frames.is_empty() {
                return Ok(Progress::Done);
            }
        }
    }

    /// Stages 2 to 4 for the frames that were read, until none is left or a full socket leaves no
    /// room for the next.
    fn forward<U: UdpSocket>(&mut self, common: &Common<U>, sockets: &Sockets<U>, now: Time) {
        let mut trains = Trains {
            open: ArrayVec::new(),
        };
        let routes = common.proto.routes();
        while let Some(&(start, len)) = self.frames.front() {
            if !self.sender.has_room(common, sockets, now) {
                break;
            }
            self.frames.pop_front();
            let bytes = &self.arena[start..start + len];
            let Ok(frame) = Frame::parse(bytes) else {
                self.sender.drops.count(DropReason::MalformedFrame, 1);
                continue;
            };
            self.processed += frame.segments();
            if let (Some(tunnel_ends), Some(end)) = (&common.tunnel_ends, frame.tunnel_end()) {
                tunnel_ends.saw(end, now.since(Time::default()));
            }
            let Some(peer) = routes.lookup(frame.destination()) else {
                let packets = frame.segments() as u64;
                self.sender
                    .drops
                    .count_unrouted(frame.destination(), packets);
                continue;
            };
            if self.staged.holds(peer.id()) {
                // Asked once: a session that comes after this frame has to wait for it.
                if peer.session(now).is_none() {
                    stage(&mut self.staged, self.shard, common, peer, bytes, now);
                    continue;
                }
                send_staged(
                    &mut self.sender,
                    &mut self.staged,
                    common,
                    sockets,
                    peer,
                    now,
                );
            }
            if !trains.append(&mut self.sender, common, sockets, peer, &frame, now) {
                stage(&mut self.staged, self.shard, common, peer, bytes, now);
            }
        }
        trains.close_all(&mut self.sender, common, sockets, now);
    }

    /// The address family of what waits for room in a socket: true for IPv6.
    pub(crate) fn waits_for(&self) -> Option<bool> {
        self.sender
            .ready
            .front()
            .map(|train| train.to.addr.is_ipv6())
    }

    /// How many packets the last poll processed.
    pub(crate) fn processed(&self) -> usize {
        self.processed
    }

    /// A session exists now: sends what waited for it.
    pub(crate) fn send_staged<U: UdpSocket>(
        &mut self,
        common: &Common<U>,
        sockets: &Sockets<U>,
        peer: &Arc<Peer>,
        now: Time,
    ) -> Progress {
        send_staged(
            &mut self.sender,
            &mut self.staged,
            common,
            sockets,
            peer,
            now,
        );
        if self.sender.ready.is_empty() {
            Progress::Done
        } else {
            Progress::Blocked
        }
    }

    /// No session will come: drops what waited for it.
    pub(crate) fn drop_staged(&mut self, peer: u32) {
        let dropped = self.staged.drop_all(peer);
        self.sender.drops.count(DropReason::Staged, dropped);
    }
}

/// Stage 1: frames one behind the other, until none waits (true) or the next might not fit.
fn read(
    arena: &mut [u8],
    frames: &mut VecDeque<(usize, usize)>,
    tun: &impl TunQueue,
) -> io::Result<bool> {
    let mut start = 0;
    while start + MAX_FRAME <= arena.len() {
        match tun.read(&mut arena[start..]) {
            Ok(len) => {
                frames.push_back((start, len));
                start += len.next_multiple_of(64);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if frames.is_empty() => return Err(e),
            // What was read comes first. What is wrong with the TUN is still wrong at the next
            // read.
            Err(_) => return Ok(true),
        }
    }
    Ok(false)
}

fn send_staged<U: UdpSocket>(
    sender: &mut Sender,
    staged: &mut Staged,
    common: &Common<U>,
    sockets: &Sockets<U>,
    peer: &Arc<Peer>,
    now: Time,
) {
    let frames = staged.take(peer.id());
    let mut trains = Trains {
        open: ArrayVec::new(),
    };
    for bytes in &frames {
        // Frames were parsed before they were staged; a socket that is full now loses what waited.
        let Ok(frame) = Frame::parse(bytes) else {
            continue;
        };
        let room = sender.has_room(common, sockets, now);
        if !room || !trains.append(sender, common, sockets, peer, &frame, now) {
            sender
                .drops
                .count(DropReason::Staged, frame.segments() as u64);
        }
    }
    trains.close_all(sender, common, sockets, now);
    sender.flush(common, sockets, now);
}

fn stage<U: UdpSocket>(
    staged: &mut Staged,
    shard: usize,
    common: &Common<U>,
    peer: &Arc<Peer>,
    bytes: &[u8],
    now: Time,
) {
    let handle = &common.shards[shard];
    if peer.endpoint().is_none() {
        // Nothing can be asked for a session. Its own first packet may bring both, and what waited
        // would be old by then.
        return handle.drops.count(DropReason::NoEndpoint, packets(bytes));
    }
    let is_first = !staged.holds(peer.id());
    handle
        .drops
        .count(DropReason::Staged, staged.push(peer.id(), bytes));
    if is_first {
        handle.wait_for(peer.id());
        // A session that came before that was told to nobody.
        if peer.session(now).is_some() {
            handle.tell(ShardCommand::SessionReady(Arc::clone(peer)));
        }
    }
    if peer.want_session() {
        common.control.event(peer);
    }
}

/// The trains that frames of one poll are appended to. A peer has at most one of them: its packets
/// stay in order.
struct Trains<'a> {
    open: ArrayVec<OpenTrain<'a>, MAX_OPEN>,
}

impl<'a> Trains<'a> {
    /// Stages 2 to 4 for one frame. False if the peer has no session to send with.
    fn append<U: UdpSocket>(
        &mut self,
        sender: &mut Sender,
        common: &Common<U>,
        sockets: &Sockets<U>,
        peer: &Arc<Peer>,
        frame: &Frame<'a>,
        now: Time,
    ) -> bool {
        let mtu = common.mtu();
        let ecn = frame.ecn();
        // The port first: it takes no lock.
        let is_own = |to: Endpoint| is_own_datagram(frame, &to, sockets.port);
        if frame
            .udp_ports()
            .is_some_and(|ports| ports.0 == sockets.port)
            && peer.endpoint().is_some_and(is_own)
        {
            sender
                .drops
                .count(DropReason::RoutingLoop, frame.segments() as u64);
            return true;
        }
        for i in 0..frame.segments() {
            let len = datagram_len(frame.segment_len(i), mtu);
            let at = match self
                .open
                .iter()
                .position(|train| train.peer.id() == peer.id())
            {
                Some(at) if self.open[at].ecn() == ecn && self.open[at].takes(len) => at,
                other => {
                    if let Some(at) = other {
                        sender.seal(self.open.remove(at), common, sockets, now);
                    } else if self.open.is_full() {
                        sender.seal(self.open.remove(0), common, sockets, now);
                    }
                    let Some(session) = peer.session(now) else {
                        if i == 0 {
                            return false;
                        }
                        // What is appended may have left: the rest alone is none of the frames that
                        // may be staged.
                        sender
                            .drops
                            .count(DropReason::SessionEnded, (frame.segments() - i) as u64);
                        return true;
                    };
                    let Some(to) = peer.endpoint() else {
                        sender
                            .drops
                            .count(DropReason::NoEndpoint, (frame.segments() - i) as u64);
                        return true;
                    };
                    if len > max_bytes(&to) {
                        sender
                            .drops
                            .count(DropReason::TooBig, (frame.segments() - i) as u64);
                        return true;
                    }
                    let Some(buffer) = sender.buffer() else {
                        sender
                            .drops
                            .count(DropReason::SendFailed, (frame.segments() - i) as u64);
                        return true;
                    };
                    self.open
                        .push(OpenTrain::new(Arc::clone(peer), session, to, ecn, buffer));
                    self.open.len() - 1
                }
            };
            self.open[at].append(frame, i, len);
            if self.open[at].is_full() {
                sender.seal(self.open.remove(at), common, sockets, now);
            }
        }
        true
    }

    fn close_all<U: UdpSocket>(
        &mut self,
        sender: &mut Sender,
        common: &Common<U>,
        sockets: &Sockets<U>,
        now: Time,
    ) {
        // Drained, not consumed: that would copy the array.
        for train in self.open.drain(..) {
            sender.seal(train, common, sockets, now);
        }
    }
}

/// Whether a frame is a datagram that this device sent to this endpoint: sealing it again would
/// never end.
fn is_own_datagram(frame: &Frame<'_>, to: &Endpoint, own_port: u16) -> bool {
    frame.destination() == to.addr.ip() && frame.udp_ports() == Some((own_port, to.addr.port()))
}

/// Trains that exist at once: 16 open, the rest on their way out.
const MAX_TRAINS: usize = 64;

/// Stages 4 and 5, and the buffers of all trains.
struct Sender {
    pool: Vec<Box<[u8]>>,
    allocated: usize,
    ready: VecDeque<SealedTrain>,
    drops: Arc<Drops>,
}

impl Sender {
    fn buffer(&mut self) -> Option<Box<[u8]>> {
        self.pool.pop().or_else(|| {
            // Buffers are made when first needed and kept: an idle or lightly used peer touches
            // few.
            (self.allocated < MAX_TRAINS).then(|| {
                self.allocated += 1;
                vec![0; TRAIN_BYTES].into_boxed_slice()
            })
        })
    }

    /// Whether the trains of one more frame find buffers.
    fn has_room<U: UdpSocket>(
        &mut self,
        common: &Common<U>,
        sockets: &Sockets<U>,
        now: Time,
    ) -> bool {
        self.ready.len() < MAX_TRAINS / 2 || self.flush(common, sockets, now)
    }

    /// Stage 4.
    fn seal<U: UdpSocket>(
        &mut self,
        train: OpenTrain<'_>,
        common: &Common<U>,
        sockets: &Sockets<U>,
        now: Time,
    ) {
        match train.seal(now) {
            Ok(sealed) => {
                let at_once = sealed.len >= SEND_AT_ONCE;
                self.ready.push_back(sealed);
                if at_once || self.ready.len() >= MAX_SEND {
                    self.flush(common, sockets, now);
                }
            }
            Err((buffer, packets)) => {
                self.pool.push(buffer);
                self.drops.count(DropReason::SessionEnded, packets as u64);
            }
        }
    }

    /// Stage 5: sends what is ready, in order. False if the socket is full.
    fn flush<U: UdpSocket>(&mut self, common: &Common<U>, sockets: &Sockets<U>, now: Time) -> bool {
        while !self.ready.is_empty() {
            self.renew(now);
            let Some(first) = self.ready.front() else {
                break;
            };
            let v6 = first.to.addr.is_ipv6();
            let same_family = self
                .ready
                .iter()
                .take_while(|train| train.to.addr.is_ipv6() == v6)
                .take(MAX_SEND);
            let batch: ArrayVec<Transmit<'_>, MAX_SEND> = same_family
                .map(|train| Transmit {
                    to: train.to,
                    ecn: train.ecn,
                    stride: train.stride,
                    bytes: &train.buffer[train.sent..train.len],
                })
                .collect();
            let mut report = SendReport::default();
            let taken = match sockets.family(v6) {
                Some(socket) => socket.send(&batch, &mut report),
                None => {
                    report.lossy = u64::MAX;
                    report.lost = self
                        .ready
                        .iter()
                        .take(batch.len())
                        .map(|train| train.packets as u64)
                        .sum();
                    batch.len()
                }
            };
            drop(batch);
            if let Some(stale) = report.stale_source.and_then(|index| self.ready.get(index)) {
                stale.peer.clear_source();
            }
            if report != SendReport::default() {
                self.drops.count(DropReason::SendFailed, report.lost);
                common.count_refused_trains(report.refused);
                if let (Some(socket), true) = (sockets.family(v6), report.icmp) {
                    common.take_errors(socket, now);
                }
            }
            for (index, train) in self.ready.drain(..taken).enumerate() {
                let lossy = report.lossy >> index & 1 == 1;
                if lossy {
                    common.note(now, 1, || Incident::NotSent {
                        peer: Some(train.peer.public_key()),
                        kind: None,
                        to: train.to.addr,
                        error: report.error,
                    });
                }
                let bytes = if lossy { 0 } else { train.len as u64 };
                if train.peer.data_sent(now, &train.session, bytes) {
                    common.control.event(&train.peer);
                }
                self.pool.push(train.buffer);
            }
            if let (Some(next), true) = (self.ready.front_mut(), report.resume_at > 0) {
                next.sent += report.resume_at;
            }
            if taken == 0 {
                return false;
            }
        }
        true
    }

    /// No train of the next batch leaves with counters that the peer may take for replays.
    fn renew(&mut self, now: Time) {
        let mut index = 0;
        while let Some(train) = self.ready.get_mut(index).filter(|_| index < MAX_SEND) {
            match train.renew(now) {
                Ok(()) => index += 1,
                Err(packets) => {
                    self.drops.count(DropReason::SessionEnded, packets as u64);
                    let train = self.ready.remove(index);
                    self.pool.extend(train.map(|train| train.buffer));
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "outbound_tests.rs"]
mod tests;
