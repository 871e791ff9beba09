//! UDP to TUN: receive → classify → look up → open → commit → check source → coalesce → deliver.
//!
//! 1. `receive`: the datagrams that wait in the socket, as trains that the kernel merged;
//! 2. `classify`: data continues, handshake messages go to the control thread's bounded queue;
//! 3. `look up`: the receiver index names session and peer, once for a run of datagrams;
//! 4. `open`: every packet of the group at once;
//! 5. `commit`: the replay window moves over the authentic packets, and the peer's timers learn of
//!    them;
//! 6. `check source`: the inner packet's source must be routed to the peer that it came from;
//! 7. `coalesce`: packets of one flow become GRO packets again;
//! 8. `deliver`: one write for each GRO packet, after the whole batch, so that they are as long as
//!    they can be.

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use adit_aead::{OpenJob, TAG_LEN};
use adit_io::tun::TunErrorKind;
use adit_io::{Offloads, RecvBatch, TunQueue, UdpSocket};
use adit_offload::{Coalescer, Merged, Span, VNET_HDR_LEN};
use adit_proto::wire::{self, DataHeader, Kind};
use adit_proto::{DropReason, Drops, Endpoint, Peer, Session, Time};
use arrayvec::ArrayVec;

use crate::common::Common;
use crate::journal::Incident;
use crate::shares::Shares;

/// Packets opened together: enough to fill the lanes of any kernel with small packets.
const MAX_GROUP: usize = 256;
/// A group ends with the message that makes it this long.
const GROUP_BYTES: usize = 32 << 10;
/// Pieces of one gathering write (IOV_MAX).
const MAX_PIECES: usize = 1024;

/// What one thread needs to poll sockets, of whatever interface.
pub(crate) struct Inbound {
    batch: RecvBatch,
    coalescer: Coalescer,
    packets: ArrayVec<Packet, MAX_GROUP>,
    runs: ArrayVec<Run, MAX_GROUP>,
}

/// The interface whose socket is polled.
pub(crate) struct Context<'a, T, U> {
    pub(crate) common: &'a Common<U>,
    pub(crate) drops: &'a Drops,
    pub(crate) tun: &'a T,
    /// Kinds of packets that are merged for the TUN: TCP, UDP.
    pub(crate) offloads: Offloads,
    /// The time of this poll.
    pub(crate) now: Time,
}

impl<T, U> Clone for Context<'_, T, U> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, U> Copy for Context<'_, T, U> {}

/// Consecutive datagrams of one message for one session.
struct Run {
    message: usize,
    peer: Arc<Peer>,
    session: Arc<Session>,
    packets: Range<usize>,
}

/// One data message.
struct Packet {
    /// Where its ciphertext, then its plaintext, starts in the message.
    start: usize,
    /// Length of ciphertext and tag.
    len: usize,
    counter: u64,
    accepted: bool,
}

/// How far a batch was classified.
#[derive(Clone, Copy)]
struct Cursor {
    message: usize,
    offset: usize,
}

impl Inbound {
    pub(crate) fn new() -> Self {
        Self {
            batch: RecvBatch::default(),
            coalescer: Coalescer::new(true, true),
            packets: ArrayVec::new(),
            runs: ArrayVec::new(),
        }
    }

    /// Receives what waits in the socket, up to a batch, and delivers it. Returns how many data
    /// messages that were; errors are the TUN's.
    pub(crate) fn poll<T: TunQueue, U: UdpSocket>(
        &mut self,
        context: Context<'_, T, U>,
        socket: &U,
        shares: &mut Shares,
    ) -> io::Result<usize> {
        // An error other than `WouldBlock` concerns one datagram that is lost: the next wake-up
        // continues.
        if socket.recv(&mut self.batch).is_err() {
            shares.poll_ended(context.now, true);
            return Ok(0);
        }
        let Context {
            common, offloads, ..
        } = context;
        context
            .drops
            .count(DropReason::ReceiveBufferFull, self.batch.lost());
        self.coalescer.merge_only(|kind| {
            let is_allowed = match kind {
                Merged::Tcp | Merged::Tunnel => offloads.tun_gro_tcp,
                Merged::Udp => offloads.tun_gro_udp,
            };
            is_allowed && common.tun_takes(kind)
        });
        let mut processed = 0;
        let mut cursor = Cursor {
            message: 0,
            offset: 0,
        };
        while cursor.message < self.batch.len() {
            cursor = self.classify(context, cursor, shares);
            processed += self.packets.len();
            self.open();
            self.commit(context);
            self.coalesce(context)?;
        }
        shares.poll_ended(context.now, !self.batch.is_full());
        self.deliver(context)?;
        Ok(processed)
    }

    /// Stages 2 and 3, for datagrams from `cursor` on until a group is full.
    fn classify<T, U>(
        &mut self,
        context: Context<'_, T, U>,
        mut cursor: Cursor,
        shares: &mut Shares,
    ) -> Cursor {
        let Context {
            common, drops, now, ..
        } = context;
        self.packets.clear();
        self.runs.clear();
        let mut bytes_in_group = 0;
        while cursor.message < self.batch.len() && bytes_in_group < GROUP_BYTES {
            let message = self.batch.received()[cursor.message];
            let bytes = self.batch.bytes(cursor.message);
            let mut last: Option<u32> = None;
            while cursor.offset < bytes.len() {
                let end = bytes.len().min(cursor.offset + message.stride);
                let datagram = &bytes[cursor.offset..end];
                let Some(DataHeader { receiver, counter }) = DataHeader::parse(datagram) else {
                    classify_other(common, drops, message.from, datagram);
                    cursor.offset = end;
                    continue;
                };
                if self.packets.is_full() {
                    return cursor;
                }
                if last != Some(receiver) {
                    last = None;
                    let found = common
                        .proto
                        .session(receiver)
                        .filter(|found| found.session.may_receive(now));
                    if let Some(found) = found {
                        let rest = bytes.len() - cursor.offset;
                        if !shares.admit(found.peer.id(), rest) {
                            let datagrams = rest.div_ceil(message.stride) as u64;
                            let reason = DropReason::OverShare;
                            found.peer.count_dropped(drops, reason, datagrams);
                            cursor.offset = bytes.len();
                            continue;
                        }
                        last = Some(receiver);
                        self.runs.push(Run {
                            message: cursor.message,
                            peer: found.peer,
                            session: found.session,
                            packets: self.packets.len()..self.packets.len(),
                        });
                    }
                }
                match self.runs.last_mut() {
                    Some(run) if last.is_some() => {
                        self.packets.push(Packet {
                            start: cursor.offset + DataHeader::LEN,
                            len: datagram.len() - DataHeader::LEN,
                            counter,
                            accepted: false,
                        });
                        run.packets.end = self.packets.len();
                    }
                    _ => drops.count(DropReason::UnknownSession, 1),
                }
                cursor.offset = end;
            }
            if bytes.is_empty() {
                drops.count(DropReason::MalformedDatagram, 1);
            }
            bytes_in_group += bytes.len();
            cursor = Cursor {
                message: cursor.message + 1,
                offset: 0,
            };
        }
        cursor
    }

    /// Stage 4.
    fn open(&mut self) {
        let mut jobs: ArrayVec<OpenJob<'_>, MAX_GROUP> = ArrayVec::new();
        let mut runs = self.runs.iter().peekable();
        for (message, (_, mut bytes)) in self.batch.iter_mut().enumerate() {
            // How much of the message lies before `bytes`.
            let mut passed = 0;
            while let Some(run) = runs.next_if(|run| run.message == message) {
                for packet in &self.packets[run.packets.clone()] {
                    let (_, from) = bytes.split_at_mut(packet.start - passed);
                    let (text, rest) = from.split_at_mut(packet.len);
                    passed = packet.start + packet.len;
                    bytes = rest;
                    jobs.push(OpenJob::in_place(
                        run.session.receive_key(),
                        packet.counter,
                        text,
                    ));
                }
            }
        }
        adit_aead::open(&mut jobs);
        for (packet, job) in self.packets.iter_mut().zip(&jobs) {
            packet.accepted = job.is_authentic();
        }
    }

    /// Stage 5. Only what is authentic moves the window, the endpoint or a timer.
    fn commit<T, U>(&mut self, context: Context<'_, T, U>) {
        let Context {
            common, drops, now, ..
        } = context;
        for run in &self.runs {
            let (mut bytes, mut any, mut data) = (0, false, false);
            let mut window = run.session.window();
            for packet in &mut self.packets[run.packets.clone()] {
                if !packet.accepted {
                    // Anybody can send what is not authentic: it is none of the peer's packets.
                    drops.count(DropReason::NotAuthentic, 1);
                } else if !window.commit(packet.counter) {
                    packet.accepted = false;
                    run.peer.count_dropped(drops, DropReason::Replayed, 1);
                } else {
                    any = true;
                    data |= packet.len > TAG_LEN;
                    bytes += (DataHeader::LEN + packet.len) as u64;
                }
            }
            drop(window);
            if any {
                run.peer.roam(self.batch.received()[run.message].from);
                if run.peer.received(now, &run.session, bytes, data) {
                    common.control.event(&run.peer);
                }
            }
        }
    }

    /// Stages 6 and 7.
    fn coalesce<T: TunQueue, U: UdpSocket>(
        &mut self,
        context: Context<'_, T, U>,
    ) -> io::Result<()> {
        let Context {
            common, drops, now, ..
        } = context;
        let routes = common.proto.routes();
        let tunnel_ends = common.tunnel_ends.as_ref();
        let is_end = |end| {
            tunnel_ends.is_some_and(|tunnel_ends| tunnel_ends.know(end, now.since(Time::default())))
        };
        for at in 0..self.runs.len() {
            let run = &self.runs[at];
            let (message, packets) = (run.message, run.packets.clone());
            let id = run.peer.id();
            let ecn = self.batch.received()[message].ecn;
            let mut checked: Option<IpAddr> = None;
            let mut wrong: Option<(IpAddr, u64)> = None;
            for index in packets {
                let packet = &self.packets[index];
                if !packet.accepted || packet.len == TAG_LEN {
                    continue;
                }
                let (start, len) = (packet.start, packet.len - TAG_LEN);
                let plaintext = &self.batch.bytes(message)[start..start + len];
                let Some(inner) = adit_offload::inner_packet(plaintext) else {
                    self.runs[at]
                        .peer
                        .count_dropped(drops, DropReason::MalformedPacket, 1);
                    continue;
                };
                if checked != Some(inner.source) {
                    if routes
                        .lookup(inner.source)
                        .is_none_or(|owner| owner.id() != id)
                    {
                        self.runs[at]
                            .peer
                            .count_dropped(drops, DropReason::WrongSource, 1);
                        let before = wrong.map_or(0, |(_, times)| times);
                        wrong = Some((inner.source, before + 1));
                        continue;
                    }
                    checked = Some(inner.source);
                }
                let len = inner.len;
                if ecn != 0 {
                    let packet = &mut self.batch.bytes_mut(message)[start..start + len];
                    if adit_offload::decap_ecn(ecn, packet).is_err() {
                        self.runs[at]
                            .peer
                            .count_dropped(drops, DropReason::EcnNotCapable, 1);
                        continue;
                    }
                }
                let span = Span {
                    buffer: narrow(message),
                    start: narrow(start),
                    len: narrow(len),
                };
                let packet = &self.batch.bytes(message)[start..start + len];
                if self.coalescer.push(id, packet, span, is_end).is_err() {
                    self.deliver(context)?;
                    let packet = &self.batch.bytes(message)[start..start + len];
                    let pushed = self.coalescer.push(id, packet, span, is_end);
                    debug_assert!(pushed.is_ok(), "an empty coalescer takes any packet");
                }
            }
            if let Some((source, times)) = wrong {
                common.note(now, times, || Incident::WrongSource {
                    peer: self.runs[at].peer.public_key(),
                    from: self.batch.received()[message].from.addr,
                    source,
                });
            }
        }
        Ok(())
    }

    /// Stage 8. A GRO packet that the kernel refuses is delivered packet by packet, and no more of
    /// its kind are made.
    fn deliver<T: TunQueue, U>(&mut self, context: Context<'_, T, U>) -> io::Result<()> {
        let Context { drops, tun, .. } = context;
        let batch = &self.batch;
        let mut refused = ArrayVec::<Merged, { Merged::COUNT }>::new();
        let mut gone = Ok(());
        self.coalescer.drain(|head, spans| {
            let mut pieces: ArrayVec<IoSlice<'_>, MAX_PIECES> = ArrayVec::new();
            pieces.push(IoSlice::new(head));
            pieces.extend(spans.iter().map(|span| {
                let (start, len) = (span.start as usize, span.len as usize);
                IoSlice::new(&batch.bytes(span.buffer as usize)[start..start + len])
            }));
            let Err(error) = tun.write(&pieces) else {
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
                            &batch.bytes(span.buffer as usize)[start - headers..start + len];
                        let pieces = [IoSlice::new(&[0; VNET_HDR_LEN]), IoSlice::new(packet)];
                        if tun.write(&pieces).is_err() {
                            drops.count(DropReason::DeliverFailed, 1);
                        }
                    }
                }
                _ => drops.count(DropReason::DeliverFailed, spans.len() as u64),
            }
        });
        for kind in refused {
            context.common.tun_refused(kind);
        }
        gone
    }
}

/// A datagram that carries no data: a handshake message, or garbage.
fn classify_other<U>(common: &Common<U>, drops: &Drops, from: Endpoint, datagram: &[u8]) {
    if wire::classify(datagram) != Some(Kind::Handshake) {
        drops.count(DropReason::MalformedDatagram, 1);
    } else if !common.control.handshake(from, datagram) {
        drops.count(DropReason::HandshakeQueueFull, 1);
    }
}

/// Indices and lengths within a batch, which is a few megabytes.
fn narrow(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[path = "inbound_tests.rs"]
mod tests;
