use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use adit::net::Net;
use adit::{Config, PrivateKey};

use super::*;
use crate::config::Resolve;
use crate::serve::closing::Closing;
use crate::serve::core::WaitingPools;
use crate::serve::exchange::HttpExchange;
use crate::serve::http::{BodyFraming, Requested};
use crate::serve::http_peer::HttpPeer;
use crate::serve::options::ServeLimits;
use crate::serve::pool::WaitingPool;
use crate::serve::report::{RefusalReason, ServeReport, ServiceName};
use crate::serve::socket::READABLE;
use crate::serve::udp_relay::UdpRelay;

/// A client that counts its events, and panics at the third one.
struct Fragile {
    fd: OwnedFd,
    events: Arc<AtomicUsize>,
}

impl ProxyClient for Fragile {
    fn begin(&mut self, core: &mut ServeCore, token: ClientToken) -> Step {
        assert!(core.watch(&self.fd, token, READABLE));
        Step::Wait
    }

    fn event(&mut self, core: &mut ServeCore, _: ClientToken, _: EventFlags) -> Step {
        core.scratch.clear();
        match self.events.fetch_add(1, Ordering::Relaxed) {
            0 => Step::Again,
            1 => Step::Wait,
            _ => panic!("a defect, on purpose"),
        }
    }

    fn failed(&mut self, core: &mut ServeCore) {
        let service = ServiceName::Socks5;
        core.report.refused(service, RefusalReason::Defect, &"it");
    }
}

fn clients() -> ClientLoop {
    let config = Config::new(PrivateKey::from_bytes(&[1; 32]).expect("a key"));
    let net = Net::builder(config).address([10, 0, 0, 1].into()).start();
    let report = Arc::new(ServeReport::new(None));
    let pools = WaitingPools {
        inside: WaitingPool::new("test", 1, None).expect("a thread"),
        outside: None,
        pages: None,
    };
    let stack = Arc::new(net.expect("a network"));
    let limits = ServeLimits::default();
    let core = ServeCore::new(stack, Resolve::Auto, limits, report, pools);
    ClientLoop::new(core.expect("descriptors")).expect("a descriptor")
}

#[test]
fn a_panic_ends_the_client_that_it_is_in_and_no_other() {
    let mut clients = clients();
    let pairs = [0, 1].map(|_| UnixStream::pair().expect("a pair"));
    let counts = [0, 1].map(|_| Arc::new(AtomicUsize::new(0)));
    let mut others = Vec::new();
    for ((ours, theirs), events) in pairs.into_iter().zip(&counts) {
        clients.core.arrivals.push(Box::new(Fragile {
            fd: ours.into(),
            events: Arc::clone(events),
        }));
        others.push(theirs);
    }
    clients.welcome();
    assert_eq!(clients.core.clients, 2);
    let mut write = |at: usize| {
        use std::io::Write;
        others[at].write_all(b"x").expect("room");
        clients.wait();
        clients.core.clients
    };
    assert_eq!(write(0), 2);
    assert_eq!(write(0), 2);
    assert_eq!(write(0), 1);
    assert_eq!(write(1), 1);
    assert_eq!(counts.map(|count| count.load(Ordering::Relaxed)), [3, 1]);
    let stats = clients.core.report.stats();
    assert_eq!(stats.refused_for(RefusalReason::Defect), 1);
    // Its place is free, and what comes for it finds nobody.
    assert_eq!(clients.free.len(), 1);
    clients.tell(ClientToken::new(1, clients.free[0]), News::Page(None));
}

#[test]
fn a_client_that_is_closed_sees_the_end_at_once_with_words_or_without() {
    use std::io::{Read, Write};
    let mut clients = clients();
    for words in ["", "refused"] {
        let (mut other, fd) = UnixStream::pair().expect("a pair");
        other.write_all(b"unread").expect("room");
        let words = words.as_bytes().to_vec();
        let closing = Closing::client(fd.into(), words.clone(), clients.core.now, false);
        clients.core.arrivals.push(closing);
        clients.welcome();
        other.set_nonblocking(true).expect("it can");
        let mut came = Vec::new();
        other.read_to_end(&mut came).expect("an end");
        assert_eq!(came, words);
        assert_eq!(clients.core.clients, 1);
        // What it still sends is thrown away, until it ends, too.
        other.write_all(b"more").expect("it is not reset");
        drop(other);
        while clients.core.clients > 0 {
            clients.wait();
        }
    }
}

#[test]
fn an_association_that_is_flooded_leaves_others_their_turn() {
    use std::io::Write;
    let mut clients = clients();
    let (mut other, control) = UnixStream::pair().expect("a pair");
    let anywhere = "0.0.0.0:1".parse().expect("an address");
    let relay = UdpRelay::new(&clients.core, control.into(), None, &anywhere);
    let mut relay = relay.map_err(|(_, reason)| reason).expect("two ports");
    let token = ClientToken::new(1, 1);
    clients.core.scratch.resize(SCRATCH, 0);
    let core = &mut clients.core;
    assert!(core.watch(&other, token, READABLE));
    other.set_nonblocking(true).expect("it can");
    while other.write(&[0; 1000]).is_ok() {}
    let step = relay.event(core, token, EventFlags::IN);
    assert!(matches!(step, Step::Again));
    let mut left = 0;
    while let Step::Again = relay.event(core, token, EventFlags::empty()) {
        left += 1;
    }
    assert!(left > 0, "it was all taken at once");
}

/// An exchange of HTTP that is in the loop: the client, and the server.
fn exchange(clients: &mut ClientLoop, head: &[u8], body: BodyFraming) -> [TcpStream; 2] {
    let pair = || {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let near = TcpStream::connect(address).expect("it listens");
        (near, listener.accept().expect("a connection").0)
    };
    let ((client, fd), (upstream, server)) = (pair(), pair());
    let peer = HttpPeer {
        fd: fd.into(),
        from: None,
        login: None,
        pair: None,
    };
    let requested = Requested {
        is_head: false,
        minor: 1,
        keeps_alive: true,
        upgrades: false,
    };
    let next = |_, _: &ServeCore| -> Box<dyn ProxyClient> { panic!("there is no other request") };
    // Its head was read before.
    assert!(clients.core.watch(&peer.fd, ClientToken(NEWS), READABLE));
    let upstream = Box::new(upstream);
    let exchange = HttpExchange::new(peer, upstream, head.to_vec(), body, requested, next);
    clients.core.arrivals.push(Box::new(exchange));
    clients.welcome();
    [client, server]
}

#[test]
fn a_reset_that_is_found_by_sending_cuts_a_body_too() {
    use std::io::{Read, Write};
    let mut clients = clients();
    let body = BodyFraming::Length(1 << 20);
    let [mut client, mut server] = exchange(&mut clients, b"POST", body);
    server
        .write_all(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        .expect("room");
    let mut came = [0; 64];
    let mut len = 0;
    while !came[..len].ends_with(b"half") {
        clients.wait();
        client.set_nonblocking(true).expect("it can");
        len += client.read(&mut came[len..]).unwrap_or(0);
    }
    crate::serve::socket::reset(&server);
    drop(server);
    client.write_all(b"some of the body").expect("room");
    while clients.core.clients > 0 {
        clients.wait();
    }
    let error = client.read(&mut [0]).expect_err("a reset");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}
