use std::convert::Infallible;

use super::*;
use crate::order::ordered_queue::{Commit, Taken};

/// Messages of a full batch.
const BATCH: usize = 64;

/// A full batch of messages of this length is taken from receive queue 0 and committed.
fn poll(rx_queues: &RxQueues<(), ()>, len: usize) {
    let queue = rx_queues.queue(0);
    let one = (1, |_: &mut [&mut ()]| true);
    let taken = queue.take((false, 1), one, |taking| {
        taking.took(false, Some(std::iter::repeat_n(len, BATCH)));
        Ok::<_, Infallible>(Some(()))
    });
    let Ok(Taken::Batch(sequence, ())) = taken else {
        panic!("nobody else takes");
    };
    queue.file(sequence, ());
    queue.proceed(0, |(), ()| Commit::Done, drop);
}

/// The sender of what never ends in a receive queue that peers leave keeps the receive queues closed
/// that they move to until as much was taken as the socket could have had.
#[test]
fn held_rx_queues_open_however_short_datagrams_are() {
    for len in [0, 1, 7, 32, 148, 767, 768, 1452, 65_507] {
        let rx_queues = RxQueues::<(), ()>::new(|| ());
        assert!(rx_queues.change(1, 4, || Some((Vec::new(), 4))));
        let counted = u64::try_from(BATCH * len.max(768)).expect("it is small");
        let most = MOST_WAITING.div_ceil(counted);
        let mut batches = 0;
        while rx_queues.progress(|_| [true, false]) != Some(ChangeProgress::Over(4)) {
            assert!(batches <= most, "{len}: {batches} batches");
            poll(&rx_queues, len);
            batches += 1;
        }
        // No sooner: what arrived before could still be there.
        assert_eq!(batches, most, "{len}");
    }
}
