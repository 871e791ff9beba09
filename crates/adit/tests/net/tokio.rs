//! The types for tokio.

use std::io::ErrorKind;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{PATIENCE, echo, pair, pattern, v4};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .expect("a runtime")
}

#[test]
fn streams_and_listeners_are_waited_for_on_one_thread() {
    let [first, second] = pair();
    let target = SocketAddr::new(v4(2), 7);
    runtime().block_on(async {
        let listener = second.listen_tcp(7).expect("a port").into_async();
        let listener = listener.expect("a listener");
        assert_eq!(listener.port(), 7);
        let stream = first.connect_tcp(target, PATIENCE).expect("a stream");
        let mut stream = stream.into_async().expect("a stream");
        assert_eq!(stream.peer_addr(), target);
        let mut other = listener.accept().await.expect("a connection");
        assert_eq!(other.peer_addr(), stream.local_addr());
        let sent = pattern(4 << 20, 1);
        let send = async {
            stream.write_all(&sent).await.expect("room");
            stream.shutdown().await.expect("it is open");
        };
        let receive = async {
            let mut came = Vec::new();
            other.read_to_end(&mut came).await.expect("an end");
            came
        };
        let ((), came) = tokio::join!(send, receive);
        assert!(came == sent);
        // More than one that waits.
        for _ in 0..3 {
            first.connect_tcp(target, PATIENCE).expect("a stream");
        }
        for _ in 0..3 {
            listener.accept().await.expect("a connection");
        }
    });
}

#[test]
fn a_reset_and_the_end_of_the_network_are_errors() {
    let [first, second] = pair();
    let target = SocketAddr::new(v4(2), 7);
    let listener = second.listen_tcp(7).expect("a port");
    runtime().block_on(async {
        let connect = || {
            let stream = first.connect_tcp(target, PATIENCE).expect("a stream");
            stream.into_async().expect("a stream")
        };
        let mut stream = connect();
        stream.write_all(b"unread").await.expect("room");
        let mut other = listener.accept().expect("a connection");
        // One byte of them: the others wait where they are.
        std::io::Read::read_exact(&mut other, &mut [0]).expect("a byte");
        drop(other);
        let error = stream.read(&mut [0]).await.expect_err("a reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        let mut stream = connect();
        drop(first);
        let error = stream.read(&mut [0]).await.expect_err("an end");
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
    });
}

#[test]
fn datagrams_are_waited_for() {
    let [first, second] = pair();
    echo(second.listen_tcp(7).expect("a port"));
    runtime().block_on(async {
        let here = first.bind_udp(0).expect("a port").into_async();
        let there = second.bind_udp(7).expect("a port").into_async();
        let (here, there) = (here.expect("a socket"), there.expect("a socket"));
        let mut buffer = [0; 100];
        let target = SocketAddr::new(v4(2), there.port());
        here.send_to(b"question", target).await.expect("sent");
        let (len, from) = there.recv_from(&mut buffer).await.expect("a datagram");
        assert_eq!(&buffer[..len], b"question");
        assert_eq!(from.port(), here.port());
        there.send_to(b"answer", from).await.expect("sent");
        let (len, _) = here.recv_from(&mut buffer).await.expect("a datagram");
        assert_eq!(&buffer[..len], b"answer");
    });
}
