//! `adit peers` and `adit peer`: what the operator of a hub does every day, to file and running
//! interface at once.

use std::io::{Read, Write};

use crate::everyday::{file, new_peers, refused, server};
use crate::harness::*;
use crate::quick::{World, adit, kill_adit, only_adit};

const FILE: &str = "/etc/wireguard/wg0.conf";

fn json(host: &Container, command: &str) -> serde_json::Value {
    let printed = host.sh(&format!("{} {command}", adit()));
    serde_json::from_str(&printed).expect("JSON")
}

/// What `adit peers` says of a peer.
fn listed(host: &Container, name: &str) -> serde_json::Value {
    let document = json(host, "peers wg0 --json");
    assert_eq!(document["schema"], 1);
    let peers = document["peers"].as_array().expect("peers");
    let found = peers.iter().find(|peer| peer["name"] == name);
    found.unwrap_or(&serde_json::Value::Null).clone()
}

/// A new peer of the left side, and the right side as it.
pub(crate) fn connect(world: &World, name: &str) {
    let (left, right) = (world.left(), &world.net.right);
    let config = left.sh(&format!(
        "{} new-peer wg0 --name {name} --endpoint 10.1.0.100:51820",
        adit()
    ));
    right.sh_with_input("umask 077; cat > /etc/wireguard/wg1.conf", &config);
    right.sh(&format!("{} up wg1", adit()));
    ping(right, "10.77.0.1", 1);
}

#[test]
fn peers_of_the_file_and_of_the_interface_are_listed_together() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    server(&world);
    connect(&world, "phone");
    let (file_only, running_only) = (Keys::new().public, Keys::new().public);
    left.sh(&format!(
        "{adit} new-peer wg0 --name laptop --endpoint 10.1.0.100:1
        {adit} new-peer wg0 --name tablet --endpoint 10.1.0.100:1; {adit} peer disable wg0 tablet
        printf '\\n[Peer]\\n# late\\nPublicKey = {file_only}\\nAllowedIPs = 10.77.0.50/32\\n' >> {FILE}
        wg set wg0 peer {running_only} allowed-ips 10.77.0.60/32",
        adit = adit()
    ));
    let phone = listed(left, "phone");
    assert_eq!(phone["state"], "connected", "{phone}");
    assert!(phone["transfer_rx"].as_u64() > Some(0), "{phone}");
    assert_eq!(phone["allowed_ips"][0], "10.77.0.2/32", "{phone}");
    assert_eq!(listed(left, "laptop")["state"], "never");
    let tablet = listed(left, "tablet");
    assert_eq!(tablet["state"], "disabled", "{tablet}");
    assert_eq!(tablet["in_interface"], false, "{tablet}");
    let late = listed(left, "late");
    assert!(late["state"].is_null() && late["in_file"] == true, "{late}");

    let text = left.sh(&format!("{} peers wg0 --sort address", adit()));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "wg0: 5 peers, 1 connected, 1 disabled", "{text}");
    assert!(lines[2].starts_with("phone "), "{text}");
    assert!(
        lines[5].contains("only in the file: `adit sync wg0`"),
        "{text}"
    );
    assert!(lines[6].contains("only running: `adit save wg0`"), "{text}");
    let some = left.sh(&format!("{} peers wg0 LAP", adit()));
    assert!(some.contains("laptop") && !some.contains("phone"), "{some}");
    let one = left.sh(&format!("{} peer show wg0 10.77.0.2", adit()));
    assert!(
        one.contains("peer: phone\n") && one.contains("state: connected"),
        "{one}"
    );

    // From the file alone.
    left.sh(&format!("{} down wg0", adit()));
    let document = json(left, "peers wg0 --json");
    assert_eq!(document["is_up"], false);
    assert_eq!(document["peers"].as_array().map(Vec::len), Some(4));
    assert_eq!(listed(left, "tablet")["state"], "disabled");
    // From the interface alone.
    left.sh(&format!("{} up wg0; mv {FILE} /run", adit()));
    let document = json(left, "peers wg0 --json");
    assert_eq!(document["has_file"], false);
    assert_eq!(document["peers"].as_array().map(Vec::len), Some(3));
    left.sh(&format!("{} down wg0", adit()));
    refused(left, "peers wg0", 1, "there is no file");
}

#[test]
fn a_disabled_peer_has_no_access_until_it_is_enabled() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let (left, right) = (world.left(), &world.net.right);
    server(&world);
    connect(&world, "phone");
    let adit = adit();
    let before = file(left);
    let said = left.sh(&format!("{adit} peer disable wg0 phone"));
    assert_eq!(
        said,
        "wg0: phone is disabled, in the file and in the running interface: `adit peer enable wg0 phone` brings it back\n"
    );
    ping_fails(right, "10.77.0.1");
    assert_eq!(left.sh("wg show wg0 peers"), "");
    assert!(!left.sh("ip route").contains("10.77.0.2 "));
    // Neither wg-quick nor `sync` brings it back.
    left.sh(&format!("{adit} sync wg0"));
    assert_eq!(left.sh("wg show wg0 peers"), "");
    assert!(file(left).contains("# disabled: # friendly_name = phone\n"));

    // Its address and its name stay its own.
    let next = left.sh(&format!(
        "{adit} new-peer wg0 --name laptop --endpoint 10.1.0.100:1"
    ));
    assert!(next.contains("Address = 10.77.0.3/24"), "{next}");
    refused(
        left,
        "new-peer wg0 --name phone --endpoint 10.1.0.100:1",
        1,
        "a peer with the name phone",
    );
    let key = Keys::new().public;
    refused(
        left,
        &format!("add wg0 {key} --allowed-ips 10.77.0.2"),
        1,
        "(phone)",
    );
    left.sh(&format!("{adit} remove wg0 laptop"));

    let said = left.sh(&format!("{adit} peer enable wg0 10.77.0.2"));
    assert_eq!(
        said,
        "wg0: phone is enabled: `adit why wg0 phone` says whether it connects\n"
    );
    assert_eq!(file(left), before);
    // It has a session that the left side forgot, and would take 15 s to begin another.
    right.sh(&format!("{adit} down wg1; {adit} up wg1"));
    ping(right, "10.77.0.1", 1);
    // The name, too.
    assert!(left.sh(&format!("{adit} show wg0")).contains("phone"));
    let again = left.sh(&format!("{adit} peer enable wg0 phone"));
    assert!(again.contains("is enabled already"), "{again}");
    // What a process had before is what it has.
    let running = left.sh("wg show wg0 allowed-ips; wg show wg0 preshared-keys");
    left.sh(&format!("{adit} down wg0; {adit} up wg0"));
    assert_eq!(
        left.sh("wg show wg0 allowed-ips; wg show wg0 preshared-keys"),
        running
    );
}

#[test]
fn a_peer_is_renamed_in_the_file_and_in_the_interface() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    server(&world);
    let adit = adit();
    new_peers(left, &["phone", "laptop"]);
    let before = file(left);
    let said = left.sh(&format!("{adit} peer rename wg0 phone 'phone of Ann'"));
    assert_eq!(
        said,
        "wg0: phone is phone of Ann now: `adit peer show wg0 'phone of Ann'` shows it\n"
    );
    assert_eq!(file(left), before.replace("= phone\n", "= phone of Ann\n"));
    let shown = left.sh(&format!("{adit} show wg0"));
    assert!(
        shown.contains("phone of Ann") && shown.contains("laptop"),
        "{shown}"
    );
    assert_eq!(
        left.sh(&format!("{adit} peer rename -q wg0 'phone of Ann' phone")),
        ""
    );
    assert_eq!(file(left), before);
    let done = json(left, "peer rename wg0 phone old --json");
    assert_eq!(
        (&done["done"], &done["peer"]["name"]),
        (&"renamed".into(), &"old".into())
    );
    refused(
        left,
        "peer rename wg0 old laptop",
        1,
        "a peer with the name laptop",
    );
    refused(
        left,
        &format!("peer rename wg0 old {}", "a".repeat(40)),
        1,
        "cannot be a name",
    );
}

#[test]
fn the_file_of_a_stopped_interface_is_changed_alone() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    server(&world);
    let adit = adit();
    left.sh(&format!(
        "{adit} new-peer wg0 --name phone --endpoint 10.1.0.100:1; {adit} down wg0"
    ));
    let before = file(left);
    let said = left.sh(&format!("{adit} peer disable wg0 phone"));
    assert!(
        said.contains("is disabled in the file (no process serves the interface)"),
        "{said}"
    );
    left.sh(&format!("{adit} up wg0"));
    assert_eq!(left.sh("wg show wg0 peers"), "");
    left.sh(&format!("{adit} down wg0"));
    let said = left.sh(&format!("{adit} peer enable wg0 phone"));
    assert!(said.contains("`adit up wg0` starts wg0"), "{said}");
    assert_eq!(file(left), before);
    let said = left.sh(&format!("{adit} peer remove wg0 phone"));
    assert_eq!(
        said,
        "wg0: phone is removed: `adit peers wg0` lists the others\n"
    );
    assert!(!file(left).contains("[Peer]"));
}

#[test]
fn a_peer_that_only_runs_can_be_removed() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    server(&world);
    let key = Keys::new().public;
    left.sh(&format!("wg set wg0 peer {key} allowed-ips 10.77.0.60/32"));
    refused(
        left,
        &format!("peer disable wg0 {key}"),
        1,
        "`adit save wg0` puts it there",
    );
    let before = file(left);
    left.sh(&format!("{} peer remove wg0 {}", adit(), &key[..8]));
    assert_eq!(left.sh("wg show wg0 peers"), "");
    assert_eq!(file(left), before);
}

#[test]
fn what_goes_wrong_has_one_line_and_changes_nothing() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    server(&world);
    let adit = adit();
    new_peers(left, &["phone", "laptop", "tablet"]);
    left.sh(&format!("sed -i s/tablet/laptop/ {FILE}"));
    for verb in ["disable", "enable", "remove", "show"] {
        let none = "no such peer as Phone: its peers are laptop, laptop, phone";
        refused(left, &format!("peer {verb} wg0 Phone"), 1, none);
        let two = "2 peers with the name laptop";
        refused(left, &format!("peer {verb} wg0 laptop"), 1, two);
        refused(
            left,
            &format!("peer {verb} wg7 phone"),
            1,
            "there is no file",
        );
        refused(left, &format!("peer {verb} wg0"), 2, "PEER");
    }
    refused(left, "peer rename wg0 phone", 2, "NAME");
    refused(left, "peers wg0 --sort colour", 2, "possible values");

    let peers = left.sh("wg show wg0 peers");
    // No file system can be written to.
    left.sh("mount --bind /etc/wireguard /etc/wireguard; mount -o remount,ro,bind /etc/wireguard");
    for command in [
        "disable wg0 phone",
        "rename wg0 phone x",
        "remove wg0 phone",
    ] {
        refused(
            left,
            &format!("peer {command}"),
            1,
            "nothing is changed: make it writable",
        );
    }
    assert_eq!(left.sh("wg show wg0 peers"), peers);
    left.sh("umount /etc/wireguard");

    // A process that does not answer.
    left.sh("kill -STOP $(pidof adit)");
    for command in ["disable wg0 phone", "rename wg0 phone x", "show wg0 phone"] {
        refused(left, &format!("peer {command}"), 1, "cannot ask wg0");
    }
    left.sh("kill -CONT $(pidof adit)");
    assert_eq!(left.sh("wg show wg0 peers"), peers);

    // One that was killed.
    kill_adit(left);
    let said = left.sh(&format!("{adit} peer disable wg0 phone"));
    assert!(
        said.contains("is disabled in the file (no process serves the interface)"),
        "{said}"
    );
}

/// Another implementation, which answers what there is and refuses every change.
#[test]
fn an_interface_that_refuses_leaves_the_file_as_it_was() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    server(&world);
    let adit = adit();
    left.sh(&format!(
        "{adit} new-peer wg0 --name phone --endpoint 10.1.0.100:1; {adit} down wg0; mkdir -p /run/wireguard"
    ));
    let path = left.path("/run/wireguard/wg0.sock");
    let listener = std::os::unix::net::UnixListener::bind(path).expect("a socket");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a client");
            let mut request = Vec::new();
            while !request.ends_with(b"\n\n") {
                let mut byte = [0];
                match stream.read(&mut byte) {
                    Ok(1) => request.push(byte[0]),
                    _ => break,
                }
            }
            let answer: &[u8] = match request.starts_with(b"get=1") {
                true => b"listen_port=1\nerrno=0\n\n",
                false => b"errno=12\n\n",
            };
            let _ = stream.write_all(answer);
        }
    });
    for command in ["disable wg0 phone", "remove wg0 phone"] {
        let words = "the file is as it was: nothing is changed";
        refused(left, &format!("peer {command}"), 1, words);
    }
}

/// Another command has the lock, and changes the file.
#[test]
fn a_change_waits_for_another_one_and_keeps_it() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    server(&world);
    let adit = adit();
    new_peers(left, &["phone"]);
    left.sh(&format!(
        "flock {FILE} sh -c 'touch /run/locked; sleep 1; echo \"# mine\" >> {FILE}' &
        while ! test -e /run/locked; do sleep 0.01; done
        {adit} peer disable wg0 phone; wait"
    ));
    let text = file(left);
    assert!(
        text.contains("# mine") && text.contains("# disabled: [Peer]"),
        "{text}"
    );
    // Twenty at once, and none is lost.
    let add = |n: u32| {
        format!(
            "{adit} add wg0 {} --name p{n} 2> /dev/null\n",
            Keys::new().public
        )
    };
    left.sh(&(0..20).map(add).collect::<String>());
    let disable = |n: u32| format!("{adit} peer disable -q wg0 p{n} & ");
    let all: String = (0..20).map(disable).collect();
    left.sh(&format!("{all} wait"));
    assert_eq!(left.sh("wg show wg0 peers"), "");
    assert_eq!(file(left).matches("# disabled: [Peer]\n").count(), 21);
}

#[test]
fn the_names_of_peers_are_completed() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    server(&world);
    let adit = adit();
    new_peers(left, &["phone", "laptop"]);
    left.sh(&format!(
        "{adit} peer disable wg0 phone; ln -s {adit} /usr/bin/adit 2> /dev/null || true"
    ));
    let complete = |words: &[&str]| {
        let last = words.len() - 1;
        let script = format!(
            "PATH=$PATH:$(dirname {adit}); source <({adit} completions bash); COMP_WORDS=({}); COMP_CWORD={last}
            _adit_with_names adit \"${{COMP_WORDS[{last}]}}\" \"${{COMP_WORDS[{}]}}\"; echo \"${{COMPREPLY[*]}}\"",
            words.join(" "),
            last - 1
        );
        left.sh_with_input("bash", &script)
    };
    assert_eq!(
        complete(&["adit", "peer", "enable", "wg0", "ph"]),
        "phone\n"
    );
    assert_eq!(
        complete(&["adit", "peer", "rename", "wg0", "''"]),
        "laptop phone\n"
    );
    assert_eq!(complete(&["adit", "peers", "wg0", "lap"]), "laptop\n");
    assert_eq!(complete(&["adit", "remove", "wg0", "ph"]), "phone\n");
    assert_eq!(complete(&["adit", "peer", "disable", "w"]), "wg0\n");
    assert!(complete(&["adit", "peer", "ren"]).contains("rename"));
}
