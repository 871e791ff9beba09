//! Which lane a peer's next session is in: by the work that peers and lanes had lately.
//!
//! A new peer goes to the lane with the least work. One that has a session stays, unless the fuller of
//! the two lanes would afterwards have clearly less to do than its own has now: then no peer goes back
//! for as long as all have as much to do as now.

use std::sync::Arc;

use super::peer_state::PeerState;
use crate::Time;
use crate::device::common::Core;
use crate::lanes::{Move, lane};
use crate::session::Session;
use crate::shared::Shared;

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
