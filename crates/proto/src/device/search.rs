//! The search for the longest packet that the path to a peer takes.

use std::net::IpAddr;
use std::time::Duration;

use arrayvec::ArrayVec;

use crate::Time;

/// The length of a probe that passes any path.
const SHORT: u16 = 96;
/// No path is said to take less than this: 576 bytes are what IPv4 asks for, with our headers.
pub(super) const LEAST: u16 = 512;
/// No shorter limit is told where fragments arrive: 1,280 bytes, which any path of IPv6 takes, with
/// the headers of IPv6 and ours. Who forges ICMP makes packets this short and no shorter.
pub(super) const LEAST_TOLD: u16 = 1200;
/// Packets are padded to a multiple of this, so that no finer limit matters.
pub(super) const STEP: u16 = 16;
/// Lengths in a round, without the one that passes.
const LENGTHS: u16 = 5;
/// Probes of a round that leave whole, at most.
pub(super) const MAX_PROBES: usize = LENGTHS as usize + 1;
/// The sequence number of the probe that may be fragmented; those that may not count from 0.
pub(super) const FRAGMENTED: u16 = 31;
/// Rounds without the long probe's answer, or without any.
const TRIES: u8 = 3;
/// Rounds without an answer to the one that may be fragmented. More, because fragments are lost
/// sooner than packets, and packets are dropped if fragments are found to be lost.
const FRAGMENTED_TRIES: u8 = 5;
/// How long a round waits for a first answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// How much longer than the short probe the long one may take: twice the time of that, within this.
const GRACE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(20)..=Duration::from_millis(500);

/// A search that is under way.
pub(super) struct Search {
    pub(super) between: (IpAddr, IpAddr),
    /// The longest packet that the interface takes, and the longest that this host sends whole.
    pub(super) mtu: u16,
    pub(super) top: u16,
    /// The longest length that passed, and the shortest that did not.
    pub(super) good: u16,
    pub(super) bad: Option<u16>,
    /// The lengths of this round, the longest first; none before the first round.
    pub(super) round: ArrayVec<u16, MAX_PROBES>,
    pub(super) sent: Time,
    pub(super) due: Time,
    pub(super) heard: bool,
    /// Rounds without the answer to the longest, and without any.
    pub(super) lost: u8,
    pub(super) silent: u8,
    /// Whether packets of any length arrive in fragments, and rounds in which they did not.
    pub(super) fragments: bool,
    pub(super) no_fragments: u8,
    /// The device takes less than the MTU needs: fragments are what was asked for.
    pub(super) chosen: bool,
    /// The longest that the path takes if ICMP is right.
    pub(super) told: Option<u16>,
    pub(super) why: Why,
}

/// Why a search began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// A long packet left, between these addresses just now.
    Packet,
    /// To renew a limit. What answered at these addresses before may be gone.
    Renewal,
    /// The path is another one, of which nothing is known. The same is true of the addresses.
    NewPath,
}

/// How a search goes on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Wait,
    Round,
    /// The path takes packets of this length whole, or all.
    Found(Option<u16>),
    /// Nobody answers.
    Unknown,
}

impl Search {
    pub(super) fn new(now: Time, between: (IpAddr, IpAddr), mtu: u16, why: Why) -> Self {
        Self {
            between,
            mtu,
            top: mtu,
            good: SHORT,
            bad: None,
            round: ArrayVec::new(),
            sent: now,
            due: now,
            heard: false,
            lost: 0,
            silent: 0,
            fragments: false,
            no_fragments: 0,
            chosen: false,
            told: None,
            why,
        }
    }

    pub(super) fn due(&self) -> Time {
        self.due
    }

    pub(super) fn begin_round(&mut self, now: Time) {
        self.round.clear();
        match self.bad {
            None => self.round.push(self.top),
            Some(bad) => {
                let least = self.good.max(LEAST - STEP);
                let gap = bad.saturating_sub(least);
                for n in (1..=LENGTHS).rev() {
                    let len =
                        least + gap / (LENGTHS + 1) * n + gap % (LENGTHS + 1) * n / (LENGTHS + 1);
                    let len = len / STEP * STEP;
                    if len > self.good && len < bad && self.round.last() != Some(&len) {
                        self.round.push(len);
                    }
                }
            }
        }
        self.round.push(self.good);
        (self.sent, self.due, self.heard) = (now, now + PATIENCE, false);
    }

    /// This host sends no packets whole that are longer, and its device none that are longer than
    /// `device`. False if that is nothing new.
    pub(super) fn refused(&mut self, longest: u16, device: u16) -> bool {
        self.chosen = device < self.mtu;
        let longest = longest / STEP * STEP;
        if longest >= self.top || longest < LEAST {
            return false;
        }
        (self.top, self.bad, self.lost, self.told) = (longest, None, 0, None);
        self.good = self.good.min(longest);
        true
    }

    /// The limit that this host knows, or takes for one while it knows no better.
    pub(super) fn known(&self) -> Option<u16> {
        let known = self.told.unwrap_or(self.top);
        (known < self.mtu && !self.chosen).then_some(known)
    }

    /// Whether what ICMP said is wrong, or so little that the host is better off without it.
    pub(super) fn doubts_icmp(&self, next: &Next) -> bool {
        let is_little = |told| *next == Next::Unknown && told < LEAST_TOLD;
        self.told
            .is_some_and(|told| self.good > told || is_little(told))
    }

    /// Whether to send a long packet that may be fragmented: there seems to be a limit, so that it
    /// matters whether fragments arrive.
    pub(super) fn tries_fragments(&self) -> bool {
        let is_limited = self.top < self.mtu || self.lost > 0 || self.bad.is_some();
        is_limited && !self.fragments
    }

    /// Whether it is known, as well as may be, if fragments arrive.
    pub(super) fn is_settled(&self) -> bool {
        self.fragments || self.no_fragments >= FRAGMENTED_TRIES
    }

    /// Answers to probes of this round came in: bit n is that to the one with sequence number n.
    pub(super) fn answered(&mut self, now: Time, answers: u32) -> Next {
        self.fragments |= answers & 1 << FRAGMENTED != 0;
        // The longest, and it was sent first.
        let longest =
            answers & 1 != 0 && (self.is_settled() || self.bad.is_none() && self.top == self.mtu);
        if longest || self.fragments && self.chosen && self.told.is_none() {
            return self.end_round(answers);
        }
        if answers != 0 && !self.heard {
            self.heard = true;
            let took = now.since(self.sent);
            self.due = now + (took * 2).clamp(*GRACE.start(), *GRACE.end());
        }
        Next::Wait
    }

    pub(super) fn end_round(&mut self, answers: u32) -> Next {
        self.no_fragments += u8::from(self.tries_fragments() && answers != 0);
        self.fragments |= answers & 1 << FRAGMENTED != 0;
        let best = (0..self.round.len()).find(|at| answers & 1 << at != 0);
        self.good = best.map_or(self.good, |best| self.good.max(self.round[best]));
        if self.fragments && self.chosen {
            return Next::Found(None);
        }
        let Some(best) = best else {
            self.silent += 1;
            return match self.silent < TRIES {
                true => Next::Round,
                false => Next::Unknown,
            };
        };
        self.silent = 0;
        match self.bad {
            None if best == 0 && self.top == self.mtu => return Next::Found(None),
            None if best == 0 => self.bad = Some(self.top + 1),
            None => {
                self.lost += 1;
                if self.lost < TRIES {
                    return Next::Round;
                }
                self.bad = Some(self.top);
            }
            Some(_) if best > 0 => self.bad = Some(self.round[best - 1]),
            Some(_) => {}
        }
        match self.bad {
            Some(bad) if bad.saturating_sub(self.good) <= STEP || bad <= LEAST => {
                match self.good >= LEAST {
                    true if self.is_settled() => Next::Found(Some(self.good)),
                    true => Next::Round,
                    // It is no path for IP.
                    false => Next::Unknown,
                }
            }
            _ => Next::Round,
        }
    }
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
