//! Requests on the UAPI socket: in any pieces the same, and what is written is what is read.

use adit_ctl::uapi::{Heard, MAX_LINE, MAX_REQUEST, Parser, UapiRequest, format_set};

pub(crate) fn run(input: &[u8]) {
    let Some((&size, bytes)) = input.split_first() else {
        return;
    };
    // Lines that are too long, from inputs that are not.
    let (mut long, mut expanded) = (4, Vec::new());
    for &byte in bytes {
        if byte == 1 && long > 0 {
            long -= 1;
            expanded.extend([b'a'; MAX_LINE]);
        } else {
            expanded.push(byte);
        }
    }
    let bytes = &expanded[..];
    let whole = hear(bytes, bytes.len().max(1), MAX_REQUEST);
    assert_eq!(
        whole,
        hear(bytes, usize::from(size).max(1), MAX_REQUEST),
        "cut into pieces"
    );
    // As many answers as requests, the last of which may be none.
    let (requests, lost) = outline(bytes);
    let hopeless = whole
        .iter()
        .filter(|heard| matches!(heard, Heard::Hopeless(_)));
    assert_eq!(whole.len(), requests + usize::from(lost));
    assert_eq!(hopeless.count(), usize::from(lost));
    for heard in &whole {
        if let Heard::Request(UapiRequest::Set(change)) = heard {
            let text = format_set(change);
            let again = hear(&text, text.len(), MAX_REQUEST);
            assert_eq!(again.len(), 1);
            // A peer that is removed has nothing else.
            assert_eq!(again[0], Heard::Request(UapiRequest::Set(change.clone())));
        }
    }
    // A room that is too small for all of it ends in a refusal or in the same.
    let room = usize::from(size) * 4;
    let cut = hear(bytes, 64, room);
    let same = whole.iter().zip(&cut).take_while(|(a, b)| a == b).count();
    assert!(cut.len() == same || matches!(cut[same], Heard::Hopeless(_)));
}

fn hear(bytes: &[u8], piece: usize, room: usize) -> Vec<Heard> {
    let mut parser = Parser::default();
    let mut all = Vec::new();
    for mut piece in bytes.chunks(piece) {
        while let Some(heard) = parser.push(&mut piece, room) {
            assert!(all.len() <= bytes.len(), "an answer for nothing");
            if let Heard::Refused(error) | Heard::Hopeless(error) = &heard {
                assert!(error.errno > 0 && !error.message.contains('\n'));
            }
            let ends = matches!(heard, Heard::Hopeless(_));
            all.push(heard);
            if ends {
                return all;
            }
        }
        assert!(parser.held() <= room);
    }
    all.extend(parser.end());
    all
}

/// How many whole requests there are, and whether something else follows them.
fn outline(bytes: &[u8]) -> (usize, bool) {
    let (mut requests, mut within) = (0, false);
    let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    let (unfinished, whole) = lines.split_last().expect("one at least");
    for line in whole {
        let begins = [
            &b"get="[..],
            b"set=",
            b"add=",
            b"alive=",
            b"down=",
            b"names=",
            b"endpoints=",
            b"threads=",
        ];
        let begins = line.len() <= MAX_LINE && begins.iter().any(|word| line.starts_with(word));
        match (within, line.is_empty()) {
            (true, true) => (requests, within) = (requests + 1, false),
            (false, false) if begins && std::str::from_utf8(line).is_ok() => within = true,
            (false, false) => return (requests, true),
            _ => {}
        }
    }
    (requests, within || !unfinished.is_empty())
}
