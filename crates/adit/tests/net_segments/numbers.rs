//! Which numbers segments may have.

use std::os::unix::net::UnixStream;

use crate::{ACK, FIN, FIRST, LARGE, OtherEnd, RST, SECOND, SYN, Segment, stack};

#[test]
fn a_header_that_is_too_short_is_malformed() {
    let mut end = OtherEnd::new(LARGE, 1000);
    end.acknowledge();
    end.write(5000);
    end.step();
    let mut packet = end.packet(ACK, end.seq, end.next, &[]);
    packet[32] = 4 << 4;
    end.push(&packet);
    end.step();
    let stats = end.stack.stats();
    assert_eq!((stats.failed, stats.malformed), (0, 1));
}

#[test]
fn an_acknowledgement_with_a_number_from_elsewhere_is_not_taken() {
    for offset in [5 << 20, 1 << 31, (5_u32 << 20).wrapping_neg()] {
        let mut end = OtherEnd::new(LARGE, 1000);
        end.write(1000);
        let sent = end.step();
        assert_eq!(sent.len(), 1);
        let ack = end.next + 1000;
        end.send(ACK, end.seq.wrapping_add(offset), ack, &[]);
        end.send(ACK, end.seq.wrapping_add(offset), ack, &[1; 10]);
        let again = end.run(5 * SECOND, |_, _| {});
        let is_it = |segment: &Segment| segment.seq == end.next && segment.len == 1000;
        assert!(again.iter().any(is_it), "{again:?}");
        end.run(5 * SECOND, OtherEnd::take);
        assert_eq!(end.next, ack);
    }
}

#[test]
fn a_reset_with_another_number_than_the_next_is_challenged() {
    let mut end = OtherEnd::new(LARGE, 1000);
    let (seq, next) = (end.seq, end.next);
    end.send(ACK, seq, next, &[1; 10]);
    // Which is there at once, too.
    end.send(RST, seq + 11, next, &[]);
    end.send(RST | ACK, seq + 500, next, &[]);
    let came = end.step();
    assert!(came.iter().all(|segment| segment.flags & RST == 0));
    assert!(came.iter().any(|segment| segment.ack == seq + 10));
    assert_eq!(end.read(), (10, false));
    // They are not answered one by one.
    let mut answers = 0;
    for _ in 0..100 {
        end.send(RST, seq + 11, next, &[]);
        answers += end.step().len();
    }
    assert!(answers < 4, "{answers}");
    assert_eq!(end.stack.stats().connections, 1);
    end.send(ACK, seq + 10, next, &[1; 10]);
    end.send(RST, seq + 20, 0, &[]);
    end.step();
    assert_eq!(end.read(), (10, true));
    assert_eq!(end.stack.stats().connections, 0);
}

#[test]
fn an_answer_to_the_syn_that_comes_again_is_acknowledged_again() {
    let mut end = OtherEnd::new(LARGE, 1000);
    end.send(SYN | ACK, FIRST, end.next, &[]);
    let answer = end.step().pop().expect("an acknowledgement");
    assert_eq!((answer.seq, answer.ack), (end.next, FIRST + 1));
}

#[test]
fn a_loss_is_repeated_at_once_after_the_other_end_ended() {
    let mut end = OtherEnd::new(LARGE, 1000);
    end.write(10_000);
    end.step();
    let (seq, next) = (end.seq, end.next);
    end.send(FIN | ACK, seq, next, &[]);
    end.step();
    // What the duplicates are numbered with is older than the end.
    (0..3).for_each(|_| end.send(ACK, seq, next, &[]));
    let came = end.step();
    let is_first = |segment: &Segment| segment.seq == next && segment.len > 0;
    assert!(came.iter().any(is_first), "{came:?}");
}

#[test]
fn a_connection_that_rested_knows_its_numbers_after_a_reset_was_sent() {
    let mut end = OtherEnd::alone(stack(LARGE), 1000);
    end.port = 9;
    end.step();
    end.send(SYN, FIRST, 0, &[]);
    let answer = end.step().pop().expect("an answer");
    end.next = answer.seq + 1;
    // An acknowledgement that is none.
    end.send(ACK, FIRST + 1, end.next + 77, &[]);
    let refusal = end.step().pop().expect("a refusal");
    assert!(refusal.flags & RST != 0);
    end.send(ACK, FIRST + 1, end.next, &[]);
    let (program, ours) = UnixStream::pair().expect("two sockets");
    program.set_nonblocking(true).expect("it can");
    end.step();
    assert!(end.stack.accept(9, ours.into()));
    end.program = Some(program);
    end.run(12 * SECOND, |_, _| {});
    end.send(ACK, FIRST + 1, end.next, &[1; 100]);
    let answer = end.step().pop().expect("an acknowledgement");
    assert_eq!((answer.seq, answer.ack), (end.next, FIRST + 101));
    assert_eq!(end.read(), (100, false));
}
