//! Gives trains to a socket, and tells their peers.

use adit_io::{SendReport, Transmit, UdpSocket};
use adit_proto::{DropReason, Drops, PassedKind};
use arrayvec::ArrayVec;

use crate::outbound::context::OutboundContext;
use crate::outbound::train::SealedTrain;
use crate::shared::rate_limited_log::Incident;

/// Trains given to one `send`.
pub(crate) const MAX_SEND: usize = 32;

/// Sends at most [`MAX_SEND`] trains of one address family through `socket`, and tells their peers;
/// returns how many were taken. Without a socket all are lost.
pub(crate) fn send<U: UdpSocket>(
    context: OutboundContext<'_, U>,
    socket: Option<&U>,
    trains: &mut [SealedTrain],
    drops: &Drops,
) -> usize {
    let OutboundContext { common, now, .. } = context;
    let mut report = SendReport::default();
    let taken = if let Some(socket) = socket {
        let batch: ArrayVec<Transmit<'_>, MAX_SEND> = trains
            .iter()
            .map(|train| Transmit {
                to: train.to,
                ecn: train.ecn,
                stride: train.stride,
                bytes: &train.buffer[train.sent..train.len],
            })
            .collect();
        let taken = socket.send(&batch, &mut report);
        if report.icmp {
            common.take_errors(socket, now);
        }
        taken
    } else {
        for (index, train) in trains.iter().enumerate() {
            report.lose(index, train.waiting() as u64);
        }
        trains.len()
    };
    if let Some(stale) = report.stale_source.and_then(|index| trains.get(index)) {
        stale.peer.clear_source();
    }
    if let Some(long) = report.too_long.and_then(|index| trains.get(index)) {
        long.peer.look_at_path();
    }
    common.count_refused_trains(report.refused);
    for lost in &report.lost {
        if let Some(SealedTrain { peer, to, .. }) = trains.get(lost.train) {
            peer.count_dropped(drops, DropReason::SendFailed, lost.datagrams);
            common.note(now, 1, || Incident::NotSent {
                peer: Some(peer.public_key()),
                kind: None,
                to: to.addr,
                error: report.error,
            });
        }
    }
    let packets = trains[..taken].iter().map(|train| train.packets);
    common.load.own().sent.count(packets);
    for (index, train) in trains[..taken].iter().enumerate() {
        let is_lossy = report.lost_of(index) > 0;
        let bytes = if is_lossy { 0 } else { train.len as u64 };
        if train.peer.data_sent(now, &train.session, bytes) {
            common.control.event(&train.peer);
        }
    }
    // A train may leave in parts, and what is left of one may be dropped.
    let mut left: usize = trains[..taken].iter().map(SealedTrain::waiting).sum();
    if let Some(next) = trains.get_mut(taken) {
        left += report.resume_at / next.stride;
        next.sent += report.resume_at;
    }
    drops.count_passed(PassedKind::Sent, left as u64 - report.datagrams_lost());
    taken
}
