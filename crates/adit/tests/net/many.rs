//! Many connections at once.

use std::io::{Read, Write};
use std::net::SocketAddr;

use adit::net::TcpStream;

use crate::{PATIENCE, pair_with, v4, wait_until};

#[test]
fn a_thousand_connections_are_open_at_once_and_each_is_answered() {
    const COUNT: usize = 1_000;
    let [first, second] = pair_with(|builder| builder);
    let listener = second.listen_tcp(7).expect("a port");
    let target = SocketAddr::new(v4(2), 7);
    let mut streams: Vec<(TcpStream, TcpStream)> = Vec::new();
    for n in 0..COUNT {
        let stream = first.connect_tcp(target, PATIENCE).expect("a stream");
        let other = listener.accept().expect("a connection");
        assert_eq!(other.peer_addr(), stream.local_addr(), "{n}");
        streams.push((stream, other));
    }
    assert_eq!(first.stats().connections, 1_000);
    assert!(second.stats().reserved <= 64 << 20);
    // All have something on its way before the first is read.
    for (n, (stream, _)) in streams.iter_mut().enumerate() {
        stream.write_all(&n.to_be_bytes()).expect("room");
    }
    for (n, (stream, other)) in streams.iter_mut().enumerate().rev() {
        let mut number = [0; size_of::<usize>()];
        other.read_exact(&mut number).expect("a number");
        assert_eq!(number, n.to_be_bytes());
        other.write_all(&number).expect("room");
        stream.read_exact(&mut number).expect("a number");
        assert_eq!(number, n.to_be_bytes());
    }
    drop(streams);
    for net in [&first, &second] {
        wait_until(|| net.stats().connections == 0);
        assert_eq!(net.stats().reserved, 0);
        assert_eq!(net.stats().failed, 0);
    }
}

#[test]
fn no_more_connections_wait_to_be_accepted_than_may() {
    let [first, second] = pair_with(|builder| builder);
    let listener = second.listen_tcp(7).expect("a port");
    let target = SocketAddr::new(v4(2), 7);
    let connect = || first.connect_tcp(target, PATIENCE).expect("a stream");
    let streams: Vec<TcpStream> = (0..1024).map(|_| connect()).collect();
    let short = std::time::Duration::from_millis(100);
    let error = first.connect_tcp(target, short).expect_err("no answer");
    assert!(matches!(error, adit::net::NetError::TimedOut(_)), "{error}");
    assert!(second.stats().backlog_full > 0);
    listener.accept().expect("a connection");
    drop(connect());
    drop(streams);
}
