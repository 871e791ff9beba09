//! What a network answers to packets that are none of its connections', and what ICMP tells it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::mpsc::channel as results;
use std::time::Duration;

use adit::net::{Net, NetError};
use adit::{ChannelEnd, Packet, Tunnel, channel};

use crate::{PATIENCE, builder, config, pair, v4, v6, wait_until};

/// A network, and a tunnel whose packets the test has.
fn beside_packets() -> (Net, Tunnel, ChannelEnd) {
    let (io, end) = channel(1 << 20);
    let second = Tunnel::builder(config(2, 1, None)).packets(io).start();
    let second = second.expect("a tunnel");
    let port = second.status().expect("a status").listen_port;
    let endpoint = SocketAddr::from(([127, 0, 0, 1], port));
    let net = builder(1, 2, Some(endpoint)).start().expect("a network");
    // The other end learns where it is: with a datagram that nobody takes.
    let socket = net.bind_udp(0).expect("a port");
    let to = SocketAddr::new(v4(2), 1);
    socket.send_to(b"hello", to).expect("sent");
    end.recv(PATIENCE).expect("a packet");
    (net, second, end)
}

fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2);
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(word.get(1).copied().unwrap_or(0)))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((sum & 0xffff) + (sum >> 16)).expect("folded")
}

/// A packet of IPv4 from 10.0.0.2 to 10.0.0.1.
fn packet(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(20 + payload.len())
        .expect("short")
        .to_be_bytes();
    let mut packet = vec![
        0x45, 0, high, low, 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1,
    ];
    let checksum = sum(&packet).to_be_bytes();
    packet[10..12].copy_from_slice(&checksum);
    packet.extend(payload);
    packet
}

fn icmp(kind: u8, code: u8, rest: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, code, 0, 0];
    message.extend(rest);
    message.extend(payload);
    let checksum = sum(&message).to_be_bytes();
    message[2..4].copy_from_slice(&checksum);
    packet(1, &message)
}

fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
    let [high, low] = port.to_be_bytes();
    let len = u8::try_from(8 + payload.len()).expect("short");
    let mut datagram = vec![0, 9, high, low, 0, len, 0, 0];
    datagram.extend(payload);
    packet(17, &datagram)
}

#[test]
fn it_answers_echo_requests() {
    let (_net, _tunnel, end) = beside_packets();
    let request = icmp(8, 0, [0, 1, 0, 2], b"anybody there");
    end.send(Packet::new(request)).expect("room");
    let reply = end.recv(PATIENCE).expect("a reply").bytes;
    assert_eq!(reply[12..20], [10, 0, 0, 1, 10, 0, 0, 2]);
    assert_eq!(
        reply[20..],
        icmp(0, 0, [0, 1, 0, 2], b"anybody there")[20..]
    );
    assert_eq!(sum(&reply[..20]), 0);
}

#[test]
fn a_datagram_to_a_closed_port_is_answered_by_icmp() {
    let (_net, _tunnel, end) = beside_packets();
    let sent = udp(9, b"anybody");
    end.send(Packet::new(sent.clone())).expect("room");
    let error = end.recv(PATIENCE).expect("an error").bytes;
    assert_eq!(error[9], 1);
    assert_eq!(error[20..22], [3, 3]);
    assert_eq!(sum(&error[20..]), 0);
    assert_eq!(error[28..], sent);
}

#[test]
fn a_router_that_says_unreachable_ends_the_attempt() {
    let (net, _tunnel, end) = beside_packets();
    let (sender, outcome) = results();
    let target = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 80);
    let then = move |opened: Result<_, NetError>| {
        let _ = sender.send(opened.map(drop));
    };
    net.open_tcp_with(target, PATIENCE, then)
        .expect("asked for");
    let syn = end.recv(PATIENCE).expect("a SYN").bytes;
    assert_eq!(syn[9], 6);
    // Of another connection: nothing happens.
    let mut other = syn.clone();
    other[21] ^= 1;
    end.send(Packet::new(icmp(3, 1, [0; 4], &other[..28])))
        .expect("room");
    end.send(Packet::new(icmp(3, 1, [0; 4], &syn[..28])))
        .expect("room");
    let error = outcome.recv_timeout(PATIENCE).expect("an outcome");
    let error = error.expect_err("no way there");
    assert!(
        matches!(error, NetError::Unreachable(at) if at == target),
        "{error}"
    );
}

/// A packet that says to come from another host.
fn from(host: u8, mut packet: Vec<u8>) -> Vec<u8> {
    packet[15] = host;
    packet[10..12].fill(0);
    let checksum = sum(&packet[..20]).to_be_bytes();
    packet[10..12].copy_from_slice(&checksum);
    packet
}

#[test]
fn a_ping_takes_the_answer_to_its_own_request_alone() {
    let (net, _tunnel, end) = beside_packets();
    let numbers = |request: &[u8]| *request[24..].first_chunk::<4>().expect("a header");
    let send = |packet: Vec<u8>| end.send(Packet::new(packet)).expect("room");
    std::thread::scope(|scope| {
        let pings = [(); 2].map(|()| scope.spawn(|| net.ping(v4(2), PATIENCE)));
        let [one, other] = [(); 2].map(|()| end.recv(PATIENCE).expect("a request").bytes);
        assert_eq!((one[9], &one[20..22]), (1, &[8, 0][..]));
        assert_eq!((sum(&one[..20]), sum(&one[20..])), (0, 0));
        assert_ne!(numbers(&one), numbers(&other));
        // Of another host, and with another identifier or sequence number.
        send(from(99, icmp(0, 0, numbers(&one), b"")));
        for changed in [1, 3] {
            let mut wrong = numbers(&one);
            wrong[changed] ^= 0x80;
            send(icmp(0, 0, wrong, b""));
        }
        // A packet later all of these were looked at.
        send(icmp(8, 0, [9; 4], b""));
        assert_eq!(end.recv(PATIENCE).expect("a reply").bytes[24..28], [9; 4]);
        assert!(pings.iter().all(|ping| !ping.is_finished()));
        // A host on the way knows no way there.
        send(from(99, icmp(3, 1, [0; 4], &one[..28])));
        wait_until(|| pings.iter().any(std::thread::ScopedJoinHandle::is_finished));
        assert!(pings.iter().any(|ping| !ping.is_finished()));
        send(icmp(0, 0, numbers(&other), b""));
        let outcomes = pings.map(|ping| ping.join().expect("it ends"));
        assert_eq!(outcomes.iter().flatten().count(), 1);
        let mut failed = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
        let error = failed.next().expect("one failed");
        assert!(matches!(error, NetError::Unreachable(_)), "{error}");
        assert!(error.to_string().starts_with("10.0.0.2 "), "{error}");
    });
}

#[test]
fn pings_pass_both_ways_and_one_without_an_answer_ends_in_time() {
    let [first, second] = pair();
    for address in [v4(2), v6(2)] {
        first.ping(address, PATIENCE).expect("an answer");
    }
    for address in [v4(1), v6(1)] {
        second.ping(address, PATIENCE).expect("an answer");
    }
    // Nobody is there.
    let error = first.ping(v4(99), Duration::from_millis(50));
    let error = error.expect_err("no answer");
    assert!(matches!(error, NetError::TimedOut(_)), "{error}");
}

#[test]
fn a_ping_needs_an_address_of_its_family() {
    let builder = Net::builder(config(1, 2, None)).address(v4(1));
    let net = builder.start().expect("a network");
    let error = net.ping(v6(2), PATIENCE).expect_err("no address");
    assert!(matches!(error, NetError::NoAddress(_)), "{error}");
}

#[test]
fn what_is_not_for_it_is_counted_and_not_answered() {
    let (net, _tunnel, end) = beside_packets();
    let send = |packet: Vec<u8>| end.send(Packet::new(packet)).expect("room");
    // A fragment.
    let mut fragment = udp(9, b"part");
    fragment[6] = 0x20;
    fragment[10..12].fill(0);
    let checksum = sum(&fragment[..20]).to_be_bytes();
    fragment[10..12].copy_from_slice(&checksum);
    send(fragment);
    wait_until(|| net.stats().fragments == 1);
    // A checksum that is wrong.
    let mut wrong = icmp(8, 0, [0; 4], b"text");
    *wrong.last_mut().expect("bytes") ^= 1;
    send(wrong);
    wait_until(|| net.stats().malformed == 1);
    // A protocol that it does not speak.
    send(packet(132, &[0; 20]));
    wait_until(|| net.stats().not_ours == 1);
    // A segment that is shorter than it says.
    let mut short = [0; 20];
    short[12] = 0xf0;
    send(packet(6, &short));
    wait_until(|| net.stats().malformed == 2);
    // Nothing of it was answered: the next that comes is the answer to this.
    send(icmp(8, 0, [9; 4], b""));
    let reply = end.recv(PATIENCE).expect("a reply").bytes;
    assert_eq!((reply[9], &reply[24..28]), (1, &[9; 4][..]));
}
