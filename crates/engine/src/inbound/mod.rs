//! UDP to TUN: receive → classify → look up → open → commit → check source → coalesce → deliver.
//!
//! 1. `receive`: the datagrams that wait in the socket, as trains that the kernel merged;
//! 2. `classify`: data continues, handshake messages go to the control thread's bounded queue;
//! 3. `look up`: the receiver index names session and peer, once for a run of datagrams;
//! 4. `open`: every packet of the group at once, but those that the replay window refuses already.
//!    Marks of congestion are carried over from the outer header;
//! 5. `commit`: the replay window moves over the authentic packets, and the peer's timers learn of
//!    them;
//! 6. `check source`: the inner packet's source must be routed to the peer that it came from;
//! 7. `coalesce`: packets of one flow become GRO packets again;
//! 8. `deliver`: one write for each GRO packet, after the whole batch, so that they are as long as
//!    they can be.
//!
//! While several threads help, stages 6 to 8 have commit locks of their own, behind that of stage 5:
//! each has the packets between certain hosts, of every batch. A flow is at one of them.

pub(crate) mod deliver;
mod handshakes;
pub(crate) mod shares;

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use adit_aead::{OpenJob, TAG_LEN};
use adit_io::{Offloads, RecvBatch, UdpSocket};
use adit_proto::wire::{self, DataHeader, DatagramKind};
use adit_proto::{DropReason, Drops, Endpoint, PassedKind, Peer, Session, Time};
use arrayvec::ArrayVec;

use crate::inbound::shares::{Account, PollResult, Shares};
use crate::order::flow_shards::{SplitBatch, flow_shard_between};
use crate::shared::common::Common;
use crate::thread::poll::Polled;

/// Packets opened together: enough to fill the lanes of any kernel with small packets.
const MAX_JOBS: usize = 256;

/// A receive batch on its way to the TUN: stages 1 to 3 take it, stage 4 is the work, and
/// stages 5 to 8 commit it.
#[derive(Default)]
pub(crate) struct InboundBatch {
    received: RecvBatch,
    packets: Vec<DataPacket>,
    /// Which packets are authentic and no replays: of all that are open.
    accepted: Vec<bool>,
    runs: Vec<SessionRun>,
    /// Stage 5 is over.
    is_committed: bool,
}

/// A batch, or the flow shard of one, as it is filed for a commit lock.
pub(crate) enum InboundFlowShard {
    Whole(Box<InboundBatch>),
    /// At the first one all of it, to be committed; at those behind it what they are to deliver then.
    Split(Arc<SplitBatch<RwLock<Option<Box<InboundBatch>>>>>),
}

impl InboundFlowShard {
    /// Splits a batch for so many commit locks.
    pub(crate) fn split(
        batch: Box<InboundBatch>,
        commit_locks: usize,
    ) -> impl Iterator<Item = Self> {
        let of = SplitBatch::new(RwLock::new(Some(batch)), commit_locks);
        std::iter::repeat_n(of, commit_locks).map(Self::Split)
    }

    /// Commits it at this commit lock: `commit` gets the batch at the first one, `deliver` what is committed, and
    /// which flow shard of it. Whether that is done.
    pub(crate) fn commit_at(
        &mut self,
        at: usize,
        commit: impl FnOnce(&mut InboundBatch),
        deliver: impl FnOnce(&InboundBatch, usize),
    ) -> bool {
        match self {
            Self::Whole(batch) => {
                batch.open(1);
                commit(batch);
                deliver(batch, 0);
                true
            }
            Self::Split(of) if at == 0 => {
                let mut batch = of.batch.write().unwrap_or_else(PoisonError::into_inner);
                if let Some(batch) = batch.as_deref_mut() {
                    commit(batch);
                }
                true
            }
            // The thread that commits it comes here next.
            Self::Split(of) => match of.batch.try_read().as_deref() {
                Ok(Some(batch)) if batch.is_committed => {
                    deliver(batch, at - 1);
                    true
                }
                _ => false,
            },
        }
    }

    /// Ends a flow shard that has been committed. Returns the batch, if all of its flow shards have.
    pub(crate) fn end(self) -> Option<Box<InboundBatch>> {
        let mut batch = match self {
            Self::Whole(batch) => Some(batch),
            Self::Split(of) if of.commit_one() => {
                let mut batch = of.batch.write().unwrap_or_else(PoisonError::into_inner);
                batch.take()
            }
            Self::Split(_) => None,
        };
        if let Some(batch) = &mut batch {
            batch.ends();
        }
        batch
    }
}

/// The interface whose socket is polled.
pub(crate) struct InboundContext<'a, T, U> {
    pub(crate) common: &'a Common<U>,
    /// The receive queue of the socket.
    pub(crate) rx_queue: usize,
    pub(crate) drops: &'a Drops,
    pub(crate) tun: &'a T,
    /// Kinds of packets that are merged for the TUN: TCP, UDP.
    pub(crate) offloads: Offloads,
    /// The time of this poll.
    pub(crate) now: Time,
}

impl<T, U> Clone for InboundContext<'_, T, U> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, U> Copy for InboundContext<'_, T, U> {}

/// Consecutive datagrams of one message for one session.
struct SessionRun {
    message: usize,
    peer: Arc<Peer>,
    session: Arc<Session>,
    packets: Range<usize>,
}

/// One data message.
struct DataPacket {
    /// Where its ciphertext, then its plaintext, starts in the message.
    start: usize,
    /// Length of ciphertext and tag.
    len: usize,
    counter: u64,
    /// The window knew its counter before it was opened, so it was not.
    replayed: bool,
    /// Congestion was marked, and its transport does not understand marks.
    not_capable: bool,
    /// The flow shard that delivers it.
    flow_shard: u8,
}

impl InboundBatch {
    /// Stages 1 to 3: false if nothing waited. An error of the socket concerns one datagram that is
    /// lost: the next wake-up continues.
    pub(crate) fn take<T, U: UdpSocket>(
        &mut self,
        context: InboundContext<'_, T, U>,
        socket: &U,
        shares: &mut Shares,
    ) -> bool {
        self.packets.clear();
        self.accepted.clear();
        self.is_committed = false;
        if socket.recv(&mut self.received).is_err() {
            shares.poll_ended(context.now, PollResult::NOTHING);
            return false;
        }
        let lost = self.received.lost();
        context.drops.count(DropReason::ReceiveBufferFull, lost);
        context.common.count_filtered(socket);
        self.classify(context, shares);
        context.common.answer_handshakes(context.now);
        let found = PollResult {
            taken: self.received.len() as u64,
            emptied: !self.received.is_full(),
            waiting: self.received.waiting(),
            lost: lost > 0,
        };
        shares.poll_ended(context.now, found);
        true
    }

    /// The lengths of the messages that arrived, if more may wait.
    pub(crate) fn lens_before_more(&self) -> Option<impl Iterator<Item = usize>> {
        let messages = self.received.received().iter();
        let is_full = self.received.is_full();
        is_full.then(|| messages.map(|message| message.len))
    }

    /// How many data messages it has, and whether more may wait.
    pub(crate) fn polled(&self) -> Polled {
        Polled::packets(self.packets.len(), self.received.is_full())
    }

    /// Stages 2 and 3.
    fn classify<T, U: UdpSocket>(
        &mut self,
        InboundContext {
            common, drops, now, ..
        }: InboundContext<'_, T, U>,
        shares: &mut Shares,
    ) {
        let messages = self.received.received();
        let trains = messages.iter().enumerate().map(|(index, message)| {
            let length = self.received.bytes(index).len();
            length.div_ceil(message.stride.max(1)).max(1)
        });
        drops.count_passed(PassedKind::Received, trains.clone().sum::<usize>() as u64);
        common.load.own().received.count(trains);
        for (index, message) in messages.iter().enumerate() {
            let bytes = self.received.bytes(index);
            let mut last: Option<u32> = None;
            let mut offset = 0;
            while offset < bytes.len() {
                let end = bytes.len().min(offset + message.stride);
                let datagram = &bytes[offset..end];
                let Some(DataHeader { receiver, counter }) = DataHeader::parse(datagram) else {
                    classify_other(common, drops, now, message.from, datagram);
                    offset = end;
                    continue;
                };
                if last != Some(receiver) {
                    last = None;
                    let found = common
                        .proto
                        .session(receiver)
                        .filter(|found| found.session.may_receive(now));
                    if let Some(found) = found {
                        if shares.are_in_force() {
                            let rest = bytes.len() - offset;
                            let datagrams = rest.div_ceil(message.stride);
                            let account = account(&found.peer, message.from);
                            if !shares.admit(account, shares::work(datagrams, rest)) {
                                let (over, datagrams) = (DropReason::OverShare, datagrams as u64);
                                match account.is_known {
                                    true => found.peer.count_dropped(drops, over, datagrams),
                                    false => drops.count(over, datagrams),
                                }
                                break;
                            }
                        }
                        last = Some(receiver);
                        self.runs.push(SessionRun {
                            message: index,
                            peer: found.peer,
                            session: found.session,
                            packets: self.packets.len()..self.packets.len(),
                        });
                    }
                }
                match self.runs.last_mut() {
                    Some(run) if last.is_some() => {
                        self.packets.push(DataPacket {
                            start: offset + DataHeader::LEN,
                            len: datagram.len() - DataHeader::LEN,
                            counter,
                            replayed: false,
                            not_capable: false,
                            flow_shard: 0,
                        });
                        run.packets.end = self.packets.len();
                    }
                    _ => drops.count(DropReason::UnknownSession, 1),
                }
                offset = end;
            }
            if bytes.is_empty() {
                drops.count(DropReason::MalformedDatagram, 1);
            }
        }
    }

    /// Ends the batch, which has been committed. Sessions are not kept longer.
    pub(crate) fn ends(&mut self) {
        self.runs.clear();
    }

    /// Stage 4, unless it is done. So many flow shards are delivered. Then sorts the runs by peer: those of
    /// one keep their order.
    ///
    /// A look at the window spares the decryption of replays and changes nothing; what another
    /// thread commits meanwhile costs only a decryption.
    pub(crate) fn open(&mut self, flow_shards: usize) {
        if self.accepted.len() == self.packets.len() {
            return;
        }
        let Self {
            received,
            packets,
            accepted,
            runs,
            ..
        } = self;
        accepted.resize(packets.len(), false);
        let mut jobs: ArrayVec<OpenJob<'_>, MAX_JOBS> = ArrayVec::new();
        // The packets of the jobs.
        let mut indices: ArrayVec<usize, MAX_JOBS> = ArrayVec::new();
        let mut open = |jobs: &mut ArrayVec<OpenJob<'_>, MAX_JOBS>,
                        indices: &mut ArrayVec<usize, MAX_JOBS>| {
            adit_aead::open(jobs);
            for (index, job) in indices.drain(..).zip(&*jobs) {
                accepted[index] = job.is_authentic();
            }
            jobs.clear();
        };
        let mut of_message = runs.iter().peekable();
        for (message, (_, mut bytes)) in received.iter_mut().enumerate() {
            // How much of the message lies before `bytes`.
            let mut passed = 0;
            while let Some(run) = of_message.next_if(|run| run.message == message) {
                let window = run.session.window();
                for packet in &mut packets[run.packets.clone()] {
                    packet.replayed = !window.may_accept(packet.counter);
                }
                drop(window);
                for index in run.packets.clone() {
                    let packet = &packets[index];
                    if packet.replayed {
                        continue;
                    }
                    let (_, from) = bytes.split_at_mut(packet.start - passed);
                    let (text, rest) = from.split_at_mut(packet.len);
                    passed = packet.start + packet.len;
                    bytes = rest;
                    if jobs.is_full() {
                        open(&mut jobs, &mut indices);
                    }
                    let key = run.session.receive_key();
                    jobs.push(OpenJob::in_place(key, packet.counter, text));
                    indices.push(index);
                }
            }
        }
        open(&mut jobs, &mut indices);
        drop(jobs);
        for run in &*runs {
            let marks = received.received()[run.message].ecn;
            if marks == 0 && flow_shards == 1 {
                continue;
            }
            let bytes = received.bytes_mut(run.message);
            for index in run.packets.clone().filter(|index| accepted[*index]) {
                let packet = &mut packets[index];
                let plaintext = &mut bytes[packet.start..][..packet.len - TAG_LEN];
                if marks != 0 {
                    packet.not_capable = adit_offload::decap_ecn(marks, plaintext).is_err();
                }
                if flow_shards > 1
                    && let Some(inner) = adit_offload::inner_packet(plaintext)
                {
                    let flow_shard =
                        flow_shard_between(inner.destination, inner.source, flow_shards);
                    packet.flow_shard = u8::try_from(flow_shard).unwrap_or_default();
                }
            }
        }
        runs.sort_by_key(|run| run.peer.id());
    }

    /// Stage 5. Only what is authentic moves the window, the endpoint or a timer.
    pub(crate) fn commit<T, U>(
        &mut self,
        InboundContext {
            common,
            rx_queue,
            drops,
            now,
            ..
        }: InboundContext<'_, T, U>,
    ) {
        let mut all_work = 0;
        let is_same = |a: &SessionRun, b: &SessionRun| Arc::ptr_eq(&a.session, &b.session);
        for runs in self.runs.chunk_by(is_same) {
            let (mut count, mut bytes) = (0, 0);
            let (mut from, mut data) = (None, false);
            let SessionRun { peer, session, .. } = &runs[0];
            let mut window = session.window();
            for run in runs {
                let accepted = &mut self.accepted[run.packets.clone()];
                for (packet, accepted) in self.packets[run.packets.clone()].iter().zip(accepted) {
                    if packet.replayed {
                        // Nobody looked at its tag, and anybody can send such: as below.
                        drops.count(DropReason::Replayed, 1);
                    } else if !*accepted {
                        // Anybody can send what is not authentic: it is none of the peer's packets.
                        drops.count(DropReason::NotAuthentic, 1);
                    } else if !window.commit(packet.counter) {
                        *accepted = false;
                        peer.count_dropped(drops, DropReason::Replayed, 1);
                    } else {
                        from = Some(run.message);
                        data |= packet.len > TAG_LEN;
                        count += 1;
                        bytes += (DataHeader::LEN + packet.len) as u64;
                    }
                }
            }
            drop(window);
            if let Some(message) = from {
                peer.roam(self.received.received()[message].from);
                let work = adit_proto::work(count, bytes);
                peer.worked(work);
                all_work += work;
                if peer.received(now, session, bytes, data) {
                    common.control.event(peer);
                }
            }
        }
        common.proto.rx_queues().worked(rx_queue, all_work);
        self.is_committed = true;
    }
}

/// To whom a datagram is charged that comes from there and has an index of this peer.
fn account(peer: &Peer, from: Endpoint) -> Account {
    let known = peer.endpoint();
    Account {
        peer: peer.id(),
        is_known: known.is_some_and(|known| known.addr == from.addr),
    }
}

/// A datagram that carries no data: a handshake message, or garbage.
fn classify_other<U: UdpSocket>(
    common: &Common<U>,
    drops: &Drops,
    now: Time,
    from: Endpoint,
    datagram: &[u8],
) {
    if wire::classify(datagram) == Some(DatagramKind::Handshake) {
        common.handshake(drops, now, from, datagram);
    } else {
        drops.count(DropReason::MalformedDatagram, 1);
    }
}

/// Indices and lengths within a batch, which is a few megabytes.
fn narrow(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[path = "inbound_tests.rs"]
mod tests;
