//! A stack without a tunnel, for fuzzers: packets in, packets out, on a clock of the caller's.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::NetStats;
use super::shared::{Command, Shared};
use super::stack::{Settings, Stack};
use crate::frame::{Frame, Gso};

/// A stack that nothing runs but [`BareStack::poll`].
pub struct BareStack {
    shared: Arc<Shared>,
    stack: Stack,
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
        let bare = Self { shared, stack };
        for port in ports {
            bare.ask(Command::Listen {
                port: *port,
                reply: Box::new(drop),
            });
        }
        Ok(bare)
    }

    fn ask(&self, command: Command) {
        // It has not ended.
        let _ = self.shared.ask(command);
    }

    /// Connects, and joins this descriptor to the connection. The receiver hears whether it was opened.
    pub fn connect(&self, remote: std::net::SocketAddr, fd: OwnedFd) -> Receiver<bool> {
        let (sender, opened) = channel();
        let shared = Arc::downgrade(&self.shared);
        let reply = Box::new(move |result: Result<super::shared::OpenConnection, _>| {
            let _ = sender.send(result.is_ok());
            if let (Ok(opened), Some(shared)) = (result, shared.upgrade()) {
                let end = Arc::default();
                let id = opened.id;
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
