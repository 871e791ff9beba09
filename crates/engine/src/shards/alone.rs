//! The straight path: what a thread does with the queues of an interface while it has them to itself.
//!
//! ```text
//! TUN → UDP    read → forward → send
//! UDP → TUN    receive → open → commit → deliver
//! ```
//!
//! Each stage is a function that threads which share the queues call, too
//! ([`queues`](crate::shards::queues)): these take, work and commit at different times, so that a batch has
//! a sequence number and is filed. Here a batch goes through all stages in a line, and
//! [`OrderedQueue::pass`](crate::order::ordered_queue::OrderedQueue::pass) sees to it that no other
//! thread has a part of the path.

use std::io;

use adit_io::{TunQueue, UdpSocket};
use adit_proto::Time;

use crate::order::ordered_queue::Commit;
use crate::outbound::OutboundFlowShard;
use crate::outbound::context::OutboundContext;
use crate::shards::queues::Queues;
use crate::shards::thread_state::ThreadState;
use crate::shared::sockets::RxQueueSocket;
use crate::thread::poll::{PollRole, Polled};
#[cfg(debug_assertions)]
use crate::thread::progress;

impl<T: TunQueue, U: UdpSocket> Queues<T, U> {
    /// Reads what waits in the TUN queue, up to a batch, and sends it. `None`, and nothing done, if another thread
    /// may have a part of this path. Errors are the TUN's.
    pub(super) fn send_alone(
        &self,
        context: OutboundContext<'_, U>,
        role: PollRole,
    ) -> Option<io::Result<Polled>> {
        let (outbound, tun) = (&self.outbound, &self.tun);
        outbound.queue.pass(|standing, forwarder| {
            let mut batch = match standing.read(context, tun) {
                Ok(Some(batch)) => batch,
                Ok(None) => return (Ok(Polled::packets(0, false)), None),
                Err(error) => return (Err(error), None),
            };
            self.has_read(&batch, role);
            let (result, processed) = outbound.transmit_whole(context, 0, forwarder, &mut batch);
            if result == Commit::Blocked {
                // A socket is full: what is left stays at the head, and EPOLLOUT has it go on.
                return (Ok(Polled::Blocked), Some(OutboundFlowShard::Whole(batch)));
            }
            let more = batch.more;
            outbound.has_transmitted(context, tun, batch);
            let polled = match forwarder.sender.waits_for() {
                Some(_) => Polled::Blocked,
                None => Polled::packets(processed, more),
            };
            (Ok(polled), None)
        })
    }

    /// Receives what waits in a socket, up to a batch, and delivers it. `None`, and nothing done, if another thread
    /// may have a part of this path. Errors are the TUN's.
    pub(super) fn receive_alone(
        &self,
        thread: &mut ThreadState,
        of: &RxQueueSocket<'_, U>,
        (now, role): (Time, PollRole),
    ) -> Option<io::Result<Polled>> {
        let context = self.inbound_context(of.rx_queue, now);
        let ThreadState {
            buffers, delivery, ..
        } = thread;
        self.inbound.queue(of.rx_queue).pass(|taking, ()| {
            let Some(mut batch) = self.receive(buffers, taking, of, (now, role)) else {
                return (Ok(Polled::packets(0, false)), None);
            };
            #[cfg(debug_assertions)]
            progress::pause();
            let polled = batch.polled();
            batch.open(1);
            batch.commit(context);
            let delivered = delivery.deliver_batch(context, &batch, 0);
            batch.ends();
            buffers.inbound.give_back(batch);
            (delivered.map(|()| polled), None)
        })
    }
}
