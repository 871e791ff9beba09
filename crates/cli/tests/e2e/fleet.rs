//! The example of a fleet.

use std::process::Command;

use crate::harness::*;
use crate::quick::{adit, only_adit};

#[test]
fn the_example_of_a_fleet_loses_a_gateway_and_no_client() {
    if !only_adit() {
        return;
    }
    let example = repository().join("packaging/fleet");
    let output = Command::new("timeout")
        .arg("--kill-after=5")
        .arg("120")
        .args([example.as_os_str(), adit().as_ref()])
        .output()
        .expect("timeout starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    for words in [
        "one has the address",
        "it is a peer after",
        "one is dead:",
        "client11 had no answer for",
        "the record of client12 is deleted",
        "client14 is sent to two instead of one: 100 packets transmitted, 100 received",
        // Those that have records, by the gateway that is left.
        "the others go on\nwg0: 3 peers from etcd:",
        "client15 came just in time: its first ping took",
        "just in time: 1 found, 0 unknown",
    ] {
        assert!(text.contains(words), "{words}: {text}{errors}");
    }
}
