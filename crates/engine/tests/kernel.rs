//! What the engine changes about a real TUN device.

use std::net::UdpSocket;
use std::sync::Arc;

use adit_engine::{Host, Kernel, Settings};
use adit_io::netlink::{LinkChange, Netlink};
use adit_io::netns::Netns;
use adit_io::tun::Tun;
use adit_io::{MAX_FRAME, Offloads, TunQueue};

const LONG: usize = 60_000;

/// What waits in the queue: packets of `LONG` bytes, and bytes in all.
fn drain(tun: &Tun) -> (usize, usize) {
    let (mut long, mut bytes) = (0, 0);
    let mut frame = vec![0; MAX_FRAME];
    while let Ok(len) = tun.read(&mut frame) {
        long += usize::from(len > LONG);
        bytes += len;
    }
    (long, bytes)
}

#[test]
fn a_queue_that_has_overflowed_is_limited_in_bytes() {
    let net = Netns::new().expect("a namespace");
    let open = || Tun::open("tun", 1, Offloads::ALL);
    let tun = net.run(open).expect("in it").expect("a device").remove(0);
    let netlink = Netlink::open_in(&net).expect("netlink");
    let index = tun.ifindex().expect("it exists");
    let change = LinkChange {
        up: Some(true),
        mtu: Some(65_000),
        txqueuelen: Some(200),
        ..LinkChange::default()
    };
    netlink.set_link(index, &change).expect("it is up");
    let address = "10.8.0.1".parse().expect("an address");
    netlink
        .add_address(index, address, 24, true)
        .expect("it has an address");
    let bind = || UdpSocket::bind("10.8.0.1:0");
    let sender = net.run(bind).expect("in it").expect("a socket");
    let send = |packets: usize, len: usize| {
        for _ in 0..packets {
            // What the device drops is an error for whoever sends, behind `noqueue`.
            let _ = sender.send_to(&vec![7; len], "10.8.0.2:9");
        }
    };

    let tun = Arc::new(tun);
    let settings = Settings {
        offloads: Offloads::ALL,
        log: Arc::new(|message| panic!("{message}")),
    };
    let mut kernel = Kernel::new(Arc::clone(&tun), settings);
    // 1. As long as nothing was lost, the number of packets is the limit.
    send(150, LONG);
    kernel.tun_is_behind();
    assert_eq!(drain(&tun).0, 150);
    send(300, LONG);
    assert!(drain(&tun).0 > 190);
    // 2. Since then, bytes are, for long packets only.
    kernel.tun_is_behind();
    for _ in 0..3 {
        send(150, LONG);
        send(50, 1000);
        let (long, bytes) = drain(&tun);
        assert!((60..80).contains(&long), "{long}");
        assert!(bytes < 5 << 20, "{bytes}");
        assert!(bytes - long * LONG > 50_000, "the short ones passed");
    }
}
