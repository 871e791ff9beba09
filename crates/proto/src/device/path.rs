//! The longest packet that the path to a peer takes, where no ICMP tells: found by probes.
//!
//! A probe is an echo request inside the tunnel, of which any peer's host sends an answer: to the
//! address that a long packet of the tunnel's users went to, with a TTL of 1, so that a router
//! answers, too. A long one and a short one leave together. If only the short one is answered, three
//! times, the path has a limit, and rounds of five lengths find it. If none is answered, nothing is
//! known, and nothing changes.
//!
//! There is one search for each session, when a long packet leaves on it: a path that changes is
//! looked at again after two minutes, or when the peer has fallen silent.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;

use super::peer_state::PeerState;
use super::{Core, Device, Output, PeerEvent};
use crate::Time;

/// The length of a probe that passes any path.
const SHORT: u16 = 96;
/// No path is said to take less than this: 576 bytes are what IPv4 asks for, with our headers.
const LEAST: u16 = 512;
/// Packets are padded to a multiple of this, so that no finer limit matters.
const STEP: u16 = 16;
/// The longest one that a datagram of UDP over IPv4 holds when it is padded. A longer one never
/// leaves, whatever the path takes.
const MOST: u16 = (65_507 - 32) / STEP * STEP;
/// Lengths in a round, without the one that passes.
const LENGTHS: u16 = 5;
/// Rounds without the long probe's answer, or without any.
const TRIES: u8 = 3;
/// How long a round waits for a first answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// How much longer than the short probe the long one may take: twice the time of that, within this.
const GRACE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(20)..=Duration::from_millis(500);

/// A search that is under way.
pub(super) struct Search {
    between: (IpAddr, IpAddr),
    /// The longest packet that the interface takes.
    top: u16,
    /// The longest length that passed, and the shortest that did not.
    good: u16,
    bad: Option<u16>,
    /// The lengths of this round, the longest first.
    round: ArrayVec<u16, { LENGTHS as usize + 1 }>,
    sent: Time,
    due: Time,
    heard: bool,
    /// Rounds without the answer to the longest, and without any.
    lost: u8,
    silent: u8,
}

/// How a search goes on.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Wait,
    Round,
    /// The path takes packets of this length, or all.
    Found(Option<u16>),
    /// Nobody answers.
    Unknown,
}

impl Search {
    fn new(now: Time, between: (IpAddr, IpAddr), top: u16) -> Self {
        Self {
            between,
            top,
            good: SHORT,
            bad: None,
            round: ArrayVec::new(),
            sent: now,
            due: now,
            heard: false,
            lost: 0,
            silent: 0,
        }
    }

    pub(super) fn due(&self) -> Time {
        self.due
    }

    fn begin_round(&mut self, now: Time) {
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

    /// Answers to probes of this round came in: bit n is that to the nth.
    fn answered(&mut self, now: Time, answers: u32) -> Next {
        if answers & 1 != 0 {
            // The longest, and it was sent first.
            return self.end_round(answers);
        }
        if answers != 0 && !self.heard {
            self.heard = true;
            let took = now.since(self.sent);
            self.due = now + (took * 2).clamp(*GRACE.start(), *GRACE.end());
        }
        Next::Wait
    }

    fn end_round(&mut self, answers: u32) -> Next {
        if answers == 0 {
            self.silent += 1;
            return match self.silent < TRIES {
                true => Next::Round,
                false => Next::Unknown,
            };
        }
        self.silent = 0;
        let passed = |at: usize| answers & 1 << at != 0;
        let best = (0..self.round.len()).find(|at| passed(*at)).unwrap_or(0);
        match self.bad {
            None if best == 0 => return Next::Found(None),
            None => {
                self.lost += 1;
                if self.lost < TRIES {
                    return Next::Round;
                }
                self.bad = Some(self.top);
            }
            Some(_) => {
                self.good = self.good.max(self.round[best]);
                if best > 0 {
                    self.bad = Some(self.round[best - 1]);
                }
            }
        }
        match self.bad {
            Some(bad) if bad.saturating_sub(self.good) <= STEP || bad <= LEAST => {
                match self.good >= LEAST {
                    true => Next::Found(Some(self.good)),
                    // It is no path for IP.
                    false => Next::Unknown,
                }
            }
            _ => Next::Round,
        }
    }
}

impl Device {
    /// Probes paths from now on, up to this MTU of the interface; `None` for not at all. The
    /// embedder then sends what [`PeerEvent::ProbePath`] asks for, calls
    /// [`Peer::sample`](crate::Peer::sample) and
    /// [`Peer::probe_answered`](crate::Peer::probe_answered), and keeps within
    /// [`Peer::path_limit`](crate::Peer::path_limit).
    pub fn probe_paths(&mut self, mtu: Option<u16>) {
        self.core.probed_mtu = mtu.map(|mtu| mtu.min(MOST));
    }
}

impl PeerState {
    /// There is a new session: the next long packet on it begins a search.
    pub(super) fn look_at_path(&self, core: &Core) {
        if core.probed_mtu.is_some() {
            self.peer.want_sample();
        }
    }

    /// A shard saw a long packet, or an answer to a probe.
    pub(super) fn path_event(&mut self, core: &mut Core, now: Time) {
        if let Some(search) = &mut self.search {
            let next = search.answered(now, self.peer.probe_answers());
            return self.go_on_searching(core, now, next);
        }
        if let (Some(between), Some(top)) = (self.peer.take_sample(), core.probed_mtu)
            && top > LEAST
        {
            self.search = Some(Box::new(Search::new(now, between, top)));
            self.go_on_searching(core, now, Next::Round);
        }
    }

    pub(super) fn search_due(&mut self, core: &mut Core, now: Time) {
        if let Some(search) = self.search.as_mut().filter(|it| it.due <= now) {
            let next = search.end_round(self.peer.probe_answers());
            self.go_on_searching(core, now, next);
        }
    }

    fn go_on_searching(&mut self, core: &mut Core, now: Time, next: Next) {
        let found = match next {
            Next::Wait => return,
            Next::Round => return self.probe_path(core, now),
            Next::Found(limit) => Some(limit),
            Next::Unknown => None,
        };
        self.search = None;
        self.peer.end_probes();
        if let Some(limit) = found
            && self.peer.set_path_limit(limit)
        {
            let peer = Arc::clone(&self.peer);
            core.push(Output::Event(PeerEvent::PathFound { peer, limit }));
        }
    }

    fn probe_path(&mut self, core: &mut Core, now: Time) {
        let Some(search) = &mut self.search else {
            return;
        };
        search.begin_round(now);
        let mut id = [0; 2];
        (core.random)(&mut id);
        let id = u16::from_le_bytes(id);
        self.peer.begin_probes(id);
        let (from, to) = search.between;
        for (sequence, len) in (0..).zip(&search.round) {
            let peer = Arc::clone(&self.peer);
            core.push(Output::Event(PeerEvent::ProbePath {
                peer,
                from,
                to,
                len: (*len).into(),
                id,
                sequence,
            }));
        }
    }
}

#[cfg(test)]
#[path = "path_tests.rs"]
mod tests;
