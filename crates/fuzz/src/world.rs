//! Devices on a virtual clock, for the targets that need some.

use std::net::SocketAddr;
use std::time::Duration;

use adit_proto::config::{
    AllowedIpChange, Cidr, DeviceChange, DeviceStatus, PeerChange, PublicKey, Secret,
};
use adit_proto::{Device, Endpoint, NotOpened, NotSealed, Output, Tai64N, Time, wire};

use crate::mutate::SplitMix64;

/// When the virtual clock starts.
pub(crate) const START: Time = Time(1_000_000_000_000);

pub(crate) fn device(seed: u64) -> Device {
    let mut random = SplitMix64(seed);
    Device::new(Box::new(move |buffer| {
        for chunk in buffer.chunks_mut(8) {
            chunk.copy_from_slice(&random.number().to_le_bytes()[..chunk.len()]);
        }
    }))
}

/// The private key of host number `n`.
pub(crate) fn private_key(n: u8) -> Secret {
    let mut bytes = [n.wrapping_add(1); 32];
    bytes[0] &= 248;
    bytes[31] = bytes[31] & 127 | 64;
    Secret::new(&bytes)
}

/// The public keys of the first hosts; each takes a computation.
pub(crate) fn public_key(n: u8) -> PublicKey {
    use std::sync::OnceLock;
    static KEYS: OnceLock<Vec<PublicKey>> = OnceLock::new();
    let keys = KEYS.get_or_init(|| (0..8).map(|n| private_key(n).public_key()).collect());
    keys[usize::from(n)]
}

/// The address of host `n`, and of places that it can move to.
pub(crate) fn addr(n: u8, place: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 10 * n + place], 51_820))
}

/// Where whoever is no peer sends from.
pub(crate) fn attacker() -> SocketAddr {
    SocketAddr::from(([203, 0, 113, 9], 9))
}

/// The time of day at a time.
pub(crate) fn wall(now: Time) -> Tai64N {
    Tai64N::from_unix(Duration::from_secs(1_800_000_000) + now.since(START))
}

pub(crate) fn cidr(text: &str) -> Cidr {
    let (addr, len) = text.split_once('/').expect("a slash");
    Cidr::new(
        addr.parse().expect("an address"),
        len.parse().expect("a length"),
    )
    .expect("a block")
}

/// Host `n` has `10.0.0.n/32` and its own key, and knows the other one.
pub(crate) fn joined(n: u8, other: u8) -> DeviceChange {
    let mut peer = PeerChange::new(public_key(other));
    peer.endpoint = Some(addr(other, 0));
    peer.replace_allowed_ips = true;
    peer.allowed_ips = vec![AllowedIpChange::Add(cidr(&format!("10.0.0.{other}/32")))];
    DeviceChange {
        private_key: Some(private_key(n)),
        replace_peers: true,
        peers: vec![peer],
        ..DeviceChange::default()
    }
}

/// An IPv4 packet with some text.
pub(crate) fn packet(from: [u8; 4], to: [u8; 4], text: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + text.len()).unwrap_or(20).to_be_bytes();
    let mut packet = vec![0x45, 0, length[0], length[1], 0, 0, 0, 0, 64, 17, 0, 0];
    packet.extend(from);
    packet.extend(to);
    packet.extend(text);
    packet
}

/// What nobody may change who has no key. Why a handshake failed last is a note for people, and what
/// it says is what anybody sent.
pub(crate) fn state(device: &Device) -> DeviceStatus {
    let mut status = device.status();
    for handshakes in status
        .peers
        .iter_mut()
        .filter_map(|peer| peer.handshakes.as_mut())
    {
        handshakes.last_failure = None;
    }
    status
}

/// A datagram that a device wants sent.
#[derive(Clone)]
pub(crate) struct Sent {
    pub(crate) to: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

/// Lets due timers pass, and does what the device wants done, until it wants nothing more.
pub(crate) fn drain(device: &mut Device, now: Time) -> Vec<Sent> {
    let mut sent = Vec::new();
    for turn in 0.. {
        assert!(turn < 10_000, "a deadline that never passes");
        if device.next_deadline().is_some_and(|at| at <= now) {
            device.handle_timeout(now, wall(now));
        } else if turn > 0 {
            break;
        }
        while let Some(output) = device.poll_output() {
            match output {
                Output::Handshake {
                    to, datagram, peer, ..
                } => {
                    device.handle_sent(&datagram, peer.as_ref(), true);
                    sent.push(Sent {
                        to: to.addr,
                        bytes: datagram.to_vec(),
                    });
                }
                Output::Keepalive { peer } => {
                    if let Some((to, bytes)) = device.seal_keepalive(now, wall(now), &peer) {
                        sent.push(Sent {
                            to: to.addr,
                            bytes: bytes.to_vec(),
                        });
                    }
                }
                Output::SessionReady { .. } | Output::DropStaged { .. } | Output::Event(_) => {}
            }
        }
    }
    sent
}

/// Seals a packet into a buffer of its own, in which nothing but the datagram is written.
pub(crate) fn seal(
    device: &mut Device,
    now: Time,
    packet: &[u8],
    mtu: usize,
) -> Result<(Endpoint, Vec<u8>), NotSealed> {
    let mut bytes = vec![0xa5; wire::sealed_len(packet.len(), mtu) + 3];
    let (to, len) = device.seal(now, wall(now), packet, mtu, &mut bytes)?;
    assert!(
        bytes[len..].iter().all(|&byte| byte == 0xa5),
        "beyond its end"
    );
    bytes.truncate(len);
    Ok((to, bytes))
}

/// Opens a copy of a datagram.
pub(crate) fn open(
    device: &mut Device,
    now: Time,
    from: SocketAddr,
    datagram: &[u8],
) -> Result<Vec<u8>, NotOpened> {
    let mut datagram = datagram.to_vec();
    let opened = device.open(now, wall(now), from.into(), &mut datagram);
    opened.map(<[u8]>::to_vec)
}
