//! Two WireGuard devices shake hands and exchange a packet, without I/O and on a clock of our own.

use adit_proto::config::{AllowedIpChange, Cidr, DeviceChange, PeerChange, Secret};
use adit_proto::{Device, NotSealed, Output, Tai64N, Time};
use std::io::Read;
use std::net::SocketAddr;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A real program asks its clocks: boot time, and the time of day.
    let (now, wall) = (
        Time(1),
        Tai64N::from_unix(std::time::Duration::from_secs(1_800_000_000)),
    );
    let addrs: [SocketAddr; 2] = ["192.0.2.1:51820".parse()?, "192.0.2.2:51820".parse()?];
    let mut devices = [1, 2].map(|n| {
        let mut urandom = std::fs::File::open("/dev/urandom").expect("random bytes");
        let random = Box::new(move |bytes: &mut [u8]| urandom.read_exact(bytes).expect("enough"));
        let mut device = Device::new(random);
        let private_key = Some(Secret::new(&[n; 32]));
        device
            .apply(
                now,
                &DeviceChange {
                    private_key,
                    ..Default::default()
                },
            )
            .expect("few peers");
        device
    });
    for n in [0, 1] {
        let mut peer = PeerChange::new(devices[1 - n].status().public_key.expect("just set"));
        peer.endpoint = Some(addrs[1 - n]);
        let block = if n == 0 { "10.0.0.2" } else { "10.0.0.1" };
        peer.allowed_ips = vec![AllowedIpChange::Add(
            Cidr::new(block.parse()?, 32).expect("a prefix"),
        )];
        devices[n].apply(
            now,
            &DeviceChange {
                peers: vec![peer],
                ..Default::default()
            },
        )?;
    }

    // An IPv4 header without payload from 10.0.0.1 to 10.0.0.2: without a session it has to wait.
    let mut packet = [0; 20];
    (packet[0], packet[3]) = (0x45, 20);
    packet[12..].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let mut datagram = [0; 64];
    let waits = devices[0].seal(now, wall, &packet, 1420, &mut datagram);
    assert!(matches!(waits, Err(NotSealed::NoSession(_))));

    // Lets both do what they want done, until nothing is left.
    loop {
        let mut quiet = true;
        for n in [0, 1] {
            if devices[n].next_deadline().is_some_and(|at| at <= now) {
                devices[n].handle_timeout(now, wall);
            }
            while let Some(output) = devices[n].poll_output() {
                quiet = false;
                match output {
                    Output::Handshake { datagram, peer, .. } => {
                        devices[n].handle_sent(&datagram, peer.as_ref(), true);
                        devices[1 - n].handle_handshake(
                            now,
                            wall,
                            addrs[n].into(),
                            &datagram,
                            false,
                        );
                    }
                    Output::Keepalive { peer } => {
                        if let Some((_, mut datagram)) = devices[n].seal_keepalive(now, wall, &peer)
                        {
                            let empty =
                                devices[1 - n].open(now, wall, addrs[n].into(), &mut datagram);
                            assert_eq!(empty, Ok(&[][..]));
                        }
                    }
                    // What was kept is sealed now, or dropped.
                    Output::SessionReady { .. } | Output::DropStaged { .. } | Output::Event(_) => {}
                }
            }
        }
        if quiet {
            break;
        }
    }

    let sealed = devices[0].seal(now, wall, &packet, 1420, &mut datagram);
    let Ok((to, len)) = sealed else {
        panic!("a session")
    };
    assert_eq!(to.addr, addrs[1]);
    assert_eq!(
        devices[1].open(now, wall, addrs[0].into(), &mut datagram[..len]),
        Ok(&packet[..])
    );
    println!("a packet of 20 bytes went from one device to the other");
    Ok(())
}
