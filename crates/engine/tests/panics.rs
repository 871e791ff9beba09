//! A panic while a thread works for an interface ends that interface, which says why, and no other one.

#[allow(dead_code, reason = "each test file uses a part of this")]
mod common;

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use adit_engine::{Engine, MemPlatform, Policy, StopReason, ThreadSettings};
use adit_io::testing::mem::{MemNetwork, MemTun, MemUdp};
use adit_io::{Arrival, FrameBatch, RecvBatch, SendReport, Transmit, TunQueue, UdpSocket};
use adit_proto::Time;
use common::{A, B, EnginePair, Options, inner_ip, segments, udp_frame};

/// What a thread does for an interface.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Read,
    Write,
    Send,
    Recv,
    /// It hands sockets over, or looks where packets came from: outside what is contained.
    Fd,
    LastArrival,
}

/// A thread panics once, at one call.
struct Trap {
    thread: &'static str,
    call: Call,
    is_armed: AtomicBool,
}

impl Trap {
    fn meets(&self, call: Call) {
        let this = std::thread::current();
        let is_here = call == self.call && this.name() == Some(self.thread);
        if is_here && self.is_armed.swap(false, Ordering::SeqCst) {
            panic!("sprung");
        }
    }
}

/// A TUN or a socket with a trap, if it has one.
struct Trapped<T>(T, Option<Arc<Trap>>);

impl<T> Trapped<T> {
    fn meets(&self, call: Call) {
        if let Some(trap) = &self.1 {
            trap.meets(call);
        }
    }
}

impl TunQueue for Trapped<MemTun> {
    fn read_batch(&self, batch: &mut FrameBatch) -> io::Result<bool> {
        self.meets(Call::Read);
        self.0.read_batch(batch)
    }

    fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        self.meets(Call::Write);
        self.0.write(pieces)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

impl UdpSocket for Trapped<MemUdp> {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        self.meets(Call::Send);
        self.0.send(trains, report)
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        self.meets(Call::Recv);
        self.0.recv(batch)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.meets(Call::Fd);
        self.0.fd()
    }

    /// All arrives on the first CPU: so a thread of its own receives while little moves.
    fn last_arrival(&self) -> Option<Arrival> {
        self.meets(Call::LastArrival);
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Some(Arrival {
            cpu: cpus().next()?,
            at: Time::default() + Duration::try_from(now).ok()?,
        })
    }
}

/// The CPUs that this process may use.
fn cpus() -> impl Iterator<Item = usize> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let allowed = sched_getaffinity(Some(rustix::process::getpid())).expect("our CPUs");
    (0..CpuSet::MAX_CPU).filter(move |cpu| allowed.is_set(*cpu))
}

/// Two engines, and pairs of interfaces on them. Side A of pair 0 has the trap.
struct Pairs {
    engines: [Engine<Trapped<MemTun>, MemPlatform<Trapped<MemUdp>>>; 2],
    network: MemNetwork,
    trap: Arc<Trap>,
}

impl Pairs {
    fn new(thread: &'static str, call: Call, shards: usize) -> Self {
        let settings = ThreadSettings {
            policy: Policy::Auto,
            ..ThreadSettings::from(shards)
        };
        Self {
            engines: [A, B].map(|_| Engine::with(&settings).expect("an engine")),
            network: MemNetwork::new(),
            trap: Arc::new(Trap {
                thread,
                call,
                is_armed: AtomicBool::new(false),
            }),
        }
    }

    fn pair(&self, number: u8) -> EnginePair {
        let trap = |side| (side == A && number == 0).then(|| Arc::clone(&self.trap));
        let of_sockets = [trap(A), trap(B)];
        EnginePair::on(
            &self.engines,
            &self.network,
            number,
            Options::default(),
            |side, tun| Trapped(tun, trap(side)),
            move |side, socket| Trapped(socket, of_sockets[side].clone()),
        )
    }
}

fn datagram(from: usize) -> Vec<u8> {
    udp_frame(inner_ip(from), inner_ip(1 - from), (1, 2), 1, &[7; 1300])
}

/// One datagram each way, which arrives.
fn exchange(pair: &EnginePair) {
    for from in [A, B] {
        while !pair.delivered_now(1 - from).is_empty() {}
        let frame = datagram(from);
        pair.inject(from, frame.clone());
        assert_eq!(pair.delivered(1 - from, 1), segments(&frame));
    }
}

/// Sends both ways until the trap is sprung: now and then a datagram, or more than one thread processes.
fn send_until_sprung(pair: &EnginePair, trap: &Trap, floods: bool) {
    trap.is_armed.store(true, Ordering::SeqCst);
    let start = Instant::now();
    while trap.is_armed.load(Ordering::SeqCst) {
        for from in [A, B] {
            while pair.sides[from].tun.inject(datagram(from)) && floods {}
            while !pair.delivered_now(from).is_empty() {}
        }
        let (thread, call) = (trap.thread, trap.call);
        let waited = start.elapsed();
        assert!(
            waited < Duration::from_secs(60),
            "{thread} makes no {call:?}"
        );
        if !floods {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Invariant 7.
#[test]
fn a_panic_ends_the_interface_that_it_was_for_and_says_so() {
    adit_engine::progress::assume_idle_cpus();
    let owner = [Call::Read, Call::Write, Call::Send, Call::Recv, Call::Fd];
    let owner = owner.map(|call| ("adit-shard-0", call, false));
    let others = [
        ("adit-inbound", Call::Recv, false),
        ("adit-inbound", Call::Write, false),
        // It owns the other interface, and helps with this one.
        ("adit-shard-1", Call::Read, true),
        ("adit-shard-1", Call::Send, true),
        ("adit-control", Call::Send, false),
    ];
    for (thread, call, floods) in owner.into_iter().chain(others) {
        if thread == "adit-inbound" && cpus().count() == 1 {
            println!("there is one CPU only: the shard receives");
            continue;
        }
        let pairs = Pairs::new(thread, call, 2);
        let [first, second] = [0, 1].map(|number| pairs.pair(number));
        if thread != "adit-control" {
            exchange(&first);
        }
        exchange(&second);
        send_until_sprung(&first, &pairs.trap, floods);
        let ended = &first.sides[A].interface;
        let (told, end) = mpsc::channel();
        ended.on_end(move || told.send(()).expect("the test listens"));
        let has_ended = end.recv_timeout(Duration::from_secs(20));
        assert!(has_ended.is_ok(), "{thread}, {call:?}: it hangs");
        let StopReason::Failed(why) = ended.wait() else {
            panic!("{thread}, {call:?}: it does not say why")
        };
        let why = why.to_string();
        assert!(why.contains(thread), "{thread}, {call:?}: {why}");
        assert!(why.contains("panicked"), "{thread}, {call:?}: {why}");
        exchange(&second);
        drop(first);
        exchange(&pairs.pair(2));
    }
}

#[test]
fn a_thread_for_sparse_flows_that_ends_is_done_without() {
    if cpus().count() == 1 {
        println!("there is one CPU only: the shard receives");
        return;
    }
    let pairs = Pairs::new("adit-inbound", Call::LastArrival, 1);
    let [first, second] = [0, 1].map(|number| pairs.pair(number));
    exchange(&first);
    send_until_sprung(&first, &pairs.trap, false);
    for _ in 0..20 {
        exchange(&first);
        exchange(&second);
    }
}
