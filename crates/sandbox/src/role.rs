//! What a thread does.

/// What a thread is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It processes packets.
    Packets,
    /// It does handshakes, timers and configuration.
    Control,
    /// It serves the clients of UNIX sockets.
    Sockets,
    /// It starts threads, adds and ends interfaces, hands them over, and ends the process.
    Main,
    /// It looks names up, in a process of its own.
    Resolver,
    /// It does what takes a capability, in a process of its own.
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
