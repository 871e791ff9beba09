//! What commands do with bad input: one line that says what and what to do, a status that tells, and
//! nothing half done.

use crate::harness::*;
use crate::quick::{adit, only_adit};

const FILE: &str = "/etc/wireguard/wg0.conf";
const KEY: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
const OTHER: &str = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";

/// Commands that change the file or the interface.
const CHANGING: &[&str] = &[
    "peer rename wg0 one two",
    "peer disable wg0 one",
    "remove wg0 one",
    "peer remove wg0 one",
    "add wg0 BQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQU= --name five --allowed-ips 10.77.0.5",
    "new-peer wg0 --name five --endpoint 192.0.2.1 --allowed-ips 10.77.0.0/24",
];

/// The file, the peers that run, and what lies beside the file.
fn state(host: &Container) -> String {
    host.sh(&format!(
        "cat {FILE} 2> /dev/null; ls -A /etc/wireguard; timeout 2 wg show wg0 allowed-ips 2> /dev/null || true"
    ))
}

/// Each command fails with this status and one line that has the words, and changes nothing.
#[track_caller]
fn refused(host: &Container, commands: &[&str], code: i32, words: &str) {
    for command in commands {
        let before = state(host);
        let output = host.try_sh(&format!("{} {command} < /dev/null", adit()));
        let said = format!("{command}: {}{}", output.stdout, output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(output.stderr.contains(words), "{said}");
        assert!(!output.stderr.contains("panicked"), "{said}");
        assert_eq!(output.stdout, "", "{said}");
        if code == 1 {
            assert_eq!(output.stderr.trim_end().lines().count(), 1, "{said}");
            assert!(output.stderr.starts_with("adit: "), "{said}");
        }
        assert_eq!(state(host), before, "{said}");
    }
}

fn write(host: &Container, peers: &str) {
    let key = Keys::new().private;
    let text = format!(
        "[Interface]\nPrivateKey = {key}\nAddress = 10.77.0.1/24\nListenPort = 51820\n\n{peers}"
    );
    host.sh_with_input(&format!("umask 077; cat > {FILE}"), &text);
}

const ONE: &str = "[Peer]\n# friendly_name = one\nPublicKey = AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n\
                   AllowedIPs = 10.77.0.2/32\n";

#[test]
fn bad_input_is_refused_with_one_line_and_changes_nothing() {
    if !only_adit() {
        return;
    }
    let host = Container::new("host");
    let adit = adit();

    // Wrong usage.
    let wrong = [
        "up",
        "down",
        "save",
        "sync",
        "edit",
        "new-peer",
        "add",
        "add wg0 nokey",
        "remove wg0",
        "peer rename wg0 one",
        "peer disable wg0 one -q --json",
        "tune wg0",
        "tune wg0 --shards 0",
        "up wg0 --policy none",
        "events --follow",
        "events --since never",
        "why",
        "show --layout x",
        "new-peer wg0 --qr --json",
        "new-peer wg0 --dns x",
        "init --port 0",
        "top --interval 0",
        "metrics --host x",
        "proxy wg0 --socks 192.0.2.1:1080",
        "proxy wg0 --forward tcp:80",
        "proxy wg0 --stack none",
        "proxy -c x wg0",
    ];
    refused(&host, &wrong, 2, "error: ");

    // No such interface, and no file.
    let nowhere = [
        "up nope",
        "down nope",
        "save nope",
        "sync nope",
        "check nope",
        "strip nope",
        "peers nope",
        "peer show nope one",
        "peer rename nope one two",
        "peer disable nope one",
        "peer enable nope one",
        "remove nope one",
        "new-peer nope",
    ];
    refused(&host, &nowhere, 1, "no file /etc/wireguard/nope.conf");
    refused(
        &host,
        &[&format!("add nope {KEY}")],
        1,
        "no file /etc/wireguard/nope.conf",
    );
    let not_found = ["proxy -c /run/none.conf", "proxy nope --socks 1080"];
    refused(&host, &not_found, 1, "there is no file");
    refused(&host, &["proxy -n -c /run"], 1, "Is a directory");
    refused(&host, &["proxy"], 1, "/etc/wireproxy/wireproxy.conf");
    let unserved = [
        "tune nope --shards 1",
        "upgrade nope",
        "show nope",
        "events nope",
        "run --join nope wg5",
        "show nope dump",
    ];
    refused(&host, &unserved, 1, "nope");

    // A peer that is not there, or is there twice.
    write(
        &host,
        &format!("{ONE}\n{}", ONE.replace(KEY, OTHER).replace(".2/", ".3/")),
    );
    let twice = [
        "peer show wg0 one",
        "peer rename wg0 one two",
        "peer disable wg0 one",
        "peer enable wg0 one",
        "remove wg0 one",
        "peer remove wg0 one",
    ];
    for is_up in [false, true] {
        if is_up {
            host.sh(&format!("{adit} up wg0 -q"));
        }
        refused(
            &host,
            &twice,
            1,
            "wg0 has 2 peers with the name one: give the public key",
        );
        let none = [
            "peer show wg0 nobody",
            "peer rename wg0 nobody two",
            "peer disable wg0 10.77.0.99",
            "peer enable wg0 nobody",
            "remove wg0 nobody",
        ];
        refused(&host, &none, 1, "no such peer");
    }
    host.sh(&format!("{adit} down wg0 -q"));

    // A network without a free address.
    write(&host, ONE);
    host.sh(&format!("sed -i 's|10.77.0.1/24|10.77.0.1/30|' {FILE}"));
    let full = [
        "new-peer wg0 --endpoint 192.0.2.1".to_owned(),
        format!("add wg0 {OTHER}"),
    ];
    refused(
        &host,
        &[&full[0], &full[1]],
        1,
        "no network of wg0 has a free address",
    );
}

#[test]
fn a_file_that_cannot_be_written_or_has_changed_stays_as_it_is() {
    if !only_adit() {
        return;
    }
    let host = Container::new("host");
    let adit = adit();
    write(&host, ONE);
    host.sh(&format!("{adit} up wg0 -q"));
    // Nothing can be written there, by root neither.
    host.sh("mount -o remount,ro /etc/wireguard");
    refused(&host, CHANGING, 1, "Read-only file system");
    refused(
        &host,
        &["init wg1 --yes --endpoint 192.0.2.1"],
        1,
        "Read-only file system",
    );
    host.sh("wg set wg0 fwmark 7; printf '#!/bin/sh\\necho >> $1\\n' > /run/editor; chmod +x /run/editor");
    refused(&host, &["save wg0"], 1, "Read-only file system");
    let edit = host.try_sh(&format!("VISUAL=/run/editor {adit} edit wg0"));
    assert_eq!(edit.status.code(), Some(1));
    assert_eq!(edit.stderr.lines().count(), 1, "{}", edit.stderr);
    assert!(
        edit.stderr.contains("Read-only file system"),
        "{}",
        edit.stderr
    );
    host.sh("mount -o remount,rw /etc/wireguard");

    // No room: neither a new file nor the old one may be lost.
    host.sh("mount -o remount,size=8k /etc/wireguard; dd if=/dev/zero of=/etc/wireguard/full bs=4k count=9 2> /dev/null || true");
    refused(&host, CHANGING, 1, "No space left");
    host.sh("rm /etc/wireguard/full; mount -o remount,size=1m /etc/wireguard");

    // Another program changes it while it is edited.
    host.sh(&format!(
        "printf '#!/bin/sh\\necho \"# mine\" >> $1\\necho \"# theirs\" >> {FILE}\\n' > /run/editor"
    ));
    let edit = host.try_sh(&format!("VISUAL=/run/editor {adit} edit wg0"));
    assert_eq!(edit.status.code(), Some(1), "{}", edit.stderr);
    assert!(
        edit.stderr.contains("was changed while it was edited"),
        "{}",
        edit.stderr
    );
    let text = host.sh(&format!("cat {FILE}; rm /etc/wireguard/*edit*"));
    assert!(
        text.contains("# theirs") && !text.contains("# mine"),
        "{text}"
    );

    // An editor that leaves mistakes, and nobody to ask.
    host.sh("printf '#!/bin/sh\\necho Nonsense >> $1\\n' > /run/editor");
    let before = state(&host);
    let edit = host.try_sh(&format!("VISUAL=/run/editor {adit} edit wg0 < /dev/null"));
    assert_eq!(edit.status.code(), Some(1), "{}", edit.stderr);
    assert!(edit.stderr.contains("stays as it is"), "{}", edit.stderr);
    assert_eq!(state(&host), before);
}

#[test]
fn a_process_that_is_dead_or_hangs_is_told_in_one_line() {
    if !only_adit() {
        return;
    }
    let host = Container::new("host");
    let adit = adit();
    write(&host, ONE);
    host.sh(&format!("{adit} up wg0 -q"));
    let pid = host.sh("pgrep -f '^adit run .* wg0$'");
    let pid = pid.lines().next().expect("a process").to_owned();
    host.sh(&format!("kill -STOP {pid}"));
    // Each waits for five seconds.
    let asking = ["sync wg0", "tune wg0 --shards 1", "peers wg0"];
    refused(
        &host,
        &[&CHANGING[1..2], &CHANGING[4..], &asking].concat(),
        1,
        "no answer: its process is stopped or hangs",
    );

    host.sh(&format!(
        "kill -KILL {pid}; while [ -e /proc/{pid}/exe ]; do sleep 0.05; done"
    ));
    let unserved = [
        "save wg0",
        "sync wg0",
        "tune wg0 --shards 1",
        "events wg0",
        "upgrade wg0",
    ];
    refused(&host, &unserved, 1, "wg0");
    // The file can be changed all the same.
    let said = host.sh(&format!("{adit} peer disable wg0 one"));
    assert!(said.contains("in the file"), "{said}");
    let down = host.try_sh(&format!("{adit} down wg0"));
    assert_eq!(down.status.code(), Some(1));
    assert_eq!(down.stderr.lines().count(), 1, "{}", down.stderr);
    host.sh(&format!("{adit} up wg0 -q; {adit} down wg0 -q"));
}

#[test]
fn a_place_for_sockets_that_is_read_only_or_missing_is_named() {
    if !only_adit() {
        return;
    }
    let host = Container::new("host");
    write(&host, ONE);
    host.sh("mkdir /run/wireguard; mount -o remount,ro /run");
    for command in ["up wg0", "run wg5"] {
        let output = host.try_sh(&format!("{} {command}", adit()));
        assert_eq!(
            output.status.code(),
            Some(1),
            "{command}: {}",
            output.stderr
        );
        assert_eq!(
            output.stderr.lines().count(),
            1,
            "{command}: {}",
            output.stderr
        );
        assert!(
            output.stderr.contains("Read-only file system")
                && output.stderr.contains("mount a tmpfs there"),
            "{command}: {}",
            output.stderr
        );
        assert!(!host.has_interface("wg0") && !host.has_interface("wg5"));
    }
}
