//! What peers may do, and the end of their access.
//!
//! Threads that process packets heed limits of the rate ([`Limits`](crate::Limits)). Time and quota are looked at
//! here, by a timer of the peer: as often as what is left may be gone within a second.

use std::sync::Arc;
use std::time::Duration;

use super::peer_state::PeerState;
use super::timer_table::Timer;
use super::{Device, Liveness};
use crate::allowance::{Access, Allowance, Allowed};
use crate::config::PeerAllowance;
use crate::device::common::Core;
use crate::device::output::{Output, PeerEvent};
use crate::secret::PublicKey;
use crate::{Tai64N, Time};

/// Between two looks at the quota at least.
const SOON: Duration = Duration::from_secs(1);
/// Between two looks at most: the clock may be set.
const LATE: Duration = Duration::from_secs(60);
/// No peer sends and gets more bytes a second.
const FASTEST: u64 = 5_000_000_000;

impl Device {
    /// Sets what a peer may do from now on. With `anew`, its quota counts from now. Returns what it might do
    /// before; `None` if there is no such peer.
    pub fn set_allowance(
        &mut self,
        now: Time,
        wall: Tai64N,
        (key, allowance, anew): (&PublicKey, &Allowance, bool),
    ) -> Option<Allowance> {
        self.set_clock(now, wall);
        let id = self.by_key.get(key).copied();
        let (id, state) = id.and_then(|id| Some((id, self.peers.get_mut(&id)?)))?;
        let before = state.allowance.take();
        let old = before
            .as_ref()
            .map_or(Allowance::default(), |it| it.allowance);
        let went = state.traffic();
        state.allowance = (*allowance != Allowance::default()).then(|| {
            let kept = before.as_ref().filter(|_| !anew);
            Box::new(Allowed {
                allowance: *allowance,
                counted_from: kept.map_or(if anew { went } else { 0 }, |it| it.counted_from),
                access: before.as_ref().map_or(Access::Open, |it| it.access),
            })
        });
        match state.allowance {
            Some(_) => self.limited.insert(id),
            None => self.limited.remove(&id),
        };
        let was_barred = before.is_some_and(|it| it.access != Access::Open);
        state.look_at_access(&mut self.core, now, wall, was_barred);
        self.reschedule(id);
        Some(old)
    }
}

impl Device {
    /// The peers that may not do everything, from the one with this [`Peer::id`](crate::Peer::id) on, with
    /// their ids.
    pub fn limited_from(&self, id: u32) -> impl Iterator<Item = (u32, PublicKey)> {
        let ids = self.limited.range(id..);
        ids.filter_map(|id| Some((*id, self.peers.get(id)?.public_key())))
    }
}

impl PeerState {
    /// Bytes that went either way.
    fn traffic(&self) -> u64 {
        self.peer.rx_bytes().saturating_add(self.peer.tx_bytes())
    }

    pub(super) fn is_barred(&self) -> bool {
        (self.allowance.as_ref()).is_some_and(|it| it.access != Access::Open)
    }

    /// The timer has run out.
    pub(super) fn access_due(&mut self, core: &mut Core, now: Time, wall: Tai64N) {
        let was_barred = self.is_barred();
        self.look_at_access(core, now, wall, was_barred);
    }

    fn look_at_access(&mut self, core: &mut Core, now: Time, wall: Tai64N, was_barred: bool) {
        let went = self.traffic();
        let Some(allowed) = &mut self.allowance else {
            self.timers.disarm(Timer::Access);
            self.peer.set_allowance(&Allowance::default(), false);
            if was_barred {
                self.tell_access(core, Access::Open);
            }
            return;
        };
        let Allowance { quota, expires, .. } = allowed.allowance;
        let lasts = expires.map(|at| at.saturating_sub(wall.to_unix()));
        let used = went.saturating_sub(allowed.counted_from);
        let left = quota.map(|quota| quota.saturating_sub(used));
        allowed.access = match (lasts, left) {
            (Some(Duration::ZERO), _) => Access::Expired,
            (_, Some(0)) => Access::OverQuota,
            _ => Access::Open,
        };
        let access = allowed.access;
        // A quota may not be used up by the time that the fastest peer needs for it.
        let by_quota = left.map(|left| Duration::from_secs(left / FASTEST).max(SOON));
        let next = lasts.into_iter().chain(by_quota).filter(|it| !it.is_zero());
        match next.min() {
            Some(next) => self.timers.arm(Timer::Access, now + next.min(LATE)),
            None if expires.is_some() => self.timers.arm(Timer::Access, now + LATE),
            None => self.timers.disarm(Timer::Access),
        }
        let is_barred = access != Access::Open;
        self.peer.set_allowance(&allowed.allowance, is_barred);
        if is_barred && !was_barred {
            self.end_access(core);
        }
        if is_barred != was_barred {
            self.tell_access(core, access);
        }
    }

    /// Nothing goes either way any more.
    fn end_access(&mut self, core: &mut Core) {
        self.end_handshake(core);
        self.expire_sessions(core);
        self.drop_sessions(core);
        for timer in [Timer::NoAnswer, Timer::Keepalive, Timer::ZeroKeys] {
            self.timers.disarm(timer);
        }
        core.push(Output::DropStaged {
            peer: Arc::clone(&self.peer),
            given_up_after: None,
        });
        self.tell_liveness(core, Liveness::Gone);
    }

    fn tell_access(&mut self, core: &mut Core, access: Access) {
        let peer = Arc::clone(&self.peer);
        core.push(Output::Event(PeerEvent::Access { peer, access }));
    }

    pub(super) fn allowance_status(&self) -> Option<PeerAllowance> {
        let it = self.allowance.as_ref()?;
        Some(PeerAllowance {
            allowance: it.allowance,
            used: self.traffic().saturating_sub(it.counted_from),
            access: it.access,
        })
    }
}
