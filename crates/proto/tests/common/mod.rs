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

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use adit_aead::{OpenJob, SealJob, TAG_LEN};
use adit_proto::config::{
    AllowedIpChange, Cidr, DeviceChange, DeviceStatus, PeerChange, PeerStatus, PublicKey, Secret,
};
use adit_proto::wire::{self, DataHeader, DatagramKind};
use adit_proto::{
    Device, Endpoint, HandshakeKind, HandshakeStats, LastSeen, Output, Peer, PeerEvent, Refusal,
    Session, Tai64N, Time,
};
use curve25519_dalek::MontgomeryPoint;

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
    PublicKey(MontgomeryPoint::mul_base_clamped(*private.bytes()).to_bytes())
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

/// What else happens to datagrams and hosts; percentages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// With each datagram, up to 31 that follow it are lost.
    pub bursts: u64,
    /// A bit is flipped.
    pub corrupted: u64,
    /// The sender's kernel refuses a datagram.
    pub refused: u64,
    /// With a datagram comes one that somebody recorded, whenever that was.
    pub replayed: u64,
    /// The receiver's TUN takes no packet.
    pub tun_full: u64,
    /// Longer datagrams are lost.
    pub longest: Option<usize>,
    /// This host's datagrams are lost.
    pub mute: Option<usize>,
}

/// Whether a host runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Running {
    #[default]
    Yes,
    /// The process is stopped: datagrams wait in its socket.
    Stopped,
    /// The machine sleeps, and nothing reaches it.
    Asleep,
}

/// Datagrams that a stopped host's socket holds.
const MOST_HELD: usize = 256;

/// Where packets and datagrams got to.
#[derive(Clone, Debug, Default)]
pub struct Accounting {
    /// Packets from the TUN: all, those that were sealed, and those that were given up.
    pub given: usize,
    pub sealed: usize,
    pub given_up: usize,
    /// Datagrams that arrived: all, handshake messages and keepalives.
    pub arrived: usize,
    pub handshakes: usize,
    pub keepalives: usize,
    /// What the device said of each handshake message: why it was refused, or nothing.
    pub outcomes: HashMap<Option<Refusal>, u64>,
    /// Bytes of datagrams that were accepted from a peer, and that left for one.
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// Datagrams that were to leave, by kind.
    pub sent: HashMap<&'static str, u64>,
}

pub struct VirtualHost {
    pub device: Device,
    pub running: Running,
    pub accounting: Accounting,
    held: Vec<Datagram>,
    pub addr: SocketAddr,
    /// Others that lead to it. It answers from the one that was last sent to.
    pub aliases: Vec<SocketAddr>,
    answers_from: Option<SocketAddr>,
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

/// What happens to one handshake message on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Arrives,
    IsLost,
    /// It arrives, and the receiver is under load.
    MeetsLoad,
    /// It comes so much later.
    Waits(Duration),
    /// It comes at once, and again so much later.
    ComesTwice(Duration),
}

/// An echo request that a host was asked to send through the tunnel.
pub struct Probe {
    pub id: u16,
    pub sequence: u16,
    pub len: u16,
    /// Nobody may fragment its datagram.
    pub is_whole: bool,
}

pub struct Net {
    pub now: Time,
    pub hosts: Vec<VirtualHost>,
    /// By which they know each other, if not by those of [`private_key`].
    pub publics: Vec<PublicKey>,
    pub weather: Weather,
    pub faults: Faults,
    /// Datagrams that the network lost, and copies that it made.
    pub lost: usize,
    pub copies: usize,
    burst: u64,
    pub under_load: bool,
    /// Everything that was sent, lost or not.
    pub log: Vec<Datagram>,
    /// What each host told of its peers.
    pub news: Vec<(usize, &'static str)>,
    /// Sessions that either host told of.
    pub sessions: usize,
    /// What hosts told of theirs.
    pub told: HashMap<usize, LastSeen>,
    /// The probes that hosts were asked to send.
    pub probes: Vec<Probe>,
    /// What is lost on its way.
    pub black_holes: Vec<fn(&Datagram) -> bool>,
    /// What happens to the next handshake messages, in the order in which they are sent; those after them
    /// arrive.
    pub fates: VecDeque<Fate>,
    /// How many messages took one of those.
    pub fates_taken: usize,
    /// When a host got a data message, which, and whether it knew the session.
    pub data: Vec<(Time, usize, bool)>,
    meet_load: HashSet<u64>,
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
            running: Running::Yes,
            accounting: Accounting::default(),
            held: Vec::new(),
            addr: format!("192.0.2.{}:51820", n + 1).parse().unwrap(),
            aliases: Vec::new(),
            answers_from: None,
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
            faults: Faults::default(),
            lost: 0,
            copies: 0,
            burst: 0,
            under_load: false,
            log: Vec::new(),
            news: Vec::new(),
            sessions: 0,
            told: HashMap::new(),
            probes: Vec::new(),
            black_holes: Vec::new(),
            fates: VecDeque::new(),
            fates_taken: 0,
            data: Vec::new(),
            meet_load: HashSet::new(),
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
        self.hosts[host].accounting.given += 1;
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
                    self.hosts[host].accounting.sealed += 1;
                    let len = bytes.len() as u64;
                    let left = self.transmit(host, to.addr, bytes);
                    self.hosts[host].accounting.sent_bytes += if left { len } else { 0 };
                    event |= peer.data_sent(self.now, &session, if left { len } else { 0 });
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

    /// A datagram comes once more. The log, of what hosts sent, does not have it.
    pub fn replay(&mut self, datagram: Datagram) {
        self.count += 1;
        let arrival = (self.now + millis(self.weather.delay_min), self.count);
        self.flying.insert(arrival, datagram);
    }

    pub fn event(&mut self, host: usize, peer: &Arc<Peer>) {
        let (now, wall) = (self.now, self.wall(host));
        self.hosts[host].device.handle_event(now, wall, peer);
        self.drain(host);
    }

    pub fn drain(&mut self, host: usize) {
        if self.hosts[host].running != Running::Yes {
            return;
        }
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
                    let left = self.transmit(host, to.addr, datagram.to_vec());
                    if left && peer.is_some() {
                        self.hosts[host].accounting.sent_bytes += datagram.len() as u64;
                    }
                    let device = &mut self.hosts[host].device;
                    device.handle_sent(&datagram, peer.as_ref(), left);
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
                    let left = self.transmit(host, to.addr, bytes);
                    self.hosts[host].accounting.sent_bytes += if left { len } else { 0 };
                    let event = left && peer.keepalive_sent(self.now, &session, len);
                    if event {
                        self.event(host, &peer);
                    }
                }
                Output::DropStaged { peer, .. } => {
                    let lost = self.hosts[host].staged.remove(&peer.id());
                    self.hosts[host].accounting.given_up += lost.map_or(0, |lost| lost.len());
                    self.hosts[host].staged_drops += 1;
                }
                Output::Event(event) => {
                    let news = match event {
                        PeerEvent::Liveness { state, .. } => state.name(),
                        PeerEvent::Access { access, .. } => access.name(),
                        PeerEvent::Roamed { .. } => "roamed",
                        PeerEvent::Session { last, .. } => {
                            self.sessions += 1;
                            self.told.insert(host, last);
                            continue;
                        }
                        PeerEvent::Unanswered { .. } => "unanswered",
                        PeerEvent::ProbePath {
                            id,
                            whole,
                            fragmented,
                            ..
                        } => {
                            let probes = whole.iter().chain(&fragmented);
                            let probes = probes.map(|(sequence, len)| Probe {
                                id,
                                sequence: *sequence,
                                len: *len,
                                is_whole: whole.contains(&(*sequence, *len)),
                            });
                            self.probes.extend(probes);
                            "probe"
                        }
                        PeerEvent::PathFound { .. } => "path",
                        PeerEvent::DoubtIcmp { .. } => "doubts ICMP",
                    };
                    self.news.push((host, news));
                }
            }
        }
    }

    /// All of a device's status that anything follows from. The reason of a peer's last failure is
    /// for people, and may be forged.
    pub fn acted_on(&self, host: usize) -> DeviceStatus {
        let mut status = self.hosts[host].device.status();
        for peer in &mut status.peers {
            if let Some(handshakes) = &mut peer.handshakes {
                handshakes.last_failure = None;
            }
        }
        status
    }

    /// Something that happens in so many of a hundred cases. No dice are rolled for what never does.
    fn happens(&mut self, percent: u64) -> bool {
        percent > 0 && self.random.chance(percent)
    }

    /// False if the host's kernel refuses it.
    fn transmit(&mut self, host: usize, to: SocketAddr, bytes: Vec<u8>) -> bool {
        let datagram = Datagram {
            at: self.now,
            from: self.hosts[host]
                .answers_from
                .unwrap_or(self.hosts[host].addr),
            to,
            bytes,
        };
        let sent = &mut self.hosts[host].accounting.sent;
        *sent.entry(datagram.kind()).or_default() += 1;
        self.log.push(datagram.clone());
        if self.happens(self.faults.refused) {
            self.lost += 1;
            return false;
        }
        if self.happens(self.faults.bursts) {
            self.burst = self.random.below(32);
        } else if self.faults.bursts == 0 {
            self.burst = 0;
        }
        let is_long = self
            .faults
            .longest
            .is_some_and(|longest| datagram.bytes.len() > longest);
        if self.random.chance(self.weather.loss)
            || self.burst > 0
            || is_long
            || self.faults.mute == Some(host)
        {
            self.burst = self.burst.saturating_sub(1);
            self.lost += 1;
            return true;
        }
        if self.happens(self.faults.replayed) {
            let any = self.random.below(self.log.len() as u64);
            self.replay(self.log[usize::try_from(any).unwrap()].clone());
            self.copies += 1;
        }
        let mut datagram = datagram;
        if self.happens(self.faults.corrupted) {
            let at = self.random.below(datagram.bytes.len() as u64);
            datagram.bytes[usize::try_from(at).unwrap()] ^= 1 << self.random.below(8);
        }
        if wire::classify(&datagram.bytes) == Some(DatagramKind::Handshake)
            && let Some(fate) = self.fates.pop_front()
        {
            self.fates_taken += 1;
            self.meet(datagram, fate);
            return true;
        }
        let copies = 1 + usize::from(self.random.chance(self.weather.duplicates));
        self.copies += copies - 1;
        for _ in 0..copies {
            let spread = self.weather.delay_max - self.weather.delay_min + 1;
            let delay = self.weather.delay_min + self.random.below(spread);
            self.count += 1;
            let arrival = (self.now + millis(delay), self.count);
            self.flying.insert(arrival, datagram.clone());
        }
        true
    }

    fn meet(&mut self, datagram: Datagram, fate: Fate) {
        let later: &[Duration] = match fate {
            Fate::IsLost => return,
            Fate::Arrives | Fate::MeetsLoad => &[Duration::ZERO],
            Fate::Waits(later) => &[later],
            Fate::ComesTwice(later) => &[Duration::ZERO, later],
        };
        for later in later {
            self.count += 1;
            if fate == Fate::MeetsLoad {
                self.meet_load.insert(self.count);
            }
            let arrival = self.now + millis(self.weather.delay_min) + *later;
            self.flying.insert((arrival, self.count), datagram.clone());
        }
    }

    /// A datagram arrives now, from wherever the caller says.
    pub fn deliver(&mut self, host: usize, from: SocketAddr, bytes: &[u8]) {
        self.hosts[host].accounting.arrived += 1;
        let (now, wall) = (self.now, self.wall(host));
        let from = Endpoint::from(from);
        match wire::classify(bytes) {
            Some(DatagramKind::Handshake) => {
                self.hosts[host].accounting.handshakes += 1;
                let load = self.under_load;
                let device = &mut self.hosts[host].device;
                let outcome = device.handle_handshake(now, wall, from, bytes, load);
                let accounting = &mut self.hosts[host].accounting;
                *accounting.outcomes.entry(outcome.refusal).or_default() += 1;
                let counts = outcome.kind != Some(HandshakeKind::CookieReply);
                if outcome.refusal.is_none() && counts {
                    accounting.received_bytes += bytes.len() as u64;
                }
                self.drain(host);
            }
            Some(DatagramKind::Data) => self.deliver_data(host, from, bytes),
            None => self.hosts[host].drops += 1,
        }
    }

    fn deliver_data(&mut self, host: usize, from: Endpoint, bytes: &[u8]) {
        let header = DataHeader::parse(bytes).expect("classified");
        let shared = self.hosts[host].device.shared();
        let inbound = shared.session(header.receiver);
        self.data.push((self.now, host, inbound.is_some()));
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
        self.hosts[host].accounting.received_bytes += bytes.len() as u64;
        let event = inbound
            .peer
            .received(self.now, session, bytes.len() as u64, data);
        if !data {
            self.hosts[host].accounting.keepalives += 1;
        } else if self.happens(self.faults.tun_full) {
            self.hosts[host].drops += 1;
        } else {
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
            let awake = self.hosts.iter();
            let deadlines = awake
                .filter(|host| host.running == Running::Yes)
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
                let meets_load = self.meet_load.remove(&entry.key().1);
                let datagram = entry.remove();
                if self.black_holes.iter().any(|hole| hole(&datagram)) {
                    self.lost += 1;
                    continue;
                }
                let leads_to = |host: &VirtualHost| {
                    host.addr == datagram.to || host.aliases.contains(&datagram.to)
                };
                let Some(host) = self.hosts.iter().position(leads_to) else {
                    self.lost += 1;
                    continue;
                };
                match self.hosts[host].running {
                    Running::Stopped if self.hosts[host].held.len() < MOST_HELD => {
                        self.hosts[host].held.push(datagram);
                        continue;
                    }
                    Running::Stopped | Running::Asleep => {
                        self.lost += 1;
                        continue;
                    }
                    Running::Yes => {}
                }
                if !self.hosts[host].aliases.is_empty() {
                    self.hosts[host].answers_from = Some(datagram.to);
                }
                let load = self.under_load;
                self.under_load |= meets_load;
                self.deliver(host, datagram.from, &datagram.bytes);
                self.under_load = load;
            }
            for host in 0..self.hosts.len() {
                self.drain(host);
            }
        }
        self.now = end;
    }

    /// A host that did not run goes on.
    pub fn wake(&mut self, host: usize) {
        self.hosts[host].running = Running::Yes;
        for datagram in std::mem::take(&mut self.hosts[host].held) {
            self.deliver(host, datagram.from, &datagram.bytes);
        }
        self.drain(host);
    }

    /// Every packet and every datagram is somewhere (invariant 10), and the counters of two hosts
    /// that are each other's peers say so.
    #[track_caller]
    pub fn check_accounting(&self) {
        let (mut arrived, mut held) = (0, 0);
        for (number, host) in self.hosts.iter().enumerate() {
            let accounting = &host.accounting;
            let staged: usize = host.staged.values().map(Vec::len).sum();
            assert_eq!(
                accounting.given,
                accounting.sealed + accounting.given_up + staged,
                "{accounting:?}"
            );
            let known =
                accounting.handshakes + accounting.keepalives + host.delivered.len() + host.drops;
            assert_eq!(accounting.arrived, known, "{accounting:?}");
            self.check_counters(number);
            arrived += accounting.arrived;
            held += host.held.len();
        }
        let on_its_way = self.flying.len() + held;
        let sent = self.log.len() + self.copies;
        assert_eq!(sent, arrived + self.lost + on_its_way, "lost {}", self.lost);
    }

    /// What a device counts is what it did.
    #[track_caller]
    fn check_counters(&self, host: usize) {
        let (accounting, stats) = (&self.hosts[host].accounting, self.stats(host));
        let outcome = |of| accounting.outcomes.get(&of).copied().unwrap_or(0);
        let counter = |name: &str| {
            let found = stats.counters().find(|(known, ..)| *known == name);
            found.unwrap_or_else(|| panic!("no counter {name}")).1
        };
        for refusal in Refusal::ALL {
            let name = match refusal {
                // Counted as a reply, and together with what is invalid.
                Refusal::CookieRequired | Refusal::NoPrivateKey => continue,
                refusal => refusal.name(),
            };
            assert_eq!(counter(name), outcome(Some(*refusal)), "{name}");
        }
        let accepted =
            stats.initiations_accepted + stats.responses_accepted + stats.cookies_accepted;
        assert_eq!(accepted, outcome(None), "accepted");
        let received =
            stats.initiations_received + stats.responses_received + stats.cookies_received;
        assert_eq!(
            received + stats.invalid,
            accounting.handshakes as u64,
            "received"
        );
        let sent = |kind| accounting.sent.get(kind).copied().unwrap_or(0);
        let all = ["initiation", "response", "cookie"].map(sent);
        assert_eq!(all[2], outcome(Some(Refusal::CookieRequired)), "cookies");
        let counted = stats.initiations_sent + stats.responses_sent + stats.cookies_sent;
        assert_eq!(counted + stats.send_failed, all.iter().sum(), "sent");
        let status = self.status(host, 1 - host);
        let bytes = (status.rx_bytes, status.tx_bytes);
        assert_eq!(
            bytes,
            (accounting.received_bytes, accounting.sent_bytes),
            "bytes"
        );
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
