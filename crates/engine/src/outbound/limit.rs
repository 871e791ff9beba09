//! What a peer with a limit is sent.

use adit_io::BatchFrame;
use adit_offload::Frame;
use adit_proto::{Peer, Time};

/// Charges a frame to its peer, once, if the peer has a limit. Whether it may pass.
///
/// Where the frames that come after it can wait in the TUN, it does, and they are to: their senders
/// slow down and lose nothing. Elsewhere so much is dropped that the rest keeps to the limit.
#[inline]
pub(super) fn admit(now: Time, read: &BatchFrame<'_>, frame: &Frame<'_>, peer: &Peer) -> bool {
    let Some(limit) = peer.limits().map(|limits| &limits.to_peer) else {
        return true;
    };
    let is_ipv4 = frame.destination().is_ipv4();
    let counted = |i| adit_proto::counted(frame.segment_len(i), is_ipv4);
    let bytes = (0..frame.segments()).map(counted).sum();
    if read.can_wait {
        read.rest.set(limit.charge(now, bytes));
        return true;
    }
    limit.admit(now, bytes)
}
