//! A stack without a tunnel, for fuzzers: packets in, packets out, on a clock of the caller's.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::NetStats;
use super::shared::{Backlog, Command, OpenConnection, Shared};
use super::stack::{Settings, Stack};
use crate::frame::{Frame, Gso};

/// A stack that nothing runs but [`BareStack::poll`].
pub struct BareStack {
    shared: Arc<Shared>,
    stack: Stack,
    backlogs: Receiver<Arc<Backlog>>,
    listening: Vec<Arc<Backlog>>,
}

impl BareStack {
    /// With these inner addresses, and so many bytes for connections. Its ports listen.
    pub fn new(addresses: &[IpAddr], budget: usize, ports: &[u16]) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::new()?);
        let settings = Settings {
            addresses: addresses.to_vec(),
            mtu: 1420,
            budget,
        };
        let stack = Stack::new(Arc::clone(&shared), settings)?;
        let (sender, backlogs) = channel();
        let bare = Self {
            shared,
            stack,
            backlogs,
            listening: Vec::new(),
        };
        for port in ports {
            let sender = sender.clone();
            let reply = Box::new(move |backlog: Result<_, _>| {
                let _ = backlog.map(|backlog| sender.send(backlog));
            });
            bare.ask(Command::Listen { port: *port, reply });
        }
        Ok(bare)
    }

    fn ask(&self, command: Command) {
        // It has not ended.
        let _ = self.shared.ask(command);
    }

    /// Connects, and joins this descriptor to the connection. The receiver hears whether it was opened.
    pub fn connect(&self, remote: SocketAddr, fd: OwnedFd) -> Receiver<bool> {
        self.connect_with(remote, Some(fd))
    }

    /// Connects, and lets the connection be.
    pub fn connect_alone(&self, remote: SocketAddr) -> Receiver<bool> {
        self.connect_with(remote, None)
    }

    fn connect_with(&self, remote: SocketAddr, fd: Option<OwnedFd>) -> Receiver<bool> {
        let (sender, opened) = channel();
        let shared = Arc::downgrade(&self.shared);
        let reply = Box::new(move |result: Result<OpenConnection, _>| {
            let _ = sender.send(result.is_ok());
            if let (Ok(OpenConnection { id, .. }), Some(fd), Some(shared)) =
                (result, fd, shared.upgrade())
            {
                let end = Arc::default();
                let _ = shared.ask(Command::Attach { id, fd, end });
            }
        });
        self.ask(Command::Connect {
            remote,
            timeout: Duration::from_secs(60),
            reply,
        });
        opened
    }

    /// Joins this descriptor to a connection that waits at a port. False if none does.
    pub fn accept(&mut self, port: u16, fd: OwnedFd) -> bool {
        self.listening.extend(self.backlogs.try_iter());
        let mut ports = self.listening.iter();
        let backlog = ports.find(|backlog| backlog.port == port);
        let Some(Ok(Some(opened))) = backlog.map(|backlog| backlog.pop()) else {
            return false;
        };
        let (id, end) = (opened.id, Arc::default());
        self.ask(Command::Attach { id, fd, end });
        true
    }

    /// Binds a UDP port to this descriptor, which keeps messages apart. The receiver hears whether it was free.
    pub fn bind(&self, port: u16, fd: OwnedFd) -> Receiver<bool> {
        let (sender, bound) = channel();
        let reply = Box::new(move |result: Result<u16, _>| {
            let _ = sender.send(result.is_ok());
        });
        self.ask(Command::Bind {
            port,
            fd,
            tells_unreachable: Arc::default(),
            reply,
        });
        bound
    }

    /// A packet came out of the tunnel, perhaps several as one.
    pub fn push(&mut self, packet: &[u8], gso: Option<Gso>) {
        let _ = self
            .shared
            .link
            .push(&Frame::of_spans(gso, packet, &[], &[]));
    }

    /// Does all that is to be done at this time, in microseconds; `each` gets the packets that leave.
    pub fn poll(&mut self, now: i64, each: impl FnMut(&[u8])) {
        self.stack.take_events(Some(Duration::ZERO));
        self.stack.poll(now);
        self.shared.link.take_outbound(each);
    }

    /// Its counters.
    pub fn stats(&self) -> NetStats {
        super::stats(&self.shared)
    }
}

/// Reads a DNS answer to a fixed question: how many addresses it has.
pub fn read_dns_answer(message: &[u8]) -> Option<usize> {
    super::dns::read(message)
}
