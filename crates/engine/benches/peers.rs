//! What a packet costs the shard, by the number of peers that packets go to in turn: the outbound
//! path over a network in memory, without the kernel's share.
//!
//! `cargo bench -p adit-engine --bench peers` prints nanoseconds of the shard's CPU time for each
//! packet. Copies of the network in memory are included.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use adit_engine::{Engine, Interface, MemPlatform};
use adit_io::testing::mem::{self, MemNetwork, MemUdp, TunEnd};
use adit_io::{Offloads, RecvBatch, SendReport, Transmit, UdpSocket};
use adit_offload::VNET_HDR_LEN;
use adit_proto::config::{AllowedIpChange, Cidr, DeviceChange, PeerChange, PublicKey, Secret};
use adit_proto::{Device, Output, Tai64N, Time};
use x25519_dalek::StaticSecret;

const GATEWAY: &str = "192.0.2.1:51820";
/// All peers are at one address.
const PEERS: &str = "192.0.2.2:51820";
/// Packets for each line that is printed.
const PACKETS: usize = 200_000;

fn main() {
    println!("{:>8} {:>12} {:>12}", "peers", "64 B, ns", "1368 B, ns");
    for peers in [1, 10, 100, 1000, 10_000] {
        let bench = Bench::new(peers);
        let [short, long] = [64, 1368].map(|len| bench.measure(len));
        println!("{peers:>8} {short:>12.0} {long:>12.0}");
    }
}

struct Bench {
    interface: Interface,
    tun: TunEnd,
    peers: u32,
    // The peers' address stays taken.
    _sink: MemUdp,
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn secret(number: u32) -> StaticSecret {
    let mut bytes = [7; 32];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    StaticSecret::from(bytes)
}

fn public(secret: &StaticSecret) -> PublicKey {
    PublicKey(x25519_dalek::PublicKey::from(secret).to_bytes())
}

fn inner(peer: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(10, 1, 0, 0)) + peer)
}

impl Bench {
    fn new(peers: u32) -> Self {
        let network = MemNetwork::new();
        let (tun, end) = mem::tun().expect("an in-memory TUN");
        let platform = MemPlatform::new(&network, address(GATEWAY)).expect("a host");
        let engine = Engine::start(1).expect("an engine");
        let interface = engine
            .add(tun, platform, Offloads::ALL)
            .expect("an interface");
        let sink = network.bind(address(PEERS), true).expect("a free address");
        let gateway = secret(u32::MAX);
        let sections = (0..peers).map(|peer| PeerChange {
            endpoint: Some(address(PEERS)),
            allowed_ips: vec![AllowedIpChange::Add(
                Cidr::new(inner(peer).into(), 32).expect("a prefix"),
            )],
            ..PeerChange::new(public(&secret(peer)))
        });
        let change = DeviceChange {
            private_key: Some(Secret::new(gateway.as_bytes())),
            peers: sections.collect(),
            ..DeviceChange::default()
        };
        interface.set(change).expect("a right configuration");
        for peer in 0..peers {
            shake_hands(&sink, peer, public(&gateway));
        }
        Self {
            interface,
            tun: end,
            peers,
            _sink: sink,
        }
    }

    /// Nanoseconds of the shard's CPU time a packet.
    fn measure(&self, len: u16) -> f64 {
        let frames: Vec<Vec<u8>> = (0..self.peers).map(|peer| frame(peer, len)).collect();
        let before = shard_cpu();
        for frame in frames.iter().cycle().take(PACKETS) {
            while !self.tun.inject(frame.clone()) {
                std::thread::yield_now();
            }
        }
        // The ring is empty once it takes as many frames as it holds.
        std::thread::sleep(Duration::from_millis(50));
        let spent = shard_cpu() - before;
        let drops = self.interface.report().drops;
        let dropped: u64 = drops
            .iter()
            .filter(|(reason, _)| *reason != "tun_full")
            .map(|(_, packets)| packets)
            .sum();
        assert_eq!(dropped, 0, "{drops:?}");
        spent as f64 / PACKETS as f64
    }
}

/// A UDP datagram to a peer's inner address, with `len` octets of payload.
fn frame(peer: u32, len: u16) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend((28 + len).to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1]);
    packet.extend(inner(peer).octets());
    packet.extend([0, 1, 0, 2]);
    packet.extend((8 + len).to_be_bytes());
    packet.extend([0, 0]);
    packet.resize(packet.len() + usize::from(len), 0x5a);
    [vec![0; VNET_HDR_LEN], packet].concat()
}

/// The peer initiates, and confirms the session with a keepalive.
fn shake_hands(socket: &MemUdp, peer: u32, gateway: PublicKey) {
    let (now, wall) = (
        Time(1_000_000_000),
        Tai64N::from_unix(Duration::from_secs(1_800_000_000)),
    );
    let mut seed = u64::from(peer) + 1;
    let mut device = Device::new(Box::new(move |bytes| {
        for byte in bytes {
            // Knuth's MMIX generator.
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            *byte = seed.to_be_bytes()[0];
        }
    }));
    let change = DeviceChange {
        private_key: Some(Secret::new(secret(peer).as_bytes())),
        peers: vec![PeerChange {
            endpoint: Some(address(GATEWAY)),
            persistent_keepalive: Some(25),
            ..PeerChange::new(gateway)
        }],
        ..DeviceChange::default()
    };
    device.apply(now, &change).expect("a right configuration");
    let us = Arc::clone(device.peer(&gateway).expect("configured"));
    if us.want_session() {
        device.handle_event(now, wall, &us);
    }
    device.handle_timeout(now, wall);
    let mut batch = RecvBatch::default();
    loop {
        let mut confirmed = false;
        while let Some(output) = device.poll_output() {
            match output {
                Output::Handshake { datagram, .. } => send(socket, &datagram),
                Output::Keepalive { peer } => {
                    if let Some((_, datagram)) = device.seal_keepalive(now, wall, &peer) {
                        send(socket, &datagram);
                        confirmed = true;
                    }
                }
                Output::SessionReady { .. } | Output::DropStaged { .. } | Output::Event(_) => {}
            }
        }
        if confirmed {
            return;
        }
        if socket.recv(&mut batch).is_ok() {
            for (_, datagram) in batch.iter_mut() {
                device.handle_handshake(now, wall, address(GATEWAY).into(), datagram, false);
            }
        } else {
            std::thread::yield_now();
        }
    }
}

fn send(socket: &MemUdp, datagram: &[u8]) {
    let train = Transmit {
        to: address(GATEWAY).into(),
        ecn: 0,
        stride: datagram.len(),
        bytes: datagram,
    };
    socket.send(&[train], &mut SendReport::default());
}

/// CPU time of the shard's thread so far, in nanoseconds.
fn shard_cpu() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").expect("/proc is mounted");
    for task in tasks.filter_map(Result::ok) {
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if name.trim() == "adit-shard-0" {
            let stat = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            let nanos = stat.split(' ').next().and_then(|nanos| nanos.parse().ok());
            return nanos.expect("nanoseconds first");
        }
    }
    panic!("there is no shard");
}
