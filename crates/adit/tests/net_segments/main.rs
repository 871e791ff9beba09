//! What a stack makes of single segments: the test is the other end, on a clock of its own.

#![cfg(feature = "net")]

mod endings;
mod numbers;
mod ports;
mod repeats;
mod windows;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Receiver;

use adit::net::testing::BareStack;
use adit::{Gso, GsoKind};

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

const SECOND: i64 = 1_000_000;
/// The first sequence number of the test's end.
const FIRST: u32 = 3_000_000_000;
/// By how many bits the windows of the test's end are more than it writes.
const SCALE: u8 = 6;
/// What makes rings of 2 KiB.
const SMALL: usize = 40 << 10;
const LARGE: usize = 64 << 20;

/// A segment that the stack sent.
#[derive(Clone, Debug)]
struct Segment {
    flags: u8,
    seq: u32,
    ack: u32,
    window: u16,
    len: u32,
}

/// A stack with one program, and its other end.
struct OtherEnd {
    stack: BareStack,
    program: Option<UnixStream>,
    now: i64,
    /// The port of the stack, and its next sequence number.
    port: u16,
    next: u32,
    /// The next sequence number of this end.
    seq: u32,
    window: u16,
}

fn stack(budget: usize) -> BareStack {
    let address = IpAddr::from([10, 0, 0, 1]);
    BareStack::new(&[address], budget, &[9]).expect("a stack")
}

fn wide(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(*bytes[at..].first_chunk().expect("four bytes"))
}

impl OtherEnd {
    /// The program has connected, and has read and written nothing.
    fn new(budget: usize, window: u16) -> Self {
        let (mut end, opened) = Self::connecting(budget, window);
        end.answer_syn();
        assert_eq!(opened.try_recv(), Ok(true));
        end.step();
        end
    }

    /// The program waits for the answer to its SYN.
    fn connecting(budget: usize, window: u16) -> (Self, Receiver<bool>) {
        let mut end = Self::alone(stack(budget), window);
        let (program, ours) = UnixStream::pair().expect("two sockets");
        program.set_nonblocking(true).expect("it can");
        end.program = Some(program);
        let remote = SocketAddr::from(([10, 0, 0, 2], 7));
        let opened = end.stack.connect(remote, ours.into());
        let syn = end.step().pop().expect("a SYN");
        end.next = syn.seq + 1;
        (end, opened)
    }

    fn alone(stack: BareStack, window: u16) -> Self {
        Self {
            stack,
            program: None,
            now: SECOND,
            port: 0,
            next: 0,
            seq: FIRST,
            window,
        }
    }

    fn answer_syn(&mut self) {
        self.send(SYN | ACK, self.seq, self.next, &[]);
        self.seq += 1;
        self.step();
    }

    fn program(&self) -> &UnixStream {
        self.program.as_ref().expect("it is there")
    }

    /// A segment of this end to the stack.
    fn send(&mut self, flags: u8, seq: u32, ack: u32, payload: &[u8]) {
        let packet = self.packet(flags, seq, ack, payload);
        self.push(&packet);
    }

    fn packet(&self, flags: u8, seq: u32, ack: u32, payload: &[u8]) -> Vec<u8> {
        let options: &[u8] = match flags & SYN {
            0 => &[],
            _ => &[2, 4, 5, 100, 1, 3, 3, SCALE, 1, 1, 4, 2],
        };
        let header = 20 + options.len();
        let len = 20 + header + payload.len();
        let mut packet = vec![0; 40];
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&u16::try_from(len).expect("short").to_be_bytes());
        (packet[8], packet[9]) = (64, 6);
        packet[12..20].copy_from_slice(&[10, 0, 0, 2, 10, 0, 0, 1]);
        let words = packet[..20].chunks(2);
        let sum: u32 = words
            .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
            .sum();
        let checksum = !u16::try_from((sum & 0xffff) + (sum >> 16)).expect("folded");
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        packet[20..22].copy_from_slice(&7_u16.to_be_bytes());
        packet[22..24].copy_from_slice(&self.port.to_be_bytes());
        packet[24..28].copy_from_slice(&seq.to_be_bytes());
        packet[28..32].copy_from_slice(&ack.to_be_bytes());
        packet[32] = u8::try_from(header / 4).expect("short") << 4;
        packet[33] = flags;
        packet[34..36].copy_from_slice(&self.window.to_be_bytes());
        packet.extend(options);
        packet.extend(payload);
        packet
    }

    fn push(&mut self, packet: &[u8]) {
        // Its checksum is not looked at, as that of a merged packet is not.
        let gso = Gso {
            kind: GsoKind::Tcp4,
            segment: 1380,
        };
        self.stack.push(packet, Some(gso));
    }

    /// Acknowledges all that came, without more.
    fn acknowledge(&mut self) {
        self.send(ACK, self.seq, self.next, &[]);
    }

    /// Some time passes: what the stack sends meanwhile.
    fn step(&mut self) -> Vec<Segment> {
        self.now += 10_000;
        let mut came = Vec::new();
        let port = &mut self.port;
        self.stack.poll(self.now, |packet| {
            *port = u16::from_be_bytes([packet[20], packet[21]]);
            let header = 20 + usize::from(packet[32] >> 4) * 4;
            came.push(Segment {
                flags: packet[33],
                seq: wide(packet, 24),
                ack: wide(packet, 28),
                window: u16::from_be_bytes([packet[34], packet[35]]),
                len: u32::try_from(packet.len() - header).expect("short"),
            });
        });
        came
    }

    /// The same for so long; each segment is answered as it says.
    fn run(&mut self, time: i64, mut answer: impl FnMut(&mut Self, &Segment)) -> Vec<Segment> {
        let until = self.now + time;
        let mut came = Vec::new();
        while self.now < until {
            let new = self.step();
            new.iter().for_each(|segment| answer(self, segment));
            came.extend(new);
        }
        came
    }

    /// Takes what comes in order, and acknowledges it.
    fn take(&mut self, segment: &Segment) {
        let control = u32::from(segment.flags & FIN);
        if segment.seq == self.next {
            self.next += segment.len + control;
        }
        if segment.len + control > 0 {
            self.acknowledge();
        }
    }

    /// What the program can read now, and whether that ends.
    fn read(&self) -> (usize, bool) {
        let mut len = 0;
        loop {
            match Read::read(&mut self.program(), &mut [0; 4096]) {
                Ok(0) => return (len, true),
                Ok(more) => len += more,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    return (len, false);
                }
            }
        }
    }

    fn write(&self, len: usize) {
        let written = Write::write(&mut self.program(), &vec![7; len]).expect("room");
        assert_eq!(written, len);
    }
}
