//! Probes of the paths to many peers leave together, since a socket is opened for those that do.
//!
//! ```text
//!   TUN → gateway → network → leaf 1, leaf 2 … → a TUN each
//! ```

#[allow(dead_code, reason = "each test file uses a part of this")]
mod common;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use adit_engine::{Engine, Interface, MemPlatform};
use adit_io::testing::mem::{self, MemNetwork, MemUdp, TunEnd};
use adit_io::{Cut, Offloads, RecvBatch, SendReport, Transmit, UdpSocket};
use common::star::{address, configuration, inner};
use common::{segments, udp_frame};

const LEAVES: u8 = 48;
/// Trains that a socket which is opened for probes has room for.
const ROOM: usize = 8;
/// How long probes wait for others.
const TOGETHER: Duration = Duration::from_millis(10);

/// What was sent beside sockets.
#[derive(Default)]
struct Beside {
    sockets: AtomicUsize,
    trains: AtomicUsize,
}

struct Counting {
    socket: MemUdp,
    beside: Arc<Beside>,
}

impl UdpSocket for Counting {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        self.socket.send(trains, report)
    }

    fn send_beside(&self, trains: &[Transmit<'_>], _cut: Cut, report: &mut SendReport) -> usize {
        let some = &trains[..trains.len().min(ROOM)];
        self.beside.sockets.fetch_add(1, Ordering::SeqCst);
        self.beside.trains.fetch_add(some.len(), Ordering::SeqCst);
        self.send(some, report)
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        self.socket.recv(batch)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }
}

/// Takes what comes to each leaf until `is_enough` of each; it is told the protocol and the length.
fn until(leaves: &[(Interface, TunEnd)], mut is_enough: impl FnMut(usize, u8, usize) -> bool) {
    let begun = Instant::now();
    let mut missing: BTreeSet<usize> = (0..leaves.len()).collect();
    while !missing.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{missing:?}");
        for (index, (_, tun)) in leaves.iter().enumerate() {
            for packet in tun.take().iter().flat_map(|frame| segments(frame)) {
                if is_enough(index, packet[9], packet.len()) {
                    missing.remove(&index);
                }
            }
        }
    }
}

#[test]
fn probes_of_many_peers_leave_together() {
    const ICMP: u8 = 1;
    let (network, beside) = (MemNetwork::new(), Arc::new(Beside::default()));
    let engine = Engine::start(1).expect("an engine");
    let (tun, end) = mem::tun().expect("a TUN");
    let platform = MemPlatform::new(&network, address(0)).expect("a host");
    let counted = Arc::clone(&beside);
    let platform = platform.with_probes().with_sockets(move |socket| Counting {
        socket,
        beside: Arc::clone(&counted),
    });
    let gateway = engine.add(tun, platform, Offloads::ALL);
    let gateway = gateway.expect("an interface");
    let change = configuration(0, 1..=LEAVES);
    gateway.set(change).expect("a right configuration");
    let of_leaves = Engine::start(1).expect("an engine");
    let leaf = |host| {
        let (tun, end) = mem::tun().expect("a TUN");
        let platform = MemPlatform::new(&network, address(host)).expect("a host");
        let interface = of_leaves.add(tun, platform, Offloads::ALL);
        let interface = interface.expect("an interface");
        let change = configuration(host, std::iter::once(0));
        interface.set(change).expect("a right configuration");
        (interface, end)
    };
    let leaves: Vec<(Interface, TunEnd)> = (1..=LEAVES).map(leaf).collect();

    // 1. Sessions, without a packet that is long enough for a search.
    let to_all = |len: usize| {
        for host in 1..=LEAVES {
            let frame = udp_frame(inner(0), inner(host), (1, 2), 0, &vec![0; len]);
            assert!(end.inject(frame), "the ring is full");
        }
    };
    to_all(10);
    until(&leaves, |_, _, _| true);
    assert_eq!(beside.sockets.load(Ordering::SeqCst), 0);

    // 2. A long packet to each begins a search: a long probe and a short one.
    let begun = Instant::now();
    to_all(1300);
    let mut lengths = vec![BTreeSet::new(); LEAVES.into()];
    until(&leaves, |index, protocol, len| {
        if protocol == ICMP {
            lengths[index].insert(len);
        }
        lengths[index].len() == 2
    });
    let times = begun.elapsed().as_millis() / TOGETHER.as_millis() + 1;
    let times = usize::try_from(times).expect("few");
    let (sockets, trains) = (
        beside.sockets.load(Ordering::SeqCst),
        beside.trains.load(Ordering::SeqCst),
    );
    assert!(trains >= usize::from(LEAVES) * 2, "{trains}");
    // Nothing else is sent beside: there is no sign of a limit, so that no probe may be fragmented.
    let most = times + trains / ROOM;
    assert!(sockets <= most, "{sockets} sockets, {most} would do");
}
