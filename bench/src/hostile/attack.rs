//! What the attacker sends, and a thread that sends it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use adit_io::udp::Udp;
use adit_io::{Offloads, SendReport, Transmit, UdpSocket};
use adit_proto::wire::DataHeader;
use adit_proto::{Endpoint, Source};
use adit_testbed::stats::to_f64;

use super::clients::Client;
use super::hosts::{Hosts, INSIDER, target};
use super::{Attack, Rate};
use crate::hosts::Keys;
use crate::measure::wait;
use crate::sandbox::Failure;
use crate::threads::{Stop, Threads};

/// Different initiations of strangers.
const STRANGERS: usize = 128;
/// Forged sources.
const SOURCES: u32 = 4096;
/// Sources with a cookie.
const PROVEN: u8 = 32;
/// Sent in one call.
const BATCH: usize = 64;
/// Bytes in the packets of data.
const PACKET: usize = 96;
/// How long a server may take to give out cookies.
const COOKIES: Duration = Duration::from_secs(3);

/// A datagram, and the source that it is from.
#[derive(Clone)]
struct Message {
    from: IpAddr,
    bytes: Vec<u8>,
}

/// What is sent, again and again.
#[derive(Clone)]
enum Payload {
    Fixed(Arc<Vec<Message>>),
    /// Packets that a peer seals, each once.
    Sealed(Arc<std::sync::Mutex<Client>>),
}

/// What an attack needs, made before it.
pub(super) struct Attacker {
    payload: Payload,
    rate: Rate,
}

const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 80, 0, 1));

/// One of the forged sources.
fn source(number: u32) -> IpAddr {
    let number = number % SOURCES;
    let bits = u32::from(Ipv4Addr::new(10, 80, 16, 0)) + number;
    Ipv4Addr::from_bits(bits).into()
}

impl Attacker {
    pub(super) fn new(hosts: &Hosts, attack: Attack, rate: Rate) -> Result<Self, Failure> {
        let fixed = |messages: Vec<Message>| Payload::Fixed(Arc::new(messages));
        let payload = match attack {
            Attack::OneSource => fixed(from_one(strangers(hosts)?)),
            Attack::Sources => fixed(spread(&strangers(hosts)?)),
            Attack::WrongMac1 => {
                let mut messages = strangers(hosts)?;
                messages.iter_mut().for_each(|bytes| bytes[120] ^= 1);
                fixed(spread(&messages))
            }
            Attack::Cookies => fixed(with_cookies(hosts, rate)?),
            Attack::UnknownIndices => fixed(from_one((0..4096).map(unknown).collect())),
            Attack::BadTags => {
                let (mut insider, mut messages) = (insider(hosts)?, Vec::new());
                for n in 0..4096_u64 {
                    let mut bytes = insider.seal(&packet()).ok_or("no session")?;
                    // Far ahead of what the window has seen.
                    bytes[8..16].copy_from_slice(&(1 << 40 | n).to_le_bytes());
                    messages.push(bytes);
                }
                fixed(from_one(messages))
            }
            Attack::Replays => {
                let mut insider = insider(hosts)?;
                let sealed = (0..4096).map(|_| insider.seal(&packet()));
                fixed(from_one(sealed.collect::<Option<_>>().ok_or("no session")?))
            }
            Attack::Peer => Payload::Sealed(Arc::new(std::sync::Mutex::new(insider(hosts)?))),
        };
        Ok(Self { payload, rate })
    }

    /// Floods the server's port, or one where nobody listens.
    pub(super) fn start(&self, hosts: &Hosts, open: bool) -> Result<Flood, Failure> {
        Flood::start(hosts, self.payload.clone(), target(open), self.rate)
    }
}

fn from_one(messages: Vec<Vec<u8>>) -> Vec<Message> {
    let from = |bytes| Message { from: OWN, bytes };
    messages.into_iter().map(from).collect()
}

/// Each message from many sources.
fn spread(messages: &[Vec<u8>]) -> Vec<Message> {
    (0..SOURCES)
        .zip(messages.iter().cycle())
        .map(|(number, bytes)| Message {
            from: source(number),
            bytes: bytes.clone(),
        })
        .collect()
}

/// Initiations with a right mac1, of keys that the server does not know.
fn strangers(hosts: &Hosts) -> Result<Vec<Vec<u8>>, Failure> {
    let public = hosts.public;
    hosts.outside.run(move || {
        let from = SocketAddr::new(OWN, 0);
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
        let one = || -> Result<Vec<u8>, Failure> {
            let mut client = Client::new(&Keys::new()?, from, public, nowhere)?;
            client.connect();
            Ok(client.poll().pop().ok_or("no initiation")?)
        };
        (0..STRANGERS).map(|_| one()).collect()
    })
}

/// One message in eight has a cookie of its source, and all are sent again and again.
fn with_cookies(hosts: &Hosts, rate: Rate) -> Result<Vec<Message>, Failure> {
    let plain = from_one(strangers(hosts)?);
    let fixed = Payload::Fixed(Arc::new(plain.clone()));
    let flood = Flood::start(hosts, fixed, target(true), rate)?;
    wait(Duration::from_millis(500))?;
    let keys = Keys::new()?;
    let clients = (1..=PROVEN).map(|n| {
        let from = Ipv4Addr::new(10, 80, 1, n);
        let mut client = hosts.outsider(&keys, from)?;
        client.connect();
        Ok((IpAddr::from(from), client))
    });
    let mut clients = clients.collect::<Result<Vec<_>, Failure>>()?;
    let begun = Instant::now();
    let mut proven = Vec::new();
    while begun.elapsed() < COOKIES && !clients.is_empty() {
        clients.retain_mut(|(from, client)| {
            client.poll();
            if !client.has_cookie() {
                return true;
            }
            let bytes = client.next_initiation();
            proven.extend(bytes.map(|bytes| Message { from: *from, bytes }));
            false
        });
        wait(Duration::from_millis(5))?;
    }
    flood.stop();
    if proven.is_empty() {
        return Err("the server gives no cookies".into());
    }
    let cookies = proven.iter().cycle();
    let messages = plain.chunks(7).zip(cookies).flat_map(|(plain, cookie)| {
        let all = plain.iter().chain([cookie]);
        all.cloned().collect::<Vec<_>>()
    });
    Ok(messages.collect())
}

/// The peer that attacks, with a session.
fn insider(hosts: &Hosts) -> Result<Client, Failure> {
    let mut client = hosts.insider()?;
    client.connect();
    let begun = Instant::now();
    while client.session().is_none() {
        client.poll();
        wait(Duration::from_millis(5))?;
        if begun.elapsed() > COOKIES {
            return Err("the peer that attacks did not connect".into());
        }
    }
    Ok(client)
}

/// A data message for no session.
fn unknown(number: u32) -> Vec<u8> {
    let mut bytes = vec![7; DataHeader::LEN + PACKET + 16];
    let header = DataHeader {
        receiver: number.wrapping_mul(0x9e37_79b9),
        counter: number.into(),
    };
    let head = bytes.first_chunk_mut().expect("longer than a header");
    header.write(head);
    bytes
}

/// A UDP packet from the peer to a closed port of the server.
fn packet() -> Vec<u8> {
    let mut packet = vec![0; PACKET];
    let len = u16::try_from(PACKET).expect("a short packet");
    packet[..4].copy_from_slice(&[0x45, 0, len.to_be_bytes()[0], len.to_be_bytes()[1]]);
    (packet[8], packet[9]) = (64, 17);
    packet[12..16].copy_from_slice(&INSIDER.octets());
    packet[16..20].copy_from_slice(&[10, 77, 0, 1]);
    let sum = packet[..20].chunks(2).fold(0_u32, |sum, pair| {
        sum + u32::from(u16::from_be_bytes([pair[0], pair[1]]))
    });
    let sum = u16::try_from((sum & 0xffff) + (sum >> 16)).map_or(0xffff, |sum| !sum);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet[20..24].copy_from_slice(&[0x30, 0x39, 0, 9]);
    packet[24..26].copy_from_slice(&(len - 20).to_be_bytes());
    packet
}

/// A flood that runs.
pub(super) struct Flood {
    threads: Threads<()>,
    sent: Arc<AtomicU64>,
    begun: Instant,
}

impl Flood {
    fn start(hosts: &Hosts, payload: Payload, to: SocketAddr, rate: Rate) -> Result<Self, Failure> {
        let sent: Arc<AtomicU64> = Arc::default();
        let count = Arc::clone(&sent);
        let socket = hosts.outside.run(|| {
            let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            Udp::bind(any, 0, Offloads::ALL, false)
        })?;
        let mut threads = Threads::new();
        threads.start(&hosts.outside, move |stop| {
            flood(&socket, &payload, to, rate, stop, &count);
        })?;
        Ok(Self {
            threads,
            sent,
            begun: Instant::now(),
        })
    }

    /// Ends it and returns how many thousand messages it sent a second.
    pub(super) fn stop(self) -> f64 {
        let seconds = self.begun.elapsed().as_secs_f64();
        drop(self.threads);
        let sent = self.sent.load(Ordering::Relaxed);
        to_f64(usize::try_from(sent).unwrap_or(usize::MAX)) / seconds / 1000.0
    }
}

/// Sends batches as they fall due, one message a datagram.
fn flood(
    socket: &Udp,
    payload: &Payload,
    to: SocketAddr,
    rate: Rate,
    stop: &Stop,
    sent: &AtomicU64,
) {
    let packet = packet();
    let begun = Instant::now();
    let mut report = SendReport::default();
    let (mut count, mut next) = (0.0, 0);
    while stop.goes_on() {
        if count > begun.elapsed().as_secs_f64() * rate.0 {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        }
        let sealed: Vec<Message>;
        let batch: Vec<&Message> = match payload {
            Payload::Fixed(messages) => (next..next + BATCH)
                .map(|n| &messages[n % messages.len()])
                .collect(),
            Payload::Sealed(client) => {
                let Ok(mut client) = client.lock() else {
                    return;
                };
                let datagrams = (0..BATCH).filter_map(|_| client.seal(&packet));
                sealed = datagrams
                    .map(|bytes| Message { from: OWN, bytes })
                    .collect();
                sealed.iter().collect()
            }
        };
        next += BATCH;
        let trains: Vec<Transmit<'_>> = batch
            .iter()
            .map(|message| Transmit {
                to: Endpoint {
                    addr: to,
                    src: Some(Source {
                        ip: message.from,
                        ifindex: 0,
                    }),
                },
                ecn: 0,
                stride: message.bytes.len(),
                bytes: &message.bytes,
            })
            .collect();
        // ICMP errors count as sent: they are what a closed port answers.
        let taken = socket.send(&trains, &mut report);
        sent.fetch_add(taken as u64, Ordering::Relaxed);
        count += to_f64(BATCH);
    }
}
