//! The reasons for which packets are not delivered, and their counters.

use std::net::IpAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::explained_enum;
use crate::per_thread::PerThread;

explained_enum! {
    /// Why a packet was dropped. Every drop on either path counts under exactly one reason.
    pub enum DropReason {
        /// Outbound: the queue of the TUN was full before Adit read it, because this process had no
        /// CPU or its socket was full. The kernel counts a GSO packet as one, whatever it holds.
        TunFull => "tun_full",
        /// Outbound: the packet found too many others, or too many bytes, in its queue of the TUN,
        /// and no TCP on this host keeps it: it was forwarded, or UDP. Each packet that a GSO packet
        /// holds counts.
        TunLimit => "tun_limit",
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
        /// Outbound: the packet is longer than the path to the peer takes, in fragments, too, as
        /// probes have shown, and its sender was told so by ICMP. A few at the beginning of a
        /// connection are as it should be.
        PathMtu => "path_mtu",
        /// Outbound: waited for a handshake, and the queue was full or the handshake given up.
        Staged => "staged",
        /// Outbound: the session ended between choosing it and sealing.
        SessionEnded => "session_ended",
        /// Outbound: the path to the peer is slower than what is sent to it. Other peers do not
        /// wait for such a peer: it has a send socket of its own, and that one's buffer is full.
        SlowPath => "slow_path",
        /// Outbound: the peer has a limit, and more is sent to it. Where the peer's packets can wait
        /// in the TUN they do instead: see adit-peer(8).
        LimitToPeer => "limit_to_peer",
        /// Outbound: the peer's access has expired, or its quota is used up.
        NoAccess => "no_access",
        /// Outbound: the kernel refused to send: no route, a firewall on this host, or a full queue
        /// (qdisc) of the outgoing interface. A queue that cuts a train into packets does not tell
        /// which of them it drops, nor does one that drops later, as CoDel.
        SendFailed => "send_failed",
        /// Inbound: the receive buffer of the socket was full, because this process had no CPU. The
        /// kernel counts a train of datagrams that it merged as one, and tells with the next one
        /// that arrives.
        ReceiveBufferFull => "receive_buffer_full",
        /// Inbound: more arrived than this process has CPU for, and most of it from this peer.
        OverShare => "over_share",
        /// Inbound: the peer has a limit, and sends more.
        LimitFromPeer => "limit_from_peer",
        /// Inbound: neither a handshake message nor a data message.
        MalformedDatagram => "malformed_datagram",
        /// Inbound: the queue of handshake messages was full.
        HandshakeQueueFull => "handshake_queue_full",
        /// Inbound: no session has this receiver index, or it ended.
        UnknownSession => "unknown_session",
        /// Inbound: the tag is wrong.
        NotAuthentic => "not_authentic",
        /// Inbound: the counter was seen before or is too old. Anybody can send such, so it counts
        /// under no peer, unless two threads had the same packet at the same time.
        Replayed => "replayed",
        /// Inbound: what was sealed is no IP packet.
        MalformedPacket => "malformed_packet",
        /// Inbound: the source of the inner packet is not among the allowed IPs of the peer that
        /// sent it.
        WrongSource => "wrong_source",
        /// Inbound: congestion was marked on the way of a packet that cannot carry the mark (RFC
        /// 6040).
        EcnNotCapable => "ecn_not_capable",
        /// Inbound: the TUN did not take it, as when the interface is down.
        DeliverFailed => "deliver_failed",
    }
}

explained_enum! {
    /// A kind of packet that is no drop though no peer got it: the kernel sends such of its own
    /// accord through any interface. Each counts here or under one [`DropReason`].
    pub enum IgnoredKind {
        /// Outbound: to a multicast or broadcast address that no peer's allowed IPs contain. The
        /// kernel sends MLD, IGMP and router solicitations, and services like mDNS theirs.
        Multicast => "multicast",
        /// Outbound: to an address of link-local scope (fe80::/10, 169.254.0.0/16) that no peer's
        /// allowed IPs contain.
        LinkLocal => "link_local",
    }
}

explained_enum! {
    /// Where packets came from and where they got to: see [`packet_accounting`].
    pub enum PassedKind {
        /// Outbound: packets read from the TUN; each that a GSO packet holds counts.
        FromTun => "from_tun",
        /// Outbound: packets from the TUN that the kernel took, sealed. Keepalives, probes and
        /// handshake messages are not among them.
        Sent => "sent",
        /// Inbound: datagrams of all kinds that came to the sockets, and found room there.
        Received => "received",
        /// Inbound: handshake messages, good or bad, that did not find their queue full.
        HandshakeMessages => "handshake_messages",
        /// Inbound: authentic data messages without a packet.
        Keepalives => "keepalives",
        /// Inbound: answers to our probes of a path's MTU.
        ProbeAnswers => "probe_answers",
        /// Inbound: packets that the TUN took; each that a GRO packet holds counts.
        ToTun => "to_tun",
    }
}

impl IgnoredKind {
    /// The kind of a packet that no peer's allowed IPs contain; `None` if it was meant for a peer.
    fn of(destination: IpAddr) -> Option<Self> {
        let (everybody, link) = match destination {
            IpAddr::V4(ip) => (ip.is_multicast() || ip.is_broadcast(), ip.is_link_local()),
            IpAddr::V6(ip) => (ip.is_multicast(), ip.is_unicast_link_local()),
        };
        match (everybody, link) {
            (true, _) => Some(Self::Multicast),
            (_, true) => Some(Self::LinkLocal),
            _ => None,
        }
    }
}

/// A counter of an interface.
#[derive(Clone, Copy, Debug)]
pub enum Counter {
    /// Packets dropped.
    Dropped(DropReason),
    /// Packets that are no drops, though no peer got them.
    Ignored(IgnoredKind),
    /// Packets that passed.
    Passed(PassedKind),
}

impl Counter {
    /// Its name among those of its kind.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dropped(reason) => reason.name(),
            Self::Ignored(kind) => kind.name(),
            Self::Passed(kind) => kind.name(),
        }
    }
}

/// One direction of an interface. As soon as nothing is under way, no packet is anywhere but where
/// it is known (invariant 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketAccounting {
    /// Packets that came in.
    pub came: u64,
    /// Packets of which a counter tells where they are.
    pub known: u64,
}

/// Packet accounting of an interface, outbound and inbound. `waiting` packets are kept for sessions.
///
/// - `from_tun` = `sent` + ignored + outbound drops + what waits. Drops before the TUN is read,
///   `tun_full` and `tun_limit`, are not part of it.
/// - `received` = `handshake_messages` + `keepalives` + `probe_answers` + `to_tun` + inbound drops
///   but `receive_buffer_full`.
pub fn packet_accounting(waiting: u64, of: impl Fn(Counter) -> u64) -> [PacketAccounting; 2] {
    let passed = |kinds: &[PassedKind]| -> u64 {
        let kinds = kinds.iter().map(|kind| Counter::Passed(*kind));
        kinds.map(&of).sum()
    };
    let dropped = |direction: &str| -> u64 {
        let early = [
            DropReason::TunFull,
            DropReason::TunLimit,
            DropReason::ReceiveBufferFull,
        ];
        let reasons = DropReason::ALL.iter().filter(|reason| {
            reason.explanation().starts_with(direction) && !early.contains(reason)
        });
        reasons.map(|reason| of(Counter::Dropped(*reason))).sum()
    };
    let ignored = IgnoredKind::ALL.iter().map(|kind| Counter::Ignored(*kind));
    let outbound = PacketAccounting {
        came: passed(&[PassedKind::FromTun]),
        known: passed(&[PassedKind::Sent])
            + ignored.map(&of).sum::<u64>()
            + dropped("Outbound")
            + waiting,
    };
    let inbound = PacketAccounting {
        came: passed(&[PassedKind::Received]),
        known: passed(&[
            PassedKind::HandshakeMessages,
            PassedKind::Keepalives,
            PassedKind::ProbeAnswers,
            PassedKind::ToTun,
        ]) + dropped("Inbound"),
    };
    [outbound, inbound]
}

/// One [`Counter`] of each kind, written by the threads that process packets, read by anyone.
#[derive(Default, Debug)]
pub struct Drops(PerThread<DropCounters>);

#[derive(Default)]
struct DropCounters {
    dropped: [AtomicU64; DropReason::ALL.len()],
    ignored: [AtomicU64; IgnoredKind::ALL.len()],
    passed: [AtomicU64; PassedKind::ALL.len()],
}

impl Drops {
    /// Counts so many dropped packets.
    pub fn count(&self, reason: DropReason, packets: u64) {
        if packets > 0 {
            self.0.own().dropped[reason as usize].fetch_add(packets, Ordering::Relaxed);
        }
    }

    /// Counts packets that no peer's allowed IPs contain the destination of.
    pub fn count_unrouted(&self, destination: IpAddr, packets: u64) {
        match IgnoredKind::of(destination) {
            Some(kind) => self.count_ignored(kind, packets),
            None => self.count(DropReason::NoRoute, packets),
        }
    }

    /// Counts so many packets of this kind.
    pub fn count_ignored(&self, kind: IgnoredKind, packets: u64) {
        self.0.own().ignored[kind as usize].fetch_add(packets, Ordering::Relaxed);
    }

    /// Counts so many packets that passed; once a batch.
    pub fn count_passed(&self, kind: PassedKind, packets: u64) {
        if packets > 0 {
            self.0.own().passed[kind as usize].fetch_add(packets, Ordering::Relaxed);
        }
    }

    /// Packets that passed here so far.
    pub fn passed(&self, kind: PassedKind) -> u64 {
        self.sum(|counters| &counters.passed[kind as usize])
    }

    /// Packets dropped for this reason so far.
    pub fn of(&self, reason: DropReason) -> u64 {
        self.sum(|counters| &counters.dropped[reason as usize])
    }

    /// Packets of this kind so far.
    pub fn ignored(&self, kind: IgnoredKind) -> u64 {
        self.sum(|counters| &counters.ignored[kind as usize])
    }

    fn sum(&self, of: impl Fn(&DropCounters) -> &AtomicU64) -> u64 {
        let each = self.0.all().map(of);
        each.map(|counter| counter.load(Ordering::Relaxed)).sum()
    }
}

/// The drops of one peer. A peer that never lost a packet has no counters.
#[derive(Default, Debug)]
pub(crate) struct PeerDrops(OnceLock<Box<[AtomicU64; DropReason::ALL.len()]>>);

impl PeerDrops {
    pub(crate) fn count(&self, reason: DropReason, packets: u64) {
        self.0.get_or_init(Box::default)[reason as usize].fetch_add(packets, Ordering::Relaxed);
    }

    /// The reasons that occurred, each with how many packets were dropped for it.
    pub(crate) fn counted(&self) -> Vec<(DropReason, u64)> {
        let all = self
            .0
            .get()
            .into_iter()
            .flat_map(|counters| counters.iter());
        let counted = all.map(|counter| counter.load(Ordering::Relaxed));
        let named = DropReason::ALL.iter().copied().zip(counted);
        named.filter(|(_, packets)| *packets > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_is_in_one_book_but_for_drops_before_reading() {
        let in_accounting = |one: &'static str| {
            packet_accounting(0, |counter| u64::from(counter.name() == one))
                .map(|account| (account.came, account.known))
        };
        let (outbound, inbound) = ([(0, 1), (0, 0)], [(0, 0), (0, 1)]);
        for kind in PassedKind::ALL {
            let expected = match kind {
                PassedKind::FromTun => [(1, 0), (0, 0)],
                PassedKind::Received => [(0, 0), (1, 0)],
                PassedKind::Sent => outbound,
                _ => inbound,
            };
            assert_eq!(in_accounting(kind.name()), expected, "{kind:?}");
        }
        for kind in IgnoredKind::ALL {
            assert_eq!(in_accounting(kind.name()), outbound, "{kind:?}");
        }
        for reason in DropReason::ALL {
            let expected = match reason {
                DropReason::TunFull | DropReason::TunLimit | DropReason::ReceiveBufferFull => {
                    [(0, 0); 2]
                }
                reason if (*reason as usize) < DropReason::ReceiveBufferFull as usize => outbound,
                _ => inbound,
            };
            assert_eq!(in_accounting(reason.name()), expected, "{reason:?}");
        }
        assert_eq!(
            packet_accounting(3, |_| 0)[0],
            PacketAccounting { came: 0, known: 3 }
        );
    }

    #[test]
    fn what_the_kernel_sends_by_itself_is_known() {
        for (to, expected) in [
            ("224.0.0.22", Some(IgnoredKind::Multicast)),
            ("239.255.255.250", Some(IgnoredKind::Multicast)),
            ("255.255.255.255", Some(IgnoredKind::Multicast)),
            ("ff02::16", Some(IgnoredKind::Multicast)),
            ("169.254.3.4", Some(IgnoredKind::LinkLocal)),
            ("fe80::1", Some(IgnoredKind::LinkLocal)),
            ("10.0.0.9", None),
            ("fd00::1", None),
            ("2001:db8::1", None),
        ] {
            let drops = Drops::default();
            drops.count_unrouted(to.parse().expect("an address"), 3);
            assert_eq!(
                IgnoredKind::of(to.parse().expect("an address")),
                expected,
                "{to}"
            );
            let ignored = IgnoredKind::ALL.iter().map(|kind| drops.ignored(*kind));
            let counted = (ignored.sum(), drops.of(DropReason::NoRoute));
            assert_eq!(counted, if expected.is_some() { (3, 0) } else { (0, 3) });
        }
    }
}
