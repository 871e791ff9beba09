//! UDP between the peers that the lab plays and an application behind their gateway.
//!
//! A sender takes the peers in turn, a datagram each, as fast as it can. What the other end receives
//! counts. From the peers: inner packet → seal, many peers in one call → `sendmmsg`. To the peers:
//! `recvmmsg` → the session that the index names; one in 64 is opened, and has to be authentic.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adit_aead::{OpenJob, SealJob, TAG_LEN};
use adit_io::{RecvBatch, Transmit};
use adit_offload::checksum::Sum;
use adit_proto::wire::{DataHeader, padded_len};
use adit_proto::{Endpoint, Time};
use adit_testbed::framing::TUNNEL_MTU;
use adit_testbed::interrupt::interrupted;
use adit_testbed::proc;
use adit_testbed::stats::to_f64;

use super::clients::{Connected, Sessions, Sockets};
use super::many::{self, Many};
use crate::measure::wait;
use crate::sandbox::Failure;

/// The application's port, and that of every peer.
pub(crate) const PORT: u16 = 5303;
/// Datagrams of one send, and of one call that seals.
const BATCH: usize = 64;
/// From the first packet on, before anything counts.
const WARM_UP: Duration = Duration::from_millis(300);
const TIME: Duration = Duration::from_millis(1500);
/// One in so many packets is opened.
const SAMPLE: u64 = 64;

/// The direction of the packets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    FromPeers,
    ToPeers,
}

/// What was delivered.
pub(super) struct Delivered {
    /// Packets a second.
    pub(super) rate: f64,
    /// CPU microseconds of the gateway's daemon for each, if there was one.
    pub(super) cpu: Option<f64>,
}

/// All that both ends of the load need.
pub(super) struct Load {
    pub(super) peers: Arc<Vec<Connected>>,
    pub(super) players: Arc<Sockets>,
    pub(super) app: Arc<Sockets>,
}

/// Shared with the threads of a load.
#[derive(Clone, Default)]
struct Progress {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
}

impl Progress {
    fn goes_on(&self) -> bool {
        !self.stop.load(Relaxed) && !interrupted()
    }
}

impl Load {
    pub(super) fn new(
        hosts: &Many,
        players: Sockets,
        peers: Vec<Connected>,
    ) -> Result<Self, Failure> {
        Ok(Self {
            peers: Arc::new(peers),
            players: Arc::new(players),
            app: Arc::new(Sockets::bind(&hosts.app, PORT)?),
        })
    }

    /// Datagrams with `len` octets of payload, for as long as one measurement takes.
    pub(super) fn run(
        &self,
        hosts: &Many,
        direction: Direction,
        len: usize,
    ) -> Result<Delivered, Failure> {
        let progress = Progress::default();
        let receiving = self.receive(direction, len, &progress)?;
        let sending = self.send(direction, len, &progress)?;
        let measured = measure(hosts.pid(), &progress);
        progress.stop.store(true, Relaxed);
        sending.join().map_err(|_| "the sender panicked")??;
        receiving.join().map_err(|_| "the receiver panicked")??;
        // Until queues are empty.
        wait(Duration::from_millis(200))?;
        measured
    }

    fn send(
        &self,
        direction: Direction,
        len: usize,
        progress: &Progress,
    ) -> Result<Thread, Failure> {
        let (peers, progress) = (Arc::clone(&self.peers), progress.clone());
        // A socket stays in the namespace that it was made in.
        let sockets = Arc::clone(match direction {
            Direction::FromPeers => &self.players,
            Direction::ToPeers => &self.app,
        });
        Ok(spawn(move || match direction {
            Direction::FromPeers => send_from_peers(&sockets, &peers, len, &progress),
            Direction::ToPeers => send_to_peers(&sockets, &peers, len, &progress),
        })?)
    }

    fn receive(
        &self,
        direction: Direction,
        len: usize,
        progress: &Progress,
    ) -> Result<Thread, Failure> {
        let (peers, progress) = (Arc::clone(&self.peers), progress.clone());
        let sockets = Arc::clone(match direction {
            Direction::FromPeers => &self.app,
            Direction::ToPeers => &self.players,
        });
        Ok(spawn(move || {
            let mut batch = RecvBatch::default();
            let sessions = Sessions::new(&peers);
            let (mut seen, mut forged) = (0, 0);
            while progress.goes_on() {
                let mut count = 0;
                let heard = sockets.receive(&mut batch, |from, datagram| {
                    let is_ours = match direction {
                        Direction::FromPeers => datagram.len() == len,
                        Direction::ToPeers => {
                            seen += 1;
                            let opens = seen % SAMPLE == 0;
                            match is_data(&sessions, from, datagram, len, opens) {
                                Ok(is_data) => is_data,
                                Err(()) => {
                                    forged += 1;
                                    false
                                }
                            }
                        }
                    };
                    count += u64::from(is_ours);
                });
                progress.received.fetch_add(count, Relaxed);
                if heard == 0 {
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
            match forged {
                0 => Ok(()),
                _ => Err(format!("{forged} packets of the gateway were not authentic").into()),
            }
        })?)
    }
}

type Thread = JoinHandle<Result<(), Failure>>;

fn spawn(work: impl FnOnce() -> Result<(), Failure> + Send + 'static) -> std::io::Result<Thread> {
    std::thread::Builder::new().spawn(work)
}

/// Packets a second and CPU time for each, once the load is steady.
fn measure(gateway: u32, progress: &Progress) -> Result<Delivered, Failure> {
    let now = || -> Result<_, Failure> {
        let received = progress.received.load(Relaxed);
        Ok((Instant::now(), received, proc::cpu_time(gateway)?))
    };
    wait(WARM_UP)?;
    let begin = now()?;
    wait(TIME)?;
    let end = now()?;
    let packets = to_f64(usize::try_from(end.1 - begin.1)?);
    let cpu = end.2.saturating_sub(begin.2).as_secs_f64();
    Ok(Delivered {
        rate: packets / (end.0 - begin.0).as_secs_f64(),
        cpu: (packets > 0.0).then_some(cpu * 1e6 / packets),
    })
}

/// Whether the gateway sent this packet of the load to a peer; an error if it is not authentic.
fn is_data(
    sessions: &Sessions<'_>,
    from: Endpoint,
    datagram: &mut [u8],
    len: usize,
    opens: bool,
) -> Result<bool, ()> {
    let Some(header) = DataHeader::parse(datagram) else {
        return Ok(false);
    };
    let Some(session) = sessions.of(from, header.receiver) else {
        return Ok(false);
    };
    // Keepalives are shorter.
    if datagram.len() < DataHeader::LEN + len + TAG_LEN {
        return Ok(false);
    }
    if opens {
        let text = &mut datagram[DataHeader::LEN..];
        let key = session.receive_key();
        let mut jobs = [OpenJob::in_place(key, header.counter, text)];
        adit_aead::open(&mut jobs);
        if !jobs[0].is_authentic() {
            return Err(());
        }
    }
    Ok(true)
}

/// The application writes to each peer in turn.
fn send_to_peers(
    sockets: &Sockets,
    peers: &[Connected],
    len: usize,
    progress: &Progress,
) -> Result<(), Failure> {
    let payload = vec![0x5a; len];
    let families = by_family(peers);
    let turns: Vec<Vec<Transmit<'_>>> = families
        .iter()
        .map(|peers| {
            let to = peers.iter().map(|peer| Transmit {
                to: SocketAddr::new(many::inner(peer.peer), PORT).into(),
                ecn: 0,
                stride: len,
                bytes: &payload,
            });
            // Of few peers a batch has each several times.
            let turns = BATCH.div_ceil(peers.len().max(1));
            to.cycle().take(peers.len() * turns).collect()
        })
        .collect();
    let mut cursors = vec![0; turns.len()];
    while progress.goes_on() {
        for (turn, at) in turns.iter().zip(&mut cursors) {
            let some = &turn[*at..(*at + BATCH).min(turn.len())];
            sockets.send(some);
            *at = (*at + BATCH) % turn.len().next_multiple_of(BATCH);
        }
    }
    Ok(())
}

/// Peers of IPv4, and those of IPv6, where there are any.
fn by_family(peers: &[Connected]) -> Vec<Vec<&Connected>> {
    let (v6, v4): (Vec<_>, Vec<_>) = peers.iter().partition(|peer| many::is_v6(peer.peer));
    [v4, v6]
        .into_iter()
        .filter(|peers| !peers.is_empty())
        .collect()
}

/// Each peer in turn seals and sends a packet to the application.
fn send_from_peers(
    sockets: &Sockets,
    peers: &[Connected],
    len: usize,
    progress: &Progress,
) -> Result<(), Failure> {
    let families = by_family(peers);
    let mut cursors = vec![0; families.len()];
    let mut buffers: Vec<Vec<u8>> = vec![Vec::new(); BATCH];
    let payload = vec![0x5a; len];
    let templates = [false, true].map(|v6| Template::new(v6, &payload));
    while progress.goes_on() {
        for (family, at) in families.iter().zip(&mut cursors) {
            let v6 = many::is_v6(family[0].peer);
            let template = &templates[usize::from(v6)];
            let some: Vec<&Connected> = (0..BATCH)
                .map(|step| family[(*at + step) % family.len()])
                .collect();
            *at = (*at + BATCH) % family.len();
            let mut jobs = Vec::with_capacity(BATCH);
            for (peer, buffer) in some.iter().zip(&mut buffers) {
                // The session of a run is younger than any limit of WireGuard's.
                let counter = peer.session.reserve(Time::default(), 1)?;
                template.write(many::inner(peer.peer), buffer);
                let (header, text) = buffer
                    .split_first_chunk_mut()
                    .ok_or("the template is too short")?;
                let receiver = peer.session.remote_index();
                DataHeader { receiver, counter }.write(header);
                jobs.push(SealJob::in_place(peer.session.send_key(), counter, text));
            }
            adit_aead::seal(&mut jobs);
            drop(jobs);
            let trains: Vec<Transmit<'_>> = some
                .iter()
                .zip(&buffers)
                .map(|(peer, datagram)| Transmit {
                    to: peer.to,
                    ecn: 0,
                    stride: datagram.len(),
                    bytes: datagram,
                })
                .collect();
            sockets.send(&trains);
        }
    }
    Ok(())
}

/// A UDP datagram to the application, with room for WireGuard's header and tag. Only the source
/// differs between peers.
pub(crate) struct Template {
    bytes: Vec<u8>,
    /// Of the pseudo-header and the datagram, without the source.
    partial: Sum,
}

pub(crate) const UDP: usize = 8;

impl Template {
    pub(crate) fn new(v6: bool, payload: &[u8]) -> Self {
        let len = payload.len();
        let header = if v6 { 40 } else { 20 };
        let udp_len = u16::try_from(UDP + len).unwrap_or(u16::MAX);
        let mut packet = vec![0; header + UDP + len];
        packet[header + UDP..].copy_from_slice(payload);
        match many::app(v6) {
            IpAddr::V4(to) => {
                packet[0] = 0x45;
                packet[2..4].copy_from_slice(&(20 + udp_len).to_be_bytes());
                (packet[8], packet[9]) = (64, 17);
                packet[16..20].copy_from_slice(&to.octets());
            }
            IpAddr::V6(to) => {
                packet[0] = 0x60;
                packet[4..6].copy_from_slice(&udp_len.to_be_bytes());
                (packet[6], packet[7]) = (17, 64);
                packet[24..40].copy_from_slice(&to.octets());
            }
        }
        let udp = &mut packet[header..];
        udp[..2].copy_from_slice(&PORT.to_be_bytes());
        udp[2..4].copy_from_slice(&PORT.to_be_bytes());
        udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
        let destination = match many::app(v6) {
            IpAddr::V4(to) => Sum::of(&to.octets()),
            IpAddr::V6(to) => Sum::of(&to.octets()),
        };
        let partial = Sum::of(udp) + destination + Sum::word(17) + Sum::word(udp_len);
        let mut bytes = vec![0; DataHeader::LEN];
        bytes.extend(&packet);
        let padded = padded_len(packet.len(), TUNNEL_MTU);
        bytes.resize(DataHeader::LEN + padded + TAG_LEN, 0);
        Self { bytes, partial }
    }

    /// The datagram of the peer at this inner address.
    pub(crate) fn write(&self, from: IpAddr, to: &mut Vec<u8>) {
        to.clear();
        to.extend_from_slice(&self.bytes);
        let packet = &mut to[DataHeader::LEN..];
        let (sum, udp) = match from {
            IpAddr::V4(from) => {
                packet[12..16].copy_from_slice(&from.octets());
                let header = Sum::of(&packet[..20]).checksum();
                packet[10..12].copy_from_slice(&header.to_be_bytes());
                (Sum::of(&from.octets()), 20)
            }
            IpAddr::V6(from) => {
                packet[8..24].copy_from_slice(&from.octets());
                (Sum::of(&from.octets()), 40)
            }
        };
        // Zero would mean that there is none (RFC 768).
        let checksum = match (self.partial + sum).checksum() {
            0 => 0xffff,
            checksum => checksum,
        };
        packet[udp + 6..udp + 8].copy_from_slice(&checksum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packets_of_all_peers_have_right_checksums() {
        for (peer, len) in [(0, 64), (1, 64), (65_538, 1368), (9_999, 1368)] {
            let mut bytes = Vec::new();
            let v6 = many::is_v6(peer);
            Template::new(v6, &vec![0x5a; len]).write(many::inner(peer), &mut bytes);
            let packet = &bytes[DataHeader::LEN..];
            let (header, addresses) = if v6 { (40, 8..40) } else { (20, 12..20) };
            if !v6 {
                assert_eq!(Sum::of(&packet[..20]).checksum(), 0, "of the IPv4 header");
            }
            let udp = &packet[header..header + UDP + len];
            let udp_len = u16::try_from(UDP + len).unwrap();
            let pseudo = Sum::of(&packet[addresses]) + Sum::word(17) + Sum::word(udp_len);
            assert_eq!((pseudo + Sum::of(udp)).checksum(), 0, "of peer {peer}");
        }
    }
}
