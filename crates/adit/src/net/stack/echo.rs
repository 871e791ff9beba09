//! Echo requests of programs, and what answers them.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::clock::Micros;
use super::core::Core;
use super::timers::Timers;
use crate::net::error::NetError;
use crate::net::shared::Reply;
use crate::net::wire::{self, Complaint, Echo, Flow, Headers};

/// Requests that wait for their answers at most.
const MAX: usize = 1024;

/// A request that waits for its answer.
struct EchoRequest {
    number: u64,
    to: IpAddr,
    sent: Micros,
    reply: Reply<Duration>,
}

pub(super) struct Pings {
    /// What sets them apart from those of other programs behind the same address.
    identifier: u16,
    /// The number of the last one; its lower half is its sequence number.
    last: u64,
    waiting: HashMap<u16, EchoRequest>,
    timers: Timers,
}

/// The sequence number of a request.
fn sequence(number: u64) -> u16 {
    u16::try_from(number & 0xffff).unwrap_or_default()
}

impl Pings {
    pub(super) fn new(core: &mut Core) -> Self {
        Self {
            identifier: sequence(core.draw()),
            last: 0,
            waiting: HashMap::new(),
            timers: Timers::default(),
        }
    }

    /// When the next one is given up.
    pub(super) fn next_time(&self) -> Option<Micros> {
        self.timers.next()
    }

    /// Sends a request.
    pub(super) fn send(
        &mut self,
        core: &mut Core,
        to: IpAddr,
        timeout: Duration,
        reply: Reply<Duration>,
    ) {
        let remote = SocketAddr::new(to, 0);
        let Some(source) = core.source_for(remote) else {
            return reply(Err(NetError::NoAddress(remote)));
        };
        self.last += 1;
        let number = self.last;
        let echo = Echo {
            identifier: self.identifier,
            sequence: sequence(number),
        };
        if self.waiting.len() >= MAX || self.waiting.contains_key(&echo.sequence) {
            return reply(Err(NetError::NoMemory));
        }
        core.egress.send(wire::echo_len(to), |packet| {
            wire::write_echo_request(packet, source, to, echo);
            ((), None)
        });
        let timeout = Micros::try_from(timeout.as_micros()).unwrap_or(Micros::MAX);
        self.timers.set(core.now.saturating_add(timeout), number);
        let request = EchoRequest {
            number,
            to,
            sent: core.now,
            reply,
        };
        self.waiting.insert(echo.sequence, request);
    }

    /// An echo reply was received.
    pub(super) fn receive(&mut self, core: &Core, packet: &[u8], headers: &Headers) {
        let echo = Echo::read(&packet[headers.start..]);
        if let Some(request) = self.take(echo, headers.source) {
            let taken = u64::try_from(core.now - request.sent).unwrap_or(0);
            (request.reply)(Ok(Duration::from_micros(taken)));
        }
    }

    /// An ICMP error is about a request.
    pub(super) fn complain(&mut self, complaint: &Complaint) {
        let Flow { local, remote } = complaint.flow;
        let echo = Echo {
            identifier: local.port(),
            sequence: remote.port(),
        };
        if complaint.is_unreachable
            && let Some(request) = self.take(echo, remote.ip())
        {
            let to = SocketAddr::new(request.to, 0);
            (request.reply)(Err(NetError::Unreachable(to)));
        }
    }

    /// The request that was sent to this address with these numbers.
    fn take(&mut self, echo: Echo, to: IpAddr) -> Option<EchoRequest> {
        let request = self.waiting.get(&echo.sequence)?;
        if echo.identifier != self.identifier || request.to != to {
            return None;
        }
        self.waiting.remove(&echo.sequence)
    }

    /// Gives up those whose time has passed.
    pub(super) fn expire(&mut self, now: Micros) {
        while let Some((_, number)) = self.timers.due(now) {
            let sequence = sequence(number);
            let waits = self.waiting.get(&sequence);
            if waits.is_some_and(|request| request.number == number)
                && let Some(request) = self.waiting.remove(&sequence)
            {
                (request.reply)(Err(NetError::TimedOut(request.to.to_string())));
            }
        }
    }
}
