//! UDP ASSOCIATE: a port of this host for the datagrams of one client, and one inside the tunnel. Any host inside
//! may send to that one (RFC 4787, endpoint-independent mapping and filtering). Both end with the client's TCP
//! connection.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::acceptor::From;
use super::core::{DATAGRAMS, ProxyClient, ServeCore, Step};
use super::held::HeldDatagram;
use super::news::{ClientToken, FoundNames, News, Side};
use super::report::{RefusalReason, ServiceName};
use super::socket::{READABLE, canonical, local_address, send_short};
use super::socks5::{self, SocksCode};
use crate::config::{EndpointHost, ProxyEndpoint};
use crate::stack::Datagrams;

/// Datagrams that wait for the addresses of their names.
const WAITING: usize = 16;
/// Names whose addresses are kept, and for how long.
const KEPT: usize = 16;
const KEPT_FOR: Duration = Duration::from_secs(10);
/// The longest head of a datagram to the client.
const HEAD: usize = 22;
/// Descriptors.
const CONTROL: usize = 0;
const HOST: usize = 1;
const INNER: usize = 2;

/// The ports of a client.
pub(crate) struct UdpRelay {
    control: OwnedFd,
    from: Option<SocketAddr>,
    host: UdpSocket,
    inner: Box<dyn Datagrams>,
    /// Its address, and any port.
    client_host: SocketAddr,
    /// Where the client's datagrams are from, once it is known.
    client: Option<SocketAddr>,
    waiting: Vec<(Arc<str>, u16, HeldDatagram)>,
    names: Vec<(Arc<str>, IpAddr, Instant)>,
}

impl UdpRelay {
    /// Opens both ports. The client may have said where its datagrams will be from.
    pub(crate) fn new(
        core: &ServeCore,
        control: OwnedFd,
        from: Option<SocketAddr>,
        said: &ProxyEndpoint,
    ) -> Result<Self, (OwnedFd, RefusalReason)> {
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut local = local_address(&control).map_or(here, canonical);
        local.set_port(0);
        let client_host = from.unwrap_or(here);
        let host = UdpSocket::bind(local).and_then(|host| {
            host.set_nonblocking(true)?;
            Ok(host)
        });
        let host = match host {
            Ok(host) => host,
            Err(error) => return Err((control, RefusalReason::of_host(&error))),
        };
        let inner = match core.stack.bind_udp(0) {
            Ok(inner) => inner,
            Err(error) => return Err((control, RefusalReason::of(&error))),
        };
        // A client that does not know yet says zeros. One behind an address translation may be wrong about its address.
        let is_its = said.host == EndpointHost::Address(client_host.ip()) && said.port > 0;
        let client = is_its.then(|| at_port(client_host, said.port));
        core.report.accepted(ServiceName::UdpAssociate);
        Ok(Self {
            control,
            from,
            host,
            inner,
            client_host,
            client,
            waiting: Vec::new(),
            names: Vec::new(),
        })
    }

    /// Datagrams of the client's go into the tunnel.
    fn outbound(&mut self, core: &mut ServeCore, token: ClientToken) {
        for _ in 0..DATAGRAMS {
            let Ok((len, from)) = self.host.recv_from(&mut core.scratch) else {
                return;
            };
            let is_its = match self.client {
                Some(client) => client == from,
                None => from == at_port(self.client_host, from.port()),
            };
            // What is no fragment has number 0 (RFC 1928 §7).
            let read = socks5::datagram(&core.scratch[..len]);
            let (true, Ok(Some(((0, target), head)))) = (is_its, read) else {
                core.report.dropped_datagram();
                continue;
            };
            self.client = Some(from);
            let port = target.port;
            match target.host {
                EndpointHost::Address(ip) => {
                    let to = SocketAddr::new(ip.to_canonical(), port);
                    self.send(core, to, &core.scratch[head..len]);
                }
                EndpointHost::Name(name) => match self.known(core.now, &name) {
                    Some(ip) => {
                        self.send(core, SocketAddr::new(ip, port), &core.scratch[head..len])
                    }
                    None => self.wait(core, token, name, port, head..len),
                },
            }
        }
    }

    fn send(&self, core: &ServeCore, to: SocketAddr, payload: &[u8]) {
        if self.inner.send_to(payload, to).is_err() {
            core.report.dropped_datagram();
        }
    }

    fn known(&self, now: Instant, name: &str) -> Option<IpAddr> {
        let mut kept = self.names.iter().filter(|(_, _, until)| *until > now);
        kept.find(|(kept, _, _)| **kept == *name)
            .map(|(_, ip, _)| *ip)
    }

    fn wait(
        &mut self,
        core: &mut ServeCore,
        token: ClientToken,
        name: String,
        port: u16,
        payload: std::ops::Range<usize>,
    ) {
        // News are for the client, not for one of its descriptors.
        let asker = (token.with_part(CONTROL), self.from.map(|from| from.ip()));
        let held = match self.waiting.len() < WAITING {
            true => core.held.hold(&core.scratch[payload]),
            false => None,
        };
        match held {
            Some(held) if core.look_up(asker, Side::Inside, &name).is_ok() => {
                self.waiting.push((name.into(), port, held));
            }
            _ => core.report.dropped_datagram(),
        }
    }

    fn resolved(&mut self, core: &ServeCore, name: &str, names: &FoundNames) {
        let mine = |(waiting, _, _): &mut (Arc<str>, u16, HeldDatagram)| **waiting == *name;
        let address = names.as_ref().ok().and_then(|names| names.first().copied());
        for (name, port, held) in self.waiting.extract_if(.., mine).collect::<Vec<_>>() {
            let Some(ip) = address else {
                core.report.dropped_datagram();
                continue;
            };
            self.send(core, SocketAddr::new(ip, port), &held.payload);
            if self.known(core.now, &name).is_none() {
                self.names
                    .retain(|(kept, _, until)| *until > core.now && *kept != name);
                if self.names.len() >= KEPT {
                    self.names.remove(0);
                }
                self.names.push((name, ip, core.now + KEPT_FOR));
            }
        }
    }

    /// Datagrams for the client. False once the tunnel has ended.
    fn inbound(&mut self, core: &mut ServeCore) -> bool {
        for _ in 0..DATAGRAMS {
            let (len, from) = match self.inner.recv_from(&mut core.scratch[HEAD..]) {
                Ok(received) => received,
                Err(error) => return error.kind() != std::io::ErrorKind::ConnectionAborted,
            };
            let head = socks5::datagram_head(from);
            let begin = HEAD - head.len();
            core.scratch[begin..HEAD].copy_from_slice(&head);
            let datagram = &core.scratch[begin..HEAD + len];
            let sent = self
                .client
                .map(|client| self.host.send_to(datagram, client));
            if !matches!(sent, Some(Ok(_))) {
                core.report.dropped_datagram();
            }
        }
        true
    }

    /// Both ports end with the TCP connection. What the client says there means nothing.
    fn control(&self, core: &mut ServeCore, flags: EventFlags) -> Step {
        if flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
            return Step::Done;
        }
        match recv(&self.control, &mut core.scratch, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Step::Done,
            // It may say more than there is time for at once.
            Ok(_) | Err(Errno::INTR) => Step::Again,
            Err(Errno::AGAIN) => Step::Wait,
            Err(_) => Step::Done,
        }
    }
}

fn at_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

impl ProxyClient for UdpRelay {
    fn begin(&mut self, core: &mut ServeCore, token: ClientToken) -> Step {
        let is_watched = core.rewatch(&self.control, token, READABLE)
            && core.watch(&self.host, token.with_part(HOST), EventFlags::IN)
            && core.watch(&*self.inner, token.with_part(INNER), EventFlags::IN);
        let Ok(bound) = self.host.local_addr() else {
            return Step::Done;
        };
        let reply = socks5::reply(SocksCode::Succeeded, bound);
        match is_watched && send_short(&self.control, &reply) {
            true => Step::Wait,
            false => Step::Done,
        }
    }

    fn event(&mut self, core: &mut ServeCore, token: ClientToken, flags: EventFlags) -> Step {
        match token.part() {
            CONTROL => return self.control(core, flags),
            HOST => self.outbound(core, token),
            _ if !self.inbound(core) => return Step::Done,
            _ => {}
        }
        Step::Wait
    }

    fn told(&mut self, core: &mut ServeCore, _: ClientToken, news: News) -> Step {
        if let News::Names((_, name), names) = news {
            self.resolved(core, &name, &names);
        }
        Step::Wait
    }

    fn failed(&mut self, core: &mut ServeCore) {
        let who = From(self.from);
        core.report
            .refused(ServiceName::UdpAssociate, RefusalReason::Defect, &who);
    }
}
