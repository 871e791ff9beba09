//! Which peer's datagrams are dropped while more arrives than one thread processes.
//!
//! Everything arrives at one socket, in one queue. While that queue never becomes empty, the peer
//! that sends most decides what the others get. Datagrams of peers that exceed an equal share are
//! then dropped before they are opened: few at first, which is enough for TCP, and more the longer
//! the queue stands. What a peer sent shortly before counts, too: a peer that sends in bursts would
//! otherwise seem to exceed its share in each of them.
//!
//! When what waits waits for too long, or the socket has no more room, so that the kernel drops
//! datagrams of all peers, there is a flood: as much is dropped of those that send most as keeps the
//! queue short, also where there is only one of them beside peers that send little.
//!
//! What a peer sends is weighed by what it takes to process it: small datagrams take more time than
//! their bytes.
//!
//! Nothing is authentic yet that is weighed here. A receiver index is charged to its peer only where
//! the datagram comes from the peer's endpoint, which an authentic one has told. What comes from
//! elsewhere has an account of its own: it may be forged, or the peer has moved. In the latter case
//! the first datagram that is opened changes the endpoint.

use std::collections::HashMap;
use std::time::Duration;

use adit_proto::Time;

/// How long the queue has stood before anything is dropped, and how long shares hold.
const INTERVAL: Duration = Duration::from_millis(8);
/// A peer that sends less than this part of all is no reason to drop anything of others.
const BULK: u64 = 128;
/// What a peer sent lately is what it sends in so many intervals, if it sends steadily.
const INTERVALS: u64 = 8;
/// When the queue has not stood for so long, what peers sent is forgotten.
const MEMORY: Duration = Duration::from_millis(64);
/// Nothing is dropped of a peer that lately sent at most this many eighths of an equal share.
const FAIR_EIGHTHS: u64 = 9;
/// The longer the queue stands, the more is dropped of what arrives: one part in this many more in
/// each interval, and so many parts at most.
const STEP: u64 = 64;
const MAX_STEPS: u64 = 16;
/// The same in a flood: to drop a datagram costs less than half of what it costs to process it, so
/// that with more there would be little time left to process any.
const MAX_FLOOD_STEPS: u64 = 48;
/// There is a flood when messages have waited for longer than this throughout so many intervals, beside
/// those of another peer: what was dropped in them was not heeded. From then on they are to wait no
/// longer than a third of it.
const UNHEEDED: u64 = 8;
const LONG: Duration = Duration::from_millis(3);
const SHORT: Duration = Duration::from_millis(1);
/// A flood is over when for so long the socket had room, nothing waited for long, and nothing was
/// dropped.
const FLOOD: Duration = Duration::from_secs(2);
/// Peers that are told apart. With more, none can have much more than an equal share for long.
const MAX_PEERS: usize = 4096;
/// The cost of a message and of each of its datagrams, beside that of its bytes, in bytes.
const PER_MESSAGE: usize = 2500;
const PER_DATAGRAM: usize = 100;

/// The result of a poll of a socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PollResult {
    /// Messages that it took.
    pub(crate) taken: u64,
    /// The poll left nothing.
    pub(crate) emptied: bool,
    /// How many messages it left, where that is known.
    pub(crate) waiting: Option<u64>,
    /// The socket has lost datagrams.
    pub(crate) lost: bool,
}

impl PollResult {
    pub(crate) const NOTHING: Self = Self {
        taken: 0,
        emptied: true,
        waiting: None,
        lost: false,
    };
}

/// To whom a message is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Account {
    /// The peer that its receiver index names.
    pub(crate) peer: u32,
    /// Whether it comes from the peer's endpoint.
    pub(crate) is_known: bool,
}

/// The cost of processing a message, in bytes that take as long.
pub(crate) fn work(datagrams: usize, bytes: usize) -> u64 {
    (PER_MESSAGE + PER_DATAGRAM * datagrams + bytes) as u64
}

/// The shares of peers: how much each sent lately to one socket.
#[derive(Default)]
pub(crate) struct Shares {
    /// The queue has not been empty lately.
    stands: bool,
    /// When the present interval began.
    begun: Time,
    /// Messages that were taken in it, and the fewest that waited.
    taken: u64,
    fewest: Option<u64>,
    /// The work that each peer may send in it.
    share: Option<u64>,
    /// How many parts of what arrives are to be dropped.
    steps: u64,
    peers: HashMap<Account, PeerWork>,
    /// Since when [`PeerWork::now`] is counted, and work that was done and dropped since then.
    counted_from: Time,
    processed: u64,
    dropped: u64,
    /// Until when anything is counted, if the queue does not stand again.
    counts_until: Option<Time>,
    /// In how many intervals, one after the other, messages waited for too long.
    long: u64,
    /// When the flood is over, if there is one.
    flood_until: Option<Time>,
    /// In a flood: the queue was empty in this interval, and how long messages waited in the last.
    emptied: bool,
    delayed: Duration,
}

/// Work for a peer.
#[derive(Default)]
struct PeerWork {
    /// In this interval, and in a part of one before it.
    now: u64,
    /// In the intervals before: less of them the longer they are past.
    lately: u64,
    exceeds: bool,
}

impl Shares {
    /// Whether [`Self::admit`] is to be asked.
    pub(crate) fn are_in_force(&self) -> bool {
        self.counts_until.is_some()
    }

    /// Counts work that arrived. Whether it is to be done.
    pub(crate) fn admit(&mut self, account: Account, work: u64) -> bool {
        if !self.are_in_force() {
            return true;
        }
        if self.peers.len() == MAX_PEERS && !self.peers.contains_key(&account) {
            return true;
        }
        let arrived = self.peers.entry(account).or_default();
        let is_admitted = !arrived.exceeds || self.share.is_none_or(|share| arrived.now < share);
        arrived.now += work;
        *if is_admitted {
            &mut self.processed
        } else {
            &mut self.dropped
        } += work;
        is_admitted
    }

    /// A poll is over.
    pub(crate) fn poll_ended(&mut self, now: Time, found: PollResult) {
        self.taken += found.taken;
        if let Some(waiting) = found.waiting {
            self.fewest = Some(self.fewest.map_or(waiting, |fewest| fewest.min(waiting)));
        }
        if found.lost {
            self.flood_until = Some(now + FLOOD);
        }
        match self.flood_until {
            Some(until) if now < until => self.poll_of_flood_ended(now, found.emptied),
            _ => {
                self.flood_until = None;
                self.steps = self.steps.min(MAX_STEPS);
                self.usual_poll_ended(now, found.emptied);
            }
        }
    }

    fn usual_poll_ended(&mut self, now: Time, emptied: bool) {
        if self.counts_until.is_some_and(|until| until <= now) {
            self.counts_until = None;
            self.peers.clear();
        }
        if emptied {
            self.long = 0;
            if std::mem::take(&mut self.stands) {
                self.share = None;
                self.steps /= 2;
            }
            if self.are_in_force() && now.since(self.counted_from) >= INTERVAL {
                self.age(now);
            }
            return;
        }
        if !self.stands {
            self.stand(now);
        } else if now.since(self.begun) >= INTERVAL {
            let delay = self.delay(now);
            self.share = self.fair_share(now);
            // Peers with equal shares may let their packets wait, as may one alone, and TCP heeds a
            // few drops.
            let is_long = delay.is_some_and(|it| it > LONG) && self.are_unequal();
            self.long = if is_long { self.long + 1 } else { 0 };
            if self.long == UNHEEDED {
                self.long = 0;
                self.flood_until = Some(now + FLOOD);
                self.delayed = delay.unwrap_or_default();
            }
            self.steps = match self.share {
                Some(_) => (self.steps + 1).min(MAX_STEPS),
                None => self.steps / 2,
            };
            self.begin(now);
        }
    }

    /// Whether a peer sent more lately than the others, those that send little included.
    fn are_unequal(&self) -> bool {
        let lately = self.peers.values().map(|arrived| arrived.lately);
        let (count, all) = (self.peers.len() as u64, lately.clone().sum());
        lately.into_iter().any(|it| is_unfair(it, count, all))
    }

    /// How long messages waited in this interval at least, where that is known: as long as it takes
    /// to take so many.
    fn delay(&self, now: Time) -> Option<Duration> {
        let passed = u64::try_from(now.since(self.begun).as_nanos()).unwrap_or(u64::MAX);
        let nanos = passed.saturating_mul(self.fewest?) / self.taken.max(1);
        Some(Duration::from_nanos(nanos))
    }

    /// If shares ended whenever the queue is empty, a flood would fill the socket again before the
    /// next ones. So they last, and each interval makes them a little larger or smaller.
    fn poll_of_flood_ended(&mut self, now: Time, emptied: bool) {
        self.emptied |= emptied;
        if !self.stands {
            self.stand(now);
        } else if now.since(self.begun) >= INTERVAL {
            if self.dropped > 0 {
                self.flood_until = Some(now + FLOOD);
            }
            let emptied = std::mem::take(&mut self.emptied);
            let change = match self.delay(now) {
                Some(delay) => {
                    let before = std::mem::replace(&mut self.delayed, delay);
                    change_of_steps(self.steps, before, delay)
                }
                None if emptied => -1,
                None => 2,
            };
            let steps = self.steps.saturating_add_signed(change);
            self.steps = steps.min(MAX_FLOOD_STEPS);
            let share = self.fair_share(now);
            if !self.peers.values().any(|arrived| arrived.exceeds) {
                self.steps = 0;
            }
            self.share = share.filter(|_| self.steps > 0);
            self.begin(now);
        }
    }

    /// The queue stands.
    fn stand(&mut self, now: Time) {
        self.stands = true;
        if self.counts_until.is_none() {
            self.age(now);
        }
        self.begin(now);
    }

    /// An interval begins.
    fn begin(&mut self, now: Time) {
        self.begun = now;
        self.taken = 0;
        self.fewest = None;
        self.counts_until = Some(now + MEMORY);
    }

    /// Ages the counters: what was counted becomes what peers sent lately.
    fn age(&mut self, now: Time) {
        self.peers.retain(|_, arrived| {
            arrived.lately -= arrived.lately.div_ceil(INTERVALS);
            arrived.lately += std::mem::take(&mut arrived.now);
            arrived.lately > 0
        });
        self.counted_from = now;
        self.processed = 0;
        self.dropped = 0;
    }

    /// The work that each peer above an equal share may send in the next interval; `None` if there is
    /// none.
    fn fair_share(&mut self, now: Time) -> Option<u64> {
        let mut arrived: Vec<u64> = self.peers.values().map(|arrived| arrived.now).collect();
        let (processed, dropped) = (self.processed, self.dropped);
        let counted = now.since(self.counted_from);
        self.age(now);
        // 1. Peers that sent more than others for a while exceed their shares.
        let all: u64 = self.peers.values().map(|arrived| arrived.lately).sum();
        let bulk = |arrived: &&PeerWork| arrived.lately > all / BULK;
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
        for arrived in self.peers.values_mut() {
            arrived.exceeds = count > 1 && is_unfair(arrived.lately, count, sum);
        }
        if !self.peers.values().any(|arrived| arrived.exceeds) {
            return None;
        }
        // 2. Less than was processed until enough is dropped, then a little more: dropping costs
        //    time, too, and the queue of a flood stands whatever is dropped.
        let wanted = (processed + dropped) * (self.steps + 1) / STEP;
        let mut left = match wanted.checked_sub(dropped) {
            Some(more) => processed.saturating_sub(more),
            None => processed + processed / STEP,
        };
        // 3. The least get what they want, the others equal parts of what is left.
        arrived.sort_unstable();
        let mut peers = arrived.len() as u64;
        let share = arrived.into_iter().find_map(|work| {
            let share = left / peers;
            left = left.saturating_sub(work);
            peers -= 1;
            (work > share).then_some(share)
        })?;
        let share = in_an_interval(share, counted);
        // 4. In a flood there may be little left: then others exceed their shares, too. In so many
        //    intervals a peer that sends steadily sends what it sent lately.
        if self.flood_until.is_some() {
            let most = share * INTERVALS * FAIR_EIGHTHS / 8;
            let peers = self.peers.values_mut();
            peers.for_each(|arrived| arrived.exceeds |= arrived.lately > most);
        }
        Some(share)
    }
}

/// Whether one peer of so many, that sent this much of all, exceeds an equal share.
fn is_unfair(lately: u64, count: u64, all: u64) -> bool {
    lately * count * 8 > all * FAIR_EIGHTHS
}

/// The part of it for an interval, if it is for so long.
fn in_an_interval(work: u64, counted: Duration) -> u64 {
    let [interval, counted] = [INTERVAL, counted].map(|it| it.as_nanos().max(1));
    u64::try_from(u128::from(work) * interval / counted).unwrap_or(u64::MAX)
}

/// How many steps more are dropped, by how long messages waited in an interval and in the one before.
///
/// The longer they waited the more: a step for each millisecond. If the queue is short, a sixteenth
/// less is dropped, so that TCP is soon left alone. A queue that becomes longer by a millisecond in an
/// interval would stay as it is with eight steps more: five, lest it swing.
fn change_of_steps(steps: u64, before: Duration, delay: Duration) -> i64 {
    let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX / 2);
    let over = match delay.checked_sub(SHORT) {
        Some(over) => micros(over) / 1000,
        None => -1 - (steps / 16).cast_signed(),
    };
    let longer = (micros(delay) - micros(before)) / 200;
    over.saturating_add(longer).clamp(-12, 12)
}

#[cfg(test)]
#[path = "shares_tests.rs"]
mod tests;
