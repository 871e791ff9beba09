//! Networks inside tunnels: two in one process, with UDP over loopback between them.

#![cfg(feature = "net")]

mod dns;
mod driver;
mod endings;
mod icmp;
mod join;
#[cfg(feature = "linux")]
mod kernel;
mod loss;
mod many;
mod streams;
#[cfg(feature = "tokio")]
mod tokio;
mod udp;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use adit::net::{Net, NetBuilder, TcpListener, TcpStream};
use adit::{Config, IpBlock, Peer, PrivateKey};

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn key(n: u8) -> PrivateKey {
    PrivateKey::from_bytes(&[n; 32]).expect("a key")
}

/// The inner addresses of an end.
pub(crate) fn v4(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n])
}

pub(crate) fn v6(n: u8) -> IpAddr {
    IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n)])
}

/// A tunnel of number `n`, whose peer has what `other` and `behind` say.
pub(crate) fn config(n: u8, other: u8, endpoint: Option<SocketAddr>) -> Config {
    let mut peer = Peer::new(key(other).public_key())
        .allowed_ip(IpBlock::from(v4(other)))
        .allowed_ip(IpBlock::from(v6(other)))
        // Where nobody is.
        .allowed_ip(IpBlock::from(v4(99)));
    if let Some(endpoint) = endpoint {
        peer = peer.endpoint(endpoint);
    }
    Config::new(key(n)).peer(peer)
}

pub(crate) fn builder(n: u8, other: u8, endpoint: Option<SocketAddr>) -> NetBuilder {
    Net::builder(config(n, other, endpoint))
        .address(v4(n))
        .address(v6(n))
}

/// Where the tunnel of a network is reached.
pub(crate) fn endpoint(net: &Net) -> SocketAddr {
    let port = net.tunnel().status().expect("a status").listen_port;
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Two networks; the first knows where the second is.
pub(crate) fn pair() -> [Net; 2] {
    pair_with(|builder| builder)
}

/// The same, the first of which is built otherwise.
pub(crate) fn pair_with(build: impl FnOnce(NetBuilder) -> NetBuilder) -> [Net; 2] {
    let second = builder(2, 1, None).start().expect("a network");
    let first = build(builder(1, 2, Some(endpoint(&second))));
    [first.start().expect("a network"), second]
}

/// Bytes that differ everywhere.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state.to_le_bytes()[7]
    };
    (0..len).map(|_| next()).collect()
}

/// Sends back what each connection sends, until none comes any more.
pub(crate) fn echo(listener: TcpListener) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        while let Ok(stream) = listener.accept() {
            std::thread::spawn(move || echo_stream(&stream));
        }
    })
}

fn echo_stream(stream: &TcpStream) {
    let (mut from, mut to) = (stream, stream);
    let mut buffer = vec![0; 1 << 16];
    loop {
        match from.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(len) => {
                if to.write_all(&buffer[..len]).is_err() {
                    return;
                }
            }
        }
    }
    let _ = stream.shutdown(std::net::Shutdown::Write);
}

/// Sends these bytes and reads as many back.
pub(crate) fn send_and_receive(stream: &TcpStream, bytes: &[u8]) -> Vec<u8> {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut to = stream;
            to.write_all(bytes).expect("it takes all");
            stream
                .shutdown(std::net::Shutdown::Write)
                .expect("it is open");
        });
        let mut back = Vec::new();
        let mut from = stream;
        from.read_to_end(&mut back).expect("it ends well");
        back
    })
}

pub(crate) fn wait_until(mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "it does not come to hold");
        std::thread::sleep(Duration::from_millis(2));
    }
}
