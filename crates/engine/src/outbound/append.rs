//! Stages 3 and 4: frames are appended to the open trains of their peers, and trains are sealed.

use std::sync::Arc;

use adit_io::UdpSocket;
use adit_offload::Frame;
use adit_proto::{DropReason, Endpoint, Peer};
use arrayvec::ArrayVec;

use crate::outbound::buffers::Buffers;
use crate::outbound::context::Context;
use crate::outbound::sender::Sender;
use crate::outbound::train::{OpenTrain, SealedTrain, datagram_len, max_bytes, seal_all};

/// Trains of different peers (or ECN marks, or gates) that are open at once.
pub(super) const MAX_OPEN: usize = 16;

/// In the seventh byte of an IPv4 header.
const DONT_FRAGMENT: u8 = 0x40;

impl<'a> Trains<'a> {
    /// Stages 3 and 4 for one frame.
    pub(super) fn append<U: UdpSocket>(
        &mut self,
        closed: &mut impl Closed<U>,
        context: Context<'_, U>,
        (peer, gate): (&Arc<Peer>, usize),
        frame: &Frame<'a>,
    ) -> Result<(), NotAppended> {
        let Context { common, now, .. } = context;
        let segments = frame.segments();
        if is_own_datagram(frame, peer, context.sockets.port) {
            return Err(NotAppended::Dropped(DropReason::RoutingLoop, segments));
        }
        if peer.path_concerns(|| frame.segment_len(0)) && is_too_long(context, peer, frame) {
            return Err(NotAppended::Dropped(DropReason::PathMtu, segments));
        }
        let mtu = common.mtu();
        let ecn = frame.ecn();
        for i in 0..segments {
            let rest = |reason| NotAppended::Dropped(reason, segments - i);
            let len = datagram_len(frame.segment_len(i), mtu);
            let open = self
                .open
                .iter()
                .position(|train| (train.peer.id(), train.gate) == (peer.id(), gate));
            let at = match open {
                Some(at) if self.open[at].ecn() == ecn && self.open[at].takes(len) => at,
                other => {
                    if let Some(at) = other {
                        self.close(at, closed, context);
                    } else if self.open.is_full() {
                        // Trains of many peers are short: sealed together, they fill the lanes.
                        self.close_all(closed, context);
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
                    let buffer = closed
                        .buffer(context.buffers)
                        .ok_or(rest(DropReason::SendFailed))?;
                    let train = OpenTrain::new(Arc::clone(peer), session, to, ecn, buffer);
                    self.open.push(train.for_gate(gate));
                    self.open.len() - 1
                }
            };
            self.open[at].append(frame, i, len);
            if self.open[at].is_full() {
                self.close(at, closed, context);
            }
        }
        Ok(())
    }

    /// Seals one train.
    pub(super) fn close<U>(
        &mut self,
        at: usize,
        closed: &mut impl Closed<U>,
        context: Context<'_, U>,
    ) {
        let mut train = ArrayVec::from([self.open.remove(at)]);
        seal_all(&mut train, context.now, |train| closed.take(context, train));
    }

    /// Seals all; their order stays.
    pub(super) fn close_all<U>(&mut self, closed: &mut impl Closed<U>, context: Context<'_, U>) {
        seal_all(&mut self.open, context.now, |train| {
            closed.take(context, train)
        });
    }
}

/// What takes trains when they are closed.
pub(crate) trait Closed<U> {
    /// A buffer for a train; `None` while too many exist.
    fn buffer(&mut self, buffers: &Buffers) -> Option<Box<[u8]>>;

    /// Takes a train that is sealed, or one whose session may not be used any more.
    fn take(&mut self, context: Context<'_, U>, train: Result<SealedTrain, OpenTrain<'_>>);
}

/// Why a frame, or the rest of it, was not appended to a train.
pub(crate) enum NotAppended {
    /// The peer has no session to send with. Nothing of the frame was appended.
    NoSession,
    /// So many packets, the last ones of the frame, are dropped.
    Dropped(DropReason, usize),
}

/// The trains that frames of one poll are appended to. A peer has at most one of them for each second
/// gate: its flows stay in order.
#[derive(Default)]
pub(crate) struct Trains<'a> {
    open: ArrayVec<OpenTrain<'a>, MAX_OPEN>,
}

/// What is known of the path to a peer says that a frame's segments do not arrive. Their sender is
/// told, also if they arrive in fragments. IPv6 has no shorter limit than 1280 bytes (RFC 8200, 5).
#[cold]
fn is_too_long<U>(context: Context<'_, U>, peer: &Arc<Peer>, frame: &Frame<'_>) -> bool {
    let Context { common, now, .. } = context;
    let len = frame.segment_len(0);
    if peer.sample(len, frame.source(), frame.destination()) {
        common.control.event(peer);
    }
    let Some(limit) = peer.path_limit() else {
        return false;
    };
    let limit = match frame.destination().is_ipv6() {
        true => limit.max(1280),
        false => limit,
    };
    if len <= limit.into() {
        return false;
    }
    let loses = peer.loses_longer();
    let mut packet = vec![0; frame.header_len()];
    frame.write_header(0, &mut packet);
    // What anybody may fragment arrives as it is.
    let is_whole = frame.destination().is_ipv6()
        || packet
            .get(6)
            .is_some_and(|flags| flags & DONT_FRAGMENT != 0);
    if (loses || is_whole) && peer.tells_limit(now) {
        let payload = frame.payload(0);
        packet.extend(&payload[..payload.len().min(128)]);
        if let Some(told) = adit_offload::too_big(&packet, limit) {
            common.control.leave_answer(told);
        }
    }
    loses
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

impl<U: UdpSocket> Closed<U> for Sender<U> {
    fn buffer(&mut self, buffers: &Buffers) -> Option<Box<[u8]>> {
        Sender::buffer(self, buffers)
    }

    fn take(&mut self, context: Context<'_, U>, train: Result<SealedTrain, OpenTrain<'_>>) {
        Sender::take(self, context, train);
    }
}
