//! The kernel's stack behind the trait.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adit::net::NetError;
use adit::net::dns::{Resolver, left};
use adit::{Builder, Config, Priority, Threads, TunFd, Tunnel};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, connect, recv, send};

use super::names::KernelNames;
use super::namespace::SocketNamespace;
use super::setup::KernelDevice;
use super::socket_kind::SocketKind;
use super::sockets::{KernelDatagrams, KernelListener, explain, host};
use super::tasks::{Task, Tasks};
use super::thread::StackThread;
use crate::stack::{Datagrams, Listening, OpenedTcp, Stack, Then};

/// The port of DNS servers.
const DNS: u16 = 53;
/// The priority of threads that have one: that of the tunnel's.
const NICE: i32 = -10;

/// What a [`KernelStack`] has besides its configuration.
#[derive(Default)]
pub struct KernelOptions {
    /// DNS servers inside the tunnel.
    pub dns: Vec<IpAddr>,
    /// The threads of the tunnel. One more has the connections.
    pub threads: Threads,
    /// Called first on that one: to give up rights.
    pub on_start: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Called on that one when the child process has ended by itself: the stack is of no use any more.
    pub on_end: Option<Box<dyn FnOnce() + Send>>,
    /// Has the tunnel be built otherwise, as with [`Builder::on_socket`]. Its source of packets, MTU and threads
    /// are set afterwards.
    pub tunnel: Option<Box<dyn FnOnce(Builder) -> Builder + Send>>,
}

/// TCP and UDP of the kernel, in a namespace of its own. Dropping it ends the tunnel, the connections and the child
/// process. When that process ends, all connections end, and calls fail with [`NetError::Ended`].
pub struct KernelStack {
    tunnel: Tunnel,
    tasks: Arc<Tasks>,
    resolver: Resolver<KernelNames>,
    addresses: Vec<IpAddr>,
    thread: Option<JoinHandle<()>>,
}

impl KernelStack {
    /// Begins a tunnel whose packets are those of the namespace.
    ///
    /// # Errors
    ///
    /// [`NetError::Tunnel`] and [`NetError::Host`]; nothing is left of it.
    pub fn start(
        namespace: SocketNamespace,
        config: Config,
        options: KernelOptions,
    ) -> Result<Self, NetError> {
        let SocketNamespace {
            end,
            descriptor,
            device,
            network,
        } = namespace;
        let KernelOptions {
            dns,
            threads,
            on_start,
            on_end,
            tunnel: build,
        } = options;
        let tasks = Arc::new(Tasks::new().map_err(NetError::Host)?);
        let stack = StackThread::new(Arc::clone(&tasks), end, &network.addresses);
        let stack = stack.map_err(NetError::Host)?;
        let mut builder = Tunnel::builder(config);
        if let Some(build) = build {
            builder = build(builder);
        }
        let has_priority = threads.priority == Priority::IfAllowed;
        builder = builder.mtu(network.mtu).threads(threads);
        let tunnel = match device {
            KernelDevice::PacketSocket => builder.veth_fd(descriptor),
            KernelDevice::Any | KernelDevice::Tun => builder.tun_fd(descriptor, TunFd::Vnet),
        }
        .start()?;
        let run = move || {
            if has_priority {
                // It may not be allowed.
                let _ = rustix::process::setpriority_process(None, NICE);
            }
            if let Some(on_start) = on_start {
                on_start();
            }
            if stack.run()
                && let Some(on_end) = on_end
            {
                on_end();
            }
        };
        let thread = std::thread::Builder::new().name("adit-kernel-net".into());
        let thread = thread.spawn(run).map_err(NetError::Host)?;
        let servers = dns.into_iter().map(|ip| SocketAddr::new(ip, DNS)).collect();
        let names = KernelNames(Arc::clone(&tasks));
        Ok(Self {
            tunnel,
            tasks,
            resolver: Resolver::new(names, servers, &network.addresses),
            addresses: network.addresses,
            thread: Some(thread),
        })
    }
}

impl KernelStack {
    /// Asks a host inside the tunnel whether it is there (an ICMP echo request), and says how long it took.
    ///
    /// # Errors
    ///
    /// [`NetError::TimedOut`], [`NetError::Unreachable`], and [`NetError::Host`] where /proc/sys cannot be written in
    /// a container, or the user is unknown in the namespace: then nobody may ask.
    pub fn ping(&self, to: IpAddr, timeout: Duration) -> Result<Duration, NetError> {
        let remote = SocketAddr::new(to, 0);
        let failed = |error| match error {
            Errno::AGAIN => NetError::TimedOut(to.to_string()),
            error => explain(error, remote),
        };
        let socket = self.tasks.socket(SocketKind::ping(to))?;
        rustix::io::ioctl_fionbio(&socket, false).map_err(host)?;
        connect(&socket, &remote).map_err(failed)?;
        // The kernel adds the identifier and the checksum.
        let (request, reply) = if to.is_ipv4() { (8, 0) } else { (128, 129) };
        let (begun, until) = (Instant::now(), deadline(timeout));
        send(
            &socket,
            &[request, 0, 0, 0, 0, 0, 0, 1],
            SendFlags::NOSIGNAL,
        )
        .map_err(failed)?;
        let mut buffer = [0; 64];
        loop {
            set_socket_timeout(&socket, Timeout::Recv, Some(left(until))).map_err(host)?;
            match recv(&socket, &mut buffer, RecvFlags::empty()) {
                Ok((1.., _)) if buffer[0] == reply => return Ok(begun.elapsed()),
                Ok(_) | Err(Errno::INTR) if Instant::now() < until => {}
                Ok(_) | Err(Errno::INTR) => return Err(failed(Errno::AGAIN)),
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

impl Stack for KernelStack {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn tunnel(&self) -> &Tunnel {
        &self.tunnel
    }

    fn open_tcp(
        &self,
        remote: SocketAddr,
        timeout: Duration,
        then: Then<Box<dyn OpenedTcp>>,
    ) -> Result<(), NetError> {
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        let until = deadline(timeout);
        self.tasks.add(Task::Connect {
            remote,
            until,
            then,
        })
    }

    fn look_up(&self, name: &str, timeout: Duration) -> Result<Vec<IpAddr>, NetError> {
        self.resolver.look_up(name, deadline(timeout))
    }

    fn listen_tcp(&self, port: u16) -> Result<Box<dyn Listening>, NetError> {
        Ok(Box::new(KernelListener::bind(&self.tasks, port)?))
    }

    fn bind_udp(&self, port: u16) -> Result<Box<dyn Datagrams>, NetError> {
        Ok(Box::new(KernelDatagrams::bind(&self.tasks, port)?))
    }
}

/// When a time has passed.
fn deadline(timeout: Duration) -> Instant {
    let now = Instant::now();
    let far = || now + Duration::from_secs(86_400);
    now.checked_add(timeout).unwrap_or_else(far)
}

impl Drop for KernelStack {
    fn drop(&mut self) {
        self.tasks.end();
        let Some(thread) = self.thread.take() else {
            return;
        };
        // Called on that thread itself, which ends soon after, it cannot be waited for.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for KernelStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelStack")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}
