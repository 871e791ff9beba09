//! What an experiment leaves behind.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn an_experiment_ends_whose_outer_process_is_gone_at_its_start() {
    // The inner process as it finds itself when the outer one was killed before it could ask for a
    // signal: the first of a PID namespace, and its parent is another than it was told.
    let child = Command::new("unshare")
        .args([
            "--pid",
            "--fork",
            "--kill-child",
            env!("CARGO_BIN_EXE_adit-lab"),
        ])
        .args(["soak", "--time", "60s", "--adit", "/bin/true"])
        .env("ADIT_LAB_INSIDE", "0")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.expect("unshare starts");
    let begun = Instant::now();
    while child.try_wait().expect("wait").is_none() {
        if begun.elapsed() > Duration::from_secs(30) {
            child.kill().expect("kill");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().expect("output");
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("Operation not permitted") {
        eprintln!("not run: needs root");
        return;
    }
    assert!(said.contains("is gone"), "{said}");
}
