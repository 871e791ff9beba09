//! WireGuard without I/O: batches of packets in, datagrams out, and back.
//!
//! A [`Device`] has no sockets, clocks or threads. Its caller tells it what time it is and what
//! came, and sends what it puts into an [`Outbox`]. It works as any user, on any system that the
//! standard library knows.
//!
//! # How to drive one
//!
//! 1. [`Device::seal`] packets that are to be sent: many at once, because a batch costs far less
//!    than its packets one by one.
//! 2. [`Device::open`] datagrams that came, which stand in an [`Inbox`].
//! 3. [`Device::handle_timeout`] when [`Device::next_deadline`] says so, and after `seal`: a
//!    handshake begins with it.
//! 4. After each of these, send what the outbox has.
//!
//! Two devices joined by function calls:
//!
//! ```
//! use adit::sans_io::{Device, Inbox, Now, Outbox};
//! use adit::{Config, Peer, PrivateKey};
//! use std::net::SocketAddr;
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let addrs: [SocketAddr; 2] = ["192.0.2.1:51820".parse()?, "192.0.2.2:51820".parse()?];
//! let keys = [PrivateKey::generate()?, PrivateKey::generate()?];
//! let peer = |n: usize, block: &str| -> Result<Peer, adit::BlockError> {
//!     Ok(Peer::new(keys[n].public_key()).endpoint(addrs[n]).allowed_ip(block.parse()?))
//! };
//! let mut devices = [
//!     Device::new(&Config::new(keys[0].clone()).peer(peer(1, "10.0.0.2")?))?,
//!     Device::new(&Config::new(keys[1].clone()).peer(peer(0, "10.0.0.1")?))?,
//! ];
//! let (mut inbox, mut outboxes) = (Inbox::new(), [Outbox::new(), Outbox::new()]);
//! let now = Now::new(Duration::from_secs(1), Duration::from_secs(1_800_000_000));
//!
//! // IPv4 headers without payload from 10.0.0.1 to 10.0.0.2. They wait for a session.
//! let mut packet = vec![0; 20];
//! (packet[0], packet[3]) = (0x45, 20);
//! packet[12..].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
//! let packets = [packet.clone(), packet];
//! assert_eq!(devices[0].seal(now, &packets, &mut outboxes[0]), 2);
//! assert_eq!(devices[0].stats().waiting_packets, 2);
//!
//! // In turns, what one has to send the other opens: initiation, response, packets.
//! let mut came = Vec::new();
//! for (from, to) in [(0, 1), (1, 0), (0, 1)] {
//!     devices[from].handle_timeout(now, &mut outboxes[from]);
//!     for train in outboxes[from].drain() {
//!         for datagram in train.datagrams() {
//!             inbox.push(addrs[from], datagram)?;
//!         }
//!     }
//!     let opened = devices[to].open(now, &mut inbox, &mut outboxes[to]);
//!     for (peer, packet) in opened.packets() {
//!         assert_eq!(peer, keys[from].public_key());
//!         came.push(packet.to_vec());
//!     }
//! }
//! assert_eq!(came, packets);
//! # Ok(())
//! # }
//! ```
//!
//! [`std_udp`](crate::std_udp) moves datagrams between these buffers and a socket of the standard
//! library; its documentation has the loop of a program.
//!
//! # What it takes care of
//!
//! | | |
//! |---|---|
//! | sessions | begin when packets want one, are renewed in time, and end by WireGuard's timers |
//! | packets without a session | wait, bounded in number and bytes, and leave in their order |
//! | replays, forged datagrams | change nothing |
//! | peers that move | are followed, once a datagram from there was authentic |
//! | sources of packets | are addresses of the peer that sent them, or the packet is dropped |
//! | congestion marks | pass through the tunnel (RFC 6040), as far as the caller knows them |
//! | floods of handshakes | cost a bounded time a call; cookies then prove addresses |
//!
//! No input makes it panic: no datagram, packet, time or order of calls. It allocates nothing for a
//! packet once its buffers are as large as they get; handshakes and packets that wait do allocate.
//!
//! # Threads and processes
//!
//! All types are `Send`, so that another thread may go on with them; none is shared by two at once.
//! A process that forks must go on with a device in one of both processes only: two would seal
//! different packets with the same key and counter.

mod clock;
mod device;
mod handshakes;
mod inbox;
mod open;
mod outbox;
mod packet;
mod scratch;
mod seal;
mod stats;
mod waiting;

pub use clock::{Clock, Now};
pub use device::{Device, DeviceError};
pub use inbox::{Arrival, Inbox, InboxFull, Opened};
pub use outbox::{LocalAddr, Outbox, Train};
pub use packet::{AsPacket, PacketRef};
pub use stats::{DeviceStats, Unopened, Unsealed};
