//! Where clients come from: ports of this host, UNIX sockets, and ports inside the tunnel.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use adit::net::NetError;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, acceptfrom_with};

use super::core::{ProxyClient, ServeCore, Step};
use super::news::ClientToken;
use super::report::{RefusalReason, ServiceName};
use super::socket::{canonical, tune};
use crate::stack::{Listening, OpenedTcp};

/// Clients that are accepted before others have their turn.
const TURN: usize = 64;
/// How long nobody is accepted after the system had no descriptor.
const PAUSE: Duration = Duration::from_millis(100);

/// A client that came.
pub(crate) struct ClientSocket {
    /// Its socket.
    pub(crate) fd: OwnedFd,
    /// Where it is from; `None` for a UNIX socket.
    pub(crate) from: Option<SocketAddr>,
}

impl std::fmt::Display for ClientSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        From(self.from).fmt(f)
    }
}

/// Where a client is from, for people.
pub(crate) struct From(pub(crate) Option<SocketAddr>);

impl std::fmt::Display for From {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(from) => from.fmt(f),
            None => f.write_str("a client of the UNIX socket"),
        }
    }
}

type MakeClient = Box<dyn Fn(ClientSocket, &ServeCore) -> Box<dyn ProxyClient> + Send>;

/// A socket of this host that listens.
pub(crate) struct Acceptor {
    fd: OwnedFd,
    service: ServiceName,
    make: MakeClient,
    /// Held back, to accept and refuse a client when there is no other descriptor.
    spare: Option<OwnedFd>,
    paused_until: Option<Instant>,
}

impl Acceptor {
    pub(crate) fn new(
        fd: OwnedFd,
        service: ServiceName,
        make: impl Fn(ClientSocket, &ServeCore) -> Box<dyn ProxyClient> + Send + 'static,
    ) -> Self {
        let spare = fd.try_clone().ok();
        Self {
            fd,
            service,
            make: Box::new(make),
            spare,
            paused_until: None,
        }
    }

    /// There is no descriptor: refuses a client with the spare one, and accepts none for a while.
    fn pause(&mut self, core: &ServeCore, token: ClientToken) {
        if self.spare.take().is_some() {
            let refused = accept_with(&self.fd, SocketFlags::CLOEXEC);
            if refused.is_ok() {
                let who = "a client";
                core.report
                    .refused(self.service, RefusalReason::NoDescriptors, &who);
            }
        }
        self.spare = self.fd.try_clone().ok();
        self.paused_until = Some(core.now + PAUSE);
        core.rewatch(&self.fd, token, EventFlags::empty());
    }
}

impl ProxyClient for Acceptor {
    fn begin(&mut self, core: &mut ServeCore, token: ClientToken) -> Step {
        if core.watch(&self.fd, token, EventFlags::IN) {
            return Step::Wait;
        }
        let reason = RefusalReason::NoDescriptors;
        core.report.refused(self.service, reason, &"its listener");
        Step::Done
    }

    fn event(&mut self, core: &mut ServeCore, token: ClientToken, _: EventFlags) -> Step {
        for _ in 0..TURN {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let (fd, from) = match acceptfrom_with(&self.fd, flags) {
                Ok(accepted) => accepted,
                Err(Errno::AGAIN) => break,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    self.pause(core, token);
                    break;
                }
                // It went before it was accepted.
                Err(_) => continue,
            };
            let from = from.and_then(|from| SocketAddr::try_from(from).ok());
            let from = from.map(canonical);
            let arrival = ClientSocket { fd, from };
            // Who asks how the proxy is gets an answer then, too.
            let is_limited = self.service != ServiceName::Info;
            if is_limited && core.clients + core.arrivals.len() >= core.limits.clients {
                core.report
                    .refused(self.service, RefusalReason::Full, &arrival);
                continue;
            }
            tune(&arrival.fd);
            core.report.accepted(self.service);
            let client = (self.make)(arrival, core);
            core.arrivals.push(client);
        }
        Step::Wait
    }

    fn deadline(&self) -> Option<Instant> {
        self.paused_until
    }

    fn expired(&mut self, core: &mut ServeCore, token: ClientToken) -> Step {
        self.paused_until = None;
        core.rewatch(&self.fd, token, EventFlags::IN);
        Step::Wait
    }

    fn counts(&self) -> bool {
        false
    }

    fn failed(&mut self, core: &mut ServeCore) {
        core.report
            .refused(self.service, RefusalReason::Defect, &"its listener");
    }
}

type MakeOutward = Box<dyn Fn(Box<dyn OpenedTcp>, &mut ServeCore) -> Box<dyn ProxyClient> + Send>;

/// A port inside the tunnel.
pub(crate) struct InnerAcceptor {
    listening: Box<dyn Listening>,
    service: ServiceName,
    make: MakeOutward,
    paused_until: Option<Instant>,
}

impl InnerAcceptor {
    pub(crate) fn new(
        listening: Box<dyn Listening>,
        service: ServiceName,
        make: impl Fn(Box<dyn OpenedTcp>, &mut ServeCore) -> Box<dyn ProxyClient> + Send + 'static,
    ) -> Self {
        Self {
            listening,
            service,
            make: Box::new(make),
            paused_until: None,
        }
    }
}

impl ProxyClient for InnerAcceptor {
    fn begin(&mut self, core: &mut ServeCore, token: ClientToken) -> Step {
        if core.watch(&*self.listening, token, EventFlags::IN) {
            return Step::Wait;
        }
        let reason = RefusalReason::NoDescriptors;
        core.report.refused(self.service, reason, &"its listener");
        Step::Done
    }

    fn event(&mut self, core: &mut ServeCore, token: ClientToken, _: EventFlags) -> Step {
        for _ in 0..TURN {
            let opened = match self.listening.try_accept() {
                Ok(Some(opened)) => opened,
                Ok(None) => break,
                Err(NetError::Ended) => return Step::Done,
                // No descriptor or no memory, which come back: who waits is not refused.
                Err(error) => {
                    let who = "a connection inside the tunnel";
                    core.report
                        .refused(self.service, RefusalReason::of(&error), &who);
                    self.paused_until = Some(core.now + PAUSE);
                    core.rewatch(&*self.listening, token, EventFlags::empty());
                    break;
                }
            };
            if core.clients + core.arrivals.len() >= core.limits.clients {
                core.report
                    .refused(self.service, RefusalReason::Full, &opened.peer_addr());
                continue;
            }
            core.report.accepted(self.service);
            let client = (self.make)(opened, core);
            core.arrivals.push(client);
        }
        Step::Wait
    }

    fn deadline(&self) -> Option<Instant> {
        self.paused_until
    }

    fn expired(&mut self, core: &mut ServeCore, token: ClientToken) -> Step {
        self.paused_until = None;
        core.rewatch(&*self.listening, token, EventFlags::IN);
        Step::Wait
    }

    fn counts(&self) -> bool {
        false
    }

    fn failed(&mut self, core: &mut ServeCore) {
        core.report
            .refused(self.service, RefusalReason::Defect, &"its listener");
    }
}
