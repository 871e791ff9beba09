//! Clients of a gateway that ping it: many devices behind one socket, each with an address of its own.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use adit::sans_io::{Device, Inbox, Now, Outbox};
use adit::{Config, Peer, PrivateKey};
use adit_io::{RecvBatch, Transmit};
use adit_proto::config::PublicKey;
use adit_proto::{Endpoint, Source};
use adit_testbed::interrupt::interrupted;

use crate::gateway::clients::Sockets;
use crate::gateway::many;
use crate::hosts::Keys;
use crate::sandbox::Failure;

/// The gateway's address inside the tunnel.
const INSIDE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// The number of a client among the lab's peers, whose even ones speak IPv4.
pub(super) const fn peer(client: u32) -> u32 {
    2 * client
}

/// A client, from its first ping on.
struct Client {
    device: Device,
    ip: IpAddr,
    /// The packet that it sends.
    ping: Vec<u8>,
    begun: Option<Duration>,
    next_ping: Duration,
    first_answer: Option<Duration>,
    last_answer: Duration,
    /// The longest time between two answers, since it was asked last.
    gap: Duration,
}

/// All of them.
pub(super) struct FleetClients<'a> {
    sockets: &'a Sockets,
    clients: Vec<Client>,
    by_ip: HashMap<IpAddr, usize>,
    start: Instant,
    batch: RecvBatch,
    inbox: Inbox,
    outbox: Outbox,
}

impl<'a> FleetClients<'a> {
    /// The clients from number `first` on that have these keys.
    pub(super) fn new(
        sockets: &'a Sockets,
        gateway: PublicKey,
        first: u32,
        keys: &[Keys],
    ) -> Result<Self, Failure> {
        let mut clients = Vec::new();
        for (number, keys) in (first..).zip(keys) {
            adit_testbed::interrupt::check()?;
            let key: PrivateKey = keys.private().parse()?;
            let server = Peer::new(gateway.to_string().parse()?)
                .endpoint(many::gateway(0))
                .allowed_ip("0.0.0.0/0".parse()?);
            let IpAddr::V4(inner) = many::inner(peer(number)) else {
                return Err("it has no IPv4 address".into());
            };
            clients.push(Client {
                device: Device::new(&Config::new(key).peer(server))?,
                ip: many::outer(peer(number)),
                ping: echo_request(inner),
                begun: None,
                next_ping: Duration::ZERO,
                first_answer: None,
                last_answer: Duration::ZERO,
                gap: Duration::ZERO,
            });
        }
        let by_ip = clients.iter().enumerate();
        Ok(Self {
            sockets,
            by_ip: by_ip.map(|(at, client)| (client.ip, at)).collect(),
            clients,
            start: Instant::now(),
            batch: RecvBatch::default(),
            inbox: Inbox::new(),
            outbox: Outbox::new(),
        })
    }

    /// Runs until all have an answer, or for `limit`: a client begins with a ping `apart` from the one before, and
    /// pings again `every` so often; with its first ping unanswered, WireGuard's timers are all that follows.
    pub(super) fn begin(&mut self, apart: Duration, every: Option<Duration>, limit: Duration) {
        let begun = self.start.elapsed();
        let mut next = self
            .clients
            .iter()
            .take_while(|it| it.begun.is_some())
            .count();
        let before = next;
        loop {
            let now = self.start.elapsed();
            let since = now.saturating_sub(begun);
            while next < self.clients.len()
                && apart * u32::try_from(next - before).unwrap_or(u32::MAX) <= since
            {
                let client = &mut self.clients[next];
                (client.begun, client.next_ping) = (Some(now), now);
                next += 1;
            }
            self.work(every);
            let is_done = self.clients.iter().all(|it| it.first_answer.is_some());
            if is_done || since >= limit || interrupted() {
                return;
            }
        }
    }

    /// Pings `every` so often for this time, or until each has an answer that came after `from`.
    pub(super) fn go_on(&mut self, every: Duration, limit: Duration, from: Option<Duration>) {
        let begun = self.start.elapsed();
        while self.start.elapsed().saturating_sub(begun) < limit && !interrupted() {
            self.work(Some(every));
            if from.is_some_and(|from| self.clients.iter().all(|it| it.last_answer > from)) {
                return;
            }
        }
    }

    /// The time since they were made.
    pub(super) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Forgets the gaps so far.
    pub(super) fn forget_gaps(&mut self) {
        let now = self.now();
        for client in &mut self.clients {
            client.gap = Duration::ZERO;
            client.last_answer = now;
        }
    }

    /// The longest gap of each, in milliseconds. One that still lasts counts.
    pub(super) fn gaps(&self) -> Vec<f64> {
        let now = self.now();
        let gap = |it: &Client| it.gap.max(now.saturating_sub(it.last_answer));
        self.clients
            .iter()
            .map(|it| gap(it).as_secs_f64() * 1000.0)
            .collect()
    }

    /// From the first ping of each to its answer, in milliseconds, of those that have one.
    pub(super) fn first_answers(&self) -> Vec<f64> {
        let times = self.clients.iter().filter_map(|it| {
            let time = it.first_answer?.saturating_sub(it.begun?);
            Some(time.as_secs_f64() * 1000.0)
        });
        times.collect()
    }

    /// Reads what came, and sends what is due.
    fn work(&mut self, every: Option<Duration>) {
        let heard = self.receive();
        let at = self.start.elapsed();
        let now = now(at);
        let mut sent = 0;
        for client in &mut self.clients {
            if client.begun.is_none() {
                continue;
            }
            if at >= client.next_ping {
                client.next_ping = every.map_or(Duration::MAX, |every| at + every);
                // What does not fit is a ping that was lost.
                let _ =
                    client
                        .device
                        .seal(now, std::slice::from_ref(&client.ping), &mut self.outbox);
            }
            if client.device.next_deadline(now) == Some(Duration::ZERO) {
                client.device.handle_timeout(now, &mut self.outbox);
            }
            sent += send(self.sockets, client.ip, &mut self.outbox);
        }
        if heard + sent == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn receive(&mut self) -> usize {
        let at = self.start.elapsed();
        let now = now(at);
        let mut came: Vec<(usize, Endpoint, Vec<u8>)> = Vec::new();
        let heard = self.sockets.receive(&mut self.batch, |from, datagram| {
            let client = from.src.and_then(|to| self.by_ip.get(&to.ip));
            came.extend(client.map(|client| (*client, from, datagram.to_vec())));
        });
        for (number, from, datagram) in came {
            let client = &mut self.clients[number];
            if self.inbox.push(from.addr, &datagram).is_err() {
                continue;
            }
            let opened = (client.device).open(now, &mut self.inbox, &mut self.outbox);
            let answers = opened.packets().filter(|(_, packet)| is_answer(packet));
            if answers.count() > 0 {
                client.first_answer.get_or_insert(at);
                client.gap = client.gap.max(at.saturating_sub(client.last_answer));
                client.last_answer = at;
            }
            send(self.sockets, client.ip, &mut self.outbox);
        }
        heard
    }
}

fn now(since: Duration) -> Now {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH);
    // Of timers: they count from a time that is not zero.
    Now::new(since + Duration::from_secs(1), wall.unwrap_or_default())
}

/// Sends what a client has to send.
fn send(sockets: &Sockets, from: IpAddr, outbox: &mut Outbox) -> usize {
    let mut sent = 0;
    for train in outbox.drain() {
        let to = Endpoint {
            addr: train.to,
            src: Some(Source {
                ip: from,
                ifindex: 0,
            }),
        };
        sockets.send(&[Transmit {
            to,
            ecn: 0,
            stride: train.stride,
            bytes: train.bytes,
        }]);
        sent += 1;
    }
    sent
}

/// An ICMP echo request to the gateway, without data.
fn echo_request(from: Ipv4Addr) -> Vec<u8> {
    let mut packet = vec![0; 28];
    (packet[0], packet[3], packet[8], packet[9]) = (0x45, 28, 64, 1);
    packet[12..16].copy_from_slice(&from.octets());
    packet[16..20].copy_from_slice(&INSIDE.octets());
    let header = checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&header);
    packet[20] = 8;
    let message = checksum(&packet[20..]);
    packet[22..24].copy_from_slice(&message);
    packet
}

/// RFC 1071, of an even number of bytes.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks_exact(2);
    let mut sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!u16::try_from(sum).unwrap_or(0)).to_be_bytes()
}

/// Whether a packet is an ICMP echo reply.
fn is_answer(packet: &[u8]) -> bool {
    packet.get(9) == Some(&1) && packet.get(20) == Some(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_has_checksums_that_are_right() {
        let ping = echo_request(Ipv4Addr::new(10, 128, 0, 2));
        assert_eq!(checksum(&ping[..20]), [0, 0]);
        assert_eq!(checksum(&ping[20..]), [0, 0]);
        let mut reply = ping.clone();
        assert!(!is_answer(&reply));
        reply[20] = 0;
        assert!(is_answer(&reply) && !is_answer(&[0x45]));
    }
}
