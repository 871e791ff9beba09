//! Datagrams to a port go to a target: into the tunnel, or out of it. Each client has a port of its own there,
//! so that answers find it, until it was silent for a time.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use adit_io::udp::AnsweringSocket;
use adit_proto::Endpoint;
use rustix::event::epoll::EventFlags;

use super::core::{DATAGRAMS, ProxyClient, ServeCore, Step};
use super::held::HeldDatagram;
use super::news::{ClientToken, News, Side};
use super::report::{RefusalReason, ServiceName};
use crate::config::{EndpointHost, ProxyEndpoint};
use crate::stack::Datagrams;

/// Clients of a forward; a further one takes the place of the one that was silent for longest.
const CLIENTS: usize = 1024;
/// Datagrams that wait for the address of the target.
const WAITING: usize = 64;
/// How long an address of a name is used before it is looked up anew.
const KEPT_FOR: Duration = Duration::from_secs(30);
/// Silence of a client is noticed so often, at most.
const LEAST_PAUSE: Duration = Duration::from_millis(100);

/// A port on either side.
pub(crate) enum DatagramPort {
    /// Of this host; it does not wait.
    Host(AnsweringSocket),
    /// Inside the tunnel.
    Inner(Box<dyn Datagrams>),
}

impl DatagramPort {
    fn recv_from(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Endpoint)> {
        match self {
            Self::Host(socket) => {
                let (len, mut from) = socket.recv_from(buffer)?;
                if let Some(asked) = &mut from.src
                    && !matches!(asked.ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
                {
                    // It is the same address whatever interface a datagram came in on.
                    asked.ifindex = 0;
                }
                Ok((len, from))
            }
            Self::Inner(socket) => {
                let received = socket.recv_from(buffer);
                received.map(|(len, from)| (len, from.into()))
            }
        }
    }

    fn send_to(&self, payload: &[u8], to: Endpoint) -> io::Result<()> {
        match self {
            Self::Host(socket) => socket.send_to(payload, to),
            Self::Inner(socket) => socket.send_to(payload, to.addr).map(drop),
        }
    }
}

impl AsFd for DatagramPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Host(socket) => socket.as_fd(),
            Self::Inner(socket) => socket.as_fd(),
        }
    }
}

struct UdpPeer {
    /// Its address, and that of this host to which it sends.
    address: Endpoint,
    far: DatagramPort,
    last: Instant,
}

/// A port whose datagrams are forwarded.
pub(crate) struct UdpForward {
    service: ServiceName,
    near: DatagramPort,
    target: ProxyEndpoint,
    inactivity: Duration,
    address: Option<(SocketAddr, Instant)>,
    by_address: HashMap<Endpoint, usize>,
    peers: Vec<Option<UdpPeer>>,
    free: Vec<usize>,
    waiting: Vec<(Endpoint, HeldDatagram)>,
    is_asking: bool,
    next_look: Option<Instant>,
}

impl UdpForward {
    pub(crate) fn new(near: DatagramPort, target: ProxyEndpoint, inactivity: Duration) -> Self {
        let service = match near {
            DatagramPort::Host(_) => ServiceName::UdpClient,
            DatagramPort::Inner(_) => ServiceName::UdpServer,
        };
        Self {
            service,
            near,
            target,
            inactivity,
            address: None,
            by_address: HashMap::new(),
            peers: Vec::new(),
            free: Vec::new(),
            waiting: Vec::new(),
            is_asking: false,
            next_look: None,
        }
    }

    /// Where the target is; it is looked up where that is not known, or was long ago.
    fn target_address(&mut self, core: &mut ServeCore, token: ClientToken) -> Option<SocketAddr> {
        let name = match &self.target.host {
            EndpointHost::Address(ip) => return Some(SocketAddr::new(*ip, self.target.port)),
            EndpointHost::Name(name) => name,
        };
        let is_old = self.address.is_none_or(|(_, until)| until <= core.now);
        if is_old && !self.is_asking {
            let side = match self.service {
                ServiceName::UdpClient => Side::Inside,
                _ => Side::Outside,
            };
            let asker = (token.with_part(0), None);
            self.is_asking = core.look_up(asker, side, name).is_ok();
        }
        self.address.map(|(address, _)| address)
    }

    /// Datagrams of clients. False once the tunnel has ended.
    fn outbound(&mut self, core: &mut ServeCore, token: ClientToken) -> bool {
        for _ in 0..DATAGRAMS {
            let (len, from) = match self.near.recv_from(&mut core.scratch) {
                Ok(received) => received,
                Err(error) => return error.kind() != io::ErrorKind::ConnectionAborted,
            };
            match self.target_address(core, token) {
                Some(target) => {
                    let payload = std::mem::take(&mut core.scratch);
                    self.forward(core, token, from, target, &payload[..len]);
                    core.scratch = payload;
                }
                None => {
                    let may_wait = self.waiting.len() < WAITING && self.is_asking;
                    let held = may_wait.then(|| core.held.hold(&core.scratch[..len]));
                    match held.flatten() {
                        Some(held) => self.waiting.push((from, held)),
                        None => core.report.dropped_datagram(),
                    }
                }
            }
        }
        true
    }

    fn forward(
        &mut self,
        core: &mut ServeCore,
        token: ClientToken,
        from: Endpoint,
        target: SocketAddr,
        payload: &[u8],
    ) {
        let place = match self.by_address.get(&from) {
            Some(place) => Some(*place),
            None => self.add(core, token, from, target),
        };
        let peer = place.and_then(|place| self.peers[place].as_mut());
        let sent = peer.map(|peer| {
            peer.last = core.now;
            peer.far.send_to(payload, target.into())
        });
        if !matches!(sent, Some(Ok(_))) {
            core.report.dropped_datagram();
        }
    }

    /// A port for a new client.
    fn add(
        &mut self,
        core: &mut ServeCore,
        token: ClientToken,
        address: Endpoint,
        target: SocketAddr,
    ) -> Option<usize> {
        let service = self.service;
        let refuse = |core: &ServeCore, reason| {
            core.report.refused(service, reason, &address.addr);
            None
        };
        if self.by_address.len() >= CLIENTS {
            self.remove_oldest(core);
        }
        let far = match self.service {
            ServiceName::UdpClient => match core.stack.bind_udp(0) {
                Ok(far) => DatagramPort::Inner(far),
                Err(error) => return refuse(core, RefusalReason::of(&error)),
            },
            _ => match host_port(target) {
                Ok(far) => DatagramPort::Host(far),
                Err(error) => return refuse(core, RefusalReason::of_host(&error)),
            },
        };
        let place = self.free.pop().unwrap_or_else(|| {
            self.peers.push(None);
            self.peers.len() - 1
        });
        if !core.watch(&far, token.with_part(place + 1), EventFlags::IN) {
            self.free.push(place);
            return None;
        }
        core.report.accepted(self.service);
        core.clients += 1;
        self.by_address.insert(address, place);
        self.peers[place] = Some(UdpPeer {
            address,
            far,
            last: core.now,
        });
        let pause = (self.inactivity / 2).max(LEAST_PAUSE);
        self.next_look.get_or_insert(core.now + pause);
        Some(place)
    }

    /// Ends the client that was silent for longest.
    fn remove_oldest(&mut self, core: &mut ServeCore) {
        let of_peer = |(place, slot): (usize, &Option<UdpPeer>)| Some((slot.as_ref()?.last, place));
        let oldest = self.peers.iter().enumerate().filter_map(of_peer).min();
        if let Some((_, place)) = oldest {
            self.remove(core, place);
        }
    }

    fn remove(&mut self, core: &mut ServeCore, place: usize) {
        if let Some(peer) = self.peers[place].take() {
            self.by_address.remove(&peer.address);
            self.free.push(place);
            core.clients -= 1;
        }
    }

    /// Answers for a client. False once the tunnel has ended.
    fn inbound(&mut self, core: &mut ServeCore, place: usize) -> bool {
        let target = match &self.target.host {
            EndpointHost::Address(ip) => Some(SocketAddr::new(*ip, self.target.port)),
            EndpointHost::Name(_) => self.address.map(|(address, _)| address),
        };
        let Some(peer) = self.peers.get_mut(place).and_then(Option::as_mut) else {
            return true;
        };
        for _ in 0..DATAGRAMS {
            let (len, from) = match peer.far.recv_from(&mut core.scratch) {
                Ok(received) => received,
                // An ICMP error about an earlier datagram is one of them.
                Err(error) => return error.kind() != io::ErrorKind::ConnectionAborted,
            };
            peer.last = core.now;
            // Others than the target have nothing to say to the client.
            let is_targets = Some(from.addr) == target;
            if !is_targets
                || self
                    .near
                    .send_to(&core.scratch[..len], peer.address)
                    .is_err()
            {
                core.report.dropped_datagram();
            }
        }
        true
    }
}

/// A port of this host from which a target can be reached.
fn host_port(target: SocketAddr) -> io::Result<AnsweringSocket> {
    let any: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    AnsweringSocket::new(socket)
}

impl ProxyClient for UdpForward {
    fn begin(&mut self, core: &mut ServeCore, token: ClientToken) -> Step {
        match core.watch(&self.near, token, EventFlags::IN) {
            true => Step::Wait,
            false => Step::Done,
        }
    }

    fn event(&mut self, core: &mut ServeCore, token: ClientToken, _: EventFlags) -> Step {
        let stays = match token.part() {
            0 => self.outbound(core, token),
            part => self.inbound(core, part - 1),
        };
        if !stays {
            core.clients -= self.by_address.len();
            return Step::Done;
        }
        Step::Wait
    }

    fn told(&mut self, core: &mut ServeCore, token: ClientToken, news: News) -> Step {
        let News::Names((_, name), names) = news else {
            return Step::Wait;
        };
        self.is_asking = false;
        match names {
            Ok(names) => {
                let known = self.address.map(|(address, _)| address.ip());
                // One that is still right stays, so that clients go on.
                let kept = known
                    .filter(|ip| names.contains(ip))
                    .or(names.first().copied());
                let address = kept.map(|ip| SocketAddr::new(ip, self.target.port));
                self.address = address.map(|address| (address, core.now + KEPT_FOR));
            }
            Err(reason) => core.report.refused(self.service, reason, &name),
        }
        let address = self.address.map(|(address, _)| address);
        for (from, held) in std::mem::take(&mut self.waiting) {
            match address {
                Some(target) => self.forward(core, token, from, target, &held.payload),
                None => core.report.dropped_datagram(),
            }
        }
        Step::Wait
    }

    fn deadline(&self) -> Option<Instant> {
        self.next_look
    }

    fn expired(&mut self, core: &mut ServeCore, _: ClientToken) -> Step {
        for place in 0..self.peers.len() {
            let peer = self.peers[place].as_ref();
            if peer.is_some_and(|peer| peer.last + self.inactivity <= core.now) {
                self.remove(core, place);
            }
        }
        let pause = (self.inactivity / 2).max(LEAST_PAUSE);
        self.next_look = (!self.by_address.is_empty()).then_some(core.now + pause);
        Step::Wait
    }

    fn counts(&self) -> bool {
        false
    }

    fn failed(&mut self, core: &mut ServeCore) {
        core.clients -= self.by_address.len();
        core.report
            .refused(self.service, RefusalReason::Defect, &"its port");
    }
}
