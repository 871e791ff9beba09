//! Frames of the TUN on their way to the socket.

use std::collections::VecDeque;

use adit_io::FrameBatch;
use zeroize::Zeroizing;

use crate::outbound::train::SealedTrain;
use crate::thread::poll::Polled;

/// Frames that were read from the TUN, on their way to the socket.
#[derive(Default)]
pub(crate) struct OutboundBatch {
    pub(crate) frames: FrameBatch,
    /// More may wait.
    pub(crate) more: bool,
    /// The trains that the first of them became, when another batch was to be transmitted before.
    pub(crate) sealed: VecDeque<SealedTrain>,
}

/// Frames that were copied from a batch.
pub(crate) type Rest = VecDeque<Zeroizing<Box<[u8]>>>;

impl OutboundBatch {
    /// How many frames it has, and whether more may wait.
    pub(crate) fn polled(&self) -> Polled {
        Polled::packets(self.frames.len(), self.more)
    }
}
