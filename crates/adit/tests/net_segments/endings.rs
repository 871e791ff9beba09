//! What ends a connection, and what is left of it.

use std::io::{ErrorKind, Write};
use std::net::Shutdown;

use crate::{ACK, FIN, LARGE, OtherEnd, RST, SECOND, SYN};

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

#[test]
fn a_program_that_reads_no_more_and_gets_bytes_leaves_nothing() {
    let mut end = OtherEnd::new(LARGE, 1000);
    end.program().shutdown(Shutdown::Read).expect("it is open");
    end.send(ACK, end.seq, end.next, &[1; 100]);
    let came = end.run(SECOND, |_, _| {});
    assert!(
        came.iter().any(|segment| segment.flags & RST != 0),
        "{came:?}"
    );
    assert_eq!(end.stack.stats().connections, 0);
    assert_eq!(
        Write::write(&mut end.program(), &[1]).map_err(|error| error.kind()),
        Err(ErrorKind::BrokenPipe)
    );
}

#[test]
fn an_orphan_whose_other_end_takes_nothing_is_given_up() {
    let mut end = OtherEnd::new(LARGE, 16);
    end.write(50_000);
    end.step();
    end.window = 0;
    end.acknowledge();
    end.step();
    end.program = None;
    end.run(110 * SECOND, |end, segment| {
        if segment.len > 0 {
            end.acknowledge();
        }
    });
    assert_eq!(end.stack.stats().connections, 1);
    end.run(130 * SECOND, |end, segment| {
        if segment.len > 0 {
            end.acknowledge();
        }
    });
    assert_eq!(end.stack.stats().connections, 0);
}
