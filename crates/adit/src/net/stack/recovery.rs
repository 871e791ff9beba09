//! Finds lost segments, and has smoltcp repeat them. By itself smoltcp counts duplicate acknowledgements,
//! repeats one segment, and otherwise waits for its timer, a second at least.
//!
//! - A receiver that merges packets acknowledges each merged one once: too few duplicates come. What it
//!   selectively acknowledges says as much: a segment is lost once three behind it have arrived (RFC 6675
//!   §4).
//! - While more than one is lost, each acknowledgement up to the next hole shows that one (RFC 6582 §3.2).
//!   After some of them all is sent anew, since a hole takes a round trip.
//! - Where nothing follows the lost one, nothing shows it: after two round trips without an
//!   acknowledgement it is repeated, too (RFC 8985 §7, but the first segment instead of the last).
//!
//! smoltcp is given the duplicates that make it repeat the first segment. It sees no others: it is told what
//! was acknowledged, and the other end's window, when either is another than before.

use super::clock::Micros;
use super::congestion::Congestion;
use crate::net::wire::{self, Headers};

/// Segments that arrived behind a lost one, or duplicates, that show it (RFC 5681 §3.2).
const DUPLICATES: u8 = 3;
/// Holes that are repeated, one in a round trip, before all is sent anew.
const MAX_HOLES: u32 = 8;
/// How often a silent path is probed, each time after twice as long. The first two repeat one
/// segment, the others all. Each of those doubles smoltcp's timer, which is waited for in the end.
const MAX_PROBES: u32 = 8;
const WITH_ALL: u32 = 3;
/// What a path without a measurement takes, and what is added to two round trips, since an
/// acknowledgement may be late; and where it may wait for a second segment (RFC 8985 §7.2).
const INITIAL_RTT: Micros = 200_000;
const MARGIN: Micros = 20_000;
const DELAYED: Micros = 200_000;
/// The option with the ranges that were selectively acknowledged (RFC 2018 §3).
const SACK: u8 = 5;

/// What is to be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    Nothing,
    /// The first segment that is not acknowledged.
    First,
    /// That, and all that follows it, as the window permits.
    All,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recovery {
    pub(super) congestion: Congestion,
    /// By how many bits the other end's windows are more than it writes.
    pub(super) scale: u8,
    /// What smoltcp was told last: what is acknowledged, and the window. `None` until the first
    /// segment after the handshake.
    told: Option<(u32, u16)>,
    /// The first byte that is not acknowledged, and what follows the last one that was sent.
    unacknowledged: u32,
    next: u32,
    /// The other end's window.
    window: u16,
    duplicates: u8,
    /// While lost segments are repeated: what followed the last one that was sent when that began.
    until: Option<u32>,
    holes: u32,
    /// What followed the last segment when all was sent anew: up to there duplicates, and what was selectively
    /// acknowledged, show only that the other end has had some of it (RFC 6582 §3.2).
    sent_anew: Option<u32>,
    /// smoltcp is about to repeat a segment because of duplicates.
    is_awaited: bool,
    /// What is waited for to measure the round trip: what follows a segment, and when that was sent.
    timed: Option<(u32, Micros)>,
    round_trip: Option<Micros>,
    /// When something new was sent or acknowledged last, and how often the path was probed since.
    quiet_since: Micros,
    probes: u32,
}

/// Whether a sequence number is before another one.
pub(super) fn is_before(one: u32, other: u32) -> bool {
    one.wrapping_sub(other) > u32::MAX / 2
}

impl Recovery {
    /// The time that a segment and its acknowledgement take.
    pub(super) fn round_trip(&self) -> Micros {
        self.round_trip.unwrap_or(INITIAL_RTT)
    }

    /// The connection has rested.
    pub(super) fn rested(&mut self) {
        self.congestion.rested();
    }

    /// The other end has answered the SYN, or sent its own.
    pub(super) fn begins(&mut self, window: u16, ack: Option<u32>) {
        self.window = window;
        self.unacknowledged = ack.unwrap_or(self.unacknowledged);
    }

    /// The first byte that is not acknowledged.
    pub(super) fn unacknowledged(&self) -> u32 {
        self.unacknowledged
    }

    /// What is acknowledged, and the other end's window, as smoltcp is to see them.
    pub(super) fn tell(&mut self) -> (u32, u16) {
        let now = (self.unacknowledged, self.clamp(self.window, self.scale));
        *self.told.insert(now)
    }

    /// The same, if smoltcp was not told that yet.
    pub(super) fn news(&mut self) -> Option<(u32, u16)> {
        let told = self.told;
        Some(self.tell()).filter(|now| told != Some(*now))
    }

    /// The same, but not before the first segment after the handshake, whose window is small.
    pub(super) fn reduced(&mut self) -> Option<(u32, u16)> {
        self.told?;
        self.news()
    }

    /// Whether a segment with payload may be a zero-window probe.
    pub(super) fn may_probe(&self) -> bool {
        self.told.is_none_or(|(_, window)| window == 0)
    }

    /// What follows the last byte that was sent.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// A SYN was sent that has this number.
    pub(super) fn sent_syn(&mut self, seq: u32) {
        (self.unacknowledged, self.next) = (seq, seq.wrapping_add(1));
        self.told = None;
    }

    /// A segment was sent that takes up so many sequence numbers.
    pub(super) fn sent(&mut self, now: Micros, seq: u32, len: u32, mss: u16) {
        let end = seq.wrapping_add(len);
        if len > 0 && seq == self.unacknowledged && seq != self.next {
            self.timed = None;
            let flight = self.next.wrapping_sub(self.unacknowledged);
            // A single byte probes a closed window: nothing was lost.
            if !std::mem::take(&mut self.is_awaited) && flight > 1 {
                // The timer has passed: all is sent anew.
                if self.until.take().is_none() {
                    self.congestion.lost(now, flight, mss);
                }
                self.congestion.sent_again();
                self.sent_anew = Some(self.next);
            }
        }
        if is_before(self.next, end) {
            self.next = end;
            self.quiet_since = now;
            self.timed.get_or_insert((end, now));
        }
    }

    /// A segment was received: what is to be repeated.
    pub(super) fn received(
        &mut self,
        now: Micros,
        packet: &[u8],
        headers: &Headers,
        mss: u16,
    ) -> Repeat {
        let segment = &packet[headers.start..headers.end];
        let ack = wire::wide(segment, 8);
        if is_before(ack, self.unacknowledged) || is_before(self.next, ack) {
            return Repeat::Nothing;
        }
        let header = usize::from(segment[12] >> 4) * 4;
        let has_payload = segment.len() > header;
        let window = wire::word(segment, 14);
        let before = std::mem::replace(&mut self.window, window);
        if ack != self.unacknowledged {
            return self.advanced(now, ack, mss);
        }
        if ack == self.next {
            return Repeat::Nothing;
        }
        // Those of a closed window answer probes.
        self.duplicates = match !has_payload && window == before && window > 0 {
            true => self.duplicates.saturating_add(1),
            false => 0,
        };
        if self.until.is_some() || self.sent_anew.is_some() {
            return Repeat::Nothing;
        }
        let options = &segment[wire::TCP_HEADER..header];
        let is_lost = sacked(options, ack) >= u32::from(DUPLICATES) * u32::from(mss);
        if self.duplicates < DUPLICATES && !is_lost {
            return Repeat::Nothing;
        }
        self.until = Some(self.next);
        self.holes = 0;
        let flight = self.next.wrapping_sub(self.unacknowledged);
        self.congestion.lost(now, flight, mss);
        Repeat::First
    }

    /// More is acknowledged: all of what had been sent when a loss was found, or up to the next hole.
    fn advanced(&mut self, now: Micros, ack: u32, mss: u16) -> Repeat {
        let flight = self.next.wrapping_sub(self.unacknowledged);
        let bytes = ack.wrapping_sub(self.unacknowledged);
        self.unacknowledged = ack;
        self.sent_anew = self.sent_anew.filter(|until| is_before(ack, *until));
        self.duplicates = 0;
        self.probes = 0;
        self.quiet_since = now;
        if let Some((_, sent)) = self.timed.filter(|(end, _)| !is_before(ack, *end)) {
            self.timed = None;
            let measured = now - sent;
            let before = self.round_trip.unwrap_or(measured);
            self.round_trip = Some(before + (measured - before) / 8);
        }
        match self.until {
            Some(until) if is_before(ack, until) => {
                self.holes += 1;
                if self.holes > MAX_HOLES {
                    return Repeat::All;
                }
                Repeat::First
            }
            _ => {
                self.until = None;
                self.congestion.acknowledged(now, bytes, flight, mss);
                Repeat::Nothing
            }
        }
    }

    /// A window that the other end wrote, as smoltcp is to see it.
    pub(super) fn clamp(&self, window: u16, scale: u8) -> u16 {
        let own = (self.congestion.window() >> scale).max(1);
        window.min(u16::try_from(own).unwrap_or(u16::MAX))
    }

    /// When the path is to be probed, unless something is acknowledged before.
    pub(super) fn probe_at(&self, mss: u16) -> Option<Micros> {
        let flight = self.next.wrapping_sub(self.unacknowledged);
        if flight == 0 || self.probes >= MAX_PROBES || self.window == 0 {
            return None;
        }
        let rest = match self.round_trip {
            Some(round_trip) => 2 * round_trip + MARGIN,
            None => INITIAL_RTT,
        };
        let delayed = if flight <= u32::from(mss) { DELAYED } else { 0 };
        Some(self.quiet_since + ((rest + delayed) << self.probes))
    }

    /// What is to be repeated now, to probe the path.
    pub(super) fn probes(&mut self, now: Micros, mss: u16) -> Repeat {
        if self.probe_at(mss).is_none_or(|at| at > now) {
            return Repeat::Nothing;
        }
        self.probes += 1;
        self.until.get_or_insert(self.next);
        match self.probes {
            WITH_ALL.. => Repeat::All,
            _ => Repeat::First,
        }
    }

    /// smoltcp is about to repeat the first segment, because it was made to.
    pub(super) fn awaits(&mut self) {
        self.is_awaited = true;
    }

    /// What is acknowledged, and the windows that make smoltcp repeat the first segment, whatever it has
    /// counted: the second makes it begin to count, and three follow. `None` while the other end takes nothing.
    pub(super) fn duplicates(&mut self) -> Option<(u32, [u16; 5])> {
        let (ack, same) = self.tell();
        (same != 0).then(|| (ack, [same - 1, same, same, same, same]))
    }
}

/// Bytes behind `ack` that were selectively acknowledged.
fn sacked(options: &[u8], ack: u32) -> u32 {
    let mut at = 0;
    while let Some(kind) = options.get(at) {
        let len = match kind {
            0 => return 0,
            1 => 1,
            _ => usize::from(options.get(at + 1).copied().unwrap_or(0)),
        };
        if len == 0 {
            return 0;
        }
        if *kind == SACK {
            let ranges = options.get(at + 2..at + len).unwrap_or_default();
            let lengths = ranges.as_chunks::<8>().0.iter().map(|range| {
                let (left, right) = (wire::wide(range, 0), wire::wide(range, 4));
                let is_behind = is_before(ack, left) && is_before(left, right);
                if is_behind {
                    right.wrapping_sub(left)
                } else {
                    0
                }
            });
            return lengths.fold(0, u32::saturating_add);
        }
        at += len;
    }
    0
}

#[cfg(test)]
#[path = "recovery_tests.rs"]
mod tests;
