//! Tunnels over sources of packets, with UDP over loopback between them.

#![cfg(feature = "engine")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use adit::{
    Change, ChannelEnd, Config, ConfigError, Doorbell, Error, Event, Fault, Frame, Full, Gso,
    GsoKind, HandOver, Packet, PacketIo, Peer, PrivateKey, Room, Threads, Tunnel, channel,
};

const PATIENCE: Duration = Duration::from_secs(20);

fn key(n: u8) -> PrivateKey {
    PrivateKey::from_bytes(&[n; 32]).expect("a key")
}

fn block(n: u8) -> adit::IpBlock {
    Ipv4Addr::new(10, 0, 0, n)
        .to_string()
        .parse()
        .expect("a block")
}

/// A tunnel of number `n`, with the other as its peer.
fn config(n: u8, other: u8, endpoint: Option<u16>) -> Config {
    let mut peer = Peer::new(key(other).public_key()).allowed_ip(block(other));
    if let Some(port) = endpoint {
        peer = peer.endpoint(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    Config::new(key(n)).peer(peer)
}

/// An IPv4 packet of UDP from 10.0.0.`from` to 10.0.0.`to` with this payload.
fn packet(from: u8, to: u8, payload: &[u8]) -> Vec<u8> {
    let len = 28 + payload.len();
    let [high, low] = u16::try_from(len).expect("a length").to_be_bytes();
    let mut packet = vec![
        0x45, 0, high, low, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, from, 10, 0, 0, to,
    ];
    let sum: u32 = packet
        .chunks(2)
        .map(|two| u32::from(two[0]) << 8 | u32::from(two[1]))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).expect("folded");
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    let [high, low] = u16::try_from(8 + payload.len())
        .expect("a length")
        .to_be_bytes();
    packet.extend([0, 7, 0, 9, high, low, 0, 0]);
    packet.extend(payload);
    packet
}

fn port(tunnel: &Tunnel) -> u16 {
    tunnel.status().expect("a status").listen_port
}

struct Ends {
    tunnels: [Tunnel; 2],
    ends: [ChannelEnd; 2],
}

/// Two tunnels; the first knows where the second is.
fn pair(threads: &Threads) -> Ends {
    let start = |config, merged| {
        let (io, end) = channel(16 << 20);
        let builder = Tunnel::builder(config)
            .threads(threads.clone())
            .merged(merged);
        (builder.packets(io).start().expect("a tunnel"), end)
    };
    let (second, second_end) = start(config(2, 1, None), false);
    let (first, first_end) = start(config(1, 2, Some(port(&second))), true);
    Ends {
        tunnels: [first, second],
        ends: [first_end, second_end],
    }
}

impl Ends {
    /// Sends packets from one to the other and back.
    fn exchange(&self) {
        for (from, to) in [(0, 1), (1, 0)] {
            let [source, destination] = [from, to].map(|n| u8::try_from(n + 1).expect("small"));
            let sent: Vec<_> = (0..100_u8)
                .map(|n| packet(source, destination, &[n; 500]))
                .collect();
            for bytes in &sent {
                self.ends[from]
                    .send(Packet::new(bytes.clone()))
                    .expect("room");
            }
            for bytes in &sent {
                let received = self.ends[to].recv(PATIENCE).expect("a packet");
                if received.gso.is_none() {
                    assert_eq!(received.bytes, *bytes);
                } else {
                    // Several as one: they are compared elsewhere.
                    break;
                }
            }
            while self.ends[to].recv(Duration::from_millis(50)).is_some() {}
        }
    }
}

#[test]
fn packets_go_through_and_come_back_as_they_were() {
    for threads in [Threads::new(1), Threads::new(3)] {
        let ends = pair(&threads);
        ends.exchange();
        let stats = ends.tunnels[1].stats();
        assert_eq!(stats.pulled, 100);
        assert!(stats.pushed >= 100, "{stats:?}");
    }
}

#[test]
fn a_train_goes_as_one_and_comes_as_it_was_cut() {
    let ends = pair(&Threads::default());
    let payload: Vec<u8> = (0..40_000_u32).map(|n| n.to_le_bytes()[1]).collect();
    let segment = 1_000;
    let gso = Gso {
        kind: GsoKind::Udp,
        segment,
    };
    let train = packet(1, 2, &payload);
    ends.ends[0]
        .send(Packet::new(train).with_gso(gso))
        .expect("room");
    for part in payload.chunks(segment.into()) {
        let received = ends.ends[1].recv(PATIENCE).expect("a packet");
        assert_eq!(&received.bytes[28..], part);
        assert_eq!(received.gso, None);
    }
    // The other way they are merged.
    let back = packet(2, 1, &payload);
    ends.ends[1]
        .send(Packet::new(back).with_gso(gso))
        .expect("room");
    let mut bytes: Vec<u8> = Vec::new();
    while bytes.len() < payload.len() {
        let received = ends.ends[0].recv(PATIENCE).expect("a packet");
        assert!(received.gso.is_none_or(|it| it == gso));
        bytes.extend(&received.bytes[28..]);
    }
    assert_eq!(bytes, payload);
}

#[test]
fn wrong_configurations_are_the_callers_fault() {
    let refused = |builder: adit::Builder| builder.start().expect_err("refused");
    let error = refused(Tunnel::builder(config(1, 2, None)));
    assert!(matches!(error, Error::NoPackets), "{error}");
    let (io, _end) = channel(1);
    let twice = config(1, 2, None).peer(Peer::new(key(2).public_key()));
    let error = refused(Tunnel::builder(twice).packets(io));
    assert!(
        matches!(error, Error::Config(ConfigError::PeerTwice(_))),
        "{error}"
    );
    assert_eq!(error.fault(), Fault::Caller);
    let (io, _end) = channel(1);
    let error = refused(Tunnel::builder(config(1, 2, None)).packets(io).mtu(10));
    assert!(
        matches!(error, Error::Config(ConfigError::Mtu(10))),
        "{error}"
    );
}

#[test]
fn a_port_that_another_has_is_the_hosts_fault() {
    let (io, _end) = channel(1);
    let first = Tunnel::builder(config(1, 2, None))
        .packets(io)
        .start()
        .expect("a tunnel");
    let (io, _end) = channel(1);
    let taken = port(&first);
    let second = Tunnel::builder(config(2, 1, None).listen_port(taken)).packets(io);
    let error = second.start().expect_err("the port is taken");
    assert!(
        matches!(error, Error::Bind { port, .. } if port == taken),
        "{error}"
    );
    assert_eq!(error.fault(), Fault::Host);
}

#[test]
fn a_tunnel_rests_goes_on_and_moves_without_a_new_session() {
    let ends = pair(&Threads::default());
    ends.exchange();
    let handshake = |n: usize| {
        let status = ends.tunnels[n].status().expect("a status");
        status.peers[0].last_handshake.expect("a handshake")
    };
    let before = handshake(0);
    let events = ends.tunnels[1].events();
    let session = std::iter::from_fn(|| events.next_timeout(PATIENCE))
        .find(|event| matches!(event, Event::Session { .. }));
    assert!(session.is_some());
    ends.tunnels[0].suspend();
    wait_until(|| {
        let _ = ends.ends[0].send(Packet::new(packet(1, 2, &[1; 10])));
        ends.ends[1].recv(Duration::from_millis(20)).is_none()
    });
    ends.tunnels[0].resume();
    wait_until(|| {
        let _ = ends.ends[0].send(Packet::new(packet(1, 2, &[2; 10])));
        ends.ends[1].recv(Duration::from_millis(20)).is_some()
    });
    ends.tunnels[0].rebind();
    while ends.ends[1].recv(Duration::from_millis(50)).is_some() {}
    wait_until(|| {
        let _ = ends.ends[0].send(Packet::new(packet(1, 2, &[3; 10])));
        ends.ends[1].recv(Duration::from_millis(20)).is_some()
    });
    assert_eq!(handshake(0), before);
}

fn wait_until(mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "it does not come to hold");
    }
}

#[test]
fn peers_come_and_go_while_it_runs() {
    let ends = pair(&Threads::default());
    ends.exchange();
    let change = Change::new().remove(key(2).public_key());
    ends.tunnels[0].set(change).expect("in force");
    assert_eq!(ends.tunnels[0].status().expect("a status").peers, []);
    ends.ends[0]
        .send(Packet::new(packet(1, 2, &[1; 10])))
        .expect("room");
    assert_eq!(ends.ends[1].recv(Duration::from_millis(50)), None);
    let back = &config(1, 2, Some(port(&ends.tunnels[1]))).peers[0];
    ends.tunnels[0]
        .set(Change::new().peer(back))
        .expect("in force");
    ends.exchange();
}

/// A source that panics, blocks, or is always full.
struct Wrong {
    panics: bool,
    has_put: AtomicBool,
    dropped: Arc<AtomicUsize>,
}

impl PacketIo for Wrong {
    fn attach(&self, bell: Doorbell) {
        bell.ring();
    }

    fn pull(&self, room: &mut Room<'_>) {
        assert!(!self.panics, "on purpose");
        if self.has_put.swap(true, Ordering::Relaxed) {
            return;
        }
        assert_eq!(room.put(&[0; 65_536], None), Err(adit::NotPut::TooLong));
        let longer = room.put_with(10, |buffer| (buffer.len() + 1, None));
        assert_eq!(longer, Err(adit::NotPut::TooLong));
        assert_eq!(room.put_with(10, |_| (0, None)), Ok(()));
        // What is no packet is dropped.
        assert_eq!(room.put(&[0xff; 100], None), Ok(()));
        let gso = Gso {
            kind: GsoKind::Tcp6,
            segment: 0,
        };
        assert_eq!(room.put(&packet(1, 2, &[0; 10]), Some(gso)), Ok(()));
        let mut put = 0;
        while room.put(&[0x45; 65_000], None).is_ok() {
            put += 1;
        }
        assert!(put < 100 && room.is_full());
    }

    fn push(&self, _frame: &Frame<'_>) -> Result<(), Full> {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        Err(Full)
    }

    fn flush(&self) {}
}

#[test]
fn a_source_that_panics_ends_its_own_tunnel_only() {
    let dropped = Arc::<AtomicUsize>::default();
    let wrong = Wrong {
        panics: true,
        has_put: AtomicBool::new(false),
        dropped,
    };
    let ends = pair(&Threads::default());
    let tunnel = Tunnel::builder(config(3, 4, None)).packets(wrong).start();
    if let Ok(tunnel) = tunnel {
        let error = tunnel.wait();
        assert!(error.to_string().contains("on purpose"), "{error}");
        assert!(matches!(tunnel.status(), Err(Error::Ended)));
        assert!(matches!(tunnel.set(Change::new()), Err(Error::Ended)));
        assert!(tunnel.events().all(|_| true));
    }
    ends.exchange();
}

#[test]
fn a_source_that_takes_nothing_and_gives_garbage_is_counted() {
    let dropped = Arc::<AtomicUsize>::default();
    let wrong = Wrong {
        panics: false,
        has_put: AtomicBool::new(false),
        dropped: Arc::clone(&dropped),
    };
    let second = Tunnel::builder(config(2, 1, None))
        .packets(wrong)
        .start()
        .expect("a tunnel");
    let (io, end) = channel(1 << 20);
    let first = Tunnel::builder(config(1, 2, Some(port(&second)))).packets(io);
    let _first = first.start().expect("a tunnel");
    wait_until(|| {
        let _ = end.send(Packet::new(packet(1, 2, &[1; 10])));
        std::thread::sleep(Duration::from_millis(5));
        dropped.load(Ordering::Relaxed) > 0
    });
    let count = |name: &str| {
        let stats = second.stats();
        let found = stats.drops.iter().find(|(known, _)| *known == name);
        found.map_or(0, |(_, count)| *count)
    };
    wait_until(|| count("deliver_failed") > 0 && count("malformed_frame") > 0);
}

#[test]
fn a_tunnel_may_be_dropped_where_it_delivers() {
    struct Dropping {
        own: std::sync::Mutex<Option<Tunnel>>,
        pushed: std::sync::mpsc::Sender<()>,
    }
    impl PacketIo for Dropping {
        fn attach(&self, _bell: Doorbell) {}
        fn pull(&self, _room: &mut Room<'_>) {}
        fn push(&self, _frame: &Frame<'_>) -> Result<(), Full> {
            drop(self.own.lock().expect("not poisoned").take());
            let _ = self.pushed.send(());
            Ok(())
        }
        fn flush(&self) {}
    }
    let (pushed, was_pushed) = std::sync::mpsc::channel();
    let own = std::sync::Mutex::default();
    let dropping = Arc::new(Dropping { own, pushed });
    let builder = Tunnel::builder(config(2, 1, None)).packets(Arc::clone(&dropping));
    let second = builder.start().expect("a tunnel");
    let (io, end) = channel(1 << 20);
    let first = Tunnel::builder(config(1, 2, Some(port(&second)))).packets(io);
    let _first = first.start().expect("a tunnel");
    *dropping.own.lock().expect("not poisoned") = Some(second);
    end.send(Packet::new(packet(1, 2, &[1; 10]))).expect("room");
    was_pushed.recv_timeout(PATIENCE).expect("it was pushed");
    let weak = Arc::downgrade(&dropping);
    drop(dropping);
    wait_until(|| {
        std::thread::sleep(Duration::from_millis(1));
        weak.upgrade().is_none()
    });
}

#[test]
fn a_driver_carries_packets_on_its_callers_thread() {
    let (io, second_end) = channel(1 << 20);
    let mut driver = Tunnel::builder(config(2, 1, None))
        .packets(io)
        .drive()
        .expect("a driver");
    let port = driver.status().expect("a status").listen_port;
    let (io, end) = channel(1 << 20);
    let first = Tunnel::builder(config(1, 2, Some(port))).packets(io);
    let _first = first.start().expect("a tunnel");
    let sent = packet(1, 2, b"to a driver");
    end.send(Packet::new(sent.clone())).expect("room");
    let until = Instant::now() + PATIENCE;
    let received = loop {
        assert!(Instant::now() < until, "nothing arrives");
        let again = driver.poll().expect("it runs");
        if let Some(packet) = second_end.try_recv() {
            break packet;
        }
        let again = again.unwrap_or(PATIENCE).min(PATIENCE);
        driver.wait(Some(again)).expect("a wait");
    };
    assert_eq!(received.bytes, sent);
    let change = Change::new().remove(key(1).public_key());
    driver.set(change).expect("in force");
    assert_eq!(driver.status().expect("a status").peers, []);
}

#[test]
fn another_tunnel_goes_on_with_the_sessions_of_one() {
    let Ends {
        tunnels: [first, second],
        ends: [first_end, second_end],
    } = pair(&Threads::default());
    let send = |end: &ChannelEnd, payload: &[u8]| {
        end.send(Packet::new(packet(1, 2, payload))).expect("room");
        let received = second_end.recv(PATIENCE).expect("a packet");
        assert_eq!(&received.bytes[28..], payload);
    };
    send(&first_end, b"before");
    let handshake = |tunnel: &Tunnel| {
        let status = tunnel.status().expect("a status");
        (status.listen_port, status.peers[0].last_handshake)
    };
    let before = handshake(&first);
    // As it goes to another process.
    let (bytes, fds) = first.hand_over().expect("it stops").into_parts();
    let handed = HandOver::from_parts(bytes, fds).expect("what was taken apart");
    let (io, end) = channel(1 << 20);
    let config = config(1, 2, Some(port(&second)));
    let tunnel = Tunnel::builder(config)
        .packets(io)
        .go_on(handed)
        .expect("a tunnel");
    send(&end, b"after");
    assert_eq!(handshake(&tunnel), before);
}

#[test]
fn bytes_that_are_no_tunnel_are_refused() {
    use adit::NotHandedOver;
    let (io, _end) = channel(1);
    let tunnel = Tunnel::builder(config(1, 2, None))
        .packets(io)
        .start()
        .expect("a tunnel");
    let handed = tunnel.hand_over().expect("it stops");
    let (bytes, fds) = handed.into_parts();
    let refused = HandOver::from_parts(bytes.clone(), Vec::new()).expect_err("no descriptors");
    assert_eq!(refused, NotHandedOver::Descriptors);
    let header = bytes.len().min(20);
    for len in 0..header {
        let part = bytes[..len].to_vec().into();
        let other = std::iter::repeat_with(|| std::fs::File::open("/dev/null").expect("it").into());
        assert!(HandOver::from_parts(part, other.take(2)).is_err(), "{len}");
    }
    let files = fds
        .iter()
        .map(|_| std::fs::File::open("/dev/null").expect("it").into());
    let handed = HandOver::from_parts(bytes, files.collect::<Vec<_>>()).expect("it looks right");
    let (io, _end) = channel(1);
    let error = Tunnel::builder(config(1, 2, None))
        .packets(io)
        .go_on(handed);
    let error = error.expect_err("no sockets");
    assert!(
        matches!(error, Error::HandOver(NotHandedOver::Descriptors)),
        "{error}"
    );
}
