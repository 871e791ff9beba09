//! Two engines joined by a network in memory: the whole data path without the kernel and without
//! rights.
//!
//! ```text
//!   TunEnd a ⇄ engine a ⇄ socket a ⇄ network ⇄ socket b ⇄ engine b ⇄ TunEnd b
//! ```

#[allow(dead_code, reason = "each test file uses a part of this")]
pub(crate) mod star;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use adit_engine::{Engine, Interface, MemPlatform, PlatformEnd, Policy, ThreadSettings};
use adit_io::testing::mem::{self, MemNetwork, MemTun, MemUdp, TunEnd};
use adit_io::{Offloads, TunQueue, UdpSocket};
use adit_offload::{Frame, VNET_HDR_LEN};
use adit_proto::config::{AllowedIpChange, Cidr, DeviceChange, PeerChange, PublicKey, Secret};
use x25519_dalek::StaticSecret;

pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;

/// How a pair is set up.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    pub(crate) offloads: Offloads,
    /// Trains travel as trains.
    pub(crate) gso: bool,
    /// Shards at most.
    pub(crate) shards: usize,
    pub(crate) policy: Policy,
    /// Whether the verbose log is on; [`PlatformEnd::log`] then has it.
    pub(crate) verbose: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            offloads: Offloads::ALL,
            gso: true,
            shards: 1,
            policy: Policy::Auto,
            verbose: false,
        }
    }
}

/// One end.
pub(crate) struct Side {
    pub(crate) interface: Interface,
    pub(crate) tun: TunEnd,
    pub(crate) addr: SocketAddr,
    pub(crate) host: PlatformEnd,
}

pub(crate) struct EnginePair {
    pub(crate) network: MemNetwork,
    pub(crate) sides: [Side; 2],
}

/// The address of a side inside the tunnel.
pub(crate) fn inner_ip(side: usize) -> IpAddr {
    [10, 0, 0, if side == A { 1 } else { 2 }].into()
}

/// One of the addresses of the hosts behind it.
pub(crate) fn inner_net(side: usize, host: u8) -> IpAddr {
    [10, if side == A { 1 } else { 2 }, 0, host].into()
}

fn secret(side: usize) -> StaticSecret {
    StaticSecret::from([if side == A { 0x11 } else { 0x22 }; 32])
}

pub(crate) fn public(side: usize) -> PublicKey {
    PublicKey(x25519_dalek::PublicKey::from(&secret(side)).to_bytes())
}

impl EnginePair {
    pub(crate) fn new(options: Options) -> Self {
        Self::with_sockets(options, |_, socket| socket)
    }

    /// A pair whose sockets are wrapped, to have them misbehave.
    pub(crate) fn with_sockets<U, W>(options: Options, wrap: W) -> Self
    where
        U: UdpSocket + 'static,
        W: Fn(usize, MemUdp) -> U + Send + Clone + 'static,
    {
        Self::with(options, |_, tun| tun, wrap)
    }

    /// The same, with TUNs wrapped, too.
    pub(crate) fn with<T, U, W>(
        options: Options,
        wrap_tun: impl Fn(usize, MemTun) -> T,
        wrap: W,
    ) -> Self
    where
        T: TunQueue + 'static,
        U: UdpSocket + 'static,
        W: Fn(usize, MemUdp) -> U + Send + Clone + 'static,
    {
        let engines = [A, B].map(|_| {
            let settings = ThreadSettings {
                policy: options.policy,
                ..ThreadSettings::from(options.shards)
            };
            Engine::with(&settings).expect("an engine")
        });
        Self::on(&engines, &MemNetwork::new(), 0, options, wrap_tun, wrap)
    }

    /// A pair of interfaces of these engines; each pair of a network has a number of its own.
    pub(crate) fn on<T, U, W>(
        engines: &[Engine<T, MemPlatform<U>>; 2],
        network: &MemNetwork,
        pair: u8,
        options: Options,
        wrap_tun: impl Fn(usize, MemTun) -> T,
        wrap: W,
    ) -> Self
    where
        T: TunQueue + 'static,
        U: UdpSocket + 'static,
        W: Fn(usize, MemUdp) -> U + Send + Clone + 'static,
    {
        let sides = [A, B].map(|number| {
            let last = 2 * pair + if number == A { 1 } else { 2 };
            let addr = SocketAddr::from(([192, 0, 2, last], 51820));
            let (queue, tun) = mem::tun().expect("an in-memory TUN");
            let wrap = wrap.clone();
            let host = MemPlatform::new(network, addr)
                .expect("a host")
                .with_gso(options.gso)
                .with_verbose_log(options.verbose)
                .with_tun(tun.clone())
                .with_sockets(move |socket| wrap(number, socket));
            let end = host.end();
            let interface = engines[number]
                .add(wrap_tun(number, queue), host, options.offloads)
                .expect("an interface");
            Side {
                interface,
                tun,
                addr,
                host: end,
            }
        });
        let network = network.clone();
        let pair = Self { network, sides };
        for side in [A, B] {
            pair.sides[side]
                .interface
                .set(pair.configuration(side))
                .expect("a right configuration");
        }
        pair
    }

    /// The configuration of this side.
    pub(crate) fn configuration(&self, side: usize) -> DeviceChange {
        let other = 1 - side;
        let blocks = [(inner_ip(other), 32), (inner_net(other, 0), 24)];
        let blocks = blocks.map(|(ip, len)| Cidr::new(ip, len).expect("a right prefix"));
        DeviceChange {
            private_key: Some(Secret::new(secret(side).as_bytes())),
            peers: vec![PeerChange {
                endpoint: Some(self.sides[other].addr),
                allowed_ips: blocks.map(AllowedIpChange::Add).to_vec(),
                ..PeerChange::new(public(other))
            }],
            ..DeviceChange::default()
        }
    }

    pub(crate) fn inject(&self, side: usize, frame: Vec<u8>) {
        assert!(self.sides[side].tun.inject(frame), "the ring is full");
    }

    /// Packets that a side delivers, GSO packets taken apart, until there are `count` or none came
    /// for a while.
    pub(crate) fn delivered(&self, side: usize, count: usize) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        let mut last = Instant::now();
        while packets.len() < count && last.elapsed() < Duration::from_secs(5) {
            match self.sides[side].tun.take() {
                Some(frame) => {
                    packets.extend(segments(&frame));
                    last = Instant::now();
                }
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        packets
    }

    /// Frames that a side has delivered and the test has not taken yet.
    pub(crate) fn delivered_now(&self, side: usize) -> Vec<Vec<u8>> {
        self.sides[side].tun.take().into_iter().collect()
    }

    pub(crate) fn drops(&self, side: usize, reason: &str) -> u64 {
        let report = self.sides[side].interface.report();
        let found = report.drops.iter().find(|(name, _)| *name == reason);
        found.unwrap_or_else(|| panic!("no drop reason {reason}")).1
    }

    /// Waits for a line of a side's log that holds all `words`; less long than for any timer of the
    /// protocol.
    pub(crate) fn wait_for_line(&self, side: usize, words: &[&str]) {
        let start = Instant::now();
        let is_there = |log: &[String]| {
            log.iter()
                .any(|line| words.iter().all(|word| line.contains(word)))
        };
        loop {
            let log = self.sides[side].host.log();
            if is_there(&log) {
                return;
            }
            assert!(
                start.elapsed() < Duration::from_secs(5),
                "{words:?}: {log:?}"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until a side has dropped `count` packets for a reason.
    pub(crate) fn wait_for_drops(&self, side: usize, reason: &str, count: u64) {
        let start = Instant::now();
        while self.drops(side, reason) < count {
            assert!(
                start.elapsed() < Duration::from_secs(5),
                "{reason}: {}",
                self.drops(side, reason)
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The packets that a frame holds, finished.
pub(crate) fn segments(frame: &[u8]) -> Vec<Vec<u8>> {
    let frame = Frame::parse(frame).expect("a frame that the kernel would take");
    (0..frame.segments())
        .map(|i| {
            let mut packet = vec![0; frame.segment_len(i)];
            frame.write_header(i, &mut packet[..frame.header_len()]);
            packet[frame.header_len()..].copy_from_slice(frame.payload(i));
            packet
        })
        .collect()
}

pub(crate) fn checksum(mut sum: u32, bytes: &[u8]) -> u16 {
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded")
}

fn ipv4(src: IpAddr, dst: IpAddr, protocol: u8, payload: usize, id: u16) -> Vec<u8> {
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (src, dst) else {
        panic!("IPv4 only")
    };
    let mut header = vec![0x45, 0];
    header.extend(u16::try_from(20 + payload).expect("short").to_be_bytes());
    header.extend(id.to_be_bytes());
    header.extend([0, 0, 64, protocol, 0, 0]);
    header.extend(src.octets());
    header.extend(dst.octets());
    let sum = checksum(0, &header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header
}

/// A frame with one UDP datagram over IPv4, checksums right.
pub(crate) fn udp_frame(
    src: IpAddr,
    dst: IpAddr,
    ports: (u16, u16),
    id: u16,
    payload: &[u8],
) -> Vec<u8> {
    let mut packet = ipv4(src, dst, 17, 8 + payload.len(), id);
    let len = u16::try_from(8 + payload.len()).expect("short");
    let mut udp = Vec::new();
    for field in [ports.0, ports.1, len, 0] {
        udp.extend(field.to_be_bytes());
    }
    udp.extend(payload);
    let mut pseudo = packet[12..20].to_vec();
    pseudo.extend([0, 17]);
    pseudo.extend(len.to_be_bytes());
    pseudo.extend(&udp);
    let sum = match checksum(0, &pseudo) {
        0 => 0xffff,
        sum => sum,
    };
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    packet.extend(udp);
    let mut frame = vec![0; VNET_HDR_LEN];
    frame.extend(packet);
    frame
}

/// A TCP GSO packet over IPv4 as the kernel hands it over: partial checksum, segments of `mss`
/// bytes.
pub(crate) fn tcp_frame(src: IpAddr, dst: IpAddr, seq: u32, mss: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = ipv4(src, dst, 6, 20 + payload.len(), 7);
    let mut pseudo = packet[12..20].to_vec();
    pseudo.extend([0, 6]);
    pseudo.extend(
        u16::try_from(20 + payload.len())
            .expect("short")
            .to_be_bytes(),
    );
    let partial = !checksum(0, &pseudo);
    packet.extend([0x12, 0x34, 0x56, 0x78]);
    packet.extend(seq.to_be_bytes());
    packet.extend([0, 0, 0, 1, 0x50, 0x18, 0xff, 0xff]);
    packet.extend(partial.to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(payload);
    let mut frame = vec![1, 1];
    for field in [40, mss, 20, 16u16] {
        frame.extend(field.to_ne_bytes());
    }
    frame.resize(VNET_HDR_LEN, 0);
    frame.extend(packet);
    frame
}
