//! What a proxy does once the process has no descriptor left. Alone in its process, which has them all.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit::net::Net;
use adit::{Config, IpBlock, Peer, PrivateKey};
use adit_proxy::config::{Bind, ProxyService, Resolve, ServiceKind};
use adit_proxy::serve::{Proxy, RefusalReason, ServeOptions, bind};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const PATIENCE: Duration = Duration::from_secs(30);

fn wait_until(mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "it does not come to hold");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Two networks, the second of which echoes on port 7.
fn pair() -> [Net; 2] {
    let build = |n: u8, other: u8, endpoint: Option<SocketAddr>| {
        let key = |n| PrivateKey::from_bytes(&[n; 32]).expect("a key");
        let block = IpBlock::from(std::net::IpAddr::from([10, 0, 0, other]));
        let mut peer = Peer::new(key(other).public_key()).allowed_ip(block);
        if let Some(endpoint) = endpoint {
            peer = peer.endpoint(endpoint);
        }
        let builder = Net::builder(Config::new(key(n)).peer(peer));
        builder.address([10, 0, 0, n].into()).start()
    };
    let far = build(2, 1, None).expect("a network");
    let port = far.tunnel().status().expect("a status").listen_port;
    let near = build(1, 2, Some(SocketAddr::from(([127, 0, 0, 1], port))));
    let listener = far.listen_tcp(7).expect("a port");
    std::thread::spawn(move || {
        while let Ok(stream) = listener.accept() {
            std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    [near.expect("a network"), far]
}

#[test]
fn without_descriptors_new_clients_are_refused_and_old_ones_go_on() {
    let [near, _far] = pair();
    let kind = ServiceKind::Socks5 {
        bind: Bind::Port(SocketAddr::from(([127, 0, 0, 1], 0))),
        credentials: None,
    };
    let listeners = bind(&[ProxyService { line: 0, kind }]).expect("a port");
    let limit = getrlimit(Resource::Nofile);
    assert_eq!(limit.current, limit.maximum, "it is raised");
    // Few enough to use them up.
    let few = Rlimit {
        current: Some(200),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, few).expect("it is lower");
    let at = listeners.addresses()[0].expect("an address");
    let options = ServeOptions::default();
    let proxy = Proxy::start(Arc::new(near), listeners, Resolve::Auto, options);
    let proxy = proxy.expect("a proxy");
    let connect = || {
        let client = TcpStream::connect(at).expect("it listens");
        client.set_read_timeout(Some(PATIENCE)).expect("a time");
        client
    };
    let ask = |client: &mut TcpStream| {
        let all = [5, 1, 0, 5, 1, 0, 1, 10, 0, 0, 2, 0, 7];
        client.write_all(&all).expect("room");
        let mut reply = [0; 12];
        client.read_exact(&mut reply).expect("a reply");
        assert_eq!(reply[..4], [5, 0, 5, 0]);
    };
    let echoes = |client: &mut TcpStream| {
        client.write_all(b"hello").expect("room");
        let mut back = [0; 5];
        client.read_exact(&mut back).expect("all of it");
    };
    let mut old = connect();
    ask(&mut old);
    // So that the other end has its descriptors, too.
    echoes(&mut old);
    let mut fillers: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    // One for the client itself: the proxy has none.
    let refused = |proxy: &Proxy| proxy.stats().refused_for(RefusalReason::NoDescriptors);
    for count in 1..=3 {
        drop(fillers.pop());
        let mut client = connect();
        let came = client.read(&mut [0]);
        assert!(!matches!(came, Ok(1..)), "{came:?}");
        assert_eq!(refused(&proxy), count);
        echoes(&mut old);
        drop(client);
        fillers.push(File::open("/dev/null").expect("the client's"));
    }
    // With descriptors there are clients again.
    drop(fillers);
    wait_until(|| {
        let mut client = connect();
        let greeted = client.write_all(&[5, 1, 0]).is_ok();
        greeted && matches!(client.read(&mut [0; 2]), Ok(2))
    });
    let mut new = connect();
    ask(&mut new);
    echoes(&mut new);
    echoes(&mut old);
}
