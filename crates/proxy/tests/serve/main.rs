//! A proxy in one of two networks, which are in one process with UDP over loopback between them:
//!
//! ```text
//! client -- loopback -- proxy, 10.0.0.1 == tunnel == 10.0.0.2, servers and DNS
//! ```

mod forwards;
mod http;
mod http_bodies;
mod info;
mod limits;
mod socks;
mod tls;
mod udp;

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use adit::net::{Net, NetBuilder, TcpListener};
use adit::{Config, IpBlock, Peer, PrivateKey};
use adit_proxy::config::{
    Bind, Credentials, EndpointHost, ProxyEndpoint, ProxyService, Resolve, ServiceKind,
};
use adit_proxy::serve::{Proxy, RefusalReason, ServeOptions, bind};

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The inner addresses of an end. Nobody has 99.
pub(crate) fn v4(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n])
}

fn builder(n: u8, other: u8, endpoint: Option<SocketAddr>) -> NetBuilder {
    let key = |n| PrivateKey::from_bytes(&[n; 32]).expect("a key");
    let mut peer = Peer::new(key(other).public_key())
        .allowed_ip(IpBlock::from(v4(other)))
        .allowed_ip(IpBlock::from(v4(99)));
    if let Some(endpoint) = endpoint {
        peer = peer.endpoint(endpoint);
    }
    Net::builder(Config::new(key(n)).peer(peer)).address(v4(n))
}

pub(crate) fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

pub(crate) fn any_port() -> Bind {
    Bind::Port(loopback())
}

pub(crate) fn credentials() -> Option<Credentials> {
    Some(Credentials {
        user: "bob".into(),
        password: "secret".to_owned().into(),
    })
}

pub(crate) fn target(host: &str, port: u16) -> ProxyEndpoint {
    let host = match host.parse() {
        Ok(ip) => EndpointHost::Address(ip),
        Err(_) => EndpointHost::Name(host.into()),
    };
    ProxyEndpoint { host, port }
}

/// A proxy and what is behind it. What is first ends first.
pub(crate) struct Place {
    pub(crate) proxy: Proxy,
    /// The addresses of its services.
    pub(crate) at: Vec<Option<SocketAddr>>,
    pub(crate) near: Arc<Net>,
    pub(crate) far: Net,
    pub(crate) log: Arc<Mutex<Vec<String>>>,
}

impl Place {
    pub(crate) fn new(kinds: Vec<ServiceKind>) -> Self {
        Self::with(kinds, |_| {}, |builder| builder)
    }

    pub(crate) fn with(
        kinds: Vec<ServiceKind>,
        set: impl FnOnce(&mut ServeOptions),
        build: impl FnOnce(NetBuilder) -> NetBuilder,
    ) -> Self {
        let far = builder(2, 1, None).start().expect("a network");
        answer_names(&far);
        let port = far.tunnel().status().expect("a status").listen_port;
        let endpoint = SocketAddr::from(([127, 0, 0, 1], port));
        let near = build(builder(1, 2, Some(endpoint)).dns(v4(2)));
        let near = Arc::new(near.start().expect("a network"));
        // So that the other end knows where this one is.
        near.look_up("a.example", PATIENCE).expect("an address");
        let log = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&log);
        let mut options = ServeOptions::default();
        options.log = Some(Arc::new(move |_, line| {
            kept.lock().expect("a log").push(line.to_string());
        }));
        set(&mut options);
        let services = kinds.into_iter().enumerate();
        let services: Vec<_> = services
            .map(|(at, kind)| ProxyService { line: at + 1, kind })
            .collect();
        let listeners = bind(&services).expect("ports");
        let at = listeners.addresses().to_vec();
        let proxy = Proxy::start(near.clone(), listeners, Resolve::Auto, options);
        Self {
            proxy: proxy.expect("a proxy"),
            at,
            near,
            far,
            log,
        }
    }

    /// A client of the first service.
    pub(crate) fn client(&self) -> TcpStream {
        client(self.at[0].expect("an address"))
    }

    /// Echoes on this port.
    pub(crate) fn echoes(&self, port: u16) {
        echo(self.far.listen_tcp(port).expect("a port"));
    }

    pub(crate) fn refused(&self, reason: RefusalReason) -> u64 {
        self.proxy.stats().refused_for(reason)
    }
}

/// A client with another address than the other ones of this host.
pub(crate) fn client_from(ip: [u8; 4], address: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&socket, &SocketAddr::from((ip, 0))).expect("an address of this host");
    connect(&socket, &address).expect("it listens");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    stream
}

pub(crate) fn client(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    stream.set_write_timeout(Some(PATIENCE)).expect("a time");
    stream
}

/// Sends back what each connection sends, until none comes any more.
pub(crate) fn echo(listener: TcpListener) {
    std::thread::spawn(move || {
        while let Ok(stream) = listener.accept() {
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut &stream, &mut &stream);
                let _ = stream.shutdown(Shutdown::Write);
            });
        }
    });
}

/// Reads so many bytes.
pub(crate) fn read<const N: usize>(mut from: impl Read) -> [u8; N] {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes).expect("all of it");
    bytes
}

/// Reads to the end.
pub(crate) fn read_all(mut from: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).expect("an end");
    bytes
}

/// Sends these bytes, ends, and reads what comes.
pub(crate) fn exchange(stream: &TcpStream, bytes: &[u8]) -> Vec<u8> {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut to = stream;
            to.write_all(bytes).expect("it takes all");
            stream.shutdown(Shutdown::Write).expect("it is open");
        });
        read_all(stream)
    })
}

/// Writes until nothing is taken for a while: how much that was. What nobody reads takes memory.
pub(crate) fn fill(mut stream: &TcpStream) -> usize {
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
    stream.set_nonblocking(false).expect("it can");
    filled
}

/// Bytes that differ everywhere.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state.to_le_bytes()[7]
    };
    (0..len).map(|_| next()).collect()
}

pub(crate) fn wait_until(mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "it does not come to hold");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A DNS server that knows `*.example` at 10.0.0.2, but for `half.example`, which is at 10.0.0.99 first,
/// `*silent.example`, of which it says nothing, and `unknown.example`.
fn answer_names(net: &Net) {
    let socket = net.bind_udp(53).expect("a port");
    std::thread::spawn(move || {
        let mut question = [0; 512];
        while let Ok((len, from)) = socket.recv_from(&mut question) {
            let question = &question[..len];
            let name_end = question[12..]
                .iter()
                .position(|it| *it == 0)
                .expect("a name")
                + 12;
            let name = String::from_utf8_lossy(&question[13..name_end]).into_owned();
            let mut answer = question.to_vec();
            answer[2] = 0x81;
            answer[3] = 0;
            let addresses: &[u8] = match name.as_str() {
                name if name.ends_with("silent\u{7}example") => continue,
                "half\u{7}example" => &[99, 2],
                name if name.ends_with("unknown\u{7}example") => {
                    answer[3] = 3;
                    &[]
                }
                name if name.ends_with("\u{7}example") => &[2],
                _ => {
                    answer[3] = 3;
                    &[]
                }
            };
            for last in addresses {
                answer[7] += 1;
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 10, 0, 0, *last]);
            }
            let _ = socket.send_to(&answer, from);
        }
    });
}
