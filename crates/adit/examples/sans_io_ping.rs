//! A tunnel between two threads, over the loopback address, as any user and without a TUN: one
//! sends echo requests of ICMP through it, the other answers.
//!
//!     cargo run -p adit --no-default-features --example sans_io_ping

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use adit::sans_io::{Clock, Device, Inbox, Outbox};
use adit::{Config, Peer, PrivateKey, std_udp};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A device, and the loop that it needs.
struct Host {
    device: Device,
    socket: UdpSocket,
    clock: Clock,
    inbox: Inbox,
    outbox: Outbox,
}

impl Host {
    fn new(device: Device, socket: UdpSocket) -> Self {
        Self {
            device,
            socket,
            clock: Clock::new(),
            inbox: Inbox::new(),
            outbox: Outbox::new(),
        }
    }

    /// Sends packets, and waits for others, not longer than `wait`. Returns those that came.
    fn poll(&mut self, packets: &[Vec<u8>], wait: Duration) -> Result<Vec<Vec<u8>>> {
        let now = self.clock.now();
        // A megabyte fits: these few are all taken.
        let _ = self.device.seal(now, packets, &mut self.outbox);
        self.device.handle_timeout(now, &mut self.outbox);
        self.send();
        let due = self.device.next_deadline(now).unwrap_or(wait);
        std_udp::recv(&self.socket, &mut self.inbox, Some(wait.min(due)))?;
        let now = self.clock.now();
        let opened = self.device.open(now, &mut self.inbox, &mut self.outbox);
        let came = opened
            .packets()
            .map(|(_, packet)| packet.to_vec())
            .collect();
        self.send();
        for event in self.device.events() {
            println!("{event}");
        }
        Ok(came)
    }

    /// What cannot be sent is lost, as in any network: WireGuard sends its own messages again.
    fn send(&mut self) {
        for train in self.outbox.drain() {
            if let Err(error) = std_udp::send(&self.socket, &train) {
                eprintln!("nothing sent to {}: {error}", train.to);
            }
        }
    }
}

/// The sum of RFC 1071 over bytes of even length.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks_exact(2);
    let mut sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let [_, _, high, low] = (!sum).to_be_bytes();
    [high, low]
}

/// An echo request from 10.0.0.1 to 10.0.0.2.
fn echo_request(sequence: u8) -> Vec<u8> {
    let mut packet = vec![0; 28];
    packet[..10].copy_from_slice(&[0x45, 0, 0, 28, 0, sequence, 0, 0, 64, 1]);
    packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum);
    (packet[20], packet[27]) = (8, sequence);
    let sum = checksum(&packet[20..]);
    packet[22..24].copy_from_slice(&sum);
    packet
}

/// The answer to an echo request; `None` for anything else.
fn echo_answer(mut packet: Vec<u8>) -> Option<Vec<u8>> {
    if packet.len() < 28 || packet[9] != 1 || packet[20] != 8 {
        return None;
    }
    let (from, to) = packet[12..20].split_at_mut(4);
    from.swap_with_slice(to);
    packet[20..24].fill(0);
    let sum = checksum(&packet[20..]);
    packet[22..24].copy_from_slice(&sum);
    Some(packet)
}

fn main() -> Result<()> {
    let sockets = [
        UdpSocket::bind("127.0.0.1:0")?,
        UdpSocket::bind("127.0.0.1:0")?,
    ];
    let keys = [PrivateKey::generate()?, PrivateKey::generate()?];
    let ends = [sockets[0].local_addr()?, sockets[1].local_addr()?];
    let device = |n: usize, other: usize, block: &str| -> Result<Device> {
        let peer = Peer::new(keys[other].public_key())
            .endpoint(ends[other])
            .allowed_ip(block.parse()?);
        Ok(Device::new(&Config::new(keys[n].clone()).peer(peer))?)
    };
    let (ping, pong) = (device(0, 1, "10.0.0.2")?, device(1, 0, "10.0.0.1")?);
    let [socket, other] = sockets;
    let count = 5;

    let answers = std::thread::spawn(move || -> Result<()> {
        let mut host = Host::new(pong, other);
        let (mut answered, mut answers) = (0, Vec::new());
        while answered < count {
            let came = host.poll(&answers, Duration::from_millis(100))?;
            answers = came.into_iter().filter_map(echo_answer).collect();
            answered += answers.len();
        }
        host.poll(&answers, Duration::ZERO)?;
        Ok(())
    });

    let mut host = Host::new(ping, socket);
    for sequence in 1..=5 {
        let sent = Instant::now();
        let mut came = host.poll(&[echo_request(sequence)], Duration::from_millis(100))?;
        while came.is_empty() {
            came = host.poll(&[], Duration::from_millis(100))?;
        }
        for answer in came {
            println!("answer {} after {:.1?}", answer[27], sent.elapsed());
        }
    }
    answers.join().map_err(|_| "the other thread panicked")??;
    println!("{:?}", host.device.stats());
    Ok(())
}
