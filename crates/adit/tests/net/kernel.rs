//! The kernel's TCP at the other end of the tunnel, behind a TUN device in a namespace of the test's.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use adit::Tunnel;
use adit::net::{Net, NetBuilder};
use adit_testbed::host::Host;

use crate::loss::Relay;
use crate::{PATIENCE, builder, config, pattern, v4, v6};

/// Runs this beside the kernel's end of a tunnel, in whose namespace it may connect and listen; it gets where
/// that is reached. Only root may.
fn beside_the_kernel(work: impl FnOnce(SocketAddr) + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("nothing was tested: that takes root");
        return;
    }
    let host = Host::new().expect("a namespace");
    host.bring_up("lo", &[], None).expect("it is there");
    let tunnel = host.run(|| Tunnel::builder(config(2, 1, None)).tun("adit0").start());
    let tunnel = tunnel.expect("a tunnel");
    let addresses = [(v4(2), 24), (v6(2), 64)];
    host.bring_up("adit0", &addresses, Some(1420))
        .expect("it is there");
    let port = tunnel.status().expect("a status").listen_port;
    host.run(move || work(SocketAddr::from(([127, 0, 0, 1], port))));
}

fn start(builder: NetBuilder) -> Net {
    builder.start().expect("a network")
}

/// A stream of either stack.
trait End: Sync {
    fn send(&self, bytes: &[u8]);
    fn receive(&self) -> Vec<u8>;
}

impl End for adit::net::TcpStream {
    fn send(&self, bytes: &[u8]) {
        let mut to = self;
        to.write_all(bytes).expect("it takes all");
        self.shutdown(Shutdown::Write).expect("it is open");
    }

    fn receive(&self) -> Vec<u8> {
        let (mut from, mut came) = (self, Vec::new());
        from.read_to_end(&mut came).expect("it ends well");
        came
    }
}

impl End for TcpStream {
    fn send(&self, bytes: &[u8]) {
        let mut to = self;
        to.write_all(bytes).expect("it takes all");
        self.shutdown(Shutdown::Write).expect("it is open");
    }

    fn receive(&self) -> Vec<u8> {
        let (mut from, mut came) = (self, Vec::new());
        from.read_to_end(&mut came).expect("it ends well");
        came
    }
}

/// Both send so many bytes at the same time, and end.
fn exchange(ends: [&dyn End; 2], len: usize) {
    let sent = [1, 2].map(|seed| pattern(len, seed));
    std::thread::scope(|scope| {
        for (end, sent) in ends.iter().zip(&sent) {
            scope.spawn(|| end.send(sent));
        }
        for (end, sent) in ends.iter().zip(sent.iter().rev()) {
            scope.spawn(move || {
                let came = end.receive();
                assert!(came == *sent, "{} bytes came", came.len());
            });
        }
    });
}

/// A connection to the kernel, and its end of that.
fn connect(net: &Net, listener: &TcpListener) -> (adit::net::TcpStream, TcpStream) {
    let target = listener.local_addr().expect("an address");
    let stream = net.connect_tcp(target, PATIENCE).expect("a stream");
    let (other, from) = listener.accept().expect("a connection");
    assert_eq!(from, stream.local_addr());
    (stream, other)
}

#[test]
fn the_kernels_tcp_gets_and_sends_every_byte() {
    beside_the_kernel(|endpoint| {
        let net = start(builder(1, 2, Some(endpoint)));
        net.ping(v4(2), PATIENCE).expect("an answer");
        for address in [v4(2), v6(2)] {
            let listener = TcpListener::bind((address, 0)).expect("a port");
            let (stream, other) = connect(&net, &listener);
            exchange([&stream, &other], 100 << 20);
        }
        assert_eq!((net.stats().malformed, net.stats().failed), (0, 0));
    });
}

#[test]
fn the_kernels_tcp_connects_and_each_direction_ends_by_itself() {
    beside_the_kernel(|endpoint| {
        let net = start(builder(1, 2, Some(endpoint)));
        net.ping(v4(2), PATIENCE).expect("an answer");
        let listener = net.listen_tcp(7).expect("a port");
        for address in [v4(1), v6(1)] {
            let stream = TcpStream::connect((address, 7)).expect("a stream");
            let other = listener.accept().expect("a connection");
            stream.send(b"a question");
            assert_eq!(other.receive(), b"a question");
            // Long after the end of the other direction.
            let answer = pattern(3 << 20, 3);
            std::thread::scope(|scope| {
                scope.spawn(|| other.send(&answer));
                assert!(stream.receive() == answer);
            });
        }
    });
}

#[test]
fn resets_pass_to_and_from_the_kernels_tcp() {
    beside_the_kernel(|endpoint| {
        let net = start(builder(1, 2, Some(endpoint)));
        let listener = TcpListener::bind((v4(2), 0)).expect("a port");
        let (mut stream, other) = connect(&net, &listener);
        stream.write_all(b"unread").expect("room");
        other.peek(&mut [0]).expect("it comes");
        drop(other);
        let error = stream.read(&mut [0]).expect_err("a reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        // Where nothing listens.
        let target = listener.local_addr().expect("an address");
        drop(listener);
        let error = net.connect_tcp(target, PATIENCE).expect_err("refused");
        assert!(matches!(error, adit::net::NetError::Refused(_)), "{error}");
        let error = TcpStream::connect((v4(1), 9)).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn a_connection_that_rests_again_and_again_goes_on_with_the_kernels_tcp() {
    beside_the_kernel(|endpoint| {
        // So little that a connection gives up its rings as soon as they are empty.
        let net = start(builder(1, 2, Some(endpoint)).budget(10 << 10));
        for address in [v4(2), v6(2)] {
            let listener = TcpListener::bind((address, 0)).expect("a port");
            let (mut stream, mut other) = connect(&net, &listener);
            for n in 0_u32..500 {
                let text = [n.to_be_bytes(); 25].concat();
                let mut came = [0; 100];
                stream.write_all(&text).expect("room");
                other.read_exact(&mut came).expect("all of it");
                assert_eq!(came[..], text);
                other.write_all(&text).expect("room");
                stream.read_exact(&mut came).expect("all of it");
                assert_eq!(came[..], text);
            }
            exchange([&stream, &other], 200 << 10);
        }
        assert_eq!(net.stats().failed, 0);
    });
}

#[test]
fn every_byte_reaches_the_kernels_tcp_over_a_network_that_loses() {
    beside_the_kernel(|endpoint| {
        let relay = Relay::new(endpoint);
        let net = start(builder(1, 2, Some(relay.address)));
        let listener = TcpListener::bind((v4(2), 0)).expect("a port");
        let (stream, other) = connect(&net, &listener);
        exchange([&stream, &other], 20 << 20);
        assert!(relay.lost() > 50);
    });
}
