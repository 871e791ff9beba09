//! Two hosts on a virtual clock, joined by function calls.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses a part of this"
)]

use std::net::SocketAddr;
use std::time::Duration;

use adit::sans_io::{Arrival, AsPacket, Device, Inbox, Now, Outbox};
use adit::{Config, Event, Peer, PrivateKey, PublicKey};

pub const A: usize = 0;
pub const B: usize = 1;

pub fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// SplitMix64.
pub fn random(seed: u64) -> impl FnMut() -> u64 + Send {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

pub fn fill(seed: u64) -> impl FnMut(&mut [u8]) + Send + 'static {
    let mut random = random(seed);
    move |buffer| {
        for chunk in buffer.chunks_mut(8) {
            chunk.copy_from_slice(&random().to_le_bytes()[..chunk.len()]);
        }
    }
}

pub fn key(n: u8) -> PrivateKey {
    PrivateKey::from_bytes(&[n + 1; 32]).unwrap()
}

pub fn addr(n: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, n.wrapping_add(1)], 51_820))
}

/// Host number `n` as others configure it: 10.0.0.(n + 1) and fd00::(n + 1).
pub fn peer(n: u8) -> Peer {
    Peer::new(key(n).public_key())
        .endpoint(addr(n))
        .allowed_ip(format!("10.0.0.{}/32", n + 1).parse().unwrap())
        .allowed_ip(format!("fd00::{}/128", n + 1).parse().unwrap())
}

pub fn device(n: u8, peers: &[u8]) -> Device {
    let config = peers
        .iter()
        .fold(Config::new(key(n)), |config, n| config.peer(peer(*n)));
    Device::with_random(&config, fill(u64::from(n) + 100)).unwrap()
}

/// A datagram on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    pub from: SocketAddr,
    pub ecn: u8,
    pub bytes: Vec<u8>,
}

pub struct Host {
    pub device: Device,
    pub addr: SocketAddr,
    pub inbox: Inbox,
    pub outbox: Outbox,
    /// What it got, merged, and by whom what was not merged was sent.
    pub got: Vec<Vec<u8>>,
    pub senders: Vec<PublicKey>,
}

impl Host {
    pub fn new(n: u8, device: Device) -> Self {
        Self {
            device,
            addr: addr(n),
            inbox: Inbox::new(),
            outbox: Outbox::new(),
            got: Vec::new(),
            senders: Vec::new(),
        }
    }

    /// What it has to send.
    pub fn sends(&mut self) -> Vec<Datagram> {
        let mut all = Vec::new();
        for train in self.outbox.drain() {
            assert!(train.bytes.len() <= 65_507 && train.datagrams().count() <= 64);
            all.extend(train.datagrams().map(|bytes| Datagram {
                from: self.addr,
                ecn: train.ecn,
                bytes: bytes.to_vec(),
            }));
        }
        all
    }

    /// Opens what came.
    pub fn receives(&mut self, now: Now, datagrams: &[Datagram]) {
        let mut rest = datagrams.iter();
        loop {
            for datagram in rest.by_ref() {
                let mut arrival = Arrival::from(datagram.from);
                arrival.ecn = datagram.ecn;
                self.inbox.push(arrival, &datagram.bytes).unwrap();
                if self.inbox.is_full() {
                    break;
                }
            }
            if self.inbox.is_empty() {
                return;
            }
            let opened = self.device.open(now, &mut self.inbox, &mut self.outbox);
            for (sender, packet) in opened.packets() {
                self.senders.push(sender);
                self.got.push(packet.to_vec());
            }
        }
    }

    /// Each packet and each datagram is counted once.
    #[track_caller]
    pub fn balances(&self) {
        let all = self.device.stats();
        let of = all.unsealed;
        let dropped = of.malformed + of.no_route + of.no_endpoint + of.too_big + of.waited;
        let known = all.sealed_packets + all.waiting_packets + dropped + of.session_ended;
        assert_eq!(all.packets, known, "{all:?}");
        let of = all.unopened;
        let dropped = of.malformed + of.handshakes + of.unknown_session + of.not_authentic;
        let dropped = dropped + of.replayed + of.not_ip + of.wrong_source + of.ecn;
        let known = all.opened_packets + all.keepalives + all.handshake_messages + dropped;
        assert_eq!(all.datagrams, known, "{all:?}");
    }
}

pub struct Pair {
    pub hosts: [Host; 2],
    pub elapsed: Duration,
    /// What the network does to datagrams of a host.
    pub network: Box<dyn FnMut(usize, Vec<Datagram>) -> Vec<Datagram>>,
}

impl Pair {
    pub fn new() -> Self {
        Self {
            hosts: [Host::new(0, device(0, &[1])), Host::new(1, device(1, &[0]))],
            elapsed: Duration::ZERO,
            network: Box::new(|_, datagrams| datagrams),
        }
    }

    /// Two that have a session.
    pub fn up() -> Self {
        let mut pair = Self::new();
        pair.seal(A, &[super::packets::udp(false, 1, 2, b"first")]);
        pair.run();
        assert_eq!(pair.hosts[B].got.len(), 1);
        pair.hosts[B].got.clear();
        pair
    }

    pub fn now(&self) -> Now {
        now(self.elapsed)
    }

    /// Seals packets of host `n`, all of which its outbox has room for.
    pub fn seal<P: AsPacket>(&mut self, n: usize, packets: &[P]) {
        let (now, host) = (self.now(), &mut self.hosts[n]);
        let taken = host.device.seal(now, packets, &mut host.outbox);
        assert_eq!(taken, packets.len());
    }

    /// Carries datagrams until there are none.
    pub fn run(&mut self) {
        let now = self.now();
        let mut idle = 0;
        while idle < 2 {
            idle += 1;
            for n in [A, B] {
                let host = &mut self.hosts[n];
                while host.device.next_deadline(now) == Some(Duration::ZERO) {
                    host.device.handle_timeout(now, &mut host.outbox);
                    if !host.outbox.is_empty() {
                        break;
                    }
                }
                let sent = host.sends();
                let arrives = (self.network)(n, sent);
                if !arrives.is_empty() {
                    idle = 0;
                }
                self.hosts[1 - n].receives(now, &arrives);
            }
        }
        self.hosts.iter().for_each(Host::balances);
    }

    /// Lets time pass, from deadline to deadline.
    pub fn pass(&mut self, time: Duration) {
        let end = self.elapsed + time;
        loop {
            self.run();
            let now = self.now();
            let hosts = self.hosts.iter();
            let next = hosts
                .filter_map(|host| host.device.next_deadline(now))
                .min();
            // What is lost at once may be due at once.
            let next = next.unwrap_or(time).max(Duration::from_millis(1));
            if self.elapsed + next > end {
                self.elapsed = end;
                return self.run();
            }
            self.elapsed += next;
        }
    }

    pub fn events(&mut self, n: usize) -> Vec<Event> {
        self.hosts[n].device.events().collect()
    }
}

pub fn now(elapsed: Duration) -> Now {
    Now::new(secs(1000) + elapsed, secs(1_800_000_000) + elapsed)
}
