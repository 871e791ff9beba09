//! Streams over a network that loses, repeats and reorders datagrams.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::{PATIENCE, builder, echo, endpoint, pattern, send_and_receive, v4};

/// One datagram of so many is lost, sent twice, or sent after the ones that follow.
const LOST: u64 = 200;
const TWICE: u64 = 100;
const LATE: u64 = 100;
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
        // Who is on the near side is known with the first datagram.
        let threads = [(&near, &far, 1), (&far, &near, 2)].map(|(from, to, seed)| {
            let (from, to) = (Arc::clone(from), Arc::clone(to));
            let (stop, lost) = (Arc::clone(&stop), Arc::clone(&lost));
            std::thread::spawn(move || relay(&from, &to, seed, &stop, &lost))
        });
        Self {
            stop,
            lost,
            threads: threads.into(),
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

fn relay(from: &UdpSocket, to: &UdpSocket, seed: u64, stop: &AtomicBool, lost: &AtomicU64) {
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
            late.drain(..).for_each(|datagram| drop(to.send(&datagram)));
            continue;
        };
        if from.peer_addr().is_err() {
            from.connect(source).expect("an address");
        }
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
        let _ = to.send(datagram);
        if one_of(TWICE) {
            let _ = to.send(datagram);
        }
        followed += 1;
        if followed >= 3 {
            late.drain(..).for_each(|datagram| drop(to.send(&datagram)));
        }
    }
}

#[test]
fn every_byte_arrives_over_a_network_that_loses_repeats_and_reorders() {
    let second = builder(2, 1, None).start().expect("a network");
    let relay = Relay::new(endpoint(&second));
    let first = builder(1, 2, Some(relay.address)).start();
    let first = first.expect("a network");
    echo(second.listen_tcp(7).expect("a port"));
    let target = SocketAddr::new(v4(2), 7);
    let stream = first.connect_tcp(target, PATIENCE).expect("a stream");
    let sent = pattern(BYTES, 7);
    let back = send_and_receive(&stream, &sent);
    assert!(back == sent, "{} bytes came back", back.len());
    assert!(relay.lost() > 50);
    for net in [&first, &second] {
        assert_eq!(net.stats().failed, 0);
    }
}
