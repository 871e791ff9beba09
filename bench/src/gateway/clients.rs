//! The peers that the lab plays, until each has a session with the gateway.
//!
//! Stages: initiations, all computed before any leaves → send, at most so many under way → responses
//! → the packets that confirm the sessions. What the network loses is sent again by WireGuard's own
//! timers.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use adit_io::udp::Udp;
use adit_io::{Offloads, RecvBatch, SendReport, Transmit, UdpSocket};
use adit_proto::config::{DeviceChange, PeerChange, PublicKey};
use adit_proto::{Device, Endpoint, Output, Session, Source, Tai64N, Time};
use adit_testbed::Host;
use adit_testbed::interrupt::interrupted;
use adit_testbed::stats::to_f64;

use super::many::{self, PORT};
use crate::hosts::{self, Keys};
use crate::sandbox::Failure;

/// Sockets for IPv4 and IPv6 on one port.
pub(crate) struct Sockets([Udp; 2]);

impl Sockets {
    pub(crate) fn bind(at: &Host, port: u16) -> Result<Self, Failure> {
        let bind = move || {
            let bind = |addr| Udp::bind(addr, 0, Offloads::ALL, false);
            let v4 = bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port))?;
            let v6 = bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port))?;
            Ok::<_, std::io::Error>([v4, v6])
        };
        Ok(Self(at.run(bind)?))
    }

    /// Sends all, waiting where the socket is full. All go to the same family.
    pub(crate) fn send(&self, mut trains: &[Transmit<'_>]) {
        let mut report = SendReport::default();
        while let Some(first) = trains.first() {
            let socket = &self.0[usize::from(first.to.addr.is_ipv6())];
            let taken = socket.send(trains, &mut report);
            trains = &trains[taken.min(trains.len())..];
            if taken == 0 {
                if interrupted() {
                    return;
                }
                std::thread::yield_now();
            }
        }
    }

    /// Hands each datagram that waits to `each`; returns how many there were.
    pub(crate) fn receive(
        &self,
        batch: &mut RecvBatch,
        mut each: impl FnMut(Endpoint, &mut [u8]),
    ) -> usize {
        let mut count = 0;
        for socket in &self.0 {
            // Any error but an empty socket concerns one datagram, which is lost.
            if socket.recv(batch).is_err() {
                continue;
            }
            for (received, bytes) in batch.iter_mut() {
                for datagram in bytes.chunks_mut(received.stride) {
                    each(received.from, datagram);
                    count += 1;
                }
            }
        }
        count
    }
}

/// A client before its session.
struct Client {
    device: Device,
    /// Computed, and not sent yet.
    initiation: Option<Vec<u8>>,
    /// Its clock begins when its first initiation leaves.
    begun: Option<Instant>,
}

/// A client with a session.
#[derive(Clone)]
pub(crate) struct Connected {
    pub(crate) session: Arc<Session>,
    pub(crate) to: Endpoint,
    pub(crate) peer: u32,
}

/// The sessions of peers, by the address that a datagram came to and the index that it names.
pub(crate) struct Sessions<'a>(HashMap<(IpAddr, u32), &'a Session>);

impl<'a> Sessions<'a> {
    pub(crate) fn new(peers: &'a [Connected]) -> Self {
        let sessions = peers.iter().map(|peer| {
            let session = &*peer.session;
            ((many::outer(peer.peer), session.local_index()), session)
        });
        Self(sessions.collect())
    }

    /// The session of a datagram that came `from` the gateway.
    pub(crate) fn of(&self, from: Endpoint, index: u32) -> Option<&'a Session> {
        self.0.get(&(from.src?.ip, index)).copied()
    }
}

pub(crate) struct Clients {
    clients: Vec<Option<Client>>,
    /// The client that each index names at each address: clients choose theirs alone, so that two may
    /// have the same.
    indices: HashMap<(IpAddr, u32), u32>,
    due: BinaryHeap<Reverse<(Instant, u32)>>,
    outgoing: Vec<(u32, Vec<u8>)>,
    connected: Vec<Connected>,
}

/// When clients begin.
#[derive(Clone, Copy)]
pub(crate) enum Pace {
    /// So many have a handshake under way.
    AtATime(usize),
    /// One after the other, all within this time.
    Within(Duration),
}

impl Pace {
    /// How many of `all` clients may have begun, `connected` of which have a session.
    fn begun(self, all: usize, connected: usize, since: Duration) -> usize {
        match self {
            Self::AtATime(count) => all.min(connected + count),
            Self::Within(time) => {
                let one = time.as_nanos() / all.max(1) as u128;
                let due = since.as_nanos() / one.max(1) + 1;
                usize::try_from(due).map_or(all, |due| due.min(all))
            }
        }
    }
}

/// How the handshakes went.
pub(crate) struct Handshakes {
    pub(crate) connected: Vec<Connected>,
    /// When each was, since the first client began. In this order.
    times: Vec<Duration>,
}

impl Handshakes {
    /// Handshakes a second until nine tenths of `all` clients had a session. The rest may have lost a
    /// message, and wait for five seconds. If so many never had one, those that had in `limit`.
    pub(crate) fn rate(&self, all: usize, limit: Duration) -> f64 {
        let most = (all * 9).div_ceil(10);
        match self.times.get(most.max(1) - 1) {
            Some(time) => to_f64(most) / time.as_secs_f64(),
            None => to_f64(self.times.len()) / limit.as_secs_f64(),
        }
    }
}

const START: Time = Time(1_000_000_000);
/// Datagrams of one send.
const BATCH: usize = 64;

fn wall() -> Tai64N {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Tai64N::from_unix(now.unwrap_or_default())
}

/// Where a client sends to, and from which address.
fn endpoint(peer: u32) -> Endpoint {
    Endpoint {
        addr: many::gateway(peer),
        src: Some(Source {
            ip: many::outer(peer),
            ifindex: 0,
        }),
    }
}

impl Client {
    fn new(keys: &Keys, gateway: PublicKey, peer: u32) -> Result<Self, Failure> {
        let fill = |bytes: &mut [u8]| hosts::random(bytes).expect("/dev/urandom has no end");
        let mut device = Device::new(Box::new(fill));
        let change = DeviceChange {
            private_key: Some(keys.secret.clone()),
            peers: vec![PeerChange {
                endpoint: Some(many::gateway(peer)),
                ..PeerChange::new(gateway)
            }],
            ..DeviceChange::default()
        };
        device.apply(START, &change)?;
        let at_gateway = device.peer(&gateway).ok_or("the peer was just added")?;
        let at_gateway = Arc::clone(at_gateway);
        at_gateway.want_session();
        device.handle_event(START, wall(), &at_gateway);
        device.handle_timeout(START, wall());
        let mut this = Self {
            device,
            initiation: None,
            begun: None,
        };
        while let Some(output) = this.device.poll_output() {
            if let Output::Handshake { datagram, .. } = output {
                this.initiation = Some(datagram.to_vec());
            }
        }
        Ok(this)
    }

    fn now(&self) -> Time {
        let since = self.begun.map_or(Duration::ZERO, |begun| begun.elapsed());
        START + since
    }
}

impl Clients {
    /// The clients with these keys, and their initiations.
    pub(crate) fn new(keys: &[Keys], gateway: PublicKey) -> Result<Self, Failure> {
        let clients = (0..).zip(keys).map(|(peer, keys)| {
            adit_testbed::interrupt::check()?;
            Client::new(keys, gateway, peer).map(Some)
        });
        Ok(Self {
            clients: clients.collect::<Result<_, Failure>>()?,
            indices: HashMap::new(),
            due: BinaryHeap::new(),
            outgoing: Vec::new(),
            connected: Vec::new(),
        })
    }

    /// Shakes hands with the gateway.
    ///
    /// Returns those that have a session when all do, or at the end of `limit`.
    pub(crate) fn connect(mut self, sockets: &Sockets, pace: Pace, limit: Duration) -> Handshakes {
        let (begun, all) = (Instant::now(), self.clients.len());
        let (mut next, mut times) = (0, Vec::new());
        let mut batch = RecvBatch::default();
        while self.connected.len() < all && begun.elapsed() < limit && !interrupted() {
            let may_begin = pace.begun(all, self.connected.len(), begun.elapsed());
            // What comes back is read in between.
            let until = may_begin.min(next + BATCH);
            (next..until).for_each(|number| self.begin(number));
            next = next.max(until);
            self.resend();
            let mut answers = Vec::new();
            let heard = sockets.receive(&mut batch, |from, datagram| {
                answers.push((from, datagram.to_vec()));
            });
            for (from, datagram) in answers {
                self.consume(from, &datagram);
            }
            times.resize(self.connected.len(), begun.elapsed());
            let quiet = heard == 0 && self.outgoing.is_empty();
            self.flush(sockets);
            if quiet {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        Handshakes {
            connected: self.connected,
            times,
        }
    }

    /// A client's first initiation leaves.
    fn begin(&mut self, number: usize) {
        let Some(client) = &mut self.clients[number] else {
            return;
        };
        client.begun = Some(Instant::now());
        let Some(initiation) = client.initiation.take() else {
            return;
        };
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        self.post(number, initiation);
        self.schedule(number);
    }

    /// Notes the index by which the gateway will name the client.
    fn post(&mut self, number: u32, datagram: Vec<u8>) {
        if let (Some(1), Some(index)) = (datagram.first(), index(&datagram, 4)) {
            self.indices.insert((many::outer(number), index), number);
        }
        self.outgoing.push((number, datagram));
    }

    fn schedule(&mut self, number: u32) {
        let Some(Some(client)) = self.clients.get(number as usize) else {
            return;
        };
        if let (Some(begun), Some(at)) = (client.begun, client.device.next_deadline()) {
            self.due.push(Reverse((begun + at.since(START), number)));
        }
    }

    /// What has waited too long for an answer is sent again.
    fn resend(&mut self) {
        while let Some(&Reverse((at, number))) = self.due.peek() {
            if at > Instant::now() || self.outgoing.len() >= BATCH {
                break;
            }
            self.due.pop();
            let Some(Some(client)) = self.clients.get_mut(number as usize) else {
                continue;
            };
            let now = client.now();
            if client.device.next_deadline().is_some_and(|at| at <= now) {
                client.device.handle_timeout(now, wall());
                self.drain(number);
                self.schedule(number);
            }
        }
    }

    fn consume(&mut self, from: Endpoint, datagram: &[u8]) {
        let receiver = match datagram.first() {
            Some(2) => index(datagram, 8),
            Some(3) => index(datagram, 4),
            _ => None,
        };
        let number = receiver.zip(from.src).and_then(|(receiver, to)| {
            let number = self.indices.get(&(to.ip, receiver));
            number.copied()
        });
        let Some(number) = number else { return };
        let Some(Some(client)) = self.clients.get_mut(number as usize) else {
            return;
        };
        let now = client.now();
        client
            .device
            .handle_handshake(now, wall(), from, datagram, false);
        self.drain(number);
        self.schedule(number);
    }

    /// What the client's device wants done. One that confirms its session is done.
    fn drain(&mut self, number: u32) {
        let Some(Some(client)) = self.clients.get_mut(number as usize) else {
            return;
        };
        let (now, mut sent, mut session) = (client.now(), Vec::new(), None);
        while let Some(output) = client.device.poll_output() {
            match output {
                Output::Handshake { datagram, .. } => sent.push(datagram.to_vec()),
                Output::Keepalive { peer } => {
                    let sealed = client.device.seal_keepalive(now, wall(), &peer);
                    session = peer.session(now);
                    sent.extend(sealed.map(|(_, datagram)| datagram.to_vec()));
                }
                Output::SessionReady { .. } | Output::DropStaged { .. } | Output::Event(_) => {}
            }
        }
        for datagram in sent {
            self.post(number, datagram);
        }
        if let Some(session) = session {
            self.clients[number as usize] = None;
            self.connected.push(Connected {
                session,
                to: endpoint(number),
                peer: number,
            });
        }
    }

    fn flush(&mut self, sockets: &Sockets) {
        // A send has one family.
        self.outgoing
            .sort_by_key(|(number, _)| many::is_v6(*number));
        for same in self
            .outgoing
            .chunk_by(|(a, _), (b, _)| many::is_v6(*a) == many::is_v6(*b))
        {
            for some in same.chunks(BATCH) {
                let trains: Vec<Transmit<'_>> = some
                    .iter()
                    .map(|(number, datagram)| Transmit {
                        to: endpoint(*number),
                        ecn: 0,
                        stride: datagram.len(),
                        bytes: datagram,
                    })
                    .collect();
                sockets.send(&trains);
            }
        }
        self.outgoing.clear();
    }
}

fn index(datagram: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*datagram.get(at..)?.first_chunk()?))
}

/// The players' sockets.
pub(crate) fn sockets(players: &Host) -> Result<Sockets, Failure> {
    Sockets::bind(players, PORT)
}

#[cfg(test)]
#[path = "clients_tests.rs"]
mod tests;
