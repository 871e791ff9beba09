//! What sockets are given and tell.

use std::sync::{Arc, Weak};

use adit_proto::{Endpoint, Time};
use rustix::io::Errno;

/// While datagrams may still be on their way to the sockets at which they arrived before
/// [`UdpSocket::spread`](crate::UdpSocket::spread): the kernel had chosen the socket and not queued them.
#[derive(Debug)]
pub struct Grace(Weak<()>);

impl Grace {
    /// One that is over when nobody has this any more.
    pub fn until_dropped(held: &Arc<()>) -> Self {
        Self(Arc::downgrade(held))
    }

    /// Whether no datagram is on its way any more.
    pub fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// Where and when a packet came out of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The CPU that it was sent on, or that received it.
    pub cpu: usize,
    /// CLOCK_BOOTTIME then.
    pub at: Time,
}

/// Datagrams to one destination, all `stride` long except a shorter last one.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// The destination, and the source address to send from.
    pub to: Endpoint,
    /// The two ECN bits of the outer header.
    pub ecn: u8,
    /// Length of every datagram but the last.
    pub stride: usize,
    /// The datagrams, one after the other.
    pub bytes: &'a [u8],
}

/// The fate of a datagram that is longer than its path takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// This host or a router makes fragments of it.
    Allowed,
    /// Neither does. If this host knows that it is too long, it is lost with `EMSGSIZE`.
    Refused,
    /// The same, but what ICMP said of the path is not believed.
    RefusedPastIcmp,
}

/// Datagrams that a socket's program dropped before they were queued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filtered {
    /// No messages of WireGuard.
    pub malformed: u64,
    /// Data messages with a receiver index that nobody has.
    pub unknown: u64,
    /// Initiations from sources that were refused.
    pub refused: u64,
}

/// Which buffers of a socket are shorter than was asked for, as this process has no right to longer
/// ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShortBuffers {
    /// That of what waits to be received.
    pub receive: bool,
    /// That of what waits to leave.
    pub send: bool,
}

/// The result of a send, beyond the trains taken. Counters add up over calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendReport {
    /// The trains of this call with datagrams that could not be sent at all, and how many. Set anew
    /// by each call.
    pub lost: Vec<Lost>,
    /// Why the last of them could not.
    pub error: Option<Errno>,
    /// Trains that the kernel refused to segment and that went out datagram by datagram.
    pub refused: u64,
    /// A train of this call that was refused as if its datagrams were longer than this host knows
    /// the path to take: they went out in fragments. Set anew by each call.
    pub too_long: Option<usize>,
    /// A train of this call whose source address or interface is gone: it went out from another
    /// address, and the caller clears the source that it keeps. Set anew by each call; the last
    /// such train if there are several.
    pub stale_source: Option<usize>,
    /// Bytes at the start of the first train *not* taken that nevertheless left, because the
    /// socket's buffer became full in the middle of it. The caller cuts them off before it offers
    /// that train again. Set anew by each call.
    pub resume_at: usize,
    /// ICMP errors came meanwhile: [`UdpSocket::take_errors`](crate::UdpSocket::take_errors) has them, and the descriptor may not
    /// say so any more.
    pub icmp: bool,
}

/// Datagrams of one train that could not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Which of the trains that were given.
    pub train: usize,
    /// How many of its datagrams.
    pub datagrams: u64,
}

impl SendReport {
    /// Counts datagrams of a train that could not be sent. Trains are counted in order.
    pub fn lose(&mut self, train: usize, datagrams: u64) {
        match self.lost.last_mut() {
            Some(last) if last.train == train => last.datagrams += datagrams,
            _ => self.lost.push(Lost { train, datagrams }),
        }
    }

    /// How many datagrams could not be sent.
    pub fn datagrams_lost(&self) -> u64 {
        self.lost.iter().map(|lost| lost.datagrams).sum()
    }

    /// How many datagrams of one train could not be sent.
    pub fn lost_of(&self, train: usize) -> u64 {
        let lost = self.lost.iter().find(|lost| lost.train == train);
        lost.map_or(0, |lost| lost.datagrams)
    }
}

/// The state of a socket, besides its descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpState {
    /// UDP_SEGMENT is used.
    pub gso: bool,
    /// UDP_GRO is on.
    pub gro: bool,
    /// Messages that found the receive buffer full, or that the socket's program dropped, as the
    /// kernel counts them.
    pub dropped: u32,
    /// Over how many sockets data is spread that arrives at the port, if this is the first of them.
    pub group: u32,
}
