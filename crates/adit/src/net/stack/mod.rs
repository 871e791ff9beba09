//! The thread that has all connections of a tunnel.
//!
//! It sleeps in epoll, on the descriptors of streams and on one that wakes it. Then, in this order:
//! commands of programs, packets that came out of the tunnel, timers, and the turns of the connections for
//! which any of these was.

mod awake;
mod clock;
mod congestion;
mod connection;
mod core;
mod device;
mod echo;
mod listeners;
mod program_end;
mod recovery;
mod table;
mod tcp;
mod time_wait;
mod timers;
mod udp;

use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use self::clock::Micros;
use self::core::{Core, UDP_TOKEN, WAKE};
use self::echo::Pings;
use self::tcp::Tcp;
use self::udp::Udp;
use super::batch::PacketBatch;
use super::shared::{Command, Shared, count};
use super::wire::{self, Complaint, Headers, Unusable};
use crate::frame::Gso;

/// Descriptors that are looked at in one call.
const EVENTS: usize = 256;

/// What a stack is to be.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) addresses: Vec<IpAddr>,
    pub(super) mtu: usize,
    pub(super) budget: usize,
}

pub(super) struct Stack {
    core: Core,
    tcp: Tcp,
    udp: Udp,
    pings: Pings,
    /// What came out of the tunnel and is being looked at.
    batch: PacketBatch,
    commands: Vec<Command>,
    has_ended: bool,
}

impl Stack {
    pub(super) fn new(shared: Arc<Shared>, settings: Settings) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, &shared.link.wake, EventData::new_u64(WAKE), flags)?;
        let Settings {
            addresses,
            mtu,
            budget,
        } = settings;
        let mut core = Core::new(shared, epoll, addresses, mtu);
        Ok(Self {
            pings: Pings::new(&mut core),
            core,
            tcp: Tcp::new(budget),
            udp: Udp::default(),
            batch: PacketBatch::default(),
            commands: Vec::new(),
            has_ended: false,
        })
    }

    /// Runs until it is to end.
    pub(super) fn run(mut self) {
        let began = Instant::now();
        while !self.has_ended {
            self.wait(began);
            let now = began.elapsed().as_micros();
            self.poll(Micros::try_from(now).unwrap_or(Micros::MAX));
        }
    }

    /// All that is to be done now.
    pub(super) fn poll(&mut self, now: Micros) {
        self.core.now = now;
        self.obey();
        self.receive();
        self.tcp.expire(now);
        self.pings.expire(now);
        self.tcp.advance(&mut self.core);
        self.udp.advance(&mut self.core);
        self.core.egress.flush();
    }

    /// Sleeps until there is something to do, and takes the events of descriptors.
    fn wait(&mut self, began: Instant) {
        let wake = &self.core.shared.link.wake;
        let time = match self.has_work() {
            true => Some(Duration::ZERO),
            false => {
                wake.before_sleep();
                match self.has_work() {
                    true => Some(Duration::ZERO),
                    false => self.next_time().map(|at| {
                        let at = Duration::from_micros(u64::try_from(at).unwrap_or(0));
                        at.saturating_sub(began.elapsed())
                    }),
                }
            }
        };
        self.take_events(time);
        self.core.shared.link.wake.after_sleep();
    }

    /// When the next timer is due.
    fn next_time(&self) -> Option<Micros> {
        let times = [self.tcp.next_time(), self.pings.next_time()];
        times.into_iter().flatten().min()
    }

    fn has_work(&self) -> bool {
        let turns = self.tcp.has_ready() || self.udp.has_ready();
        let shared = &self.core.shared;
        (turns && self.core.egress.has_room()) || shared.link.has_inbound() || !shared.is_quiet()
    }

    /// Looks at the descriptors, for which it waits for so long at most.
    pub(super) fn take_events(&mut self, time: Option<Duration>) {
        // More than some 24 days would take a system call that Linux has since 5.11, and few sandboxes allow.
        let time = time.map(|time| time.min(Duration::from_secs(86_400)));
        let time = time.map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        let mut events = [const { MaybeUninit::<Event>::uninit() }; EVENTS];
        let Ok((events, _)) = epoll::wait(&self.core.epoll, &mut events, time.as_ref()) else {
            return;
        };
        for event in events {
            match event.data.u64() {
                WAKE => {}
                token if token & UDP_TOKEN != 0 => self.udp.event(token),
                token => self.tcp.event(token, event.flags),
            }
        }
    }

    /// Does what programs asked for.
    fn obey(&mut self) {
        let mut commands = std::mem::take(&mut self.commands);
        self.has_ended = !self.core.shared.take(&mut commands);
        for command in commands.drain(..) {
            match command {
                Command::Connect {
                    remote,
                    timeout,
                    reply,
                } => self.tcp.connect(&mut self.core, remote, timeout, reply),
                Command::Attach { id, fd, end } => self.tcp.attach(&mut self.core, id, fd, end),
                Command::Ping { to, timeout, reply } => {
                    self.pings.send(&mut self.core, to, timeout, reply);
                }
                Command::Abort(id) => self.tcp.abort(&mut self.core, id),
                Command::Listen { port, reply } => self.tcp.listen(&mut self.core, port, reply),
                Command::Unlisten(port) => self.tcp.unlisten(&mut self.core, port),
                Command::Bind {
                    port,
                    fd,
                    tells_unreachable,
                    reply,
                } => {
                    let core = &mut self.core;
                    self.udp.bind(core, port, fd, tells_unreachable, reply);
                }
            }
        }
        self.commands = commands;
    }

    /// Looks at what came out of the tunnel.
    fn receive(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        self.core.shared.link.receive(&mut batch);
        while let Some((packet, gso)) = batch.take() {
            self.receive_packet(packet, gso);
        }
        self.batch = batch;
    }

    fn receive_packet(&mut self, packet: &mut [u8], gso: Option<Gso>) {
        let core = &mut self.core;
        let counters = &core.shared.counters;
        let headers = match Headers::parse(packet) {
            Ok(headers) => headers,
            Err(Unusable::Malformed) => return count(&counters.malformed),
            Err(Unusable::Fragment) => return count(&counters.fragments),
        };
        if !core.addresses.contains(&headers.destination) {
            return count(&counters.not_ours);
        }
        // A merged packet has a partial checksum only: the tunnel has authenticated its parts.
        if gso.is_none() && !headers.checksum_is_right(packet) {
            return count(&counters.malformed);
        }
        let packet = &mut packet[..headers.end];
        match headers.protocol {
            wire::TCP => self.tcp.receive(core, packet, &headers),
            wire::UDP => self.udp.receive(core, packet, &headers, gso),
            wire::ICMP | wire::ICMPV6 => self.receive_icmp(packet, &headers),
            _ => count(&counters.not_ours),
        }
    }

    fn receive_icmp(&mut self, packet: &[u8], headers: &Headers) {
        let core = &mut self.core;
        match (headers.protocol, packet[headers.start], headers.source) {
            (wire::ICMP, 8, IpAddr::V4(_)) | (wire::ICMPV6, 128, IpAddr::V6(_)) => {
                return core.answer_echo(headers, packet);
            }
            (wire::ICMP, 0, IpAddr::V4(_)) | (wire::ICMPV6, 129, IpAddr::V6(_)) => {
                return self.pings.receive(core, packet, headers);
            }
            _ => {}
        }
        if let Some(complaint) = Complaint::parse(headers, packet) {
            match complaint.protocol {
                wire::TCP => self.tcp.complain(core, &complaint),
                wire::UDP => self.udp.complain(core, &complaint),
                wire::ICMP | wire::ICMPV6 => self.pings.complain(&complaint),
                _ => {}
            }
        }
    }
}

impl Drop for Stack {
    /// Whatever ended it: nobody waits for it any more.
    fn drop(&mut self) {
        self.core.shared.end();
        self.tcp.end();
    }
}
