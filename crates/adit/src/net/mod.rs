//! TCP and UDP inside a tunnel, without a TUN device and without privileges.
//!
//! A [`Net`] is a tunnel whose packets end in this process. One thread has all its connections. It
//! exchanges GSO packets of up to 64 KB with the threads of the tunnel. Streams are sockets of the
//! program's: what it writes is read straight into the buffer of a connection, and what arrives is written
//! from it.
//!
//! ```no_run
//! use std::io::{Read, Write};
//! use std::time::Duration;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let config = adit::Config::new(adit::PrivateKey::generate()?);
//! let net = adit::net::Net::builder(config)
//!     .address("10.0.0.2".parse()?)
//!     .dns("10.0.0.1".parse()?)
//!     .start()?;
//! let mut stream = net.connect_tcp("intranet.example:80", Duration::from_secs(5))?;
//! stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
//! let mut page = Vec::new();
//! stream.read_to_end(&mut page)?;
//! let listener = net.listen_tcp(8080)?;
//! # Ok(())
//! # }
//! ```

mod batch;
mod budget;
mod builder;
mod connection;
mod datagram;
#[doc(hidden)]
pub mod dns;
mod error;
mod link;
mod listener;
mod shared;
mod stack;
mod stream;
mod target;
#[doc(hidden)]
pub mod testing;
#[cfg(feature = "tokio")]
mod tokio;
mod tunnel_end;
mod udp;
mod wake;
mod wire;

use std::fmt;
use std::mem::ManuallyDrop;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::dns::{Inside, Resolver};
use self::shared::{Command, Shared};
use self::target::Place;
use crate::tunnel::Tunnel;

pub use builder::NetBuilder;
pub use connection::Connection;
pub use error::NetError;
pub use listener::TcpListener;
pub use stream::TcpStream;
pub use target::Target;
#[cfg(feature = "tokio")]
pub use tokio::{AsyncTcpListener, AsyncTcpStream, AsyncUdpSocket};
pub use udp::UdpSocket;

/// TCP and UDP inside a tunnel: this end of it is in this process.
///
/// All methods may be called from any thread. Dropping it ends the tunnel and its connections: calls that
/// wait return with errors. As with a [`Tunnel`], its child by fork(2) must not use it.
pub struct Net {
    /// `None` while it is dropped.
    ends: Option<Ends>,
}

struct Ends {
    tunnel: Tunnel,
    shared: Arc<Shared>,
    resolver: Resolver<Inside>,
    addresses: Vec<IpAddr>,
    mtu: usize,
    thread: JoinHandle<()>,
}

/// Counters of a [`Net`], and what it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetStats {
    /// TCP connections, those that begin or end included.
    pub connections: u64,
    /// Bytes of the budget that they have.
    pub reserved: u64,
    /// Packets that were dropped because they are malformed, or their checksum is wrong.
    pub malformed: u64,
    /// Packets that were dropped because they are fragments, which are not put together.
    pub fragments: u64,
    /// Packets that were dropped because they are to no address of this end, or of no protocol that it
    /// speaks.
    pub not_ours: u64,
    /// Connections that were refused because the budget had nothing left.
    pub no_memory: u64,
    /// Connections that were not begun because as many waited to be accepted as may.
    pub backlog_full: u64,
    /// Datagrams that were dropped because their queue was full, or they could not be sent.
    pub datagrams_dropped: u64,
    /// Connections that ended because of a mistake in the stack.
    pub failed: u64,
}

impl Net {
    fn of(ends: Ends) -> Self {
        Self { ends: Some(ends) }
    }

    fn ends(&self) -> &Ends {
        self.ends.as_ref().expect("it is there until it is dropped")
    }

    /// Its tunnel: events, counters, status, changes.
    pub fn tunnel(&self) -> &Tunnel {
        &self.ends().tunnel
    }

    /// Connects to a target inside the tunnel. A name is looked up there, and its addresses are tried one
    /// after the other.
    ///
    /// # Errors
    ///
    /// [`NetError`] says why there is no connection: [refused](NetError::Refused),
    /// [unreachable](NetError::Unreachable), [timed out](NetError::TimedOut), an
    /// [unknown name](NetError::UnknownName), [no memory](NetError::NoMemory).
    pub fn connect_tcp(
        &self,
        target: impl Into<Target>,
        timeout: Duration,
    ) -> Result<TcpStream, NetError> {
        self.open_tcp(target, timeout)?.into_stream()
    }

    /// Connects as [`Self::connect_tcp`] does, for a connection that is to be joined to a socket.
    ///
    /// # Errors
    ///
    /// As of [`Self::connect_tcp`].
    pub fn open_tcp(
        &self,
        target: impl Into<Target>,
        timeout: Duration,
    ) -> Result<Connection, NetError> {
        let Ends { shared, .. } = self.ends();
        let target = target.into();
        let until = deadline(timeout);
        let (addresses, port) = match target.place()? {
            Place::Address(address) => return Connection::open(shared, address, timeout),
            Place::Name(name, port) => (self.ends().resolver.look_up(name, until)?, port),
        };
        let mut last = NetError::TimedOut(format!("{target:?}"));
        for (tried, address) in addresses.iter().enumerate() {
            let left = until.saturating_duration_since(Instant::now());
            let others = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
            match Connection::open(shared, SocketAddr::new(*address, port), left / others) {
                Err(error @ (NetError::Ended | NetError::NoMemory | NetError::PortTaken(_))) => {
                    return Err(error);
                }
                Err(error) => last = error,
                opened => return opened,
            }
        }
        Err(last)
    }

    /// Connects to an address, and calls `then` with what came of it, on the thread that has all
    /// connections: it must not wait, and a panic in it ends this network. It is dropped without a call when
    /// the tunnel ends before.
    ///
    /// # Errors
    ///
    /// [`NetError::Ended`].
    pub fn open_tcp_with(
        &self,
        remote: SocketAddr,
        timeout: Duration,
        then: impl FnOnce(Result<Connection, NetError>) + Send + 'static,
    ) -> Result<(), NetError> {
        let shared = Arc::clone(&self.ends().shared);
        let weak = Arc::downgrade(&shared);
        let reply = Box::new(move |opened: Result<_, NetError>| {
            let shared = weak.upgrade().ok_or(NetError::Ended);
            then(opened.and_then(|opened| Ok(Connection::of(shared?, opened))));
        });
        shared.ask(Command::Connect {
            remote,
            timeout,
            reply,
        })
    }

    /// Looks up the addresses of a name inside the tunnel, of the families that this end has. What a server
    /// answered is kept for as long as it holds.
    ///
    /// # Errors
    ///
    /// [`NetError::UnknownName`], [`NetError::NoDnsServers`], [`NetError::TimedOut`].
    pub fn look_up(&self, name: &str, timeout: Duration) -> Result<Vec<IpAddr>, NetError> {
        self.ends().resolver.look_up(name, deadline(timeout))
    }

    /// Listens on a TCP port inside the tunnel; 0 for any.
    ///
    /// # Errors
    ///
    /// [`NetError::PortTaken`], and [`NetError::Host`] without descriptors.
    pub fn listen_tcp(&self, port: u16) -> Result<TcpListener, NetError> {
        TcpListener::bind(&self.ends().shared, port)
    }

    /// Has a UDP port inside the tunnel; 0 for any.
    ///
    /// # Errors
    ///
    /// [`NetError::PortTaken`], and [`NetError::Host`] without descriptors.
    pub fn bind_udp(&self, port: u16) -> Result<UdpSocket, NetError> {
        let ends = self.ends();
        UdpSocket::bind(&ends.shared, &ends.addresses, ends.mtu, port)
    }

    /// Sends an ICMP echo request to an address inside the tunnel, and waits for the answer: the time that
    /// took. Several may wait at once, of several threads.
    ///
    /// # Errors
    ///
    /// [`NetError::TimedOut`], [`NetError::Unreachable`], [`NetError::NoAddress`], and
    /// [`NetError::NoMemory`] while a thousand wait.
    pub fn ping(&self, to: IpAddr, timeout: Duration) -> Result<Duration, NetError> {
        let Ends { shared, .. } = self.ends();
        shared.call(|reply| Command::Ping { to, timeout, reply })
    }

    /// Its counters. It waits for nobody.
    pub fn stats(&self) -> NetStats {
        stats(&self.ends().shared)
    }
}

fn stats(shared: &Shared) -> NetStats {
    let counters = &shared.counters;
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    NetStats {
        connections: of(&counters.connections),
        reserved: of(&counters.reserved),
        malformed: of(&counters.malformed),
        fragments: of(&counters.fragments),
        not_ours: of(&counters.not_ours),
        no_memory: of(&counters.no_memory),
        backlog_full: of(&counters.backlog_full),
        datagrams_dropped: of(&counters.datagrams_dropped),
        failed: of(&counters.failed),
    }
}

/// When a time has passed.
fn deadline(timeout: Duration) -> Instant {
    let now = Instant::now();
    let far = || now + Duration::from_secs(86_400);
    now.checked_add(timeout).unwrap_or_else(far)
}

impl Drop for Net {
    fn drop(&mut self) {
        let Some(ends) = self.ends.take() else {
            return;
        };
        ends.shared.end();
        if ends.thread.thread().id() == std::thread::current().id() {
            // Called by that thread itself, which ends soon after. A thread cannot wait for its own end: another one
            // waits for the tunnel.
            let tunnel = ManuallyDrop::new(ends.tunnel);
            let end = move || drop(ManuallyDrop::into_inner(tunnel));
            let _ = std::thread::Builder::new().spawn(end);
            return;
        }
        let _ = ends.thread.join();
    }
}

impl fmt::Debug for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Net")
            .field("addresses", &self.ends().addresses)
            .finish_non_exhaustive()
    }
}
