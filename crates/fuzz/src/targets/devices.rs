//! Two devices and a network that does what the input says, against a reference.
//!
//! The reference knows no keys and no timers. It remembers every datagram, every counter and every
//! packet, and searches lists from end to end. It says what each datagram must bring, whose bytes
//! count, who roams, and that no key and counter seal twice. In the end the network heals, and
//! packets must pass in both directions.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use adit_aead::{SealJob, TAG_LEN};
use adit_proto::config::{
    AllowedIpChange, Cidr, DeviceChange, DeviceStatus, PeerChange, PeerStatus, Secret,
};
use adit_proto::wire::{self, DataHeader, DatagramKind, padded_len};
use adit_proto::{Device, NotOpened, NotSealed, Time};

use super::naive::{NaiveRoutes, inner};
use super::replay::Model as Window;
use crate::source::InputBytes;
use crate::world::{
    START, addr, attacker, cidr, device, drain, joined, open, packet, private_key, public_key,
    seal, state, wall,
};

/// The key of a peer that never answers.
const DECOY: u8 = 5;
/// Datagrams that the network remembers.
const MOST: usize = 200;
const MTU: usize = 1420;

struct HostModel {
    number: u8,
    device: Device,
    /// Which key it has.
    key: u8,
    /// Where it is.
    place: u8,
    /// Whose which block is, by the number of the peer's key.
    routes: NaiveRoutes<u8>,
    /// What was received, by receiver index.
    windows: HashMap<u32, Window>,
}

/// A datagram that was sent.
struct SentDatagram {
    to: usize,
    bytes: Vec<u8>,
    /// What a data message carries, and with which key its sender made itself known.
    sealed: Option<(u8, Vec<u8>)>,
}

struct World {
    now: Time,
    hosts: [HostModel; 2],
    sent: Vec<SentDatagram>,
    /// Receiver index and counter of all data messages.
    nonces: HashSet<(u32, u64)>,
    /// Packets that came out at each host.
    packets: [usize; 2],
    under_load: bool,
}

pub(crate) fn run(input: &[u8]) {
    let mut source = InputBytes::new(input);
    let mut world = World::new();
    for _ in 0..400 {
        if source.is_empty() {
            break;
        }
        world.event(&mut source);
    }
    world.heal();
}

impl World {
    fn new() -> Self {
        let host = |number: u8| {
            let mut device = device(1 + u64::from(number));
            device
                .apply(START, &joined(number, 1 - number))
                .expect("few peers");
            let mut routes = NaiveRoutes::default();
            routes.insert(cidr(&format!("10.0.0.{}/32", 1 - number)), 1 - number);
            HostModel {
                number,
                device,
                key: number,
                place: 0,
                routes,
                windows: HashMap::new(),
            }
        };
        Self {
            now: START,
            hosts: [host(0), host(1)],
            sent: Vec::new(),
            nonces: HashSet::new(),
            packets: [0; 2],
            under_load: false,
        }
    }

    fn event(&mut self, source: &mut InputBytes<'_>) {
        let what = source.u8();
        let host = usize::from(what >> 7);
        match what % 16 {
            0..3 => self.seal(host, source),
            3..6 => {
                let which = self.pick(source);
                self.deliver(which, None);
            }
            // Everything that was not delivered, in order.
            6 => (self.sent.len().saturating_sub(4)..self.sent.len())
                .for_each(|which| self.deliver(which, None)),
            7 => {
                let which = self.pick(source);
                let place = addr(
                    1 - self
                        .sent
                        .get(which)
                        .map_or(0, |sent| u8::try_from(sent.to).unwrap_or(0)),
                    source.u8() % 4,
                );
                self.deliver(which, Some(place));
            }
            8 => self.forge(source),
            9 => self.pass(Duration::from_millis(u64::from(source.u16()))),
            10 => self.pass(Duration::from_secs(u64::from(source.u8()))),
            11 => self.configure(host, source),
            12 => self.hostile(host, source),
            13 => self.hosts[host].place = source.u8() % 4,
            14 => self.skip(host, source.u16()),
            _ => {
                match source.u8() % 4 {
                    0 => self.hosts[host].device.was_cloned(self.now),
                    1 => self.hosts[host].device.went_down(),
                    2 => self.hosts[host].device.came_up(self.now),
                    _ => self.under_load = !self.under_load,
                }
                self.drain(host);
            }
        }
    }

    /// One of the last datagrams.
    fn pick(&self, source: &mut InputBytes<'_>) -> usize {
        self.sent
            .len()
            .wrapping_sub(1 + usize::from(source.u8()) % self.sent.len().max(1))
    }

    fn send(&mut self, host: usize, bytes: Vec<u8>, sealed: Option<(u8, Vec<u8>)>) {
        if let Some(header) = DataHeader::parse(&bytes) {
            let nonce = (header.receiver, header.counter);
            assert!(
                self.nonces.insert(nonce),
                "a key and a counter that sealed before"
            );
        }
        if self.sent.len() < MOST {
            self.sent.push(SentDatagram {
                to: 1 - host,
                bytes,
                sealed,
            });
        }
    }

    fn drain(&mut self, host: usize) {
        let key = self.hosts[host].key;
        for sent in drain(&mut self.hosts[host].device, self.now) {
            let sealed = DataHeader::parse(&sent.bytes).map(|_| (key, Vec::new()));
            self.send(host, sent.bytes, sealed);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        for host in [0, 1] {
            self.drain(host);
        }
    }

    /// An honest packet, from the TUN.
    fn seal(&mut self, host: usize, source: &mut InputBytes<'_>) {
        let (from, to, len) = (source.u8(), source.u8(), usize::from(source.u8()));
        let address = |byte: u8| [10, 0, byte >> 4 & 1, byte % 4];
        let text = packet(address(from), address(to), &vec![from; len]);
        let owner = self.hosts[host].routes.lookup(address(to).into());
        let before = self.hosts[host].status();
        let result = seal(&mut self.hosts[host].device, self.now, &text, MTU);
        match result {
            Ok((to, bytes)) => {
                let owner = owner.expect("a route");
                assert!(owner != DECOY);
                assert_eq!(bytes.len(), 32 + padded_len(text.len(), MTU));
                let peer = |status: &DeviceStatus| find(status, owner).expect("a peer").clone();
                let (was, is) = (peer(&before), peer(&self.hosts[host].status()));
                assert_eq!(is.tx_bytes - was.tx_bytes, bytes.len() as u64);
                assert_eq!(was.endpoint, Some(to.addr));
                let key = self.hosts[host].key;
                self.send(host, bytes, Some((key, text)));
            }
            Err(NotSealed::NotIp) => panic!("a packet is one"),
            Err(NotSealed::NoRoom) => panic!("the buffer is long enough"),
            Err(NotSealed::NoRoute) => assert_eq!(owner, None),
            Err(NotSealed::NoEndpoint(peer) | NotSealed::NoSession(peer)) => {
                assert_eq!(Some(peer.public_key()), owner.map(public_key));
            }
        }
        self.drain(host);
    }

    /// A peer with keys that seals whatever it likes.
    fn hostile(&mut self, host: usize, source: &mut InputBytes<'_>) {
        let text = source.piece(256);
        let now = self.now;
        let key = self.hosts[host].key;
        let other = self.hosts[1 - host].key;
        let peer = self.hosts[host].device.peer(&public_key(other)).cloned();
        let Some(session) = peer.and_then(|peer| peer.session(now)) else {
            return;
        };
        let Ok(counter) = session.reserve(now, 1) else {
            return;
        };
        let mut bytes = vec![0; DataHeader::LEN];
        let receiver = session.remote_index();
        DataHeader { receiver, counter }.write(bytes.first_chunk_mut().expect("16 bytes"));
        bytes.extend(&text);
        bytes.resize(bytes.len() + TAG_LEN, 0);
        let out = &mut bytes[DataHeader::LEN..];
        adit_aead::seal(&mut [SealJob::in_place(session.send_key(), counter, out)]);
        self.send(host, bytes, Some((key, text)));
    }

    /// Counters that nothing is sealed with.
    fn skip(&mut self, host: usize, counters: u16) {
        for peer in self.hosts[host].device.peers() {
            if let Some(session) = peer.session(self.now) {
                _ = session.reserve(self.now, counters.into());
            }
        }
    }

    fn deliver(&mut self, which: usize, from: Option<SocketAddr>) {
        let Some(datagram) = self.sent.get(which) else {
            return;
        };
        let to = datagram.to;
        let sender = &self.hosts[1 - to];
        let from = from.unwrap_or_else(|| addr(sender.number, sender.place));
        let bytes = datagram.bytes.clone();
        let sealed = datagram.sealed.clone();
        let before = self.hosts[to].status();
        match wire::classify(&bytes).expect("an honest datagram") {
            DatagramKind::Handshake => {
                let (now, load) = (self.now, self.under_load);
                let device = &mut self.hosts[to].device;
                device.handle_handshake(now, wall(now), from.into(), &bytes, load);
                let after = self.hosts[to].status();
                for (was, is) in before.peers.iter().zip(&after.peers) {
                    let received = is.rx_bytes - was.rx_bytes;
                    assert!(received == 0 || received == bytes.len() as u64);
                    assert!(
                        is.endpoint == was.endpoint || received > 0 && is.endpoint == Some(from)
                    );
                }
            }
            DatagramKind::Data => {
                let (key, text) = sealed.expect("a data message");
                self.open(to, from, &bytes, key, &text, &before);
            }
        }
        self.drain(to);
    }

    /// A data message arrives. `key` is its sender's.
    fn open(
        &mut self,
        to: usize,
        from: SocketAddr,
        bytes: &[u8],
        key: u8,
        text: &[u8],
        before: &DeviceStatus,
    ) {
        let header = DataHeader::parse(bytes).expect("a data message");
        let host = &mut self.hosts[to];
        let result = open(&mut host.device, self.now, from, bytes);
        let after = host.status();
        let fresh = match result {
            Err(NotOpened::Invalid | NotOpened::NotAuthentic) => {
                panic!("{result:?} of an honest peer")
            }
            Err(NotOpened::NoSession) => false,
            _ => {
                let window = host.windows.entry(header.receiver).or_default();
                let fresh = window.commit(header.counter);
                assert_eq!(
                    fresh,
                    result != Err(NotOpened::Replayed),
                    "counter {}",
                    header.counter
                );
                fresh
            }
        };
        let (was, is) = (find(before, key), find(&after, key));
        if let (Some(was), Some(is)) = (was, is) {
            let received = if fresh { bytes.len() as u64 } else { 0 };
            assert_eq!(is.rx_bytes - was.rx_bytes, received);
            assert_eq!(is.endpoint, if fresh { Some(from) } else { was.endpoint });
        }
        let others = |status: &DeviceStatus| {
            let others = status
                .peers
                .iter()
                .filter(|peer| peer.public_key != public_key(key));
            others.cloned().collect::<Vec<_>>()
        };
        assert_eq!(others(before), others(&after));
        if !fresh {
            return;
        }
        assert!(was.is_some(), "a session with nobody");
        let expected = match inner(text) {
            _ if text.is_empty() => Ok(Vec::new()),
            None => Err(NotOpened::NotIp),
            Some((source, _)) if host.routes.lookup(source) != Some(key) => {
                Err(NotOpened::WrongSource)
            }
            Some((_, len)) => Ok(text[..len].to_vec()),
        };
        // Padding is zeros, which make no packet longer.
        assert_eq!(result, expected);
        self.packets[to] += usize::from(result.is_ok_and(|text| !text.is_empty()));
    }

    /// A datagram that was changed on its way, or made by somebody else.
    fn forge(&mut self, source: &mut InputBytes<'_>) {
        let which = self.pick(source);
        let Some(datagram) = self.sent.get(which) else {
            return;
        };
        let (to, mut bytes) = (datagram.to, datagram.bytes.clone());
        let is_data = datagram.sealed.is_some();
        // The last 16 bytes of a handshake message authenticate nothing.
        let end = if is_data || bytes.len() == 64 {
            bytes.len()
        } else {
            bytes.len() - 16
        };
        let (at, flip) = (usize::from(source.u8()) % end, source.u8());
        match flip {
            0 => bytes.truncate(at),
            flip => bytes[at] ^= flip,
        }
        let before = self.hosts[to].status();
        let device = &mut self.hosts[to].device;
        match wire::classify(&bytes) {
            Some(DatagramKind::Data) => {
                let opened = open(device, self.now, attacker(), &bytes);
                assert!(opened.is_err(), "a forgery");
            }
            Some(DatagramKind::Handshake) => {
                let (now, load) = (self.now, self.under_load);
                device.handle_handshake(now, wall(now), attacker().into(), &bytes, load);
            }
            None => {}
        }
        assert_eq!(self.hosts[to].status(), before);
        // An answer to it goes nowhere: it is the attacker's.
        drain(&mut self.hosts[to].device, self.now);
    }

    fn configure(&mut self, host: usize, source: &mut InputBytes<'_>) {
        let now = self.now;
        let target = &mut self.hosts[host];
        let key = [1 - target.number, 3 - target.number, DECOY][source.below(3)];
        let mut peer = PeerChange::new(public_key(key));
        let mut change = DeviceChange::default();
        const BLOCKS: [&str; 6] = [
            "10.0.0.0/32",
            "10.0.0.1/32",
            "10.0.0.0/30",
            "10.0.0.2/31",
            "10.0.1.0/24",
            "0.0.0.0/0",
        ];
        let block: Cidr = cidr(BLOCKS[source.below(BLOCKS.len())]);
        match source.u8() % 8 {
            0 | 1 => {
                peer.allowed_ips.push(AllowedIpChange::Add(block));
                target.routes.insert(block, key);
            }
            2 => {
                peer.allowed_ips.push(AllowedIpChange::Remove(block));
                if target.routes.0.contains(&(block, key)) {
                    target.routes.remove(block);
                }
            }
            3 => peer.preshared_key = Some(Secret::new(&[source.u8() % 2; 32])),
            4 => {
                peer.remove = true;
                target.routes.0.retain(|(_, owner)| *owner != key);
            }
            5 => peer.endpoint = Some(addr(1 - target.number, source.u8() % 4)),
            6 => peer.persistent_keepalive = Some(u16::from(source.u8() % 30)),
            _ => {
                target.key = target.number + 2 * (source.u8() % 2);
                change.private_key = Some(private_key(target.key));
            }
        }
        change.peers.push(peer);
        target.device.apply(now, &change).expect("few peers");
        let shared = target.device.shared();
        let routes = shared.routes();
        assert_eq!(routes.len(), target.routes.0.len());
        for (block, _) in &target.routes.0 {
            let owner = routes.lookup(block.addr()).map(|peer| peer.public_key());
            assert_eq!(owner, target.routes.lookup(block.addr()).map(public_key));
        }
        drop(routes);
        self.drain(host);
    }

    /// All is well from now on: packets pass in both directions.
    fn heal(&mut self) {
        self.under_load = false;
        self.sent.clear();
        for number in [0, 1] {
            let host = &mut self.hosts[usize::from(number)];
            (host.key, host.place) = (number, 0);
            host.device
                .apply(self.now, &joined(number, 1 - number))
                .expect("few peers");
            // A peer that has roamed stays where it was, unless only the endpoint is named.
            let mut peer = PeerChange::new(public_key(1 - number));
            peer.endpoint = Some(addr(1 - number, 0));
            let change = DeviceChange {
                peers: vec![peer],
                ..DeviceChange::default()
            };
            host.device.apply(self.now, &change).expect("few peers");
            host.device.came_up(self.now);
            host.routes.0 = vec![(cidr(&format!("10.0.0.{}/32", 1 - number)), 1 - number)];
        }
        self.pass(Duration::from_secs(200));
        self.packets = [0; 2];
        for _ in 0..40 {
            for host in [0_u8, 1] {
                let input = [host, 1 - host, 3];
                self.seal(usize::from(host), &mut InputBytes::new(&input));
            }
            let mut which = 0;
            while which < self.sent.len() {
                self.deliver(which, None);
                which += 1;
            }
            self.sent.clear();
            if self.packets.iter().all(|packets| *packets > 0) {
                return;
            }
            self.pass(Duration::from_millis(500));
        }
        panic!("packets do not pass: {:?}", self.packets);
    }
}

impl HostModel {
    fn status(&self) -> DeviceStatus {
        state(&self.device)
    }
}

fn find(status: &DeviceStatus, key: u8) -> Option<&PeerStatus> {
    status
        .peers
        .iter()
        .find(|peer| peer.public_key == public_key(key))
}
