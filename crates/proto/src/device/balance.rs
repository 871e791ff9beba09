//! Which receive queue a peer's next session is in. A new peer goes to the receive queue with the least work, and
//! stays there. The other bits of that byte may name the gateway.

use super::peer_state::PeerState;
use crate::Time;
use crate::device::common::Core;
use crate::rx_queues::rx_queue;

impl PeerState {
    /// In which receive queue data of the peer arrives. Of a peer that an earlier version was moving to another one,
    /// and handed over, the newest session counts.
    pub(super) fn rx_queue(&self) -> Option<u8> {
        let of_sessions = self.sessions.all().map(|it| it.local_index());
        let of_initiation = self.initiation.as_ref().map(|created| created.index);
        of_sessions.chain(of_initiation).map(rx_queue).next()
    }

    /// An index for a new handshake.
    pub(super) fn new_index(&mut self, core: &mut Core, now: Time) -> u32 {
        self.rate.observe(now, self.peer.work());
        core.rx_queue_rates.observe(now, core.shared.rx_queues());
        let rx_queue = match self.rx_queue() {
            Some(own) => own,
            None => {
                let work = match self.rate.measured {
                    0 => core.mean_work(),
                    _ => self.rate.a_second,
                };
                core.rx_queue_of_new_peer(work)
            }
        };
        core.new_index(self.peer.id(), rx_queue)
    }
}

impl Core {
    /// The receive queue for a new peer, of which so much work is expected.
    fn rx_queue_of_new_peer(&mut self, work: u64) -> u8 {
        let rates = &mut self.rx_queue_rates;
        match rates.for_new_peer() {
            Some(least) => {
                rates.add(least, work);
                self.indices.emptiest_rx_queue(least, rates.count())
            }
            None => self.indices.emptiest_rx_queue(0, 1),
        }
    }

    /// The work that a peer of which nothing is known may be expected to do.
    fn mean_work(&self) -> u64 {
        let all: u64 = self.rx_queue_rates.each().sum();
        all / u64::try_from(self.indices.len().max(1)).unwrap_or(u64::MAX)
    }
}

impl super::Device {
    /// All receiver indices from now on name this gateway, 0 to 31, in the [five upper
    /// bits](crate::GATEWAY_SHIFT) of their last byte: one of several that have one key.
    pub fn set_gateway_id(&mut self, id: Option<u8>) {
        self.core.gateway_id = id;
    }

    /// Load of each receive queue lately, in units of [`work`](crate::work) a second; nothing while there
    /// is one.
    pub fn rx_queue_loads(&mut self, now: Time) -> Vec<u64> {
        let rates = &mut self.core.rx_queue_rates;
        rates.observe(now, self.core.shared.rx_queues());
        match rates.count() {
            1 => Vec::new(),
            _ => rates.each().collect(),
        }
    }
}
