//! Datagrams that came: classify → look up → open → commit → check.
//!
//! 1. `classify`: data goes on, messages of handshakes are put aside;
//! 2. `look up`: the receiver index names session and peer, once for a run of datagrams;
//! 3. `open`: one call decrypts all in place, but those that the replay window refuses already;
//! 4. `commit`: the replay window moves over what is authentic, then endpoint, counters and timers
//!    of the peer learn of it;
//! 5. `check`: marks of congestion are carried over to the inner packet, whose source must be an
//!    address of the peer.

use std::net::IpAddr;

use adit_aead::{OpenJob, TAG_LEN};
use adit_proto::wire::{self, DataHeader, DatagramKind};
use arrayvec::ArrayVec;

use super::clock::Now;
use super::device::Device;
use super::inbox::{Arrived, Inbox, Opened, OpenedPacket};
use super::outbox::Outbox;
use super::scratch::{DataPacket, OpenScratch, Run, State};
use crate::keys::PublicKey;

/// Datagrams that are opened in one call: more than any AEAD kernel has lanes.
const MAX_JOBS: usize = 256;

impl Device {
    /// Opens the datagrams of an inbox where they stand, and hands out the packets that were in
    /// them. Answers go to the outbox.
    ///
    /// What is not authentic changes nothing but counters. Messages of handshakes, which take long,
    /// are computed a bounded number at a time: the others wait for the next call of this or of
    /// [`handle_timeout`](Self::handle_timeout), and where too many come, their senders have to
    /// prove their addresses.
    pub fn open<'a>(&mut self, now: Now, inbox: &'a mut Inbox, outbox: &mut Outbox) -> Opened<'a> {
        let now = self.at(now);
        outbox.reclaim();
        self.handle_outputs(now, outbox);
        let mut scratch = std::mem::take(&mut self.scratch);
        self.stats.datagrams += inbox.datagrams() as u64;
        for arrived in &inbox.arrived {
            self.classify(now, &inbox.bytes, arrived, &mut scratch);
        }
        open_all(&mut inbox.bytes, &mut scratch);
        inbox.opened.clear();
        let mut runs = std::mem::take(&mut scratch.runs);
        for run in runs.drain(..) {
            let packets = &mut scratch.packets[run.packets.clone()];
            self.commit(now, &run, packets);
            self.check(&run, packets, inbox);
        }
        scratch.runs = runs;
        for (from, at) in scratch.handshakes.drain(..) {
            self.take_handshake(now, from, &inbox.bytes[at], outbox);
        }
        scratch.packets.clear();
        self.scratch = scratch;
        inbox.is_opened_now();
        self.handle_outputs(now, outbox);
        self.handle_handshakes(now, outbox);
        Opened(inbox)
    }

    /// Stages 1 and 2.
    fn classify(&mut self, now: Now, bytes: &[u8], arrived: &Arrived, scratch: &mut OpenScratch) {
        let end = arrived.start + arrived.len;
        // An empty datagram is one, too.
        let starts = (arrived.start..end.max(arrived.start + 1)).step_by(arrived.stride);
        for start in starts {
            let at = start.min(end)..end.min(start.saturating_add(arrived.stride));
            let datagram = &bytes[at.clone()];
            let Some(DataHeader { receiver, counter }) = DataHeader::parse(datagram) else {
                match wire::classify(datagram) {
                    Some(DatagramKind::Handshake) => scratch.handshakes.push((arrived.from, at)),
                    _ => self.stats.unopened.malformed += 1,
                }
                continue;
            };
            let is_next = |run: &Run| {
                run.session.local_index() == receiver
                    && (run.from, run.ecn) == (arrived.from, arrived.ecn)
            };
            if !scratch.runs.last().is_some_and(is_next) {
                let found = self.shared.session(receiver);
                let found = found.filter(|found| found.session.may_receive(now.time));
                let Some(found) = found else {
                    self.stats.unopened.unknown_session += 1;
                    continue;
                };
                let here = scratch.packets.len();
                scratch.runs.push(Run {
                    peer: found.peer,
                    session: found.session,
                    from: arrived.from,
                    ecn: arrived.ecn,
                    packets: here..here,
                });
            }
            scratch.packets.push(DataPacket {
                text: at.start + DataHeader::LEN..at.end,
                counter,
                state: State::NotAuthentic,
            });
            if let Some(run) = scratch.runs.last_mut() {
                run.packets.end = scratch.packets.len();
            }
        }
    }

    /// Stage 4.
    fn commit(&mut self, now: Now, run: &Run, packets: &mut [DataPacket]) {
        let (mut bytes, mut has_data, mut is_any) = (0, false, false);
        let mut window = run.session.window();
        for packet in packets {
            match packet.state {
                State::NotAuthentic => self.stats.unopened.not_authentic += 1,
                State::Authentic if window.commit(packet.counter) => {
                    is_any = true;
                    has_data |= packet.text.len() > TAG_LEN;
                    bytes += (DataHeader::LEN + packet.text.len()) as u64;
                }
                State::Authentic | State::Replayed => {
                    packet.state = State::Replayed;
                    self.stats.unopened.replayed += 1;
                }
            }
        }
        drop(window);
        if !is_any {
            return;
        }
        run.peer.roam(run.from);
        if run.peer.received(now.time, &run.session, bytes, has_data) {
            self.look_at(now, &run.peer);
        }
    }

    /// Stage 5.
    fn check(&mut self, run: &Run, packets: &[DataPacket], inbox: &mut Inbox) {
        let routes = self.shared.routes();
        let dropped = &mut self.stats.unopened;
        let mut checked: Option<IpAddr> = None;
        for packet in packets {
            if packet.state != State::Authentic {
                continue;
            }
            let (start, end) = (packet.text.start, packet.text.end - TAG_LEN);
            if start == end {
                self.stats.keepalives += 1;
                continue;
            }
            let plaintext = &mut inbox.bytes[start..end];
            let Some(inner) = adit_offload::inner_packet(plaintext) else {
                dropped.not_ip += 1;
                continue;
            };
            if checked != Some(inner.source) {
                let owner = routes.lookup(inner.source);
                if owner.is_none_or(|owner| owner.id() != run.peer.id()) {
                    dropped.wrong_source += 1;
                    continue;
                }
                checked = Some(inner.source);
            }
            if run.ecn != 0 && adit_offload::decap_ecn(run.ecn, plaintext).is_err() {
                dropped.ecn += 1;
                continue;
            }
            self.stats.opened_packets += 1;
            self.stats.opened_bytes += (DataHeader::LEN + packet.text.len()) as u64;
            inbox.opened.push(OpenedPacket {
                peer: PublicKey::of(run.peer.public_key()),
                id: run.peer.id(),
                start,
                len: inner.len,
            });
        }
    }
}

/// Stage 3.
fn open_all(mut bytes: &mut [u8], scratch: &mut OpenScratch) {
    let OpenScratch { packets, runs, .. } = scratch;
    let mut jobs: ArrayVec<OpenJob<'_>, MAX_JOBS> = ArrayVec::new();
    let mut indices: ArrayVec<usize, MAX_JOBS> = ArrayVec::new();
    // How many bytes lie before `bytes`.
    let mut passed = 0;
    for run in runs {
        let window = run.session.window();
        for packet in &mut packets[run.packets.clone()] {
            if !window.may_accept(packet.counter) {
                packet.state = State::Replayed;
            }
        }
        drop(window);
        for index in run.packets.clone() {
            let DataPacket { counter, state, .. } = packets[index];
            let text = packets[index].text.clone();
            if state == State::Replayed {
                continue;
            }
            let (_, from) = bytes.split_at_mut(text.start - passed);
            let (here, behind) = from.split_at_mut(text.len());
            passed = text.end;
            bytes = behind;
            if jobs.is_full() {
                open_jobs(&mut jobs, &mut indices, packets);
            }
            let key = run.session.receive_key();
            jobs.push(OpenJob::in_place(key, counter, here));
            indices.push(index);
        }
    }
    open_jobs(&mut jobs, &mut indices, packets);
}

fn open_jobs(
    jobs: &mut ArrayVec<OpenJob<'_>, MAX_JOBS>,
    indices: &mut ArrayVec<usize, MAX_JOBS>,
    packets: &mut [DataPacket],
) {
    adit_aead::open(jobs);
    for (job, index) in jobs.drain(..).zip(indices.drain(..)) {
        if job.is_authentic() {
            packets[index].state = State::Authentic;
        }
    }
}
