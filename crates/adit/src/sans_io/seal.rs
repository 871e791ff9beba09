//! Packets that leave: parse → route → wait, or append to a train → seal → note.
//!
//! 1. `parse`: the packet is checked once;
//! 2. `route`: the longest prefix of its destination chooses the peer;
//! 3. `wait`: without a session it waits, bounded, and a handshake begins;
//! 4. `append`: each packet that it is cut to gets a slot of a train in the outbox. Its headers are
//!    written there; what is behind them stays where it is;
//! 5. `seal`: each train reserves its counters at once, and one call seals all of them, from where
//!    they stand into their slots;
//! 6. `note`: timers and counters of the peers learn of it.

use std::sync::Arc;

use adit_aead::{SealJob, TAG_LEN};
use adit_offload::{Frame, Malformed, VnetHdr};
use adit_proto::wire::{DataHeader, padded_len};
use adit_proto::{AllowedIps, Endpoint, Peer, Session};
use arrayvec::ArrayVec;

use super::clock::Now;
use super::device::Device;
use super::outbox::Outbox;
use super::packet::{AsPacket, PacketRef};
use super::scratch::UnsealedTrain;
use crate::frame::Gso;

/// Datagrams that are sealed in one call: more than any AEAD kernel has lanes.
const MAX_JOBS: usize = 256;
/// Datagrams of a train: as many as one send can carry with UDP_SEGMENT.
const MAX_TRAIN: usize = 64;
/// ChaCha20's block: what is written before sealing is a multiple of it where it can be.
const BLOCK: usize = 64;

/// How a plaintext is put together: its first bytes stand in the outbox, the rest in the packet.
struct Plaintext<'a> {
    in_place: usize,
    rest: &'a [u8],
}

/// Trains that are sealed in one call. They stand in the outbox one behind the other.
struct Batch<'a> {
    trains: Vec<UnsealedTrain>,
    plaintexts: ArrayVec<Plaintext<'a>, MAX_JOBS>,
}

/// What became of a packet.
enum Appended {
    /// It is in a train, or it was dropped and counted.
    Done,
    /// The outbox has no room for it now.
    NoRoom,
    /// There is no session.
    NoSession,
}

impl Device {
    /// Seals packets for the peers that have their destinations, and puts them into the outbox.
    ///
    /// A packet to a peer without a session waits in the device, and a handshake begins: at most
    /// 128 packets or GSO packets and 1 MiB for a peer, and 4 MiB for all; the oldest are dropped
    /// first. They leave in their order once there is a session, by whichever call this is known.
    /// Packets that cannot be sent are dropped, and counted in [`DeviceStats`](super::DeviceStats).
    ///
    /// Returns how many of the packets were taken. The others did not fit the outbox: send what is
    /// in it, and call again with them.
    #[must_use = "packets that were not taken are to be sealed again"]
    pub fn seal<P: AsPacket>(&mut self, now: Now, packets: &[P], outbox: &mut Outbox) -> usize {
        let now = self.at(now);
        outbox.reclaim();
        self.handle_outputs(now, outbox);
        let mut batch = self.new_batch();
        let mut taken = 0;
        let shared = Arc::clone(&self.shared);
        let routes = shared.routes();
        for packet in packets {
            if !self.forward(now, &routes, packet.as_packet(), &mut batch, outbox) {
                break;
            }
            taken += 1;
        }
        drop(routes);
        self.seal_batch(now, &mut batch, outbox);
        self.unsealed = batch.into_trains();
        self.handle_outputs(now, outbox);
        taken
    }

    fn new_batch<'a>(&mut self) -> Batch<'a> {
        Batch {
            trains: std::mem::take(&mut self.unsealed),
            plaintexts: ArrayVec::new(),
        }
    }

    /// Stages 1 to 4 for one packet. False if the outbox has no room for it.
    fn forward<'a>(
        &mut self,
        now: Now,
        routes: &AllowedIps<Arc<Peer>>,
        packet: PacketRef<'a>,
        batch: &mut Batch<'a>,
        outbox: &mut Outbox,
    ) -> bool {
        let Ok(frame) = parse(packet) else {
            self.stats.packets += 1;
            self.stats.unsealed.malformed += 1;
            return true;
        };
        let packets = frame.segments() as u64;
        let Some(peer) = routes.lookup(frame.destination()) else {
            self.stats.packets += packets;
            self.stats.unsealed.no_route += packets;
            return true;
        };
        if self.waiting.holds(peer.id()) && peer.session(now.time).is_some() {
            // A session that comes after packets that wait lets them go first.
            self.seal_batch(now, batch, outbox);
            if !self.send_waiting(now, peer, outbox) {
                return false;
            }
        }
        let appended = match self.waiting.holds(peer.id()) {
            true => Appended::NoSession,
            false => self.append(now, peer, &frame, batch, outbox),
        };
        match appended {
            Appended::NoRoom => return false,
            Appended::Done => {}
            Appended::NoSession => self.wait(now, peer, packet, packets),
        }
        self.stats.packets += packets;
        true
    }

    /// Keeps a packet until the peer has a session, and asks for one.
    fn wait(&mut self, now: Now, peer: &Arc<Peer>, packet: PacketRef<'_>, packets: u64) {
        if peer.endpoint().is_none() {
            // No endpoint, no handshake. The peer's own first packet may bring both, and the packet
            // would be old by then.
            self.stats.unsealed.no_endpoint += packets;
            return;
        }
        self.stats.unsealed.waited += self.waiting.push(peer.id(), packet, packets);
        if peer.want_session() {
            self.look_at(now, peer);
        }
    }

    /// Seals what waits for a peer, now that there is a session. False if the outbox had no room
    /// for all of it.
    pub(super) fn send_waiting(&mut self, now: Now, peer: &Arc<Peer>, outbox: &mut Outbox) -> bool {
        if !self.waiting.holds(peer.id()) {
            return true;
        }
        let mut queue = self.waiting.take(peer.id());
        let mut batch = self.new_batch();
        let (mut sent, mut is_done) = (0, true);
        for packet in queue.packets() {
            // It was parsed before it was kept.
            if let Ok(frame) = parse(packet) {
                match self.append(now, peer, &frame, &mut batch, outbox) {
                    Appended::Done => {}
                    Appended::NoRoom => {
                        is_done = false;
                        break;
                    }
                    Appended::NoSession => break,
                }
            }
            sent += 1;
        }
        self.seal_batch(now, &mut batch, outbox);
        self.unsealed = batch.into_trains();
        queue.drop_oldest(sent);
        self.waiting.put_back(peer.id(), queue);
        is_done
    }

    /// Stage 4.
    fn append<'a>(
        &mut self,
        now: Now,
        peer: &Arc<Peer>,
        frame: &Frame<'a>,
        batch: &mut Batch<'a>,
        outbox: &mut Outbox,
    ) -> Appended {
        let packets = frame.segments();
        let last = batch.trains.last();
        let last = last.filter(|train| Arc::ptr_eq(&train.peer, peer));
        let (session, to) = match last {
            Some(train) => (Arc::clone(&train.session), Some(train.to)),
            None => match peer.session(now.time) {
                Some(session) => (session, peer.endpoint()),
                None => return Appended::NoSession,
            },
        };
        let Some(to) = to else {
            self.stats.unsealed.no_endpoint += packets as u64;
            return Appended::Done;
        };
        let len_of = |i| datagram_len(frame.segment_len(i), self.mtu);
        // All but the last are equally long, and it is no longer.
        let all = len_of(0) * (packets - 1) + len_of(packets - 1);
        if len_of(0) > max_bytes(&to) || all > outbox.capacity() {
            self.stats.unsealed.too_big += packets as u64;
            return Appended::Done;
        }
        if all > outbox.room() {
            return Appended::NoRoom;
        }
        for i in 0..packets {
            if batch.plaintexts.is_full() {
                self.seal_batch(now, batch, outbox);
            }
            batch.append(
                (peer, &session, to),
                frame,
                i,
                datagram_len(frame.segment_len(i), self.mtu),
                outbox,
            );
        }
        Appended::Done
    }

    /// Stages 5 and 6: seals all trains.
    fn seal_batch(&mut self, now: Now, batch: &mut Batch<'_>, outbox: &mut Outbox) {
        let Batch { trains, plaintexts } = batch;
        let Some(start) = trains.first().map(|train| train.start) else {
            return;
        };
        // 1. A (key, counter) pair seals once.
        for train in &mut *trains {
            let count = u32::try_from(train.packets).unwrap_or(u32::MAX);
            train.first = train.session.reserve(now.time, count).ok();
        }
        // 2. The headers, and the texts behind them.
        let mut jobs: ArrayVec<SealJob<'_>, MAX_JOBS> = ArrayVec::new();
        let mut rest = outbox.bytes_from(start);
        let mut plaintexts = plaintexts.drain(..);
        for train in &*trains {
            let (bytes, behind) = rest.split_at_mut(train.len);
            rest = behind;
            let of_train = plaintexts.by_ref().take(train.packets);
            let Some(first) = train.first else {
                bytes.fill(0);
                of_train.for_each(drop);
                continue;
            };
            let (receiver, key) = (train.session.remote_index(), train.session.send_key());
            let slots = bytes.chunks_mut(train.stride).zip(first..);
            for ((slot, counter), plaintext) in slots.zip(of_train) {
                if let Some((header, text)) = slot.split_first_chunk_mut() {
                    DataHeader { receiver, counter }.write(header);
                    let Plaintext { in_place, rest } = plaintext;
                    jobs.push(SealJob::gathered(key, counter, in_place, rest, text));
                }
            }
        }
        adit_aead::seal(&mut jobs);
        drop((jobs, plaintexts));
        // 3. What is sealed may leave.
        for train in trains.drain(..) {
            let packets = train.packets as u64;
            if train.first.is_none() {
                self.stats.unsealed.session_ended += packets;
                continue;
            }
            outbox.push(train.to, train.ecn, (train.start, train.len), train.stride);
            self.stats.sealed_packets += packets;
            self.stats.sealed_bytes += train.len as u64;
            if train
                .peer
                .data_sent(now.time, &train.session, train.len as u64)
            {
                self.look_at(now, &train.peer);
            }
        }
    }
}

impl<'a> Batch<'a> {
    /// The buffer of trains, for the next batch.
    fn into_trains(self) -> Vec<UnsealedTrain> {
        self.trains
    }

    /// Appends packet `i` of a frame, of which there is to be room for the plaintext: it goes into
    /// the next slot of a train of this session, a new one perhaps. There the finished headers are
    /// written, and as much of the payload as fills the first block of the cipher.
    fn append(
        &mut self,
        (peer, session, to): (&Arc<Peer>, &Arc<Session>, Endpoint),
        frame: &Frame<'a>,
        i: usize,
        len: usize,
        outbox: &mut Outbox,
    ) {
        let (start, slot) = outbox.extend(len);
        let text = &mut slot[DataHeader::LEN..];
        let (header, payload) = (frame.header_len(), frame.payload(i));
        let (in_place, rest) = match header {
            0 => (0, payload),
            _ => {
                frame.write_header(i, &mut text[..header]);
                let first = (header.next_multiple_of(BLOCK) - header).min(payload.len());
                text[header..header + first].copy_from_slice(&payload[..first]);
                (header + first, &payload[first..])
            }
        };
        self.plaintexts.push(Plaintext { in_place, rest });
        let last = self.trains.last_mut();
        if let Some(train) = last.filter(|train| train.takes(session, frame.ecn(), len)) {
            train.len += len;
            train.packets += 1;
            return;
        }
        self.trains.push(UnsealedTrain {
            peer: Arc::clone(peer),
            session: Arc::clone(session),
            to,
            ecn: frame.ecn(),
            start,
            len,
            stride: len,
            packets: 1,
            first: None,
        });
    }
}

impl UnsealedTrain {
    /// Whether a datagram of this length may be its next.
    fn takes(&self, session: &Arc<Session>, ecn: u8, len: usize) -> bool {
        Arc::ptr_eq(&self.session, session)
            && self.ecn == ecn
            && len <= self.stride
            && self.len == self.packets * self.stride
            && self.packets < MAX_TRAIN
            && self.len + len <= max_bytes(&self.to)
    }
}

/// Checks a packet.
fn parse(packet: PacketRef<'_>) -> Result<Frame<'_>, Malformed> {
    let header = VnetHdr::parse(&Gso::header(packet.gso));
    Frame::with_header(header, packet.bytes)
}

/// The length of the datagram that carries a packet of `len` bytes.
fn datagram_len(len: usize, mtu: usize) -> usize {
    DataHeader::LEN + padded_len(len, mtu.max(len)) + TAG_LEN
}

/// The most bytes that one send can carry: 65,535 less the headers below.
fn max_bytes(to: &Endpoint) -> usize {
    match to.addr.is_ipv4() {
        true => 65_535 - 20 - 8,
        false => 65_535 - 40 - 8,
    }
}
