//! Commands about the file of an interface leave the peers alone that an agent brought.

use std::net::UdpSocket;
use std::process::Stdio;

use crate::agent::{Hub, PEERS, record};
use crate::endpoints::Dns;
use crate::everyday::{file, refused};
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

#[test]
fn peers_of_an_agent_come_and_go_while_names_are_looked_up() {
    if !only_adit() {
        return;
    }
    let mut hub = Hub::new(&format!("dir:{PEERS}"));
    let (laptop, late, slow, own) = (Keys::new(), Keys::new(), Keys::new(), Keys::new());
    hub.put("phone", &hub.phone());
    hub.start(&[]);
    hub.has(&[&hub.phone.public]);
    let left = hub.left().clone();
    let other = Keys::new().public;
    let set = format!("wg set wg0 peer {other} allowed-ips 10.77.0.9/32");
    left.sh(&set);
    // Without the other one, it would try again.
    let section = record(&own.public, "10.77.0.7/32", "")
        + &record(&slow.public, "10.77.0.8/32", "Endpoint = slow.test:7");
    left.sh_with_input("cat >> /etc/wireguard/wg0.conf", &section);
    let socket = left.within(|| UdpSocket::bind(("127.0.0.1", 53)).expect("a socket for DNS"));
    let mut sync = left.command(&adit());
    sync.args(["sync", "wg0"])
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let mut sync = sync.spawn().expect("nsenter starts");
    let mut bytes = [0; 512];
    // It waits for an answer, and has seen the peers that there were.
    let (length, from) = socket.recv_from(&mut bytes).expect("a question");
    hub.left().sh(&format!("rm {PEERS}/phone.conf"));
    hub.put("laptop", &record(&laptop.public, "10.77.0.3/32", ""));
    hub.has(&[&laptop.public, &other]);
    std::thread::spawn(move || {
        let (none, mut of) = (Dns::default(), (length, from));
        loop {
            if let Some(answer) = none.answer(&bytes[..of.0]) {
                let _ = socket.send_to(&answer, of.1);
            }
            match socket.recv_from(&mut bytes) {
                Ok(next) => of = next,
                Err(_) => break,
            }
        }
    });
    assert!(sync.wait().expect("it ends").success());
    hub.has(&[&laptop.public, &own.public, &slow.public]);
    // Nor did the agent have to bring one again.
    hub.put("late", &record(&late.public, "10.77.0.4/32", ""));
    hub.has(&[&laptop.public, &late.public, &own.public, &slow.public]);
    let (log, added) = (hub.log(), format!("added the peer {}\n", laptop.public));
    assert_eq!(log.matches(&added).count(), 1, "{log}");
}

#[test]
fn a_saved_file_has_no_peer_of_an_agent() {
    if !only_adit() {
        return;
    }
    let mut hub = Hub::new(&format!("dir:{PEERS}"));
    let other = Keys::new().public;
    let left = hub.left().clone();
    hub.put("phone", &hub.phone());
    hub.start(&[]);
    hub.has(&[&hub.phone.public]);
    let set = format!("wg set wg0 peer {other} allowed-ips 10.77.0.9/32");
    left.sh(&set);
    left.sh(&format!("{} save wg0", adit()));
    let saved = file(&left);
    assert!(saved.contains(&other), "{saved}");
    assert!(!saved.contains(&hub.phone.public), "{saved}");
    // What it may do is in its record.
    let limit = format!("peer limit wg0 {} 5M", hub.phone.public);
    refused(&left, &limit, 1, "what is limited is its record");
    // Nor have files that are saved by themselves.
    let command = "sed -i '/^ListenPort/a SaveConfig = true' /etc/wireguard/wg0.conf";
    left.sh(command);
    for port in [51_821, 51_822] {
        left.sh(&format!("wg set wg0 listen-port {port}"));
        match port {
            51_821 => left.sh(&format!("{} down wg0", adit())),
            _ => left.sh(
                "kill $(cat /run/pid); while ip link show wg0; do sleep 0.05; done 2> /dev/null",
            ),
        };
        let saved = file(&left);
        assert!(saved.contains(&format!("ListenPort = {port}\n")), "{saved}");
        assert!(saved.contains(&other), "{saved}");
        assert!(!saved.contains(&hub.phone.public), "{saved}");
        if port == 51_821 {
            left.sh(&format!(
                "{} up wg0 --foreground > /run/log 2>&1 & echo $! > /run/pid; until grep -q 'is up' /run/log; do sleep 0.05; done",
                adit()
            ));
            hub.has(&[&hub.phone.public, &other]);
        }
    }
    // A record that goes while it is down takes the peer along.
    left.sh(&format!("rm {PEERS}/phone.conf; {} up wg0", adit()));
    hub.has(&[&other]);
    // What cannot be read is not nothing.
    hub.kill();
    left.sh("rm /run/adit-agent/wg0.peers; mkdir /run/adit-agent/wg0.peers");
    for command in ["save wg0", "sync wg0"] {
        let expected = "cannot tell which peers of wg0 an agent brought";
        refused(&left, command, 1, expected);
    }
}

#[test]
fn what_an_agent_tells_is_followed_as_it_happens() {
    if !only_adit() {
        return;
    }
    let mut hub = Hub::new(&format!("dir:{PEERS}"));
    hub.put("phone", &hub.phone());
    hub.start(&[]);
    hub.becomes(&[("applied", 1.into())]);
    hub.left().sh(&format!(
        "{} agent status wg0 --follow --json < /dev/null > /run/told 2>&1 & echo $! > /run/told.pid",
        adit()
    ));
    let told = |what: &str, field: &str, value: serde_json::Value| {
        wait_for(what, seconds(20), || {
            let text = hub.left().sh("cat /run/told");
            let last = text.lines().last().unwrap_or_default();
            let last: serde_json::Value = serde_json::from_str(last).unwrap_or_default();
            last[field] == value
        });
    };
    told("how it is", "applied", 1.into());
    hub.put("bad", "[Peer]\n");
    told("a record is refused", "refused", 1.into());
    hub.left().sh(&format!("rm {PEERS}/bad.conf"));
    told("it is gone", "refused", 0.into());
    hub.left()
        .sh("pkill -9 -x adit-agent; pkill -9 -x adit-supervisor || true");
    told("nobody is there", "is_running", false.into());
    hub.left().sh("kill $(cat /run/told.pid)");
}
