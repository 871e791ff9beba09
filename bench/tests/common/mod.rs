//! Runs a command of the lab. It needs root, and the debug build of `adit` beside that of the lab,
//! with the examples, as `scripts/test` leaves it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};

/// What the command left, with its JSON on stdout; `None`, and why, where it cannot run.
pub(crate) fn lab(arguments: &[&str]) -> Option<Output> {
    let lab = Path::new(env!("CARGO_BIN_EXE_adit-lab"));
    // What of Adit is measured.
    let (option, adit) = match arguments.first() {
        Some(&"embed") => ("--tun", "examples/tun"),
        _ => ("--adit", "adit"),
    };
    let adit = lab.with_file_name(adit);
    let owner = std::fs::metadata("/proc/self").expect("/proc").uid();
    if owner != 0 || !adit.is_file() {
        let message = format!(
            "needs root, and {} (cargo build -p adit-cli, or cargo test --workspace)",
            adit.display()
        );
        let is_ci = std::env::var_os("CI").is_some_and(|it| !it.is_empty() && it != "false");
        assert!(!is_ci, "{message}");
        eprintln!("not run: {message}");
        return None;
    }
    let mut command = Command::new(lab);
    command.args(arguments).args(["--json", option]).arg(adit);
    Some(command.output().expect("adit-lab starts"))
}
