//! Datagrams of an attacker, in every state of a session.
//!
//! The attacker sees all datagrams and sends what it likes, but has no peer's key. Nothing that it
//! sends may change the status, and it never gets more bytes back than it sent.

use adit_proto::config::DeviceChange;
use adit_proto::wire::{self, DatagramKind};
use adit_proto::{Device, Time};
use blake2::digest::consts::U16;
use blake2::digest::{Digest, FixedOutput, KeyInit, Update};
use blake2::{Blake2s256, Blake2sMac};

use crate::source::InputBytes;
use crate::world::{
    self, START, Sent, addr, attacker, device, drain, joined, open, packet, public_key, seal, wall,
};
use std::time::Duration;

/// Two devices, and all that one sent the other.
struct Pair {
    now: Time,
    devices: [Device; 2],
    seen: Vec<SeenDatagram>,
    under_load: bool,
}

/// A datagram that the attacker saw.
struct SeenDatagram {
    bytes: Vec<u8>,
    was_delivered: bool,
}

impl SeenDatagram {
    fn not_delivered(sent: Sent) -> Self {
        Self {
            bytes: sent.bytes,
            was_delivered: false,
        }
    }
}

impl Pair {
    fn new() -> Self {
        let mut devices = [device(1), device(2)];
        for (n, device) in (0..).zip(&mut devices) {
            device.apply(START, &joined(n, 1 - n)).expect("few peers");
        }
        Self {
            now: START,
            devices,
            seen: Vec::new(),
            under_load: false,
        }
    }

    /// Host 0 sends a packet; at most `rounds` datagrams are delivered, one after the other.
    fn talk(&mut self, rounds: usize) {
        let text = packet([10, 0, 0, 0], [10, 0, 0, 1], b"text");
        let mut flying: Vec<(usize, Sent)> = Vec::new();
        match seal(&mut self.devices[0], self.now, &text, 1420) {
            Ok((to, bytes)) => flying.push((1, Sent { to: to.addr, bytes })),
            Err(_) => flying.extend(
                drain(&mut self.devices[0], self.now)
                    .into_iter()
                    .map(|s| (1, s)),
            ),
        }
        for _ in 0..rounds {
            let Some((host, sent)) = flying.pop() else {
                break;
            };
            self.seen.push(SeenDatagram {
                bytes: sent.bytes.clone(),
                was_delivered: true,
            });
            let from = addr(u8::try_from(1 - host).unwrap_or(0), 0);
            assert_eq!(sent.to, addr(u8::try_from(host).unwrap_or(0), 0));
            _ = receive(
                &mut self.devices[host],
                self.now,
                from,
                &sent.bytes,
                self.under_load,
            );
            let answers = drain(&mut self.devices[host], self.now);
            flying.extend(answers.into_iter().map(|sent| (1 - host, sent)));
        }
        let left = flying.into_iter().map(|(_, sent)| sent);
        self.seen.extend(left.map(SeenDatagram::not_delivered));
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
        for device in &mut self.devices {
            let sent = drain(device, self.now);
            self.seen
                .extend(sent.into_iter().map(SeenDatagram::not_delivered));
        }
    }
}

/// The packet in a datagram, if there is one.
fn receive(
    device: &mut Device,
    now: Time,
    from: std::net::SocketAddr,
    bytes: &[u8],
    under_load: bool,
) -> Option<Vec<u8>> {
    match wire::classify(bytes)? {
        DatagramKind::Handshake => {
            device.handle_handshake(now, wall(now), from.into(), bytes, under_load);
            None
        }
        DatagramKind::Data => open(device, now, from, bytes).ok(),
    }
}

const STATES: u8 = 14;

/// The devices, and which one of them is attacked.
fn state(number: u8) -> (Pair, usize) {
    let mut pair = Pair::new();
    let secs = Duration::from_secs;
    let target = match number % STATES {
        // Without a key; without a peer.
        0 => {
            pair.devices[0] = device(1);
            0
        }
        1 => {
            let change = DeviceChange {
                replace_peers: true,
                ..DeviceChange::default()
            };
            pair.devices[1].apply(START, &change).expect("few peers");
            1
        }
        2 => 1,
        // An initiation left.
        3 => {
            pair.talk(0);
            0
        }
        // A response left, and did not arrive.
        4 => {
            pair.talk(1);
            1
        }
        // The initiator has a session; the responder does not know it.
        5 => {
            pair.talk(2);
            0
        }
        6 => {
            pair.talk(2);
            1
        }
        // Both have it, and a packet went.
        7 | 8 => {
            pair.talk(9);
            pair.talk(9);
            usize::from(number % STATES - 7)
        }
        // Two sessions later.
        9 => {
            for _ in 0..3 {
                pair.talk(9);
                pair.talk(9);
                pair.wait(secs(125));
            }
            pair.talk(9);
            0
        }
        // Too old.
        10 => {
            pair.talk(9);
            pair.wait(secs(181));
            1
        }
        // Under load: a cookie came back.
        11 => {
            pair.under_load = true;
            pair.talk(9);
            0
        }
        // A clone.
        12 => {
            pair.talk(9);
            pair.devices[0].was_cloned(pair.now);
            0
        }
        // The peer is gone.
        _ => {
            pair.talk(9);
            let change = DeviceChange {
                replace_peers: true,
                ..DeviceChange::default()
            };
            pair.devices[0].apply(pair.now, &change).expect("few peers");
            0
        }
    };
    (pair, target)
}

pub(crate) fn run(input: &[u8]) {
    let mut source = InputBytes::new(input);
    let choice = source.u8();
    let (mut pair, target) = state(choice);
    let under_load = source.bool();
    // What timers want by now is not the attacker's doing.
    drain(&mut pair.devices[target], pair.now);
    let before = world::state(&pair.devices[target]);
    while !source.is_empty() {
        let bytes = datagram(&mut source, &pair.seen, u8::try_from(target).unwrap_or(0));
        let device = &mut pair.devices[target];
        let got = receive(device, pair.now, attacker(), &bytes, under_load);
        assert_eq!(got, None, "a packet of an attacker");
        // And past the classifier.
        device.handle_handshake(
            pair.now,
            wall(pair.now),
            attacker().into(),
            &bytes,
            under_load,
        );
        let answers = drain(device, pair.now);
        let back: usize = answers.iter().map(|sent| sent.bytes.len()).sum();
        assert!(back <= 2 * bytes.len(), "{back} bytes for {}", bytes.len());
        assert!(
            answers
                .iter()
                .all(|sent| sent.to == attacker() && sent.bytes.len() == 64)
        );
    }
    assert_eq!(world::state(&pair.devices[target]), before);
}

/// What the attacker sends next.
fn datagram(source: &mut InputBytes<'_>, seen: &[SeenDatagram], target: u8) -> Vec<u8> {
    let how = source.u8();
    let length = usize::from(source.u8());
    // 1. Of its own making, or something that it saw.
    let mut bytes = match how % 4 {
        0 => source.take(length).to_vec(),
        1 => {
            let kind = 1 + u8::try_from(length % 4).unwrap_or(0);
            let mut bytes = vec![kind, 0, 0, 0];
            let whole = [148, 92, 64, 64][length % 4];
            bytes.extend(source.take(whole - 4));
            bytes.resize(whole, 0x5a);
            bytes
        }
        _ => seen
            .get(length % seen.len().max(1))
            .map(|seen| seen.bytes.clone())
            .unwrap_or_default(),
    };
    // 2. Changed.
    if how & 4 != 0 {
        for _ in 0..source.below(8) {
            let (at, value) = (usize::from(source.u8()), source.u8());
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
    }
    if how & 8 != 0 {
        let length = usize::from(source.u8());
        bytes.truncate(length);
    }
    // 3. For a session or a handshake that there is: the sender's index of another message.
    let place = match bytes.first() {
        Some(2) => 8..12,
        _ => 4..8,
    };
    if how & 32 != 0
        && let Some(index) = seen
            .get(length % seen.len().max(1))
            .and_then(|seen| seen.bytes.get(4..8))
        && let Some(receiver) = bytes.get_mut(place)
    {
        receiver.copy_from_slice(index);
    }
    // 4. With the right mac1 for the target, which is public.
    if how & 16 != 0 && matches!((bytes.first(), bytes.len()), (Some(1), 148) | (Some(2), 92)) {
        let at = bytes.len() - 32;
        let mac1 = mac1(&public_key(target).0, &bytes[..at]);
        bytes[at..at + 16].copy_from_slice(&mac1);
    }
    // 5. Who replays a message as it was may be the first to deliver it, which is allowed. So it is
    //    changed at least here. The last 16 bytes of a handshake message authenticate nothing. Only
    //    mac1, before them, covers the sender's index, and anybody can compute that: who is the first
    //    may also have changed these two.
    let known = |seen: &SeenDatagram| {
        let authenticated = match (bytes.first(), seen.was_delivered) {
            (Some(1 | 2), false) => 8..bytes.len().saturating_sub(32),
            (Some(1 | 2), true) => 0..bytes.len().saturating_sub(16),
            _ => 0..bytes.len(),
        };
        seen.bytes.len() == bytes.len()
            && seen.bytes.first() == bytes.first()
            && seen.bytes.get(authenticated.clone()) == bytes.get(authenticated)
    };
    if seen.iter().any(known) {
        // Behind sender and receiver index, in all messages.
        bytes[12] ^= 1;
    }
    bytes
}

fn mac1(public: &[u8; 32], signed: &[u8]) -> [u8; 16] {
    let mut hash = Blake2s256::default();
    Update::update(&mut hash, b"mac1----");
    Update::update(&mut hash, public);
    let key = Digest::finalize(hash);
    let mut mac = Blake2sMac::<U16>::new_from_slice(&key).expect("32 bytes");
    Update::update(&mut mac, signed);
    mac.finalize_fixed().into()
}
