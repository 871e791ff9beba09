//! Datagrams that came, and the packets that were in them.

use std::net::SocketAddr;

use adit_offload::{Coalescer, Merged, Span, VNET_HDR_LEN};
use adit_proto::Endpoint;

use super::outbox::LocalAddr;
use crate::frame::{Frame, Gso};
use crate::keys::PublicKey;

const CAPACITY: usize = 1 << 18;
/// The longest datagram.
const MAX_DATAGRAM: usize = 65_535;
/// As many packets as a coalescer takes.
const MAX_DATAGRAMS: usize = 4096;

/// Datagrams that came and are to be opened, up to a capacity. Its memory is used again: after the
/// first batches it allocates nothing.
///
/// Once they were opened, the next datagram that is added takes the place of all that is in it.
#[derive(Debug)]
pub struct Inbox {
    pub(super) bytes: Vec<u8>,
    used: usize,
    capacity: usize,
    pub(super) arrived: Vec<Arrived>,
    datagrams: usize,
    is_opened: bool,
    pub(super) opened: Vec<OpenedPacket>,
    merging: Option<Box<Merging>>,
}

/// Datagrams as they came, one behind the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub(super) from: Endpoint,
    pub(super) ecn: u8,
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) stride: usize,
}

/// Where a packet stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenedPacket {
    pub(super) peer: PublicKey,
    pub(super) id: u32,
    pub(super) start: usize,
    pub(super) len: usize,
}

/// Where datagrams came from, and what else the system says of them.
///
/// An address is one: `inbox.push(from, bytes)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Arrival {
    /// The address that they came from.
    pub from: SocketAddr,
    /// The address that they came to, for hosts that have several: answers leave from there.
    pub local: Option<LocalAddr>,
    /// The two bits for congestion marks of the IP header; 0 if they are not known.
    pub ecn: u8,
    /// Where the system has merged datagrams (UDP_GRO): the length of each but the last. 0 for a
    /// single one.
    pub stride: usize,
}

impl From<SocketAddr> for Arrival {
    fn from(from: SocketAddr) -> Self {
        Self {
            from,
            local: None,
            ecn: 0,
            stride: 0,
        }
    }
}

/// There is no room for a datagram: open what is there first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxFull;

impl std::fmt::Display for InboxFull {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("no room is left for the datagram: open those that are there first")
    }
}

impl std::error::Error for InboxFull {}

impl Inbox {
    /// An empty one, for 256 KiB.
    pub fn new() -> Self {
        Self::with_capacity(CAPACITY)
    }

    /// An empty one for so many bytes; at least the 65,535 of one datagram.
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            bytes: Vec::new(),
            used: 0,
            capacity: bytes.clamp(MAX_DATAGRAM, u32::MAX as usize),
            arrived: Vec::new(),
            datagrams: 0,
            is_opened: false,
            opened: Vec::new(),
            merging: None,
        }
    }

    /// How many datagrams wait to be opened.
    pub fn len(&self) -> usize {
        self.datagrams
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.datagrams == 0
    }

    /// Whether there is no room for another datagram of any length.
    pub fn is_full(&self) -> bool {
        !self.is_opened
            && (self.capacity - self.used < MAX_DATAGRAM || self.datagrams >= MAX_DATAGRAMS)
    }

    /// Adds a datagram, or several of one [stride](Arrival::stride).
    ///
    /// # Errors
    ///
    /// [`InboxFull`]: nothing was added.
    pub fn push(&mut self, arrival: impl Into<Arrival>, bytes: &[u8]) -> Result<(), InboxFull> {
        let arrival = arrival.into();
        let (_, datagrams) = shape(&arrival, bytes.len());
        let room = self.begin();
        if bytes.len() > room.len() || self.datagrams + datagrams > MAX_DATAGRAMS {
            return Err(InboxFull);
        }
        self.bytes[self.used..self.used + bytes.len()].copy_from_slice(bytes);
        self.add(arrival, bytes.len());
        Ok(())
    }

    /// Adds what `read` reads to where it will be opened, which saves a copy: `read` gets the room
    /// that is left, and says how many bytes it has written there, and whence they came. The room
    /// is enough for any datagram unless the inbox [is full](Self::is_full). More datagrams of one
    /// stride than there is room for are cut off.
    ///
    /// # Errors
    ///
    /// That of `read`; nothing was added.
    pub fn receive<E>(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> Result<(usize, Arrival), E>,
    ) -> Result<(), E> {
        let room = self.begin();
        let (len, arrival) = read(room)?;
        let mut len = len.min(room.len());
        let left = MAX_DATAGRAMS - self.datagrams;
        let (stride, datagrams) = shape(&arrival, len);
        if datagrams > left {
            len = stride * left;
        }
        if left > 0 {
            self.add(arrival, len);
        }
        Ok(())
    }

    /// Leaves behind what was opened. The room that is left.
    fn begin(&mut self) -> &mut [u8] {
        if self.is_opened {
            self.clear();
        }
        if self.bytes.is_empty() {
            self.bytes.resize(self.capacity, 0);
        }
        &mut self.bytes[self.used..]
    }

    fn add(&mut self, arrival: Arrival, len: usize) {
        let (stride, datagrams) = shape(&arrival, len);
        self.arrived.push(Arrived {
            from: Endpoint {
                addr: arrival.from,
                src: arrival.local.map(LocalAddr::to_source),
            },
            ecn: arrival.ecn & 3,
            start: self.used,
            len,
            stride,
        });
        self.used += len;
        self.datagrams += datagrams;
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.used = 0;
        self.arrived.clear();
        self.datagrams = 0;
        self.opened.clear();
        self.is_opened = false;
    }

    /// Its datagrams are opened now.
    pub(super) fn is_opened_now(&mut self) {
        self.arrived.clear();
        self.datagrams = 0;
        self.is_opened = true;
    }

    /// How many datagrams it has, of those that wait to be opened.
    pub(super) fn datagrams(&self) -> usize {
        self.datagrams
    }
}

impl Default for Inbox {
    fn default() -> Self {
        Self::new()
    }
}

/// The stride of so many bytes, and how many datagrams they are: an empty one is one, too.
fn shape(arrival: &Arrival, len: usize) -> (usize, usize) {
    let stride = match arrival.stride {
        0 => len.max(1),
        stride => stride,
    };
    (stride, len.div_ceil(stride).max(1))
}

/// The packets of an inbox that was opened, in the order in which they came.
#[derive(Debug)]
pub struct Opened<'a>(pub(super) &'a mut Inbox);

impl Opened<'_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.opened.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.opened.is_empty()
    }

    /// The packets, each with the peer that sent it.
    pub fn packets(&self) -> impl ExactSizeIterator<Item = (PublicKey, &[u8])> {
        let Inbox { bytes, opened, .. } = &*self.0;
        opened.iter().map(|packet| {
            let bytes = &bytes[packet.start..packet.start + packet.len];
            (packet.peer, bytes)
        })
    }

    /// The same packets, those of one flow merged to GSO packets by the rules of Linux's GRO. A
    /// flow keeps its order. The buffers that this takes, 2 MiB, are made by the first call for an
    /// inbox.
    pub fn merged(&mut self) -> impl ExactSizeIterator<Item = Frame<'_>> {
        let Inbox {
            bytes,
            opened,
            merging,
            ..
        } = &mut *self.0;
        let merging = merging.get_or_insert_with(Merging::new);
        merging.merge(bytes, opened);
        let Merging {
            heads,
            spans,
            frames,
            ..
        } = &**merging;
        let (heads, spans): (&[u8], &[Span]) = (heads, spans);
        let bytes: &[u8] = bytes;
        frames.iter().map(move |frame| {
            let head = &heads[frame.head.0..frame.head.1];
            let spans = &spans[frame.spans.0..frame.spans.1];
            Frame::of_spans(frame.gso, head, bytes, spans)
        })
    }
}

#[derive(Debug)]
struct Merging {
    coalescer: Coalescer,
    heads: Vec<u8>,
    spans: Vec<Span>,
    frames: Vec<MergedFrame>,
}

/// A frame: parts of `heads` and `spans`.
#[derive(Debug)]
struct MergedFrame {
    gso: Option<Gso>,
    head: (usize, usize),
    spans: (usize, usize),
}

impl Merging {
    fn new() -> Box<Self> {
        let mut coalescer = Coalescer::new(true, true);
        coalescer.merge_only(|kind| kind != Merged::Tunnel);
        Box::new(Self {
            coalescer,
            heads: Vec::new(),
            spans: Vec::new(),
            frames: Vec::new(),
        })
    }

    fn merge(&mut self, bytes: &[u8], opened: &[OpenedPacket]) {
        self.heads.clear();
        self.spans.clear();
        self.frames.clear();
        for OpenedPacket { id, start, len, .. } in opened {
            let span = Span {
                buffer: 0,
                start: narrow(*start),
                len: narrow(*len),
            };
            let packet = &bytes[*start..start + len];
            if self.coalescer.push(*id, packet, span, |_| false).is_err() {
                self.drain();
                // An empty one takes any packet.
                let _ = self.coalescer.push(*id, packet, span, |_| false);
            }
        }
        self.drain();
    }

    fn drain(&mut self) {
        let Self {
            coalescer,
            heads,
            spans,
            frames,
        } = self;
        coalescer.drain(|head, of_frame| {
            let Some((header, head)) = head.split_first_chunk::<VNET_HDR_LEN>() else {
                return;
            };
            let (head_from, spans_from) = (heads.len(), spans.len());
            heads.extend_from_slice(head);
            spans.extend_from_slice(of_frame);
            frames.push(MergedFrame {
                gso: Gso::of_header(header),
                head: (head_from, heads.len()),
                spans: (spans_from, spans.len()),
            });
        });
    }
}

/// An inbox has fewer bytes than this can tell.
fn narrow(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}
