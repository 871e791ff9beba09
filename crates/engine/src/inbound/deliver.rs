//! Stages 6 to 8: what is authentic goes to the TUN, packets of one flow as one.

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::sync::Arc;

use adit_aead::TAG_LEN;
use adit_io::tun::TunErrorKind;
use adit_io::{RecvBatch, TunQueue, UdpSocket};
use adit_offload::{Coalescer, Merged, Span, VNET_HDR_LEN};
use adit_proto::{DropReason, PassedKind, Peer, Time};
use arrayvec::ArrayVec;

use crate::inbound::{InboundBatch, InboundContext, SessionRun, narrow};
use crate::shared::common::Common;
use crate::shared::rate_limited_log::Incident;
use crate::thread::priority;

/// Pieces of one gathering write (IOV_MAX).
const MAX_PIECES: usize = 1024;

/// The buffers with which a thread delivers batches, of whatever interface.
pub(crate) struct Delivery(Coalescer);

impl Delivery {
    pub(crate) fn new() -> Self {
        Self(Coalescer::new(true, true))
    }

    /// Stages 6 to 8, for this flow shard of what is committed. Errors are the TUN's.
    pub(crate) fn deliver_batch<T: TunQueue, U: UdpSocket>(
        &mut self,
        context: InboundContext<'_, T, U>,
        batch: &InboundBatch,
        flow_shard: usize,
    ) -> io::Result<()> {
        let InboundContext {
            common, offloads, ..
        } = context;
        self.0.merge_only(|kind| {
            let is_allowed = match kind {
                Merged::Tcp | Merged::Tunnel => offloads.tun_gro_tcp,
                Merged::Udp => offloads.tun_gro_udp,
            };
            is_allowed && common.tun_takes(kind)
        });
        self.coalesce(context, batch, flow_shard)?;
        self.deliver(context, &batch.received)
    }

    /// Stages 6 and 7.
    fn coalesce<T: TunQueue, U: UdpSocket>(
        &mut self,
        context: InboundContext<'_, T, U>,
        batch: &InboundBatch,
        flow_shard: usize,
    ) -> io::Result<()> {
        let InboundContext {
            common, drops, now, ..
        } = context;
        let routes = common.proto.routes();
        let tunnel_ends = common.tunnel_ends.as_ref();
        let is_end = |end| {
            tunnel_ends.is_some_and(|tunnel_ends| tunnel_ends.know(end, now.since(Time::default())))
        };
        let InboundBatch {
            received,
            packets,
            accepted,
            runs,
            ..
        } = batch;
        for SessionRun {
            message,
            peer,
            packets: range,
            ..
        } in runs
        {
            let (message, id) = (*message, peer.id());
            let from = received.received()[message];
            let probing = peer.is_probing();
            let limit = peer.limits().map(|limits| &limits.from_peer);
            let mut checked: Option<IpAddr> = None;
            let mut wrong: Option<(IpAddr, u64)> = None;
            let (mut keepalives, mut answers) = (0, 0);
            for (packet, accepted) in packets[range.clone()].iter().zip(&accepted[range.clone()]) {
                if !accepted || usize::from(packet.flow_shard) != flow_shard {
                    continue;
                }
                if packet.len == TAG_LEN {
                    keepalives += 1;
                    continue;
                }
                let (start, len) = (packet.start, packet.len - TAG_LEN);
                let plaintext = &received.bytes(message)[start..start + len];
                let Some(inner) = adit_offload::inner_packet(plaintext) else {
                    peer.count_dropped(drops, DropReason::MalformedPacket, 1);
                    continue;
                };
                // What answers has perhaps an address that is none of the peer's.
                if probing && is_probe_answer(common, peer, plaintext) {
                    answers += 1;
                    continue;
                }
                if checked != Some(inner.source) {
                    let owner = routes.lookup(inner.source);
                    if owner.is_none_or(|owner| owner.id() != id) {
                        peer.count_dropped(drops, DropReason::WrongSource, 1);
                        let before = wrong.map_or(0, |(_, times)| times);
                        wrong = Some((inner.source, before + 1));
                        continue;
                    }
                    checked = Some(inner.source);
                }
                if packet.not_capable {
                    peer.count_dropped(drops, DropReason::EcnNotCapable, 1);
                    continue;
                }
                let len = inner.len;
                if let Some(limit) = limit
                    && !limit.admit(now, adit_proto::counted(len, inner.source.is_ipv4()))
                {
                    peer.count_dropped(drops, DropReason::LimitFromPeer, 1);
                    continue;
                }
                let span = Span {
                    buffer: narrow(message),
                    start: narrow(start),
                    len: narrow(len),
                };
                let packet = &received.bytes(message)[start..start + len];
                if self.0.push(id, packet, span, is_end).is_err() {
                    self.deliver(context, received)?;
                    let pushed = self.0.push(id, packet, span, is_end);
                    debug_assert!(pushed.is_ok(), "an empty coalescer takes any packet");
                }
            }
            drops.count_passed(PassedKind::Keepalives, keepalives);
            drops.count_passed(PassedKind::ProbeAnswers, answers);
            if let Some((source, times)) = wrong {
                common.note(now, times, || Incident::WrongSource {
                    peer: peer.public_key(),
                    from: from.from.addr,
                    source,
                });
            }
        }
        Ok(())
    }

    /// Stage 8. A GRO packet that the kernel refuses is delivered packet by packet, and no more of
    /// its kind are made.
    fn deliver<T: TunQueue, U>(
        &mut self,
        InboundContext {
            common, drops, tun, ..
        }: InboundContext<'_, T, U>,
        received: &RecvBatch,
    ) -> io::Result<()> {
        let mut refused = ArrayVec::<Merged, { Merged::COUNT }>::new();
        let (mut gone, mut delivered) = (Ok(()), 0);
        self.0.drain(|head, spans| {
            let is_datagram = match (Merged::of(head), spans) {
                (None, [span]) => {
                    let bytes = received.bytes(span.buffer as usize);
                    adit_offload::is_udp(&bytes[span.start as usize..])
                }
                (merged, _) => merged == Some(Merged::Udp),
            };
            if is_datagram {
                priority::carried(spans.len());
            }
            let mut pieces: ArrayVec<IoSlice<'_>, MAX_PIECES> = ArrayVec::new();
            pieces.push(IoSlice::new(head));
            pieces.extend(spans.iter().map(|span| {
                let (start, len) = (span.start as usize, span.len as usize);
                IoSlice::new(&received.bytes(span.buffer as usize)[start..start + len])
            }));
            let Err(error) = tun.write(&pieces) else {
                delivered += spans.len() as u64;
                return;
            };
            match TunErrorKind::of(&error) {
                TunErrorKind::Gone => gone = Err(error),
                TunErrorKind::Refused if spans.len() > 1 => {
                    refused.extend(Merged::of(head).filter(|kind| !refused.contains(kind)));
                    // They still stand in the batch as they came: each has its headers before its
                    // span.
                    let headers = head.len() - VNET_HDR_LEN;
                    for span in spans {
                        let (start, len) = (span.start as usize, span.len as usize);
                        let packet =
                            &received.bytes(span.buffer as usize)[start - headers..start + len];
                        let pieces = [IoSlice::new(&[0; VNET_HDR_LEN]), IoSlice::new(packet)];
                        match tun.write(&pieces) {
                            Ok(()) => delivered += 1,
                            Err(_) => drops.count(DropReason::DeliverFailed, 1),
                        }
                    }
                }
                _ => drops.count(DropReason::DeliverFailed, spans.len() as u64),
            }
        });
        if delivered > 0 {
            tun.flush();
        }
        drops.count_passed(PassedKind::ToTun, delivered);
        for kind in refused {
            common.tun_refused(kind);
        }
        gone
    }
}

/// Whether a packet answers a probe of the path to the peer.
fn is_probe_answer<U>(common: &Common<U>, peer: &Arc<Peer>, plaintext: &[u8]) -> bool {
    let answer = adit_offload::echo_answer(plaintext);
    match answer.and_then(|(id, sequence)| peer.probe_answered(id, sequence)) {
        None => false,
        Some(wakes) => {
            if wakes {
                common.control.event(peer);
            }
            true
        }
    }
}
