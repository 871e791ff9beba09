//! Handshake messages that arrive: the control thread gets them, or they are refused and counted.

use adit_io::{SendReport, Transmit, UdpSocket};
use adit_proto::{DropReason, Drops, Endpoint, PassedKind, Time};

use crate::shared::common::Common;
use crate::shared::mailbox::NotQueued;
use crate::shared::rate_limited_log::Incident;

impl<U: UdpSocket> Common<U> {
    /// A handshake message came in: the control thread gets it, or it is refused and counted.
    pub(crate) fn handshake(&self, drops: &Drops, now: Time, from: Endpoint, datagram: &[u8]) {
        match self.control.handshake(&self.proto, now, from, datagram) {
            Ok(()) => {}
            Err(NotQueued::Full) => {
                return drops.count(DropReason::HandshakeQueueFull, 1);
            }
            Err(NotQueued::Refused(outcome)) => {
                self.note(now, 1, || Incident::Handshake(outcome));
            }
            Err(NotQueued::Exhausted(outcome)) => {
                let sockets = self.queues.sockets.load();
                if let Some(socket) = sockets.family(from.addr.is_ipv6()) {
                    socket.refuse(from.addr.ip());
                }
                self.note(now, 1, || Incident::Handshake(outcome));
            }
        }
        drops.count_passed(PassedKind::HandshakeMessages, 1);
    }

    /// Sends the cookie replies to what came in since the last call.
    pub(crate) fn answer_handshakes(&self, now: Time) {
        let Some(replies) = self.control.take_replies() else {
            return;
        };
        // All sockets have the same port, and a shard serves both families.
        let sockets = self.queues.sockets.load();
        let mut left = 0;
        for v6 in [false, true] {
            let of_family = (replies.iter()).filter(|reply| reply.to.addr.is_ipv6() == v6);
            let datagrams: Vec<Transmit<'_>> = of_family
                .map(|reply| Transmit {
                    to: reply.to,
                    ecn: 0,
                    stride: reply.datagram.len(),
                    bytes: &reply.datagram,
                })
                .collect();
            let Some(socket) = sockets.family(v6).filter(|_| !datagrams.is_empty()) else {
                continue;
            };
            // What a full socket does not take is lost: a peer that needs it asks again.
            let mut report = SendReport::default();
            left += socket.send(&datagrams, &mut report) - report.lost.len();
            if report.icmp {
                self.take_errors(socket, now);
            }
        }
        let failed = replies.len() - left;
        self.proto.admission().replied(left as u64, failed as u64);
    }
}
