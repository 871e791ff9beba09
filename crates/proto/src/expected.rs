//! Handshake messages that are expected under load.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;

use crate::Time;
use crate::limits::{KNOWN_RATE, KNOWN_RATE_OF_ALL, RESPONSES_EXPECTED};

/// The cost of an initiation, in nanoseconds of its peer's time, and of that of all peers.
const COST: u64 = 1_000_000_000 / KNOWN_RATE as u64;
const COST_OF_ALL: u64 = 1_000_000_000 / KNOWN_RATE_OF_ALL as u64;
/// Time that all peers together may have saved.
const SAVED: u64 = 100_000_000;

/// Which messages are worth a look under load though their senders have shown no cookie: a handshake
/// that waits for one takes five seconds longer.
///
/// - Responses to initiations of ours: a sender that has not seen the initiation cannot guess its index.
///   RESPONSES_EXPECTED may pass for each.
/// - Initiations from the addresses of peers that have a session. These can be forged: what passes is
///   bounded, and what does not is treated like any other. There are no more entries than peers
///   (invariant 5).
#[derive(Default)]
pub(crate) struct Expected {
    /// How many more may pass, by the receiver index.
    responses: BTreeMap<u32, u8>,
    /// By a secret hash of address and port.
    peers: BTreeMap<u64, AtAddress>,
    hasher: RandomState,
    /// The nanoseconds until which the time of all peers is used up.
    all: u64,
}

struct AtAddress {
    peers: u32,
    /// Time that is used up, as `all` has it.
    used: u64,
}

impl Expected {
    pub(crate) fn set_response(&mut self, index: u32, is_expected: bool) {
        match is_expected {
            true => self.responses.insert(index, RESPONSES_EXPECTED),
            false => self.responses.remove(&index),
        };
    }

    pub(crate) fn has_response(&self, index: u32) -> bool {
        self.responses.contains_key(&index)
    }

    /// A peer is there now. Returns the place of its entry, which is `before` next time.
    pub(crate) fn set_peer(&mut self, before: Option<u64>, now: Option<SocketAddr>) -> Option<u64> {
        let now = now.map(|addr| self.hasher.hash_one(addr));
        if before == now {
            return now;
        }
        if let Some(now) = now {
            let entry = self.peers.entry(now);
            entry.or_insert(AtAddress { peers: 0, used: 0 }).peers += 1;
        }
        if let Some(Entry::Occupied(mut entry)) = before.map(|before| self.peers.entry(before)) {
            entry.get_mut().peers -= 1;
            if entry.get().peers == 0 {
                entry.remove();
            }
        }
        now
    }

    /// Whether [`Self::pass`] would say yes. `receiver` is that of a response.
    pub(crate) fn may_pass(&self, now: Time, from: SocketAddr, receiver: Option<u32>) -> bool {
        if let Some(receiver) = receiver {
            return self.responses.get(&receiver).is_some_and(|left| *left > 0);
        }
        let known = self.peers.get(&self.hasher.hash_one(from));
        self.all <= now.0 + SAVED && known.is_some_and(|known| known.used <= now.0)
    }

    /// Lets one pass, if one may.
    pub(crate) fn pass(&mut self, now: Time, from: SocketAddr, receiver: Option<u32>) -> bool {
        if !self.may_pass(now, from, receiver) {
            return false;
        }
        if let Some(left) = receiver.and_then(|index| self.responses.get_mut(&index)) {
            *left -= 1;
        } else if let Some(known) = self.peers.get_mut(&self.hasher.hash_one(from)) {
            known.used = now.0 + COST;
            self.all = now.0.max(self.all) + COST_OF_ALL;
        }
        true
    }
}
