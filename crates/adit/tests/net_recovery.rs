//! How long streams stand still over bad paths: two stacks without a tunnel, and a path, on a clock of the
//! test's.

#![cfg(feature = "net")]

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::os::unix::net::UnixStream;

use adit::net::testing::BareStack;
use adit::{Gso, GsoKind};

const MSS: usize = 1380;
const FIN: u8 = 1;

/// A path in one direction: a queue, a rate, a delay, and faults.
struct Path {
    /// Bytes in a millisecond, and microseconds.
    rate: i64,
    delay: i64,
    /// Bytes of the queue.
    limit: i64,
    /// One packet of so many is lost, comes twice or late; 0: none.
    lost: u64,
    twice: u64,
    late: u64,
    /// So many ends of a stream are lost, the first ones.
    lost_ends: u32,
    random: u64,
    /// When the queue is empty, in nanoseconds.
    free: i64,
    arrivals: BTreeMap<(i64, u64), Vec<u8>>,
    sent: u64,
    drops: u64,
}

impl Path {
    fn new(rate: i64, delay: i64, limit: i64, [lost, twice, late]: [u64; 3], seed: u64) -> Self {
        Self {
            rate,
            delay,
            limit,
            lost,
            twice,
            late,
            lost_ends: 0,
            random: seed,
            free: 0,
            arrivals: BTreeMap::new(),
            sent: 0,
            drops: 0,
        }
    }

    fn one_of(&mut self, n: u64) -> bool {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        n != 0 && (self.random >> 33).is_multiple_of(n)
    }

    fn send(&mut self, now: i64, packet: &[u8]) {
        for segment in cut(packet) {
            let len = i64::try_from(segment.len()).expect("short");
            let begins = self.free.max(now * 1000);
            let queued = (begins - now * 1000) * self.rate / 1_000_000;
            let is_end = self.lost_ends > 0 && segment[33] & FIN != 0;
            self.lost_ends -= u32::from(is_end);
            if queued > self.limit || self.one_of(self.lost) || is_end {
                self.drops += 1;
                continue;
            }
            self.free = begins + len * 1_000_000 / self.rate;
            let mut at = self.free / 1000 + self.delay;
            if self.one_of(self.late) {
                at += 300;
            }
            for _ in 0..1 + usize::from(self.one_of(self.twice)) {
                self.sent += 1;
                self.arrivals.insert((at, self.sent), segment.clone());
            }
        }
    }

    fn deliver(&mut self, now: i64, to: &mut BareStack) {
        while let Some(first) = self.arrivals.first_entry()
            && first.key().0 <= now
        {
            // Its checksum is not looked at, as that of a merged packet is not.
            let gso = Gso {
                kind: GsoKind::Tcp4,
                segment: 1380,
            };
            to.push(&first.remove(), Some(gso));
        }
    }
}

/// The segments of a packet.
fn cut(packet: &[u8]) -> Vec<Vec<u8>> {
    let header = 20 + usize::from(packet[32] >> 4) * 4;
    if packet.len() - header <= MSS {
        return vec![packet.to_vec()];
    }
    let seq = u32::from_be_bytes(*packet[24..].first_chunk().expect("a header"));
    let count = (packet.len() - header).div_ceil(MSS);
    let pieces = packet[header..].chunks(MSS).enumerate();
    let segments = pieces.map(|(n, payload)| {
        let mut segment = [&packet[..header], payload].concat();
        let len = u16::try_from(segment.len()).expect("short");
        segment[2..4].copy_from_slice(&len.to_be_bytes());
        let offset = u32::try_from(n * MSS).expect("short");
        segment[24..28].copy_from_slice(&seq.wrapping_add(offset).to_be_bytes());
        if n + 1 < count {
            // FIN and PSH are of the last.
            segment[33] &= !0x09;
        }
        segment[10..12].fill(0);
        let words = segment[..20].chunks(2);
        let sum: u32 = words
            .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
            .sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let checksum = !u16::try_from((sum & 0xffff) + (sum >> 16)).expect("folded");
        segment[10..12].copy_from_slice(&checksum.to_be_bytes());
        segment
    });
    segments.collect()
}

/// What came of a transfer.
#[derive(Debug)]
struct Outcome {
    /// Microseconds that it took, and the longest time in which nothing arrived.
    took: i64,
    longest: i64,
    /// The longer one that an end took to arrive, once nothing was left to come.
    ended: i64,
    drops: u64,
}

/// Two stacks, each with the socket of a program, whose connection is as long as the path takes.
struct Ends {
    stacks: [BareStack; 2],
    programs: [UnixStream; 2],
    paths: [Path; 2],
    now: i64,
}

impl Ends {
    fn new(paths: [Path; 2]) -> Self {
        let stack = |host, ports: &[u16]| {
            let address = IpAddr::from([10, 0, 0, host]);
            BareStack::new(&[address], 64 << 20, ports).expect("a stack")
        };
        let pair = || {
            let (program, ours) = UnixStream::pair().expect("two sockets");
            program.set_nonblocking(true).expect("it can");
            (program, ours)
        };
        let [(near, ours), (far, theirs)] = [pair(), pair()];
        let mut ends = Self {
            stacks: [stack(1, &[]), stack(2, &[7])],
            programs: [near, far],
            paths,
            now: 0,
        };
        let remote = SocketAddr::from(([10, 0, 0, 2], 7));
        let _opened = ends.stacks[0].connect(remote, ours.into());
        loop {
            ends.step();
            let theirs = theirs.try_clone().expect("a descriptor");
            if ends.stacks[1].accept(7, theirs.into()) {
                return ends;
            }
        }
    }

    /// Time passes.
    fn step(&mut self) {
        self.now += 50;
        let now = self.now;
        assert!(now < 600_000_000, "it stands still");
        let [near, far] = &mut self.stacks;
        let [there, back] = &mut self.paths;
        there.deliver(now, far);
        back.deliver(now, near);
        near.poll(now, |packet| there.send(now, packet));
        far.poll(now, |packet| back.send(now, packet));
    }

    /// One end writes no more: how long it takes until the other one has read that.
    fn end(&mut self, from: usize) -> i64 {
        let begun = self.now;
        self.programs[from].shutdown(Shutdown::Write).expect("open");
        loop {
            self.step();
            match (&self.programs[1 - from]).read(&mut [0]) {
                Ok(0) => return self.now - begun,
                Ok(_) => panic!("more came"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    }

    /// Sends so many bytes from the near end, and perhaps back.
    fn transfer(mut self, bytes: usize, comes_back: bool) -> Outcome {
        let sent: Vec<u8> = (0..bytes).map(|n| (n / 251 + n).to_le_bytes()[0]).collect();
        let ends = 1 + usize::from(comes_back);
        let (mut written, mut came) = ([0; 2], [0; 2]);
        let mut longest = 0;
        let mut last = self.now;
        let mut buffer = vec![0; 1 << 18];
        while came[ends - 1] < bytes {
            self.step();
            for end in 0..ends {
                let [from, to] = [end, 1 - end];
                // What came to the far end goes back.
                let until = if end == 0 { bytes } else { came[0] };
                let left = &sent[written[end]..until];
                written[end] += (&self.programs[from]).write(left).unwrap_or(0);
                // The far end reads no more before it has written that.
                let is_behind = |came: &[usize; 2], written: &[usize; 2]| {
                    comes_back && end == 0 && came[0] > written[1]
                };
                while came[end] < bytes
                    && !is_behind(&came, &written)
                    && let Ok(len) = (&self.programs[to]).read(&mut buffer)
                {
                    let expected = &sent[came[end]..came[end] + len];
                    assert!(buffer[..len] == *expected, "other bytes came");
                    came[end] += len;
                    longest = longest.max(self.now - last);
                    last = self.now;
                }
            }
        }
        let took = self.now;
        let ended = [0, 1].map(|from| self.end(from)).into_iter().max();
        for stack in &self.stacks {
            assert_eq!(stack.stats().failed, 0);
        }
        Outcome {
            took,
            longest,
            ended: ended.expect("two"),
            drops: self.paths.iter().map(|path| path.drops).sum(),
        }
    }
}

const SECOND: i64 = 1_000_000;
/// A gigabit a second, in bytes a millisecond.
const GIGABIT: i64 = 125_000;

#[test]
fn a_queue_of_half_the_path_overflows_without_a_stall() {
    // One in which all of the window finds room, and one in which it does not.
    for (delay, limit) in [(10_000, 1_250_000), (5_000, 625_000)] {
        let path = |seed| Path::new(GIGABIT, delay, limit, [0; 3], seed);
        let outcome = Ends::new([path(1), path(2)]).transfer(60 << 20, false);
        assert!(outcome.longest < SECOND / 5, "{outcome:?}");
        assert!(outcome.took < 6 * SECOND, "{outcome:?}");
    }
}

#[test]
fn a_path_that_loses_repeats_and_reorders_does_not_stall() {
    for comes_back in [false, true] {
        for seed in 1..=8 {
            let path = |seed| Path::new(GIGABIT, 50, 200_000, [200, 100, 100], seed);
            let ends = Ends::new([path(seed), path(seed + 100)]);
            let outcome = ends.transfer(8 << 20, comes_back);
            assert!(outcome.drops > 10, "{outcome:?}");
            assert!(outcome.longest < SECOND / 5, "{seed}: {outcome:?}");
            assert!(outcome.took < SECOND, "{seed}: {outcome:?}");
            assert!(outcome.ended < SECOND / 2, "{seed}: {outcome:?}");
        }
    }
}

#[test]
fn an_end_that_is_lost_is_sent_again_however_often() {
    // By probes, and then by the timer.
    for (lost, limit) in [
        (0, SECOND / 100),
        (1, SECOND / 2),
        (2, SECOND),
        (3, 2 * SECOND),
        (6, 20 * SECOND),
    ] {
        let path = |seed| {
            let mut path = Path::new(GIGABIT, 50, 200_000, [0; 3], seed);
            path.lost_ends = lost;
            path
        };
        let outcome = Ends::new([path(1), path(2)]).transfer(1 << 20, false);
        assert!(outcome.ended < limit, "{lost}: {outcome:?}");
    }
}
