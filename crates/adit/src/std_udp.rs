//! Datagrams between the buffers of [`sans_io`](crate::sans_io) and a socket of the standard
//! library.
//!
//! One datagram is one system call here: the standard library has neither `sendmmsg` nor
//! UDP_SEGMENT, and neither reads nor writes congestion marks. A program that is to be fast on
//! Linux sends a [`Train`] by one call with UDP_SEGMENT and receives with UDP_GRO, or uses a
//! `Tunnel`, which does.
//!
//! The loop of a program, over the loopback address, with a peer in the same thread:
//!
//! ```
//! use adit::sans_io::{Clock, Device, Inbox, Outbox};
//! use adit::{Config, Peer, PrivateKey, std_udp};
//! use std::net::UdpSocket;
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let sockets = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?];
//! let keys = [PrivateKey::generate()?, PrivateKey::generate()?];
//! let mut devices = Vec::new();
//! for n in [0, 1] {
//!     let peer = Peer::new(keys[1 - n].public_key())
//!         .endpoint(sockets[1 - n].local_addr()?)
//!         .allowed_ip(["10.0.0.2", "10.0.0.1"][n].parse()?);
//!     devices.push(Device::new(&Config::new(keys[n].clone()).peer(peer))?);
//! }
//! let (mut clock, mut inbox, mut outbox) = (Clock::new(), Inbox::new(), Outbox::new());
//!
//! let mut packet = vec![0; 20];
//! (packet[0], packet[3]) = (0x45, 20);
//! packet[12..].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
//! let taken = devices[0].seal(clock.now(), &[packet], &mut outbox);
//! assert_eq!(taken, 1);
//!
//! let mut came = 0;
//! while came == 0 {
//!     for (device, socket) in devices.iter_mut().zip(&sockets) {
//!         let now = clock.now();
//!         device.handle_timeout(now, &mut outbox);
//!         for train in outbox.drain() {
//!             std_udp::send(socket, &train)?;
//!         }
//!         let wait = device.next_deadline(now).unwrap_or(Duration::MAX);
//!         // The other one has to have its turn.
//!         let wait = wait.min(Duration::from_millis(1));
//!         std_udp::recv(socket, &mut inbox, Some(wait))?;
//!         let mut opened = device.open(clock.now(), &mut inbox, &mut outbox);
//!         for frame in opened.merged() {
//!             came += frame.len();
//!         }
//!         for train in outbox.drain() {
//!             std_udp::send(socket, &train)?;
//!         }
//!     }
//! }
//! assert_eq!(came, 20);
//! # Ok(())
//! # }
//! ```

use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::time::Duration;

use crate::sans_io::{Inbox, Train};

/// Sends the datagrams of a train, one by one.
///
/// # Errors
///
/// The socket's. The datagrams from the one that failed on were not sent, as if the network had
/// lost them: the next train may go elsewhere, where nothing fails. With [`ErrorKind::WouldBlock`]
/// the socket was full, which a socket that blocks never is.
pub fn send(socket: &UdpSocket, train: &Train<'_>) -> io::Result<()> {
    for datagram in train.datagrams() {
        loop {
            match socket.send_to(datagram, train.to) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(_) => break,
            }
        }
    }
    Ok(())
}

/// Receives the datagrams that wait in the socket, until the inbox is full. If none waits, it waits
/// for one, no longer than `wait`, or without a limit. Returns how many came.
///
/// It changes the socket's read timeout, and leaves the socket one that blocks.
///
/// # Errors
///
/// The socket's. What came before stands in the inbox.
pub fn recv(socket: &UdpSocket, inbox: &mut Inbox, wait: Option<Duration>) -> io::Result<usize> {
    // A datagram that comes later begins a new inbox.
    let before = inbox.len();
    if !inbox.is_full() && wait != Some(Duration::ZERO) {
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(wait)?;
        receive(socket, inbox)?;
        if inbox.len() == before {
            return Ok(0);
        }
    }
    socket.set_nonblocking(true)?;
    let mut received = Ok(true);
    while !inbox.is_full() && matches!(received, Ok(true)) {
        received = receive(socket, inbox);
    }
    socket.set_nonblocking(false)?;
    received?;
    Ok(inbox.len() - before)
}

/// Receives one datagram. False if none waits.
fn receive(socket: &UdpSocket, inbox: &mut Inbox) -> io::Result<bool> {
    loop {
        let received = inbox.receive(|room| {
            let (len, from) = socket.recv_from(room)?;
            Ok::<_, io::Error>((len, from.into()))
        });
        let Err(error) = received else {
            return Ok(true);
        };
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => return Ok(false),
            // Some systems tell here that a datagram that was sent did not arrive.
            ErrorKind::Interrupted | ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused => {}
            _ => return Err(error),
        }
    }
}
