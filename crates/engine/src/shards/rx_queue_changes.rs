//! Changes of the number of receive queues of an interface, while packets flow.

use adit_io::UdpSocket;
use adit_proto::Time;

use crate::order::rx_queues::{ChangeProgress, RX_QUEUES};
use crate::shards::queues::Queues;
use crate::shared::sockets::Sockets;

impl<T, U> Queues<T, U> {
    /// Begins to spread peers over so many receive queues. False if the kernel refused any part of that.
    pub(crate) fn change_rx_queues(&self, sockets: &Sockets<U>, rx_queues: usize) -> bool
    where
        U: UdpSocket,
    {
        let before = sockets.in_use();
        let both = before.max(rx_queues);
        let mut is_refused = false;
        self.inbound.change(before, rx_queues, || {
            let (graces, refused) = sockets.spread(rx_queues);
            is_refused = refused;
            sockets.use_rx_queues(if graces.is_empty() { before } else { both });
            (!graces.is_empty()).then_some((graces, if refused { both } else { rx_queues }))
        });
        !is_refused
    }

    /// Looks how far a change of the number of receive queues has come: which receive queues are to be polled, though
    /// they may seem empty.
    pub(crate) fn rx_queues_to_poll(&self, sockets: &Sockets<U>, now: Time) -> [bool; RX_QUEUES] {
        let families =
            |rx_queue| [false, true].map(|v6| sockets.of_rx_queue(rx_queue, v6).is_some());
        match self.inbound.progress(families) {
            Some(ChangeProgress::Waits(rx_queues)) => return rx_queues,
            Some(ChangeProgress::Over(rx_queues)) => {
                sockets.use_rx_queues(rx_queues);
                self.common.proto.rx_queues().set_count(rx_queues, now);
                self.handle().wake();
            }
            None => {}
        }
        [false; RX_QUEUES]
    }

    /// The sockets are others than before.
    pub(crate) fn replaced(&self, sockets: &Sockets<U>, now: Time) {
        self.inbound.replaced();
        let rx_queues = self.common.proto.rx_queues();
        rx_queues.set_count(sockets.in_use(), now);
    }

    /// Whether the number of receive queues changes: [`Self::rx_queues_to_poll`] is to be asked, often.
    pub(crate) fn is_changing(&self) -> bool {
        self.inbound.is_changing()
    }
}
