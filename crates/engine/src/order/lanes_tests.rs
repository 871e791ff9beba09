use std::convert::Infallible;

use super::*;
use crate::order::gates::{Put, Taken};

/// Messages of a full batch.
const BATCH: usize = 64;

/// A full batch of messages of this length is taken from lane 0 and put.
fn poll(lanes: &Lanes<(), ()>, len: usize) {
    let gates = lanes.gates(0);
    let one = (1, |_: &mut [&mut ()]| true);
    let taken = gates.take((false, 1), one, |taking| {
        taking.took(false, Some(std::iter::repeat_n(len, BATCH)));
        Ok::<_, Infallible>(Some(()))
    });
    let Ok(Taken::Batch(ticket, ())) = taken else {
        panic!("nobody else takes");
    };
    gates.file(ticket, ());
    gates.proceed(0, |(), ()| Put::Done, drop);
}

/// The sender of what never ends in a lane that peers leave keeps the lanes closed that they move to
/// until as much was taken as the socket could have had.
#[test]
fn held_lanes_open_however_short_datagrams_are() {
    for len in [0, 1, 7, 32, 148, 767, 768, 1452, 65_507] {
        let lanes = Lanes::<(), ()>::new(|| ());
        assert!(lanes.change(1, 4, || Some((Vec::new(), 4))));
        let counted = u64::try_from(BATCH * len.max(768)).expect("it is small");
        let most = MOST_WAITING.div_ceil(counted);
        let mut batches = 0;
        while lanes.progress(|_| [true, false]) != Some(Progress::Over(Some(4))) {
            assert!(batches <= most, "{len}: {batches} batches");
            poll(&lanes, len);
            batches += 1;
        }
        // No sooner: what arrived before could still be there.
        assert_eq!(batches, most, "{len}");
    }
}
