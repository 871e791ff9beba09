//! The UAPI: text over a UNIX socket by which `wg` and its kin configure a userspace WireGuard.
//!
//! <https://www.wireguard.com/xplatform/#configuration-protocol>. A request is `get=1` or `set=1`, lines `key=value`
//! and a blank line; an answer is lines, the last of which is `errno=N`, and a blank line. A `set`
//! is read whole before the handler sees it, so that it can be applied as one transaction. `errno`
//! is positive, as the specification says ("an integer from errno.h"): some clients take a negative
//! one for success.
//!
//! Some requests are Adit's own. `names=1`, pairs of lines `public_key=KEY` and `name=TEXT` and a
//! blank line give peers the names that people know them by, in place of all earlier names.
//! `endpoints=1` does the same with lines `endpoint=HOST:PORT`: these are names to be looked up, and
//! a line `replace=false` after the first keeps those of other peers. `threads=1` with lines `shards=N` and `policy=NAME`, or one of them, changes
//! which threads process packets. And `add=1`, a line `interface=NAME` and a blank line ask the process to
//! serve one more interface. A refusal of these two has a line `message=TEXT` before its errno.

mod client;
mod format;
mod parse;
mod server;

#[cfg(test)]
mod tests;

pub use client::{Client, ClientError, PATIENCE, interfaces};
pub use format::{format_set, format_status};
pub use parse::{Heard, MAX_ALLOWANCES, MAX_LINE, MAX_NAMES, MAX_PEERS, MAX_REQUEST, Parser};
pub use server::Server;

use adit_proto::Allowance;
use adit_proto::config::{DeviceChange, DeviceStatus, PublicKey};
use rustix::io::Errno;

use crate::names::Endpoint;
use crate::origin::Origin;

/// Where every client looks for `IF.sock`. Every socket in it counts as a WireGuard interface: put
/// no other there.
pub const DIR: &str = "/var/run/wireguard";

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
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
    /// For a watchdog: whether all threads of the interface run.
    Alive,
    /// These are the names of peers, in place of all earlier ones.
    Names(Vec<(PublicKey, String)>),
    /// What peers may do.
    Allow {
        /// Peers, what each may do, and whether its quota counts anew.
        given: Vec<(PublicKey, Allowance, bool)>,
        /// All others may do everything.
        replace: bool,
    },
    /// The endpoints of these peers are names, to be looked up.
    Endpoints {
        /// Peers, and what their names and ports are.
        named: Vec<(PublicKey, Endpoint)>,
        /// No other peer's endpoint is a name.
        replace: bool,
    },
}

/// The handler's answer.
#[derive(Clone, Debug)]
pub enum Response {
    /// To [`Request::Get`].
    Status(DeviceStatus),
    /// To a [`Request::Set`] that was applied, and to the other requests, when that was done.
    Done,
    /// The request changed nothing.
    Refused(UapiError),
    /// The same, for a client that reads the message, too: one that sent [`Request::Add`] or
    /// [`Request::Threads`].
    Explained(UapiError),
}

/// Who changed the configuration, and what of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configured {
    /// The client.
    pub by: Origin,
    /// The name of its program.
    pub command: Option<String>,
    /// What the transaction named of the interface: `private_key`, `listen_port`, `fwmark`.
    pub settings: Vec<&'static str>,
    /// How many peer sections it had, those that remove a peer included.
    pub peers: usize,
    /// How many of those remove a peer.
    pub removed: usize,
    /// All other peers were removed.
    pub replaces_peers: bool,
}

impl Configured {
    fn new(by: Origin, change: &DeviceChange) -> Self {
        let settings = [
            ("private_key", change.private_key.is_some()),
            ("listen_port", change.listen_port.is_some()),
            ("fwmark", change.fwmark.is_some()),
        ];
        let settings = settings.into_iter().filter(|(_, is_set)| *is_set);
        Self {
            by,
            command: by.command(),
            settings: settings.map(|(name, _)| name).collect(),
            peers: change.peers.len(),
            removed: change.peers.iter().filter(|peer| peer.remove).count(),
            replaces_peers: change.replace_peers,
        }
    }
}

/// One line: `wg (pid 17) set private_key, 2 peers (1 removed)`.
impl std::fmt::Display for Configured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let command = self.command.as_deref().unwrap_or("a process");
        write!(
            f,
            "{command} (pid {}, uid {}) set ",
            self.by.pid, self.by.uid
        )?;
        let mut parts: Vec<String> = self.settings.iter().map(|&name| name.to_owned()).collect();
        let plural = if self.peers == 1 { "" } else { "s" };
        match (self.peers, self.replaces_peers) {
            (0, true) => parts.push("no peers, and removed all".into()),
            (0, false) => {}
            (peers, true) => parts.push(format!("{peers} peer{plural}, and removed others")),
            (peers, false) => parts.push(format!("{peers} peer{plural}")),
        }
        if self.removed > 0 {
            parts.push(format!("{} of them removed", self.removed));
        }
        match parts.is_empty() {
            true => f.write_str("nothing"),
            false => f.write_str(&parts.join(", ")),
        }
    }
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
