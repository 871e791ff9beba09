//! Traffic over plain sockets: one TCP stream as fast as it goes, and ICMP echoes one at a time.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use adit_testbed::Host;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket, socket_with};

use crate::failure::{Context, Result};

/// Large enough that system calls of the generator do not limit the bare path.
const CHUNK: usize = 512 * 1024;

/// A TCP stream from one host to another, running until dropped.
pub(super) struct TestStream {
    received: Arc<AtomicU64>,
    socket: TcpStream,
    threads: Vec<JoinHandle<()>>,
}

impl TestStream {
    /// Listens at `to`'s address `at` and connects there from `from`.
    pub(super) fn start(from: &Host, to: &Host, at: Ipv4Addr) -> Result<Self> {
        let received = Arc::new(AtomicU64::new(0));
        let failed = || format!("cannot open a TCP connection to {at}");

        let listener = to.run(move || TcpListener::bind((at, 0))).context(failed)?;
        let port = listener.local_addr().context(failed)?.port();
        let count = received.clone();
        let receiver = to.thread(move || drain(listener, &count)).context(failed)?;

        let address = SocketAddr::from((at, port));
        let socket = from.run(move || connect(address)).context(failed)?;
        let sending = socket.try_clone().context(failed)?;
        let sender = thread::spawn(move || flood(sending));
        Ok(Self {
            received,
            socket,
            threads: vec![sender, receiver],
        })
    }

    /// Payload bytes that the receiver has read so far.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }
}

impl Drop for TestStream {
    fn drop(&mut self) {
        // Both ends see it: the sender's write fails, the receiver reads the end.
        let _ = self.socket.shutdown(Shutdown::Both);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Connects with cubic, the default on most machines, whatever it is on this one: BBR paces a
/// stream, which is a timer for every GSO packet (6 instead of 11 Gb/s through the tunnel). It has
/// to be chosen before.
fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let flags = SocketFlags::CLOEXEC;
    let fd = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    // A kernel without it measures with what it has.
    let _ = sockopt::set_tcp_congestion(&fd, "cubic");
    let deadline = Some(Duration::from_secs(3));
    sockopt::set_socket_timeout(&fd, Timeout::Send, deadline)?;
    rustix::net::connect(&fd, &to).map_err(|error| match error {
        // connect(2): so it ends when that time is over.
        Errno::INPROGRESS => io::ErrorKind::TimedOut.into(),
        error => io::Error::from(error),
    })?;
    sockopt::set_socket_timeout(&fd, Timeout::Send, None)?;
    Ok(TcpStream::from(fd))
}

fn flood(mut socket: TcpStream) {
    let chunk = vec![0xad; CHUNK];
    while socket.write_all(&chunk).is_ok() {}
}

fn drain(listener: TcpListener, received: &AtomicU64) {
    let Ok((mut socket, _)) = listener.accept() else {
        return;
    };
    // A tunnel that dies under the stream must not hold the demo up for TCP's minutes.
    let _ = socket.set_read_timeout(Some(Duration::from_secs(3)));
    let mut chunk = vec![0; CHUNK];
    while let Ok(n @ 1..) = socket.read(&mut chunk) {
        received.fetch_add(n as u64, Relaxed);
    }
}

/// Pings over a raw ICMP socket: the kernel of the other host answers, so nothing but the path adds
/// delay.
pub(super) struct Pinger {
    socket: UdpSocket,
    sequence: u16,
}

impl Pinger {
    pub(super) fn new(from: &Host, to: Ipv4Addr) -> Result<Self> {
        let open = move || -> io::Result<UdpSocket> {
            let fd = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP))?;
            let socket = UdpSocket::from(fd);
            socket.connect((IpAddr::V4(to), 0))?;
            Ok(socket)
        };
        let socket = from
            .run(open)
            .context(|| "cannot open an ICMP socket".into())?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// One echo; `None` if no answer came in time.
    pub(super) fn ping(&mut self, timeout: Duration) -> Result<Option<Duration>> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = echo_request(self.sequence);
        let start = Instant::now();
        self.echo(&request, start + timeout)
            .context(|| "cannot ping".into())
            .map(|answered| answered.map(|at| at - start))
    }

    fn echo(&self, request: &[u8; ECHO_LEN], deadline: Instant) -> io::Result<Option<Instant>> {
        self.socket.send(request)?;
        let mut packet = [0; 256];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.socket.set_read_timeout(Some(left))?;
            match self.socket.recv(&mut packet) {
                Ok(n) if answers(&packet[..n], request) => return Ok(Some(Instant::now())),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) => return Err(e),
            }
        }
    }
}

const ECHO_LEN: usize = 64;
const IDENTIFIER: [u8; 2] = *b"ad";

/// An ICMP echo request of ping's usual 64 bytes.
fn echo_request(sequence: u16) -> [u8; ECHO_LEN] {
    let mut message = [0; ECHO_LEN];
    message[0] = 8;
    message[4..6].copy_from_slice(&IDENTIFIER);
    message[6..8].copy_from_slice(&sequence.to_be_bytes());
    let sum: u32 = message
        .chunks(2)
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) & 0xffff;
    message[2..4].copy_from_slice(&checksum.to_be_bytes()[2..]);
    message
}

/// Whether `packet`, an IPv4 packet as a raw socket delivers it, is the reply to `request`.
fn answers(packet: &[u8], request: &[u8; ECHO_LEN]) -> bool {
    let header = packet.first().map_or(0, |b| usize::from(b & 0xf) * 4);
    let Some(reply) = packet.get(header..) else {
        return false;
    };
    reply.len() == ECHO_LEN && reply[..2] == [0, 0] && reply[4..] == request[4..]
}

#[cfg(test)]
#[path = "traffic_tests.rs"]
mod tests;
