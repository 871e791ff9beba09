//! Connections to a port inside the tunnel, which go to a target outside.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use super::core::{ProxyClient, ServeCore, Step};
use super::news::{ClientToken, News, Side};
use super::report::{RefusalReason, ServiceName};
use super::socket::tune;
use crate::config::{EndpointHost, ProxyEndpoint};
use crate::stack::OpenedTcp;

/// A connection that is accepted, and its target, which is being connected to.
pub(crate) struct OutwardClient {
    /// `None` once it is joined.
    opened: Option<Box<dyn OpenedTcp>>,
    from: SocketAddr,
    target: Arc<ProxyEndpoint>,
    addresses: Arc<[IpAddr]>,
    tried: usize,
    fd: Option<OwnedFd>,
    /// When the next address has its turn, and when there is no more time.
    next: Instant,
    until: Instant,
}

impl OutwardClient {
    pub(crate) fn new(
        opened: Box<dyn OpenedTcp>,
        target: Arc<ProxyEndpoint>,
        core: &ServeCore,
    ) -> Self {
        Self {
            from: opened.peer_addr(),
            opened: Some(opened),
            target,
            addresses: Arc::new([]),
            tried: 0,
            fd: None,
            next: core.now + core.limits.connect,
            until: core.now + core.limits.connect,
        }
    }

    /// Resets the connection.
    fn refuse(&self, core: &ServeCore, reason: RefusalReason) -> Step {
        core.report
            .refused(ServiceName::TcpServer, reason, &self.from);
        Step::Done
    }

    /// Connects to the next address that can be.
    fn connect(&mut self, core: &ServeCore, token: ClientToken, mut error: Errno) -> Step {
        while let Some(ip) = self.addresses.get(self.tried) {
            let left = self.until.saturating_duration_since(core.now);
            let others = u32::try_from(self.addresses.len() - self.tried).unwrap_or(u32::MAX);
            self.next = core.now + left / others.max(1);
            self.tried += 1;
            let address = SocketAddr::new(*ip, self.target.port);
            match begin(address) {
                Ok(fd) => {
                    let flags = EventFlags::OUT | EventFlags::ET;
                    if !core.watch(&fd, token, flags) {
                        return self.refuse(core, RefusalReason::NoDescriptors);
                    }
                    self.fd = Some(fd);
                    return Step::Wait;
                }
                Err(because) => error = because,
            }
        }
        self.refuse(
            core,
            match error {
                Errno::CONNREFUSED => RefusalReason::Refused,
                Errno::MFILE | Errno::NFILE => RefusalReason::NoDescriptors,
                Errno::TIMEDOUT => RefusalReason::TimedOut,
                _ => RefusalReason::Unreachable,
            },
        )
    }
}

/// Begins to connect, without waiting.
fn begin(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(family, SocketType::STREAM, flags, None)?;
    tune(&fd);
    match connect(&fd, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
        Err(error) => Err(error),
    }
}

impl ProxyClient for OutwardClient {
    fn begin(&mut self, core: &mut ServeCore, token: ClientToken) -> Step {
        match &self.target.host {
            EndpointHost::Address(ip) => {
                self.addresses = Arc::new([*ip]);
                self.connect(core, token, Errno::HOSTUNREACH)
            }
            EndpointHost::Name(name) => match core.look_up((token, None), Side::Outside, name) {
                Ok(()) => Step::Wait,
                Err(reason) => self.refuse(core, reason),
            },
        }
    }

    fn event(&mut self, core: &mut ServeCore, token: ClientToken, _: EventFlags) -> Step {
        let Some(fd) = &self.fd else {
            return Step::Wait;
        };
        if let Err(error) | Ok(Err(error)) = socket_error(fd) {
            self.fd = None;
            return self.connect(core, token, error);
        }
        if let (Some(opened), Some(fd)) = (self.opened.take(), self.fd.take()) {
            core.unwatch(&fd);
            // After the end of the tunnel there is nobody to tell.
            let _ = opened.join(fd);
        }
        Step::Done
    }

    fn told(&mut self, core: &mut ServeCore, token: ClientToken, news: News) -> Step {
        match news {
            News::Names(_, Ok(names)) => {
                self.addresses = names;
                self.connect(core, token, Errno::HOSTUNREACH)
            }
            News::Names(_, Err(reason)) => self.refuse(core, reason),
            _ => Step::Wait,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        Some(self.next)
    }

    fn expired(&mut self, core: &mut ServeCore, token: ClientToken) -> Step {
        self.fd = None;
        self.connect(core, token, Errno::TIMEDOUT)
    }

    fn failed(&mut self, core: &mut ServeCore) {
        core.report
            .refused(ServiceName::TcpServer, RefusalReason::Defect, &self.from);
    }
}
