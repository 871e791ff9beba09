//! Two hand-overs of `adit-lab upgrade`.

mod common;

#[test]
fn hand_overs_make_no_handshake_and_deliver_nothing_twice() {
    let arguments = ["upgrade", "--count", "2", "--peers", "10", "--silent", "30"];
    let Some(output) = common::lab(&arguments) else {
        return;
    };
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
