use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::time::Duration;

use crate::Time;
use crate::limits::{LIMITER_BURST, LIMITER_RATE, LIMITER_SOURCES};

/// The cost of a message, in nanoseconds of a source's time.
const COST: u64 = 1_000_000_000 / LIMITER_RATE as u64;
const FULL: u64 = COST * LIMITER_BURST as u64;
/// A bucket that was not used for this long is full again and can be forgotten.
const GENERATION: Duration = Duration::from_secs(1);
const _: () = assert!(FULL <= 1_000_000_000);

/// A token bucket for each source, by which it is seen that one sends more than its part (whitepaper
/// 5.3).
///
/// Two generations of at most LIMITER_SOURCES buckets each bound the memory (invariant 5);
/// forgetting is one swap. A full generation ends early: the limiter then forgets sources that were
/// silent for long, and refuses none for being new.
pub(crate) struct Limiter<S> {
    young: HashMap<S, TokenBucket>,
    old: HashMap<S, TokenBucket>,
    young_since: Time,
}

impl<S> Default for Limiter<S> {
    fn default() -> Self {
        Self {
            young: HashMap::new(),
            old: HashMap::new(),
            young_since: Time::default(),
        }
    }
}

/// An IPv4 host, or an IPv6 /64: a host has all addresses of its /64.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum SourceHost {
    V4(u32),
    V6(u128),
}

impl SourceHost {
    pub(crate) fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => Self::V4(ip.into()),
            IpAddr::V6(ip) => Self::V6(u128::from(ip) >> 64),
        }
    }
}

#[derive(Clone, Copy)]
struct TokenBucket {
    /// Nanoseconds to spend.
    tokens: u64,
    at: Time,
}

impl<S: Copy + Eq + Hash> Limiter<S> {
    /// Whether [`Self::allow`] would say yes.
    pub(crate) fn may_allow(&self, now: Time, source: S) -> bool {
        self.tokens(now, source) >= COST
    }

    /// Takes a token of the source's bucket; false if it has none.
    pub(crate) fn allow(&mut self, now: Time, source: S) -> bool {
        let tokens = self.tokens(now, source);
        let age = now.since(self.young_since);
        let full = self.young.len() >= LIMITER_SOURCES && !self.young.contains_key(&source);
        if full || age >= GENERATION {
            self.old = std::mem::take(&mut self.young);
            if age >= 2 * GENERATION {
                self.old.clear();
            }
            self.young_since = now;
        }
        let left = tokens.checked_sub(COST);
        let tokens = left.unwrap_or(tokens);
        self.young.insert(source, TokenBucket { tokens, at: now });
        left.is_some()
    }

    fn tokens(&self, now: Time, source: S) -> u64 {
        let known = self.young.get(&source).or_else(|| self.old.get(&source));
        known.map_or(FULL, |bucket| {
            let earned = u64::try_from(now.since(bucket.at).as_nanos()).unwrap_or(FULL);
            bucket.tokens.saturating_add(earned).min(FULL)
        })
    }
}

#[cfg(test)]
#[path = "limiter_tests.rs"]
mod tests;
