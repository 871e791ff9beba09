//! TCP of the peers that the lab plays: the kernel of their host speaks it, behind a TUN that the
//! lab serves.
//!
//! From a peer: TUN → the session of the packet's source → seal → `sendmmsg`. To a peer: `recvmmsg`
//! → the session that the index names → open → merge → TUN.

use std::collections::HashMap;
use std::io::IoSlice;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use adit_aead::{OpenJob, SealJob, TAG_LEN};
use adit_io::tun::Tun;
use adit_io::{FrameBatch, Offloads, RecvBatch, Transmit, TunQueue};
use adit_offload::{Coalescer, Frame, Span, inner_packet};
use adit_proto::Time;
use adit_proto::wire::{DataHeader, padded_len};
use adit_testbed::framing::TUNNEL_MTU;
use adit_testbed::proc;

use super::clients::{Connected, Sessions, Sockets};
use super::load::Direction;
use super::many::{self, Many};
use crate::generator::Streams;
use crate::measure::wait;
use crate::sandbox::Failure;
use crate::threads::{Stop, Threads};

const TUN: &str = "peers";
/// So many peers have a connection, at most.
const MOST: u32 = 100;
/// Octets of a GSO packet at most: what the kernel takes for one send, once it is sealed.
const GSO_SIZE: u32 = 60_000;
const TIME: Duration = Duration::from_secs(3);
/// Before either thread looks again.
const PAUSE: Duration = Duration::from_micros(100);

/// The TUN, and the threads that serve it.
pub(super) struct Tcp {
    peers: Vec<IpAddr>,
    threads: Threads<Result<(), Failure>>,
}

impl Tcp {
    /// The first peers of these get a connection each.
    pub(super) fn new(
        hosts: &Many,
        peers: Arc<Vec<Connected>>,
        sockets: Arc<Sockets>,
        congestion: &str,
    ) -> Result<Self, Failure> {
        let tun = hosts.players.run(|| -> std::io::Result<Tun> {
            let tun = Tun::open(TUN, 1, Offloads::ALL)?.remove(0);
            tun.set_frame_size(GSO_SIZE)?;
            Ok(tun)
        })?;
        let played: Vec<IpAddr> = (peers.iter().map(|of| of.peer))
            .filter(|peer| *peer < MOST)
            .map(many::inner)
            .collect();
        let addresses: Vec<(IpAddr, u8)> = played
            .iter()
            .map(|ip| (*ip, if ip.is_ipv6() { 128 } else { 32 }))
            .collect();
        hosts
            .players
            .bring_up(TUN, &addresses, Some(crate::hosts::MTU))?;
        for (host, route) in [
            (&hosts.players, format!("route add 10.79.0.0/24 dev {TUN}")),
            (&hosts.players, format!("-6 route add fd79::/64 dev {TUN}")),
            (&hosts.app, "route add 10.128.0.0/9 via 10.79.0.1".into()),
            (&hosts.app, "-6 route add fd77::/64 via fd79::1".into()),
        ] {
            host.ip(&format!("{route} congctl {congestion}"))?;
        }
        let (tun, mut threads) = (Arc::new(tun), Threads::new());
        for serves in [from_peers as Serves, to_peers] {
            let (tun, sockets, peers) = (tun.clone(), sockets.clone(), peers.clone());
            threads.start(&hosts.players, move |stop| {
                serves(&tun, &sockets, &peers, stop)
            })?;
        }
        Ok(Self {
            peers: played,
            threads,
        })
    }

    /// A stream of each peer: Gb/s of all, and CPU seconds of the gateway's daemon for each GB.
    pub(super) fn run(&self, hosts: &Many, direction: Direction) -> Result<(f64, f64), Failure> {
        let streams = Streams {
            count: u32::try_from(self.peers.len())?,
            time: TIME,
            is_back: direction == Direction::FromPeers,
            ..Streams::default()
        };
        let (app, players) = (&hosts.app, &hosts.players);
        let before = proc::cpu_time(hosts.pid())?;
        let running = streams.start(app, players, &self.peers)?;
        let flow = running.finish(app, players)?;
        let spent = proc::cpu_time(hosts.pid())?.saturating_sub(before);
        // Until queues are empty.
        wait(Duration::from_millis(200))?;
        Ok((flow.gbps(), spent.as_secs_f64() / (flow.bytes / 1e9)))
    }

    /// Ends the threads.
    pub(super) fn stop(self) -> Result<(), Failure> {
        self.threads.finish()?.into_iter().collect()
    }
}

/// The work of one direction.
type Serves = fn(&Tun, &Sockets, &[Connected], &Stop) -> Result<(), Failure>;

/// What the kernel sends for peers leaves sealed.
fn from_peers(
    tun: &Tun,
    sockets: &Sockets,
    peers: &[Connected],
    stop: &Stop,
) -> Result<(), Failure> {
    let peers: HashMap<IpAddr, &Connected> = peers
        .iter()
        .map(|peer| (many::inner(peer.peer), peer))
        .collect();
    let (mut batch, mut train) = (FrameBatch::default(), Vec::new());
    while stop.goes_on() {
        tun.read_batch(&mut batch)?;
        if batch.is_empty() {
            std::thread::sleep(PAUSE);
        }
        while let Some(read) = batch.next_frame() {
            let Ok(frame) = Frame::parse(read.bytes) else {
                continue;
            };
            // The kernel sends for itself, too.
            let Some(peer) = peers.get(&frame.source()) else {
                continue;
            };
            let stride = seal(&frame, peer, &mut train)?;
            sockets.send(&[Transmit {
                to: peer.to,
                ecn: 0,
                stride,
                bytes: &train,
            }]);
        }
        tun.processed(&batch);
    }
    Ok(())
}

/// Writes the frame's packets as data messages of the peer: the length of all but the last.
fn seal(frame: &Frame<'_>, peer: &Connected, train: &mut Vec<u8>) -> Result<usize, Failure> {
    let len =
        |packet| DataHeader::LEN + padded_len(frame.segment_len(packet), TUNNEL_MTU) + TAG_LEN;
    let (packets, stride) = (frame.segments(), len(0));
    train.clear();
    train.resize(stride * (packets - 1) + len(packets - 1), 0);
    // The session of a run is younger than any limit of WireGuard's.
    let first = (peer.session).reserve(Time::default(), u32::try_from(packets)?)?;
    let receiver = peer.session.remote_index();
    let mut jobs = Vec::with_capacity(packets);
    for (counter, (packet, message)) in (first..).zip(train.chunks_mut(stride).enumerate()) {
        let (header, text) = message
            .split_first_chunk_mut()
            .ok_or("a message is shorter than its header")?;
        DataHeader { receiver, counter }.write(header);
        frame.write_header(packet, text);
        let (key, payload) = (peer.session.send_key(), frame.payload(packet));
        jobs.push(SealJob::gathered(
            key,
            counter,
            frame.header_len(),
            payload,
            text,
        ));
    }
    adit_aead::seal(&mut jobs);
    Ok(stride)
}

/// What the gateway sends to peers reaches the kernel, merged as a NIC would merge it.
fn to_peers(tun: &Tun, sockets: &Sockets, peers: &[Connected], stop: &Stop) -> Result<(), Failure> {
    let sessions = Sessions::new(peers);
    let (mut batch, mut coalescer) = (RecvBatch::default(), Coalescer::new(true, false));
    let (mut texts, mut found) = (Vec::new(), Vec::new());
    while stop.goes_on() {
        texts.clear();
        found.clear();
        let heard = sockets.receive(&mut batch, |from, datagram| {
            let header = DataHeader::parse(datagram);
            let session = header.and_then(|header| sessions.of(from, header.receiver));
            if let (Some(header), Some(session)) = (header, session) {
                texts.extend_from_slice(&datagram[DataHeader::LEN..]);
                found.push((session, header.counter, datagram.len() - DataHeader::LEN));
            }
        });
        if heard == 0 {
            std::thread::sleep(PAUSE);
        }
        let (mut jobs, mut rest) = (Vec::with_capacity(found.len()), &mut texts[..]);
        for (session, counter, len) in &found {
            let (text, behind) = rest.split_at_mut(*len);
            jobs.push(OpenJob::in_place(session.receive_key(), *counter, text));
            rest = behind;
        }
        adit_aead::open(&mut jobs);
        if !jobs.iter().all(OpenJob::is_authentic) {
            return Err("a packet of the gateway was not authentic".into());
        }
        drop(jobs);
        let mut at = 0;
        for (session, _, len) in &found {
            let text = &texts[at..at + len - TAG_LEN];
            // A keepalive has no packet.
            if let Some(inner) = inner_packet(text) {
                let span = Span {
                    buffer: 0,
                    start: u32::try_from(at)?,
                    len: u32::try_from(inner.len)?,
                };
                let packet = &text[..inner.len];
                if coalescer
                    .push(session.local_index(), packet, span, |_| false)
                    .is_err()
                {
                    deliver(tun, &mut coalescer, &texts)?;
                    let _ = coalescer.push(session.local_index(), packet, span, |_| false);
                }
            }
            at += len;
        }
        deliver(tun, &mut coalescer, &texts)?;
    }
    Ok(())
}

/// Writes what was merged.
fn deliver(tun: &Tun, coalescer: &mut Coalescer, texts: &[u8]) -> Result<(), Failure> {
    let mut refused = Ok(());
    coalescer.drain(|head, spans| {
        let mut pieces = vec![IoSlice::new(head)];
        pieces.extend(spans.iter().map(|span| {
            let start = span.start as usize;
            IoSlice::new(&texts[start..start + span.len as usize])
        }));
        if let Err(error) = tun.write(&pieces) {
            refused = Err(error);
        }
    });
    Ok(refused?)
}
