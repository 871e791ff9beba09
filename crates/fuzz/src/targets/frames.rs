//! Packets that a network inside a tunnel gets: none may panic, and none may harm a connection's table.
//!
//! Half of them are taken as they are. The others are segments of connections that are under way: with
//! numbers near those that the stack sent last, any flags, options and lengths.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;

use adit::net::testing::{BareStack, read_dns_answer};
use adit::{Gso, GsoKind};

use super::naive::{pseudo, sum};
use crate::source::InputBytes;

const OURS: [u8; 4] = [10, 0, 0, 1];
const THEIRS: [u8; 4] = [10, 0, 0, 2];
const LISTENS: u16 = 80;
/// Steps of an input at most.
const STEPS: usize = 64;

/// What the stack sent last, as its other end sees it.
#[derive(Clone, Copy, Default)]
struct Last {
    port: u16,
    seq: u32,
    ack: u32,
}

pub(crate) fn run(input: &[u8]) {
    read_dns_answer(input);
    let mut source = InputBytes::new(input);
    let addresses = [IpAddr::from(OURS), "fd00::1".parse().expect("an address")];
    let mut stack = BareStack::new(&addresses, 1 << 20, &[LISTENS]).expect("a stack");
    let (ours, theirs) = UnixStream::pair().expect("two sockets");
    let remote = SocketAddr::from((THEIRS, LISTENS));
    let _opened = stack.connect(remote, theirs.into());
    ours.set_nonblocking(true).expect("it can");
    let (mut now, mut last) = (0, Last::default());
    for _ in 0..STEPS {
        if source.is_empty() {
            break;
        }
        match source.below(8) {
            0..3 => {
                let gso = gso(&mut source);
                let packet = source.piece(128);
                stack.push(&packet, gso);
            }
            3..6 => {
                let gso = gso(&mut source);
                let packet = segment(&mut source, last);
                stack.push(&packet, gso);
            }
            6 => {
                use std::io::{Read, Write};
                let bytes = source.piece(200);
                let _ = (&ours).write(&bytes);
                let _ = (&ours).read(&mut [0; 100]);
            }
            _ => now += i64::from(source.u16()) << source.below(12),
        }
        now += 1;
        stack.poll(now, |packet| {
            assert!(packet.len() >= 20, "a packet has a header");
            if packet[0] == 0x45 && packet[9] == 6 {
                last = Last {
                    port: u16::from_be_bytes([packet[20], packet[21]]),
                    seq: u32::from_be_bytes([packet[24], packet[25], packet[26], packet[27]]),
                    ack: u32::from_be_bytes([packet[28], packet[29], packet[30], packet[31]]),
                };
            }
        });
    }
    let stats = stack.stats();
    assert_eq!(stats.failed, 0, "smoltcp panicked");
    assert!(stats.reserved <= 1 << 20, "the budget");
    assert!(stats.connections < 300, "{}", stats.connections);
}

fn gso(source: &mut InputBytes<'_>) -> Option<Gso> {
    let kind = match source.below(8) {
        0 => GsoKind::Tcp4,
        1 => GsoKind::Tcp6,
        2 => GsoKind::Udp,
        _ => return None,
    };
    let segment = source.u16();
    Some(Gso { kind, segment })
}

/// A segment to the stack, whose lengths and checksums are right.
fn segment(source: &mut InputBytes<'_>, last: Last) -> Vec<u8> {
    let near = |number: u32, source: &mut InputBytes<'_>| {
        let by = match source.below(4) {
            0 => source.u32(),
            1 => u32::from(source.u16()),
            _ => u32::from(source.u8() & 3),
        };
        match source.bool() {
            true => number.wrapping_add(by),
            false => number.wrapping_sub(by),
        }
    };
    let (from, to) = match source.below(4) {
        // To the listener, from one of a few ports.
        0 => (1000 + u16::from(source.u8() & 7), LISTENS),
        _ => (LISTENS, last.port),
    };
    let (seq, ack) = (near(last.ack, source), near(last.seq, source));
    let flags = source.u8();
    let window = source.u16();
    let mut options = source.piece(41);
    options.resize(options.len().next_multiple_of(4), 0);
    let payload = source.piece(200);
    let mut segment = Vec::new();
    segment.extend(from.to_be_bytes());
    segment.extend(to.to_be_bytes());
    segment.extend(seq.to_be_bytes());
    segment.extend(ack.to_be_bytes());
    let header = u8::try_from((20 + options.len()) / 4).unwrap_or(15);
    segment.extend([header << 4, flags]);
    segment.extend(window.to_be_bytes());
    segment.extend([0; 4]);
    segment.extend(options);
    segment.extend(payload);
    let [high, low] = u16::try_from(20 + segment.len()).unwrap_or(0).to_be_bytes();
    let mut packet = vec![0x45, 0, high, low, 0, 0, 0x40, 0, 64, 6, 0, 0];
    packet.extend(THEIRS);
    packet.extend(OURS);
    let checksum = (!sum(&[&packet])).to_be_bytes();
    packet[10..12].copy_from_slice(&checksum);
    let pseudo = pseudo(&packet, false, 6, segment.len());
    let checksum = (!sum(&[&pseudo, &segment])).to_be_bytes();
    segment[16..18].copy_from_slice(&checksum);
    packet.extend(segment);
    packet
}
