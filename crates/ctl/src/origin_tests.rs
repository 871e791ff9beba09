use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use super::*;

/// It stands in the log, where it must not begin a line or do something to a terminal.
#[test]
fn the_name_of_a_program_is_one_line_of_text() {
    let script = r"printf 'a\nb\033[1mc' > /proc/$$/comm; echo; read -r _";
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
    assert_eq!(Origin { pid, uid: 0 }.command().unwrap(), "ab[1mc");
    drop(child.stdin.take());
    child.wait().unwrap();
}
