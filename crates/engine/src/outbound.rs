//! TUN to UDP: read → route → append → seal → send, each once a frame or a train.
//!
//! 1. `read`: frames of the TUN queue until none waits or the arena is full;
//! 2. `route`: a frame's destination chooses the peer, and its session; without one the frame is
//!    staged;
//! 3. `append`: each segment goes into a slot of the peer's open train, headers finished;
//! 4. `seal`: a train that is full takes its counters and is sealed; trains that no frame waits to
//!    join are sealed together;
//! 5. `send`: sealed trains leave in the order in which they were closed (`sender`).

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use adit_io::{BatchFrame, FrameBatch, TunQueue, UdpSocket};
use adit_offload::Frame;
use adit_proto::{DropReason, Drops, Endpoint, Peer, Time};
use arrayvec::ArrayVec;

use crate::common::{Context, ShardCommand};
use crate::sender::Sender;
use crate::staged::{Staged, packets};
use crate::train::{OpenTrain, datagram_len, max_bytes};

/// Trains of different peers (or ECN marks) that are open at once.
const MAX_OPEN: usize = 16;

/// So many polls in a row find more in the TUN than they can take, before its queue counts as
/// standing: 4 MB.
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

/// The outbound path of one interface.
pub(crate) struct Outbound<U> {
    /// The frames that a full socket left.
    left: Option<FrameBatch>,
    forwarder: Forwarder<U>,
    /// Polls since the TUN was last read empty.
    behind: u32,
    /// When the control thread last heard that the TUN is behind.
    told: Time,
}

impl<U: UdpSocket> Outbound<U> {
    /// That of the interface's queues at this index of [`Common::queues`].
    ///
    /// # Errors
    ///
    /// The kernel's, when it makes no further epoll descriptor.
    ///
    /// [`Common::queues`]: crate::common::Common::queues
    pub(crate) fn new(queues: usize, drops: Arc<Drops>) -> io::Result<Self> {
        Ok(Self {
            left: None,
            forwarder: Forwarder {
                queues,
                sender: Sender::new(drops)?,
                staged: Staged::default(),
                processed: 0,
            },
            behind: 0,
            told: Time::default(),
        })
    }

    /// Reads what waits in the TUN queue and sends it. The shard reads all its queues into the same
    /// `frames`.
    pub(crate) fn poll(
        &mut self,
        context: Context<'_, U>,
        tun: &impl TunQueue,
        frames: &mut FrameBatch,
    ) -> io::Result<Progress> {
        self.forwarder.processed = 0;
        if !self.forwarder.sender.flush(context) {
            return Ok(Progress::Blocked);
        }
        if let Some(left) = self.left.take() {
            let progress = self.forward_all(context, &left);
            if left.is_empty() {
                tun.processed(&left);
                *frames = left;
            } else {
                self.left = Some(left);
            }
            return Ok(progress);
        }
        let emptied = tun.read_batch(frames)?;
        self.note_standing(context, emptied);
        let progress = self.forward_all(context, frames);
        if frames.is_empty() {
            tun.processed(frames);
        } else {
            self.left = Some(std::mem::take(frames));
        }
        Ok(progress)
    }

    /// Forwards the frames until none is left or a socket is full.
    fn forward_all(&mut self, context: Context<'_, U>, frames: &FrameBatch) -> Progress {
        loop {
            self.forward(context, frames);
            if !self.forwarder.sender.flush(context) {
                return Progress::Blocked;
            }
            // A socket that was full may have space by now. Then nothing wakes this shard for the
            // frames that are left, so they are sent at once (invariant 6).
            if frames.is_empty() {
                return Progress::Done;
            }
        }
    }

    /// Tells the control thread, now and then, that the TUN holds more than leaves.
    fn note_standing(&mut self, Context { common, now, .. }: Context<'_, U>, emptied: bool) {
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

    /// Stages 2 to 4 for the frames that were read, until none is left or a full socket leaves no
    /// buffer for the next.
    fn forward(&mut self, context: Context<'_, U>, frames: &FrameBatch) {
        let mut trains = Trains::default();
        let routes = context.common.proto.routes();
        while self.forwarder.sender.has_room(context)
            && let Some(BatchFrame { bytes, peer }) = frames.next_frame()
        {
            let route = |frame: &Frame<'_>| {
                let found = routes.lookup(frame.destination());
                peer.set(found.map(|found| found.id()));
                found
            };
            self.forwarder.forward(&mut trains, context, bytes, route);
        }
        trains.close_all(&mut self.forwarder.sender, context);
    }

    /// The address family of the first train that waits for a socket: true for IPv6.
    pub(crate) fn waits_for(&self) -> Option<bool> {
        self.forwarder.sender.waits_for()
    }

    /// How many trains the shared sockets have taken.
    pub(crate) fn taken(&self) -> u64 {
        self.forwarder.sender.taken()
    }

    /// How many packets the last poll processed.
    pub(crate) fn processed(&self) -> usize {
        self.forwarder.processed
    }

    /// A session exists now: sends what waited for it.
    pub(crate) fn send_staged(&mut self, context: Context<'_, U>, peer: &Arc<Peer>) -> Progress {
        self.forwarder.send_staged(context, peer);
        match self.waits_for() {
            None => Progress::Done,
            Some(_) => Progress::Blocked,
        }
    }

    /// No session will come: drops what waited for it.
    pub(crate) fn drop_staged(&mut self, peer: &Peer) {
        let dropped = self.forwarder.staged.drop_all(peer.id());
        let sender = &self.forwarder.sender;
        sender.drop_packets(peer, DropReason::Staged, dropped);
    }

    /// The socket that peers share has been full for long: peers that may be the reason get sockets
    /// of their own. False if that changed nothing.
    pub(crate) fn isolate(&mut self, context: Context<'_, U>) -> bool {
        self.forwarder.sender.isolate(context)
    }

    /// Readable when [`Self::handle_path_events`] has something to do.
    pub(crate) fn paths_fd(&self) -> BorrowedFd<'_> {
        self.forwarder.sender.paths.fd()
    }

    /// Takes what happened to the peers' own sockets.
    pub(crate) fn handle_path_events(&mut self, context: Context<'_, U>) {
        self.forwarder.sender.paths.handle_events(context);
    }

    /// Whether [`Self::tidy`] is to be called now and then.
    pub(crate) fn is_untidy(&self) -> bool {
        self.forwarder.sender.paths.is_untidy()
    }

    /// Closes the peers' own sockets that are no longer needed.
    pub(crate) fn tidy(&mut self, context: Context<'_, U>) {
        self.forwarder.sender.paths.tidy(context);
    }

    /// Closes all sockets that peers have of their own: the shared ones changed.
    pub(crate) fn clear_paths(&mut self) {
        self.forwarder.sender.paths.clear();
    }
}

/// Stages 2 to 5.
struct Forwarder<U> {
    /// The index of the interface's queues in [`Common::queues`].
    ///
    /// [`Common::queues`]: crate::common::Common::queues
    queues: usize,
    sender: Sender<U>,
    staged: Staged<Arc<Peer>>,
    /// Packets that the last poll processed.
    processed: usize,
}

impl<U: UdpSocket> Forwarder<U> {
    /// Stages 2 to 4 for one frame.
    fn forward<'a, 'r>(
        &mut self,
        trains: &mut Trains<'a>,
        context: Context<'_, U>,
        bytes: &'a [u8],
        route: impl FnOnce(&Frame<'a>) -> Option<&'r Arc<Peer>>,
    ) {
        let Context { common, now, .. } = context;
        let Ok(frame) = Frame::parse(bytes) else {
            self.sender.drops().count(DropReason::MalformedFrame, 1);
            return;
        };
        let packets = frame.segments();
        self.processed += packets;
        if let (Some(tunnel_ends), Some(end)) = (&common.tunnel_ends, frame.tunnel_end()) {
            tunnel_ends.saw(end, now.since(Time::default()));
        }
        let Some(peer) = route(&frame) else {
            let drops = self.sender.drops();
            return drops.count_unrouted(frame.destination(), packets as u64);
        };
        if self.staged.holds(peer.id()) {
            // Asked once: a session that comes after this frame has to wait for it.
            if peer.session(now).is_none() {
                return self.stage(context, peer, bytes);
            }
            self.send_staged(context, peer);
        }
        match trains.append(&mut self.sender, context, peer, &frame) {
            Ok(()) => {}
            Err(NotAppended::NoSession) => self.stage(context, peer, bytes),
            Err(NotAppended::Dropped(reason, packets)) => {
                self.sender.drop_packets(peer, reason, packets as u64);
            }
        }
    }

    /// Sends the frames that waited for a session. A socket that is full now loses them.
    fn send_staged(&mut self, context: Context<'_, U>, peer: &Arc<Peer>) {
        let frames = self.staged.take(peer.id());
        let mut trains = Trains::default();
        for bytes in &frames {
            // Frames were parsed before they were staged.
            let Ok(frame) = Frame::parse(bytes) else {
                continue;
            };
            let appended = if self.sender.has_room(context) {
                trains.append(&mut self.sender, context, peer, &frame)
            } else {
                Err(NotAppended::Dropped(DropReason::Staged, frame.segments()))
            };
            let (reason, packets) = match appended {
                Ok(()) => continue,
                Err(NotAppended::NoSession) => (DropReason::Staged, frame.segments()),
                Err(NotAppended::Dropped(reason, packets)) => (reason, packets),
            };
            self.sender.drop_packets(peer, reason, packets as u64);
        }
        trains.close_all(&mut self.sender, context);
        self.sender.flush(context);
    }

    /// Keeps a frame until the peer has a session, and asks for one.
    fn stage(&mut self, context: Context<'_, U>, peer: &Arc<Peer>, bytes: &[u8]) {
        let Context { common, now, .. } = context;
        if peer.endpoint().is_none() {
            // No endpoint, no handshake. The peer's own first packet may bring both, and the frame
            // would be old by then.
            let sender = &self.sender;
            return sender.drop_packets(peer, DropReason::NoEndpoint, packets(bytes));
        }
        let handle = &common.queues[self.queues];
        let is_first = !self.staged.holds(peer.id());
        let sender = &self.sender;
        self.staged.push(peer.id(), peer, bytes, |loser, packets| {
            sender.drop_packets(loser, DropReason::Staged, packets);
        });
        if is_first {
            handle.wait_for(peer.id());
            // A session that came earlier was not reported to this shard.
            if peer.session(now).is_some() {
                handle.tell(ShardCommand::SessionReady(Arc::clone(peer)));
            }
        }
        if peer.want_session() {
            common.control.event(peer);
        }
    }
}

/// Why a frame, or the rest of it, was not appended to a train.
enum NotAppended {
    /// The peer has no session to send with. Nothing of the frame was appended.
    NoSession,
    /// So many packets, the last ones of the frame, are dropped.
    Dropped(DropReason, usize),
}

/// The trains that frames of one poll are appended to. A peer has at most one of them: its packets
/// stay in order.
#[derive(Default)]
struct Trains<'a> {
    open: ArrayVec<OpenTrain<'a>, MAX_OPEN>,
}

impl<'a> Trains<'a> {
    /// Stages 3 and 4 for one frame.
    fn append<U: UdpSocket>(
        &mut self,
        sender: &mut Sender<U>,
        context: Context<'_, U>,
        peer: &Arc<Peer>,
        frame: &Frame<'a>,
    ) -> Result<(), NotAppended> {
        let Context { common, now, .. } = context;
        let segments = frame.segments();
        if is_own_datagram(frame, peer, context.sockets.port) {
            return Err(NotAppended::Dropped(DropReason::RoutingLoop, segments));
        }
        if sender.paths.is_full(peer.id()) {
            return Err(NotAppended::Dropped(DropReason::SlowPath, segments));
        }
        let mtu = common.mtu();
        let ecn = frame.ecn();
        for i in 0..segments {
            let rest = |reason| NotAppended::Dropped(reason, segments - i);
            let len = datagram_len(frame.segment_len(i), mtu);
            let open = self
                .open
                .iter()
                .position(|train| train.peer.id() == peer.id());
            let at = match open {
                Some(at) if self.open[at].ecn() == ecn && self.open[at].takes(len) => at,
                other => {
                    if let Some(at) = other {
                        sender.seal(self.open.remove(at), context);
                    } else if self.open.is_full() {
                        // Trains of many peers are short: sealed together, they fill the lanes.
                        sender.seal_all(&mut self.open, context);
                    }
                    let Some(session) = peer.session(now) else {
                        // Segments that were appended may have left, and a part of a frame cannot
                        // be staged.
                        return Err(match i {
                            0 => NotAppended::NoSession,
                            _ => rest(DropReason::SessionEnded),
                        });
                    };
                    let to = peer.endpoint().ok_or(rest(DropReason::NoEndpoint))?;
                    if len > max_bytes(&to) {
                        return Err(rest(DropReason::TooBig));
                    }
                    let buffer = sender
                        .buffer(context.pool)
                        .ok_or(rest(DropReason::SendFailed))?;
                    self.open
                        .push(OpenTrain::new(Arc::clone(peer), session, to, ecn, buffer));
                    self.open.len() - 1
                }
            };
            self.open[at].append(frame, i, len);
            if self.open[at].is_full() {
                sender.seal(self.open.remove(at), context);
            }
        }
        Ok(())
    }

    fn close_all<U: UdpSocket>(&mut self, sender: &mut Sender<U>, context: Context<'_, U>) {
        sender.seal_all(&mut self.open, context);
    }
}

/// Whether a frame is a datagram that this device sent to the endpoint of this peer: sealing it
/// again would never end.
fn is_own_datagram(frame: &Frame<'_>, peer: &Peer, own_port: u16) -> bool {
    // The port first: it takes no lock.
    let Some((_, to)) = frame.udp_ports().filter(|(from, _)| *from == own_port) else {
        return false;
    };
    let is_to = |end: Endpoint| (frame.destination(), to) == (end.addr.ip(), end.addr.port());
    peer.endpoint().is_some_and(is_to)
}

#[cfg(test)]
#[path = "outbound_tests.rs"]
pub(crate) mod tests;
