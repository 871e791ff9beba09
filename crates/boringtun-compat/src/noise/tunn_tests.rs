use std::net::Ipv4Addr;
use std::time::Duration;

use super::*;
use crate::noise::handshake::parse_handshake_anon;
use crate::x25519::{PublicKey, StaticSecret};

/// Longer than an initiation waits for its response.
const RETRY: Duration = Duration::from_millis(5400);
/// A peer's initiations are not looked at sooner.
const INITIATION_INTERVAL: Duration = Duration::from_millis(20);
const PREFIXES: [u32; 2] = [0x00ab_cdef, 0xff12_3456];

fn key(n: u8) -> StaticSecret {
    StaticSecret::from([n; 32])
}

fn tunnel(own: u8, peer: u8, preshared: Option<[u8; 32]>, keepalive: Option<u16>) -> Tunn {
    let index = PREFIXES[usize::from(own) % 2];
    let peer = PublicKey::from(&key(peer));
    Tunn::new(key(own), peer, preshared, keepalive, index, None)
}

fn pair() -> [Tunn; 2] {
    [tunnel(2, 1, None, None), tunnel(1, 2, None, None)]
}

#[track_caller]
fn to_network(result: TunnResult<'_>) -> Vec<u8> {
    match result {
        TunnResult::WriteToNetwork(bytes) => bytes.to_vec(),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn to_tunnel(result: TunnResult<'_>) -> Vec<u8> {
    match result {
        TunnResult::WriteToTunnelV4(bytes, source) => {
            assert_eq!(source, Ipv4Addr::new(192, 168, 1, 2));
            bytes.to_vec()
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn is_done(result: TunnResult<'_>) {
    assert!(matches!(result, TunnResult::Done), "{result:?}");
}

#[track_caller]
fn is_error(result: TunnResult<'_>, error: WireGuardError) {
    match result {
        TunnResult::Err(told) => assert_eq!(told, error),
        other => panic!("{other:?}"),
    }
}

/// An IPv4 packet with so much behind its header, which begins with a number.
fn packet(number: u32, payload: usize) -> Vec<u8> {
    let mut packet = vec![0x11; 20 + payload.max(4)];
    let len = u16::try_from(packet.len()).unwrap();
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet[12..20].copy_from_slice(&[192, 168, 1, 2, 192, 168, 1, 3]);
    packet[20..24].copy_from_slice(&number.to_be_bytes());
    packet
}

fn initiation(from: &mut Tunn) -> Vec<u8> {
    to_network(from.format_handshake_initiation(&mut [0; 148], false))
}

/// Shakes hands: what the initiator sends when it has the response.
fn shake(from: &mut Tunn, to: &mut Tunn) -> Vec<u8> {
    let initiation = to_network(from.format_handshake_initiation(&mut [0; 148], true));
    let response = to_network(to.decapsulate(None, &initiation, &mut [0; 148]));
    to_network(from.decapsulate(None, &response, &mut [0; 2048]))
}

fn connected() -> [Tunn; 2] {
    let [mut one, mut two] = pair();
    let keepalive = shake(&mut one, &mut two);
    is_done(two.decapsulate(None, &keepalive, &mut [0; 2048]));
    [one, two]
}

#[track_caller]
fn passes(from: &mut Tunn, to: &mut Tunn, packet: &[u8]) {
    let mut buffer = vec![0; packet.len() + 32];
    let datagram = to_network(from.encapsulate(packet, &mut buffer));
    let mut buffer = vec![0; datagram.len()];
    let came = to_tunnel(to.decapsulate(None, &datagram, &mut buffer));
    assert!(came == packet);
}

#[test]
fn a_handshake_is_initiation_response_and_keepalive() {
    let [mut one, mut two] = pair();
    let sent = initiation(&mut one);
    assert!(matches!(
        Tunn::parse_incoming_packet(&sent),
        Ok(Packet::HandshakeInit(_))
    ));
    // One is under way.
    is_done(one.format_handshake_initiation(&mut [0; 148], false));
    let response = to_network(two.decapsulate(None, &sent, &mut [0; 148]));
    assert!(matches!(
        Tunn::parse_incoming_packet(&response),
        Ok(Packet::HandshakeResponse(_))
    ));
    assert_eq!(two.time_since_last_handshake(), None);
    let keepalive = to_network(one.decapsulate(None, &response, &mut [0; 148]));
    assert!(matches!(
        Tunn::parse_incoming_packet(&keepalive),
        Ok(Packet::PacketData(_))
    ));
    is_done(one.decapsulate(None, &[], &mut [0; 148]));
    is_done(two.decapsulate(None, &keepalive, &mut [0; 148]));
    for tunnel in [&mut one, &mut two] {
        is_done(tunnel.update_timers(&mut []));
        assert!(tunnel.time_since_last_handshake().is_some());
    }
}

#[test]
fn packets_arrive_as_they_were_sent() {
    let [mut one, mut two] = connected();
    for len in [4, 12, 13, 100, 1240, 1260, 1400, 9000, 65_000] {
        passes(&mut one, &mut two, &packet(1, len));
        passes(&mut two, &mut one, &packet(2, len));
    }
    let mut v6 = vec![0; 44];
    (v6[0], v6[5]) = (0x60, 4);
    v6[8..24].copy_from_slice(&std::net::Ipv6Addr::LOCALHOST.octets());
    let datagram = to_network(one.encapsulate(&v6, &mut [0; 2048]));
    match two.decapsulate(None, &datagram, &mut [0; 2048]) {
        TunnResult::WriteToTunnelV6(came, source) => {
            assert_eq!((&*came, source), (&*v6, std::net::Ipv6Addr::LOCALHOST));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn packets_are_padded_as_far_as_every_path_takes_it_and_the_buffer_does() {
    let [mut one, _] = connected();
    let mut sealed = |packet: &[u8], room| {
        let mut buffer = vec![0; room];
        to_network(one.encapsulate(packet, &mut buffer)).len()
    };
    assert_eq!(sealed(&packet(1, 13), 2048), 48 + 32);
    assert_eq!(sealed(&packet(1, 13), 33 + 32), 33 + 32);
    assert_eq!(sealed(&packet(1, 1255), 2048), 1280 + 32);
    assert_eq!(sealed(&packet(1, 1393), 2048), 1413 + 32);
}

#[test]
fn packets_that_waited_leave_in_their_order() {
    let [mut one, mut two] = pair();
    let sent = to_network(one.encapsulate(&packet(0, 8), &mut [0; 2048]));
    for number in 1..5 {
        is_done(one.encapsulate(&packet(number, 8), &mut [0; 2048]));
    }
    let response = to_network(two.decapsulate(None, &sent, &mut [0; 2048]));
    // The first of them confirms the session: no keepalive has to.
    let mut datagrams = vec![to_network(one.decapsulate(None, &response, &mut [0; 2048]))];
    // A new one waits for its turn.
    datagrams.push(to_network(one.encapsulate(&packet(5, 8), &mut [0; 2048])));
    loop {
        match one.decapsulate(None, &[], &mut [0; 2048]) {
            TunnResult::Done => break,
            result => datagrams.push(to_network(result)),
        }
    }
    assert_eq!(datagrams.len(), 6);
    for (number, datagram) in datagrams.iter().enumerate() {
        let came = to_tunnel(two.decapsulate(None, datagram, &mut [0; 2048]));
        assert_eq!(came, packet(u32::try_from(number).unwrap(), 8));
    }
}

#[test]
fn of_too_many_packets_that_wait_the_oldest_are_dropped() {
    let [mut one, mut two] = pair();
    let sent = to_network(one.encapsulate(&packet(0, 8), &mut [0; 2048]));
    for number in 1..300 {
        is_done(one.encapsulate(&packet(number, 8), &mut [0; 2048]));
    }
    let response = to_network(two.decapsulate(None, &sent, &mut [0; 2048]));
    let mut result = to_network(one.decapsulate(None, &response, &mut [0; 2048]));
    for number in 300 - 256..300 {
        let came = to_tunnel(two.decapsulate(None, &result, &mut [0; 2048]));
        assert_eq!(came, packet(number, 8));
        if number < 299 {
            result = to_network(one.decapsulate(None, &[], &mut [0; 2048]));
        }
    }
    is_done(one.decapsulate(None, &[], &mut [0; 2048]));
}

#[test]
fn an_initiation_that_is_not_answered_is_repeated_and_given_up_after_90_seconds() {
    let [mut one, mut two] = pair();
    let mut sent = to_network(one.encapsulate(&packet(0, 8), &mut [0; 2048]));
    let mut initiations = 1;
    loop {
        is_done(one.update_timers(&mut [0; 148]));
        one.clock.advance(RETRY);
        match one.update_timers(&mut [0; 148]) {
            TunnResult::Err(error) => {
                assert_eq!(error, WireGuardError::ConnectionExpired);
                break;
            }
            result => sent = to_network(result),
        }
        initiations += 1;
    }
    assert_eq!(initiations, 17, "as many as fit 90 seconds");
    assert!(one.is_expired());
    is_error(
        one.update_timers(&mut [0; 148]),
        WireGuardError::ConnectionExpired,
    );
    // What comes too late is refused, and the packet is gone.
    let response = to_network(two.decapsulate(None, &sent, &mut [0; 148]));
    is_error(
        one.decapsulate(None, &response, &mut [0; 148]),
        WireGuardError::UnexpectedPacket,
    );
    // A new packet begins anew.
    two.clock.advance(INITIATION_INTERVAL);
    let sent = to_network(one.encapsulate(&packet(1, 8), &mut [0; 2048]));
    assert!(!one.is_expired());
    let response = to_network(two.decapsulate(None, &sent, &mut [0; 148]));
    let data = to_network(one.decapsulate(None, &response, &mut [0; 148]));
    let came = to_tunnel(two.decapsulate(None, &data, &mut [0; 148]));
    assert_eq!(came, packet(1, 8));
}

#[test]
fn the_initiator_that_sends_after_two_minutes_begins_a_handshake() {
    let [mut one, mut two] = connected();
    for tunnel in [&mut one, &mut two] {
        tunnel.clock.advance(Duration::from_secs(121));
    }
    is_done(one.update_timers(&mut [0; 148]));
    passes(&mut two, &mut one, &packet(1, 8));
    is_done(two.update_timers(&mut [0; 148]));
    passes(&mut one, &mut two, &packet(1, 8));
    let sent = to_network(one.update_timers(&mut [0; 148]));
    assert!(matches!(
        Tunn::parse_incoming_packet(&sent),
        Ok(Packet::HandshakeInit(_))
    ));
    let response = to_network(two.decapsulate(None, &sent, &mut [0; 148]));
    // Meanwhile the old session is used.
    passes(&mut two, &mut one, &packet(1, 8));
    let keepalive = to_network(one.decapsulate(None, &response, &mut [0; 148]));
    is_done(two.decapsulate(None, &keepalive, &mut [0; 148]));
    assert!(one.time_since_last_handshake().unwrap() < Duration::from_secs(60));
    passes(&mut two, &mut one, &packet(1, 8));
}

#[test]
fn a_session_ends_after_three_minutes_and_is_forgotten_after_nine() {
    let [mut one, mut two] = connected();
    let old = to_network(two.encapsulate(&packet(1, 8), &mut [0; 2048]));
    one.clock.advance(Duration::from_secs(181));
    is_done(one.update_timers(&mut [0; 148]));
    assert_eq!(one.time_since_last_handshake(), None);
    is_error(
        one.decapsulate(None, &old, &mut [0; 2048]),
        WireGuardError::NoCurrentSession,
    );
    one.clock.advance(Duration::from_secs(360));
    is_error(
        one.update_timers(&mut [0; 148]),
        WireGuardError::ConnectionExpired,
    );
    let sent = to_network(one.encapsulate(&packet(1, 8), &mut [0; 2048]));
    assert!(matches!(
        Tunn::parse_incoming_packet(&sent),
        Ok(Packet::HandshakeInit(_))
    ));
}

#[test]
fn a_keepalive_answers_data_after_ten_seconds() {
    let [mut one, mut two] = connected();
    passes(&mut one, &mut two, &packet(1, 8));
    two.clock.advance(Duration::from_secs(11));
    let keepalive = to_network(two.update_timers(&mut [0; 148]));
    is_done(one.decapsulate(None, &keepalive, &mut [0; 148]));
    is_done(two.update_timers(&mut [0; 148]));
}

#[test]
fn a_persistent_keepalive_is_sent_each_time_that_it_is_due() {
    let [mut one, mut two] = [tunnel(2, 1, None, Some(25)), tunnel(1, 2, None, None)];
    assert_eq!(
        (one.persistent_keepalive(), two.persistent_keepalive()),
        (Some(25), None)
    );
    let keepalive = shake(&mut one, &mut two);
    is_done(two.decapsulate(None, &keepalive, &mut [0; 148]));
    while let TunnResult::WriteToNetwork(_) = one.update_timers(&mut [0; 148]) {}
    for _ in 0..3 {
        one.clock.advance(Duration::from_secs(24));
        is_done(one.update_timers(&mut [0; 148]));
        one.clock.advance(Duration::from_secs(1));
        let keepalive = to_network(one.update_timers(&mut [0; 148]));
        is_done(two.decapsulate(None, &keepalive, &mut [0; 148]));
    }
    // One that the caller asks for.
    let keepalive = to_network(one.encapsulate(&[], &mut [0; 148]));
    is_done(two.decapsulate(None, &keepalive, &mut [0; 148]));
}

#[test]
fn all_indices_have_the_prefix_of_the_caller() {
    let [mut one, mut two] = pair();
    two.limiter = Arc::new(RateLimiter::new(&PublicKey::from(&key(1)), u64::MAX));
    let [first, second] = PREFIXES.map(|prefix| prefix & 0x00ff_ffff);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..300 {
        let sent = to_network(one.format_handshake_initiation(&mut [0; 148], true));
        let Ok(Packet::HandshakeInit(init)) = Tunn::parse_incoming_packet(&sent) else {
            panic!()
        };
        assert_eq!(init.sender_idx >> 8, first);
        two.clock.advance(INITIATION_INTERVAL);
        let response = to_network(two.decapsulate(None, &sent, &mut [0; 148]));
        let Ok(Packet::HandshakeResponse(response)) = Tunn::parse_incoming_packet(&response) else {
            panic!()
        };
        assert_eq!(response.receiver_idx, init.sender_idx);
        assert_eq!(response.sender_idx >> 8, second);
        seen.insert(response.sender_idx);
    }
    assert!(seen.len() > 100);
}

#[test]
fn what_is_wrong_is_told_and_changes_nothing() {
    let [mut one, mut two] = connected();
    let datagram = to_network(one.encapsulate(&packet(1, 8), &mut [0; 2048]));
    let mut wrong = |datagram: &[u8], error| {
        is_error(two.decapsulate(None, datagram, &mut [0; 2048]), error);
    };
    let mut damaged = datagram.clone();
    damaged[20] ^= 1;
    wrong(&damaged, WireGuardError::InvalidAeadTag);
    let mut other_index = datagram.clone();
    other_index[7] ^= 1;
    wrong(&other_index, WireGuardError::NoCurrentSession);
    wrong(&datagram[..31], WireGuardError::InvalidPacket);
    wrong(b"GET / HTTP/1.1", WireGuardError::InvalidPacket);
    // Of another peer, and to another one.
    let sent = initiation(&mut tunnel(3, 1, None, None));
    wrong(&sent, WireGuardError::WrongKey);
    let sent = initiation(&mut tunnel(2, 4, None, None));
    wrong(&sent, WireGuardError::InvalidMac);
    two.clock.advance(INITIATION_INTERVAL);
    let sent = initiation(&mut one);
    let response = to_network(two.decapsulate(None, &sent, &mut [0; 2048]));
    is_error(
        two.decapsulate(None, &sent, &mut [0; 2048]),
        WireGuardError::WrongTai64nTimestamp,
    );
    let keepalive = to_network(one.decapsulate(None, &response, &mut [0; 2048]));
    is_error(
        one.decapsulate(None, &response, &mut [0; 2048]),
        WireGuardError::UnexpectedPacket,
    );
    // A peer's initiations cost a bounded time.
    let sent = to_network(one.format_handshake_initiation(&mut [0; 148], true));
    is_error(
        two.decapsulate(None, &sent, &mut [0; 2048]),
        WireGuardError::UnderLoad,
    );
    // All of it is still there, once.
    to_tunnel(two.decapsulate(None, &datagram, &mut [0; 2048]));
    is_error(
        two.decapsulate(None, &datagram, &mut [0; 2048]),
        WireGuardError::DuplicateCounter,
    );
    is_done(two.decapsulate(None, &keepalive, &mut [0; 2048]));
    is_error(
        one.encapsulate(b"no packet", &mut [0; 2048]),
        WireGuardError::InvalidPacket,
    );
}

#[test]
fn a_buffer_that_is_too_small_is_an_error_and_nothing_is_lost() {
    let [mut one, mut two] = pair();
    let small = WireGuardError::DestinationBufferTooSmall;
    is_error(one.encapsulate(&packet(1, 8), &mut [0; 147]), small);
    let sent = to_network(one.update_timers(&mut [0; 148]));
    is_error(two.decapsulate(None, &sent, &mut [0; 91]), small);
    let response = to_network(two.decapsulate(None, &[], &mut [0; 92]));
    is_error(one.decapsulate(None, &response, &mut [0; 31]), small);
    let data = to_network(one.decapsulate(None, &[], &mut [0; 64]));
    is_error(two.decapsulate(None, &data, &mut [0; 30]), small);
    let came = to_tunnel(two.decapsulate(None, &data, &mut [0; 48]));
    assert_eq!(came, packet(1, 8));
    is_error(two.encapsulate(&packet(1, 8), &mut [0; 59]), small);
}

#[test]
fn preshared_keys_have_to_be_the_same() {
    let (key, other) = (Some([7; 32]), Some([8; 32]));
    let [mut one, mut two] = [tunnel(2, 1, key, None), tunnel(1, 2, key, None)];
    let keepalive = shake(&mut one, &mut two);
    is_done(two.decapsulate(None, &keepalive, &mut [0; 148]));
    let [mut one, mut two] = [tunnel(2, 1, key, None), tunnel(1, 2, other, None)];
    let sent = initiation(&mut one);
    let response = to_network(two.decapsulate(None, &sent, &mut [0; 148]));
    is_error(
        one.decapsulate(None, &response, &mut [0; 148]),
        WireGuardError::InvalidAeadTag,
    );
}

#[test]
fn our_own_key_is_no_peers() {
    let mut tunnel = tunnel(2, 2, None, None);
    let wrong = WireGuardError::WrongKey;
    is_error(tunnel.encapsulate(&packet(1, 8), &mut [0; 148]), wrong);
    is_error(tunnel.encapsulate(&[], &mut [0; 148]), wrong);
    is_error(
        tunnel.format_handshake_initiation(&mut [0; 148], true),
        wrong,
    );
    is_done(tunnel.update_timers(&mut []));
}

#[test]
fn another_private_key_takes_a_new_handshake() {
    let [mut one, _] = connected();
    one.set_static_private(key(5), PublicKey::from(&key(5)), None);
    assert_eq!(one.time_since_last_handshake(), None);
    let sent = to_network(one.encapsulate(&packet(1, 8), &mut [0; 148]));
    let mut two = tunnel(1, 5, None, None);
    let response = to_network(two.decapsulate(None, &sent, &mut [0; 148]));
    let data = to_network(one.decapsulate(None, &response, &mut [0; 148]));
    to_tunnel(two.decapsulate(None, &data, &mut [0; 148]));
}

#[test]
fn stats_count_the_bytes_of_packets() {
    let [mut one, mut two] = connected();
    assert_eq!(one.stats().1, 0);
    for number in 0..10 {
        let datagram = to_network(one.encapsulate(&packet(number, 8), &mut [0; 2048]));
        if number % 2 == 0 {
            two.decapsulate(None, &datagram, &mut [0; 2048]);
        }
    }
    let (since, tx_bytes, rx_bytes, loss, latency) = one.stats();
    assert!(since.is_some() && latency.is_some());
    assert_eq!((tx_bytes, rx_bytes, loss), (280, 0, 0.0));
    let (since, tx_bytes, rx_bytes, loss, latency) = two.stats();
    assert!(since.is_some() && latency.is_none());
    assert_eq!((tx_bytes, rx_bytes), (0, 140));
    // Six of the ten that are known of came: the last was lost, and the first was a keepalive.
    assert!((loss - 0.4).abs() < 0.01, "{loss}");
}

#[test]
fn the_destination_of_a_packet_is_where_its_header_says() {
    assert_eq!(
        Tunn::dst_address(&packet(1, 8)),
        Some([192, 168, 1, 3].into())
    );
    assert_eq!(Tunn::dst_address(&packet(1, 8)[..19]), None);
    let mut v6 = [0; 40];
    (v6[0], v6[39]) = (0x60, 1);
    assert_eq!(
        Tunn::dst_address(&v6),
        Some(std::net::Ipv6Addr::LOCALHOST.into())
    );
    assert_eq!(Tunn::dst_address(&[]), None);
    assert_eq!(Tunn::dst_address(&[0; 100]), None);
}

#[test]
fn an_initiation_shows_whose_it_is() {
    let sent = initiation(&mut tunnel(2, 1, None, None));
    let Ok(Packet::HandshakeInit(init)) = Tunn::parse_incoming_packet(&sent) else {
        panic!()
    };
    let shown = parse_handshake_anon(&key(1), &PublicKey::from(&key(1)), &init).unwrap();
    assert_eq!(shown.peer_index, init.sender_idx);
    assert_eq!(
        shown.peer_static_public,
        PublicKey::from(&key(2)).to_bytes()
    );
    let other = parse_handshake_anon(&key(3), &PublicKey::from(&key(3)), &init);
    assert_eq!(other.err(), Some(WireGuardError::InvalidAeadTag));
}

#[test]
fn under_load_a_sender_proves_its_address_with_a_cookie() {
    let address = Some([192, 0, 2, 7].into());
    let public = PublicKey::from(&key(1));
    let limiter = Arc::new(RateLimiter::new(&public, 0));
    let [mut one, _] = pair();
    let mut two = Tunn::new(
        key(1),
        PublicKey::from(&key(2)),
        None,
        None,
        1,
        Some(limiter),
    );
    let sent = initiation(&mut one);
    is_error(
        two.decapsulate(None, &sent, &mut [0; 148]),
        WireGuardError::UnderLoad,
    );
    let reply = to_network(two.decapsulate(address, &sent, &mut [0; 148]));
    assert!(matches!(
        Tunn::parse_incoming_packet(&reply),
        Ok(Packet::PacketCookieReply(_))
    ));
    is_done(one.decapsulate(None, &reply, &mut [0; 148]));
    let sent = to_network(one.format_handshake_initiation(&mut [0; 148], true));
    // The cookie is of this address.
    let other = Some([192, 0, 2, 8].into());
    let reply = to_network(two.decapsulate(other, &sent, &mut [0; 148]));
    assert_eq!(reply.len(), 64);
    let response = to_network(two.decapsulate(address, &sent, &mut [0; 148]));
    assert_eq!(response.len(), 92);
    to_network(one.decapsulate(None, &response, &mut [0; 148]));
}
