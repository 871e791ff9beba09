//! Peers that `adit-lab gateway` plays: UDP and TCP arrive, both ways.

mod common;

#[test]
fn udp_and_tcp_of_peers_that_are_played_arrive() {
    let case = "peers-active-10";
    let arguments = ["gateway", "--rounds", "1", "--implementations", "adit"];
    let Some(output) = common::lab(&[&arguments[..], &["--only", case]].concat()) else {
        return;
    };
    let (json, said) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(json).expect(&said);
    assert_eq!(document["cases"][0]["case"], case, "{said}");
    let measures = &document["cases"][0]["measures"];
    let measures = measures.as_array().expect("measures");
    // How much it is depends on what else the machine does.
    for name in [
        "from_peers_64",
        "to_peers_1368",
        "from_peers_tcp",
        "to_peers_tcp",
    ] {
        let measure = measures.iter().find(|measure| measure["name"] == name);
        let value = &measure.expect(name)["implementations"]["adit"]["median"];
        assert!(value.as_f64() > Some(0.0), "{name}: {said}");
    }
}
