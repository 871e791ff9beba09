//! Commands about the file of an interface leave the peers alone that an agent brought.

use crate::agent::{Hub, PEERS, record};
use crate::endpoints::Dns;
use crate::harness::*;
use crate::quick::{adit, only_adit};

/// What the interface says of a peer.
fn peer(hub: &Hub, key: &str) -> serde_json::Value {
    let printed = hub.left().sh(&format!("{} show wg0 --json", adit()));
    let document: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
    let peers = document["interfaces"][0]["peers"].as_array().cloned();
    let mut peers = peers.unwrap_or_default().into_iter();
    let found = peers.find(|it| it["public_key"] == key);
    found.unwrap_or_default()
}

#[test]
fn the_file_changes_and_the_terms_of_an_agents_peer_stay() {
    if !only_adit() {
        return;
    }
    let mut hub = Hub::new(&format!("dir:{PEERS}"));
    let (moves, own) = (Keys::new(), Keys::new().public);
    let dns = Dns::start(hub.left(), "127.0.0.1");
    let terms = "# friendly_name = phone\n# Limit = 5M\n# Quota = 1K\n# Expires = 2099-01-01";
    hub.put("phone", &record(&hub.phone.public, "10.77.0.2/32", terms));
    let named = record(&moves.public, "10.77.0.3/32", "Endpoint = right.test:7");
    hub.put("moves", &named);
    hub.start(&[]);
    hub.has(&[&hub.phone.public, &moves.public]);
    hub.connect("");
    let right = &hub.world.net.right;
    ping(right, "10.77.0.1", 5);
    wait_for("the quota is used up", seconds(30), || {
        peer(&hub, &hub.phone.public)["allowance"]["access"] == "over_quota"
    });
    // The agent cannot tell it again.
    hub.kill();
    let before = peer(&hub, &hub.phone.public);
    assert_eq!(before["name"], "phone");
    for command in [
        "sync wg0".to_owned(),
        format!("add wg0 {own} --name own"),
        "peer limit wg0 own 5M".into(),
        "peer rename wg0 own mine".into(),
        "peer disable wg0 mine".into(),
        "peer enable wg0 mine".into(),
        "peer remove wg0 mine".into(),
        "edit wg0".into(),
    ] {
        let editor = "VISUAL='sed -i s/51820/51821/'";
        hub.left().sh(&format!("{editor} {} {command}", adit()));
        let after = peer(&hub, &hub.phone.public);
        assert_eq!(after["name"], "phone", "{command}");
        let (before, after) = (&before["allowance"], &after["allowance"]);
        for what in ["to_peer_bits", "quota_bytes", "expires", "access"] {
            assert!(!before[what].is_null(), "{what}: {before}");
            assert_eq!(after[what], before[what], "{command}: {what}");
        }
    }
    hub.has(&[&hub.phone.public, &moves.public]);
    // Its name is still looked up.
    dns.set(&["10.2.0.77"]);
    hub.left().sh("ping -n -q -c 1 -W 1 10.77.0.3 || true");
    wait_for("the name is looked up", seconds(90), || {
        let endpoints = hub.left().sh("wg show wg0 endpoints");
        endpoints.contains("10.2.0.77:7")
    });
    // What it used before the interface went down counts.
    hub.left()
        .sh(&format!("{adit} down wg0; {adit} up wg0", adit = adit()));
    hub.start(&[]);
    hub.has(&[&hub.phone.public, &moves.public]);
    wait_for("its quota is told", seconds(20), || {
        !peer(&hub, &hub.phone.public)["allowance"].is_null()
    });
    assert_eq!(
        peer(&hub, &hub.phone.public)["allowance"]["access"],
        "over_quota"
    );
}
