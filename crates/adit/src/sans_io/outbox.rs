//! Datagrams that are to be sent.

use std::net::{IpAddr, SocketAddr};

use adit_proto::{Endpoint, Source};

/// A datagram's worth for each packet of a long batch.
const CAPACITY: usize = 1 << 20;
/// A GSO packet of 64 KB in segments of 100 bytes fits.
const LEAST: usize = 1 << 18;

/// Datagrams that are to be sent, as trains. Its memory is used again: after the first batches it
/// allocates nothing.
///
/// A device puts trains into it, up to its capacity, and the caller takes them out. What does not
/// fit stays with the device or with the caller, so that a caller that is slow loses nothing.
#[derive(Debug)]
pub struct Outbox {
    bytes: Vec<u8>,
    /// How many of the bytes are in use.
    used: usize,
    capacity: usize,
    trains: Vec<Entry>,
    /// How many trains were taken.
    taken: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    to: Endpoint,
    ecn: u8,
    start: usize,
    len: usize,
    stride: usize,
}

/// The address of this host that datagrams come to, or leave from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalAddr {
    /// The address.
    pub ip: IpAddr,
    /// The index of the network interface; 0 if it is not known.
    pub interface: u32,
}

impl LocalAddr {
    fn of(source: Source) -> Self {
        Self {
            ip: source.ip,
            interface: source.ifindex,
        }
    }

    pub(super) fn to_source(self) -> Source {
        Source {
            ip: self.ip,
            ifindex: self.interface,
        }
    }
}

/// Datagrams for one address that one send can carry where the system has UDP_SEGMENT: at most 64,
/// with 65,535 bytes with the headers of IP and UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Train<'a> {
    /// Where to.
    pub to: SocketAddr,
    /// The address to send from: where the peer last wrote to, if that is known.
    pub source: Option<LocalAddr>,
    /// The two bits for congestion marks of the IP header (RFC 6040): those of the packets inside.
    pub ecn: u8,
    /// The length of each datagram but the last, which may be shorter.
    pub stride: usize,
    /// The datagrams, one behind the other.
    pub bytes: &'a [u8],
}

impl<'a> Train<'a> {
    /// Its datagrams, one by one.
    pub fn datagrams(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.bytes.chunks(self.stride.max(1))
    }
}

impl Outbox {
    /// An empty one, for up to 1 MiB.
    pub fn new() -> Self {
        Self::with_capacity(CAPACITY)
    }

    /// An empty one for so many bytes; at least 256 KiB.
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            bytes: Vec::new(),
            used: 0,
            capacity: bytes.max(LEAST),
            trains: Vec::new(),
            taken: 0,
        }
    }

    /// How many trains wait.
    pub fn len(&self) -> usize {
        self.trains.len() - self.taken
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The train that waits longest. It stays, until [`pop`](Self::pop) takes it.
    pub fn front(&self) -> Option<Train<'_>> {
        let entry = self.trains.get(self.taken)?;
        Some(entry.train(&self.bytes))
    }

    /// Takes out the train that waits longest.
    pub fn pop(&mut self) -> Option<Train<'_>> {
        let entry = self.trains.get(self.taken)?;
        self.taken += 1;
        Some(entry.train(&self.bytes))
    }

    /// Takes out trains, longest waiting first. Those that the iterator did not come to stay.
    pub fn drain(&mut self) -> impl Iterator<Item = Train<'_>> {
        let Self {
            bytes,
            trains,
            taken,
            ..
        } = self;
        let (bytes, waiting): (&[u8], &[Entry]) = (bytes, &trains[*taken..]);
        waiting.iter().map(move |entry| {
            *taken += 1;
            entry.train(bytes)
        })
    }

    /// Makes room of what was taken. Positions that [`extend`](Self::extend) told are wrong
    /// afterwards.
    pub(super) fn reclaim(&mut self) {
        if self.taken == self.trains.len() {
            self.used = 0;
        } else if self.taken > 0 && self.room() < self.capacity / 2 {
            let from = self.trains[self.taken].start;
            self.bytes.copy_within(from..self.used, 0);
            self.used -= from;
            for train in &mut self.trains[self.taken..] {
                train.start -= from;
            }
        } else {
            return;
        }
        self.trains.drain(..self.taken);
        self.taken = 0;
    }

    /// How many bytes fit.
    pub(super) fn room(&self) -> usize {
        self.capacity - self.used
    }

    /// How many bytes fit an empty one.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// So many more bytes, of any content, and where they begin. They are to fit.
    pub(super) fn extend(&mut self, len: usize) -> (usize, &mut [u8]) {
        let start = self.used;
        self.used += len;
        if self.bytes.len() < self.used {
            self.bytes.resize(self.used, 0);
        }
        (start, &mut self.bytes[start..self.used])
    }

    /// The bytes from there on.
    pub(super) fn bytes_from(&mut self, start: usize) -> &mut [u8] {
        &mut self.bytes[start..self.used]
    }

    /// What stands there is a train.
    pub(super) fn push(
        &mut self,
        to: Endpoint,
        ecn: u8,
        (start, len): (usize, usize),
        stride: usize,
    ) {
        self.trains.push(Entry {
            to,
            ecn,
            start,
            len,
            stride,
        });
    }

    /// Adds one datagram. Whether it fits.
    pub(super) fn put(&mut self, to: Endpoint, datagram: &[u8]) -> bool {
        if datagram.is_empty() || datagram.len() > self.room() {
            return false;
        }
        let (start, bytes) = self.extend(datagram.len());
        bytes.copy_from_slice(datagram);
        self.push(to, 0, (start, datagram.len()), datagram.len());
        true
    }
}

impl Default for Outbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Entry {
    fn train<'a>(&self, bytes: &'a [u8]) -> Train<'a> {
        Train {
            to: self.to.addr,
            source: self.to.src.map(LocalAddr::of),
            ecn: self.ecn,
            stride: self.stride,
            bytes: &bytes[self.start..self.start + self.len],
        }
    }
}

#[cfg(test)]
#[path = "outbox_tests.rs"]
mod tests;
