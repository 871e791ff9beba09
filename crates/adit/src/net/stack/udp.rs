//! Datagrams: each port has a descriptor that its program reads and writes.

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};

use super::core::{Core, UDP_TOKEN};
use crate::frame::Gso;
use crate::net::datagram::{self, HEADER, MAX_MESSAGE, MessageKind};
use crate::net::error::NetError;
use crate::net::shared::{Reply, count};
use crate::net::wire::{self, Complaint, Flow, Headers, UDP_HEADER};

/// Datagrams that a port sends before others have their turn.
const TURN: usize = 64;

struct Port {
    port: u16,
    serial: u32,
    fd: OwnedFd,
    is_ready: bool,
    tells_unreachable: Arc<AtomicBool>,
}

impl Port {
    /// Whether its program has closed its end.
    fn is_gone(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::empty())];
        let _ = poll(&mut fds, Some(&Timespec::default()));
        fds[0].revents().contains(PollFlags::HUP)
    }
}

#[derive(Default)]
pub(super) struct Udp {
    ports: HashMap<u16, Port>,
    ready: VecDeque<u16>,
    bound: u32,
    message: Vec<u8>,
}

impl Udp {
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn bind(
        &mut self,
        core: &mut Core,
        port: u16,
        fd: OwnedFd,
        tells_unreachable: Arc<AtomicBool>,
        reply: Reply<u16>,
    ) {
        // The program of the port may be gone since the last turn. What it has sent goes first, and is bounded.
        if self.ports.get(&port).is_some_and(Port::is_gone)
            && let Some(old) = self.ports.remove(&port)
        {
            self.message.resize(MAX_MESSAGE, 0);
            while send_next(core, &old, &mut self.message).is_none() {}
            let _ = epoll::delete(&core.epoll, &old.fd);
        }
        let asked = port;
        let port = match port {
            0 => core.free_port(|port| self.ports.contains_key(&port)),
            port => Some(port).filter(|port| !self.ports.contains_key(port)),
        };
        let Some(port) = port else {
            return reply(Err(NetError::PortTaken(asked)));
        };
        self.bound = (self.bound + 1) & 0x7fff;
        let token = UDP_TOKEN | u64::from(self.bound) << 16 | u64::from(port);
        let flags = EventFlags::IN | EventFlags::ET;
        if let Err(error) = epoll::add(&core.epoll, &fd, EventData::new_u64(token), flags) {
            return reply(Err(NetError::Host(error.into())));
        }
        let socket = Port {
            port,
            serial: self.bound,
            fd,
            is_ready: false,
            tells_unreachable,
        };
        self.ports.insert(port, socket);
        reply(Ok(port));
    }

    /// A descriptor can be read.
    pub(super) fn event(&mut self, token: u64) {
        let port = u16::try_from(token & 0xffff).unwrap_or(0);
        let serial = token >> 16 & 0x7fff;
        if let Some(socket) = self.ports.get_mut(&port)
            && u64::from(socket.serial) == serial
            && !socket.is_ready
        {
            socket.is_ready = true;
            self.ready.push_back(port);
        }
    }

    /// A datagram was received, or several as one.
    pub(super) fn receive(
        &mut self,
        core: &mut Core,
        packet: &[u8],
        headers: &Headers,
        gso: Option<Gso>,
    ) {
        let Flow { local, remote } = headers.flow(packet);
        let Some(socket) = self.ports.get(&local.port()) else {
            core.answer_unreachable(headers, packet);
            return;
        };
        let datagram = &packet[headers.start..headers.end];
        let payloads = match gso {
            Some(gso) => datagram[UDP_HEADER..].chunks(usize::from(gso.segment.max(1))),
            None => {
                let len = usize::from(wire::word(datagram, 4));
                let Some(payload) = datagram.get(UDP_HEADER..len) else {
                    count(&core.shared.counters.malformed);
                    return;
                };
                // An empty one is one, too.
                payload.chunks(payload.len().max(1))
            }
        };
        if payloads.len() == 0 {
            deliver(core, socket, MessageKind::Datagram, remote, &[]);
        }
        for payload in payloads {
            deliver(core, socket, MessageKind::Datagram, remote, payload);
        }
    }

    /// An ICMP error is about a datagram.
    pub(super) fn complain(&mut self, core: &Core, complaint: &Complaint) {
        let Flow { local, remote } = complaint.flow;
        if let Some(socket) = self.ports.get(&local.port())
            && complaint.is_unreachable
            && socket.tells_unreachable.load(Ordering::Relaxed)
        {
            deliver(core, socket, MessageKind::Unreachable, remote, &[]);
        }
    }

    /// Sends what programs have for the tunnel.
    pub(super) fn advance(&mut self, core: &mut Core) {
        if self.ready.is_empty() {
            return;
        }
        for _ in 0..self.ready.len() {
            if !core.egress.has_room() {
                return;
            }
            let Some(port) = self.ready.pop_front() else {
                return;
            };
            match self.turn(core, port) {
                PortState::All => {
                    if let Some(socket) = self.ports.get_mut(&port) {
                        socket.is_ready = false;
                    }
                }
                PortState::Some => self.ready.push_back(port),
                PortState::Closed => {}
            }
        }
    }

    /// Sends what the program of a port has, or some of it. One that is closed is forgotten.
    fn turn(&mut self, core: &mut Core, port: u16) -> PortState {
        self.message.resize(MAX_MESSAGE, 0);
        let Some(socket) = self.ports.get(&port) else {
            return PortState::Closed;
        };
        let state = send(core, socket, &mut self.message);
        if matches!(state, PortState::Closed)
            && let Some(socket) = self.ports.remove(&port)
        {
            let _ = epoll::delete(&core.epoll, &socket.fd);
        }
        state
    }
}

enum PortState {
    All,
    Some,
    Closed,
}

fn send(core: &mut Core, socket: &Port, message: &mut [u8]) -> PortState {
    for _ in 0..TURN {
        if !core.egress.has_room() {
            return PortState::Some;
        }
        if let Some(state) = send_next(core, socket, message) {
            return state;
        }
    }
    PortState::Some
}

/// Sends one datagram. What is left, if that is known.
fn send_next(core: &mut Core, socket: &Port, message: &mut [u8]) -> Option<PortState> {
    let len = match recv(&socket.fd, &mut *message, RecvFlags::DONTWAIT) {
        Ok((_, 0)) => return Some(PortState::Closed),
        Ok((_, len)) => len.min(message.len()),
        Err(Errno::AGAIN) => return Some(PortState::All),
        // The program is gone, and had not read all: what it sent is behind this.
        Err(Errno::INTR | Errno::CONNRESET) => return None,
        Err(_) => return Some(PortState::Closed),
    };
    let message = &message[..len];
    let (_, remote) = datagram::parse(message)?;
    let payload = &message[HEADER..];
    let len = wire::datagram_len(remote.ip(), payload.len());
    let source = core.source_for(remote).filter(|_| len <= core.mtu);
    let Some(source) = source else {
        count(&core.shared.counters.datagrams_dropped);
        return None;
    };
    let flow = Flow {
        local: SocketAddr::new(source, socket.port),
        remote,
    };
    core.egress.send(len, |packet| {
        wire::write_datagram(packet, &flow, payload);
        ((), None)
    });
    None
}

fn deliver(core: &Core, socket: &Port, kind: MessageKind, remote: SocketAddr, payload: &[u8]) {
    let header = datagram::header(kind, remote);
    let pieces = [IoSlice::new(&header), IoSlice::new(payload)];
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = sendmsg(
        &socket.fd,
        &pieces,
        &mut SendAncillaryBuffer::default(),
        flags,
    );
    if sent.is_err() {
        count(&core.shared.counters.datagrams_dropped);
    }
}
