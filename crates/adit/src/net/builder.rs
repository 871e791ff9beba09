//! How a network inside a tunnel begins.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::dns::{Inside, Resolver};
use super::error::NetError;
use super::shared::Shared;
use super::stack::{Settings, Stack};
use super::tunnel_end::TunnelEnd;
use super::{Ends, Net};
use crate::builder::Builder;
use crate::config::{Config, check_mtu};
use crate::error::Error;
use crate::threads::{Priority, Threads};
use crate::tunnel::Tunnel;

/// The inner MTU by default.
const MTU: usize = 1420;
/// The memory of all connections by default.
const BUDGET: usize = 64 << 20;
/// The priority of the tunnel's threads where they have one.
const NICE: i32 = -10;

/// A [`Net`] that is about to begin: [`Net::builder`].
#[must_use = "it begins with start()"]
pub struct NetBuilder {
    config: Config,
    addresses: Vec<IpAddr>,
    dns: Vec<SocketAddr>,
    mtu: usize,
    budget: usize,
    threads: Threads,
    tunnel: Box<dyn FnOnce(Builder) -> Builder + Send>,
}

impl Net {
    /// A network inside a tunnel that is to be as `config` says.
    pub fn builder(config: Config) -> NetBuilder {
        NetBuilder {
            config,
            addresses: Vec::new(),
            dns: Vec::new(),
            mtu: MTU,
            budget: BUDGET,
            threads: Threads::default(),
            tunnel: Box::new(|builder| builder),
        }
    }
}

impl NetBuilder {
    /// Adds an inner address of this end: what wg-quick calls `Address`. The first of a family is that from
    /// which connections are made.
    pub fn address(mut self, address: IpAddr) -> Self {
        self.addresses.push(address);
        self
    }

    /// Adds a DNS server inside the tunnel, on port 53: what wg-quick calls `DNS`.
    pub fn dns(mut self, server: IpAddr) -> Self {
        self.dns.push(SocketAddr::new(server, 53));
        self
    }

    /// Sets the MTU of the inner network, 1420 by default.
    pub fn mtu(mut self, mtu: usize) -> Self {
        self.mtu = mtu;
        self
    }

    /// Sets the bytes that all connections together may have, 64 MiB by default. One takes 1 KiB, and while
    /// it has something to carry from 6 KiB to 4 MiB more, by what is left. Once less than an eighth is left,
    /// new ones are refused. What was not written yet takes no memory.
    pub fn budget(mut self, bytes: usize) -> Self {
        self.budget = bytes;
        self
    }

    /// Sets the threads of the tunnel. One more, of the same priority, has the connections; it calls
    /// [`Threads::on_start`](crate::Threads::on_start), too.
    pub fn threads(mut self, threads: Threads) -> Self {
        self.threads = threads;
        self
    }

    /// Has the tunnel be built otherwise, as with [`Builder::on_socket`]. Its source of packets, MTU and
    /// threads are set afterwards.
    pub fn tunnel(mut self, build: impl FnOnce(Builder) -> Builder + Send + 'static) -> Self {
        self.tunnel = Box::new(build);
        self
    }

    /// Begins it. It is up when this returns: connections can be made.
    ///
    /// # Errors
    ///
    /// [`NetError::Tunnel`] and [`NetError::Host`]; nothing is left of it.
    pub fn start(self) -> Result<Net, NetError> {
        let mtu = check_mtu(self.mtu).map_err(Error::Config)?;
        let shared = Arc::new(Shared::new().map_err(NetError::Host)?);
        let settings = Settings {
            addresses: self.addresses.clone(),
            mtu,
            budget: self.budget,
        };
        let stack = Stack::new(Arc::clone(&shared), settings).map_err(NetError::Host)?;
        let builder = (self.tunnel)(Tunnel::builder(self.config));
        let builder = builder.mtu(mtu).threads(self.threads.clone());
        let tunnel = builder.packets(TunnelEnd(Arc::clone(&shared))).start()?;
        let has_priority = self.threads.priority == Priority::IfAllowed;
        let on_start = self.threads.on_start_of_net();
        let run = move || {
            if has_priority {
                // It may not be allowed.
                let _ = rustix::process::setpriority_process(None, NICE);
            }
            if let Some(on_start) = on_start {
                on_start();
            }
            stack.run();
        };
        let thread = std::thread::Builder::new()
            .name("adit-net".into())
            .spawn(run);
        let thread = thread.map_err(NetError::Host)?;
        let inside = Inside {
            shared: Arc::clone(&shared),
            addresses: self.addresses.clone(),
            mtu,
        };
        let resolver = Resolver::new(inside, self.dns, &self.addresses);
        Ok(Net::of(Ends {
            tunnel,
            shared,
            resolver,
            addresses: self.addresses,
            mtu,
            thread,
        }))
    }
}

impl fmt::Debug for NetBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetBuilder")
            .field("config", &self.config)
            .field("addresses", &self.addresses)
            .field("dns", &self.dns)
            .field("mtu", &self.mtu)
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}
