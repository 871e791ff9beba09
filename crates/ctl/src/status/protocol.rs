//! Names and limits that both ends of the status socket know.

/// Where the status sockets `IF.sock` are.
pub const DIR: &str = "/run/adit";

/// Bytes of peers that are made for a client at once.
pub(super) const PIECE: usize = 32 << 10;
