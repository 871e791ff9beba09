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
use crate::limits::MAX_QUOTAS_REMEMBERED;
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
        let remembered = self.remembered.used.remove(key);
        let used_before = remembered.filter(|_| allowance.quota.is_some());
        state.allowance = (*allowance != Allowance::default()).then(|| {
            let (counted_from, used_before) = match &before {
                _ if anew => (went, 0),
                Some(it) => (it.counted_from, it.used_before),
                None => (0, used_before.unwrap_or(0)),
            };
            Box::new(Allowed {
                allowance: *allowance,
                counted_from,
                used_before,
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

    /// What these peers used of their quotas in earlier processes, which counts once they have a quota
    /// again. At most MAX_QUOTAS_REMEMBERED; call it before the first change.
    pub fn remember_used(&mut self, peers: impl IntoIterator<Item = (PublicKey, u64)>) {
        let peers = peers.into_iter().take(MAX_QUOTAS_REMEMBERED);
        self.remembered.used.extend(peers);
    }

    /// All peers with a quota are known: who has none now used nothing.
    pub fn forget_used(&mut self) {
        self.remembered.used.clear();
    }

    /// What peers have used of their quotas: what the next process should remember. At most
    /// MAX_QUOTAS_REMEMBERED, any of them.
    pub fn used(&self) -> Vec<(PublicKey, u64)> {
        let of_quotas = self.limited.iter().filter_map(|id| {
            let state = self.peers.get(id)?;
            let allowed = state.allowance.as_ref()?;
            allowed.allowance.quota?;
            Some((state.public_key(), state.used(allowed)))
        });
        let not_yet = self.remembered.used.iter().map(|(key, used)| (*key, *used));
        let all = not_yet.chain(of_quotas);
        all.take(MAX_QUOTAS_REMEMBERED).collect()
    }

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

    /// Bytes of its quota that are used.
    fn used(&self, allowed: &Allowed) -> u64 {
        let here = self.traffic().saturating_sub(allowed.counted_from);
        here.saturating_add(allowed.used_before)
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
        let used = (self.allowance.as_ref()).map_or(0, |it| self.used(it));
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
            used: self.used(it),
            access: it.access,
        })
    }
}
