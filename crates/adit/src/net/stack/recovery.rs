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
//! smoltcp is given the duplicates that make it repeat the first segment. It counts no others: the windows
//! that it sees alternate.

use super::clock::Micros;
use super::congestion::Congestion;
use crate::net::wire::{self, Headers, RST, SYN};

/// Segments that arrived behind a lost one, or duplicates, that show it (RFC 5681 §3.2).
const DUPLICATES: u8 = 3;
/// Holes that are repeated, one in a round trip, before all is sent anew.
const MAX_HOLES: u32 = 8;
/// How often a silent path is probed, each time after twice as long, and from which time on with all. Then
/// smoltcp's timer is waited for, which each of these has made longer.
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
    /// Whether the last window that smoltcp saw was odd.
    is_odd: bool,
    /// The first byte that is not acknowledged, and what follows the last one that was sent.
    unacknowledged: u32,
    next: u32,
    /// What follows the last segment that was received, and its window.
    theirs: u32,
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

/// An acknowledgement that was received, as it is given to smoltcp again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Acknowledgement {
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) window: u16,
}

/// Whether a sequence number is before another one.
fn is_before(one: u32, other: u32) -> bool {
    one.wrapping_sub(other) > u32::MAX / 2
}

impl Recovery {
    /// The time that a segment and its acknowledgement take.
    pub(super) fn round_trip(&self) -> Micros {
        self.round_trip.unwrap_or(INITIAL_RTT)
    }

    /// The window for a connection that has rested.
    pub(super) fn window(&mut self) -> u16 {
        self.congestion.rested();
        self.clamp(self.window, self.scale)
    }

    pub(super) fn set_window(&mut self, window: u16) {
        self.window = window;
    }

    /// The first byte that is not acknowledged.
    pub(super) fn unacknowledged(&self) -> u32 {
        self.unacknowledged
    }

    /// The other end's window, as smoltcp is to see it.
    pub(super) fn alternated(&mut self) -> u16 {
        self.alternate(self.window, self.scale)
    }

    /// What follows the last byte that was sent.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// A segment was sent that takes up so many sequence numbers.
    pub(super) fn sent(&mut self, now: Micros, seq: u32, len: u32, is_syn: bool) {
        let end = seq.wrapping_add(len);
        if is_syn {
            (self.unacknowledged, self.next) = (seq, end);
            return;
        }
        if len > 0 && seq == self.unacknowledged && seq != self.next {
            self.timed = None;
            if !std::mem::take(&mut self.is_awaited) {
                // The timer has passed: all is sent anew.
                if self.until.take().is_none() {
                    let flight = self.next.wrapping_sub(self.unacknowledged);
                    // That of a segment is not known here; it is little.
                    self.congestion.lost(now, flight, 0);
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
        if segment[13] & (SYN | RST) != 0 {
            return Repeat::Nothing;
        }
        let header = usize::from(segment[12] >> 4) * 4;
        let payload = u32::try_from(segment.len() - header).unwrap_or(0);
        self.theirs = wire::wide(segment, 4).wrapping_add(payload);
        let window = wire::word(segment, 14);
        let is_same_window = std::mem::replace(&mut self.window, window) == window;
        let ack = wire::wide(segment, 8);
        if is_before(self.unacknowledged, ack) && !is_before(self.next, ack) {
            return self.advanced(now, ack, mss);
        }
        if ack != self.unacknowledged || ack == self.next {
            return Repeat::Nothing;
        }
        self.duplicates = match payload == 0 && is_same_window {
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

    /// The same of a segment that is no duplicate to smoltcp, whatever it is.
    pub(super) fn alternate(&mut self, window: u16, scale: u8) -> u16 {
        self.is_odd = !self.is_odd;
        match self.clamp(window, scale) {
            small @ 0..=1 => small,
            window => window & !1 | u16::from(self.is_odd),
        }
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

    /// What makes smoltcp repeat the first segment, whatever it has counted: the windows make it begin to
    /// count, and three follow. `None` while the other end takes nothing.
    pub(super) fn duplicates(&self) -> Option<[Acknowledgement; 5]> {
        let of = |window| Acknowledgement {
            seq: self.theirs,
            ack: self.unacknowledged,
            window,
        };
        let window = self.clamp(self.window, self.scale);
        let same = of(window);
        (window != 0).then(|| [of(window - 1), same, same, same, same])
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
