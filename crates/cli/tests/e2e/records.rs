//! `adit add` and `adit peer` with `--source`: records of a folder and of etcd.

use serde_json::Value;

use crate::agent::{Hub, PEERS};
use crate::etcd::{PORT, Store};
use crate::harness::*;
use crate::quick::{adit, only_adit};

/// What a command with `--source` says, by its JSON.
#[track_caller]
fn done(hub: &Hub, source: &str, words: &str) -> Value {
    let text = hub
        .left()
        .sh(&format!("{} {words} --source {source} --json", adit()));
    serde_json::from_str(&text).expect("JSON")
}

#[track_caller]
fn refused(hub: &Hub, source: &str, words: &str, why: &str) {
    let output = hub
        .left()
        .try_sh(&format!("{} {words} --source {source}", adit()));
    assert!(!output.ok(), "{words}: {}", output.stdout);
    assert!(output.stderr.contains(why), "{words}: {}", output.stderr);
}

/// The life of a peer whose record commands write.
fn a_peer_lives(hub: &Hub, source: &str, record: &str) {
    let (key, other) = (hub.phone.public.clone(), Keys::new());
    let told = done(
        hub,
        source,
        &format!("add wg0 {key} --name phone --allowed-ips 10.77.0.2/32"),
    );
    assert_eq!(
        (&told["done"], &told["record"]),
        (&"added".into(), &record.into())
    );
    hub.has(&[&key]);
    hub.connect("");
    ping(&hub.world.net.right, "10.77.0.1", 1);
    // What an agent would refuse is not written.
    for (words, why) in [
        (
            format!("add wg0 {key} --allowed-ips 10.77.0.3/32 --name other"),
            "record",
        ),
        (
            format!("add wg0 {} --allowed-ips 10.77.0.2/32", other.public),
            "would refuse the record",
        ),
        (format!("add wg0 {}", other.public), "needs --allowed-ips"),
        (
            "peer limit wg0 nobody 1M".into(),
            "no record of a peer nobody",
        ),
        ("peer disable wg0 phone".into(), "a record is not disabled"),
    ] {
        refused(hub, source, &words, why);
    }
    hub.has(&[&key]);
    let told = done(hub, source, "peer limit wg0 phone 50M/10M");
    assert_eq!(
        (&told["done"], &told["public_key"]),
        (&"limited".into(), &key.as_str().into())
    );
    let shows = |word: &str| {
        wait_for(word, seconds(20), || {
            hub.left()
                .sh(&format!("{} peers wg0", adit()))
                .contains(word)
        });
    };
    shows("50M/10M");
    done(hub, source, "peer rename wg0 phone mobile");
    shows("mobile");
    done(hub, source, "peer expire wg0 mobile now");
    wait_for("it has no access", seconds(20), || {
        !hub.world.net.right.try_sh("ping -c 1 -W 1 10.77.0.1").ok()
    });
    done(
        hub,
        source,
        &format!("peer expire wg0 {} never", &key[..12]),
    );
    wait_for("it has access again", seconds(30), || {
        hub.world.net.right.try_sh("ping -c 1 -W 1 10.77.0.1").ok()
    });
    let said = hub
        .left()
        .try_sh(&format!("{} remove wg0 mobile --source {source}", adit()));
    assert!(
        said.stderr.contains("adit agent status wg0"),
        "{}",
        said.stderr
    );
    hub.has(&[]);
    let file = hub.left().sh("cat /etc/wireguard/wg0.conf");
    assert!(!file.contains("[Peer]"), "{file}");
}

#[test]
fn commands_write_the_records_of_a_folder() {
    if !only_adit() {
        return;
    }
    let source = format!("dir:{PEERS}");
    let mut hub = Hub::new(&source);
    hub.start(&[]);
    a_peer_lives(&hub, &source, "phone.conf");
    let left = hub.left().sh(&format!("ls -A {PEERS}"));
    assert_eq!(left, "", "nothing is left behind");
}

#[test]
fn commands_write_the_records_of_etcd() {
    if !only_adit() {
        return;
    }
    let source = "etcd:http://127.0.0.1:2379/wg0/";
    let mut hub = Hub::new(source);
    let store = Store::new(hub.left());
    store.start(PORT);
    hub.start(&[]);
    let key = hub.phone.public.clone();
    a_peer_lives(&hub, source, &key);
    store.kill();
    refused(&hub, source, "peer limit wg0 phone 1M", "cannot read etcd:");
    refused(
        &hub,
        "exec:/bin/true",
        "peer limit wg0 phone 1M",
        "are its program's",
    );
}
