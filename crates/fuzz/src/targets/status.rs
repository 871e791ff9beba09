//! The document of the status socket.

use adit_ctl::status::{Colour, StatusReport, document, render};
use adit_ctl::text::is_printable;

pub(crate) fn run(input: &[u8]) {
    let Ok(interface) = document(input) else {
        return;
    };
    // What was read can be written and read again.
    let report = StatusReport::new(vec![interface.clone()]);
    let text = serde_json::to_vec(&report).expect("a document");
    assert_eq!(document(&text).expect("our own document"), interface);
    let text = render(&interface, 1_800_000_000, Colour::Never);
    assert!(text.chars().all(|c| c == '\n' || is_printable(c)));
    _ = render(&interface, 1_800_000_000, Colour::Always);
}
