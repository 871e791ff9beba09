//! The inbound path changes threads: to one of its own while little moves, and back under load.

#[allow(dead_code, reason = "each test file uses a part of this")]
mod common;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use adit_io::testing::mem::MemUdp;
use adit_io::{Arrival, RecvBatch, SendReport, Transmit, UdpSocket};
use adit_proto::Time;
use common::{A, B, EnginePair, Options, inner_ip, segments, udp_frame};

const INBOUND: &str = "adit-inbound";
const SHARD: &str = "adit-shard-0";

/// The thread that received last.
type Receiver = Arc<Mutex<String>>;

/// Says that all it receives arrived on the first CPU, and notes which thread takes it.
struct Placed {
    socket: MemUdp,
    receiver: Receiver,
}

impl UdpSocket for Placed {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        self.socket.send(trains, report)
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        self.socket.recv(batch)?;
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default();
        name.clone_into(&mut self.receiver.lock().expect("no panic while locked"));
        if name == INBOUND {
            // Now the shard could overtake.
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }

    fn last_arrival(&self) -> Option<Arrival> {
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

/// With one CPU there is nothing to be gained, and the inbound path stays with the shard.
fn one_cpu_only() -> bool {
    let one = cpus().count() == 1;
    if one {
        println!("there is one CPU only: nothing changes threads");
    }
    one
}

fn frame(number: usize) -> Vec<u8> {
    let number = u32::try_from(number).expect("32 bits").to_be_bytes();
    udp_frame(inner_ip(A), inner_ip(B), (1, 2), 0, &number)
}

#[test]
fn packets_keep_their_order_when_the_inbound_thread_changes() {
    if one_cpu_only() {
        return;
    }
    let receivers = [A, B].map(|_| Receiver::default());
    let receiver = receivers[B].clone();
    let pair = EnginePair::with_sockets(Options::default(), move |side, socket| Placed {
        socket,
        receiver: receivers[side].clone(),
    });
    let mut sent = 0;
    // Until the inbound path is with that thread, sends `count` packets and expects them, then
    // pauses.
    let mut send_until = |thread: &str, count: usize, pause: Duration| {
        let start = Instant::now();
        let mut apart = true;
        while *receiver.lock().expect("no panic while locked") != thread {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "{thread} has nothing to do"
            );
            let frames: Vec<_> = (sent..sent + count).map(frame).collect();
            sent += count;
            let expected: Vec<_> = frames.iter().flat_map(|frame| segments(frame)).collect();
            for frame in frames {
                pair.inject(A, frame);
                // Packets that come one by one, without rest, make as many polls. Beside other
                // processes that is a rest, and they are no load: the next time they come at once.
                if apart {
                    std::thread::yield_now();
                }
            }
            apart = false;
            assert!(
                pair.delivered(B, count) == expected,
                "after {} packets",
                sent - count
            );
            std::thread::sleep(pause);
        }
    };
    for _ in 0..20 {
        send_until(INBOUND, 1, Duration::from_millis(2));
        send_until(SHARD, 500, Duration::ZERO);
    }
}

/// Sockets are lent and reclaimed also when they are replaced or nothing comes any more.
#[test]
fn a_lent_socket_can_be_replaced_and_the_engine_stopped() {
    if one_cpu_only() {
        return;
    }
    let receiver = Receiver::default();
    let noted = receiver.clone();
    let pair = EnginePair::with_sockets(Options::default(), move |side, socket| Placed {
        socket,
        receiver: if side == B {
            receiver.clone()
        } else {
            Receiver::default()
        },
    });
    for port in [7000, 7001, 7002] {
        for n in 0..8 {
            pair.inject(A, frame(n));
            assert_eq!(pair.delivered(B, 1), segments(&frame(n)));
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(*noted.lock().expect("no panic while locked"), INBOUND);
        let mut change = pair.configuration(B);
        change.listen_port = Some(port);
        pair.sides[B].interface.set(change).expect("a free port");
        // From its new port, so that the other side learns of it.
        let back = udp_frame(inner_ip(B), inner_ip(A), (1, 2), 0, &[1]);
        pair.inject(B, back.clone());
        assert_eq!(pair.delivered(A, 1), segments(&back));
    }
    for side in &pair.sides {
        side.interface.stop();
        assert!(matches!(
            side.interface.wait(),
            adit_engine::StopReason::Asked
        ));
    }
}
