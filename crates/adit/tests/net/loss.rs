//! Streams over a network that loses, repeats and reorders datagrams, and from ports that change.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::{PATIENCE, builder, echo, endpoint, pattern, v4};

/// One datagram of so many is lost, sent twice, or sent after the ones that follow.
const LOST: u64 = 200;
const TWICE: u64 = 100;
const LATE: u64 = 100;
/// What is sent and comes back; `ADIT_LOSS_BYTES` has it be more.
const BYTES: usize = 20 << 20;

/// Passes datagrams on from one socket to another, badly.
pub(crate) struct Relay {
    stop: Arc<AtomicBool>,
    lost: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<()>>,
    pub(crate) address: SocketAddr,
}

impl Relay {
    pub(crate) fn new(to: SocketAddr) -> Self {
        let bind = || Arc::new(UdpSocket::bind("127.0.0.1:0").expect("a socket"));
        let (near, far) = (bind(), bind());
        let address = near.local_addr().expect("an address");
        far.connect(to).expect("an address");
        let (stop, lost) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        // Who is on the near side is known with the first datagram, and changes.
        let who = Arc::new(Mutex::new(None));
        let out = {
            let (who, near) = (Arc::clone(&who), Arc::clone(&near));
            let (far, stop, lost) = (Arc::clone(&far), Arc::clone(&stop), Arc::clone(&lost));
            std::thread::spawn(move || {
                let note = |source| *who.lock().expect("no panic") = Some(source);
                relay(&near, note, |bytes| drop(far.send(bytes)), 1, &stop, &lost);
            })
        };
        let back = {
            let (stop, lost) = (Arc::clone(&stop), Arc::clone(&lost));
            std::thread::spawn(move || {
                let send = |bytes: &[u8]| {
                    if let Some(to) = *who.lock().expect("no panic") {
                        let _ = near.send_to(bytes, to);
                    }
                };
                relay(&far, |_| (), send, 2, &stop, &lost);
            })
        };
        Self {
            stop,
            lost,
            threads: vec![out, back],
            address,
        }
    }

    /// Datagrams that were lost.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn relay(
    from: &UdpSocket,
    note: impl Fn(SocketAddr),
    send: impl Fn(&[u8]),
    seed: u64,
    stop: &AtomicBool,
    lost: &AtomicU64,
) {
    let mut state = seed;
    let mut one_of = |n: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33).is_multiple_of(n)
    };
    let mut buffer = [0; 2048];
    let mut late: Vec<Vec<u8>> = Vec::new();
    let mut followed = 0;
    from.set_read_timeout(Some(Duration::from_millis(20)))
        .expect("a time");
    while !stop.load(Ordering::Relaxed) {
        let Ok((len, source)) = from.recv_from(&mut buffer) else {
            late.drain(..).for_each(|datagram| send(&datagram));
            continue;
        };
        note(source);
        let datagram = &buffer[..len];
        if one_of(LOST) {
            lost.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        if one_of(LATE) {
            late.push(datagram.to_vec());
            followed = 0;
            continue;
        }
        send(datagram);
        if one_of(TWICE) {
            send(datagram);
        }
        followed += 1;
        if followed >= 3 {
            late.drain(..).for_each(|datagram| send(&datagram));
        }
    }
}

#[test]
fn every_byte_arrives_over_a_network_that_loses_repeats_and_reorders() {
    let bytes = std::env::var("ADIT_LOSS_BYTES").ok();
    let bytes = bytes.and_then(|text| text.parse().ok()).unwrap_or(BYTES);
    let second = builder(2, 1, None).start().expect("a network");
    let relay = Relay::new(endpoint(&second));
    let first = builder(1, 2, Some(relay.address)).start();
    let first = first.expect("a network");
    echo(second.listen_tcp(7).expect("a port"));
    let target = SocketAddr::new(v4(2), 7);
    let stream = first.connect_tcp(target, PATIENCE).expect("a stream");
    // A piece has a length that no buffer has, and each its own begin.
    let piece = pattern(1_000_003, 7);
    let piece_at = |at: usize| {
        let mut piece = piece.clone();
        piece[..8].copy_from_slice(&at.to_le_bytes());
        piece.truncate(bytes - at);
        piece
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for at in (0..bytes).step_by(piece.len()) {
                (&stream).write_all(&piece_at(at)).expect("it takes all");
            }
            stream.shutdown(Shutdown::Write).expect("it is open");
        });
        let mut is_rebound = false;
        for at in (0..bytes).step_by(piece.len()) {
            let sent = piece_at(at);
            let mut back = vec![0; sent.len()];
            (&stream).read_exact(&mut back).expect("it goes on");
            assert!(back == sent, "after {at} bytes");
            if at > bytes / 2 && !is_rebound {
                first.tunnel().rebind();
                is_rebound = true;
            }
        }
        assert_eq!((&stream).read(&mut [0]).expect("it ends well"), 0);
    });
    assert!(relay.lost() > 50);
    for net in [&first, &second] {
        assert_eq!(net.stats().failed, 0);
    }
}
