//! The unit of work on the outbound path: up to 64 packets of one session with one stride.

use std::sync::Arc;

use adit_aead::{OpenJob, SealJob, TAG_LEN};
use adit_offload::Frame;
use adit_proto::limits::WINDOW_PACKETS;
use adit_proto::wire::{self, DataHeader};
use adit_proto::{Endpoint, Peer, Session, Time};
use arrayvec::ArrayVec;

/// Packets in a train: as many as one UDP GSO send can carry on every kernel.
pub(crate) const MAX_PACKETS: usize = 64;
/// The buffer of one train: a UDP datagram's worth.
const TRAIN_BYTES: usize = 65_536;
/// The bytes that data adds to a packet: header and tag.
pub(crate) const OVERHEAD: usize = DataHeader::LEN + TAG_LEN;
/// ChaCha20's block. The part of a packet that is written before sealing is a multiple of it, so
/// that the rest can be sealed straight from where the TUN put it.
const BLOCK: usize = 64;
/// A train is not sent with counters that are so far behind the newest of its session: others may
/// leave meanwhile, and the network may reorder, before the peer's replay window refuses it.
const MAX_BEHIND: u64 = WINDOW_PACKETS / 2;

/// A new one.
pub(crate) fn buffer() -> Box<[u8]> {
    vec![0; TRAIN_BYTES].into_boxed_slice()
}

/// The most bytes that one send to this endpoint can carry: 65,535 less the headers below.
pub(crate) fn max_bytes(to: &Endpoint) -> usize {
    if to.addr.is_ipv4() {
        65_535 - 20 - 8
    } else {
        65_535 - 40 - 8
    }
}

/// A train that still takes packets. Packets are appended to its buffer and sealed together when it
/// closes.
pub(crate) struct OpenTrain<'a> {
    pub(crate) peer: Arc<Peer>,
    pub(crate) session: Arc<Session>,
    to: Endpoint,
    ecn: u8,
    /// The flow shard that it belongs to.
    pub(crate) flow_shard: usize,
    buffer: Box<[u8]>,
    /// Length of the first datagram, and of all others but the last.
    stride: usize,
    len: usize,
    packets: ArrayVec<Plaintext<'a>, MAX_PACKETS>,
    /// The counter of its first packet, once it is reserved.
    first: u64,
}

/// How a packet's plaintext is put together: its first bytes stand in the train, the rest comes
/// from the frame.
struct Plaintext<'a> {
    in_place: usize,
    rest: &'a [u8],
}

/// A train ready to be sent.
pub(crate) struct SealedTrain {
    pub(crate) peer: Arc<Peer>,
    pub(crate) session: Arc<Session>,
    pub(crate) to: Endpoint,
    pub(crate) ecn: u8,
    pub(crate) flow_shard: usize,
    pub(crate) buffer: Box<[u8]>,
    pub(crate) stride: usize,
    /// The counter of its first packet.
    first: u64,
    /// Bytes at the start that already left.
    pub(crate) sent: usize,
    pub(crate) len: usize,
    pub(crate) packets: usize,
}

impl<'a> OpenTrain<'a> {
    pub(crate) fn new(
        peer: Arc<Peer>,
        session: Arc<Session>,
        to: Endpoint,
        ecn: u8,
        buffer: Box<[u8]>,
    ) -> Self {
        Self {
            peer,
            session,
            to,
            ecn,
            flow_shard: 0,
            buffer,
            stride: 0,
            len: 0,
            packets: ArrayVec::new(),
            first: 0,
        }
    }

    /// The same train, for this flow shard.
    pub(crate) fn for_flow_shard(self, flow_shard: usize) -> Self {
        Self { flow_shard, ..self }
    }

    pub(crate) fn ecn(&self) -> u8 {
        self.ecn
    }

    /// Whether a datagram of `len` bytes may be the next.
    pub(crate) fn takes(&self, len: usize) -> bool {
        self.packets.is_empty()
            || (len <= self.stride
                && self.len == self.packets.len() * self.stride
                && self.len + len <= max_bytes(&self.to)
                && !self.packets.is_full())
    }

    /// Whether no further datagram of any length fits.
    pub(crate) fn is_full(&self) -> bool {
        self.packets.is_full()
            || self.len != self.packets.len() * self.stride
            || self.len + self.stride > max_bytes(&self.to)
    }

    /// Appends segment `i` of a frame: it goes into the next slot:
    ///
    /// 1. the finished headers,
    /// 2. as much of the payload as fills the first block of the cipher,
    /// 3. the rest stays where it is, to be sealed from there.
    ///
    /// `len` is the datagram's length, for which `takes` said yes.
    pub(crate) fn append(&mut self, frame: &Frame<'a>, i: usize, len: usize) {
        if self.packets.is_empty() {
            self.stride = len;
        }
        let slot = &mut self.buffer[self.len..self.len + len];
        let text = &mut slot[DataHeader::LEN..len - TAG_LEN];
        let payload = frame.payload(i);
        let header = frame.header_len();
        let (in_place, rest) = if header == 0 {
            (0, payload)
        } else {
            frame.write_header(i, &mut text[..header]);
            let first = (header.next_multiple_of(BLOCK) - header).min(payload.len());
            text[header..header + first].copy_from_slice(&payload[..first]);
            (header + first, &payload[first..])
        };
        self.packets.push(Plaintext { in_place, rest });
        self.len += len;
    }

    /// Reserves the counters; false if the session may not be used any more.
    fn reserve(&mut self, now: Time) -> bool {
        let count = u32::try_from(self.packets.len()).expect("at most 64");
        let first = self.session.reserve(now, count);
        self.first = first.unwrap_or_default();
        first.is_ok()
    }

    /// How many packets it holds.
    pub(crate) fn packets(&self) -> usize {
        self.packets.len()
    }

    /// Writes the data headers, for the counters that are reserved, and returns the packets to be
    /// sealed.
    fn jobs(&mut self) -> impl Iterator<Item = SealJob<'_>> {
        let key = self.session.send_key();
        let receiver = self.session.remote_index();
        let slots = self.buffer[..self.len].chunks_mut(self.stride);
        let packets = slots.zip(&self.packets).zip(self.first..);
        packets.map(move |((slot, packet), counter)| {
            let (header, out) = slot
                .split_first_chunk_mut()
                .expect("a slot holds header and tag");
            DataHeader { receiver, counter }.write(header);
            SealJob::gathered(key, counter, packet.in_place, packet.rest, out)
        })
    }

    /// The train with its packets sealed.
    fn sealed(self) -> SealedTrain {
        SealedTrain {
            packets: self.packets.len(),
            peer: self.peer,
            session: self.session,
            to: self.to,
            ecn: self.ecn,
            flow_shard: self.flow_shard,
            buffer: self.buffer,
            stride: self.stride,
            first: self.first,
            sent: 0,
            len: self.len,
        }
    }

    /// The buffer of a train that is not sealed.
    pub(crate) fn into_buffer(self) -> Box<[u8]> {
        self.buffer
    }
}

/// Packets that are sealed in one call: more than any AEAD kernel has lanes.
const SEAL_AT_ONCE: usize = 2 * MAX_PACKETS;

/// Seals trains, of different sessions, too: packets of different keys share the lanes of the AEAD,
/// so that trains of one packet each cost little more than one long train. `done` gets each train
/// in order; one whose session may not be used any more comes back as it was.
pub(crate) fn seal_all<'a, const N: usize>(
    trains: &mut ArrayVec<OpenTrain<'a>, N>,
    now: Time,
    mut done: impl FnMut(Result<SealedTrain, OpenTrain<'a>>),
) {
    let mut reserved = ArrayVec::<bool, N>::new();
    let mut jobs: ArrayVec<SealJob<'_>, SEAL_AT_ONCE> = ArrayVec::new();
    for train in trains.iter_mut() {
        reserved.push(train.reserve(now));
        if reserved.last() == Some(&true) {
            if jobs.remaining_capacity() < train.packets() {
                adit_aead::seal(&mut jobs);
                jobs.clear();
            }
            jobs.extend(train.jobs());
        }
    }
    adit_aead::seal(&mut jobs);
    drop(jobs);
    for (train, reserved) in trains.drain(..).zip(reserved) {
        done(if reserved {
            Ok(train.sealed())
        } else {
            Err(train)
        });
    }
}

impl SealedTrain {
    /// How many of its packets have not left yet.
    pub(crate) fn waiting(&self) -> usize {
        (self.len - self.sent).div_ceil(self.stride)
    }

    /// Seals what has not left with new counters if the old ones are far behind: the socket was
    /// full, and other shards went on with the session. `Err` gives the number of packets back if
    /// the session may not be used any more.
    pub(crate) fn renew(&mut self, now: Time) -> Result<(), usize> {
        if self.session.sent() - self.first <= MAX_BEHIND {
            return Ok(());
        }
        let key = self.session.send_key();
        let slots = || self.sent..self.len;
        let packets = self.waiting();
        let count = u32::try_from(packets).expect("at most 64");
        let Ok(first) = self.session.reserve(now, count) else {
            return Err(packets);
        };
        // 1. the plaintext, where the ciphertext stands
        let mut jobs: ArrayVec<OpenJob<'_>, MAX_PACKETS> = ArrayVec::new();
        for slot in self.buffer[slots()].chunks_mut(self.stride) {
            let counter = DataHeader::parse(slot).map_or(0, |header| header.counter);
            jobs.push(OpenJob::in_place(
                key,
                counter,
                &mut slot[DataHeader::LEN..],
            ));
        }
        adit_aead::open(&mut jobs);
        // They were sealed with this key.
        if !jobs.iter().all(OpenJob::is_authentic) {
            return Err(packets);
        }
        drop(jobs);
        // 2. sealed again: no datagram with an old counter leaves
        let receiver = self.session.remote_index();
        let mut jobs: ArrayVec<SealJob<'_>, MAX_PACKETS> = ArrayVec::new();
        for (slot, counter) in self.buffer[slots()].chunks_mut(self.stride).zip(first..) {
            let (header, text) = slot
                .split_first_chunk_mut()
                .expect("a slot holds header and tag");
            DataHeader { receiver, counter }.write(header);
            jobs.push(SealJob::in_place(key, counter, text));
        }
        adit_aead::seal(&mut jobs);
        drop(jobs);
        self.first = first;
        Ok(())
    }
}

/// The length of the datagram that carries a packet of `len` bytes.
pub(crate) fn datagram_len(len: usize, mtu: usize) -> usize {
    OVERHEAD + wire::padded_len(len, mtu.max(len))
}

/// Full-sized packets of a device with this MTU that one train holds.
pub(crate) fn packets_per_train(mtu: usize) -> usize {
    // 65,487 bytes fit both address families.
    ((65_535 - 40 - 8) / datagram_len(mtu, mtu)).clamp(1, MAX_PACKETS)
}

#[cfg(test)]
#[path = "train_tests.rs"]
mod tests;
