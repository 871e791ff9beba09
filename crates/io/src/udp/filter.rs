//! What a socket drops before it is queued: a BPF program at the socket, and what it shares with
//! this process.
//!
//! To queue a datagram costs several times as much as to drop it at once: memory, a wake-up, a copy.
//! The program drops what this process would drop after that, and counts it:
//!
//! 1. what is no message of WireGuard;
//! 2. data messages whose receiver index nobody has;
//! 3. initiations without a cookie from sources that get no answer for the next milliseconds.
//!
//! It looks at datagrams that are alone. A train that the kernel merged passes: the kernel tells
//! senders apart by their addresses, so a forged datagram may stand before honest ones.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use adit_proto::{InUse, Time};

use crate::programs::filter::{
    CPU, GROUP_BITS, GROUPS, HASHES, INDICES, MALFORMED, NANOS, NUMBERS, OF_GROUP, ON, PART,
    PASSED, REFUSED, REFUSED_UNTIL, SOURCE_BITS, SOURCES, TABLE, UNKNOWN,
};
use crate::sys::bpf::SharedMap;
use crate::{Arrival, Filtered, helper};

/// How many nanoseconds sources are refused at most. A source may be forged, and what comes from it
/// honest: so it is heard again as soon as there are some more cookie replies, and is refused no larger a
/// part of the time than it would get no reply in. The groups have their ends in turns, so that not all
/// sources of a flood come through at once.
const REFUSAL: u64 = 10_000_000;

/// The table by which the sockets of an interface drop datagrams.
#[derive(Debug)]
pub(crate) struct FilterTable {
    numbers: SharedMap,
    /// Of the hash of sources. Without them nobody can choose sources in whose place others are
    /// refused.
    factors: [u64; 2],
}

impl FilterTable {
    /// One by which nothing is dropped yet, and its descriptor, for programs. Needs Linux 5.8 and
    /// CAP_BPF.
    pub(super) fn new() -> io::Result<(Arc<Self>, Arc<OwnedFd>)> {
        let map = helper::table()?;
        let numbers = SharedMap::of(&map, TABLE)?;
        let random = RandomState::new();
        let factors = [0, 1].map(|n: u8| random.hash_one(n) | 1);
        Ok((Arc::new(Self { numbers, factors }), Arc::new(map)))
    }

    fn refuse(&self, source: IpAddr, now: u64) {
        let numbers = self.numbers.get();
        let mut hash = self.hash(source);
        let place = |bits: u64| usize::try_from(bits).unwrap_or_default();
        let group = place(hash >> (64 - GROUP_BITS));
        let of_group = |part: usize| {
            let first = SOURCES + part * PART + group * OF_GROUP;
            &numbers[first..first + OF_GROUP]
        };
        if numbers[REFUSED_UNTIL + group].load(Relaxed) <= now {
            for word in (0..HASHES).flat_map(of_group) {
                word.store(0, Relaxed);
            }
            numbers[REFUSED_UNTIL + group].store(end_of_refusal(group, now), Relaxed);
        }
        for part in 0..HASHES {
            let bit = hash & ((1 << SOURCE_BITS) - 1);
            of_group(part)[place(bit >> 6)].fetch_or(1 << (bit & 63), Relaxed);
            hash >>= SOURCE_BITS;
        }
    }

    /// The hash as the program has it.
    fn hash(&self, source: IpAddr) -> u64 {
        let key = match source {
            IpAddr::V4(ip) => u32::from_le_bytes(ip.octets()).into(),
            IpAddr::V6(ip) => {
                let [a, b, c, d, e, f, g, h, ..] = ip.octets();
                u64::from_le_bytes([a, b, c, d, e, f, g, h])
            }
        };
        self.factors.into_iter().fold(key, |hash, factor| {
            let product = hash.wrapping_mul(factor);
            product ^ product >> 32
        })
    }
}

/// The next end of refusals of a group, which come every [`REFUSAL`].
fn end_of_refusal(group: usize, now: u64) -> u64 {
    let turn = REFUSAL / GROUPS as u64 * group as u64;
    now + REFUSAL - (now + REFUSAL - turn) % REFUSAL
}

impl InUse for FilterTable {
    fn set(&self, bucket: usize, is_used: bool) {
        let word = &self.numbers.get()[INDICES + (bucket >> 6)];
        let bit = 1 << (bucket & 63);
        match is_used {
            true => word.fetch_or(bit, Relaxed),
            false => word.fetch_and(!bit, Relaxed),
        };
    }

    fn set_complete(&self, is_complete: bool) {
        self.numbers.get()[ON].store(is_complete.into(), Relaxed);
    }
}

/// The program of a socket. It lives as long as the socket, or until it gets another one.
#[derive(Debug)]
pub(super) struct SocketFilter {
    numbers: SharedMap,
    pub(super) table: Arc<FilterTable>,
    /// Of the table, for programs of further sockets.
    pub(super) map: Arc<OwnedFd>,
    /// What [`Self::take`] has told, by place.
    told: [AtomicU64; NUMBERS],
    /// How many of those that passed do not wait any more, and of how many of these nobody knows yet
    /// that they were lost.
    gone: AtomicU64,
    presumed: AtomicU64,
}

impl SocketFilter {
    /// Gives a socket a program. Needs Linux 5.8 and CAP_BPF.
    ///
    /// A socket with a program has the kernel verify the checksum of a datagram before it queues it,
    /// unless the network card or GRO has verified it. Without one, the copy to this process
    /// verifies it. For single datagrams of 1452 bytes with an unverified checksum, a program of
    /// nine instructions and checksum took 155 ns more in the kernel and 30 ns less in the copy, of
    /// 2.2 µs.
    pub(super) fn of(
        socket: BorrowedFd<'_>,
        table: Arc<FilterTable>,
        map: &Arc<OwnedFd>,
    ) -> io::Result<Self> {
        let own = helper::filter(socket, map.as_fd(), table.factors)?;
        Ok(Self {
            numbers: SharedMap::of(&own, NUMBERS)?,
            table,
            map: Arc::clone(map),
            told: Default::default(),
            gone: AtomicU64::new(0),
            presumed: AtomicU64::new(0),
        })
    }

    fn number(&self, at: usize) -> u64 {
        self.numbers.get()[at].load(Relaxed)
    }

    /// Where and when the last datagram passed: on CPU 0 at the beginning of time if none did yet.
    pub(super) fn last_arrival(&self) -> Arrival {
        Arrival {
            cpu: usize::try_from(self.number(CPU)).unwrap_or(usize::MAX),
            at: Time(self.number(NANOS)),
        }
    }

    /// Initiations without a cookie from this source, of which one came, are dropped for a while.
    pub(super) fn refuse(&self, source: IpAddr) {
        self.table.refuse(source, self.number(NANOS));
    }

    /// How many messages have passed.
    pub(super) fn passed(&self) -> u64 {
        self.number(PASSED)
    }

    /// How many messages wait, after a call took so many, learnt of so many that were lost and, if
    /// `emptied`, took all that had passed `before` it. One thread at a time receives.
    ///
    /// It is too much while the kernel has not told of all that was lost, and too little when messages
    /// waited before there was the program: both until the socket is empty once.
    pub(super) fn waiting(&self, before: u64, (taken, lost): (u64, u64), emptied: bool) -> u64 {
        // What was gone when the socket was empty, and of which the kernel tells now.
        let presumed = self.presumed.load(Relaxed);
        let told = lost.min(presumed);
        let passed = self.passed();
        let mut gone = self.gone.load(Relaxed).saturating_add(taken + lost - told);
        let missing = if emptied {
            before.saturating_sub(gone)
        } else {
            0
        };
        gone = (gone + missing).min(passed);
        self.gone.store(gone, Relaxed);
        self.presumed.store(presumed - told + missing, Relaxed);
        passed - gone
    }

    /// All that was dropped: the lower 32 bits.
    pub(super) fn dropped_32(&self) -> u32 {
        let counters = [MALFORMED, UNKNOWN, REFUSED];
        let all: u64 = counters.into_iter().map(|at| self.number(at)).sum();
        u32::try_from(all & u64::from(u32::MAX)).unwrap_or_default()
    }

    /// Datagrams that were dropped since the last call.
    pub(super) fn take(&self) -> Filtered {
        let more = |at: usize| {
            let now = self.number(at);
            // Several threads may ask.
            match self.told[at].load(Relaxed) < now {
                true => now.saturating_sub(self.told[at].fetch_max(now, Relaxed)),
                false => 0,
            }
        };
        Filtered {
            malformed: more(MALFORMED),
            unknown: more(UNKNOWN),
            refused: more(REFUSED),
        }
    }
}

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
