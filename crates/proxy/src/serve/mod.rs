//! The clients of a proxy.
//!
//! [`bind`] opens the sockets of this host. [`Proxy::start`] begins: one thread has all clients until their
//! request is known and its target is connected to. Then the stack carries the client's own socket, and the
//! proxy is out of the way. Names are looked up by a few other threads.

mod acceptor;
mod certificate;
mod closing;
mod core;
mod dial;
mod event_loop;
mod exchange;
mod forward;
mod held;
#[doc(hidden)]
pub mod http;
mod http_client;
mod http_peer;
mod info;
mod listeners;
mod news;
mod options;
mod outward;
mod pool;
mod report;
mod secret;
#[doc(hidden)]
pub mod sni;
mod socket;
#[doc(hidden)]
pub mod socks5;
mod socks_client;
mod stdio;
mod tls_client;
mod udp_forward;
mod udp_relay;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::{fmt, io};

use adit_io::udp::AnsweringSocket;

use self::acceptor::{Acceptor, ClientSocket, InnerAcceptor};
use self::core::{ProxyClient, ServeCore, WaitingPools};
use self::event_loop::ClientLoop;
use self::forward::ForwardClient;
use self::http_client::HttpClient;
use self::http_peer::HttpPeer;
use self::info::InfoClient;
use self::listeners::{PreparedService, SocketFiles};
use self::news::NewsQueue;
use self::outward::OutwardClient;
use self::pool::WaitingPool;
use self::report::ServeReport;
use self::secret::LoginCheck;
use self::socks_client::SocksClient;
use self::tls_client::TlsClient;
use self::udp_forward::{DatagramPort, UdpForward};
use crate::config::{EndpointHost, ProxyEndpoint, Resolve};
use crate::stack::Stack;

pub use certificate::read_certificate;
pub use listeners::{ProxyListeners, bind};
pub use options::{
    InfoOptions, InfoPage, PageMaker, ServeError, ServeLimits, ServeOptions, StartHook, StdioHook,
};
pub use report::{Level, LogSink, ProxyStats, RefusalReason, ServiceName};

/// Threads that look up names inside the tunnel. Each may wait for as long as a connection may take. One that rests
/// costs some 85 KB of memory, most of them for what it gives up at its start.
const THREADS: usize = 16;

/// A proxy that has clients. Dropping it ends it: clients whose request is under way are closed. Connections
/// that are joined to a client's socket end with the stack.
pub struct Proxy {
    news: Arc<NewsQueue>,
    report: Arc<ServeReport>,
    thread: Option<JoinHandle<()>>,
    /// Removed when it ends.
    _sockets: SocketFiles,
}

impl Proxy {
    /// Begins to serve what `listeners` listen on.
    ///
    /// # Errors
    ///
    /// [`ServeError::Inner`] if a port inside the tunnel cannot be had, and [`ServeError::Host`].
    pub fn start(
        stack: Arc<dyn Stack>,
        listeners: ProxyListeners,
        resolve: Resolve,
        mut options: ServeOptions,
    ) -> Result<Self, ServeError> {
        let report = Arc::new(ServeReport::new(options.log.clone()));
        let most = news::ClientToken::MOST / 2;
        options.limits.clients = options.limits.clients.min(most);
        let pools = begin_pools(&listeners, &options).map_err(ServeError::Host)?;
        let core = ServeCore::new(
            Arc::clone(&stack),
            resolve,
            options.limits,
            Arc::clone(&report),
            pools,
        );
        let mut core = core.map_err(ServeError::Host)?;
        let ProxyListeners {
            prepared, sockets, ..
        } = listeners;
        for prepared in prepared {
            begin(&stack, &mut core, &options, prepared)?;
        }
        if let Some(InfoOptions { listener, pages }) = options.info {
            rustix::io::ioctl_fionbio(&listener, true)
                .map_err(|error| ServeError::Host(error.into()))?;
            let make = move |arrival, core: &ServeCore| -> Box<dyn ProxyClient> {
                Box::new(InfoClient::new(arrival, &pages, core))
            };
            let acceptor = Acceptor::new(listener, ServiceName::Info, make);
            core.arrivals.push(Box::new(acceptor));
        }
        let news = Arc::clone(&core.news);
        let mut clients = ClientLoop::new(core).map_err(|error| ServeError::Host(error.into()))?;
        let on_start = options.on_start;
        let run = move || {
            if let Some(on_start) = on_start {
                on_start();
            }
            clients.welcome();
            clients.run();
        };
        let named = std::thread::Builder::new().name("adit-clients".into());
        let thread = named.spawn(run).map_err(ServeError::Host)?;
        Ok(Self {
            news,
            report,
            thread: Some(thread),
            _sockets: sockets,
        })
    }

    /// Its counters. It waits for nobody.
    pub fn stats(&self) -> ProxyStats {
        self.report.stats()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.news.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").finish_non_exhaustive()
    }
}

/// Threads for what waits, as far as it is needed.
fn begin_pools(listeners: &ProxyListeners, options: &ServeOptions) -> io::Result<WaitingPools> {
    let confined = |name, threads| WaitingPool::new(name, threads, options.on_start.clone());
    Ok(WaitingPools {
        inside: confined("adit-names", THREADS)?,
        // The system's resolver opens files and sockets of its own, and what it gets is not from clients.
        outside: match listeners.prepared.iter().any(looks_up_outside) {
            true => Some(WaitingPool::new("adit-names-out", 1, None)?),
            false => None,
        },
        pages: match &options.info {
            Some(_) => Some(confined("adit-pages", 1)?),
            None => None,
        },
    })
}

fn looks_up_outside(prepared: &PreparedService) -> bool {
    match prepared {
        PreparedService::InnerTcp { target, .. } | PreparedService::InnerUdp { target, .. } => {
            matches!(target.host, EndpointHost::Name(_))
        }
        _ => false,
    }
}

/// Begins a service: what brings its clients arrives first.
fn begin(
    stack: &Arc<dyn Stack>,
    core: &mut ServeCore,
    options: &ServeOptions,
    prepared: PreparedService,
) -> Result<(), ServeError> {
    let inner = |line, port| move |error| ServeError::Inner { line, port, error };
    let bringer: Box<dyn ProxyClient> = match prepared {
        PreparedService::Listens {
            fd,
            service,
            login,
            target,
            tls,
        } => {
            let (login, target) = (login.map(Arc::new), target.map(Arc::new));
            let make = move |arrival, core: &ServeCore| match &tls {
                Some(config) => TlsClient::begin(arrival, config, login.clone(), core),
                None => client(service, arrival, login.as_ref(), target.as_ref(), core),
            };
            Box::new(Acceptor::new(fd, service, make))
        }
        PreparedService::Datagrams {
            socket,
            target,
            inactivity,
        } => Box::new(UdpForward::new(
            DatagramPort::Host(AnsweringSocket::new(socket).map_err(ServeError::Host)?),
            target,
            inactivity,
        )),
        PreparedService::InnerTcp { line, port, target } => {
            let listening = stack.listen_tcp(port).map_err(inner(line, port))?;
            let target = Arc::new(target);
            let make = move |opened, core: &mut ServeCore| -> Box<dyn ProxyClient> {
                Box::new(OutwardClient::new(opened, Arc::clone(&target), core))
            };
            Box::new(InnerAcceptor::new(listening, ServiceName::TcpServer, make))
        }
        PreparedService::InnerUdp {
            line,
            port,
            target,
            inactivity,
        } => {
            let near = stack.bind_udp(port).map_err(inner(line, port))?;
            Box::new(UdpForward::new(
                DatagramPort::Inner(near),
                target,
                inactivity,
            ))
        }
        PreparedService::Stdio {
            target,
            descriptors,
        } => {
            core.report.accepted(ServiceName::Stdio);
            let (on_start, on_end) = (options.on_start.clone(), options.on_stdio_end.clone());
            let (stack, connect) = (Arc::clone(stack), options.limits.connect);
            let how = (connect, core.resolve);
            return stdio::begin(stack, target, descriptors, how, on_start, on_end)
                .map_err(ServeError::Host);
        }
    };
    core.arrivals.push(bringer);
    Ok(())
}

fn client(
    service: ServiceName,
    arrival: ClientSocket,
    login: Option<&Arc<LoginCheck>>,
    target: Option<&Arc<ProxyEndpoint>>,
    core: &ServeCore,
) -> Box<dyn ProxyClient> {
    match service {
        ServiceName::Socks5 => Box::new(SocksClient::new(arrival, login.cloned(), core)),
        ServiceName::Http => {
            let peer = HttpPeer {
                fd: arrival.fd,
                from: arrival.from,
                login: login.cloned(),
                pair: None,
            };
            Box::new(HttpClient::new(peer, false, core))
        }
        _ => Box::new(ForwardClient::new(arrival, target.cloned(), core)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_before_its_request_takes_little_memory() {
        assert!(size_of::<SocksClient>() <= 256);
        assert!(size_of::<HttpClient>() <= 512);
        assert!(size_of::<ForwardClient>() <= 256);
    }
}
