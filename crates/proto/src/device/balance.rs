//! Which receive queue a peer's next session is in: by the work that peers and receive queues had lately.
//!
//! A new peer goes to the receive queue with the least work. One that has a session stays, unless the fuller of
//! the two receive queues would afterwards have clearly less to do than its own has now: then no peer goes back
//! for as long as all have as much to do as now.

use std::sync::Arc;

use super::peer_state::PeerState;
use crate::Time;
use crate::device::common::Core;
use crate::rx_queues::{Move, rx_queue};
use crate::session::Session;
use crate::shared::Shared;

impl PeerState {
    /// The receive queues of all indices that the peer has: that of the newest session first.
    fn rx_queues(&self) -> impl Iterator<Item = u8> {
        let of_sessions = self.sessions.all().map(|it| it.local_index());
        let of_initiation = self.initiation.as_ref().map(|created| created.index);
        of_sessions.chain(of_initiation).map(rx_queue)
    }

    pub(super) fn sessions_in_other_rx_queues(
        &self,
        own: &Session,
    ) -> impl Iterator<Item = &Session> {
        let own = rx_queue(own.local_index());
        let others = self.sessions.all().map(Arc::as_ref);
        others.filter(move |other| rx_queue(other.local_index()) != own)
    }

    /// In which receive queue data of the peer arrives.
    pub(super) fn rx_queue(&self) -> Option<u8> {
        self.rx_queues().next()
    }

    /// Goes on with moves that another process began.
    pub(super) fn go_on_moving(&self, shared: &Shared) {
        let (mut rx_queues, peer) = (shared.rx_queues().lock(), self.peer.id());
        let mut begin = |index, from, born: Option<Time>| {
            rx_queues.begin(Move {
                index,
                peer,
                from,
                until: None,
                work: 0,
            });
            // Without one it is that of a handshake.
            if born.is_some() {
                rx_queues.has_session(index, born);
            }
        };
        let mut before = None;
        let sessions = [&self.sessions.next, &self.sessions.current];
        for session in sessions.into_iter().flatten().filter(|it| it.moves()) {
            let others = self.sessions_in_other_rx_queues(session);
            if let Some(last) = others.max_by_key(|other| other.born()) {
                let from = rx_queue(last.local_index());
                begin(session.local_index(), from, Some(last.born()));
                before = Some(from);
            }
        }
        if let Some(created) = &self.initiation {
            let own = self
                .rx_queue()
                .filter(|own| *own != rx_queue(created.index));
            if let Some(from) = own.or(before) {
                begin(created.index, from, None);
            }
        }
    }

    /// An index for a new handshake.
    pub(super) fn new_index(&mut self, core: &mut Core, now: Time) -> u32 {
        let (id, shared) = (self.peer.id(), Arc::clone(&core.shared));
        let mut rx_queues = shared.rx_queues().lock();
        let count = rx_queues.count();
        self.rate.observe(now, self.peer.work());
        core.rx_queue_rates
            .observe(now, &rx_queues, shared.rx_queues());
        let work = self.rate.a_second;
        // 1. One that moves goes on doing so: what it sends on this session comes after all others.
        if let Some(under_way) = rx_queues.of_peer(id) {
            let index = core.new_index(id, rx_queue(under_way.index));
            rx_queues.begin(Move { index, ..under_way });
            return index;
        }
        // 2. A new one.
        let Some(own) = self.rx_queue() else {
            let to = core.rx_queue_rates.for_new_peer();
            let work = match self.rate.measured {
                0 => core.mean_work(),
                _ => work,
            };
            core.rx_queue_rates.shift(None, to, work);
            let rx_queue = core
                .indices
                .emptiest_rx_queue(to.unwrap_or(0), to.map_or(1, |_| count));
            return core.new_index(id, rx_queue);
        };
        // 3. One that stays, or that leaves the only receive queue that it is in. While another handshake is
        //    under way nobody knows which of the two sessions the peer will use last.
        let from = usize::from(own) % count;
        let better = core.rx_queue_rates.better(from, work).filter(|to| {
            let is_in_one = self
                .rx_queues()
                .all(|rx_queue| usize::from(rx_queue) % count == from);
            let is_other = self.sessions.next.is_some() || self.initiation.is_some();
            is_in_one && !is_other && rx_queues.may_begin(now) && rx_queues.may_lead(from, *to)
        });
        let Some(to) = better else {
            return core.new_index(id, own);
        };
        let index = core.new_index(id, core.indices.emptiest_rx_queue(to, count));
        core.rx_queue_rates.shift(Some(from), Some(to), work);
        rx_queues.begin(Move {
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
    /// The work that a peer of which nothing is known may be expected to do.
    fn mean_work(&self) -> u64 {
        let all: u64 = self.rx_queue_rates.each().sum();
        all / u64::try_from(self.indices.len().max(1)).unwrap_or(u64::MAX)
    }

    /// The index is in use no more.
    pub(super) fn free_index(&mut self, index: u32) {
        self.indices.remove(index);
        let mut rx_queues = self.shared.rx_queues().lock();
        if let Some(ended) = rx_queues.end(index)
            && rx_queues.of_peer(ended.peer).is_none()
        {
            // The peer has not moved.
            let count = rx_queues.count();
            let of = |rx_queue| Some(usize::from(rx_queue) % count);
            let (from, to) = (of(ended.from), of(rx_queue(index)));
            self.rx_queue_rates.shift(to, from, ended.work);
        }
    }
}

impl super::Device {
    /// Load of each receive queue lately, in units of [`work`](crate::work) a second; nothing while there
    /// is one.
    pub fn rx_queue_loads(&mut self, now: Time) -> Vec<u64> {
        let shared = Arc::clone(&self.core.shared);
        let (rx_queues, rates) = (shared.rx_queues().lock(), &mut self.core.rx_queue_rates);
        rates.observe(now, &rx_queues, shared.rx_queues());
        match rx_queues.count() {
            1 => Vec::new(),
            _ => rates.each().collect(),
        }
    }
}
