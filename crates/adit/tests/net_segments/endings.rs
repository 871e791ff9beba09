//! What ends a connection, and what is left of it.

use std::net::Shutdown;

use crate::{ACK, FIN, LARGE, OtherEnd, SYN};

#[test]
fn a_closed_connection_answers_an_end_that_is_repeated_and_nothing_else() {
    let mut end = OtherEnd::new(LARGE, 1000);
    end.program().shutdown(Shutdown::Write).expect("it is open");
    end.step();
    end.next += 1;
    end.send(FIN | ACK, end.seq, end.next, &[]);
    end.step();
    end.step();
    assert_eq!(end.stack.stats().connections, 0);
    let (seq, next) = (end.seq, end.next);
    for (flags, payload, answers) in [
        (ACK, &[][..], 0),
        (FIN | ACK, &[][..], 1),
        (ACK, &[1][..], 1),
        (SYN | ACK, &[][..], 1),
        (ACK, &[][..], 0),
    ] {
        end.send(flags, seq, next, payload);
        assert_eq!(end.step().len(), answers, "{flags:x}");
    }
}
