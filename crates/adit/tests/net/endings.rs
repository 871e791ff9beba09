//! How connections do not come about, and how they end.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use adit::net::{Net, NetError, TcpStream};

use crate::{PATIENCE, builder, echo, pair, pair_with, v4, v6, wait_until};

fn at(port: u16) -> SocketAddr {
    SocketAddr::new(v4(2), port)
}

#[test]
fn a_port_on_which_nothing_listens_refuses() {
    let [first, _second] = pair();
    for address in [v4(2), v6(2)] {
        let target = SocketAddr::new(address, 9);
        let error = first.connect_tcp(target, PATIENCE).expect_err("refused");
        assert!(
            matches!(error, NetError::Refused(at) if at == target),
            "{error}"
        );
        assert_eq!(
            std::io::Error::from(error).kind(),
            ErrorKind::ConnectionRefused
        );
    }
    wait_until(|| first.stats().connections == 0 && first.stats().reserved == 0);
}

#[test]
fn a_peer_that_is_silent_times_out() {
    let [first, _second] = pair();
    // The peer has that address, and drops what comes to it.
    let target = SocketAddr::new(v4(99), 80);
    let error = first
        .connect_tcp(target, Duration::from_millis(300))
        .expect_err("no answer");
    assert!(matches!(error, NetError::TimedOut(_)), "{error}");
    assert!(error.to_string().contains("10.0.0.99:80"), "{error}");
}

#[test]
fn an_address_of_a_family_that_this_end_lacks_is_told() {
    let only_v4 = Net::builder(crate::config(1, 2, None)).address(v4(1));
    let net = only_v4.start().expect("a network");
    let target = SocketAddr::new(v6(2), 80);
    let error = net.connect_tcp(target, PATIENCE).expect_err("no address");
    assert!(matches!(error, NetError::NoAddress(_)), "{error}");
    for wrong in ["host", "10.0.0.1", "10.0.0.1:x"] {
        let error = net.connect_tcp(wrong, PATIENCE).expect_err("no target");
        assert!(matches!(error, NetError::Target(_)), "{error}");
    }
}

#[test]
fn a_reset_is_an_error_and_an_end_is_none() {
    let [first, second] = pair();
    let listener = second.listen_tcp(7).expect("a port");
    // The other end does not read what this one sent, and goes.
    let mut stream = first.connect_tcp(at(7), PATIENCE).expect("a stream");
    stream.write_all(b"unread").expect("room");
    let mut other = listener.accept().expect("a connection");
    // One byte of it: the others wait where they are.
    other.read_exact(&mut [0]).expect("a byte");
    drop(other);
    let error = stream.read(&mut [0; 10]).expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let error = stream.write(b"more").expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    // It has read all, and goes.
    let mut stream = first.connect_tcp(at(7), PATIENCE).expect("a stream");
    drop(listener.accept().expect("a connection"));
    assert_eq!(stream.read(&mut [0; 10]).expect("an end"), 0);
}

#[test]
fn what_nobody_takes_resets_the_other_end() {
    let [first, second] = pair();
    let listener = second.listen_tcp(7).expect("a port");
    let stream = first.connect_tcp(at(7), PATIENCE).expect("a stream");
    let mut other = listener.accept().expect("a connection");
    drop(stream);
    let mut write = || other.write(&[0; 1000]).err();
    let until = std::time::Instant::now() + PATIENCE;
    let error = std::iter::repeat_with(|| {
        assert!(std::time::Instant::now() < until, "no error");
        write()
    });
    let error = error.flatten().next().expect("an error");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_connection_that_is_dropped_before_it_is_used_is_reset() {
    let [first, second] = pair();
    let listener = second.listen_tcp(7).expect("a port");
    drop(first.open_tcp(at(7), PATIENCE).expect("a connection"));
    let mut other = listener.accept().expect("a connection");
    let error = other.read(&mut [0]).expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_listener_that_is_dropped_resets_who_waits_and_refuses_others() {
    let [first, second] = pair();
    let listener = second.listen_tcp(7).expect("a port");
    let taken = second.listen_tcp(7).expect_err("it is taken");
    assert!(matches!(taken, NetError::PortTaken(7)), "{taken}");
    let mut waiting = first.connect_tcp(at(7), PATIENCE).expect("a stream");
    drop(listener);
    let error = waiting.read(&mut [0]).expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let error = first.connect_tcp(at(7), PATIENCE).expect_err("refused");
    assert!(matches!(error, NetError::Refused(_)), "{error}");
    second.listen_tcp(7).expect("it is free again");
}

#[test]
fn closed_connections_leave_nothing() {
    let [first, second] = pair();
    echo(second.listen_tcp(7).expect("a port"));
    for n in 0..50 {
        let mut stream = first.connect_tcp(at(7), PATIENCE).expect("a stream");
        stream.write_all(b"hello").expect("room");
        if n % 2 == 0 {
            stream.shutdown(Shutdown::Write).expect("it is open");
        }
        let mut back = [0; 5];
        stream.read_exact(&mut back).expect("it comes back");
    }
    for net in [&first, &second] {
        wait_until(|| net.stats().connections == 0);
        assert_eq!(net.stats().reserved, 0);
    }
}

#[test]
fn dropping_a_network_ends_every_call_that_waits() {
    let [first, second] = pair();
    let listener = second.listen_tcp(7).expect("a port");
    let stream = first.connect_tcp(at(7), PATIENCE).expect("a stream");
    let _other = listener.accept().expect("a connection");
    let ports = first.listen_tcp(1).expect("a port");
    let socket = first.bind_udp(1).expect("a port");
    std::thread::scope(|scope| {
        let (stream, ports, socket) = (&stream, &ports, &socket);
        let threads = [
            scope.spawn(move || (&*stream).read(&mut [0]).expect_err("an end")),
            scope.spawn(move || ports.accept().expect_err("an end").into()),
            scope.spawn(move || socket.recv_from(&mut [0; 10]).expect_err("an end")),
        ];
        let connect = first.open_tcp_with(SocketAddr::new(v4(99), 1), PATIENCE, |_| ());
        connect.expect("it is asked for");
        std::thread::sleep(Duration::from_millis(50));
        drop(first);
        for thread in threads {
            let error = thread.join().expect("it ends");
            assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        }
    });
    let error = socket.send_to(b"x", at(1)).expect_err("an end");
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
}

/// Writes until nothing is taken for a while: how much that was.
fn fill(mut stream: &TcpStream) -> usize {
    stream.set_nonblocking(true).expect("it can");
    let (mut filled, mut rests) = (0, 0);
    while rests < 50 {
        match stream.write(&[7; 4096]) {
            Ok(len) => (filled, rests) = (filled + len, 0),
            Err(_) => {
                rests += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
    filled
}

#[test]
fn a_full_budget_refuses_new_connections_and_keeps_the_old() {
    // Enough for two of 7 KiB, and less than one more.
    let [first, second] = pair_with(|builder| builder.budget(17 << 10));
    let listener = second.listen_tcp(7).expect("a port");
    let connect = || first.connect_tcp(at(7), PATIENCE);
    // Each has something to carry, or it would take less.
    let open = || {
        let stream = connect().expect("a stream");
        let filled = fill(&stream);
        (stream, listener.accept().expect("a connection"), filled)
    };
    let [one, two] = [open(), open()];
    let error = connect().expect_err("no memory");
    assert!(matches!(error, NetError::NoMemory), "{error}");
    assert_eq!(first.stats().no_memory, 1);
    for (stream, other, filled) in [one, two] {
        drop(stream);
        let mut came = Vec::new();
        (&other).read_to_end(&mut came).expect("an end");
        assert_eq!(came, vec![7; filled]);
    }
    wait_until(|| first.stats().connections == 0);
    connect().expect("there is room again");
}

#[test]
fn a_full_budget_refuses_those_who_connect() {
    let second = builder(2, 1, None).budget(10 << 10);
    let second = second.start().expect("a network");
    let first = builder(1, 2, Some(crate::endpoint(&second)));
    let first = first.start().expect("a network");
    let listener = second.listen_tcp(7).expect("a port");
    let mut one = first.connect_tcp(at(7), PATIENCE).expect("a stream");
    // What nobody reads takes memory.
    one.write_all(b"unread").expect("room");
    let error = first.connect_tcp(at(7), PATIENCE).expect_err("no memory");
    assert!(matches!(error, NetError::Refused(_)), "{error}");
    drop(listener);
}
