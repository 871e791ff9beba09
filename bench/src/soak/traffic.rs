//! Flows through the tunnel that notice when they stall, and when something is overtaken.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adit_testbed::Host;

use crate::sandbox::Failure;

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
pub(super) struct Datagrams {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<()>,
    receiver: JoinHandle<Received>,
}

impl Datagrams {
    pub(super) fn start(from: Place<'_>, to: Place<'_>) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let address = SocketAddr::from((to.1, DATAGRAMS));
        let socket = to.0.run(move || UdpSocket::bind(address))?;
        socket.set_read_timeout(Some(LOOK))?;
        let ended = Arc::clone(&stop);
        let receiver = to.0.thread(move || receive(&socket, &ended))?;
        let own = SocketAddr::from((from.1, 0));
        let socket = from.0.run(move || UdpSocket::bind(own))?;
        let ended = Arc::clone(&stop);
        let sender = from.0.thread(move || {
            let mut number = 0_u64;
            while !ended.load(Ordering::Relaxed) {
                let mut text = number.to_be_bytes().to_vec();
                text.resize(8 + usize::try_from(number * 37 % 1300).unwrap_or(0), 0);
                // What the host refuses is lost.
                let _ = socket.send_to(&text, address);
                number += 1;
                std::thread::sleep(EVERY);
            }
        })?;
        Ok(Self {
            stop,
            sender,
            receiver,
        })
    }

    pub(super) fn finish(self) -> Result<Received, Failure> {
        self.stop.store(true, Ordering::Relaxed);
        let failed = "a thread of the lab failed";
        self.sender.join().map_err(|_| failed)?;
        Ok(self.receiver.join().map_err(|_| failed)?)
    }
}

fn receive(socket: &UdpSocket, ended: &AtomicBool) -> Received {
    let (mut found, mut next, mut last) = (Received::default(), 0, Instant::now());
    let mut buffer = [0; 2048];
    while !ended.load(Ordering::Relaxed) {
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
pub(super) struct Stream {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<()>,
    receiver: JoinHandle<Duration>,
}

impl Stream {
    pub(super) fn start(from: Place<'_>, to: Place<'_>) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let address = SocketAddr::from((to.1, STREAM));
        let listener = to.0.run(move || TcpListener::bind(address))?;
        let mut out = from.0.run(move || TcpStream::connect(address))?;
        let (mut into, _) = listener.accept()?;
        out.set_write_timeout(Some(LOOK))?;
        into.set_read_timeout(Some(LOOK))?;
        let ended = Arc::clone(&stop);
        let sender = from.0.thread(move || {
            let piece = [0x5a; 16 << 10];
            while !ended.load(Ordering::Relaxed) {
                match out.write(&piece) {
                    Ok(_) => std::thread::sleep(EVERY),
                    Err(e) if waits(e.kind()) => {}
                    Err(_) => return,
                }
            }
        })?;
        let ended = Arc::clone(&stop);
        let receiver = to.0.thread(move || {
            let (mut longest, mut last) = (Duration::ZERO, Instant::now());
            let mut buffer = vec![0; 64 << 10];
            while !ended.load(Ordering::Relaxed) {
                if into.read(&mut buffer).is_ok_and(|len| len > 0) {
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                }
            }
            longest.max(last.elapsed())
        })?;
        Ok(Self {
            stop,
            sender,
            receiver,
        })
    }

    /// The longest time without a byte.
    pub(super) fn finish(self) -> Result<Duration, Failure> {
        self.stop.store(true, Ordering::Relaxed);
        let failed = "a thread of the lab failed";
        self.sender.join().map_err(|_| failed)?;
        Ok(self.receiver.join().map_err(|_| failed)?)
    }
}

fn waits(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
