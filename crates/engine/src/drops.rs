use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])* $variant:ident => $name:literal,)*) => {
        /// Why a packet was dropped. Every drop on either path counts under exactly one reason.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum DropReason {
            $($(#[doc = $doc])* $variant,)*
        }

        impl DropReason {
            /// Every reason, in the order of the two paths.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$variant,)*];

            /// The name in reports: stable, in snake case.
            pub fn name(self) -> &'static str {
                match self {
                    $(DropReason::$variant => $name,)*
                }
            }
        }
    };
}

drop_reasons! {
    /// Outbound: the frame from the TUN is no IP packet, or its virtio header contradicts it.
    MalformedFrame => "malformed_frame",
    /// Outbound: no peer's allowed IPs contain the destination.
    NoRoute => "no_route",
    /// Outbound: the peer has no endpoint yet.
    NoEndpoint => "no_endpoint",
    /// Outbound: our own datagram to this peer came back to be sent to this peer.
    RoutingLoop => "routing_loop",
    /// Outbound: the packet does not fit a UDP datagram.
    TooBig => "too_big",
    /// Outbound: waited for a handshake, and the queue was full or the handshake given up.
    Staged => "staged",
    /// Outbound: the session ended between choosing it and sealing.
    SessionEnded => "session_ended",
    /// Outbound: the kernel refused to send.
    SendFailed => "send_failed",
    /// Inbound: neither a handshake message nor a data message.
    MalformedDatagram => "malformed_datagram",
    /// Inbound: the queue of handshake messages was full.
    HandshakeQueueFull => "handshake_queue_full",
    /// Inbound: no session has this receiver index, or it ended.
    UnknownSession => "unknown_session",
    /// Inbound: the tag is wrong.
    NotAuthentic => "not_authentic",
    /// Inbound: the counter was seen before or is too old.
    Replayed => "replayed",
    /// Inbound: what was sealed is no IP packet.
    MalformedPacket => "malformed_packet",
    /// Inbound: the source is not among the sender's allowed IPs.
    WrongSource => "wrong_source",
    /// Inbound: congestion was marked on the way of a packet that cannot carry the mark (RFC 6040).
    EcnNotCapable => "ecn_not_capable",
    /// Inbound: the TUN did not take it, as when the interface is down.
    DeliverFailed => "deliver_failed",
}

/// One counter per [`DropReason`], written by one shard and read by anyone.
#[derive(Default, Debug)]
pub(crate) struct Drops([AtomicU64; DropReason::ALL.len()]);

impl Drops {
    pub(crate) fn count(&self, reason: DropReason, packets: u64) {
        self.0[reason as usize].fetch_add(packets, Ordering::Relaxed);
    }

    pub(crate) fn of(&self, reason: DropReason) -> u64 {
        self.0[reason as usize].load(Ordering::Relaxed)
    }
}
