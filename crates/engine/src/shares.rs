//! Which peer's datagrams are dropped while more arrives than one thread processes.
//!
//! Everything arrives at one socket, in one queue. While that queue never becomes empty, the peer
//! that sends most decides what the others get. Datagrams of peers that exceed an equal share are
//! then dropped before they are opened: few at first, which is enough for TCP, and more the longer
//! the queue stands.
//!
//! When the socket has no more room, the kernel drops datagrams of all peers, and what waits, waits
//! behind a full socket. From then on as much is dropped of those that send most as keeps the queue
//! short, also where there is only one of them beside peers that send little.

use std::collections::HashMap;
use std::time::Duration;

use adit_proto::Time;

/// How long the queue has stood before anything is dropped, and how long shares hold.
const INTERVAL: Duration = Duration::from_millis(8);
/// A peer that sends less than this part of all is no reason to drop anything of others.
const BULK: u64 = 128;
/// Nothing is dropped of a peer that lately sent at most this many eighths of an equal share.
const FAIR_EIGHTHS: u64 = 9;
/// The longer the queue stands, the more is dropped of what arrives: one part in this many more in
/// each interval, and so many parts at most.
const STEP: u64 = 64;
const MAX_STEPS: u64 = 16;
/// The same in a flood: to drop a datagram costs less than half of what it costs to process it, so
/// that with more there would be little time left to process any.
const MAX_FLOOD_STEPS: u64 = 48;
/// A flood is over when for so long the socket had room, and nothing was dropped.
const FLOOD: Duration = Duration::from_secs(2);
/// Peers that are told apart. With more, none can have much more than an equal share for long.
const MAX_PEERS: usize = 4096;

/// What each peer sent lately to one interface.
#[derive(Default)]
pub(crate) struct Shares {
    /// The queue has not been empty lately.
    stands: bool,
    /// When the present interval began.
    begun: Time,
    peers: HashMap<u32, Arrived>,
    /// Bytes that were processed in it, and dropped.
    processed: u64,
    dropped: u64,
    /// Bytes that each peer may send in it.
    share: Option<u64>,
    /// How many parts of what arrives are to be dropped.
    steps: u64,
    /// When the flood is over, if there is one.
    flood_until: Option<Time>,
    /// In a flood: the queue was empty in this interval.
    emptied: bool,
}

/// Bytes of a peer.
#[derive(Default)]
struct Arrived {
    /// In this interval.
    now: u64,
    /// In the last intervals: less of them the longer they are past.
    lately: u64,
    exceeds: bool,
}

impl Shares {
    /// So many bytes of a peer arrived. Whether they are to be processed.
    pub(crate) fn admit(&mut self, peer: u32, bytes: usize) -> bool {
        if !self.stands {
            return true;
        }
        if self.peers.len() == MAX_PEERS && !self.peers.contains_key(&peer) {
            return true;
        }
        let bytes = bytes as u64;
        let arrived = self.peers.entry(peer).or_default();
        let is_admitted = !arrived.exceeds || self.share.is_none_or(|share| arrived.now < share);
        arrived.now += bytes;
        *if is_admitted {
            &mut self.processed
        } else {
            &mut self.dropped
        } += bytes;
        is_admitted
    }

    /// A poll is over. It left nothing in the socket, or perhaps something. The socket has lost
    /// datagrams, or not.
    pub(crate) fn poll_ended(&mut self, now: Time, emptied: bool, lost: bool) {
        if lost {
            self.flood_until = Some(now + FLOOD);
        }
        match self.flood_until {
            Some(until) if now < until => self.poll_of_flood_ended(now, emptied),
            _ => {
                self.flood_until = None;
                self.steps = self.steps.min(MAX_STEPS);
                self.usual_poll_ended(now, emptied);
            }
        }
    }

    fn usual_poll_ended(&mut self, now: Time, emptied: bool) {
        if emptied {
            if std::mem::take(&mut self.stands) {
                self.peers.clear();
                self.begin(now);
                self.share = None;
                self.steps /= 2;
            }
            return;
        }
        if !self.stands {
            self.stands = true;
            self.begin(now);
        } else if now.since(self.begun) >= INTERVAL {
            self.share = self.fair_share();
            self.steps = match self.share {
                Some(_) => (self.steps + 1).min(MAX_STEPS),
                None => self.steps / 2,
            };
            self.begin(now);
        }
    }

    /// If shares ended whenever the queue is empty, a flood would fill the socket again before the
    /// next ones. So they last, and each interval makes them a little larger or smaller.
    fn poll_of_flood_ended(&mut self, now: Time, emptied: bool) {
        self.emptied |= emptied;
        if !std::mem::replace(&mut self.stands, true) {
            self.begin(now);
        } else if now.since(self.begun) >= INTERVAL {
            if self.dropped > 0 {
                self.flood_until = Some(now + FLOOD);
            }
            self.steps = match std::mem::take(&mut self.emptied) {
                true => self.steps.saturating_sub(1),
                false => (self.steps + 2).min(MAX_FLOOD_STEPS),
            };
            let share = self.fair_share();
            self.share = share.filter(|_| self.steps > 0);
            self.begin(now);
        }
    }

    fn begin(&mut self, now: Time) {
        self.begun = now;
        self.processed = 0;
        self.dropped = 0;
    }

    /// What each peer that exceeds an equal share may send in the next interval; `None` if there is
    /// none. The peers begin that interval.
    fn fair_share(&mut self) -> Option<u64> {
        // 1. Peers that sent more than others for a while exceed their shares.
        self.peers.retain(|_, arrived| {
            arrived.lately = arrived.lately * 7 / 8 + arrived.now;
            arrived.lately > 0
        });
        let all: u64 = self.peers.values().map(|arrived| arrived.lately).sum();
        let bulk = |arrived: &&Arrived| arrived.lately > all / BULK;
        let count = self.peers.values().filter(bulk).count() as u64;
        let sum: u64 = self
            .peers
            .values()
            .filter(bulk)
            .map(|arrived| arrived.lately)
            .sum();
        // In a flood, those that send little count as well: what they send was lost until now.
        let count = match self.flood_until {
            Some(_) => self.peers.len() as u64,
            None => count,
        };
        let mut arrived: Vec<u64> = self.peers.values().map(|arrived| arrived.now).collect();
        let mut exceeds = false;
        for arrived in self.peers.values_mut() {
            arrived.exceeds = count > 1 && arrived.lately * count * 8 > sum * FAIR_EIGHTHS;
            arrived.now = 0;
            exceeds |= arrived.exceeds;
        }
        if !exceeds {
            return None;
        }
        // 2. Less than was processed until enough is dropped, then a little more: dropping costs
        //    time, too, and the queue of a flood stands whatever is dropped.
        let wanted = (self.processed + self.dropped) * (self.steps + 1) / STEP;
        let mut left = match wanted.checked_sub(self.dropped) {
            Some(more) => self.processed.saturating_sub(more),
            None => self.processed + self.processed / STEP,
        };
        // 3. The least get what they want, the others equal parts of what is left.
        arrived.sort_unstable();
        let mut peers = arrived.len() as u64;
        for bytes in arrived {
            let share = left / peers;
            if bytes > share {
                return Some(share);
            }
            left -= bytes;
            peers -= 1;
        }
        None
    }
}

#[cfg(test)]
#[path = "shares_tests.rs"]
mod tests;
