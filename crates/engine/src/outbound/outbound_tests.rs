//! The outbound path on a clock of the test's, with every datagram on the wire looked at.

use std::collections::HashSet;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use adit_aead::OpenJob;
use adit_io::testing::mem::{self, MemNetwork, MemTun, MemUdp, TunEnd};
use adit_io::{FrameBatch, Offloads, RecvBatch, SendReport, Transmit};
use adit_offload::VNET_HDR_LEN;
use adit_proto::config::{AllowedIpChange, Cidr, DeviceChange, PeerChange, PublicKey, Secret};
use adit_proto::wire::DataHeader;
use adit_proto::{Device, Endpoint, Output, PeerEvent, Tai64N};
use x25519_dalek::StaticSecret;

use super::*;
use crate::outbound::buffers::{OutboundBuffers, SharedOutboundBuffers};
use crate::outbound::forward::MAX_OPEN;
use crate::outbound::transmit::MAX_SEND;
use crate::shared::common::Common;
use crate::shared::handles::{QueuesHandle, ShardCommand, ShardHandle};
use crate::shared::sockets::Sockets;
use crate::thread::wake::Waker;

const INITIATION_LEN: usize = 148;
/// Plaintext is recognised by so many bytes of it.
const RECOGNISED: usize = 8;

pub(crate) fn public(secret: &StaticSecret) -> PublicKey {
    PublicKey(x25519_dalek::PublicKey::from(secret).to_bytes())
}

pub(crate) fn device(secret: &StaticSecret, peers: Vec<PeerChange>, now: Time) -> Device {
    let mut seed = secret.to_bytes()[0];
    let mut device = Device::new(Box::new(move |bytes| {
        for byte in bytes {
            seed = seed.wrapping_mul(5).wrapping_add(17);
            *byte = seed;
        }
    }));
    let change = DeviceChange {
        private_key: Some(Secret::new(secret.as_bytes())),
        peers,
        ..DeviceChange::default()
    };
    device.apply(now, &change).expect("a right configuration");
    device
}

pub(crate) fn wall(now: Time) -> Tai64N {
    Tai64N::from_unix(now.since(Time::default()))
}

/// A shard's outbound path to a peer that is a bare [`Device`]; the control thread's part is done
/// by the test.
struct Bench<U = MemUdp> {
    outbound: Outbound<U>,
    /// Flow shards that polls ask for.
    flow_shards: usize,
    buffers: OutboundBuffers,
    common: Common<U>,
    sockets: Sockets<U>,
    tun: MemTun,
    tun_end: TunEnd,
    ours: Arc<Mutex<Device>>,
    theirs: Device,
    /// The peer's socket: it gets all that leaves.
    wire: MemUdp,
    now: Time,
    /// Pieces of all plaintext so far.
    plaintext: HashSet<Vec<u8>>,
    dice: u64,
}

impl Bench {
    fn new() -> Self {
        Self::over(|socket, _| socket)
    }
}

impl<U: UdpSocket> Bench<U> {
    /// Sends over what is made of a socket and of our device.
    fn over(make: impl FnOnce(MemUdp, Arc<Mutex<Device>>) -> U) -> Self {
        let (our_secret, their_secret) = (
            StaticSecret::from([0x11; 32]),
            StaticSecret::from([0x22; 32]),
        );
        let (our_addr, their_addr) = (
            SocketAddr::from(([192, 0, 2, 1], 51820)),
            SocketAddr::from(([192, 0, 2, 2], 51820)),
        );
        let now = Time::default() + Duration::from_secs(1000);
        let block = Cidr::new([10, 0, 0, 2].into(), 32).expect("a right prefix");
        let them = PeerChange {
            endpoint: Some(their_addr),
            allowed_ips: vec![AllowedIpChange::Add(block)],
            ..PeerChange::new(public(&their_secret))
        };
        let ours = Arc::new(Mutex::new(device(&our_secret, vec![them], now)));
        let us = PeerChange::new(public(&our_secret));
        let theirs = device(&their_secret, vec![us], now);

        let network = MemNetwork::new();
        let bind = |addr, gso| network.bind(addr, gso).expect("a free address");
        let inbound = Arc::new(Waker::new().expect("an eventfd"));
        let shard = Arc::new(ShardHandle::new(Some(inbound)).expect("an eventfd"));
        let handle = QueuesHandle::new(0, shard);
        let shared = ours.lock().expect("not poisoned").shared();
        let common = Common::new(shared, handle, Offloads::ALL, false).expect("an eventfd");
        let (tun, tun_end) = mem::tun().expect("an in-memory TUN");
        Self {
            outbound: Outbound::new(&common.queues.drops, Arc::default())
                .expect("an epoll descriptor"),
            flow_shards: 1,
            buffers: OutboundBuffers::new(&SharedOutboundBuffers::default()),
            sockets: {
                let socket = make(bind(our_addr, true), Arc::clone(&ours));
                Sockets::new(Some(socket), None, our_addr.port())
            },
            wire: bind(their_addr, false),
            common,
            tun,
            tun_end,
            ours,
            theirs,
            now,
            plaintext: HashSet::new(),
            dice: 0,
        }
    }

    /// Frames from the TUN, short and long ones, with random payload; returns how many.
    fn frames(&mut self) -> usize {
        let lengths = [1, 40, 64, 65, 500, 1000, 1400, 1400, 1400, 9];
        for len in lengths {
            let mut packet = vec![0x45, 0];
            packet.extend(u16::to_be_bytes(20 + len));
            packet.extend([0, 0, 0, 0, 64, 253, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            // The upper bytes of a linear congruential generator (Knuth's MMIX).
            packet.extend((0..len).map(|_| {
                self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005) + 1;
                self.dice.to_be_bytes()[0]
            }));
            let random = packet[20..].windows(RECOGNISED).map(<[u8]>::to_vec);
            self.plaintext.extend(random);
            let frame = [vec![0; VNET_HDR_LEN], packet].concat();
            assert!(self.tun_end.inject(frame));
        }
        lengths.len()
    }

    fn context(&self) -> OutboundContext<'_, U> {
        OutboundContext {
            common: &self.common,
            sockets: &self.sockets,
            buffers: &self.buffers,
            now: self.now,
        }
    }

    /// A poll of our own TUN, or of another one. Whether the socket is full.
    fn try_poll(&self, other: Option<&Failing>) -> io::Result<bool> {
        match other {
            Some(tun) => self.poll_of(tun),
            None => self.poll_of(&self.tun),
        }
    }

    fn poll_of(&self, tun: &impl TunQueue) -> io::Result<bool> {
        let context = self.context();
        if !self.outbound.resume(context, tun) {
            return Ok(true);
        }
        let polled = match self
            .outbound
            .take(context, tun, (true, 1), self.flow_shards)?
        {
            Taken::Batch(sequence, batch) => self.outbound.finish(context, tun, (sequence, batch)),
            Taken::Nothing => Polled::packets(0, false),
            Taken::Busy | Taken::Full => panic!("there is no other thread"),
        };
        Ok(polled == Polled::Blocked)
    }

    fn poll(&mut self) {
        let is_full = self.try_poll(None).expect("a TUN without faults");
        assert!(!is_full);
    }

    /// Datagrams that have left since the last look, none with a piece of plaintext in it.
    fn wire(&self) -> Vec<Vec<u8>> {
        let mut seen = Vec::new();
        let mut batch = RecvBatch::default();
        while self.wire.recv(&mut batch).is_ok() {
            seen.extend((0..batch.len()).map(|i| batch.bytes(i).to_vec()));
        }
        for datagram in &seen {
            let mut pieces = datagram.windows(RECOGNISED);
            assert!(
                !pieces.any(|piece| self.plaintext.contains(piece)),
                "plaintext in a datagram of type {}",
                datagram[0]
            );
        }
        seen
    }

    /// The plaintext of datagrams, in the order in which they left; none is a replay.
    fn opened(&self, wire: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let sessions = self.theirs.shared();
        let open = |(number, mut datagram): (usize, Vec<u8>)| {
            let header = DataHeader::parse(&datagram).expect("data");
            let found = sessions.session(header.receiver).expect("their session");
            let key = found.session.receive_key();
            let text = &mut datagram[DataHeader::LEN..];
            let mut jobs = [OpenJob::in_place(key, header.counter, text)];
            adit_aead::open(&mut jobs);
            assert!(jobs[0].is_authentic(), "datagram {number}");
            let fresh = found.session.window().commit(header.counter);
            assert!(fresh, "datagram {number} is a replay: {}", header.counter);
            datagram.split_off(DataHeader::LEN)
        };
        wire.into_iter().enumerate().map(open).collect()
    }

    /// Sends the initiation that staged frames asked for; the peer's response to it.
    fn initiate(&mut self) -> Vec<u8> {
        let mut ours = self.ours.lock().expect("not poisoned");
        for peer in self.common.control.take_all().0 {
            ours.handle_event(self.now, wall(self.now), &peer);
        }
        ours.handle_timeout(self.now, wall(self.now));
        let Some(Output::Handshake { to, datagram, .. }) = ours.poll_output() else {
            panic!("no initiation")
        };
        drop(ours);
        let initiation = Transmit {
            to,
            ecn: 0,
            stride: datagram.len(),
            bytes: &datagram,
        };
        let socket = self.sockets.family(false).expect("bound");
        socket.send(&[initiation], &mut SendReport::default());
        let from = SocketAddr::from(([192, 0, 2, 1], self.sockets.port)).into();
        self.theirs
            .handle_handshake(self.now, wall(self.now), from, &datagram, false);
        match self.theirs.poll_output() {
            Some(Output::Handshake { datagram, .. }) => datagram.to_vec(),
            _ => panic!("no response"),
        }
    }

    /// From nothing to a session; all that left meanwhile has been looked at.
    fn connect(&mut self) {
        self.frames();
        self.poll();
        let response = self.initiate();
        self.complete(&response);
        self.wire();
    }

    /// Takes the response; the shard has not heard of it.
    fn take_response(&mut self, response: &[u8]) {
        let from = Endpoint::from(self.wire.local_addr());
        self.ours.lock().expect("not poisoned").handle_handshake(
            self.now,
            wall(self.now),
            from,
            response,
            false,
        );
    }

    /// Takes the response; what was staged leaves.
    fn complete(&mut self, response: &[u8]) {
        self.take_response(response);
        self.hear_of_sessions();
    }

    /// Packets of up to so many bytes arrive, and longer ones neither whole nor in fragments: probes find
    /// that.
    fn narrow(&mut self, most: u16) -> Arc<Peer> {
        let mut ours = self.ours.lock().expect("not poisoned");
        let peer = Arc::clone(ours.peers().next().expect("the peer"));
        ours.probe_paths(Some(1420));
        assert!(peer.path_concerns(|| 1420));
        peer.sample(1420, [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        ours.handle_event(self.now, wall(self.now), &peer);
        for _ in 0..40 {
            while let Some(output) = ours.poll_output() {
                match output {
                    Output::Event(PeerEvent::ProbePath { id, whole, .. }) => {
                        for (sequence, _) in whole.into_iter().filter(|(_, len)| *len <= most) {
                            peer.probe_answered(id, sequence);
                        }
                    }
                    Output::Event(PeerEvent::PathFound { loses, .. }) => {
                        assert!(loses);
                        return peer;
                    }
                    _ => {}
                }
            }
            ours.handle_event(self.now, wall(self.now), &peer);
            self.now = self.now + Duration::from_secs(1);
            ours.handle_timeout(self.now, wall(self.now));
        }
        panic!("the search does not end");
    }

    fn hear_of_sessions(&mut self) {
        let next = || self.ours.lock().expect("not poisoned").poll_output();
        while let Some(output) = next() {
            if let Output::SessionReady { peer } = output {
                let context = self.context();
                self.outbound.send_staged(context, &self.tun, &peer);
                assert_eq!(self.outbound.waits_for(), None);
            }
        }
    }
}

/// Invariant 4, from before the first session to after its end.
#[test]
fn only_handshakes_leave_without_a_session_and_no_plaintext() {
    let mut bench = Bench::new();
    let mut receivers = Vec::new();
    let is_sealed = |datagram: &Vec<u8>| datagram[..4] == [4, 0, 0, 0] && datagram.len() >= 32;
    // Each round begins without a session: there is none yet, or the last one has expired.
    for round in 0..3 {
        let staged = bench.frames() + bench.frames();
        bench.poll();
        assert_eq!(
            bench.wire().len(),
            0,
            "round {round}: sent without a session"
        );
        let response = bench.initiate();
        let further = bench.frames();
        bench.poll();
        let seen = bench.wire();
        assert_eq!(seen.len(), 1, "round {round}: sent before the response");
        assert_eq!((seen[0][0], seen[0].len()), (1, INITIATION_LEN));

        bench.complete(&response);
        let seen = bench.wire();
        assert_eq!(seen.len(), staged + further);
        assert!(seen.iter().all(is_sealed));
        receivers.push(seen[0][4..8].to_vec());

        let traffic = bench.frames();
        bench.poll();
        let seen = bench.wire();
        assert_eq!(seen.len(), traffic);
        assert!(seen.iter().all(is_sealed));
        assert!(
            seen.iter()
                .all(|datagram| datagram[4..8] == receivers[round])
        );
        // REJECT_AFTER_TIME.
        bench.now = bench.now + Duration::from_secs(180);
    }
    receivers.sort();
    receivers.dedup();
    assert_eq!(receivers.len(), 3, "a session of its own for each round");
    let drops = &bench.common.queues.drops;
    assert!(DropReason::ALL.iter().all(|reason| drops.of(*reason) == 0));
}

#[test]
fn nothing_waits_for_a_peer_that_is_nowhere() {
    let mut bench = Bench::new();
    let their_key = public(&StaticSecret::from([0x22; 32]));
    let block = Cidr::new([10, 0, 0, 2].into(), 32).expect("a right prefix");
    // Without the endpoint.
    let change = DeviceChange {
        replace_peers: true,
        peers: vec![PeerChange {
            allowed_ips: vec![AllowedIpChange::Add(block)],
            ..PeerChange::new(their_key)
        }],
        ..DeviceChange::default()
    };
    let mut ours = bench.ours.lock().expect("not poisoned");
    ours.apply(bench.now, &change)
        .expect("a right configuration");
    drop(ours);
    let frames = bench.frames();
    assert!(bench.tun_end.inject(udp_gso_packet(5, 100)));
    bench.poll();
    let dropped = bench.common.queues.drops.of(DropReason::NoEndpoint);
    assert_eq!(dropped, frames as u64 + 5);
    assert!(
        !bench
            .outbound
            .look(|forwarder| forwarder.staged.holds(0))
            .contains(&true)
    );
    assert!(bench.common.control.take_all().0.is_empty());
}

/// A UDP GSO packet to the peer, of so many datagrams with so many bytes each.
fn udp_gso_packet(datagrams: u16, size: u16) -> Vec<u8> {
    let udp_len = 8 + datagrams * size;
    // NEEDS_CSUM, GSO_UDP_L4; the checksum begins behind 20 bytes, its field 6 further.
    let mut frame = vec![1, 5, 28, 0];
    frame.extend([size.to_le_bytes(), [20, 0], [6, 0]].concat());
    frame.resize(VNET_HDR_LEN, 0);
    frame.extend([0x45, 0]);
    frame.extend((20 + udp_len).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0x30, 0x39, 0x30, 0x39]);
    frame.extend(udp_len.to_be_bytes());
    frame.resize(frame.len() + 2 + usize::from(datagrams * size), 0);
    frame
}

/// The next call meets this.
type Event = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// A socket that lets something happen when it has sent.
struct Eventful {
    inner: MemUdp,
    next: Event,
}

impl UdpSocket for Eventful {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        let sent = self.inner.send(trains, report);
        if let Some(event) = self.next.lock().expect("not poisoned").take() {
            event();
        }
        sent
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        self.inner.recv(batch)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }
}

#[test]
fn a_session_that_ends_within_a_frame_drops_the_rest_of_it() {
    let next = Event::default();
    let mut bench = Bench::over(|inner, _| Eventful {
        inner,
        next: Arc::clone(&next),
    });
    bench.connect();
    // A new private key ends all sessions.
    let device = Arc::clone(&bench.ours);
    *next.lock().expect("not poisoned") = Some(Box::new(move || {
        let change = DeviceChange {
            private_key: Some(Secret::new(&[0x33; 32])),
            ..DeviceChange::default()
        };
        let mut device = device.lock().expect("not poisoned");
        device
            .apply(Time::default(), &change)
            .expect("a right configuration");
    }));

    // 200 datagrams of 300 bytes: more than a train, each long enough to leave at once.
    assert!(bench.tun_end.inject(udp_gso_packet(200, 300)));
    bench.poll();
    let left = bench.wire().len();
    assert!((1..200).contains(&left), "{left} have left");
    let ended = bench.common.queues.drops.of(DropReason::SessionEnded);
    assert_eq!(left as u64 + ended, 200);
    assert_eq!(
        bench
            .outbound
            .look(|forwarder| forwarder.staged.packets())
            .iter()
            .sum::<u64>(),
        0,
        "it would leave twice"
    );
}

/// Invariant 2.
#[test]
fn a_frame_overtakes_no_staged_frame_when_a_session_comes() {
    let next = Event::default();
    let mut bench = Bench::over(|inner, _| Eventful {
        inner,
        next: Arc::clone(&next),
    });
    // 1. Sessions with as many other peers as trains may be open.
    let others = 0..u8::try_from(MAX_OPEN).expect("few");
    let to_other = |n, mut frame: Vec<u8>| {
        frame[VNET_HDR_LEN + 16..VNET_HDR_LEN + 20].copy_from_slice(&[10, 0, 1, n]);
        frame
    };
    let us = public(&StaticSecret::from([0x11; 32]));
    for n in others.clone() {
        let secret = StaticSecret::from([0x40 + n; 32]);
        let block = Cidr::new([10, 0, 1, n].into(), 32).expect("a right prefix");
        let change = DeviceChange {
            peers: vec![PeerChange {
                endpoint: Some(bench.wire.local_addr()),
                allowed_ips: vec![AllowedIpChange::Add(block)],
                ..PeerChange::new(public(&secret))
            }],
            ..DeviceChange::default()
        };
        let mut ours = bench.ours.lock().expect("not poisoned");
        ours.apply(bench.now, &change)
            .expect("a right configuration");
        drop(ours);
        let mut other = device(&secret, vec![PeerChange::new(us)], bench.now);
        assert!(bench.tun_end.inject(to_other(n, udp_gso_packet(1, 9))));
        bench.poll();
        std::mem::swap(&mut bench.theirs, &mut other);
        let response = bench.initiate();
        std::mem::swap(&mut bench.theirs, &mut other);
        bench.complete(&response);
    }
    // 2. A frame waits for a session, and the next for the train of another peer to leave. Then the
    //    session comes.
    assert!(bench.tun_end.inject(udp_gso_packet(1, 100)));
    bench.poll();
    let response = bench.initiate();
    bench.wire();
    let (device, now, answer) = (Arc::clone(&bench.ours), bench.now, response.clone());
    let from = Endpoint::from(bench.wire.local_addr());
    *next.lock().expect("not poisoned") = Some(Box::new(move || {
        let mut device = device.lock().expect("not poisoned");
        device.handle_handshake(now, wall(now), from, &answer, false);
    }));
    for n in others {
        let datagrams = if n == 0 { 60 } else { 1 };
        let frame = udp_gso_packet(datagrams, 300);
        assert!(bench.tun_end.inject(to_other(n, frame)));
    }
    assert!(bench.tun_end.inject(udp_gso_packet(1, 200)));
    bench.poll();
    bench.complete(&response);
    // By the lengths of their datagrams.
    let mut left: Vec<_> = bench.wire().iter().map(Vec::len).collect();
    left.retain(|len| *len < 300);
    assert_eq!(
        left,
        [100, 200]
            .map(|len| 32 + 28_usize + len)
            .map(|len| len.next_multiple_of(16))
    );
}

/// Invariant 10: a thread that goes on with the routes of before keeps a frame for a peer that is gone by
/// then, and whose removal it was not told of.
#[test]
fn a_frame_for_a_peer_that_was_just_removed_is_counted() {
    let next = Event::default();
    let mut bench = Bench::over(|inner, _| Eventful {
        inner,
        next: Arc::clone(&next),
    });
    bench.connect();
    let key = public(&StaticSecret::from([0x33; 32]));
    let block = Cidr::new([10, 0, 1, 1].into(), 32).expect("a right prefix");
    let change = |section| DeviceChange {
        peers: vec![section],
        ..DeviceChange::default()
    };
    let added = change(PeerChange {
        endpoint: Some(([192, 0, 2, 3], 1).into()),
        allowed_ips: vec![AllowedIpChange::Add(block)],
        ..PeerChange::new(key)
    });
    let peer = {
        let mut ours = bench.ours.lock().expect("not poisoned");
        ours.apply(bench.now, &added)
            .expect("a right configuration");
        let found = ours.peers().find(|peer| peer.public_key() == key);
        Arc::clone(found.expect("it was added"))
    };
    let (device, now) = (Arc::clone(&bench.ours), bench.now);
    *next.lock().expect("not poisoned") = Some(Box::new(move || {
        let removed = change(PeerChange {
            remove: true,
            ..PeerChange::new(key)
        });
        let mut device = device.lock().expect("not poisoned");
        device.apply(now, &removed).expect("a right configuration");
        while device.poll_output().is_some() {}
    }));
    // A train that leaves at once, and three packets for the other peer in the same batch.
    assert!(bench.tun_end.inject(udp_gso_packet(64, 300)));
    for _ in 0..3 {
        let mut frame = udp_gso_packet(1, 100);
        frame[VNET_HDR_LEN + 16..VNET_HDR_LEN + 20].copy_from_slice(&[10, 0, 1, 1]);
        assert!(bench.tun_end.inject(frame));
    }
    bench.poll();
    for command in bench.common.queues.take_commands() {
        let ShardCommand::DropStaged(peer) = command else {
            panic!("no session began")
        };
        let context = bench.context();
        bench.outbound.drop_staged(context, &bench.tun, &peer);
    }
    assert_eq!(bench.outbound.staged_packets(), 0);
    let counted = |reason| bench.common.queues.drops.of(reason);
    assert_eq!(counted(DropReason::Staged), 3);
    assert!(peer.drops().contains(&(DropReason::Staged, 3)));
}

/// A TUN that hands out frames and then an error, as one does whose device is removed.
struct Failing(Mutex<VecDeque<Vec<u8>>>, MemTun);

impl TunQueue for Failing {
    fn read_batch(&self, batch: &mut FrameBatch) -> io::Result<bool> {
        batch.fill(|buf| {
            let Some(frame) = self.0.lock().expect("not poisoned").pop_front() else {
                return Err(rustix::io::Errno::BADFD.into());
            };
            buf[..frame.len()].copy_from_slice(&frame);
            Ok(frame.len())
        })
    }

    fn write(&self, frame: &[IoSlice<'_>]) -> io::Result<()> {
        self.1.write(frame)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.1.fd()
    }
}

#[test]
fn what_was_read_before_an_error_leaves() {
    let mut bench = Bench::new();
    bench.connect();
    let (tun, _end) = mem::tun().expect("an in-memory TUN");
    let frames = [udp_gso_packet(3, 100), udp_gso_packet(2, 50)].into();
    let failing = Failing(Mutex::new(frames), tun);
    let polled = bench.try_poll(Some(&failing));
    assert!(!polled.expect("frames were read"));
    assert_eq!(bench.wire().len(), 5);
    let polled = bench.try_poll(Some(&failing));
    assert!(polled.is_err(), "nothing but the error is left");
}

#[test]
fn a_queue_that_stands_is_reported_now_and_then() {
    let mut bench = Bench::new();
    let behind = |bench: &Bench| bench.common.control.take_all().2;
    let polls = |bench: &mut Bench, polls: usize| {
        for _ in 0..polls {
            // Frames that fill the arena, though no packets.
            for _ in 0..4 {
                assert!(bench.tun_end.inject(vec![0; 50_000]));
            }
            bench.poll();
        }
    };
    polls(&mut bench, 15);
    // Read empty once, it begins anew.
    bench.poll();
    polls(&mut bench, 15);
    assert!(!behind(&bench), "a burst is no standing queue");
    polls(&mut bench, 1);
    assert!(behind(&bench));
    polls(&mut bench, 100);
    assert!(!behind(&bench), "it was just told");
    bench.now = bench.now + TELL_EVERY;
    polls(&mut bench, 1);
    assert!(behind(&bench), "it may not have overflowed before");
}

/// A socket that has no room for as many calls as the number says, but for the first datagram of
/// each.
struct Refusing {
    inner: MemUdp,
    calls: Arc<AtomicUsize>,
}

impl UdpSocket for Refusing {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        let less = |calls: usize| calls.checked_sub(1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        if self.calls.fetch_update(set, fetch, less).is_ok() {
            let Transmit { stride, bytes, .. } = trains[0];
            if bytes.len() > stride {
                let first = Transmit {
                    bytes: &bytes[..stride],
                    ..trains[0]
                };
                self.inner.send(&[first], report);
                report.resume_at = stride;
            }
            return 0;
        }
        self.inner.send(trains, report)
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        self.inner.recv(batch)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }
}

/// A bench with such a socket, and its number.
fn refusing() -> (Bench<Refusing>, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let bench = Bench::over(|inner, _| Refusing {
        inner,
        calls: Arc::clone(&calls),
    });
    (bench, calls)
}

/// Invariant 6.
#[test]
fn no_frame_sleeps_because_the_socket_was_full_for_a_moment() {
    let (mut bench, calls) = refusing();
    bench.connect();
    // One refusal for the first batch of trains, and one for the next frame, which finds no room.
    // Then the socket drains.
    for refused in 0..4 {
        calls.store(refused, Ordering::Relaxed);
        let frames = MAX_SEND + 8;
        for n in 0..frames {
            // ECN marks that differ end a train.
            let mut frame = udp_gso_packet(1, 100);
            frame[VNET_HDR_LEN + 1] = u8::from(n % 2 == 0);
            assert!(bench.tun_end.inject(frame));
        }
        let is_full = bench.try_poll(None).expect("a TUN without faults");
        assert_eq!(is_full, bench.outbound.waits_for().is_some());
        if is_full {
            assert_eq!(calls.load(Ordering::Relaxed), 0, "it has room");
            bench.poll();
        }
        assert_eq!(bench.wire().len(), frames, "{refused} refusals");
    }
}

/// Invariant 6: a batch is stopped with frames left. Whatever empties the socket, these leave, though
/// nothing more comes from the TUN. As long as something waits for the socket, that wakes the owner.
#[test]
fn what_is_left_of_a_batch_leaves_whatever_makes_room() {
    type Makes = fn(&Bench<Refusing>, &Arc<Peer>);
    let ways: [(&str, Makes); 4] = [
        ("the socket has room", |bench, _| {
            assert!(bench.outbound.resume(bench.context(), &bench.tun));
        }),
        ("a session began", |bench, peer| {
            let (context, tun) = (bench.context(), &bench.tun);
            assert!(bench.outbound.send_staged(context, tun, peer));
        }),
        ("no session will begin", |bench, peer| {
            let (context, tun) = (bench.context(), &bench.tun);
            bench.outbound.drop_staged(context, tun, peer);
        }),
        ("slow peers were looked for", |bench, _| {
            bench.outbound.isolate(bench.context(), &bench.tun);
        }),
    ];
    for (way, make_room) in ways {
        for flow_shards in [1, 2, 8] {
            let (mut bench, calls) = refusing();
            bench.connect();
            bench.flow_shards = flow_shards;
            let frames = 200;
            for n in 0..frames {
                let mut frame = udp_gso_packet(1, 100);
                // ECN marks that differ end a train.
                frame[VNET_HDR_LEN + 1] = n % 2;
                frame[VNET_HDR_LEN + 15] = n;
                assert!(bench.tun_end.inject(frame));
            }
            calls.store(usize::MAX, Ordering::Relaxed);
            assert!(bench.try_poll(None).expect("a TUN without faults"));
            calls.store(0, Ordering::Relaxed);
            let peer = {
                let ours = bench.ours.lock().expect("not poisoned");
                Arc::clone(ours.peers().next().expect("the peer"))
            };
            make_room(&bench, &peer);
            if bench.outbound.waits_for().is_some() {
                bench.poll();
            }
            assert_eq!(
                bench.wire().len(),
                frames.into(),
                "{way}, {flow_shards} flow shards"
            );
            assert!(
                bench.outbound.is_drained(),
                "{way}, {flow_shards} flow shards"
            );
        }
    }
}

/// A shard whose socket is full keeps sealed trains, while others go on with the counters of the
/// session.
#[test]
fn what_a_full_socket_held_is_no_replay_when_it_leaves() {
    let (mut bench, calls) = refusing();
    bench.frames();
    bench.poll();
    let response = bench.initiate();
    bench.wire();
    bench.complete(&response);
    let mut wire = bench.wire();
    // 1. The first shard seals 150 packets, of which one leaves.
    let frames = |bench: &Bench<Refusing>, count| {
        for _ in 0..count {
            assert!(bench.tun_end.inject(udp_gso_packet(50, 100)));
        }
    };
    frames(&bench, 3);
    calls.store(usize::MAX, Ordering::Relaxed);
    assert!(bench.try_poll(None).expect("a TUN without faults"));
    calls.store(0, Ordering::Relaxed);
    // 2. The second one sends more than two replay windows.
    let drops = Arc::clone(&bench.common.queues.drops);
    let second = Outbound::new(&drops, Arc::default()).expect("an epoll descriptor");
    let first = std::mem::replace(&mut bench.outbound, second);
    for _ in 0..50 {
        frames(&bench, 7);
        bench.poll();
        wire.extend(bench.wire());
    }
    // 3. What the first one held leaves.
    bench.outbound = first;
    bench.poll();
    wire.extend(bench.wire());

    assert_eq!(wire.len(), 10 + 150 + 50 * 350);
    bench.opened(wire);
}

/// Flows that go to one peer, through several flow shards.
const FLOWS: u8 = 16;

/// The next packet of each flow: its number is its payload.
fn next_of_each_flow(bench: &Bench<impl UdpSocket>, number: &mut u32) {
    for flow in 0..FLOWS {
        let mut frame = udp_gso_packet(1, 4);
        frame[..VNET_HDR_LEN].fill(0);
        frame[VNET_HDR_LEN + 12..VNET_HDR_LEN + 16].copy_from_slice(&[10, 1, 0, flow]);
        let end = frame.len();
        frame[end - 4..].copy_from_slice(&number.to_be_bytes());
        assert!(bench.tun_end.inject(frame));
    }
    *number += 1;
}

/// Of each flow these numbers, in this order.
fn assert_order(packets: &[Vec<u8>], numbers: std::ops::Range<u32>) {
    let mut next = [numbers.start; FLOWS as usize];
    for packet in packets {
        let number = u32::from_be_bytes(*packet[28..].first_chunk().expect("four bytes"));
        let next = &mut next[usize::from(packet[15])];
        assert_eq!(number, *next, "of flow {}", packet[15]);
        *next += 1;
    }
    assert_eq!(next, [numbers.end; FLOWS as usize]);
}

/// Invariant 2: the thread that took the first batch is late, and others seal and file those behind it.
#[test]
fn flows_keep_their_order_through_several_flow_shards() {
    let mut bench = Bench::new();
    bench.connect();
    let mut number = 0;
    for flow_shards in [2, 8, 1, 4] {
        bench.flow_shards = flow_shards;
        let context = bench.context();
        let first = number;
        let batches: Vec<_> = (0..3)
            .map(|_| {
                next_of_each_flow(&bench, &mut number);
                match bench
                    .outbound
                    .take(context, &bench.tun, (true, 1), flow_shards)
                {
                    Ok(Taken::Batch(sequence, batch)) => (sequence, batch),
                    other => panic!("{:?}", other.map(|_| ())),
                }
            })
            .collect();
        assert_eq!(bench.outbound.queue.in_use(), flow_shards);
        // Another number waits until they are transmitted.
        let number_of_others = if flow_shards == 1 { 2 } else { 1 };
        let other = bench
            .outbound
            .take(context, &bench.tun, (false, 1), number_of_others);
        assert!(matches!(other, Ok(Taken::Full)), "batches are on their way");
        for batch in batches.into_iter().rev() {
            let polled = bench.outbound.finish(context, &bench.tun, batch);
            assert!(polled.has_packets());
        }
        let wire = bench.wire();
        assert_order(&bench.opened(wire), first..number);
        let used: HashSet<_> = (0..FLOWS)
            .map(|flow| {
                let mut frame = udp_gso_packet(1, 4);
                frame[VNET_HDR_LEN + 12..VNET_HDR_LEN + 16].copy_from_slice(&[10, 1, 0, flow]);
                flow_shard_of(&Frame::parse(&frame).expect("right"), flow_shards)
            })
            .collect();
        assert!(2 * used.len() >= flow_shards, "{used:?} of {flow_shards}");
    }
}

/// Invariants 2 and 10: frames wait for a session at several flow shards, and then there are more, or
/// fewer. What had no session when its batch was split comes after what was staged.
#[test]
fn frames_that_wait_keep_their_order_when_flow_shards_change() {
    let mut bench = Bench::new();
    let mut number = 0;
    for [before, after] in [[1, 8], [8, 2], [4, 1]] {
        let first = number;
        bench.flow_shards = before;
        next_of_each_flow(&bench, &mut number);
        bench.poll();
        bench.flow_shards = after;
        next_of_each_flow(&bench, &mut number);
        bench.poll();
        let waiting = bench.outbound.waiting.read();
        assert_eq!(waiting.staged_packets, 2 * u64::from(FLOWS));
        assert_eq!(waiting.staged_frames, 2 * u64::from(FLOWS));
        assert_eq!(bench.outbound.staged_packets(), 2 * u64::from(FLOWS));
        let response = bench.initiate();
        bench.wire();
        bench.take_response(&response);
        next_of_each_flow(&bench, &mut number);
        bench.poll();
        bench.hear_of_sessions();
        let wire = bench.wire();
        assert_order(&bench.opened(wire), first..number);
        assert_eq!(bench.outbound.waiting.read(), Default::default());
        // REJECT_AFTER_TIME.
        bench.now = bench.now + Duration::from_secs(180);
    }
    let drops = &bench.common.queues.drops;
    assert!(DropReason::ALL.iter().all(|reason| drops.of(*reason) == 0));
}

/// Invariants 2 and 6: the socket is full, with packets in each flow shard, and then it is not.
#[test]
fn a_full_socket_holds_every_second_gate_and_then_none() {
    let (mut bench, calls) = refusing();
    bench.connect();
    bench.flow_shards = 4;
    let mut number = 0;
    for refused in 1..8 {
        let first = number;
        calls.store(refused, Ordering::Relaxed);
        next_of_each_flow(&bench, &mut number);
        let mut polls = 0;
        while bench.try_poll(None).expect("a TUN without faults") {
            // Another number waits until all that is sealed has left.
            bench.flow_shards = 4 + 4 * (polls % 2);
            next_of_each_flow(&bench, &mut number);
            polls += 1;
            assert!(polls < 100, "{refused} refusals");
        }
        bench.poll();
        let wire = bench.wire();
        assert_order(&bench.opened(wire), first..number);
    }
}

/// The sender of what is lost is told, and not for each packet, as answers take memory and time. IPv4 whose
/// packets anybody may fragment is lost as well.
#[test]
fn senders_of_what_is_lost_are_told_once_in_a_millisecond() {
    let mut bench = Bench::new();
    bench.connect();
    let peer = bench.narrow(1300);
    assert!((1285..=1300).contains(&peer.path_limit().expect("a limit")));
    let mut lost = 0;
    for (pause, told) in [(0, 1), (1, 0), (998, 0), (1, 1), (1000, 1), (999, 0)] {
        bench.now = bench.now + Duration::from_micros(pause);
        for fragments in [0, 0x40, 0, 0x40] {
            let mut frame = udp_gso_packet(1, 1350);
            frame[VNET_HDR_LEN + 6] = fragments;
            assert!(bench.tun_end.inject(frame));
        }
        bench.poll();
        lost += 4;
        let answers = bench.common.control.take_answers().len();
        assert_eq!(answers, told, "{pause} us later");
    }
    let counted = |reason| bench.common.queues.drops.of(reason);
    assert_eq!(counted(DropReason::PathMtu), lost);
    assert_eq!(bench.wire().len(), 0);
}

/// Where there are many peers, most handshakes are none of a shard's business.
#[test]
fn a_shard_hears_only_of_handshakes_that_its_frames_wait_for() {
    let mut bench = Bench::new();
    let peer = |bench: &Bench| {
        let ours = bench.ours.lock().expect("not poisoned");
        Arc::clone(ours.peers().next().expect("the peer"))
    };
    let heard = |bench: &Bench| {
        let handle = &bench.common.queues;
        handle.tell(ShardCommand::SessionReady(peer(bench)));
        handle.tell(ShardCommand::DropStaged(peer(bench)));
        handle.take_commands().len()
    };
    assert_eq!(heard(&bench), 0, "nothing waits");
    bench.frames();
    bench.poll();
    assert_eq!(heard(&bench), 1, "once for all that waits");
    let response = bench.initiate();
    bench.complete(&response);
    bench.frames();
    bench.poll();
    assert_eq!(heard(&bench), 0, "all has left");
}
