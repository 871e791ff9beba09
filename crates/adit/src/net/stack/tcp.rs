//! The connections: each has its place, is found by its flow, and has its turn when something happened.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};

use super::clock::{MILLISECOND, Micros, SECOND};
use super::connection::{Ending, Next, Stage, TcpConnection};
use super::core::Core;
use super::listeners::{Listeners, refuse, send_bare};
use super::program_end::ProgramEnd;
use super::table::Table;
use super::time_wait::{LastSegment, TimeWait};
use super::timers::Timers;
use crate::net::budget::Budget;
use crate::net::error::NetError;
use crate::net::shared::{Backlog, ConnectionId, EndReason, OpenConnection, Reply, count};
use crate::net::wire::{ACK, Complaint, FIN, Flow, Headers, RST, SYN};

/// How long the other end may take to complete a connection that it began.
const HALF_OPEN: Micros = 30 * SECOND;
/// When a connection asks again for rings that it did not get.
const LATER: Micros = 20 * MILLISECOND;
/// Connections that have their turn before the queues are looked at again.
const TURNS: usize = 64;

pub(super) struct Tcp {
    table: Table,
    by_flow: HashMap<Flow, usize>,
    listeners: Listeners,
    closed: TimeWait,
    timers: Timers,
    ready: VecDeque<usize>,
    budget: Budget,
}

impl Tcp {
    pub(super) fn new(budget: usize) -> Self {
        Self {
            table: Table::default(),
            by_flow: HashMap::new(),
            listeners: Listeners::default(),
            closed: TimeWait::default(),
            timers: Timers::default(),
            ready: VecDeque::new(),
            budget: Budget::new(budget),
        }
    }

    /// When the next timer is due.
    pub(super) fn next_time(&self) -> Option<Micros> {
        self.timers.next()
    }

    /// Whether a connection waits for its turn.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    // Commands.

    pub(super) fn connect(
        &mut self,
        core: &mut Core,
        remote: SocketAddr,
        timeout: Duration,
        reply: Reply<OpenConnection>,
    ) {
        let Some(local) = core.source_for(remote) else {
            return reply(Err(NetError::NoAddress(remote)));
        };
        let flow = |port| Flow {
            local: SocketAddr::new(local, port),
            remote,
        };
        let is_used = |port| {
            let flow = flow(port);
            self.by_flow.contains_key(&flow) || self.closed.contains(&flow)
        };
        let Some(port) = core.free_port(is_used) else {
            return reply(Err(NetError::PortTaken(0)));
        };
        let Some(index) = self.add(core, flow(port), Stage::Connecting(reply)) else {
            return;
        };
        let timeout = Micros::try_from(timeout.as_micros()).unwrap_or(Micros::MAX / 2);
        let Some(connection) = self.table.at(index) else {
            return;
        };
        connection.deadline = Some(core.now.saturating_add(timeout));
        if connection.connect(core) {
            self.make_ready(index);
        } else {
            self.fail(core, index, NetError::Unreachable(remote));
        }
    }

    pub(super) fn attach(
        &mut self,
        core: &mut Core,
        id: ConnectionId,
        fd: OwnedFd,
        end: Arc<EndReason>,
    ) {
        let Some(index) = self.table.find(id) else {
            // It has been reset since.
            end.reset();
            return;
        };
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let watched = epoll::add(&core.epoll, &fd, EventData::new_u64(id.0), flags);
        if let Some(connection) = self.at(index) {
            connection.program = ProgramEnd::new(fd, end);
        }
        match watched {
            Ok(()) => self.make_ready(index),
            Err(_) => self.reset(core, index),
        }
    }

    pub(super) fn abort(&mut self, core: &mut Core, id: ConnectionId) {
        if let Some(index) = self.table.find(id) {
            self.reset(core, index);
        }
    }

    /// Ends a connection with a RST.
    fn reset(&mut self, core: &mut Core, index: usize) {
        if let Some(connection) = self.table.at(index) {
            // One that rests has nothing to say but that.
            if connection.is_resting() {
                connection.wake(core, self.budget.reserve_last());
            }
            connection.abort(Ending::Reset);
        }
        self.make_ready(index);
    }

    pub(super) fn listen(&mut self, core: &mut Core, port: u16, reply: Reply<Arc<Backlog>>) {
        reply(self.listeners.add(core, port));
    }

    pub(super) fn unlisten(&mut self, core: &mut Core, port: u16) {
        let Some(backlog) = self.listeners.remove(port) else {
            return;
        };
        while let Ok(Some(opened)) = backlog.pop() {
            self.abort(core, opened.id);
        }
        for index in self.table.places() {
            let is_its = |connection: &mut TcpConnection| {
                matches!(connection.stage, Stage::Accepting) && connection.flow.local.port() == port
            };
            if let Some(connection) = self.at(index)
                && is_its(connection)
            {
                self.reset(core, index);
            }
        }
    }

    // What happens.

    /// A descriptor can be read or written.
    pub(super) fn event(&mut self, token: u64, flags: EventFlags) {
        let Some(index) = self.table.find(ConnectionId(token)) else {
            return;
        };
        let any = |of| flags.intersects(of);
        let broken = EventFlags::HUP | EventFlags::ERR;
        if let Some(connection) = self.at(index) {
            connection.program.event(
                any(EventFlags::IN | EventFlags::RDHUP | broken),
                any(EventFlags::OUT | broken),
                any(EventFlags::HUP),
            );
        }
        self.make_ready(index);
    }

    /// A segment was received, or several as one.
    pub(super) fn receive(&mut self, core: &mut Core, packet: &mut [u8], headers: &Headers) {
        let flow = headers.flow(packet);
        if let Some(&index) = self.by_flow.get(&flow) {
            self.hand_over(core, index, packet, headers);
            return;
        }
        let flags = packet[headers.start + 13];
        if flags & RST != 0 {
            return;
        }
        let begins = flags & (SYN | ACK) == SYN;
        if let Some(last) = self.closed.find(core.now, &flow) {
            if !begins {
                // Two ends that remember it would answer each other's answers.
                let header = usize::from(packet[headers.start + 12] >> 4) * 4;
                if flags & (SYN | FIN) != 0 || headers.start + header < headers.end {
                    send_bare(core, &flow, ACK, last.seq, last.ack);
                }
                return;
            }
            self.closed.forget(&flow);
        }
        match begins && self.accept(core, flow) {
            true => {
                if let Some(&index) = self.by_flow.get(&flow) {
                    self.hand_over(core, index, packet, headers);
                }
            }
            false => refuse(core, &flow, packet, headers),
        }
    }

    /// Makes a connection for a SYN. False if it is to be refused.
    fn accept(&mut self, core: &mut Core, flow: Flow) -> bool {
        match self.listeners.begin(flow.local.port()) {
            None => return false,
            Some(true) => {}
            Some(false) => {
                // It comes again.
                count(&core.shared.counters.backlog_full);
                return true;
            }
        }
        let Some(index) = self.add(core, flow, Stage::Accepting) else {
            return false;
        };
        if let Some(connection) = self.at(index) {
            connection.deadline = Some(core.now + HALF_OPEN);
            connection.listen();
        }
        true
    }

    fn hand_over(&mut self, core: &mut Core, index: usize, packet: &mut [u8], headers: &Headers) {
        if !self.wake(core, index) {
            // It comes again.
            return count(&core.shared.counters.no_memory);
        }
        let Some(connection) = self.at(index) else {
            return;
        };
        let received = AssertUnwindSafe(|| connection.receive(core, packet, headers));
        if catch_unwind(received).is_err() {
            return self.failed(core, index);
        }
        self.opened(index);
        self.make_ready(index);
    }

    /// Gives a connection that rests rings again. False if none are left.
    fn wake(&mut self, core: &mut Core, index: usize) -> bool {
        let Some(connection) = self.table.at(index) else {
            return false;
        };
        if !connection.is_resting() {
            return true;
        }
        let Some(rings) = self.budget.reserve() else {
            return false;
        };
        let woken = catch_unwind(AssertUnwindSafe(|| connection.wake(core, rings)));
        if !matches!(woken, Ok(true)) {
            self.failed(core, index);
        }
        self.show(core);
        true
    }

    /// An ICMP error is about a connection.
    pub(super) fn complain(&mut self, core: &mut Core, complaint: &Complaint) {
        let Some(&index) = self.by_flow.get(&complaint.flow) else {
            return;
        };
        let Some(connection) = self.at(index) else {
            return;
        };
        if let Some(mtu) = complaint.mtu {
            connection.segments.shrink(mtu);
        } else if complaint.is_unreachable && matches!(connection.stage, Stage::Connecting(_)) {
            self.fail(core, index, NetError::Unreachable(complaint.flow.remote));
        }
    }

    /// Timers that are due.
    pub(super) fn expire(&mut self, now: Micros) {
        while let Some((at, id)) = self.timers.due(now) {
            let Some(index) = self.table.find(ConnectionId(id)) else {
                continue;
            };
            if let Some(connection) = self.at(index)
                && connection.timer == Some(at)
            {
                connection.timer = None;
            }
            self.make_ready(index);
        }
    }

    /// Connections have their turns, while the tunnel takes more.
    pub(super) fn advance(&mut self, core: &mut Core) {
        for _ in 0..TURNS {
            if !core.egress.has_room() {
                return;
            }
            let Some(index) = self.ready.pop_front() else {
                return;
            };
            let Some(connection) = self.at(index) else {
                continue;
            };
            connection.is_ready = false;
            if connection.is_resting() {
                if !connection.wants_rings(core.now) {
                    continue;
                }
                if !self.wake(core, index) {
                    self.set_timer(index, core.now + LATER);
                    continue;
                }
            }
            let is_tight = self.budget.is_tight();
            let Some(connection) = self.at(index) else {
                continue;
            };
            let Ok(next) = catch_unwind(AssertUnwindSafe(|| connection.advance(core, is_tight)))
            else {
                self.failed(core, index);
                continue;
            };
            self.opened(index);
            match next {
                Next::Wait(None) => {}
                Next::Rest => self.rest(core, index),
                Next::Wait(Some(at)) => self.set_timer(index, at),
                Next::Again | Next::NoRoom => self.make_ready(index),
                Next::Remove(ending) => self.remove(core, index, ending),
            }
        }
    }

    /// A connection carries nothing: others may have its rings.
    fn rest(&mut self, core: &mut Core, index: usize) {
        if let Some(rings) = self.table.at(index).and_then(TcpConnection::rest) {
            self.budget.release(rings);
            self.show(core);
        }
    }

    /// The stack ends: so does every stream.
    pub(super) fn end(&mut self) {
        for index in self.table.places() {
            if let Some(connection) = self.at(index) {
                connection.program.net_ended();
            }
        }
        self.listeners.end();
    }

    // The table.

    fn at(&mut self, index: usize) -> Option<&mut TcpConnection> {
        self.table.at(index)
    }

    /// A new connection, closed, if the budget has enough for it; otherwise it is told.
    fn add(&mut self, core: &mut Core, flow: Flow, stage: Stage) -> Option<usize> {
        let Some(rings) = self.budget.admit() else {
            count(&core.shared.counters.no_memory);
            self.tell(flow, stage, NetError::NoMemory);
            return None;
        };
        let offset = u32::try_from(core.draw() >> 32).unwrap_or(0);
        let connection = TcpConnection::new(flow, core.mtu, rings, offset, stage);
        let index = self.table.add(connection);
        self.by_flow.insert(flow, index);
        self.show(core);
        Some(index)
    }

    /// What others see of the table.
    fn show(&self, core: &Core) {
        let counters = &core.shared.counters;
        let connections = self.by_flow.len() as u64;
        counters.connections.store(connections, Ordering::Relaxed);
        let reserved = self.budget.reserved() as u64;
        counters.reserved.store(reserved, Ordering::Relaxed);
    }

    fn make_ready(&mut self, index: usize) {
        if let Some(connection) = self.at(index)
            && !connection.is_ready
        {
            connection.is_ready = true;
            self.ready.push_back(index);
        }
    }

    fn set_timer(&mut self, index: usize, at: Micros) {
        let id = self.table.id(index);
        if let Some(connection) = self.at(index)
            && connection.timer.is_none_or(|timer| at < timer)
        {
            connection.timer = Some(at);
            self.timers.set(at, id.0);
        }
    }

    /// Tells the caller or the listener of a connection that it is open.
    fn opened(&mut self, index: usize) {
        let id = self.table.id(index);
        let Some(connection) = self.at(index) else {
            return;
        };
        if matches!(connection.stage, Stage::Open) || !connection.is_established() {
            return;
        }
        connection.deadline = None;
        let Flow { local, remote } = connection.flow;
        let opened = OpenConnection { id, local, remote };
        match std::mem::replace(&mut connection.stage, Stage::Open) {
            Stage::Connecting(reply) => reply(Ok(opened)),
            Stage::Accepting => self.listeners.complete(local.port(), Some(opened)),
            Stage::Open => {}
        }
    }

    /// Tells the caller or the listener of a connection that it failed before it was open.
    fn tell(&mut self, flow: Flow, stage: Stage, error: NetError) {
        match stage {
            Stage::Connecting(reply) => reply(Err(error)),
            Stage::Accepting => self.listeners.complete(flow.local.port(), None),
            Stage::Open => {}
        }
    }

    /// A connection has ended.
    fn remove(&mut self, core: &mut Core, index: usize, ending: Ending) {
        let Some(connection) = self.at(index) else {
            return;
        };
        if connection.is_in_time_wait() {
            let last = LastSegment {
                seq: connection.segments.recovery.next(),
                ack: connection.segments.ack,
            };
            let flow = connection.flow;
            self.closed.add(core.now, flow, last);
        }
        let Some(connection) = self.at(index) else {
            return;
        };
        let remote = connection.flow.remote;
        let error = match ending {
            Ending::TimedOut => NetError::TimedOut(remote.to_string()),
            Ending::Reset | Ending::Closed => NetError::Refused(remote),
        };
        self.take_out(core, index, ending, error);
    }

    /// A connection does not come about.
    fn fail(&mut self, core: &mut Core, index: usize, error: NetError) {
        self.take_out(core, index, Ending::Reset, error);
    }

    /// A mistake in smoltcp ends the connection that found it, and no other.
    fn failed(&mut self, core: &mut Core, index: usize) {
        count(&core.shared.counters.failed);
        if let Some(connection) = self.at(index) {
            let remote = connection.flow.remote;
            self.take_out(core, index, Ending::Reset, NetError::Unreachable(remote));
        }
    }

    fn take_out(&mut self, core: &mut Core, index: usize, ending: Ending, error: NetError) {
        let Some(mut connection) = self.table.remove(index) else {
            return;
        };
        if let Some(fd) = connection.program.fd() {
            let _ = epoll::delete(&core.epoll, fd);
        }
        connection.finish(ending);
        if let Some(rings) = connection.rest() {
            self.budget.release(rings);
        }
        self.budget.forget();
        self.by_flow.remove(&connection.flow);
        let stage = std::mem::replace(&mut connection.stage, Stage::Open);
        self.tell(connection.flow, stage, error);
        self.show(core);
    }
}
