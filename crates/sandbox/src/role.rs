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
}

impl Role {
    /// All.
    pub const ALL: [Self; 6] = [
        Self::Packets,
        Self::Control,
        Self::Sockets,
        Self::Main,
        Self::Resolver,
        Self::Helper,
    ];
}
