//! Two devices with data both ways, and a network that loses no data but does with handshake messages
//! what the input says: what one side seals, the other can open.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use adit_proto::wire::{self, DatagramKind};
use adit_proto::{Device, NotOpened, Time};

use crate::source::InputBytes;
use crate::world::{START, addr, device, drain, joined, open, packet, public_key, seal, wall};

/// So few that no session grows too old because all messages of its rekeys were lost.
const EVENTS: usize = 40;
/// A packet leaves each way this often.
const EVERY: Duration = Duration::from_millis(50);
const ONE_WAY: Duration = Duration::from_millis(30);
/// After this long a host may begin the next handshake.
const PAUSE: Duration = Duration::from_millis(5200);

/// What a handshake message meets.
enum MessageFate {
    Loss,
    /// The receiver is under load.
    Load,
    Delay(Duration),
    Copy(Duration),
}

struct Datagram {
    to: usize,
    bytes: Vec<u8>,
    meets_load: bool,
}

struct RekeyWorld {
    now: Time,
    devices: [Device; 2],
    fates: VecDeque<MessageFate>,
    flying: BTreeMap<(Time, usize), Datagram>,
    sent: usize,
    /// Since when all data that a host gets is of sessions that it does not know.
    unknown: [Option<Time>; 2],
}

pub(crate) fn run(input: &[u8]) {
    let mut source = InputBytes::new(input);
    let mut world = RekeyWorld::new();
    for _ in 0..EVENTS {
        if source.is_empty() {
            break;
        }
        let byte = source.u8();
        let time = EVERY * u32::from(byte >> 3);
        match byte % 8 {
            0 => world.begin(&[0]),
            1 => world.begin(&[1]),
            2 => world.begin(&[0, 1]),
            3 => world.fates.push_back(MessageFate::Loss),
            4 => world.fates.push_back(MessageFate::Load),
            5 => world.fates.push_back(MessageFate::Delay(time)),
            6 => world.fates.push_back(MessageFate::Copy(time)),
            _ => world.flow(PAUSE),
        }
        if byte % 8 < 3 {
            world.flow(time / 4);
        }
    }
    world.flow(PAUSE);
}

impl RekeyWorld {
    fn new() -> Self {
        let host = |n: u8| {
            let mut device = device(1 + u64::from(n));
            device.apply(START, &joined(n, 1 - n)).expect("few peers");
            device
        };
        Self {
            now: START,
            devices: [host(0), host(1)],
            fates: VecDeque::new(),
            flying: BTreeMap::new(),
            sent: 0,
            unknown: [None; 2],
        }
    }

    fn begin(&mut self, hosts: &[usize]) {
        for host in hosts {
            let other = if *host == 0 { 1 } else { 0 };
            self.devices[*host].probe(self.now, &public_key(other));
        }
        for host in hosts {
            self.drain(*host);
        }
    }

    /// Data leaves and arrives for so long.
    fn flow(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            for (host, from, to) in [(0, 0, 1), (1, 1, 0)] {
                let text = packet([10, 0, 0, from], [10, 0, 0, to], b"data");
                let (now, device) = (self.now, &mut self.devices[host]);
                if let Ok((_, bytes)) = seal(device, now, &text, 1420) {
                    self.send(host, bytes);
                }
                self.drain(host);
            }
            let next = self.now + EVERY;
            while let Some(entry) = self.flying.first_entry() {
                if entry.key().0 > next {
                    break;
                }
                self.now = self.now.max(entry.key().0);
                let datagram = entry.remove();
                self.receive(&datagram);
            }
            self.now = next;
            [0, 1].into_iter().for_each(|host| self.drain(host));
        }
    }

    fn drain(&mut self, host: usize) {
        for sent in drain(&mut self.devices[host], self.now) {
            self.send(host, sent.bytes);
        }
    }

    fn send(&mut self, from: usize, bytes: Vec<u8>) {
        let fate = match wire::classify(&bytes) {
            Some(DatagramKind::Handshake) => self.fates.pop_front(),
            _ => None,
        };
        let arrivals = match fate {
            Some(MessageFate::Loss) => vec![],
            Some(MessageFate::Delay(later)) => vec![later],
            Some(MessageFate::Copy(later)) => vec![Duration::ZERO, later],
            Some(MessageFate::Load) | None => vec![Duration::ZERO],
        };
        for later in arrivals {
            self.sent += 1;
            let datagram = Datagram {
                to: 1 - from,
                bytes: bytes.clone(),
                meets_load: matches!(fate, Some(MessageFate::Load)),
            };
            let at = self.now + ONE_WAY + later;
            self.flying.insert((at, self.sent), datagram);
        }
    }

    fn receive(&mut self, datagram: &Datagram) {
        let (now, to) = (self.now, datagram.to);
        let from = addr(if to == 0 { 1 } else { 0 }, 0);
        let (device, bytes) = (&mut self.devices[to], &datagram.bytes);
        if wire::classify(bytes) == Some(DatagramKind::Handshake) {
            device.handle_handshake(now, wall(now), from.into(), bytes, datagram.meets_load);
        } else if let Err(NotOpened::NoSession) = open(device, now, from, bytes) {
            let unknown = now.since(*self.unknown[to].get_or_insert(now));
            assert!(
                unknown <= 2 * ONE_WAY,
                "host {to} knows no session of what came in {unknown:?}"
            );
        } else {
            self.unknown[to] = None;
        }
        self.drain(to);
    }
}
