//! Which queue of a TUN device is read next.

use std::time::{Duration, Instant};

use arrayvec::ArrayVec;

use super::egress::Reading;
use crate::programs::egress::QUEUES;

/// How long a queue counts as that of several peers.
const MIXED: Duration = Duration::from_secs(10);
/// A peer that is this much in advance has nothing read from the first queue, either: packets of sparse
/// flows pass until then.
const FAR: Duration = Duration::from_secs(1);
/// Bytes that each peer may send in a round.
pub(super) const QUANTUM: i64 = 64 << 10;

/// Which queue is read next.
///
/// In each round a peer may send [`QUANTUM`] bytes, whatever the number of its queues. To whom a
/// frame goes shows when it has been read; it is taken for one of the peer that the queue's last
/// frame was for.
pub(super) struct Schedule {
    /// A bit for each queue that may have something.
    pub(super) ready: u64,
    /// The queue whose turn it is.
    pub(super) turn: u32,
    /// Whom the last frame was for.
    pub(super) peers: [Option<u32>; QUEUES],
    /// Bytes that may still be read in this round.
    pub(super) deficits: [i64; QUEUES],
    /// Bytes that were read in this round from the first queue and not from these.
    pub(super) sparse: [i64; QUEUES],
    /// A bit for each queue of which the program knows that it is in debt.
    pub(super) told: u64,
    /// A bit for each queue whose peer has a limit: a batch has a turn of it at most.
    pub(super) limited: u64,
    /// Bytes of this batch that came from such a queue.
    pub(super) in_batch: [i64; QUEUES],
    /// A bit for each queue that rests, and until when.
    pub(super) resting: u64,
    pub(super) rest: [Option<Instant>; QUEUES],
    /// A bit for each queue that rests for long.
    pub(super) far: u64,
    /// A bit for each queue that lately had frames for several peers, and when. Where no peer has a
    /// limit nobody looks.
    pub(super) mixed: u64,
    pub(super) mixed_at: [Option<Instant>; QUEUES],
}

impl Schedule {
    pub(super) fn new() -> Self {
        Self {
            ready: 0,
            turn: 0,
            peers: [None; QUEUES],
            deficits: [QUANTUM; QUEUES],
            sparse: [0; QUEUES],
            told: 0,
            limited: 0,
            in_batch: [0; QUEUES],
            resting: 0,
            rest: [None; QUEUES],
            far: 0,
            mixed: 0,
            mixed_at: [None; QUEUES],
        }
    }

    /// This queue has something.
    pub(super) fn has(&mut self, queue: usize) {
        if self.ready & 1 << queue != 0 {
            return;
        }
        // Nor may the peer send more because it has one more queue.
        let siblings = self.siblings(queue);
        let deficits = siblings.iter().map(|other| self.deficits[*other]);
        if let Some(least) = deficits.min() {
            self.deficits[queue] = least;
        }
        self.ready |= 1 << queue;
    }

    /// The queue to read from, if any has something.
    pub(super) fn next(&mut self) -> Option<usize> {
        while self.ready != 0 {
            let from_turn = u64::MAX.checked_shl(self.turn).unwrap_or(0);
            let queue = (self.ready & from_turn).trailing_zeros();
            if queue == u64::BITS {
                self.end_round();
            } else if self.deficits[queue as usize] > 0 {
                self.turn = queue;
                return Some(queue as usize);
            } else {
                self.turn = queue + 1;
            }
        }
        None
    }

    /// The next round begins.
    pub(super) fn end_round(&mut self) {
        self.turn = 0;
        for deficit in &mut self.deficits {
            *deficit = (*deficit + QUANTUM).min(QUANTUM);
        }
        self.sparse = [0; QUEUES];
    }

    /// A bit for each queue of which the peer had so much read from the first one that the rest waits
    /// for the next round.
    pub(super) fn debts(&self) -> u64 {
        if self.sparse.iter().sum::<i64>() < QUANTUM {
            return 0;
        }
        let is_in_debt = |queue: &usize| {
            let peer = self.peers[*queue];
            let all = self.sparse.iter().zip(self.peers).enumerate();
            let of_peer = all.filter(|(other, (_, its_peer))| {
                other == queue || peer.is_some() && *its_peer == peer
            });
            of_peer.map(|(_, (bytes, _))| bytes).sum::<i64>() >= QUANTUM
        };
        let queues = (0..QUEUES).filter(is_in_debt);
        queues.fold(0, |debts, queue| debts | 1 << queue)
    }

    /// A frame of so many bytes was read from the first queue, which would otherwise have been in
    /// this one.
    pub(super) fn took_sparse(&mut self, queue: usize, len: usize) {
        self.took(queue, len);
        // However much that is, the next rounds are not spent.
        self.deficits[queue] = self.deficits[queue].max(-QUANTUM);
        self.sparse[queue] += i64::try_from(len).unwrap_or(QUANTUM);
    }

    pub(super) fn batch_begins(&mut self) {
        if self.limited == 0 {
            return;
        }
        self.in_batch = [0; QUEUES];
        let is_over = |queue: &usize| self.mixed_at[*queue].is_none_or(|at| at.elapsed() >= MIXED);
        let over = bits(self.mixed)
            .filter(is_over)
            .fold(0, |over, queue| over | 1 << queue);
        self.mixed &= !over;
    }

    /// Takes note of what was processed. Returns a bit for each queue that is to rest.
    pub(super) fn note(&mut self, processed: &Processed) -> u64 {
        let mut mixed = processed.mixed;
        for (queue, peer) in processed.peers.iter().enumerate() {
            let Some(peer) = *peer else { continue };
            let before = self.peers[queue].replace(peer);
            mixed |= u64::from(before.is_some_and(|before| before != peer)) << queue;
            self.limited &= !(1 << queue);
        }
        self.limited |= processed.limited;
        if self.limited == 0 {
            return 0;
        }
        let now = Some(Instant::now());
        self.mixed |= mixed;
        bits(mixed).for_each(|queue| self.mixed_at[queue] = now);
        let mut rests = 0;
        for queue in bits(processed.limited) {
            let (until, peer) = (processed.rest[queue], self.peers[queue]);
            if until <= now || !self.can_wait(queue) {
                continue;
            }
            for other in (0..QUEUES).filter(|other| self.peers[*other] == peer) {
                if self.can_wait(other) {
                    self.rest[other] = self.rest[other].max(until);
                    rests |= 1 << other;
                    if self.rest[other] > now.map(|now| now + FAR) {
                        self.far |= 1 << other;
                    }
                }
            }
        }
        rests
    }

    /// Whether what is in a queue can wait: it is all for one peer.
    pub(super) fn can_wait(&self, queue: usize) -> bool {
        self.mixed & 1 << queue == 0
    }

    /// A bit for each queue that has rested for long enough.
    pub(super) fn rested(&self, now: Instant) -> u64 {
        let is_over = |queue: &usize| self.rest[*queue].is_none_or(|until| until <= now);
        bits(self.resting)
            .filter(is_over)
            .fold(0, |rested, queue| rested | 1 << queue)
    }

    /// Tells the program which queues are in debt.
    pub(super) fn tell_debts(&mut self, reading: &mut Reading<'_>) {
        let debts = self.debts() | self.far;
        for queue in bits(debts ^ std::mem::replace(&mut self.told, debts)) {
            reading.set_in_debt(1 + queue, debts >> queue & 1 == 1);
        }
    }

    /// A frame of so many bytes was read from a queue.
    pub(super) fn took(&mut self, queue: usize, len: usize) {
        let len = i64::try_from(len).unwrap_or(QUANTUM);
        if self.limited & 1 << queue != 0 {
            self.in_batch[queue] += len;
            if self.in_batch[queue] >= QUANTUM {
                // The rest waits for the next batch: this one may make it rest.
                self.ready &= !(1 << queue);
            }
        }
        self.deficits[queue] -= len;
        for other in self.siblings(queue) {
            self.deficits[other] -= len;
        }
    }

    /// Nothing is left in a queue.
    pub(super) fn was_empty(&mut self, queue: usize) {
        self.ready &= !(1 << queue);
    }

    /// The other queues with something for the same peer.
    fn siblings(&self, queue: usize) -> ArrayVec<usize, QUEUES> {
        let peer = self.peers[queue];
        let others = bits(self.ready & !(1 << queue));
        let of_peer = |other: &usize| peer.is_some() && self.peers[*other] == peer;
        others.filter(of_peer).collect()
    }
}

/// The numbers of the bits that are set.
pub(super) fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = set.trailing_zeros();
        (lowest < u64::BITS).then(|| {
            set &= set - 1;
            lowest as usize
        })
    })
}

/// Frames that were processed lately.
#[derive(Clone, Copy)]
pub(super) struct Processed {
    pub(super) any: bool,
    /// How many of each queue, the first included.
    pub(super) frames: [u64; 1 + QUEUES],
    /// Whom the last of each queue but the first was for.
    pub(super) peers: [Option<u32>; QUEUES],
    /// A bit for each queue that had frames for several.
    pub(super) mixed: u64,
    /// A bit for each queue whose peer has a limit.
    pub(super) limited: u64,
    /// Until when queues are to rest.
    pub(super) rest: [Option<Instant>; QUEUES],
}

impl Processed {
    pub(super) const NONE: Self = Self {
        any: false,
        frames: [0; 1 + QUEUES],
        peers: [None; QUEUES],
        mixed: 0,
        limited: 0,
        rest: [None; QUEUES],
    };
}
