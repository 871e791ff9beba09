//! The UAPI: text over a UNIX socket by which `wg` and its kin configure a userspace WireGuard.
//!
//! <https://www.wireguard.com/xplatform/#configuration-protocol>. A request is `get=1` or `set=1`, lines `key=value`
//! and a blank line; an answer is lines, the last of which is `errno=N`, and a blank line. A `set`
//! is read whole before the handler sees it, so that it can be applied as one transaction. `errno`
//! is positive, as the specification says ("an integer from errno.h"): some clients take a negative
//! one for success.
//!
//! Some requests are Adit's own. `names=1`, pairs of lines `public_key=KEY` and `name=TEXT` and a
//! blank line give peers the names that people know them by, in place of all earlier names; a peer with an empty one
//! has none.
//! `endpoints=1` does the same with lines `endpoint=HOST:PORT`: these are names to be looked up. In
//! both, a line `replace=false` after the first keeps those of other peers. `call=1`, a line `from=ADDRESS` if that is
//! known, and lines `public_key=KEY`, each with a line `endpoint=ADDRESS:PORT` if that is known, begin handshakes with
//! peers that another host had until now; lines say how many are `called`, `here`, `nowhere` and `unknown`. `threads=1` with lines `shards=N` and `policy=NAME`, or one of them, changes
//! which threads process packets. `down=1` says that the client is about
//! to delete the interface, for the log. And `add=1`, a line `interface=NAME` and a blank line ask the process to
//! serve one more interface. A refusal of these two has a line `message=TEXT` before its errno.

mod changes;
mod client;
mod format;
mod lines;
mod parse;
mod server;

#[cfg(test)]
mod changes_tests;
#[cfg(test)]
mod tests;

pub use changes::{ChangePlan, Changed, Configured, Item};
pub use client::{ClientError, PATIENCE, UapiClient, interfaces};
pub use format::{format_set, format_status};
pub use lines::{MAX_ALLOWANCES, MAX_CALLED, MAX_NAMES, MAX_PEERS};
pub use parse::{Heard, MAX_LINE, MAX_REQUEST, Parser};
pub use server::UapiServer;

use std::net::IpAddr;

use adit_proto::config::{DeviceChange, DeviceStatus, PublicKey};
use adit_proto::{Allowance, LastSeen};
use rustix::io::Errno;
use serde::Serialize;

use crate::names::HostPort;

/// Where every client looks for `IF.sock`. Every socket in it counts as a WireGuard interface: put
/// no other there.
pub const DIR: &str = "/var/run/wireguard";

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UapiRequest {
    /// The whole state, keys included.
    Get,
    /// A transaction: to be applied whole or not at all.
    Set(DeviceChange),
    /// The process is to serve one more interface, of this name.
    Add(String),
    /// Which threads of the process are to process packets.
    Threads {
        /// Shards at most.
        shards: Option<u16>,
        /// By the policy of this name.
        policy: Option<String>,
    },
    /// The client is about to delete the interface: for the log.
    Down,
    /// For a watchdog: whether all threads of the interface run.
    Alive,
    /// These are the names of peers.
    Names {
        /// Peers, and what they are called; nothing where that is empty.
        named: Vec<(PublicKey, String)>,
        /// No other peer has a name.
        replace: bool,
    },
    /// What peers may do.
    Allow {
        /// Peers, what each may do, and whether its quota counts anew.
        given: Vec<(PublicKey, Allowance, bool)>,
        /// All others may do everything.
        replace: bool,
    },
    /// Another host had these peers until now.
    Call {
        /// The address that handshakes with them leave from.
        from: Option<IpAddr>,
        /// Peers, and what that host tells of them.
        peers: Vec<(PublicKey, LastSeen)>,
    },
    /// The endpoints of these peers are names, to be looked up.
    Endpoints {
        /// Peers, and what their names and ports are.
        named: Vec<(PublicKey, HostPort)>,
        /// No other peer's endpoint is a name.
        replace: bool,
    },
}

/// The handler's answer.
#[derive(Clone, Debug)]
pub enum UapiResponse {
    /// To [`UapiRequest::Get`].
    Status(DeviceStatus),
    /// To a [`UapiRequest::Set`] that was applied, and to the other requests, when that was done.
    Done,
    /// To a [`UapiRequest::Call`].
    Called(CalledPeers),
    /// The same, and this changed.
    Changed(Changed),
    /// The request changed nothing.
    Refused(UapiError),
    /// The same, for a client that reads the message, too: one that sent [`UapiRequest::Add`] or
    /// [`UapiRequest::Threads`].
    Explained(UapiError),
}

/// How many of the peers that a client wants to be called are called, and why others are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CalledPeers {
    /// Handshakes with them begin.
    pub called: usize,
    /// Sessions with them began a moment ago.
    pub here: usize,
    /// Nobody knows where they are.
    pub nowhere: usize,
    /// The interface has no such peer, or its access has ended.
    pub unknown: usize,
}

/// Why a request was refused: a positive errno for the client and words for our log. Never contains
/// a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UapiError {
    /// A value of `errno.h`, positive.
    pub errno: i32,
    /// One line for the log.
    pub message: String,
}

impl UapiError {
    /// `errno` is a value of `errno.h`, positive; `message` is one line without a key.
    pub fn new(errno: i32, message: impl Into<String>) -> Self {
        Self {
            errno,
            message: message.into(),
        }
    }

    /// EINVAL: a key or value that is not what the specification allows.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Errno::INVAL.raw_os_error(), message)
    }

    /// EPROTO: not lines of `key=value`.
    pub fn protocol(message: impl Into<String>) -> Self {
        Self::new(Errno::PROTO.raw_os_error(), message)
    }
}

impl From<std::io::Error> for UapiError {
    /// Keeps the error's errno (EADDRINUSE, EACCES, …); EIO for an error without one.
    fn from(error: std::io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
        Self::new(errno, error.to_string())
    }
}

impl std::fmt::Display for UapiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (errno {})", self.message, self.errno)
    }
}

impl std::error::Error for UapiError {}
