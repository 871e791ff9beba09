//! Names, looked up at a server on the other end.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use adit::net::{Net, NetError};

use crate::{PATIENCE, echo, pair_with, pattern, send_and_receive, v4, v6};

const A: u16 = 1;
const AAAA: u16 = 28;
const SERVER_FAILURE: u8 = 2;
const NAME_ERROR: u8 = 3;

/// What a server knows, and how often it was asked.
#[derive(Default)]
struct Zone {
    addresses: HashMap<&'static str, Vec<IpAddr>>,
    /// Names whose answers do not fit a datagram.
    long: Vec<&'static str>,
    failing: Vec<&'static str>,
    asked: AtomicUsize,
    asked_by_tcp: AtomicUsize,
}

impl Zone {
    /// The answer to a question.
    fn answer(&self, question: &[u8], by_tcp: bool) -> Vec<u8> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mut labels = Vec::new();
        let mut at = 12;
        while question[at] != 0 {
            let end = at + 1 + usize::from(question[at]);
            labels.push(std::str::from_utf8(&question[at + 1..end]).expect("text"));
            at = end;
        }
        let name = labels.join(".");
        let kind = u16::from_be_bytes([question[at + 1], question[at + 2]]);
        let mut answer = question.to_vec();
        answer[2] = 0x81;
        let known = self.addresses.get(name.as_str());
        answer[3] = match known {
            _ if self.failing.contains(&name.as_str()) => SERVER_FAILURE,
            None => NAME_ERROR,
            Some(_) => 0,
        };
        if self.long.contains(&name.as_str()) && !by_tcp {
            answer[2] |= 2;
            return answer;
        }
        let is_asked = |address: &&IpAddr| address.is_ipv4() == (kind == A);
        for address in known.into_iter().flatten().filter(is_asked) {
            answer[7] += 1;
            let bytes = match address {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            };
            let len = u8::try_from(bytes.len()).expect("short");
            assert!(kind == A || kind == AAAA);
            let [high, low] = kind.to_be_bytes();
            answer.extend([0xc0, 12, high, low, 0, 1, 0, 0, 1, 0, 0, len]);
            answer.extend(bytes);
        }
        answer
    }
}

/// A server on this end, over UDP and TCP.
fn serve(net: &Net, zone: Zone) -> Arc<Zone> {
    let zone = Arc::new(zone);
    let socket = net.bind_udp(53).expect("a port");
    let of_udp = Arc::clone(&zone);
    std::thread::spawn(move || {
        let mut question = [0; 512];
        while let Ok((len, from)) = socket.recv_from(&mut question) {
            let answer = of_udp.answer(&question[..len], false);
            let _ = socket.send_to(&answer, from);
        }
    });
    let listener = net.listen_tcp(53).expect("a port");
    let of_tcp = Arc::clone(&zone);
    std::thread::spawn(move || {
        while let Ok(mut stream) = listener.accept() {
            let mut len = [0; 2];
            stream.read_exact(&mut len).expect("a length");
            let mut question = vec![0; usize::from(u16::from_be_bytes(len))];
            stream.read_exact(&mut question).expect("a question");
            of_tcp.asked_by_tcp.fetch_add(1, Ordering::Relaxed);
            let answer = of_tcp.answer(&question, true);
            let len = u16::try_from(answer.len()).expect("short").to_be_bytes();
            stream.write_all(&len).expect("room");
            stream.write_all(&answer).expect("room");
        }
    });
    zone
}

fn zone() -> Zone {
    Zone {
        addresses: HashMap::from([
            ("both.example", vec![v4(2), v6(2)]),
            ("one.example", vec![v4(2)]),
            ("many.example", (3..200).map(v4).chain([v6(2)]).collect()),
            // A way that leads nowhere, and one that does not.
            ("half.example", vec![v6(99), v4(2)]),
        ]),
        long: vec!["many.example"],
        failing: vec!["failing.example"],
        ..Zone::default()
    }
}

#[test]
fn a_name_is_looked_up_inside_the_tunnel_and_kept() {
    let [first, second] = pair_with(|builder| builder.dns(v4(2)));
    let zone = serve(&second, zone());
    echo(second.listen_tcp(7).expect("a port"));
    for target in ["both.example:7", "BOTH.example.:7", "one.example:7"] {
        let stream = first.connect_tcp(target, PATIENCE).expect("a stream");
        let sent = pattern(1000, 1);
        assert!(send_and_receive(&stream, &sent) == sent);
    }
    // Two names, two kinds each, and no more.
    assert_eq!(zone.asked.load(Ordering::Relaxed), 4);
    let found = first.look_up("both.example", PATIENCE).expect("addresses");
    assert_eq!(found, [v6(2), v4(2)]);
    assert_eq!(zone.asked.load(Ordering::Relaxed), 4);
}

#[test]
fn an_unknown_name_is_told_apart_from_a_server_that_is_silent() {
    let [first, second] = pair_with(|builder| builder.dns(v4(99)).dns(v4(2)));
    let zone = serve(&second, zone());
    let short = std::time::Duration::from_millis(300);
    // The first server does not answer, and the second is not asked so soon.
    let error = first.look_up("one.example", short).expect_err("no answer");
    assert!(matches!(error, NetError::TimedOut(_)), "{error}");
    let found = first.look_up("one.example", PATIENCE).expect("addresses");
    assert_eq!(found, [v4(2)]);
    assert!(zone.asked.load(Ordering::Relaxed) >= 2);
    let [first, second] = pair_with(|builder| builder.dns(v4(2)));
    serve(&second, Zone::default());
    for wrong in ["none.example:80", "no such name:80", "a..b:80"] {
        let error = first.connect_tcp(wrong, PATIENCE).expect_err("unknown");
        assert!(matches!(error, NetError::UnknownName(_)), "{error}");
    }
    let [first, _second] = crate::pair();
    let error = first
        .connect_tcp("a.example:80", PATIENCE)
        .expect_err("no server");
    assert!(matches!(error, NetError::NoDnsServers(_)), "{error}");
}

#[test]
fn a_truncated_answer_is_asked_for_over_tcp() {
    let [first, second] = pair_with(|builder| builder.dns(v4(2)));
    let zone = serve(&second, zone());
    let found = first.look_up("many.example", PATIENCE).expect("addresses");
    assert_eq!(found.len(), 198);
    assert_eq!(zone.asked_by_tcp.load(Ordering::Relaxed), 2);
}

#[test]
fn the_addresses_of_a_name_are_tried_one_after_the_other() {
    let [first, second] = pair_with(|builder| builder.dns(v6(2)));
    serve(&second, zone());
    echo(second.listen_tcp(7).expect("a port"));
    let timeout = std::time::Duration::from_secs(2);
    let stream = first
        .connect_tcp("half.example:7", timeout)
        .expect("a stream");
    assert_eq!(stream.peer_addr(), SocketAddr::new(v4(2), 7));
}

#[test]
fn a_server_that_fails_or_is_gone_is_asked_again() {
    let [first, second] = pair_with(|builder| builder.dns(v4(2)));
    let short = std::time::Duration::from_millis(250);
    // Nothing is on that port.
    let error = first.look_up("one.example", short).expect_err("no server");
    assert!(matches!(error, NetError::TimedOut(_)), "{error}");
    let zone = serve(&second, zone());
    let error = first
        .look_up("failing.example", short)
        .expect_err("it fails");
    assert!(matches!(error, NetError::TimedOut(_)), "{error}");
    assert!(zone.asked.load(Ordering::Relaxed) >= 2);
    let asked = zone.asked.swap(0, Ordering::Relaxed);
    let error = first
        .look_up("failing.example", PATIENCE)
        .expect_err("it fails");
    assert!(matches!(error, NetError::UnknownName(_)), "{error}");
    let again = zone.asked.load(Ordering::Relaxed);
    assert!(asked + again < 20, "{asked} {again}");
}
