//! Two or more hosts on a virtual clock, joined by a network that loses, delays, reorders and
//! duplicates.
//!
//! A host is a [`Device`] and the least of an engine: it seals, opens and stages one packet at a
//! time, and calls what a shard calls. Everything is derived from one seed.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses a part of this"
)]

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use adit_aead::{OpenJob, SealJob, TAG_LEN};
use adit_proto::config::{
    AllowedIpChange, Cidr, DeviceChange, PeerChange, PeerStatus, PublicKey, Secret,
};
use adit_proto::wire::{self, DataHeader, Kind};
use adit_proto::{Device, Endpoint, HandshakeStats, Output, Peer, Session, Tai64N, Time};

pub const A: usize = 0;
pub const B: usize = 1;
/// When the virtual clock starts.
pub const START: Time = Time(1_000_000_000_000);
/// The time of day at `START`, since the Unix epoch.
const WALL: Duration = Duration::from_secs(1_800_000_000);

pub fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// SplitMix64: small, seeded, and good enough to lose packets with.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

pub fn device(seed: u64) -> Device {
    let mut random = Random(seed);
    Device::new(Box::new(move |buffer| {
        for chunk in buffer.chunks_mut(8) {
            chunk.copy_from_slice(&random.next().to_le_bytes()[..chunk.len()]);
        }
    }))
}

/// The private key of host number `n`.
pub fn private_key(n: usize) -> Secret {
    let mut bytes = [u8::try_from(n + 1).unwrap(); 32];
    bytes[0] &= 248;
    bytes[31] = bytes[31] & 127 | 64;
    Secret::new(&bytes)
}

pub fn public_key(n: usize) -> PublicKey {
    public_of(&private_key(n))
}

pub fn public_of(private: &Secret) -> PublicKey {
    PublicKey(x25519_dalek::x25519(
        *private.bytes(),
        x25519_dalek::X25519_BASEPOINT_BYTES,
    ))
}

pub fn cidr(text: &str) -> Cidr {
    let (addr, len) = text.split_once('/').unwrap();
    Cidr::new(addr.parse().unwrap(), len.parse().unwrap()).unwrap()
}

pub fn add(text: &str) -> AllowedIpChange {
    AllowedIpChange::Add(cidr(text))
}

/// A change of one peer and nothing else.
pub fn peer(n: usize, change: impl FnOnce(&mut PeerChange)) -> DeviceChange {
    let mut section = PeerChange::new(public_key(n));
    change(&mut section);
    DeviceChange {
        peers: vec![section],
        ..DeviceChange::default()
    }
}

pub struct VirtualHost {
    pub device: Device,
    pub addr: SocketAddr,
    /// How far the time of day is ahead, in seconds.
    pub skew: i64,
    pub staged: HashMap<u32, Vec<Vec<u8>>>,
    /// Plaintexts of data packets, in order.
    pub delivered: Vec<Vec<u8>>,
    pub drops: usize,
    pub staged_drops: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    pub at: Time,
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub bytes: Vec<u8>,
}

impl Datagram {
    pub fn kind(&self) -> &'static str {
        match (self.bytes[0], self.bytes.len()) {
            (1, _) => "initiation",
            (2, _) => "response",
            (3, _) => "cookie",
            (4, 32) => "keepalive",
            _ => "data",
        }
    }
}

/// What the network does to a datagram; percentages.
#[derive(Clone, Copy)]
pub struct Weather {
    pub loss: u64,
    pub duplicates: u64,
    pub delay_min: u64,
    pub delay_max: u64,
}

impl Weather {
    pub const FAIR: Weather = Weather {
        loss: 0,
        duplicates: 0,
        delay_min: 5,
        delay_max: 5,
    };
}

pub struct Net {
    pub now: Time,
    pub hosts: Vec<VirtualHost>,
    /// By which they know each other, if not by those of [`private_key`].
    pub publics: Vec<PublicKey>,
    pub weather: Weather,
    pub under_load: bool,
    /// Everything that was sent, lost or not.
    pub log: Vec<Datagram>,
    flying: BTreeMap<(Time, u64), Datagram>,
    count: u64,
    pub random: Random,
}

impl Net {
    /// Two hosts that are each other's peers; only A knows where B is. No persistent keepalive.
    pub fn pair(seed: u64) -> Self {
        let mut net = Self::of(2, seed);
        let to = net.hosts[B].addr;
        net.apply(
            A,
            &peer(B, |peer| {
                peer.endpoint = Some(to);
                peer.allowed_ips = vec![add("10.0.0.2/32")];
            }),
        );
        net.apply(
            B,
            &peer(A, |peer| peer.allowed_ips = vec![add("10.0.0.1/32")]),
        );
        net
    }

    /// Hosts with keys and no peers.
    pub fn of(count: usize, seed: u64) -> Self {
        let hosts = (0..count).map(|n| VirtualHost {
            device: device(seed << 8 | n as u64),
            addr: format!("192.0.2.{}:51820", n + 1).parse().unwrap(),
            skew: 0,
            staged: HashMap::new(),
            delivered: Vec::new(),
            drops: 0,
            staged_drops: 0,
        });
        let mut net = Self {
            now: START,
            hosts: hosts.collect(),
            publics: (0..count).map(public_key).collect(),
            weather: Weather::FAIR,
            under_load: false,
            log: Vec::new(),
            flying: BTreeMap::new(),
            count: 0,
            random: Random(seed),
        };
        for n in 0..count {
            net.apply(
                n,
                &DeviceChange {
                    private_key: Some(private_key(n)),
                    ..DeviceChange::default()
                },
            );
        }
        net
    }

    pub fn wall(&self, host: usize) -> Tai64N {
        let skew = self.hosts[host].skew;
        let wall = WALL + self.now.since(START);
        Tai64N::from_unix(if skew < 0 {
            wall - secs(skew.unsigned_abs())
        } else {
            wall + secs(skew.unsigned_abs())
        })
    }

    pub fn apply(&mut self, host: usize, change: &DeviceChange) {
        self.hosts[host].device.apply(self.now, change).unwrap();
        self.drain(host);
    }

    fn public(&self, host: usize) -> PublicKey {
        let known = self.publics.get(host).copied();
        known.unwrap_or_else(|| public_key(host))
    }

    pub fn peer(&self, host: usize, peer: usize) -> Arc<Peer> {
        let key = self.public(peer);
        Arc::clone(self.hosts[host].device.peer(&key).expect("a peer"))
    }

    pub fn session(&self, host: usize, peer: usize) -> Arc<Session> {
        self.peer(host, peer).current().expect("a session")
    }

    pub fn status(&self, host: usize, peer: usize) -> PeerStatus {
        let key = self.public(peer);
        let status = self.hosts[host].device.status();
        let mut peers = status.peers.into_iter();
        peers
            .find(|status| status.public_key == key)
            .expect("a peer")
    }

    pub fn stats(&self, host: usize) -> HandshakeStats {
        self.hosts[host].device.handshake_stats()
    }

    /// The messages of a kind that host `host` sent since `since`.
    pub fn sent(&self, host: usize, kind: &str, since: Time) -> Vec<Datagram> {
        let addr = self.hosts[host].addr;
        let sent = self.log.iter().filter(|datagram| {
            datagram.from == addr && datagram.kind() == kind && datagram.at >= since
        });
        sent.cloned().collect()
    }

    /// A packet for `peer` came out of the TUN.
    pub fn send(&mut self, host: usize, peer: usize, text: &[u8]) {
        let peer = self.peer(host, peer);
        self.hosts[host]
            .staged
            .entry(peer.id())
            .or_default()
            .push(text.to_vec());
        self.flush(host, &peer);
    }

    fn flush(&mut self, host: usize, peer: &Arc<Peer>) {
        let staged = self.hosts[host]
            .staged
            .remove(&peer.id())
            .unwrap_or_default();
        let mut kept = Vec::new();
        let mut event = false;
        for text in staged {
            let sealed = peer
                .endpoint()
                .and_then(|to| Some((to, seal(peer, self.now, &text)?)));
            match sealed {
                Some((to, (session, bytes))) => {
                    event |= peer.data_sent(self.now, &session, bytes.len() as u64);
                    self.transmit(host, to.addr, bytes);
                }
                None => kept.push(text),
            }
        }
        if !kept.is_empty() {
            self.hosts[host].staged.insert(peer.id(), kept);
            event |= peer.want_session();
        }
        if event {
            self.event(host, peer);
        }
    }

    pub fn event(&mut self, host: usize, peer: &Arc<Peer>) {
        let (now, wall) = (self.now, self.wall(host));
        self.hosts[host].device.handle_event(now, wall, peer);
        self.drain(host);
    }

    pub fn drain(&mut self, host: usize) {
        let (now, wall) = (self.now, self.wall(host));
        let device = &mut self.hosts[host].device;
        for turn in 0.. {
            if device.next_deadline().is_none_or(|at| at > now) {
                break;
            }
            assert!(turn < 10_000, "a deadline that never passes");
            device.handle_timeout(now, wall);
        }
        while let Some(output) = self.hosts[host].device.poll_output() {
            match output {
                Output::Handshake {
                    to, datagram, peer, ..
                } => {
                    let device = &mut self.hosts[host].device;
                    device.handle_sent(&datagram, peer.as_ref(), true);
                    self.transmit(host, to.addr, datagram.to_vec());
                }
                Output::SessionReady { peer } => self.flush(host, &peer),
                Output::Keepalive { peer } => {
                    let Some((to, (session, bytes))) = peer
                        .endpoint()
                        .and_then(|to| Some((to, seal(&peer, self.now, &[])?)))
                    else {
                        continue;
                    };
                    let len = bytes.len() as u64;
                    let event = peer.keepalive_sent(self.now, &session, len);
                    self.transmit(host, to.addr, bytes);
                    if event {
                        self.event(host, &peer);
                    }
                }
                Output::DropStaged { peer, .. } => {
                    self.hosts[host].staged.remove(&peer.id());
                    self.hosts[host].staged_drops += 1;
                }
            }
        }
    }

    fn transmit(&mut self, host: usize, to: SocketAddr, bytes: Vec<u8>) {
        let datagram = Datagram {
            at: self.now,
            from: self.hosts[host].addr,
            to,
            bytes,
        };
        self.log.push(datagram.clone());
        if self.random.chance(self.weather.loss) {
            return;
        }
        let copies = 1 + usize::from(self.random.chance(self.weather.duplicates));
        for _ in 0..copies {
            let spread = self.weather.delay_max - self.weather.delay_min + 1;
            let delay = self.weather.delay_min + self.random.below(spread);
            self.count += 1;
            let arrival = (self.now + millis(delay), self.count);
            self.flying.insert(arrival, datagram.clone());
        }
    }

    /// A datagram arrives now, from wherever the caller says.
    pub fn deliver(&mut self, host: usize, from: SocketAddr, bytes: &[u8]) {
        let (now, wall) = (self.now, self.wall(host));
        let from = Endpoint::from(from);
        match wire::classify(bytes) {
            Some(Kind::Handshake) => {
                let load = self.under_load;
                let device = &mut self.hosts[host].device;
                device.handle_handshake(now, wall, from, bytes, load);
                self.drain(host);
            }
            Some(Kind::Data) => self.deliver_data(host, from, bytes),
            None => self.hosts[host].drops += 1,
        }
    }

    fn deliver_data(&mut self, host: usize, from: Endpoint, bytes: &[u8]) {
        let header = DataHeader::parse(bytes).expect("classified");
        let shared = self.hosts[host].device.shared();
        let inbound = shared.session(header.receiver);
        let Some(inbound) = inbound.filter(|inbound| inbound.session.may_receive(self.now)) else {
            self.hosts[host].drops += 1;
            return;
        };
        let session = &inbound.session;
        let mut text = bytes[DataHeader::LEN..].to_vec();
        let mut job = [OpenJob::in_place(
            session.receive_key(),
            header.counter,
            &mut text,
        )];
        adit_aead::open(&mut job);
        if !job[0].is_authentic() || !session.window().commit(header.counter) {
            self.hosts[host].drops += 1;
            return;
        }
        text.truncate(text.len() - TAG_LEN);
        inbound.peer.roam(from);
        let data = !text.is_empty();
        let event = inbound
            .peer
            .received(self.now, session, bytes.len() as u64, data);
        if data {
            self.hosts[host].delivered.push(text);
        }
        if event {
            self.event(host, &inbound.peer);
        }
    }

    pub fn run_for(&mut self, duration: Duration) {
        self.run_until(self.now + duration);
    }

    /// Lets datagrams arrive and deadlines pass until the clock shows `end`.
    pub fn run_until(&mut self, end: Time) {
        loop {
            let arrival = self.flying.keys().next().map(|(at, _)| *at);
            let deadlines = self
                .hosts
                .iter()
                .filter_map(|host| host.device.next_deadline());
            let next = deadlines.chain(arrival).min();
            let Some(next) = next.filter(|next| *next <= end) else {
                break;
            };
            self.now = self.now.max(next);
            while let Some(entry) = self.flying.first_entry() {
                if entry.key().0 > self.now {
                    break;
                }
                let datagram = entry.remove();
                let to = self.hosts.iter().position(|host| host.addr == datagram.to);
                if let Some(host) = to {
                    self.deliver(host, datagram.from, &datagram.bytes);
                }
            }
            for host in 0..self.hosts.len() {
                self.drain(host);
            }
        }
        self.now = end;
    }

    /// Sends a packet from A to B and waits for both to have a confirmed session.
    pub fn connect(&mut self) {
        self.send(A, B, b"first");
        self.run_for(millis(100));
        assert!(self.peer(A, B).current().is_some() && self.peer(B, A).current().is_some());
        assert_eq!(self.hosts[B].delivered.pop().unwrap(), b"first");
    }
}

/// A data message of `text`, if the peer has a session to send it with.
pub fn seal(peer: &Peer, now: Time, text: &[u8]) -> Option<(Arc<Session>, Vec<u8>)> {
    let session = peer.current()?;
    let counter = session.reserve(now, 1).ok()?;
    let mut bytes = vec![0; DataHeader::LEN + text.len() + TAG_LEN];
    let (header, sealed) = bytes.split_first_chunk_mut().expect("room for the header");
    let receiver = session.remote_index();
    DataHeader { receiver, counter }.write(header);
    sealed[..text.len()].copy_from_slice(text);
    adit_aead::seal(&mut [SealJob::in_place(session.send_key(), counter, sealed)]);
    Some((session, bytes))
}
