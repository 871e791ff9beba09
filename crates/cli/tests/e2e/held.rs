//! `adit agent --write-back`: gateways tell each other by etcd which peers they have.

use crate::agent::json as record;
use crate::etcd::{PORT, Store};
use crate::gateways::{Gateways, MOVED, adit, latest_handshake};
use crate::harness::*;
use crate::quick::only_adit;

const LIST: &str = "/run/adit-agent/wg0.endpoints";

/// Starts the agent of a gateway, which reaches the store at `at`.
fn start(host: &Container, at: &str, name: &str) {
    start_with(host, at, name, "");
}

fn start_with(host: &Container, at: &str, name: &str, options: &str) {
    let program = Program::Adit.path();
    host.sh(&format!(
        "{} agent wg0 --source etcd:http://{at}:{PORT}/wg0/ --write-back held/ --gateway {name} {options} < /dev/null \
         >> /run/agent.log 2>&1 &",
        program.display()
    ));
}

/// The words of the peer's line, once the list says that this gateway has it.
fn line_of(host: &Container, gateway: &str) -> Vec<String> {
    let mut words = Vec::new();
    wait_for(&format!("{gateway} has the peer"), seconds(20), || {
        let list = host.sh(&format!("cat {LIST} || true"));
        words = list.split_whitespace().map(str::to_owned).collect();
        words.last().is_some_and(|last| last == gateway)
    });
    words
}

/// The second gateway takes the place of the first one, without the store. It knows the client from its list.
fn takes_over(gateways: &Gateways, store: &Store) {
    let (client, second) = (&gateways.client.host, &gateways.second);
    store.kill();
    gateways.fail_over();
    let called = adit(
        second,
        &format!("call wg0 --endpoints {LIST} --of first --from {MOVED}"),
    );
    assert!(called.stderr.contains("wg0 calls one peer"), "{called:?}");
    wait_for("the client has come", seconds(20), || {
        latest_handshake(second) > 0
    });
    ping(client, "192.168.77.1", 1);
}

#[test]
fn a_gateway_knows_where_the_peers_of_another_one_are() {
    if !only_adit() {
        return;
    }
    let gateways = Gateways::new(Program::Adit);
    let (client, first, second) = (&gateways.client.host, &gateways.first, &gateways.second);
    let store = Store::for_all(&gateways.net.net.right);
    store.start(PORT);
    start(first, "10.11.0.1", "first");
    start(second, "10.12.0.1", "second");
    ping(client, "192.168.77.1", 1);
    let shown = first.sh("wg show wg0 endpoints");
    let words = line_of(second, "first");
    let of_peer: Vec<&str> = shown.split_whitespace().collect();
    assert_eq!(words[..2], of_peer, "{words:?}");
    // It began the session.
    assert_eq!((words[2].as_str(), words[3].len()), ("-", 25), "{words:?}");
    let key = format!("held/{}", words[0]);
    assert!(store.get(&key).contains("\"gateway\":\"first\""));
    let status = adit(second, "agent status wg0").stdout;
    assert!(status.contains("the endpoints of 1 peer"), "{status}");

    let why = adit(second, "why wg0").stdout;
    assert!(why.contains("gateway first has the peer"), "{why}");
    assert_eq!(latest_handshake(second), 0);

    let none = adit(second, &format!("call wg0 --endpoints {LIST} --of third"));
    assert!(
        none.stderr.contains("no peer of a gateway third"),
        "{none:?}"
    );
    takes_over(&gateways, &store);
    // The second gateway writes its key when the store is back.
    assert_eq!(line_of(second, "first"), words);
    store.start(PORT);
    let now = line_of(second, "second");
    assert_eq!((now[2].len(), &now[3]), (25, &words[3]), "{now:?}");
    assert!(store.get(&key).contains(&now[2]));

    // The list is written again after a kill. Keys that are wrong change nothing.
    second.sh("pkill -9 -x adit-agent; pkill -9 -x adit-supervisor; sleep 0.1");
    store.put(&format!("{key}x"), "{}");
    store.put("held/x", "{}");
    second.sh(&format!("rm {LIST}"));
    start(second, "10.12.0.1", "second");
    assert_eq!(line_of(second, "second"), now);
}

#[test]
fn a_gateway_with_peers_just_in_time_has_those_of_others() {
    if !only_adit() {
        return;
    }
    let gateways = Gateways::new(Program::Adit);
    let (client, first, second) = (&gateways.client.host, &gateways.first, &gateways.second);
    let store = Store::for_all(&gateways.net.net.right);
    store.start(PORT);
    let key = first.sh("wg show wg0 peers").trim().to_owned();
    let has = |host: &Container| host.sh("wg show wg0 peers").contains(&key);
    for (host, at, name) in [
        (first, "10.11.0.1", "first"),
        (second, "10.12.0.1", "second"),
    ] {
        host.sh(&format!("wg set wg0 peer {key} remove"));
        start_with(host, at, name, "--just-in-time");
    }
    let listed = |host: &Container| {
        adit(host, "agent status wg0 --json")
            .stdout
            .contains("\"listed\"")
    };
    wait_for("both have begun", seconds(20), || {
        listed(first) && listed(second)
    });
    store.put(&format!("wg0/{key}"), &record(&key, "192.168.77.2/32"));
    ping(client, "192.168.77.1", 1);
    wait_for("the second gateway has the peer", seconds(20), || {
        has(second)
    });
    line_of(second, "first");
    // It waits there, and is not called.
    assert_eq!(latest_handshake(second), 0);
    takes_over(&gateways, &store);
}

#[test]
fn what_is_written_back_stands_apart_from_records() {
    if !only_adit() {
        return;
    }
    let host = Container::new("left");
    for (source, options, expected) in [
        ("dir:/run", "--write-back held/", "and dir:/run is none"),
        (
            "etcd:http://h/wg0/",
            "--write-back wg0/held/",
            "would be among those",
        ),
        (
            "etcd:http://h/wg0/",
            "--write-back wg",
            "would be among those",
        ),
        (
            "etcd:http://h/wg0/",
            "--write-back held/ --gateway 'a b'",
            "no name of a gateway",
        ),
        ("etcd:http://h/wg0/", "--gateway a", "--write-back"),
    ] {
        let done = adit(&host, &format!("agent wg0 --source {source} {options}"));
        assert!(!done.ok() && done.stderr.contains(expected), "{done:?}");
    }
}
