//! The core of a device: what a peer's actions need besides the peer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::device::output::Output;
use crate::device::rates::RxQueueRates;
use crate::in_use::Indices;
use crate::noise::Identity;
use crate::peer::Peer;
use crate::rx_queues::{in_rx_queue, of_gateway};
use crate::secret::Secret;
use crate::session::Session;
use crate::shared::Shared;
use crate::stats::HandshakeStats;

/// Fills a buffer with random bytes.
pub type Random = Box<dyn FnMut(&mut [u8]) + Send>;

/// The core of a device: what a peer's actions need besides the peer.
pub(super) struct Core {
    /// False while nothing can be sent.
    pub(super) up: bool,
    pub(super) identity: Option<Identity>,
    pub(super) indices: Indices,
    /// The upper 24 bits of all receiver indices, if they are given.
    pub(super) index_prefix: Option<u32>,
    /// The number of this gateway, which all receiver indices have, if it is one of several.
    pub(super) gateway_id: Option<u8>,
    pub(super) rx_queue_rates: RxQueueRates,
    pub(super) shared: Arc<Shared>,
    pub(super) random: Random,
    pub(super) outputs: VecDeque<Queued>,
    pub(super) stats: HandshakeStats,
    pub(super) keys_dropped: bool,
    /// The MTU up to which paths are probed, if they are.
    pub(super) probed_mtu: Option<u16>,
    /// The time of day at the zero of [`Time`](crate::Time), as the clock was last set.
    pub(super) epoch: Duration,
}

/// An output, or one that is decided on when it is taken out.
#[expect(
    clippy::large_enum_variant,
    reason = "most are handshakes, and none is kept"
)]
pub(super) enum Queued {
    Output(Output),
    /// The responder cannot send until it hears from us: a keepalive, unless staged frames went out
    /// by now.
    Confirm(Arc<Peer>, Arc<Session>),
}

impl Core {
    pub(super) fn push(&mut self, output: Output) {
        self.outputs.push_back(Queued::Output(output));
    }

    /// A random index that no handshake or session has (whitepaper 5.4.2), but for its receive queue and its
    /// gateway, or its prefix.
    pub(super) fn new_index(&mut self, id: u32, rx_queue: u8) -> u32 {
        loop {
            let mut bytes = [0; 4];
            (self.random)(&mut bytes);
            let random = u32::from_le_bytes(bytes);
            let index = match self.index_prefix {
                None => of_gateway(in_rx_queue(random, rx_queue), self.gateway_id),
                Some(prefix) => prefix << 8 | random & 0xff,
            };
            if self.indices.insert(index, id) {
                return index;
            }
        }
    }

    pub(super) fn new_ephemeral(&mut self) -> Secret {
        let mut ephemeral = Secret::zero();
        (self.random)(ephemeral.bytes_mut());
        ephemeral
    }
}
