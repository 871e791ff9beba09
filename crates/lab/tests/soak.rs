//! A minute of `adit-lab soak`. It needs root, and the debug build of `adit` beside that of the lab,
//! as `cargo test --workspace` leaves it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

#[test]
fn a_minute_of_disturbances_leaves_nothing_behind() {
    let lab = Path::new(env!("CARGO_BIN_EXE_adit-lab"));
    let adit = lab.with_file_name("adit");
    let owner = std::fs::metadata("/proc/self").expect("/proc").uid();
    if owner != 0 || !adit.is_file() {
        let message = format!("needs root, and {} (cargo build -p adit)", adit.display());
        let is_ci = std::env::var_os("CI").is_some_and(|it| !it.is_empty() && it != "false");
        assert!(!is_ci, "{message}");
        return eprintln!("not run: {message}");
    }
    let time = std::env::var("ADIT_SOAK_TIME").unwrap_or_else(|_| "60s".to_owned());
    let output = Command::new(lab)
        .args(["soak", "--time", &time, "--json", "--adit"])
        .arg(&adit)
        .output()
        .expect("adit-lab starts");
    let (json, table) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{table}");
    let document: serde_json::Value = serde_json::from_slice(json).expect("JSON");
    let goals = document["goals"].as_array().expect("goals");
    assert_eq!(goals.len(), 6, "{document:#}");
    assert!(goals.iter().all(|goal| goal["met"] == true), "{document:#}");
    assert!(document["datagrams"].as_u64() > Some(1000), "{document:#}");
}
