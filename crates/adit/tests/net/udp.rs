//! Datagrams.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use crate::{PATIENCE, pair, pattern, v4, v6};

#[test]
fn datagrams_come_back_as_they_were_sent() {
    let [first, second] = pair();
    let (here, there) = (
        first.bind_udp(0).expect("a port"),
        second.bind_udp(7).expect("a port"),
    );
    for socket in [&here, &there] {
        socket.set_read_timeout(Some(PATIENCE)).expect("a time");
    }
    for (from, to) in [(v4(1), v4(2)), (v6(1), v6(2))] {
        for len in [0, 1, 100, 1372] {
            let sent = pattern(len, 1);
            here.send_to(&sent, SocketAddr::new(to, 7)).expect("sent");
            let mut buffer = [0; 2000];
            let (len, source) = there.recv_from(&mut buffer).expect("a datagram");
            assert_eq!(source, SocketAddr::new(from, here.port()));
            assert_eq!(buffer[..len], sent);
            there.send_to(&buffer[..len], source).expect("sent");
            let (len, source) = here.recv_from(&mut buffer).expect("a datagram");
            assert_eq!(source, SocketAddr::new(to, 7));
            assert_eq!(buffer[..len], sent);
        }
    }
    assert_eq!(second.stats().datagrams_dropped, 0);
}

#[test]
fn datagrams_that_were_merged_are_delivered_one_by_one() {
    let [first, second] = pair();
    let (here, there) = (
        first.bind_udp(0).expect("a port"),
        second.bind_udp(7).expect("a port"),
    );
    there.set_read_timeout(Some(PATIENCE)).expect("a time");
    // The session first: what waits for one is bounded.
    let target = SocketAddr::new(v4(2), 7);
    here.send_to(b"begin", target).expect("sent");
    let mut buffer = [0; 2000];
    there.recv_from(&mut buffer).expect("a datagram");
    for n in 0..100_u8 {
        here.send_to(&[n; 1000], target).expect("sent");
    }
    for n in 0..100_u8 {
        let (len, _) = there.recv_from(&mut buffer).expect("a datagram");
        assert_eq!(buffer[..len], [n; 1000]);
    }
}

#[test]
fn what_cannot_be_sent_is_told() {
    let [first, _second] = pair();
    let socket = first.bind_udp(5).expect("a port");
    let to = SocketAddr::new(v4(2), 7);
    let error = socket.send_to(&[0; 1393], to).expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("1420"), "{error}");
    let taken = first.bind_udp(5).expect_err("it is taken");
    assert!(matches!(taken, adit::net::NetError::PortTaken(5)));
    let short = Some(Duration::from_millis(10));
    socket.set_read_timeout(short).expect("a time");
    let error = socket.recv_from(&mut [0; 10]).expect_err("nothing comes");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    drop(socket);
    // The port is free once the stack has seen that.
    crate::wait_until(|| first.bind_udp(5).is_ok());
}

#[test]
fn a_closed_port_is_told_to_who_asks_for_it() {
    let [first, second] = pair();
    for address in [v4(2), v6(2)] {
        let target = SocketAddr::new(address, 9);
        let socket = first.bind_udp(0).expect("a port");
        socket.set_read_timeout(Some(PATIENCE)).expect("a time");
        socket.tell_unreachable(true);
        socket.send_to(b"anybody", target).expect("sent");
        let error = socket.recv_from(&mut [0; 10]).expect_err("nobody");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        assert!(error.to_string().contains(&target.to_string()), "{error}");
        // By default it is not.
        socket.tell_unreachable(false);
        socket.send_to(b"anybody", target).expect("sent");
        let other = second.bind_udp(0).expect("a port");
        let to = SocketAddr::new(address, other.port());
        socket.send_to(b"you", to).expect("sent");
        other.set_read_timeout(Some(PATIENCE)).expect("a time");
        let (_, from) = other.recv_from(&mut [0; 10]).expect("a datagram");
        other.send_to(b"me", from).expect("sent");
        let mut buffer = [0; 10];
        let (len, _) = socket.recv_from(&mut buffer).expect("a datagram");
        assert_eq!(&buffer[..len], b"me");
    }
}

#[test]
fn a_port_is_free_again_once_its_socket_is_dropped() {
    let [first, second] = pair();
    let there = second.bind_udp(7).expect("a port");
    there.set_read_timeout(Some(PATIENCE)).expect("a time");
    // The session first: what waits for one is bounded.
    let (to, mut buffer) = (SocketAddr::new(v4(2), 7), [0]);
    let begin = first.bind_udp(0).expect("a port");
    begin.send_to(b"b", to).expect("sent");
    there.recv_from(&mut buffer).expect("a datagram");
    for n in 0..200_u8 {
        let here = first.bind_udp(9).expect("it is free");
        // What it sent is not lost over that.
        here.send_to(&[n], to).expect("sent");
        drop(here);
    }
    for n in 0..200_u8 {
        let (_, from) = there.recv_from(&mut buffer).expect("a datagram");
        assert_eq!((buffer, from), ([n], SocketAddr::new(v4(1), 9)));
    }
    let _taken = first.bind_udp(9).expect("it is free");
    let error = first.bind_udp(9).expect_err("it is taken");
    assert!(
        matches!(error, adit::net::NetError::PortTaken(9)),
        "{error}"
    );
}
