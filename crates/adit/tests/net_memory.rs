//! What connections take that have nothing to say: two stacks without a tunnel, on a clock of the test's.

#![cfg(feature = "net")]
#![expect(unsafe_code, reason = "an allocator that counts is unsafe to write")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};

use adit::net::testing::BareStack;
use adit::{Gso, GsoKind};

static BYTES: AtomicUsize = AtomicUsize::new(0);

struct CountingBytes;

// SAFETY: it is the system's allocator, which gets the same arguments. What counts allocates nothing.
unsafe impl GlobalAlloc for CountingBytes {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as of the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as of the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as of the caller; `at` is of the system's allocator.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingBytes = CountingBytes;

const BUDGET: usize = 64 << 20;
const PORTS: [u16; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

fn address(host: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, host])
}

/// The sockets of a connection's programs.
type Streams = [UnixStream; 2];

struct Ends {
    near: BareStack,
    far: BareStack,
    now: i64,
    packets: u64,
    streams: Vec<Streams>,
}

impl Ends {
    fn new() -> Self {
        let stack = |host| BareStack::new(&[address(host)], BUDGET, &PORTS).expect("a stack");
        Self {
            near: stack(1),
            far: stack(2),
            now: 0,
            packets: 0,
            streams: Vec::new(),
        }
    }

    /// Lets packets pass until there are none.
    fn settle(&mut self) {
        let mut quiet = 0;
        while quiet < 2 {
            self.now += 10;
            let mut passed = 0;
            let Self { near, far, now, .. } = self;
            let mut pass = |from: &mut BareStack, to: &mut BareStack| {
                from.poll(*now, |packet| {
                    passed += 1;
                    let gso = Gso {
                        kind: GsoKind::Tcp4,
                        segment: 1380,
                    };
                    to.push(packet, (packet.len() > 1420).then_some(gso));
                });
            };
            pass(near, far);
            pass(far, near);
            self.packets += passed;
            quiet = if passed == 0 { quiet + 1 } else { 0 };
        }
    }

    /// Has so many connections more, which nobody reads or writes.
    fn connect_alone(&mut self, count: usize) {
        for n in 0..count {
            let remote = SocketAddr::new(address(2), PORTS[1 + n % (PORTS.len() - 1)]);
            let opened = self.near.connect_alone(remote);
            self.settle();
            assert_eq!(opened.try_recv(), Ok(true), "{n}");
        }
    }

    /// Has a connection more that programs have at both ends.
    fn connect(&mut self) -> usize {
        let pair = || {
            let (program, ours) = UnixStream::pair().expect("two sockets");
            program.set_nonblocking(true).expect("it can");
            (program, OwnedFd::from(ours))
        };
        let [(near, ours), (far, theirs)] = [pair(), pair()];
        let remote = SocketAddr::new(address(2), PORTS[0]);
        let opened = self.near.connect(remote, ours);
        assert!(self.wait(|_| opened.try_recv().ok()));
        // Its acknowledgement may be still on its way.
        let mut theirs = Some(theirs);
        self.wait(|ends| {
            let far = theirs.take()?;
            let copy = far.try_clone().expect("a descriptor");
            match ends.far.accept(PORTS[0], far) {
                true => Some(()),
                false => {
                    theirs = Some(copy);
                    None
                }
            }
        });
        self.settle();
        self.streams.push([near, far]);
        self.streams.len() - 1
    }

    /// A question and an answer.
    fn exchange(&mut self, n: usize) {
        for (from, to, text) in [(0, 1, b"question"), (1, 0, b"answered")] {
            (&self.streams[n][from]).write_all(text).expect("room");
            let mut said = [0; 8];
            self.wait(|ends| (&ends.streams[n][to]).read_exact(&mut said).ok());
            assert_eq!(&said, text);
        }
    }

    /// Until there is something: others have their turns before.
    fn wait<T>(&mut self, mut get: impl FnMut(&mut Self) -> Option<T>) -> T {
        for _ in 0..10_000 {
            self.settle();
            if let Some(got) = get(self) {
                return got;
            }
        }
        panic!("nothing came");
    }

    fn pass_time(&mut self, micros: i64) {
        self.now += micros;
        self.settle();
    }

    /// Time in which nothing is said.
    fn rest(&mut self) {
        for _ in 0..4 {
            self.now += 10_000_000;
            // Those whose time has come have their turns, some at a time.
            for _ in 0..200 {
                self.settle();
            }
        }
    }
}

/// Bytes that the other end can tell apart.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * n / 7 + n).to_le_bytes()[0]).collect()
}

#[test]
fn ten_thousand_idle_connections_and_a_hundred_busy_ones_fit_the_budget() {
    const IDLE: usize = 10_000;
    const BUSY: usize = 100;
    let mut ends = Ends::new();
    let empty = BYTES.load(Ordering::Relaxed);
    ends.connect_alone(IDLE);
    for _ in 0..BUSY {
        let n = ends.connect();
        ends.exchange(n);
    }
    ends.rest();
    // Of two stacks.
    let each = || (BYTES.load(Ordering::Relaxed) - empty) / 2;
    let count = IDLE + BUSY;
    for stats in [ends.near.stats(), ends.far.stats()] {
        assert_eq!(stats.connections, count as u64);
        assert!(stats.reserved <= 1024 * count as u64, "{stats:?}");
    }
    assert!(each() < 1024 * count, "{} bytes", each());
    // Nobody reads what these write.
    let filler = vec![7; 1 << 16];
    let mut written = vec![0; BUSY];
    for _ in 0..100 {
        for (n, written) in written.iter_mut().enumerate() {
            *written += (&ends.streams[n][0]).write(&filler).unwrap_or(0);
        }
        ends.settle();
    }
    for stats in [ends.near.stats(), ends.far.stats()] {
        assert!(stats.reserved > 32 << 20, "{stats:?}");
        assert!(stats.reserved <= BUDGET as u64, "{stats:?}");
        assert_eq!((stats.no_memory, stats.failed), (0, 0), "{stats:?}");
    }
    assert!(each() <= BUDGET, "{} bytes", each());
    // They cost the others nothing.
    let n = ends.connect();
    ends.exchange(n);
    // What was written is there.
    let mut buffer = vec![0; 1 << 16];
    for (n, written) in written.into_iter().enumerate() {
        let mut read = 0;
        while read < written {
            match (&ends.streams[n][1]).read(&mut buffer) {
                Ok(len) => read += len,
                Err(_) => ends.pass_time(2_000),
            }
        }
        assert_eq!(read, written, "{n}");
    }
}

#[test]
fn a_connection_goes_on_after_a_rest_in_both_directions() {
    let mut ends = Ends::new();
    let n = ends.connect();
    let sent = pattern(3 << 20);
    for (from, to) in [(0, 1), (1, 0), (1, 0), (0, 1)] {
        ends.rest();
        assert_eq!(ends.near.stats().reserved, 1024, "it rests");
        let (mut written, mut came) = (0, Vec::<u8>::new());
        let mut buffer = vec![0; 1 << 16];
        while came.len() < sent.len() {
            written += (&ends.streams[n][from])
                .write(&sent[written..])
                .unwrap_or(0);
            ends.pass_time(100);
            while let Ok(len) = (&ends.streams[n][to]).read(&mut buffer) {
                came.extend(&buffer[..len]);
            }
        }
        assert!(came == sent);
        ends.exchange(n);
    }
    // An end after a rest.
    ends.rest();
    ends.streams[n][1]
        .shutdown(std::net::Shutdown::Write)
        .expect("it is open");
    ends.settle();
    assert_eq!((&ends.streams[n][0]).read(&mut [0]).expect("an end"), 0);
    (&ends.streams[n][0]).write_all(b"last").expect("room");
    ends.settle();
    let mut said = [0; 4];
    (&ends.streams[n][1])
        .read_exact(&mut said)
        .expect("all of it");
    ends.streams.clear();
    ends.settle();
    for stack in [&ends.near, &ends.far] {
        let stats = stack.stats();
        assert_eq!((stats.connections, stats.reserved, stats.failed), (0, 0, 0));
    }
}

/// Nanoseconds that this thread had a CPU.
fn cpu_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let nanos = time.tv_sec * 1_000_000_000 + time.tv_nsec;
    nanos.try_into().expect("not negative")
}

#[test]
#[ignore = "prints what packets of many connections cost"]
fn packets_cost_as_much_with_many_connections_as_with_one() {
    const ACTIVE: usize = 1_000;
    let mut ends = Ends::new();
    let empty = BYTES.load(Ordering::Relaxed);
    let mut connections = 0;
    for count in [1, 10, 100, 1_000, 3_000, 10_000] {
        while ends.streams.len() < count.min(ACTIVE) {
            let n = ends.connect();
            ends.exchange(n);
            connections += 1;
        }
        ends.connect_alone(count - connections);
        connections = count;
        let each = || (BYTES.load(Ordering::Relaxed) - empty) / count / 2;
        let (reserved, born) = (ends.near.stats().reserved, each());
        ends.rest();
        let best = [10, ACTIVE].map(|active| {
            let rounds = (0..5).map(|_| {
                let (began, before) = (cpu_time(), ends.packets);
                for n in 0..2_000 {
                    ends.exchange(n * 7919 % active.min(ends.streams.len()));
                }
                (cpu_time() - began) / (ends.packets - before)
            });
            rounds.min().expect("rounds")
        });
        ends.rest();
        let statm = std::fs::read_to_string("/proc/self/statm").expect("it is there");
        println!(
            "{count:>6} connections: {best:?} ns a packet of ten and of a thousand, {born} bytes each, {} after a rest; reserved \
             {reserved}, {} after; pages {}",
            each(),
            ends.near.stats().reserved,
            statm.split(' ').nth(1).expect("a number")
        );
    }
}
