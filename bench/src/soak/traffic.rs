//! Flows through the tunnel that notice when they stall, and when something is overtaken.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use adit_testbed::Host;

use crate::sandbox::Failure;
use crate::threads::{Stop, Threads};

/// How often a thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(200);
/// Between two datagrams.
const EVERY: Duration = Duration::from_millis(2);
const DATAGRAMS: u16 = 7001;
const STREAM: u16 = 7002;

/// A host and its address inside.
type Place<'a> = (&'a Host, Ipv4Addr);

/// What a receiver saw.
#[derive(Clone, Copy, Default)]
pub(super) struct Received {
    pub(super) received: u64,
    /// Datagrams that came after a later one.
    pub(super) reordered: u64,
    /// The longest time without one.
    pub(super) longest: Duration,
}

/// Numbered datagrams of changing lengths, from one host to another.
pub(super) struct Datagrams(Threads<Received>);

impl Datagrams {
    pub(super) fn start(from: Place<'_>, to: Place<'_>) -> Result<Self, Failure> {
        let mut threads = Threads::new();
        let address = SocketAddr::from((to.1, DATAGRAMS));
        let socket = to.0.run(move || UdpSocket::bind(address))?;
        socket.set_read_timeout(Some(LOOK))?;
        threads.start(to.0, move |stop| receive(&socket, stop))?;
        let own = SocketAddr::from((from.1, 0));
        let socket = from.0.run(move || UdpSocket::bind(own))?;
        threads.start(from.0, move |stop| {
            let mut number = 0_u64;
            while stop.goes_on() {
                let mut text = number.to_be_bytes().to_vec();
                text.resize(8 + usize::try_from(number * 37 % 1300).unwrap_or(0), 0);
                // What the host refuses is lost.
                let _ = socket.send_to(&text, address);
                number += 1;
                std::thread::sleep(EVERY);
            }
            Received::default()
        })?;
        Ok(Self(threads))
    }

    pub(super) fn finish(self) -> Result<Received, Failure> {
        Ok(self.0.finish()?[0])
    }
}

fn receive(socket: &UdpSocket, stop: &Stop) -> Received {
    let (mut found, mut next, mut last) = (Received::default(), 0, Instant::now());
    let mut buffer = [0; 2048];
    while stop.goes_on() {
        if let Ok(len) = socket.recv(&mut buffer)
            && let Some((number, _)) = buffer[..len].split_first_chunk()
        {
            let number = u64::from_be_bytes(*number);
            found.received += 1;
            found.reordered += u64::from(number < next);
            next = next.max(number + 1);
            found.longest = found.longest.max(last.elapsed());
            last = Instant::now();
        }
    }
    found.longest = found.longest.max(last.elapsed());
    found
}

/// A TCP stream from one host to another, of some megabits a second.
pub(super) struct Stream(Threads<Duration>);

impl Stream {
    pub(super) fn start(from: Place<'_>, to: Place<'_>) -> Result<Self, Failure> {
        let mut threads = Threads::new();
        let address = SocketAddr::from((to.1, STREAM));
        let listener = to.0.run(move || TcpListener::bind(address))?;
        let mut out = from.0.run(move || TcpStream::connect(address))?;
        let (mut into, _) = listener.accept()?;
        out.set_write_timeout(Some(LOOK))?;
        into.set_read_timeout(Some(LOOK))?;
        threads.start(from.0, move |stop| {
            let piece = [0x5a; 16 << 10];
            while stop.goes_on() {
                match out.write(&piece) {
                    Ok(_) => std::thread::sleep(EVERY),
                    Err(e) if waits(e.kind()) => {}
                    Err(_) => break,
                }
            }
            Duration::ZERO
        })?;
        threads.start(to.0, move |stop| {
            let (mut longest, mut last) = (Duration::ZERO, Instant::now());
            let mut buffer = vec![0; 64 << 10];
            while stop.goes_on() {
                if into.read(&mut buffer).is_ok_and(|len| len > 0) {
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                }
            }
            longest.max(last.elapsed())
        })?;
        Ok(Self(threads))
    }

    /// The longest time without a byte.
    pub(super) fn finish(self) -> Result<Duration, Failure> {
        Ok(self.0.finish()?.into_iter().max().unwrap_or_default())
    }
}

fn waits(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
