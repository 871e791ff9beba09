//! Two hand-overs of `adit-lab upgrade`. It needs root, and the debug build of `adit` beside that of
//! the lab, as `cargo test --workspace` leaves it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

#[test]
fn hand_overs_make_no_handshake_and_deliver_nothing_twice() {
    let lab = Path::new(env!("CARGO_BIN_EXE_adit-lab"));
    let adit = lab.with_file_name("adit");
    let owner = std::fs::metadata("/proc/self").expect("/proc").uid();
    if owner != 0 || !adit.is_file() {
        let message = format!("needs root, and {} (cargo build -p adit)", adit.display());
        let is_ci = std::env::var_os("CI").is_some_and(|it| !it.is_empty() && it != "false");
        assert!(!is_ci, "{message}");
        return eprintln!("not run: {message}");
    }
    let output = Command::new(lab)
        .args(["upgrade", "--count", "2", "--peers", "10", "--silent", "30"])
        .args(["--json", "--adit"])
        .arg(&adit)
        .output()
        .expect("adit-lab starts");
    let (json, said) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(json).expect(&said);
    assert_eq!(document["stopped"], serde_json::Value::Null, "{said}");
    let goal = |name: &str| {
        let goals = document["goals"].as_array().expect("goals");
        let found = goals.iter().find(|goal| goal["name"] == name);
        found.expect(name)["value"].as_f64().expect("a value")
    };
    // How long it takes, and what queues lose meanwhile, depends on what else the machine does.
    assert_eq!(goal("hand-overs"), 2.0, "{said}");
    assert_eq!(goal("handshake messages"), 0.0, "{said}");
    assert_eq!(goal("datagrams delivered twice"), 0.0, "{said}");
    assert!(document["datagrams"].as_u64() > Some(1000), "{document:#}");
}
