//! Sockets of a program that are joined to connections.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::mpsc::channel;

use adit::net::NetError;

use crate::{PATIENCE, echo, pair, pattern, v4, wait_until};

/// Two ends of a TCP connection of the host.
fn host_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let one = TcpStream::connect(address).expect("a stream");
    one.set_read_timeout(Some(PATIENCE)).expect("a time");
    (one, listener.accept().expect("a connection").0)
}

#[test]
fn a_clients_socket_is_carried_with_all_that_it_says() {
    let [first, second] = pair();
    echo(second.listen_tcp(7).expect("a port"));
    let target = SocketAddr::new(v4(2), 7);
    let (client, socket) = host_pair();
    let connection = first.open_tcp(target, PATIENCE).expect("a connection");
    // What a proxy says before it carries anything.
    (&socket).write_all(b"connected\n").expect("room");
    connection.join(OwnedFd::from(socket)).expect("a socket");
    let sent = pattern(8 << 20, 1);
    let mut back = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (&client).write_all(&sent).expect("room");
            client.shutdown(Shutdown::Write).expect("it is open");
        });
        (&client).read_to_end(&mut back).expect("an end");
    });
    assert_eq!(&back[..10], b"connected\n");
    assert!(back[10..] == sent);
    wait_until(|| first.stats().connections == 0);
}

#[test]
fn what_the_other_end_said_before_is_not_lost() {
    let [first, second] = pair();
    let listener = second.listen_tcp(7).expect("a port");
    let target = SocketAddr::new(v4(2), 7);
    let connection = first.open_tcp(target, PATIENCE).expect("a connection");
    let mut server = listener.accept().expect("a connection");
    server.write_all(b"220 hello\r\n").expect("room");
    let before = first.tunnel().stats().pushed;
    wait_until(|| first.tunnel().stats().pushed > before || before > 1);
    let (mut client, socket) = host_pair();
    connection.join(OwnedFd::from(socket)).expect("a socket");
    drop(server);
    let mut banner = String::new();
    client.read_to_string(&mut banner).expect("an end");
    assert_eq!(banner, "220 hello\r\n");
}

#[test]
fn an_accepted_connection_is_carried_to_a_socket() {
    let [first, second] = pair();
    let listener = second.listen_tcp(7).expect("a port");
    let target = SocketAddr::new(v4(2), 7);
    let mut stream = first.connect_tcp(target, PATIENCE).expect("a stream");
    let mut accepted = None;
    wait_until(|| {
        accepted = accepted
            .take()
            .or(listener.try_accept().expect("it listens"));
        accepted.is_some()
    });
    let (mut service, socket) = host_pair();
    let connection = accepted.expect("a connection");
    assert_eq!(connection.peer_addr().ip(), v4(1));
    connection.join(OwnedFd::from(socket)).expect("a socket");
    stream.write_all(b"to the service").expect("room");
    let mut came = [0; 14];
    service.read_exact(&mut came).expect("all of it");
    assert_eq!(&came, b"to the service");
    service.write_all(b"and back").expect("room");
    let mut came = [0; 8];
    stream.read_exact(&mut came).expect("all of it");
    assert_eq!(&came, b"and back");
}

#[test]
fn a_reset_reaches_the_clients_socket_and_that_of_the_client_the_other_end() {
    let [first, second] = pair();
    let listener = second.listen_tcp(7).expect("a port");
    let target = SocketAddr::new(v4(2), 7);
    let joined = || {
        let (client, socket) = host_pair();
        let connection = first.open_tcp(target, PATIENCE).expect("a connection");
        connection.join(OwnedFd::from(socket)).expect("a socket");
        (client, listener.accept().expect("a connection"))
    };
    let (mut client, mut server) = joined();
    client.write_all(b"unread").expect("room");
    // One byte of it: the others wait where they are.
    server.read_exact(&mut [0]).expect("a byte");
    drop(server);
    let error = client.read(&mut [0]).expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    // A client that goes with something unread resets.
    let (client, mut server) = joined();
    server.write_all(b"unread").expect("room");
    client.peek(&mut [0]).expect("it comes");
    drop(client);
    let error = server.read(&mut [0]).expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_network_that_ends_resets_what_is_not_complete() {
    for is_complete in [false, true] {
        let [first, second] = pair();
        let listener = second.listen_tcp(7).expect("a port");
        let target = SocketAddr::new(v4(2), 7);
        let (mut client, socket) = host_pair();
        let connection = first.open_tcp(target, PATIENCE).expect("a connection");
        connection.join(OwnedFd::from(socket)).expect("a socket");
        let mut server = listener.accept().expect("a connection");
        server.write_all(b"part").expect("room");
        client.read_exact(&mut [0; 4]).expect("it comes");
        if is_complete {
            server.shutdown(Shutdown::Write).expect("it is open");
            assert_eq!(client.peek(&mut [0]).expect("an end"), 0);
        }
        drop(first);
        let read = client.read(&mut [0]);
        match is_complete {
            true => assert_eq!(read.expect("an end"), 0),
            false => assert_eq!(
                read.expect_err("a reset").kind(),
                ErrorKind::ConnectionReset
            ),
        }
    }
}

#[test]
fn what_is_no_stream_socket_is_refused() {
    let [first, second] = pair();
    echo(second.listen_tcp(7).expect("a port"));
    let target = SocketAddr::new(v4(2), 7);
    let file = std::fs::File::open("/dev/null").expect("it is there");
    let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for wrong in [OwnedFd::from(file), OwnedFd::from(datagrams)] {
        let connection = first.open_tcp(target, PATIENCE).expect("a connection");
        let error = connection.join(wrong).expect_err("no stream");
        assert!(matches!(error, NetError::NoStream(_)), "{error}");
    }
    wait_until(|| first.stats().connections == 0);
}

#[test]
fn who_asks_without_waiting_is_called_with_what_came_of_it() {
    let [first, second] = pair();
    echo(second.listen_tcp(7).expect("a port"));
    let (sender, outcome) = channel();
    for port in [7, 9] {
        let sender = sender.clone();
        let target = SocketAddr::new(v4(2), port);
        let then = move |opened: Result<adit::net::Connection, NetError>| {
            sender.send((port, opened)).expect("the test waits");
        };
        first
            .open_tcp_with(target, PATIENCE, then)
            .expect("it is asked for");
    }
    for _ in 0..2 {
        match outcome.recv_timeout(PATIENCE).expect("an outcome") {
            (7, opened) => {
                let (mut client, socket) = host_pair();
                let joined = opened.expect("a connection").join(socket.into());
                joined.expect("a socket");
                client.write_all(b"hello").expect("room");
                let mut back = [0; 5];
                client.read_exact(&mut back).expect("all of it");
            }
            (_, refused) => {
                let error = refused.expect_err("refused");
                assert!(matches!(error, NetError::Refused(_)), "{error}");
            }
        }
    }
}
