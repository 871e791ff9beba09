use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use super::*;

/// It stands in the log, where it must not begin a line or do something to a terminal.
#[test]
fn the_name_of_a_program_is_one_line_of_text() {
    let script = r"printf 'a\nb\033[1m(c' > /proc/$$/comm; echo; read -r _";
    let mut child = Command::new("sh")
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // It has its name by then.
    let mut said = BufReader::new(child.stdout.take().unwrap());
    said.read_line(&mut String::new()).unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    let caller = Origin { pid, uid: 7 }.caller();
    assert_eq!(caller.command.as_deref(), Some("ab[1mc"));
    let who = Caller {
        login: Some(1000),
        ..caller
    };
    assert_eq!(
        who.to_string(),
        format!("ab[1mc (pid {pid}, uid 7, for uid 1000)")
    );
    let line = format!("{who} did it (to a peer)");
    assert_eq!(Caller::parse(&line), Some((who, "did it (to a peer)")));
    for other in [
        "",
        "wg (pid",
        "wg (pid 7)",
        "wg (pid x, uid 1)",
        "wg (pid 1, uid 1",
    ] {
        assert_eq!(Caller::parse(other), None, "{other}");
    }
    drop(child.stdin.take());
    child.wait().unwrap();
}
