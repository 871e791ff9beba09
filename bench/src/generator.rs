//! Adit's own load generator, for where a tool is the bottleneck.
//!
//! iperf3 spends a clock call, a `select` and a bookkeeping step on each datagram, and cannot hand
//! the kernel a train of them. The flood here is one `send` a datagram, or one `send` a train with
//! `UDP_SEGMENT`, and the receiver takes merged datagrams where the kernel offers them (`UDP_GRO`).
//! With many streams iperf3's receiver leaves up to 180 MB waiting in its sockets, outside of the
//! caches, and asks in turn which are ready (`select`); here the kernel tells (`epoll`), and what
//! waits is 5 MB mostly.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adit_testbed::Host;
use adit_testbed::framing::Family;
use adit_testbed::interrupt::interrupted;
use adit_testbed::proc;
use adit_testbed::stats::to_f64;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::socket::{setsockopt, sockopt};

use crate::pair::LinkedHosts;
use crate::sandbox::Failure;
use crate::tools::Flow;

const PORT: u16 = 5301;
/// The largest UDP payload that one send may carry.
const MAX_SEND: usize = 65_507;
/// As many datagrams as the kernel takes in one send.
const MAX_SEGMENTS: usize = 64;
const RECEIVE_BUFFER: usize = 4 << 20;
/// A receiver that hears nothing for so long has heard everything.
const SILENCE: Duration = Duration::from_millis(300);
/// Milliseconds that connecting may take.
const CONNECT: u16 = 10_000;
/// Milliseconds within which the next request comes, as long as any does.
const ANSWERED: u16 = 15_000;
/// Milliseconds after which streams that do not move are given up.
const STANDSTILL: u16 = 3000;

/// A flood of datagrams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flood {
    /// Payload of each datagram.
    pub(crate) len: usize,
    /// Hand the kernel trains of datagrams instead of single ones.
    pub(crate) trains: bool,
    pub(crate) time: Duration,
}

impl Flood {
    /// From a to b through the tunnel, as fast as it goes.
    pub(crate) fn run(self, pair: &LinkedHosts) -> Result<Flow, Failure> {
        let flow = self.start(pair, [0, 1])?.finish()?;
        flow.ok_or_else(|| "no datagram arrived".into())
    }

    /// From each end to the other at once: the datagrams a second that arrive at both.
    pub(crate) fn both_ways(self, pair: &LinkedHosts) -> Result<f64, Failure> {
        let running = [self.start(pair, [0, 1])?, self.start(pair, [1, 0])?];
        let mut rate = 0.0;
        for flood in running {
            let flow = flood.finish()?;
            rate += flow.and_then(|of| of.datagrams_per_second()).unwrap_or(0.0);
        }
        if rate == 0.0 {
            return Err("no datagram arrived at either end".into());
        }
        Ok(rate)
    }

    /// Starts it from one host, 0 for a or 1 for b, to the other.
    fn start(self, pair: &LinkedHosts, [from, to]: [u8; 2]) -> Result<RunningFlood, Failure> {
        let host = |at| if at == 0 { &pair.a } else { &pair.b };
        let (sender, at) = (host(from), host(to));
        let to = SocketAddr::new(pair.address(Family::V4, to), PORT);
        let from = SocketAddr::new(pair.address(Family::V4, from), 0);
        let socket = at.run(move || receiver(to))?;
        Ok(RunningFlood {
            len: self.len,
            receiving: at.thread(move || self.receive(&socket))?,
            sending: sender.thread(move || self.send(from, to))?,
        })
    }

    /// Returns the number of datagrams that the kernel took.
    fn send(self, from: SocketAddr, to: SocketAddr) -> Result<usize, Failure> {
        let socket = UdpSocket::bind(from)?;
        socket.connect(to)?;
        let segments = if self.trains {
            setsockopt(&socket, sockopt::UdpGsoSegment, &i32::try_from(self.len)?)?;
            (MAX_SEND / self.len).clamp(1, MAX_SEGMENTS)
        } else {
            1
        };
        let train = vec![0; self.len * segments];
        let begun = Instant::now();
        let mut sent = 0;
        while begun.elapsed() < self.time && !interrupted() {
            // The clock is asked once in 16 sends: it must not be what limits the flood.
            for _ in 0..16 {
                match socket.send(&train) {
                    Ok(_) => sent += segments,
                    Err(e) if is_overload(&e) => {}
                    Err(e) => return Err(e.into()),
                }
            }
        }
        Ok(sent)
    }

    /// Returns the number of datagrams received and the seconds from the first to the last.
    fn receive(self, socket: &UdpSocket) -> Result<(usize, f64), Failure> {
        let mut buffer = vec![0; 1 << 16];
        let deadline = Instant::now() + self.time * 2 + Duration::from_secs(3);
        let (mut bytes, mut first, mut last) = (0, None, Instant::now());
        while Instant::now() < deadline && !interrupted() {
            match socket.recv(&mut buffer) {
                Ok(len) => {
                    bytes += len;
                    last = Instant::now();
                    first.get_or_insert(last);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if first.is_some() {
                        break;
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
        let seconds = first.map_or(0.0, |first| (last - first).as_secs_f64());
        Ok((bytes / self.len, seconds))
    }
}

/// A flood that runs.
struct RunningFlood {
    len: usize,
    sending: JoinHandle<Result<usize, Failure>>,
    receiving: JoinHandle<Result<(usize, f64), Failure>>,
}

impl RunningFlood {
    /// Waits for the end. None if no datagram arrived.
    fn finish(self) -> Result<Option<Flow>, Failure> {
        let sent = join(self.sending)?;
        let (received, seconds) = join(self.receiving)?;
        Ok((received > 0 && seconds > 0.0).then(|| Flow {
            warm_up_bytes: 0.0,
            bytes: to_f64(received * self.len),
            seconds,
            retransmits: None,
            datagrams: Some((to_f64(sent), to_f64(received))),
        }))
    }
}

/// A full queue on the outbound path; a flood continues.
fn is_overload(error: &std::io::Error) -> bool {
    const ENOBUFS: i32 = 105;
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::ConnectionRefused | ErrorKind::Interrupted
    ) || error.raw_os_error() == Some(ENOBUFS)
}

fn receiver(at: SocketAddr) -> Result<UdpSocket, Failure> {
    let socket = UdpSocket::bind(at)?;
    socket.set_read_timeout(Some(SILENCE))?;
    setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER)?;
    setsockopt(&socket, sockopt::UdpGroSegment, &true)?;
    Ok(socket)
}

/// A sender that is ahead of its rate pauses for so long.
const AHEAD: Duration = Duration::from_micros(200);

/// TCP streams from a to b, all of one end served by one thread, as event-driven servers do it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Streams {
    pub(crate) count: u32,
    pub(crate) time: Duration,
    /// Time before that which does not count.
    pub(crate) warm_up: Duration,
    /// Gb/s of all together; as fast as they go without.
    pub(crate) rate: Option<f64>,
    /// They go to the host that opens the connections.
    pub(crate) is_back: bool,
}

/// Streams that run.
pub(crate) struct RunningStreams {
    sending: JoinHandle<Result<(), Failure>>,
    receiving: JoinHandle<Result<(usize, f64), Failure>>,
    /// What the hosts had sent again before.
    retransmits: f64,
}

impl RunningStreams {
    /// Waits for the end. The hosts are those of [`Streams::start`].
    pub(crate) fn finish(self, from: &Host, at: &Host) -> Result<Flow, Failure> {
        join(self.sending)?;
        let (bytes, seconds) = join(self.receiving)?;
        if bytes == 0 || seconds <= 0.0 {
            return Err("no byte came in the time that counts".into());
        }
        Ok(Flow {
            warm_up_bytes: 0.0,
            bytes: to_f64(bytes),
            seconds,
            retransmits: Some(retransmits(from, at)? - self.retransmits),
            datagrams: None,
        })
    }
}

impl Streams {
    /// Runs to the end; `to` is b's address.
    pub(crate) fn run(self, pair: &LinkedHosts, to: IpAddr) -> Result<Flow, Failure> {
        self.start(&pair.a, &pair.b, &[to])?
            .finish(&pair.a, &pair.b)
    }

    /// Starts them from one host to another one, whose addresses `to` take turns.
    pub(crate) fn start(
        self,
        from: &Host,
        at: &Host,
        to: &[IpAddr],
    ) -> Result<RunningStreams, Failure> {
        let retransmits = retransmits(from, at)?;
        let (to, listeners) = listen(at, to)?;
        let accept = move || self.accept(&listeners);
        let connect = move || self.connect(&to);
        let (receiving, sending) = match self.is_back {
            false => (
                at.thread(move || self.receive(accept()?))?,
                from.thread(move || self.send(connect()?))?,
            ),
            true => (
                from.thread(move || self.receive(connect()?))?,
                at.thread(move || self.send(accept()?))?,
            ),
        };
        Ok(RunningStreams {
            sending,
            receiving,
            retransmits,
        })
    }

    fn connect(self, to: &[SocketAddr]) -> Result<Vec<TcpStream>, Failure> {
        let limit = Duration::from_millis(CONNECT.into());
        let connect = |(to, _)| {
            let stream = TcpStream::connect_timeout(to, limit)?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        };
        to.iter().cycle().zip(0..self.count).map(connect).collect()
    }

    fn accept(self, listeners: &[TcpListener]) -> Result<Vec<TcpStream>, Failure> {
        let coming = listeners.iter().map(|of| watch([of], EpollFlags::EPOLLIN));
        let coming = coming.collect::<Result<Vec<_>, _>>()?;
        let mut streams = Vec::new();
        let each = listeners.iter().zip(&coming).cycle();
        for ((listener, coming), _) in each.zip(0..self.count) {
            // Without waiting for ever: the other end may have given up.
            ready(coming, CONNECT)?.next();
            let (stream, _) = listener.accept()?;
            stream.set_nonblocking(true)?;
            streams.push(stream);
        }
        Ok(streams)
    }

    fn send(self, mut streams: Vec<TcpStream>) -> Result<(), Failure> {
        let epoll = watch(&streams, EpollFlags::EPOLLOUT)?;
        // At a rate, less at once.
        let block = vec![
            0;
            if self.rate.is_some() {
                16 << 10
            } else {
                128 << 10
            }
        ];
        let begun = Instant::now();
        let until = begun + self.warm_up + self.time;
        let mut sent = 0;
        while Instant::now() < until && !interrupted() {
            let due = |gbps: f64| gbps / 8.0 * 1e9 * begun.elapsed().as_secs_f64();
            if self.rate.is_some_and(|gbps| to_f64(sent) > due(gbps)) {
                std::thread::sleep(AHEAD);
                continue;
            }
            for index in ready(&epoll, STANDSTILL)? {
                match streams[index].write(&block) {
                    Ok(len) => sent += len,
                    Err(e) if e.kind() != ErrorKind::WouldBlock => return Err(e.into()),
                    Err(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Returns the bytes that came in the time that counts, and that time in seconds: to its end,
    /// whether or not anything came so late, unless all streams had ended before.
    fn receive(self, mut streams: Vec<TcpStream>) -> Result<(usize, f64), Failure> {
        let epoll = watch(&streams, EpollFlags::EPOLLIN)?;
        let mut block = vec![0; 256 << 10];
        let begin = Instant::now() + self.warm_up;
        let end = begin + self.time;
        let (mut bytes, mut open) = (0, streams.len());
        while open > 0 && !interrupted() {
            let moved = match ready(&epoll, STANDSTILL) {
                // What is left of streams that are over does not count.
                Err(_) if Instant::now() >= end => break,
                moved => moved?,
            };
            for index in moved {
                let now = Instant::now();
                match streams[index].read(&mut block) {
                    Ok(0) => {
                        epoll.delete(&streams[index])?;
                        open -= 1;
                    }
                    Ok(len) if (begin..end).contains(&now) => bytes += len,
                    Err(e) if e.kind() != ErrorKind::WouldBlock => return Err(e.into()),
                    _ => {}
                }
            }
        }
        let counted = Instant::now().min(end).saturating_duration_since(begin);
        Ok((bytes, counted.as_secs_f64()))
    }
}

/// Listens at these addresses of a host.
fn listen(at: &Host, to: &[IpAddr]) -> Result<(Vec<SocketAddr>, Vec<TcpListener>), Failure> {
    let to: Vec<SocketAddr> = to.iter().map(|ip| SocketAddr::new(*ip, PORT)).collect();
    let bound = to.clone();
    let listen = move || bound.into_iter().map(TcpListener::bind).collect();
    let listeners = at.run::<std::io::Result<_>>(listen)?;
    Ok((to, listeners))
}

/// Short transfers from a to b, one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answers {
    /// Bytes of each.
    pub(crate) len: usize,
    pub(crate) time: Duration,
}

/// Between an answer and the next request.
const PAUSE: Duration = Duration::from_millis(5);
/// An answer that takes longer counts as one that took so long.
const PATIENCE: Duration = Duration::from_secs(5);

impl Answers {
    /// The time that each took through the tunnel, in milliseconds, from the first step of its
    /// connection to its last byte.
    pub(crate) fn run(self, pair: &LinkedHosts) -> Result<Vec<f64>, Failure> {
        let at = SocketAddr::new(pair.address(Family::V4, 0), PORT);
        let listener = pair.a.run(move || TcpListener::bind(at))?;
        let answering = pair.a.thread(move || self.answer(&listener))?;
        let asking = pair.b.thread(move || self.ask(at))?;
        let times = join(asking)?;
        join(answering)?;
        Ok(times)
    }

    /// Until the time is over and a client connects that asks for nothing.
    fn answer(self, listener: &TcpListener) -> Result<(), Failure> {
        let coming = watch([listener], EpollFlags::EPOLLIN)?;
        let answer = vec![0; self.len];
        let begun = Instant::now();
        while !interrupted() {
            ready(&coming, ANSWERED)?.next();
            let (mut stream, _) = listener.accept()?;
            stream.set_write_timeout(Some(PATIENCE))?;
            stream.set_read_timeout(Some(PATIENCE))?;
            match stream.read(&mut [0]) {
                Ok(1) => {
                    // The client may have given up.
                    let _ = stream.write_all(&answer);
                }
                _ if begun.elapsed() >= self.time => break,
                // Connected after the other end had given up.
                _ => {}
            }
        }
        Ok(())
    }

    fn ask(self, to: SocketAddr) -> Result<Vec<f64>, Failure> {
        let mut times = Vec::new();
        let mut answer = vec![0; self.len];
        let until = Instant::now() + self.time;
        while Instant::now() < until && !interrupted() {
            let begin = Instant::now();
            let asked = TcpStream::connect_timeout(&to, PATIENCE).and_then(|mut stream| {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.write_all(&[1])?;
                stream.read_exact(&mut answer)
            });
            match asked {
                Err(e) if !is_late(&e) => return Err(e.into()),
                _ => times.push(begin.elapsed().min(PATIENCE).as_secs_f64() * 1e3),
            }
            std::thread::sleep(PAUSE);
        }
        TcpStream::connect_timeout(&to, PATIENCE)?;
        Ok(times)
    }
}

fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Tells when something can be done with one of the sockets, by its index.
fn watch<S: AsFd>(
    sockets: impl IntoIterator<Item = S>,
    what: EpollFlags,
) -> Result<Epoll, Failure> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    for (index, socket) in sockets.into_iter().enumerate() {
        epoll.add(socket, EpollEvent::new(what, u64::try_from(index)?))?;
    }
    Ok(epoll)
}

/// The sockets with which something can be done now, or within `limit` milliseconds.
fn ready(epoll: &Epoll, limit: u16) -> Result<impl Iterator<Item = usize> + use<>, Failure> {
    let mut events = [EpollEvent::empty(); 256];
    let found = match epoll.wait(&mut events, limit) {
        Ok(0) => return Err(format!("no stream moved for {} s", limit / 1000).into()),
        Ok(found) => found,
        Err(Errno::EINTR) => 0,
        Err(e) => return Err(e.into()),
    };
    let indices = events.into_iter().take(found).map(|event| event.data());
    Ok(indices.filter_map(|index| usize::try_from(index).ok()))
}

/// Segments that both hosts have sent again so far.
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn retransmits(from: &Host, at: &Host) -> Result<f64, Failure> {
    let a = from.run(proc::retransmits)?;
    let b = at.run(proc::retransmits)?;
    Ok((a + b) as f64)
}

fn join<T>(thread: JoinHandle<Result<T, Failure>>) -> Result<T, Failure> {
    thread.join().map_err(|_| "a generator thread failed")?
}
