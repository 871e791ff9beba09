//! One packet at a time: what `Device::seal` and `Device::open` do for an embedder.

mod common;

use adit_proto::config::PeerChange;
use adit_proto::wire::{DataHeader, sealed_len};
use adit_proto::{Endpoint, NotOpened, NotSealed};
use common::*;

fn ipv4(from: u8, to: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 20];
    packet[0] = 0x45;
    packet[3] = u8::try_from(20 + payload.len()).unwrap();
    packet[12..].copy_from_slice(&[10, 0, 0, from, 10, 0, 0, to]);
    packet.extend(payload);
    packet
}

/// Seals a packet into a buffer that just has room for it.
fn seal(net: &mut Net, packet: &[u8]) -> Result<(Endpoint, Vec<u8>), NotSealed> {
    let (now, wall) = (net.now, net.wall(A));
    let mut datagram = vec![0; sealed_len(packet.len(), 1420)];
    let sealed = net.hosts[A]
        .device
        .seal(now, wall, packet, 1420, &mut datagram);
    sealed.map(|(to, len)| {
        assert_eq!(len, datagram.len());
        (to, datagram)
    })
}

/// Opens a copy of a datagram at B.
fn open(net: &mut Net, from: Endpoint, datagram: &[u8]) -> Result<Vec<u8>, NotOpened> {
    let (now, wall) = (net.now, net.wall(B));
    let mut datagram = datagram.to_vec();
    let opened = net.hosts[B].device.open(now, wall, from, &mut datagram);
    opened.map(<[u8]>::to_vec)
}

/// A seals a packet for B, and B opens it as if it came from `from`.
fn pass(net: &mut Net, packet: &[u8], from: Endpoint) -> Result<Vec<u8>, NotOpened> {
    let Ok((to, datagram)) = seal(net, packet) else {
        panic!("a session");
    };
    assert_eq!(to.addr, net.hosts[B].addr);
    assert_eq!(datagram.len() % 16, 0, "it is padded");
    let opened = open(net, from, &datagram);
    let again = open(net, from, &datagram);
    assert_eq!(again, Err(NotOpened::Replayed));
    // The tag is not looked at: a replay costs no decryption.
    let mut tampered = datagram.clone();
    tampered[20] ^= 1;
    let again = open(net, from, &tampered);
    assert_eq!(again, Err(NotOpened::Replayed));
    net.drain(A);
    net.drain(B);
    opened
}

#[test]
fn a_sealed_packet_opens_once_and_moves_the_endpoint() {
    let mut net = Net::pair(30);
    net.connect();
    net.run_for(secs(20));
    let elsewhere = Endpoint::from("198.51.100.7:7".parse::<std::net::SocketAddr>().unwrap());
    let packet = ipv4(1, 2, b"hello");
    assert_eq!(pass(&mut net, &packet, elsewhere), Ok(packet));
    assert_eq!(net.peer(B, A).endpoint(), Some(elsewhere));
    // B has data that it owes an answer to.
    let start = net.now;
    net.run_for(secs(11));
    assert_eq!(net.sent(B, "keepalive", start).len(), 1);
}

#[test]
fn a_source_that_is_not_the_peers_is_refused() {
    let mut net = Net::pair(31);
    net.connect();
    let from = net.hosts[A].addr.into();
    let refused = |packet: &[u8], net: &mut Net| pass(net, packet, from).unwrap_err();
    assert_eq!(refused(&ipv4(9, 2, b""), &mut net), NotOpened::WrongSource);
    let (now, wall) = (net.now, net.wall(B));
    let device = &mut net.hosts[B].device;
    assert_eq!(
        device.open(now, wall, from, &mut [4; 40]),
        Err(NotOpened::Invalid)
    );
    let mut unknown = [&[4, 0, 0, 0][..], &[0; 36]].concat();
    assert_eq!(
        device.open(now, wall, from, &mut unknown),
        Err(NotOpened::NoSession)
    );
}

#[test]
fn a_packet_without_a_session_starts_a_handshake() {
    let mut net = Net::pair(32);
    let packet = ipv4(1, 2, b"x");
    let (now, wall) = (net.now, net.wall(A));
    let (device, out) = (&mut net.hosts[A].device, &mut [0; 64]);
    assert!(matches!(
        device.seal(now, wall, &packet, 1420, out),
        Err(NotSealed::NoSession(_))
    ));
    let nowhere = ipv4(1, 77, b"x");
    assert!(matches!(
        device.seal(now, wall, &nowhere, 1420, out),
        Err(NotSealed::NoRoute)
    ));
    let cut = &packet[..19];
    assert!(matches!(
        device.seal(now, wall, cut, 1420, out),
        Err(NotSealed::NotIp)
    ));
    net.drain(A);
    net.run_for(secs(1));
    let from = net.hosts[A].addr.into();
    assert_eq!(pass(&mut net, &packet, from), Ok(packet));
    // A peer without a known address.
    let mut change = peer(2, |_: &mut PeerChange| {});
    change.peers[0].allowed_ips = vec![add("10.0.0.77/32")];
    net.apply(A, &change);
    let sealed = seal(&mut net, &nowhere);
    assert!(matches!(sealed, Err(NotSealed::NoEndpoint(_))));
}

#[test]
fn counters_beyond_32_bits_are_sealed_and_opened() {
    let mut net = Net::pair(33);
    net.connect();
    let session = net.session(A, B);
    for _ in 0..3 {
        session.reserve(net.now, u32::MAX).unwrap();
    }
    let (mut counters, from) = (Vec::new(), net.hosts[A].addr.into());
    for n in 0..3 {
        let packet = ipv4(1, 2, &[n]);
        let sealed = seal(&mut net, &packet);
        let (_, datagram) = sealed.ok().expect("a session");
        counters.push(DataHeader::parse(&datagram).unwrap().counter);
        let opened = open(&mut net, from, &datagram);
        assert_eq!(opened, Ok(packet));
    }
    assert!(counters[0] >= 3 * u64::from(u32::MAX));
    assert!(counters.is_sorted_by(|a, b| a + 1 == *b));
}

#[test]
fn a_peer_cannot_use_an_address_inside_another_peers_block() {
    let mut net = Net::pair(34);
    net.connect();
    // A has all of it but one address, which belongs to a third peer.
    let mut change = peer(A, |peer| peer.allowed_ips = vec![add("10.0.0.0/8")]);
    change
        .peers
        .extend(peer(2, |peer| peer.allowed_ips = vec![add("10.0.0.7/32")]).peers);
    net.apply(B, &change);
    let from = net.hosts[A].addr.into();
    let own = ipv4(6, 2, b"own");
    assert_eq!(pass(&mut net, &own, from), Ok(own.clone()));
    let spoofed = pass(&mut net, &ipv4(7, 2, b"spoofed"), from);
    assert_eq!(spoofed, Err(NotOpened::WrongSource));
}

#[test]
fn an_ipv6_source_is_checked_in_all_its_bits() {
    let mut net = Net::pair(35);
    net.connect();
    net.apply(A, &peer(B, |peer| peer.allowed_ips = vec![add("::/0")]));
    let block = add("fd00::1:0:0:1/128");
    net.apply(B, &peer(A, |peer| peer.allowed_ips = vec![block]));
    let from = net.hosts[A].addr.into();
    let ipv6 = |source: [u16; 8]| {
        let mut packet = vec![0; 40];
        packet[0] = 0x60;
        for (place, word) in packet[8..24].chunks_mut(2).zip(source) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        packet
    };
    let right = [0xfd00, 0, 0, 0, 1, 0, 0, 1];
    assert!(pass(&mut net, &ipv6(right), from).is_ok());
    for bit in 0..128 {
        let mut wrong = right;
        wrong[bit / 16] ^= 1 << (bit % 16);
        let refused = pass(&mut net, &ipv6(wrong), from);
        assert_eq!(refused, Err(NotOpened::WrongSource), "bit {bit}");
    }
}

#[test]
fn a_forged_counter_does_not_move_the_window() {
    let mut net = Net::pair(36);
    net.connect();
    let packet = ipv4(1, 2, b"x");
    let sealed = seal(&mut net, &packet);
    let (_, datagram) = sealed.ok().expect("a session");
    let from = net.hosts[A].addr.into();
    for counter in [1 << 20, u64::MAX >> 1, u64::MAX] {
        let mut forged = datagram.clone();
        forged[8..16].copy_from_slice(&counter.to_le_bytes());
        let refused = open(&mut net, from, &forged);
        // Beyond the last counter, the tag is not even looked at.
        assert!(matches!(
            refused,
            Err(NotOpened::NotAuthentic | NotOpened::Replayed)
        ));
    }
    let opened = open(&mut net, from, &datagram);
    assert_eq!(opened, Ok(packet));
}

#[test]
fn a_buffer_that_is_too_short_is_an_error_and_takes_no_counter() {
    let mut net = Net::pair(37);
    net.connect();
    let sent = net.session(A, B).sent();
    let (now, wall) = (net.now, net.wall(A));
    for len in [1, 20, 100, 1400] {
        let packet = ipv4_of(len);
        for room in [0, 15, 16, 31, 32, sealed_len(packet.len(), 1420) - 1] {
            let sealed = net.hosts[A]
                .device
                .seal(now, wall, &packet, 1420, &mut vec![0; room]);
            assert!(matches!(sealed, Err(NotSealed::NoRoom)), "{room} of {len}");
        }
    }
    assert_eq!(net.session(A, B).sent(), sent);
    let (_, datagram) = seal(&mut net, &ipv4_of(1)).ok().expect("a session");
    assert_eq!(DataHeader::parse(&datagram).unwrap().counter, sent);
}

/// A packet with a payload of so many bytes.
fn ipv4_of(payload: u16) -> Vec<u8> {
    let mut packet = ipv4(1, 2, b"");
    packet[2..4].copy_from_slice(&(20 + payload).to_be_bytes());
    packet.extend((0..payload).map(|n| n.to_le_bytes()[0]));
    packet
}

#[test]
fn packets_of_all_lengths_arrive_in_any_order_and_once() {
    let mut net = Net::pair(38);
    net.connect();
    let from = net.hosts[A].addr.into();
    let lens = (0..300).chain((300..2600).step_by(37));
    let mut sealed = Vec::new();
    for len in lens {
        let packet = ipv4_of(len);
        let (_, datagram) = seal(&mut net, &packet).ok().expect("a session");
        sealed.push((packet, datagram));
    }
    // Late by one, by eight, and not at all.
    sealed[..200].chunks_mut(2).for_each(|pair| pair.reverse());
    sealed[200..]
        .chunks_mut(9)
        .for_each(|some| some.rotate_left(1));
    for (packet, datagram) in &sealed {
        for at in [16, datagram.len() - 1] {
            let mut forged = datagram.clone();
            forged[at] ^= 0x80;
            assert_eq!(open(&mut net, from, &forged), Err(NotOpened::NotAuthentic));
        }
        assert_eq!(open(&mut net, from, datagram).as_ref(), Ok(packet));
        let again = open(&mut net, from, datagram);
        assert_eq!(again, Err(NotOpened::Replayed));
    }
}

#[test]
fn a_datagram_that_is_cut_anywhere_is_refused() {
    let mut net = Net::pair(39);
    net.connect();
    let from = net.hosts[A].addr.into();
    let (_, datagram) = seal(&mut net, &ipv4_of(40)).ok().expect("a session");
    for len in 0..datagram.len() {
        let refused = open(&mut net, from, &datagram[..len]).unwrap_err();
        let expected = if len < 32 {
            NotOpened::Invalid
        } else {
            NotOpened::NotAuthentic
        };
        assert_eq!(refused, expected, "{len} bytes");
    }
    assert_eq!(open(&mut net, from, &datagram), Ok(ipv4_of(40)));
}
