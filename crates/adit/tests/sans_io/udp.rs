//! Sockets of the standard library, over the loopback address.

use std::net::UdpSocket;
use std::time::Duration;

use adit::sans_io::{Clock, Device, Inbox, Outbox, PacketRef};
use adit::{Config, std_udp};

use crate::packets;
use crate::pair::{fill, key, peer};

/// Two that know where the other is.
fn hosts() -> [(Device, UdpSocket); 2] {
    let sockets = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
    let addrs = [0, 1].map(|n: usize| sockets[n].local_addr().unwrap());
    let mut n = 0;
    sockets.map(|socket| {
        let other = peer(1 - n).endpoint(addrs[usize::from(1 - n)]);
        let config = Config::new(key(n)).peer(other);
        n += 1;
        let device = Device::with_random(&config, fill(n.into())).unwrap();
        (device, socket)
    })
}

#[test]
fn datagrams_pass_through_sockets() {
    let mut hosts = hosts();
    let (mut clock, mut inbox, mut outbox) = (Clock::new(), Inbox::new(), Outbox::new());
    let (packet, gso) = packets::gso(adit::GsoKind::Udp, 1, 2, 1000);
    let mut got = 0;
    let mut sent = 0;
    while got < 10 * 64_000 {
        let (device, _) = &mut hosts[0];
        // A few at a time, so that the socket's buffer takes them.
        if got == sent * 64_000 {
            let taken = device.seal(
                clock.now(),
                &[PacketRef::with_gso(&packet, gso)],
                &mut outbox,
            );
            sent += taken;
        }
        for (device, socket) in &mut hosts {
            device.handle_timeout(clock.now(), &mut outbox);
            for train in outbox.drain() {
                std_udp::send(socket, &train).unwrap();
            }
            let wait = Some(Duration::from_millis(1));
            std_udp::recv(socket, &mut inbox, wait).unwrap();
            let opened = device.open(clock.now(), &mut inbox, &mut outbox);
            let came = opened.packets();
            got += came
                .map(|(_, packet)| packets::payload(packet).len())
                .sum::<usize>();
            for train in outbox.drain() {
                std_udp::send(socket, &train).unwrap();
            }
        }
    }
    assert_eq!(got, sent * 64_000);
}

#[test]
fn an_inbox_takes_what_waits_and_no_more_than_it_has_room_for() {
    let [from, to] = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
    let addr = to.local_addr().unwrap();
    let mut inbox = Inbox::with_capacity(65_535 + 10 * 1000);
    for wait in [Some(Duration::ZERO), Some(Duration::from_millis(1))] {
        assert_eq!(std_udp::recv(&to, &mut inbox, wait).unwrap(), 0);
    }
    for _ in 0..20 {
        from.send_to(&[4; 1000], addr).unwrap();
    }
    from.send_to(&[], addr).unwrap();
    let mut came = 0;
    while came < 21 {
        let now = std_udp::recv(&to, &mut inbox, None).unwrap();
        assert!(now <= 11);
        came += now;
        if inbox.is_full() {
            assert_eq!(std_udp::recv(&to, &mut inbox, None).unwrap(), 0);
        }
        inbox.clear();
    }
    assert_eq!(came, 21);
    // The socket blocks again: this waits for its datagram.
    to.set_read_timeout(None).unwrap();
    let sender = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        from.send_to(&[4], addr).unwrap();
    });
    assert_eq!(to.recv(&mut [0; 9]).unwrap(), 1);
    sender.join().unwrap();
}
