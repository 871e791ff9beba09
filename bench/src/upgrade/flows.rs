//! Datagrams that have numbers, so that one that is late, lost or delivered twice shows.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adit_aead::{OpenJob, SealJob};
use adit_io::{RecvBatch, Transmit};
use adit_proto::wire::DataHeader;
use adit_proto::{Endpoint, Time};
use adit_testbed::Host;
use adit_testbed::interrupt::interrupted;
use nix::sys::socket::{setsockopt, sockopt};

use crate::gateway::clients::{Connected, Sessions, Sockets};
use crate::gateway::load::{PORT, Template, UDP};
use crate::gateway::many;
use crate::sandbox::Failure;
use crate::threads::{Stop, Threads};

const NUMBERED: u16 = 7003;
/// Between two numbered datagrams.
const EVERY: Duration = Duration::from_micros(500);
/// How long a thread waits before it looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(20);
/// How long what was sent may be under way.
const SETTLES: Duration = Duration::from_secs(2);
/// Octets. What waits for an application that has no CPU is not lost.
const BUFFER: usize = 4 << 20;
/// Octets of payload; the number comes first.
const LEN: usize = 64;
/// The peers send so many datagrams at once, each of another peer, and so does the application.
const BURST: usize = 4;
const BURST_EVERY: Duration = Duration::from_millis(2);

const FAILED: &str = "a thread of the lab failed";

/// What became of datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Tally {
    pub(super) sent: u64,
    /// Each counts once.
    pub(super) received: u64,
    pub(super) twice: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.twice += other.twice;
    }

    pub(super) const fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }
}

/// Counts each number once.
#[derive(Default)]
struct Seen {
    numbers: HashSet<u64>,
    twice: u64,
}

impl Seen {
    fn note(&mut self, number: u64) {
        self.twice += u64::from(!self.numbers.insert(number));
    }
}

fn number(payload: &[u8]) -> Option<u64> {
    payload.first_chunk().copied().map(u64::from_be_bytes)
}

/// A datagram each 500 µs from one host to another.
pub(super) struct Numbered {
    sent: Arc<AtomicU64>,
    threads: Threads<(Tally, Vec<Arrival>)>,
}

/// When a datagram came, and how long it took.
pub(super) type Arrival = (Instant, Duration);

impl Numbered {
    pub(super) fn start(from: &Host, to: &Host, address: IpAddr) -> Result<Self, Failure> {
        let (mut threads, sent) = (Threads::new(), Arc::<AtomicU64>::default());
        let at = SocketAddr::new(address, NUMBERED);
        let socket = to.run(move || UdpSocket::bind(at))?;
        socket.set_read_timeout(Some(LOOK))?;
        setsockopt(&socket, sockopt::RcvBufForce, &BUFFER)?;
        let begun = Instant::now();
        let all = Arc::clone(&sent);
        threads.start(to, move |stop| receive_numbered(&socket, begun, stop, &all))?;
        let socket = from.run(|| UdpSocket::bind(("0.0.0.0", 0)))?;
        let all = Arc::clone(&sent);
        threads.start(from, move |stop| {
            let mut payload = [0; LEN];
            while stop.goes_on() {
                payload[..8].copy_from_slice(&all.load(Relaxed).to_be_bytes());
                let nanos = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
                payload[8..16].copy_from_slice(&nanos.to_be_bytes());
                // What the host refuses was not sent.
                if socket.send_to(&payload, at).is_ok() {
                    all.fetch_add(1, Relaxed);
                }
                std::thread::sleep(EVERY);
            }
            Default::default()
        })?;
        Ok(Self { sent, threads })
    }

    pub(super) fn finish(self) -> Result<(Tally, Vec<Arrival>), Failure> {
        let (tally, arrivals) = self.threads.finish()?.swap_remove(0);
        let sent = self.sent.load(Relaxed);
        Ok((Tally { sent, ..tally }, arrivals))
    }
}

fn receive_numbered(
    socket: &UdpSocket,
    begun: Instant,
    stop: &Stop,
    sent: &AtomicU64,
) -> (Tally, Vec<Arrival>) {
    let (mut seen, mut arrivals, mut payload) = (Seen::default(), Vec::new(), [0; LEN]);
    let mut stopped: Option<Instant> = None;
    loop {
        let came = socket.recv(&mut payload);
        let now = Instant::now();
        if let (Ok(LEN), Some(number), Some(nanos)) =
            (came, number(&payload), number(&payload[8..]))
        {
            seen.note(number);
            arrivals.push((
                now,
                (now - begun).saturating_sub(Duration::from_nanos(nanos)),
            ));
        }
        if !stop.goes_on() {
            let since = stopped.get_or_insert(now);
            let all = seen.numbers.len() as u64 >= sent.load(Relaxed);
            // Whether one comes twice shows only after the last.
            let end = if all { 5 * LOOK } else { SETTLES };
            if now - *since > end {
                break;
            }
        }
    }
    let tally = Tally {
        sent: 0,
        received: seen.numbers.len() as u64,
        twice: seen.twice,
    };
    (tally, arrivals)
}

/// What the threads of [`Everybody`] share.
#[derive(Default)]
struct Progress {
    /// Senders end first, then receivers.
    stop: [AtomicBool; 2],
    /// From the peers, and to them.
    sent: [AtomicU64; 2],
    received: [AtomicU64; 2],
    twice: AtomicU64,
}

impl Progress {
    fn goes_on(&self, stop: usize) -> bool {
        !self.stop[stop].load(Relaxed) && !interrupted()
    }
}

/// Datagrams between all peers that have a session and the application behind the gateway, 2,000 a
/// second each way.
pub(super) struct Everybody {
    progress: Arc<Progress>,
    senders: Vec<JoinHandle<Result<(), Failure>>>,
    receivers: Vec<JoinHandle<Result<(), Failure>>>,
}

impl Everybody {
    pub(super) fn start(
        peers: Vec<Connected>,
        players: &Arc<Sockets>,
        app: &Arc<Sockets>,
    ) -> Result<Self, Failure> {
        let progress: Arc<Progress> = Arc::default();
        let peers = Arc::new(peers);
        type Work = fn(&[Connected], &Sockets, &Progress) -> Result<(), Failure>;
        let start = |work: Work, sockets: &Arc<Sockets>| {
            let all = (
                Arc::clone(&peers),
                Arc::clone(sockets),
                Arc::clone(&progress),
            );
            std::thread::Builder::new().spawn(move || work(&all.0, &all.1, &all.2))
        };
        let receivers = vec![start(hear_as_app, app)?, start(hear_as_peers, players)?];
        let senders = vec![start(send_from_peers, players)?, start(send_to_peers, app)?];
        Ok(Self {
            progress,
            senders,
            receivers,
        })
    }

    pub(super) fn finish(self) -> Result<Tally, Failure> {
        let join = |threads: Vec<JoinHandle<_>>| -> Result<(), Failure> {
            threads
                .into_iter()
                .try_for_each(|it| it.join().map_err(|_| FAILED)?)
        };
        let progress = self.progress;
        progress.stop[0].store(true, Relaxed);
        join(self.senders)?;
        let count = |of: &[AtomicU64; 2]| of.iter().map(|it| it.load(Relaxed)).sum::<u64>();
        let begun = Instant::now();
        while count(&progress.received) < count(&progress.sent) && begun.elapsed() < SETTLES {
            std::thread::sleep(LOOK);
        }
        std::thread::sleep(5 * LOOK);
        progress.stop[1].store(true, Relaxed);
        join(self.receivers)?;
        Ok(Tally {
            sent: count(&progress.sent),
            received: count(&progress.received),
            twice: progress.twice.load(Relaxed),
        })
    }
}

/// A payload with this number.
fn payload(number: u64) -> [u8; LEN] {
    let mut payload = [0; LEN];
    payload[..8].copy_from_slice(&number.to_be_bytes());
    payload
}

/// Calls `send` with the peers of each burst and the number of its first datagram.
fn in_bursts(
    peers: &[Connected],
    way: usize,
    progress: &Progress,
    mut send: impl FnMut(&[&Connected], u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut turn = peers.iter().cycle();
    let mut next = Instant::now();
    while progress.goes_on(0) {
        let burst: Vec<&Connected> = turn.by_ref().take(BURST).collect();
        send(&burst, progress.sent[way].load(Relaxed))?;
        progress.sent[way].fetch_add(burst.len() as u64, Relaxed);
        next += BURST_EVERY;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

fn send_from_peers(
    peers: &[Connected],
    sockets: &Sockets,
    progress: &Progress,
) -> Result<(), Failure> {
    in_bursts(peers, 0, progress, |burst, first| {
        for (number, peer) in (first..).zip(burst) {
            let template = Template::new(many::is_v6(peer.peer), &payload(number));
            let mut datagram = Vec::new();
            template.write(many::inner(peer.peer), &mut datagram);
            // A session that is too old is replaced before this is asked.
            let counter = peer.session.reserve(Time::default(), 1)?;
            let too_short = "the template is too short";
            let (header, text) = datagram.split_first_chunk_mut().ok_or(too_short)?;
            let receiver = peer.session.remote_index();
            DataHeader { receiver, counter }.write(header);
            adit_aead::seal(&mut [SealJob::in_place(peer.session.send_key(), counter, text)]);
            sockets.send(&[Transmit {
                to: peer.to,
                ecn: 0,
                stride: datagram.len(),
                bytes: &datagram,
            }]);
        }
        Ok(())
    })
}

fn send_to_peers(
    peers: &[Connected],
    sockets: &Sockets,
    progress: &Progress,
) -> Result<(), Failure> {
    in_bursts(peers, 1, progress, |burst, first| {
        for (number, peer) in (first..).zip(burst) {
            sockets.send(&[Transmit {
                to: SocketAddr::new(many::inner(peer.peer), PORT).into(),
                ecn: 0,
                stride: LEN,
                bytes: &payload(number),
            }]);
        }
        Ok(())
    })
}

/// Receives until the end, and counts each number that `read` finds once.
fn hear(
    sockets: &Sockets,
    way: usize,
    progress: &Progress,
    mut read: impl FnMut(Endpoint, &mut [u8]) -> Option<u64>,
) {
    let (mut batch, mut seen) = (RecvBatch::default(), Seen::default());
    while progress.goes_on(1) {
        let heard = sockets.receive(&mut batch, |from, datagram| {
            if let Some(number) = read(from, datagram) {
                seen.note(number);
            }
        });
        progress.received[way].store(seen.numbers.len() as u64, Relaxed);
        if heard == 0 {
            std::thread::sleep(Duration::from_micros(500));
        }
    }
    progress.twice.fetch_add(seen.twice, Relaxed);
}

fn hear_as_app(_: &[Connected], sockets: &Sockets, progress: &Progress) -> Result<(), Failure> {
    hear(sockets, 0, progress, |_, datagram| {
        (datagram.len() == LEN).then(|| number(datagram))?
    });
    Ok(())
}

/// Also fails if the gateway uses a counter of a session twice.
fn hear_as_peers(
    peers: &[Connected],
    sockets: &Sockets,
    progress: &Progress,
) -> Result<(), Failure> {
    let sessions = Sessions::new(peers);
    let (mut counters, mut reused, mut forged) = (HashSet::new(), 0, 0);
    hear(sockets, 1, progress, |from, datagram| {
        let header = DataHeader::parse(datagram)?;
        let session = sessions.of(from, header.receiver)?;
        let text = &mut datagram[DataHeader::LEN..];
        let mut jobs = [OpenJob::in_place(
            session.receive_key(),
            header.counter,
            text,
        )];
        adit_aead::open(&mut jobs);
        if !jobs[0].is_authentic() {
            forged += 1;
            return None;
        }
        reused += u64::from(!counters.insert((from.src, header.receiver, header.counter)));
        // A keepalive has no packet.
        let ip = match text.first()? >> 4 {
            6 => 40,
            _ => 20,
        };
        number(text.get(ip + UDP..ip + UDP + LEN)?)
    });
    match (reused, forged) {
        (0, 0) => Ok(()),
        _ => Err(format!(
            "of the gateway's packets, {reused} had a counter that was used before, and {forged} were not authentic"
        )
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_comes_again_is_counted() {
        let mut seen = Seen::default();
        [0, 1, 2, 1, 1].into_iter().for_each(|it| seen.note(it));
        assert_eq!((seen.numbers.len(), seen.twice), (3, 2));
        let tally = Tally {
            sent: 5,
            received: 3,
            twice: 2,
        };
        assert_eq!(tally.lost(), 2);
    }

    #[test]
    fn the_numbers_of_a_payload_are_read_back() {
        assert_eq!(number(&payload(0x0102_0304_0506)), Some(0x0102_0304_0506));
        assert_eq!(number(&[0; 7]), None);
    }
}
