//! What a device keeps between calls besides the protocol: messages of handshakes that wait, and buffers
//! that are used again.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use adit_proto::wire::INITIATION_LEN;
use adit_proto::{Endpoint, Peer, Session, Time};
use arrayvec::ArrayVec;

/// Messages that wait for their computation.
#[derive(Default)]
pub(super) struct Handshakes {
    pub(super) waiting: VecDeque<Message>,
    /// Until then the time of one a millisecond is used up.
    pub(super) used_until: Time,
}

pub(super) struct Message {
    pub(super) from: Endpoint,
    pub(super) datagram: ArrayVec<u8, INITIATION_LEN>,
    pub(super) is_proven: bool,
}

/// Buffers that are used again.
#[derive(Default)]
pub(super) struct OpenScratch {
    pub(super) packets: Vec<DataPacket>,
    pub(super) runs: Vec<Run>,
    /// Where messages of handshakes stand, and whence they came.
    pub(super) handshakes: Vec<(Endpoint, Range<usize>)>,
}

/// Datagrams of one session that came in a row from one address.
pub(super) struct Run {
    pub(super) peer: Arc<Peer>,
    pub(super) session: Arc<Session>,
    pub(super) from: Endpoint,
    pub(super) ecn: u8,
    pub(super) packets: Range<usize>,
}

/// One data message.
pub(super) struct DataPacket {
    /// Where its ciphertext, then its plaintext, stands: with the tag.
    pub(super) text: Range<usize>,
    pub(super) counter: u64,
    pub(super) state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The window knew its counter, so that nobody looked at its tag.
    Replayed,
    NotAuthentic,
    Authentic,
}

/// A train that is not sealed yet.
pub(super) struct UnsealedTrain {
    pub(super) peer: Arc<Peer>,
    pub(super) session: Arc<Session>,
    pub(super) to: Endpoint,
    pub(super) ecn: u8,
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) stride: usize,
    pub(super) packets: usize,
    /// Its first counter, once it is reserved.
    pub(super) first: Option<u64>,
}
