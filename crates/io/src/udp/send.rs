//! Trains as messages: what the kernel refuses of them, and what is done about it.

use std::net::SocketAddr;

use adit_offload::lab::{self, Idea};
use arrayvec::ArrayVec;
use rustix::io::Errno;

use crate::sys::mmsg::{Message, SEND_BATCH};
use crate::udp::gso_fallbacks::GsoFallbacks;
use crate::{SendReport, Transmit};

/// Segments of one UDP_SEGMENT send: UDP_MAX_SEGMENTS of every kernel that has it.
pub const MAX_SEGMENTS: usize = 64;
/// UDP payload of one IPv4 send, UDP_SEGMENT or not: 65,535 less both headers.
pub const MAX_SEND_V4: usize = 65_535 - 20 - 8;
/// The same for IPv6, whose kernel counts the header too when it builds a train: 65,535 less both
/// headers.
pub const MAX_SEND_V6: usize = 65_535 - 40 - 8;

/// A place between two messages.
#[derive(Clone, Copy)]
struct Cursor {
    train: usize,
    /// Into that train's bytes.
    offset: usize,
}

/// Sends `trains` through `kernel`, which sends messages and returns how many went out.
///
/// Without `gso` every message is one datagram.
pub(super) fn send_trains(
    mut kernel: impl FnMut(&[Message<'_>]) -> Result<usize, Errno>,
    gso: Option<&GsoFallbacks>,
    trains: &[Transmit<'_>],
    report: &mut SendReport,
) -> usize {
    (report.stale_source, report.too_long, report.resume_at) = (None, None, 0);
    report.lost.clear();
    let mut at = Cursor {
        train: 0,
        offset: 0,
    };
    // The train that goes on datagram by datagram, and the one that goes on without its source
    // address.
    let (mut plain, mut sourceless) = (None, None);
    // Where segmentation seems to be refused, until a datagram alone has been taken: else it is not
    // what was wrong.
    let mut suspect = None;
    loop {
        // 1. messages of the trains from `at` on, and where each of them ends
        let mut messages = ArrayVec::<Message<'_>, SEND_BATCH>::new();
        let mut ends = ArrayVec::<Cursor, SEND_BATCH>::new();
        let mut next = at;
        let is_full =
            |messages: usize| messages == SEND_BATCH || lab::without(Idea::Mmsg) && messages == 1;
        while let Some(train) = trains.get(next.train).filter(|_| !is_full(messages.len())) {
            let segment = plain != Some(next.train)
                && gso.is_some_and(|gso| gso.allow(train.to.addr.ip(), train.stride));
            let bytes = &train.bytes[next.offset..];
            let bytes = &bytes[..bytes.len().min(message_len(train, segment))];
            messages.push(Message {
                train,
                bytes,
                from_source: sourceless != Some(next.train),
            });
            next.offset += bytes.len();
            if next.offset == train.bytes.len() {
                next = Cursor {
                    train: next.train + 1,
                    offset: 0,
                };
            }
            ends.push(next);
        }
        let Some((&head, &end)) = messages.first().zip(ends.first()) else {
            return trains.len();
        };
        // 2. as many as the kernel takes: after a part of them, the next round meets what stopped
        //    it
        let errno = match kernel(&messages) {
            Ok(sent) => {
                if let Some((gso, (errno, train))) = gso.zip(suspect.take()) {
                    let Transmit { to, stride, .. } = trains[train];
                    let is_long = errno != Errno::IO;
                    gso.insert(to.addr.ip(), if is_long { stride } else { 0 });
                    report.refused += 1;
                    report.too_long = Some(train).filter(|_| is_long).or(report.too_long);
                }
                at = ends[sent.clamp(1, ends.len()) - 1];
                continue;
            }
            Err(Errno::AGAIN) => {
                report.resume_at = at.offset;
                return at.train;
            }
            Err(Errno::INTR) => continue,
            Err(errno) => errno,
        };
        // 3. the source address may be gone: try without
        if head.from_source && head.train.to.src.is_some() && blames_source(errno) {
            let retry = Message {
                from_source: false,
                ..head
            };
            if kernel(&[retry]).is_ok() {
                report.stale_source = Some(at.train);
                sourceless = Some(at.train);
                at = end;
                continue;
            }
        }
        // 4. the path may not take segmentation: try without
        if head.is_segmented() && blames_gso(errno) {
            suspect = Some((errno, at.train));
            plain = Some(at.train);
            continue;
        }
        // 5. lost, as UDP loses it
        suspect = None;
        report.lose(at.train, head.datagrams() as u64);
        report.error = Some(errno);
        at = end;
    }
}

/// How much of a train fits one message.
fn message_len(train: &Transmit<'_>, segment: bool) -> usize {
    // The kernel knows no segments of length 0 and none beyond 65,535.
    let stride = train.stride.max(1);
    let max = match train.to.addr {
        SocketAddr::V4(_) => MAX_SEND_V4,
        SocketAddr::V6(_) => MAX_SEND_V6,
    };
    if segment && stride <= max {
        stride * (max / stride).min(MAX_SEGMENTS)
    } else {
        stride
    }
}

/// Errors that a source address or interface that went away causes.
pub(super) fn blames_source(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::INVAL | Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ADDRNOTAVAIL | Errno::NODEV
    )
}

/// Errors that UDP_SEGMENT causes: EIO where the device cannot do checksums, EMSGSIZE where a
/// segment exceeds the path's MTU (EINVAL before Linux 6.14), EINVAL where it is not liked
/// otherwise.
pub(super) fn blames_gso(errno: Errno) -> bool {
    matches!(errno, Errno::IO | Errno::INVAL | Errno::MSGSIZE)
}
