//! The device that smoltcp sees: one received packet at most, and the batch that is being sent.
//!
//! To smoltcp the MTU is 65,535 bytes. How a packet is cut is decided here, by the maximum segment size of
//! its connection, which is made to stand in the SYN of either end: so that IPv6, which smoltcp gives no
//! segmentation, and a path whose MTU shrinks are no different.
//!
//! A connection may have several sockets of smoltcp one after the other. Each begins with a sequence number of
//! its own, and scales windows by its ring. To the other end both are as they were in the SYN.

use std::net::IpAddr;
use std::num::NonZeroUsize;

use smoltcp::phy::{self, Checksum, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::time::Instant;

use super::clock::Micros;
use super::congestion::MOST;
use super::recovery::{Recovery, Repeat, is_before};
use crate::frame::{Gso, GsoKind};
use crate::net::link::Egress;
use crate::net::wire::{self, ACK, FIN, Flow, Headers, RST, SYN, TCP_HEADER, word};

/// The longest packet.
const MAX_PACKET: usize = 65_535;
/// What a peer that names no maximum segment size takes (RFC 9293 §3.7.1).
const DEFAULT_MSS: u16 = 536;
/// The least that is believed, as smoltcp and Linux have it.
const MIN_MSS: u16 = 48;

/// The scale of the windows that this end sends, by which the longest ring can be told (RFC 7323 §2).
const SCALE: u8 = 6;

/// The most that is believed (RFC 7323 §2.3).
const MAX_SCALE: u8 = 14;

/// What the SYN of the other end said, but for its maximum segment size.
#[derive(Clone, Copy, Debug, Default)]
struct SynOptions {
    /// Of its windows. Without it there is none in either direction.
    scale: Option<u8>,
    has_sack: bool,
}

/// How a connection's segments are cut, and what was acknowledged last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segments {
    pub(super) flow: Flow,
    /// The longest payload that this end takes.
    local_mss: u16,
    /// The longest payload of a segment that is sent.
    mss: u16,
    pub(super) recovery: Recovery,
    /// The time of what is done just now.
    pub(super) now: Micros,
    /// What follows the last byte, or end, of the other end that smoltcp has.
    pub(super) ack: u32,
    /// What follows the last byte that smoltcp takes.
    right: u32,
    /// What is added to smoltcp's sequence numbers.
    offset: u32,
    /// By how many bits smoltcp's windows are more than it writes.
    ring_scale: u8,
    theirs: SynOptions,
}

impl Segments {
    /// `offset` makes sequence numbers that nobody outside can guess.
    pub(super) fn new(flow: Flow, mtu: usize, offset: u32) -> Self {
        let headers = wire::bare_segment_len(&flow);
        let local_mss = u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX);
        Self {
            flow,
            local_mss,
            mss: local_mss.min(DEFAULT_MSS),
            recovery: Recovery::default(),
            now: 0,
            ack: 0,
            right: 0,
            offset,
            ring_scale: 0,
            theirs: SynOptions::default(),
        }
    }

    /// smoltcp has a ring of so many bytes to receive, which is empty. It scales windows as it does.
    pub(super) fn set_ring(&mut self, len: usize) {
        let bits = usize::BITS - len.leading_zeros();
        self.ring_scale = u8::try_from(bits.saturating_sub(16)).unwrap_or(0);
        let window = (len >> self.own_scale()).min(usize::from(u16::MAX));
        self.right = self.right_edge(self.ack, u16::try_from(window).unwrap_or(u16::MAX));
    }

    /// By how many bits smoltcp's windows are more than it writes, now.
    fn own_scale(&self) -> u8 {
        self.theirs.scale.map_or(0, |_| self.ring_scale)
    }

    /// What follows the last byte that smoltcp takes, when it has written this.
    fn right_edge(&self, ack: u32, window: u16) -> u32 {
        ack.wrapping_add(u32::from(window) << self.own_scale())
    }

    /// For a new socket of smoltcp, which has sent a SYN with this number: an answer, after which the next byte
    /// of either end is what it is, and the window of the other end.
    pub(super) fn answers(&mut self, seq: u32) -> [Vec<u8>; 2] {
        let seq = seq.wrapping_add(1);
        self.offset = self.recovery.next().wrapping_sub(seq);
        let [high, low] = self.mss.to_be_bytes();
        // What pads is no operation.
        let mut options = [2, 4, high, low, 1, 1, 1, 1, 1, 1, 1, 1];
        if let Some(scale) = self.theirs.scale {
            options[5..8].copy_from_slice(&[3, 3, scale]);
        }
        if self.theirs.has_sack {
            options[8..10].copy_from_slice(&[4, 2]);
        }
        let len = wire::bare_segment_len(&self.flow);
        let mut answer = vec![0; len + options.len()];
        let numbers = [self.ack.wrapping_sub(1), seq];
        wire::write_acknowledgement(&mut answer, &self.flow, numbers, u16::MAX);
        answer[len - 8] = 8 << 4;
        answer[len - 7] |= SYN;
        answer[len..].copy_from_slice(&options);
        self.recovery.rested();
        let mut window = vec![0; len];
        let numbers = [self.ack, seq];
        wire::write_acknowledgement(&mut window, &self.flow, numbers, self.recovery.tell().1);
        [answer, window]
    }

    /// Whether a segment may be of the open connection: a RST only with the next number (RFC 5961 §3.2), others
    /// where windows reach, if they acknowledge nothing that was not sent.
    pub(super) fn is_near(&self, packet: &[u8], start: usize) -> bool {
        let flags = packet[start + 13];
        let [seq, ack] = [4, 8].map(|at| wire::wide(packet, start + at));
        let before = self.recovery.unacknowledged().wrapping_sub(MOST);
        match flags & (SYN | RST | ACK) {
            flags if flags & RST != 0 => seq == self.ack,
            ACK => {
                let is_acceptable =
                    !is_before(ack, before) && !is_before(self.recovery.next(), ack);
                let distance = seq.wrapping_sub(self.ack).cast_signed();
                is_acceptable && distance.unsigned_abs() <= MOST
            }
            _ => false,
        }
    }

    /// Whether smoltcp has taken an end that its window does not reach.
    pub(super) fn is_past_window(&self) -> bool {
        is_before(self.right, self.ack)
    }

    /// Whether smoltcp takes this segment of the open connection, with its acknowledgement: the next
    /// one, if it fits the window and has neither options nor FIN.
    pub(super) fn is_next(&self, packet: &[u8], headers: &Headers) -> bool {
        let segment = &packet[headers.start..headers.end];
        let payload = u32::try_from(segment.len() - TCP_HEADER).unwrap_or(0);
        let is_plain = segment[12] >> 4 == 5 && segment[13] & (FIN | RST) == 0;
        let seq = wire::wide(segment, 4);
        is_plain && seq == self.ack && !is_before(self.right, seq.wrapping_add(payload))
    }

    /// Whether a segment carries nothing but an acknowledgement and a window.
    pub(super) fn is_bare(&self, packet: &[u8], headers: &Headers) -> bool {
        let segment = &packet[headers.start..headers.end];
        let has_payload = segment.len() > usize::from(segment[12] >> 4) * 4;
        // One with an old number asks for an answer.
        let is_old = is_before(wire::wide(segment, 4), self.ack);
        !has_payload && segment[13] & (FIN | RST) == 0 && !is_old
    }

    /// Replaces the acknowledgement and the window of a received segment by what smoltcp was told last.
    pub(super) fn limit_window(&mut self, packet: &mut [u8], start: usize, is_open: bool) {
        let window = match is_open {
            true => {
                let (ack, window) = self.recovery.tell();
                packet[start + 8..start + 12].copy_from_slice(&ack.to_be_bytes());
                window
            }
            false => {
                let is_syn = packet[start + 13] & SYN != 0;
                let scale = if is_syn { 0 } else { self.recovery.scale };
                self.recovery.clamp(word(packet, start + 14), scale)
            }
        };
        packet[start + 14..start + 16].copy_from_slice(&window.to_be_bytes());
    }

    /// Makes the numbers of a segment that was received smoltcp's.
    pub(super) fn translate(&self, packet: &mut [u8], start: usize) {
        if packet[start + 13] & wire::ACK != 0 {
            let ack = wire::wide(packet, start + 8).wrapping_sub(self.offset);
            packet[start + 8..start + 12].copy_from_slice(&ack.to_be_bytes());
        }
    }

    /// When the path is to be probed, unless something is acknowledged before.
    pub(super) fn probe_at(&self) -> Option<Micros> {
        self.recovery.probe_at(self.mss)
    }

    /// What is to be repeated now, to probe the path.
    pub(super) fn probes(&mut self) -> Repeat {
        self.recovery.probes(self.now, self.mss)
    }

    /// The path has this MTU.
    pub(super) fn shrink(&mut self, mtu: u32) {
        let headers = wire::bare_segment_len(&self.flow);
        let mss = usize::try_from(mtu).unwrap_or(0).saturating_sub(headers);
        let mss = u16::try_from(mss).unwrap_or(u16::MAX);
        // A forged one cannot have segments become tiny.
        self.mss = self.mss.min(mss.max(DEFAULT_MSS - 40));
    }

    /// Looks at a segment that was received, before smoltcp does: the other end's maximum segment size is at
    /// most ours. A SYN may be expected. What is to be repeated.
    pub(super) fn received(
        &mut self,
        packet: &mut [u8],
        headers: &Headers,
        is_expected: bool,
    ) -> Repeat {
        let start = headers.start;
        let [seq, ack] = [4, 8].map(|at| wire::wide(packet, start + at));
        let flags = packet[start + 13];
        if flags & RST != 0 {
            return Repeat::Nothing;
        }
        if flags & SYN == 0 {
            let header = usize::from(packet[start + 12] >> 4) * 4;
            let payload = u32::try_from(headers.end - start - header).unwrap_or(0);
            // smoltcp would take the end of a segment of which it takes only the beginning. It comes again.
            if is_before(self.right, seq.wrapping_add(payload)) {
                packet[start + 13] &= !FIN;
            }
            return self.recovery.received(self.now, packet, headers, self.mss);
        }
        let answers = (flags & ACK != 0).then_some(ack);
        if !is_expected || answers.is_some_and(|ack| ack != self.recovery.next()) {
            return Repeat::Nothing;
        }
        // To smoltcp the window of its SYN begins with the other end's.
        self.right = seq.wrapping_add(self.right.wrapping_sub(self.ack));
        self.ack = seq.wrapping_add(1);
        let scale = wire::syn_option(packet, headers, 3, 3).map(|at| packet[at]);
        self.theirs = SynOptions {
            scale,
            has_sack: wire::syn_option(packet, headers, 4, 2).is_some(),
        };
        self.recovery.scale = scale.unwrap_or(0).min(MAX_SCALE);
        // That of a SYN is not scaled.
        let window = word(packet, headers.start + 14) >> self.recovery.scale;
        self.recovery.begins(window, answers);
        self.mss = self.local_mss.min(DEFAULT_MSS);
        if let Some(at) = wire::syn_option(packet, headers, 2, 4) {
            let theirs = match word(packet, at) {
                0 => DEFAULT_MSS,
                theirs => theirs.max(MIN_MSS),
            };
            self.mss = self.local_mss.min(theirs);
            packet[at..at + 2].copy_from_slice(&self.mss.to_be_bytes());
        }
        Repeat::Nothing
    }

    /// Completes a segment that smoltcp has written, and says how it is cut.
    fn complete(&mut self, packet: &mut [u8]) -> Option<Gso> {
        let start = wire::ip_header(self.flow.local.ip());
        let headers = Headers {
            source: self.flow.local.ip(),
            destination: self.flow.remote.ip(),
            protocol: wire::TCP,
            start,
            end: packet.len(),
        };
        let segment = packet.get(start..).filter(|segment| segment.len() >= 20)?;
        let header = usize::from(segment[12] >> 4) * 4;
        let flags = segment[13];
        let payload = segment.len().saturating_sub(header);
        let seq = wire::wide(segment, 4).wrapping_add(self.offset);
        let (ack, window) = (wire::wide(segment, 8), word(segment, 14));
        match flags & (SYN | RST) {
            // Its numbers are those of what it answers.
            RST => {}
            SYN => {
                self.recovery.sent_syn(seq);
                self.ack = ack;
                self.right = ack.wrapping_add(window.into());
            }
            _ => {
                let len = u32::try_from(payload).unwrap_or(0) + u32::from(flags & FIN != 0);
                self.recovery.sent(self.now, seq, len, self.mss);
                self.ack = ack;
                let right = self.right_edge(ack, window);
                // A zero-window probe does not change the window that smoltcp accepts.
                let is_probe = payload > 0 && self.recovery.may_probe();
                if !is_probe || is_before(right, self.right) {
                    self.right = right;
                }
            }
        }
        packet[start + 4..start + 8].copy_from_slice(&seq.to_be_bytes());
        if flags & SYN != 0 {
            if let Some(at) = wire::syn_option(packet, &headers, 2, 4) {
                packet[at..at + 2].copy_from_slice(&self.local_mss.to_be_bytes());
            }
            if let Some(at) = wire::syn_option(packet, &headers, 3, 3) {
                packet[at] = SCALE;
            }
        } else if self.theirs.scale.is_some() {
            let window = u32::from(window) << self.ring_scale >> SCALE;
            let window = u16::try_from(window).unwrap_or(u16::MAX);
            packet[start + 14..start + 16].copy_from_slice(&window.to_be_bytes());
        }
        if payload > usize::from(self.mss) {
            let kind = match headers.source {
                IpAddr::V4(_) => GsoKind::Tcp4,
                IpAddr::V6(_) => GsoKind::Tcp6,
            };
            return Some(Gso {
                kind,
                segment: self.mss,
            });
        }
        wire::write_checksum(packet, &headers, 16);
        None
    }
}

/// What smoltcp gets for one call.
pub(super) struct SmoltcpDevice<'a> {
    pub(super) received: Option<&'a [u8]>,
    pub(super) egress: &'a mut Egress,
    pub(super) segments: &'a mut Segments,
}

pub(super) struct ReceiveToken<'a>(&'a [u8]);

pub(super) struct SendToken<'a> {
    egress: &'a mut Egress,
    segments: &'a mut Segments,
}

impl phy::RxToken for ReceiveToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

impl phy::TxToken for SendToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let segments = self.segments;
        self.egress.send(len, |packet| {
            let result = write(packet);
            let gso = segments.complete(packet);
            (result, gso)
        })
    }
}

/// What smoltcp knows of the device.
pub(super) fn capabilities() -> DeviceCapabilities {
    let mut capabilities = DeviceCapabilities::default();
    capabilities.medium = Medium::Ip;
    capabilities.max_transmission_unit = MAX_PACKET;
    capabilities.checksum = ChecksumCapabilities::ignored();
    capabilities.checksum.ipv4 = Checksum::Tx;
    capabilities.segmentation.tcpv4 = NonZeroUsize::new(MAX_PACKET);
    capabilities.segmentation.tcpv6 = NonZeroUsize::new(MAX_PACKET);
    capabilities
}

impl phy::Device for SmoltcpDevice<'_> {
    type RxToken<'a>
        = ReceiveToken<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = SendToken<'a>
    where
        Self: 'a;

    fn receive(&mut self, _now: Instant) -> Option<(ReceiveToken<'_>, SendToken<'_>)> {
        let received = ReceiveToken(self.received.take()?);
        let sent = SendToken {
            egress: self.egress,
            segments: self.segments,
        };
        Some((received, sent))
    }

    fn transmit(&mut self, _now: Instant) -> Option<SendToken<'_>> {
        Some(SendToken {
            egress: self.egress,
            segments: self.segments,
        })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities()
    }
}
