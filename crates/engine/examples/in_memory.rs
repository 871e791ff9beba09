//! Two engines over a network in memory: a packet that goes into one TUN comes out of the other. It
//! takes no rights and no devices.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use adit_engine::{Engine, Interface, MemPlatform};
use adit_io::Offloads;
use adit_io::testing::mem::{self, MemNetwork, TunEnd};
use adit_offload::VNET_HDR_LEN;
use adit_proto::config::{AllowedIpChange, Cidr, DeviceChange, PeerChange, Secret};

/// An interface at `addr` whose private key is `key`, and the other end of its TUN.
fn interface(
    network: &MemNetwork,
    addr: SocketAddr,
    key: u8,
) -> Result<(Interface, TunEnd), Box<dyn Error>> {
    let (tun, end) = mem::tun()?;
    let platform = MemPlatform::new(network, addr)?.with_tun(end.clone());
    let interface = Engine::start(1)?.add(tun, platform, Offloads::ALL)?;
    let change = DeviceChange {
        private_key: Some(Secret::new(&[key; 32])),
        ..DeviceChange::default()
    };
    interface.set(change)?;
    Ok((interface, end))
}

/// Lets `interface` send to `peer` what is for `inside`.
fn connect(
    interface: &Interface,
    peer: &Interface,
    at: SocketAddr,
    inside: &str,
) -> Result<(), Box<dyn Error>> {
    let status = peer.get()?;
    let mut section = PeerChange::new(status.public_key.ok_or("it has no key")?);
    section.endpoint = Some(at);
    let block = Cidr::new(inside.parse::<IpAddr>()?, 32).ok_or("a prefix")?;
    section.allowed_ips = vec![AllowedIpChange::Add(block)];
    let change = DeviceChange {
        peers: vec![section],
        ..DeviceChange::default()
    };
    Ok(interface.set(change)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let network = MemNetwork::new();
    let addrs: [SocketAddr; 2] = ["192.0.2.1:51820".parse()?, "192.0.2.2:51820".parse()?];
    let (left, left_tun) = interface(&network, addrs[0], 1)?;
    let (right, right_tun) = interface(&network, addrs[1], 2)?;
    connect(&left, &right, addrs[1], "10.0.0.2")?;
    connect(&right, &left, addrs[0], "10.0.0.1")?;

    // A virtio header without offloads, and an IPv4 header without payload.
    let mut frame = vec![0; VNET_HDR_LEN + 20];
    frame[VNET_HDR_LEN] = 0x45;
    frame[VNET_HDR_LEN + 3] = 20;
    frame[VNET_HDR_LEN + 12..].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    assert!(left_tun.inject(frame.clone()));

    // The packet waits for the handshake, and arrives.
    let arrived = (0..500).find_map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        right_tun.take()
    });
    let arrived = arrived.ok_or("nothing arrived within 5 s")?;
    assert_eq!(arrived[VNET_HDR_LEN..], frame[VNET_HDR_LEN..]);
    println!("a packet of 20 bytes went through the tunnel");
    Ok(())
}
