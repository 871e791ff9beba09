//! What is sent into windows, and what closed ones hold up.

use std::net::Shutdown;

use crate::{ACK, FIN, LARGE, OtherEnd, SCALE, SECOND, SMALL};

#[test]
fn no_more_is_sent_than_the_other_end_takes() {
    for window in [1, 2, 31, 32, 33] {
        let mut end = OtherEnd::new(LARGE, window);
        end.write(60_000);
        let limit = u32::from(window) << SCALE;
        end.run(SECOND, |end, segment| {
            let sent = segment.seq + segment.len - end.next;
            assert!(sent <= limit, "{sent} {limit}");
            end.take(segment);
        });
    }
}

/// How many bytes reach an end whose window was closed for so long, within a minute after it opened silently.
fn after_closed(end: &mut OtherEnd, closed: i64) -> u32 {
    let before = end.next;
    end.run(closed, |end, segment| {
        if segment.len > 0 {
            end.acknowledge();
        }
    });
    assert_eq!(end.next, before);
    // The update is lost.
    end.window = 1000;
    end.run(62 * SECOND, OtherEnd::take);
    end.next - before
}

#[test]
fn a_lost_window_update_does_not_end_the_stream() {
    for closed in [1, 5, 12, 50].map(|seconds| seconds * SECOND) {
        // All is acknowledged, and then more is written.
        let mut end = OtherEnd::new(LARGE, 1000);
        end.window = 0;
        end.acknowledge();
        end.step();
        end.write(10_000);
        assert_eq!(after_closed(&mut end, closed), 10_000, "{closed}");
        // It was closed from the beginning.
        let mut end = OtherEnd::new(LARGE, 0);
        end.write(10_000);
        end.step();
        assert_eq!(after_closed(&mut end, closed), 10_000, "{closed}");
        // What is on its way does not fit any more.
        let mut end = OtherEnd::new(LARGE, 16);
        end.write(10_000);
        end.step();
        end.window = 0;
        end.acknowledge();
        assert_eq!(after_closed(&mut end, closed), 10_000, "{closed}");
        // The other end has ended, and the program ends, too.
        let mut end = OtherEnd::new(LARGE, 16);
        end.send(FIN | ACK, end.seq, end.next, &[]);
        end.seq += 1;
        end.write(10_000);
        end.step();
        end.window = 0;
        end.acknowledge();
        end.step();
        end.program().shutdown(Shutdown::Write).expect("it is open");
        assert_eq!(after_closed(&mut end, closed), 10_001, "{closed}");
        assert_eq!(end.stack.stats().connections, 0);
    }
}

#[test]
fn a_window_that_was_closed_opens_without_a_slow_beginning() {
    let mut end = OtherEnd::new(LARGE, 1000);
    end.window = 0;
    end.acknowledge();
    end.step();
    end.write(100_000);
    let probes = end.run(20 * SECOND, |end, segment| {
        if segment.len > 0 {
            end.acknowledge();
        }
    });
    assert!(probes.len() > 2, "{probes:?}");
    end.window = 1000;
    end.acknowledge();
    let sent: u32 = end.step().iter().map(|segment| segment.len).sum();
    assert!(sent > 10_000, "{sent}");
}

#[test]
fn a_window_update_is_heard_wherever_it_is_numbered() {
    let mut end = OtherEnd::new(SMALL, 1000);
    end.window = 0;
    end.acknowledge();
    end.step();
    end.write(1000);
    end.step();
    // The window of the stack is full: what follows is behind it.
    let (seq, next) = (end.seq, end.next);
    let mut sent = 0;
    let mut acked = seq;
    while sent < 1 << 22 {
        end.send(ACK, acked, next, &[1; 1380]);
        sent += 1380;
        let came = end.step();
        let ack = came.iter().map(|segment| segment.ack).max();
        if ack.is_some_and(|ack| ack < acked + 1380) {
            break;
        }
        acked += 1380;
    }
    end.window = 1000;
    end.send(ACK, acked + 1380, next, &[]);
    let came = end.step();
    assert!(came.iter().any(|segment| segment.len == 1000), "{came:?}");
}
