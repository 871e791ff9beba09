//! Counters.

/// What a device has done since it was made.
///
/// No packet is lost without a counter, once the outbox is drained:
///
/// - `packets` = `sealed_packets` + `waiting_packets` + all of `unsealed`;
/// - `datagrams` = `opened_packets` + `keepalives` + `handshake_messages` + all of `unopened`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceStats {
    /// Packets that were taken to be sealed; each that a GSO packet is cut to counts.
    pub packets: u64,
    /// Of these, those that were sealed.
    pub sealed_packets: u64,
    /// Bytes of UDP payload that these became.
    pub sealed_bytes: u64,
    /// Of these, those that wait for a session now.
    pub waiting_packets: u64,
    /// Of these, those that were dropped.
    pub unsealed: Unsealed,
    /// Datagrams that were taken to be opened.
    pub datagrams: u64,
    /// Of these, those that had a packet, which was handed out.
    pub opened_packets: u64,
    /// Bytes of UDP payload of these.
    pub opened_bytes: u64,
    /// Of these, those that were authentic and without a packet.
    pub keepalives: u64,
    /// Of these, messages of handshakes, good or bad, that were looked at.
    pub handshake_messages: u64,
    /// Of these, those that were dropped.
    pub unopened: Unopened,
    /// Handshakes that led to a session.
    pub handshakes: u64,
    /// Handshakes that were given up after 90 seconds.
    pub given_up: u64,
    /// Messages of handshakes that were refused: not authentic, replayed, of no peer, or too many.
    pub refused: u64,
    /// Cookie replies that were sent, because more handshakes came than a device computes.
    pub cookies: u64,
    /// Events that were dropped, because nobody took them.
    pub missed_events: u64,
}

/// Packets that were not sealed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unsealed {
    /// Not a whole IPv4 or IPv6 packet, or not one that can be cut as it says.
    pub malformed: u64,
    /// No peer has the destination.
    pub no_route: u64,
    /// It is not known where the peer is.
    pub no_endpoint: u64,
    /// It does not fit a UDP datagram, or the outbox.
    pub too_big: u64,
    /// It waited for a session in vain, or too many did.
    pub waited: u64,
    /// The session has no counters left.
    pub session_ended: u64,
}

/// Datagrams that were not opened, or whose packets were not handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unopened {
    /// No message of WireGuard.
    pub malformed: u64,
    /// A message of a handshake, while too many waited for their computation.
    pub handshakes: u64,
    /// It names no session, or one that has ended.
    pub unknown_session: u64,
    /// The tag is wrong.
    pub not_authentic: u64,
    /// It came before, or is too old to tell.
    pub replayed: u64,
    /// Authentic, but no IP packet.
    pub not_ip: u64,
    /// Authentic, but the source is no address of the peer.
    pub wrong_source: u64,
    /// Congestion was marked on the way of a packet that cannot carry the mark (RFC 6040).
    pub ecn: u64,
}
