//! How many handshakes a responder answers, with the initiators' part computed beforehand.

use std::collections::HashMap;
use std::net::UdpSocket;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use adit_proto::config::{DeviceChange, PeerChange, PublicKey, Secret};
use adit_proto::{Device, Output, Tai64N, Time};

use crate::harness::*;

/// xorshift: secrets of a test need not be secret.
fn random(mut state: u64) -> impl FnMut(&mut [u8]) + Send {
    move |bytes| {
        for byte in bytes {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = state.to_le_bytes()[3];
        }
    }
}

/// An initiator's public key and its first message to `responder`.
pub fn initiation(number: u64, responder: PublicKey, at: Tai64N) -> (PublicKey, Vec<u8>) {
    let mut fill = random(0x9e37_79b9_7f4a_7c15 ^ (number + 1) << 20);
    let mut private = [0; 32];
    fill(&mut private);
    first_message(&Secret::new(&private), fill, responder, at)
}

/// The first message to `responder` of the interface that has this private key, in base64.
pub fn initiation_of(private: &str, responder: PublicKey, at: Tai64N) -> Vec<u8> {
    let private = adit_ctl::keys::from_base64(private).expect("a key");
    first_message(&private, random(7), responder, at).1
}

fn first_message(
    private: &Secret,
    fill: impl FnMut(&mut [u8]) + Send + 'static,
    responder: PublicKey,
    at: Tai64N,
) -> (PublicKey, Vec<u8>) {
    let mut device = Device::new(Box::new(fill));
    let mut peer = PeerChange::new(responder);
    peer.endpoint = Some("10.0.0.1:51820".parse().expect("an address"));
    let change = DeviceChange {
        private_key: Some(private.clone()),
        peers: vec![peer],
        ..DeviceChange::default()
    };
    let now = Time::default();
    device.apply(now, &change).expect("a configuration");
    device.probe(now, &responder).expect("the peer just added");
    device.handle_timeout(now, at);
    let public = device.status().public_key.expect("derived");
    while let Some(output) = device.poll_output() {
        if let Output::Handshake { datagram, .. } = output {
            return (public, datagram.to_vec());
        }
    }
    panic!("no initiation");
}

/// User and system time of a process.
fn cpu_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("its statistics");
    let (_, fields) = stat.rsplit_once(") ").expect("the name's end");
    let ticks: u64 = fields
        .split(' ')
        .skip(11)
        .take(2)
        .map(|n| n.parse::<u64>().expect("ticks"))
        .sum();
    // USER_HZ is 100 on every architecture that Linux still has.
    Duration::from_millis(ticks * 10)
}

#[test]
fn a_responder_answers_every_initiator_once() {
    const COUNT: u64 = 2000;
    let net = SitePair::new();
    let daemon = Daemon::start(&net.left, Program::Adit, "wg0", &Start::default());
    let keys = Keys::new();
    let responder = decode(&keys.public);
    let at = Tai64N::from_unix(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("after 1970"),
    );
    let initiators: Vec<_> = (0..COUNT).map(|n| initiation(n, responder, at)).collect();

    let mut config = format!(
        "[Interface]\nPrivateKey = {}\nListenPort = 51820\n",
        keys.private
    );
    for (public, _) in &initiators {
        config += &format!("[Peer]\nPublicKey = {}\n", encode(public));
    }
    setconf(&net.left, "wg0", &config);
    net.left.sh("ip link set wg0 up");
    wait_for("the responder listens on port 51820", seconds(30), || {
        net.left.try_sh("grep -q :CA6C /proc/net/udp").ok()
    });

    let before = cpu_time(daemon.pid());
    let messages: Vec<_> = initiators.into_iter().map(|(_, message)| message).collect();
    let (answered, cookies, took) = net.right.within(move || converse(&messages));
    let cpu = cpu_time(daemon.pid()) - before;
    println!(
        "{answered} handshakes in {took:?} ({:.0}/s; {:.0} per second of the responder's CPU), {cookies} cookies",
        f64::from(answered) / took.as_secs_f64(),
        f64::from(answered) / cpu.as_secs_f64().max(0.01),
    );
    assert_eq!(u64::from(answered), COUNT);
    let answered = net
        .left
        .sh("wg show wg0 endpoints")
        .lines()
        .filter(|line| line.contains("10.0.0.2:"))
        .count();
    assert_eq!(
        answered as u64, COUNT,
        "the responder knows where each one is"
    );
}

/// Sends the initiations, a few at a time so that the responder never is under load: responses,
/// cookies, time taken.
fn converse(messages: &[Vec<u8>]) -> (u32, u32, Duration) {
    const WINDOW: usize = 24;
    let socket = UdpSocket::bind("10.0.0.2:0").expect("a socket");
    socket.connect("10.0.0.1:51820").expect("a route");
    socket
        .set_read_timeout(Some(Duration::from_secs(2)))
        .expect("a timeout");
    let index = |message: &[u8], at: usize| {
        u32::from_le_bytes(message[at..at + 4].try_into().expect("four bytes"))
    };
    let mut waiting: HashMap<u32, usize> = HashMap::new();
    let (mut next, mut responses, mut cookies) = (0, 0, 0);
    let mut buffer = [0; 2048];
    let start = Instant::now();
    while next < messages.len() || !waiting.is_empty() {
        while next < messages.len() && waiting.len() < WINDOW {
            socket.send(&messages[next]).expect("sent");
            waiting.insert(index(&messages[next], 4), next);
            next += 1;
        }
        let Ok(n) = socket.recv(&mut buffer) else {
            break;
        };
        match (buffer[0], n) {
            (2, 92) => {
                let receiver = index(&buffer, 8);
                assert!(
                    waiting.remove(&receiver).is_some(),
                    "an answer that nobody waits for"
                );
                responses += 1;
            }
            (3, 64) => cookies += 1,
            other => panic!("type and length {other:?}"),
        }
    }
    (responses, cookies, start.elapsed())
}

pub fn encode(key: &PublicKey) -> String {
    adit_ctl::keys::to_base64(&key.0).to_string()
}

pub fn decode(text: &str) -> PublicKey {
    adit_ctl::keys::public_from_base64(text).expect("a key")
}
