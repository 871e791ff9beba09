//! `adit agent --just-in-time`: peers that come when they begin a handshake.

use crate::agent::{Hub, json as record};
use crate::etcd::{PORT, Store, tells};
use crate::harness::*;
use crate::quick::{adit, only_adit};

const SOURCE: &str = "etcd:http://127.0.0.1:2379/wg0/";

/// The name of a peer's record.
fn named(keys: &Keys) -> String {
    format!("wg0/{}", keys.public)
}

fn counts(hub: &Hub, name: &str) -> u64 {
    hub.status()["just_in_time"][name].as_u64().unwrap_or(0)
}

#[test]
fn a_peer_comes_when_it_begins_a_handshake() {
    if !only_adit() {
        return;
    }
    let mut hub = Hub::new(SOURCE);
    let (laptop, other) = (Keys::new(), Keys::new());
    let store = Store::new(hub.left());
    store.start(PORT);
    store.put(
        &named(&hub.phone),
        &record(&hub.phone.public, "10.77.0.2/32"),
    );
    store.put(&named(&laptop), &record(&laptop.public, "10.77.0.3/32"));
    hub.start(&["--just-in-time"]);
    hub.becomes(&[("state", "listed".into())]);
    hub.has(&[]);
    hub.connect("");
    let right = hub.world.net.right.clone();
    ping(&right, "10.77.0.1", 1);
    hub.has(&[&hub.phone.public]);
    assert_eq!(counts(&hub, "found"), 1);
    // Records of peers that did not ask stay where they are.
    store.put(&named(&other), &record(&other.public, "10.77.0.4/32"));
    // A change of a peer that is there takes effect.
    store.put(
        &named(&hub.phone),
        &record(&hub.phone.public, "10.77.0.2/31"),
    );
    wait_for("the change is made", seconds(20), || {
        hub.left()
            .sh("wg show wg0 allowed-ips")
            .contains("10.77.0.2/31")
    });
    hub.has(&[&hub.phone.public]);
    // The store is away, then the agent: the peer stays.
    store.kill();
    tells(&hub, "127.0.0.1:2379");
    ping(&right, "10.77.0.1", 1);
    hub.kill();
    hub.start(&["--just-in-time"]);
    tells(&hub, "127.0.0.1:2379");
    hub.has(&[&hub.phone.public]);
    store.start(PORT);
    hub.becomes(&[("state", "listed".into())]);
    ping(&right, "10.77.0.1", 1);
    // What the agent did not see while it was away, it sees when it is back.
    hub.kill();
    store.delete(&named(&hub.phone));
    hub.has(&[&hub.phone.public]);
    hub.start(&["--just-in-time"]);
    hub.has(&[]);
    ping_fails(&right, "10.77.0.1");
    wait_for("the store was asked", seconds(20), || {
        counts(&hub, "missing") > 0
    });
    // It is there again, as soon as its record is.
    store.put(
        &named(&hub.phone),
        &record(&hub.phone.public, "10.77.0.2/32"),
    );
    hub.has(&[&hub.phone.public]);
    wait_for("a session", seconds(20), || {
        !hub.left()
            .sh("wg show wg0 latest-handshakes")
            .trim_end()
            .ends_with("\t0")
    });
    ping(&right, "10.77.0.1", 1);
    store.delete(&named(&hub.phone));
    hub.has(&[]);
}

#[test]
fn a_record_of_another_key_brings_nobody() {
    if !only_adit() {
        return;
    }
    let mut hub = Hub::new(SOURCE);
    let other = Keys::new();
    let store = Store::new(hub.left());
    store.start(PORT);
    store.put(&named(&hub.phone), &record(&other.public, "10.77.0.2/32"));
    hub.start(&["--just-in-time"]);
    hub.becomes(&[("state", "listed".into())]);
    hub.connect("");
    let right = hub.world.net.right.clone();
    ping_fails(&right, "10.77.0.1");
    hub.becomes(&[("refused", 1.into()), ("applied", 0.into())]);
    let why = "its public_key is not the one by which it is named";
    assert_eq!(hub.status()["refusals"][0]["reason"], why);
    // It is mended.
    store.put(
        &named(&hub.phone),
        &record(&hub.phone.public, "10.77.0.2/32"),
    );
    hub.has(&[&hub.phone.public]);
    ping(&right, "10.77.0.1", 1);
    let text = hub.left().sh(&format!("{} agent status wg0", adit()));
    assert!(text.contains("just in time: 1 found"), "{text}");
    let metrics = hub.left().sh(&format!("{} metrics", adit()));
    let found = "adit_agent_strangers_total{interface=\"wg0\",result=\"found\"} 1";
    assert!(metrics.contains(found), "{metrics}");
    // Other sources have no look-ups.
    let refused = hub.left().try_sh(&format!(
        "{} agent wg9 --source dir:/etc/wireguard --just-in-time",
        adit()
    ));
    assert!(!refused.ok(), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("name an etcd: source"),
        "{}",
        refused.stderr
    );
}
