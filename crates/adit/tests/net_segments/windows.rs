//! What is sent into windows, and what closed ones hold up.

use std::net::{Shutdown, SocketAddr};

use crate::{ACK, FIN, FIRST, LARGE, OtherEnd, SCALE, SECOND, SMALL, SYN};

#[test]
fn an_end_behind_bytes_that_do_not_fit_is_not_taken() {
    let mut end = OtherEnd::new(SMALL, 1000);
    let (seq, next) = (end.seq, end.next);
    end.send(ACK, seq, next, &[1; 1380]);
    end.send(ACK | FIN, seq + 1380, next, &[1; 720]);
    let told = end.step().pop().expect("an acknowledgement");
    assert_eq!(end.read(), (2048, false));
    assert_eq!(told.ack, seq + 2048);
    // The rest comes again.
    end.step();
    end.send(ACK | FIN, told.ack, next, &[1; 52]);
    end.step();
    assert_eq!(end.read(), (52, true));
}

#[test]
fn an_acknowledgement_behind_an_end_at_the_edge_of_the_window_is_heard() {
    let mut end = OtherEnd::new(SMALL, 1000);
    let (seq, next) = (end.seq, end.next);
    end.write(1000);
    end.step();
    end.send(ACK | FIN, seq, next, &[1; 2048]);
    end.send(ACK, seq + 2049, next + 1000, &[]);
    end.step();
    assert_eq!(end.read(), (2048, true));
    let came = end.run(10 * SECOND, |_, _| {});
    assert!(came.iter().all(|segment| segment.len == 0), "{came:?}");
}

#[test]
fn an_end_in_the_first_segment_behind_bytes_that_do_not_fit_is_not_taken() {
    let (mut end, _opened) = OtherEnd::connecting(SMALL, 1000);
    end.send(SYN | ACK, FIRST, end.next, &[]);
    // Before the stack has acknowledged that.
    for (len, ended) in [(3000, false), (953, true)] {
        end.send(ACK | FIN, end.seq + 1, end.next, &vec![1; len]);
        let told = end.step().pop().expect("an acknowledgement");
        end.step();
        let came = told.ack - end.seq - 1;
        assert_eq!(
            end.read(),
            (
                usize::try_from(came - u32::from(ended)).expect("few"),
                ended
            )
        );
        end.seq += came;
    }
    assert_eq!(end.seq, FIRST + 3001);
}

#[test]
fn a_connection_that_gets_a_smaller_ring_does_not_lose_bytes_before_the_end() {
    let mut end = OtherEnd::new(200 << 10, 1000);
    end.run(12 * SECOND, |_, _| {});
    // Others take what it had.
    let port = end.port;
    for n in 0..40 {
        let remote = SocketAddr::from(([10, 0, 0, 3], 1000 + n));
        let _opened = end.stack.connect_alone(remote);
    }
    end.step();
    end.port = port;
    let (seq, next) = (end.seq, end.next);
    end.send(ACK | FIN, seq, next, &[1; 6000]);
    end.step();
    let (len, ended) = end.read();
    assert!(len < 6000 && !ended, "{len} {ended}");
    // It comes again from there.
    end.step();
    let mut len = u32::try_from(len).expect("short");
    for _ in 0..10 {
        end.port = port;
        let left = usize::try_from(6000 - len).expect("little");
        end.send(ACK | FIN, seq + len, next, &vec![1; left]);
        end.step();
        let (more, ended) = end.read();
        end.step();
        len += u32::try_from(more).expect("short");
        assert_eq!(ended, len == 6000);
        if ended {
            return;
        }
    }
    panic!("no end");
}

#[test]
fn an_end_behind_a_window_that_only_a_probe_has_told_is_not_taken_too_early() {
    let mut end = OtherEnd::new(SMALL, 1000);
    // The stack has something to send, which the test takes none of.
    end.window = 0;
    end.acknowledge();
    end.step();
    end.write(100);
    let (mut seq, next) = (end.seq, end.next);
    // The program does not read, until half of the ring is full.
    let told = loop {
        end.send(ACK, seq, next, &[1; 1000]);
        seq += 1000;
        let told = end.step().pop().expect("an acknowledgement");
        assert_eq!(told.ack, seq);
        if told.window < 2048 >> SCALE {
            break told.window;
        }
    };
    assert_eq!(told, 1048 >> SCALE);
    // It reads all. That is too little to be told at once.
    end.read();
    let came = end.run(62 * SECOND, |_, _| {});
    assert!(came.iter().all(|segment| segment.len == 1), "{came:?}");
    let probe = came.last().expect("a probe");
    assert_eq!((probe.ack, probe.window), (seq, 2048 >> SCALE));
    end.read();
    end.send(FIN | ACK, seq, next, &[1; 2000]);
    let told = end.step().pop().expect("an acknowledgement").ack;
    let (len, ended) = end.read();
    assert!(len < 2000 && !ended, "{len} {ended}");
    end.step();
    end.send(FIN | ACK, told, next, &vec![1; 2000 - len]);
    end.step();
    assert_eq!(end.read(), (2000 - len, true));
}

#[test]
fn no_more_is_sent_than_the_other_end_takes() {
    for window in [1, 2, 31, 32, 33] {
        let mut end = OtherEnd::new(LARGE, window);
        let before = end.next;
        end.write(60_000);
        let limit = u32::from(window) << SCALE;
        end.run(SECOND, |end, segment| {
            let sent = segment.seq + segment.len - end.next;
            assert!(sent <= limit, "{sent} {limit}");
            end.take(segment);
        });
        assert_ne!(end.next, before, "{window}");
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
