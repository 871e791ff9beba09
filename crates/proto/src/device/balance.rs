//! Which lane a peer's next session is in: by the work that peers and lanes had lately.
//!
//! A new peer goes to the lane with the least work. One that has a session stays, unless the fuller of
//! the two lanes would afterwards have clearly less to do than its own has now: then no peer goes back
//! for as long as all have as much to do as now.

use std::sync::Arc;

use super::Core;
use super::peer_state::PeerState;
use crate::Time;
use crate::in_use::lane;
use crate::lanes::{LaneState, LaneTable, Move};
use crate::session::Session;
use crate::shared::Shared;

/// What was done before counts as so many nanoseconds of what is done now, at most.
const MEMORY: u64 = 30_000_000_000;
/// More often than so many nanoseconds nothing is measured.
const LOOK: u64 = 1_000_000_000;
/// A lane with less work a second has no need to be relieved: a thread does a thousand times that.
const WORTH_IT: u64 = 1_000_000;
/// A lane has clearly less to do than another if that is at most so many eighths.
const CLEARLY_EIGHTHS: u64 = 7;
/// A peer with a smaller part of its lane's work is not worth to be moved.
const PART: u64 = 1024;

/// The work of a peer or a lane, for each second.
#[derive(Clone, Copy, Default)]
pub(super) struct Rate {
    a_second: u64,
    /// For how long it was measured, in nanoseconds.
    measured: u64,
    /// All work so far, and when that was.
    seen: Option<(u64, Time)>,
}

impl Rate {
    /// So much work was done so far.
    fn observe(&mut self, now: Time, done: u64) {
        let Some((before, at)) = self.seen else {
            self.seen = Some((done, now));
            return;
        };
        let span = u64::try_from(now.since(at).as_nanos()).unwrap_or(u64::MAX);
        if span < LOOK {
            return;
        }
        let past = self.measured.min(MEMORY);
        let new = u128::from(done.saturating_sub(before)) * 1_000_000_000;
        let sum = u128::from(self.a_second) * u128::from(past) + new;
        let mean = sum / (u128::from(past) + u128::from(span));
        self.a_second = u64::try_from(mean).unwrap_or(u64::MAX);
        self.measured = past.saturating_add(span);
        self.seen = Some((done, now));
    }
}

/// The work of lanes.
#[derive(Default)]
pub(super) struct LaneRates {
    /// As many as there are, since then.
    rates: Vec<Rate>,
    since: Time,
}

impl LaneRates {
    /// When their number has changed, measuring begins anew.
    fn observe(&mut self, now: Time, lanes: &LaneState, table: &LaneTable) {
        if (self.rates.len(), self.since) != (lanes.count(), lanes.since()) {
            self.since = lanes.since();
            let rate = Rate {
                seen: Some((0, self.since)),
                ..Rate::default()
            };
            self.rates = vec![rate; lanes.count()];
        }
        for (lane, rate) in self.rates.iter_mut().enumerate() {
            rate.observe(now, table.done(lane));
        }
    }

    fn each(&self) -> impl Iterator<Item = u64> {
        self.rates.iter().map(|rate| rate.a_second)
    }

    /// A peer with so much work goes: what is measured shows it only later.
    fn shift(&mut self, from: Option<usize>, to: Option<usize>, work: u64) {
        let mut of = |lane: Option<usize>, change: fn(u64, u64) -> u64| {
            if let Some(rate) = lane.and_then(|lane| self.rates.get_mut(lane)) {
                rate.a_second = change(rate.a_second, work);
            }
        };
        of(from, u64::saturating_sub);
        of(to, u64::saturating_add);
    }

    fn least(&self, except: Option<usize>) -> Option<(usize, u64)> {
        let lanes = self.each().enumerate();
        let others = lanes.filter(|(lane, _)| Some(*lane) != except);
        others.min_by_key(|(_, rate)| *rate)
    }

    /// Where a peer with so much work had better be.
    fn better(&self, from: usize, work: u64) -> Option<usize> {
        let own = self.rates.get(from)?.a_second;
        let (to, least) = self.least(Some(from))?;
        let is_worth_it = own >= WORTH_IT && work > own / PART;
        (is_worth_it && (least + work) * 8 <= own * CLEARLY_EIGHTHS).then_some(to)
    }

    /// The lane for a new peer, if it matters.
    fn for_new_peer(&self) -> Option<usize> {
        let (to, _) = self.least(None)?;
        (self.each().max()? >= WORTH_IT).then_some(to)
    }
}

impl PeerState {
    /// The lanes of all indices that the peer has: that of the newest session first.
    fn lanes(&self) -> impl Iterator<Item = u8> {
        let of_sessions = self.sessions.all().map(|it| it.local_index());
        let of_initiation = self.initiation.as_ref().map(|created| created.index);
        of_sessions.chain(of_initiation).map(lane)
    }

    pub(super) fn sessions_in_other_lanes(&self, own: &Session) -> impl Iterator<Item = &Session> {
        let own = lane(own.local_index());
        let others = self.sessions.all().map(Arc::as_ref);
        others.filter(move |other| lane(other.local_index()) != own)
    }

    /// In which lane data of the peer arrives.
    pub(super) fn lane(&self) -> Option<u8> {
        self.lanes().next()
    }

    /// Goes on with moves that another process began.
    pub(super) fn go_on_moving(&self, shared: &Shared) {
        let (mut lanes, peer) = (shared.lanes().lock(), self.peer.id());
        let mut begin = |index, from, born: Option<Time>| {
            lanes.begin(Move {
                index,
                peer,
                from,
                until: None,
                work: 0,
            });
            // Without one it is that of a handshake.
            if born.is_some() {
                lanes.has_session(index, born);
            }
        };
        let mut before = None;
        let sessions = [&self.sessions.next, &self.sessions.current];
        for session in sessions.into_iter().flatten().filter(|it| it.moves()) {
            let others = self.sessions_in_other_lanes(session);
            if let Some(last) = others.max_by_key(|other| other.born()) {
                let from = lane(last.local_index());
                begin(session.local_index(), from, Some(last.born()));
                before = Some(from);
            }
        }
        if let Some(created) = &self.initiation {
            let own = self.lane().filter(|own| *own != lane(created.index));
            if let Some(from) = own.or(before) {
                begin(created.index, from, None);
            }
        }
    }

    /// An index for a new handshake.
    pub(super) fn new_index(&mut self, core: &mut Core, now: Time) -> u32 {
        let (id, shared) = (self.peer.id(), Arc::clone(&core.shared));
        let mut lanes = shared.lanes().lock();
        let count = lanes.count();
        self.rate.observe(now, self.peer.work());
        core.lane_rates.observe(now, &lanes, shared.lanes());
        let work = self.rate.a_second;
        // 1. One that moves goes on doing so: what it sends on this session comes after all others.
        if let Some(under_way) = lanes.of_peer(id) {
            let index = core.new_index(id, lane(under_way.index));
            lanes.begin(Move { index, ..under_way });
            return index;
        }
        // 2. A new one.
        let Some(own) = self.lane() else {
            let to = core.lane_rates.for_new_peer();
            let work = match self.rate.measured {
                0 => core.mean_work(),
                _ => work,
            };
            core.lane_rates.shift(None, to, work);
            let lane = core
                .indices
                .emptiest_lane(to.unwrap_or(0), to.map_or(1, |_| count));
            return core.new_index(id, lane);
        };
        // 3. One that stays, or that leaves the only lane that it is in. While another handshake is
        //    under way nobody knows which of the two sessions the peer will use last.
        let from = usize::from(own) % count;
        let better = core.lane_rates.better(from, work).filter(|to| {
            let is_in_one = self.lanes().all(|lane| usize::from(lane) % count == from);
            let is_other = self.sessions.next.is_some() || self.initiation.is_some();
            is_in_one && !is_other && lanes.may_begin(now) && lanes.may_lead(from, *to)
        });
        let Some(to) = better else {
            return core.new_index(id, own);
        };
        let index = core.new_index(id, core.indices.emptiest_lane(to, count));
        core.lane_rates.shift(Some(from), Some(to), work);
        lanes.begin(Move {
            index,
            peer: id,
            from: own,
            until: None,
            work,
        });
        index
    }
}

impl Core {
    /// What a peer of which nothing is known may be expected to do.
    fn mean_work(&self) -> u64 {
        let all: u64 = self.lane_rates.each().sum();
        all / u64::try_from(self.indices.len().max(1)).unwrap_or(u64::MAX)
    }

    /// The index is in use no more.
    pub(super) fn free_index(&mut self, index: u32) {
        self.indices.remove(index);
        let mut lanes = self.shared.lanes().lock();
        if let Some(ended) = lanes.end(index)
            && lanes.of_peer(ended.peer).is_none()
        {
            // The peer has not moved.
            let count = lanes.count();
            let of = |lane| Some(usize::from(lane) % count);
            let (from, to) = (of(ended.from), of(lane(index)));
            self.lane_rates.shift(to, from, ended.work);
        }
    }
}

impl super::Device {
    /// What each lane had to do lately, in units of [`work`](crate::work) a second; nothing while there
    /// is one.
    pub fn lane_loads(&mut self, now: Time) -> Vec<u64> {
        let shared = Arc::clone(&self.core.shared);
        let (lanes, rates) = (shared.lanes().lock(), &mut self.core.lane_rates);
        rates.observe(now, &lanes, shared.lanes());
        match lanes.count() {
            1 => Vec::new(),
            _ => rates.each().collect(),
        }
    }
}

#[cfg(test)]
#[path = "balance_tests.rs"]
mod tests;
