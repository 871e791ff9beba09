//! What a peer may do: how fast it may send and be sent to, how much in all, and until when.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::Time;

/// What a peer may do. The default is everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Bytes a second to the peer, as [`counted`] counts them. 0 is as `None`.
    pub to_peer: Option<u64>,
    /// Bytes a second from the peer.
    pub from_peer: Option<u64>,
    /// Bytes of UDP payload in both directions together, since the interface has the peer, or since
    /// its quota was given anew; in earlier processes, too, as [`Device::remember_used`] has it.
    ///
    /// [`Device::remember_used`]: crate::Device::remember_used
    pub quota: Option<u64>,
    /// Until when, since the Unix epoch.
    pub expires: Option<Duration>,
}

/// Whether a peer has access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// It has.
    #[default]
    Open,
    /// Its time is over.
    Expired,
    /// It has used its quota up.
    OverQuota,
}

impl Access {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Open, Self::Expired, Self::OverQuota];

    /// Its name in status and events.
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Expired => "expired",
            Self::OverQuota => "over_quota",
        }
    }
}

/// The allowance of a peer that has one, as the control thread has it.
pub(crate) struct Allowed {
    pub(crate) allowance: Allowance,
    /// Bytes that went before its quota was given.
    pub(crate) counted_from: u64,
    /// Bytes of the quota that were used in earlier processes.
    pub(crate) used_before: u64,
    pub(crate) access: Access,
}

/// The part of a peer's allowance that threads which process packets look at.
#[derive(Debug, Default)]
pub struct Limits {
    /// What is sent to the peer.
    pub to_peer: Limit,
    /// What the peer sends.
    pub from_peer: Limit,
    pub(crate) is_barred: AtomicBool,
}

/// What counts of an IP packet of this length: its bytes but for 40, 60 of IPv6, which are headers. So
/// a connection measures within 1 % the rate that was set.
pub fn counted(len: usize, is_ipv4: bool) -> u64 {
    let headers = if is_ipv4 { 40 } else { 60 };
    len.saturating_sub(headers).max(20) as u64
}

/// A limit of bytes a second, in one direction of one peer, as [`counted`] counts them.
///
/// What passes fills a queue that is only a number, and that empties at the rate. Who can wait does,
/// until it is empty ([`Self::charge`]). Who cannot is refused ([`Self::admit`]): the fuller the
/// queue, the more, and all when it is full. TCP then finds its rate by few losses, where it would
/// stop and start if all were refused at once.
///
/// A connection that lost much stops for a while. Its share of that while is kept for it, or it
/// would never reach the rate.
#[derive(Debug, Default)]
pub struct Limit {
    /// Bytes a second; 0: no limit.
    rate: AtomicU64,
    /// When the queue is empty, as [`Time`].
    empty_at: AtomicU64,
    /// When something was last refused, or had to wait.
    felt_at: AtomicU64,
    /// What was to be refused and was not yet, in 65,536th parts of a packet.
    owed: AtomicU32,
}

/// The queue is full with what passes in this time.
const DEPTH: Duration = Duration::from_millis(100);
/// What may pass at once after a rest, and after one that the limit caused.
const BURST: Duration = Duration::from_millis(50);
const KEPT: Duration = Duration::from_secs(1);
/// How long it is remembered that the limit was felt.
const FELT: Duration = Duration::from_secs(2);
/// Smaller packets are refused the less the smaller they are.
const WHOLE: u64 = 1400;
const ONE: u64 = 1 << 16;

impl Limit {
    /// Whether there is one.
    pub fn is_set(&self) -> bool {
        self.rate.load(Relaxed) != 0
    }

    /// Bytes a second; `None` for no limit.
    pub(crate) fn set(&self, rate: Option<u64>) {
        self.rate.store(rate.unwrap_or(0), Relaxed);
    }

    /// Lets a packet of so many bytes pass. Returns how long the next one is to wait, which may be
    /// not at all; `None` if there is no limit.
    pub fn charge(&self, now: Time, bytes: u64) -> Option<Duration> {
        let cost = self.cost(bytes)?;
        let until = self.fill(now, cost);
        let wait = until.since(now);
        if !wait.is_zero() {
            self.felt_at.store(now.0, Relaxed);
        }
        Some(wait)
    }

    /// Whether a packet of so many bytes may pass.
    pub fn admit(&self, now: Time, bytes: u64) -> bool {
        let Some(cost) = self.cost(bytes) else {
            return true;
        };
        let waits = Time(self.empty_at.load(Relaxed)).since(now);
        if self.refuses(waits, bytes) {
            self.felt_at.store(now.0, Relaxed);
            return false;
        }
        self.fill(now, cost);
        true
    }

    /// Nanoseconds for so many bytes.
    fn cost(&self, bytes: u64) -> Option<u64> {
        let rate = self.rate.load(Relaxed);
        let nanos = (u128::from(bytes) * 1_000_000_000).checked_div(rate.into())?;
        Some(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Fills the queue; returns when it will be empty.
    fn fill(&self, now: Time, cost: u64) -> Time {
        let was_felt = now.since(Time(self.felt_at.load(Relaxed))) < FELT;
        let rest = if was_felt { KEPT } else { BURST };
        let floor = now.0.saturating_sub(nanos(rest));
        let fill = |at: u64| at.max(floor).saturating_add(cost);
        let before = self
            .empty_at
            .fetch_update(Relaxed, Relaxed, |at| Some(fill(at)));
        Time(before.map_or(0, fill))
    }

    fn refuses(&self, waits: Duration, bytes: u64) -> bool {
        if waits >= DEPTH {
            return true;
        }
        let part = nanos(waits) * ONE / nanos(DEPTH);
        let part = u32::try_from(part * bytes / WHOLE).unwrap_or(u32::MAX >> 8);
        let one = u32::try_from(ONE).unwrap_or(u32::MAX);
        let owed = self.owed.fetch_add(part, Relaxed).saturating_add(part);
        let refuses = owed >= one;
        if refuses {
            self.owed.store((owed - one).min(one), Relaxed);
        }
        refuses
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "allowance_tests.rs"]
mod tests;
