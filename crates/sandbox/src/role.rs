//! Roles of threads.

/// The role of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Processes packets.
    Packets,
    /// Does handshakes, timers and configuration.
    Control,
    /// Serves the clients of UNIX sockets.
    Sockets,
    /// Starts threads, adds and ends interfaces, hands them over, and ends the process.
    Main,
    /// Looks names up, in a process of its own.
    Resolver,
    /// Does what takes a capability, in a process of its own.
    Helper,
    /// Serves the clients of a proxy, and has its tunnel.
    Proxy,
    /// Starts these threads, removes the sockets of the process, and ends it.
    ProxyMain,
    /// Makes sockets in the network namespace of the process, for another one.
    Namespace,
    /// Brings peers from a source to an interface, in a process of its own.
    Agent,
    /// Sets the packet filter's elements for an agent, in a process of its own.
    Rules,
}

impl Role {
    /// All.
    pub const ALL: [Self; 11] = [
        Self::Packets,
        Self::Control,
        Self::Sockets,
        Self::Main,
        Self::Resolver,
        Self::Helper,
        Self::Proxy,
        Self::ProxyMain,
        Self::Namespace,
        Self::Agent,
        Self::Rules,
    ];
}
