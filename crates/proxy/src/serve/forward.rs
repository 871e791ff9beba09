//! Clients that say nothing of where they want to, or say it in TLS: TCP forwards into the tunnel, and SNI.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll::EventFlags;

use super::acceptor::{ClientSocket, From};
use super::closing::Closing;
use super::core::{ProxyClient, ServeCore, Step};
use super::dial::Dial;
use super::news::{ClientToken, News};
use super::report::{RefusalReason, ServiceName};
use super::sni::{self, SniMistake};
use super::socket::{Peeked, READABLE, peek, reset};
use crate::config::{EndpointHost, ProxyEndpoint};

/// Where clients of SNI get to, as with wireproxy: the port of HTTPS, whatever port they come to.
const HTTPS: u16 = 443;
/// TLS's `internal_error`, and its alert for a name that nobody knows.
const INTERNAL_ERROR: u8 = 80;
const UNRECOGNIZED_NAME: u8 = 112;

/// A client of a forward, or of SNI.
pub(crate) struct ForwardClient {
    /// `None` once it went on to something else.
    fd: Option<OwnedFd>,
    from: Option<SocketAddr>,
    /// `None` if the client names it.
    target: Option<Arc<ProxyEndpoint>>,
    dial: Option<Dial>,
    until: Instant,
}

impl ForwardClient {
    pub(crate) fn new(
        arrival: ClientSocket,
        target: Option<Arc<ProxyEndpoint>>,
        core: &ServeCore,
    ) -> Self {
        Self {
            fd: Some(arrival.fd),
            from: arrival.from,
            target,
            dial: None,
            until: core.now + core.limits.request,
        }
    }

    fn service(&self) -> ServiceName {
        match self.target {
            Some(_) => ServiceName::TcpClient,
            None => ServiceName::Sni,
        }
    }

    fn refuse(&mut self, core: &ServeCore, reason: RefusalReason, alert: Option<[u8; 7]>) -> Step {
        core.report
            .refused(self.service(), reason, &From(self.from));
        let Some(fd) = self.fd.take() else {
            return Step::Done;
        };
        match alert {
            Some(alert) => Step::Become(Closing::client(fd, alert.to_vec(), core.now, true)),
            None => {
                reset(&fd);
                Step::Done
            }
        }
    }

    fn dial(&mut self, core: &mut ServeCore, token: ClientToken, target: &ProxyEndpoint) -> Step {
        match Dial::begin(core, token, self.from, target) {
            Ok(dial) => {
                self.until = dial.deadline();
                self.dial = Some(dial);
                Step::Wait
            }
            Err(reason) => self.failed_with(core, reason),
        }
    }

    fn failed_with(&mut self, core: &ServeCore, reason: RefusalReason) -> Step {
        let alert = match (self.service(), reason) {
            (ServiceName::Sni, RefusalReason::UnknownName) => Some(sni::fatal(UNRECOGNIZED_NAME)),
            (ServiceName::Sni, _) => Some(sni::fatal(INTERNAL_ERROR)),
            _ => None,
        };
        self.refuse(core, reason, alert)
    }

    /// Looks for the name that the client wants. Nothing is taken: the server gets it.
    fn read(&mut self, core: &mut ServeCore, token: ClientToken, flags: EventFlags) -> Step {
        let Some(fd) = &self.fd else {
            return Step::Done;
        };
        let bytes = match peek(fd, &mut core.scratch[..sni::LONGEST_HELLO]) {
            Peeked::Bytes(len) => &core.scratch[..len],
            Peeked::Nothing => return Step::Wait,
            // A probe of the port: a connection without a request.
            Peeked::End => return Step::Done,
            Peeked::Broken => return self.refuse(core, RefusalReason::Gone, None),
        };
        match sni::server_name(bytes) {
            Ok(Some(name)) => {
                let host = EndpointHost::Name(name);
                self.dial(core, token, &ProxyEndpoint { host, port: HTTPS })
            }
            Ok(None) if flags.intersects(EventFlags::RDHUP | EventFlags::HUP) => {
                self.refuse(core, RefusalReason::Gone, None)
            }
            Ok(None) => Step::Wait,
            Err(mistake) => {
                let reason = match mistake {
                    SniMistake::NoName => RefusalReason::NotSupported,
                    _ => RefusalReason::Malformed,
                };
                self.refuse(core, reason, Some(sni::alert(mistake)))
            }
        }
    }
}

impl ProxyClient for ForwardClient {
    fn begin(&mut self, core: &mut ServeCore, token: ClientToken) -> Step {
        let is_watched = self
            .fd
            .as_ref()
            .is_some_and(|fd| core.watch(fd, token, READABLE));
        match self.target.clone() {
            _ if !is_watched => Step::Done,
            Some(target) => self.dial(core, token, &target),
            None => self.read(core, token, EventFlags::empty()),
        }
    }

    fn event(&mut self, core: &mut ServeCore, token: ClientToken, flags: EventFlags) -> Step {
        match self.dial {
            Some(_) if flags.intersects(EventFlags::HUP | EventFlags::ERR) => {
                self.refuse(core, RefusalReason::Gone, None)
            }
            Some(_) => Step::Wait,
            None => self.read(core, token, flags),
        }
    }

    fn told(&mut self, core: &mut ServeCore, token: ClientToken, news: News) -> Step {
        let Some(dial) = &mut self.dial else {
            return Step::Wait;
        };
        match dial.told(core, token, news) {
            None => Step::Wait,
            Some(Err(reason)) => self.failed_with(core, reason),
            Some(Ok(opened)) => {
                if let Some(fd) = self.fd.take() {
                    core.unwatch(&fd);
                    // After the end of the tunnel there is nobody to tell.
                    let _ = opened.join(fd);
                }
                Step::Done
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        Some(self.until)
    }

    fn expired(&mut self, core: &mut ServeCore, _: ClientToken) -> Step {
        match self.dial {
            Some(_) => self.failed_with(core, RefusalReason::TimedOut),
            None => self.refuse(core, RefusalReason::Slow, None),
        }
    }

    fn failed(&mut self, core: &mut ServeCore) {
        core.report
            .refused(self.service(), RefusalReason::Defect, &From(self.from));
    }
}
