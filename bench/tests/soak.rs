//! A minute of `adit-lab soak`.

mod common;

#[test]
fn a_minute_of_disturbances_leaves_nothing_behind() {
    let time = std::env::var("ADIT_SOAK_TIME").unwrap_or_else(|_| "60s".to_owned());
    let Some(output) = common::lab(&["soak", "--time", &time]) else {
        return;
    };
    let (json, table) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{table}");
    let document: serde_json::Value = serde_json::from_slice(json).expect("JSON");
    let goals = document["goals"].as_array().expect("goals");
    assert_eq!(goals.len(), 6, "{document:#}");
    assert!(goals.iter().all(|goal| goal["met"] == true), "{document:#}");
    assert!(document["datagrams"].as_u64() > Some(1000), "{document:#}");
}
