//! The context of a poll of the outbound path.

use adit_offload::Frame;
use adit_proto::Time;

use crate::outbound::buffers::OutboundBuffers;
use crate::shared::common::Common;
use crate::shared::sockets::Sockets;
use crate::thread::priority;

/// The context of a poll of the outbound path.
pub(crate) struct OutboundContext<'a, U> {
    pub(crate) common: &'a Common<U>,
    pub(crate) sockets: &'a Sockets<U>,
    /// The buffers of the thread.
    pub(crate) buffers: &'a OutboundBuffers,
    /// The time of this poll.
    pub(crate) now: Time,
}

impl<U> OutboundContext<'_, U> {
    /// A frame leaves: datagrams, or a UDP tunnel's packet, which ends here.
    pub(crate) fn saw(&self, frame: &Frame<'_>) {
        match (frame.tunnel_end(), &self.common.tunnel_ends) {
            (Some(end), Some(tunnel_ends)) => {
                tunnel_ends.saw(end, self.now.since(Time::default()));
            }
            (None, _) if frame.udp_ports().is_some() => priority::carried(frame.segments()),
            _ => {}
        }
    }
}

impl<U> Clone for OutboundContext<'_, U> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<U> Copy for OutboundContext<'_, U> {}
