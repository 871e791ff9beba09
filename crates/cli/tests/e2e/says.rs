//! What commands say that changed something, and what `new-peer` hands out.

use crate::everyday::{file, server};
use crate::harness::*;
use crate::quick::{World, adit, only_adit};

/// Runs a command, which says one line on standard error with these words, and nothing with -q.
#[track_caller]
fn says(host: &Container, command: &str, words: &[&str]) {
    let output = host.try_sh(&format!("{} {command}", adit()));
    assert!(output.ok(), "{command}: {}", output.stderr);
    let lines: Vec<&str> = output.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{command}: {lines:?}");
    assert!(lines[0].starts_with("adit: "), "{command}: {lines:?}");
    for word in words {
        assert!(lines[0].contains(word), "{command}: {lines:?}");
    }
}

#[track_caller]
fn says_nothing(host: &Container, command: &str) {
    let output = host.try_sh(&format!("{} {command} -q", adit()));
    let said = (output.ok(), output.stderr.as_str(), output.stdout.as_str());
    assert_eq!(said, (true, "", ""), "{command}");
}

#[test]
fn every_change_says_what_it_did_and_the_next_step() {
    if !only_adit() {
        return;
    }
    let host = Container::new("host");
    let init = "init wg0 --yes --subnet 10.77.0.0/24 --endpoint hub.example.org --reach peers";
    says_nothing(&host, init);
    let key = Keys::new().public;
    says(
        &host,
        "up wg0",
        &["wg0 is up: ", "`adit show wg0`", "`adit down wg0`"],
    );
    says(
        &host,
        "save wg0",
        &["wg0.conf says what wg0 runs with", "`adit check wg0`"],
    );
    says(
        &host,
        "sync wg0",
        &["runs with what its file says", "`adit show wg0`"],
    );
    says(&host, "tune wg0 --shards 1", &["`adit show wg0`"]);
    let add = format!("add wg0 {key} --name a");
    says(
        &host,
        &add,
        &[
            "wg0: added a, with the allowed IPs 10.77.0.2/32",
            "`adit why wg0 a`",
        ],
    );
    says(
        &host,
        "upgrade wg0",
        &["goes on in place of", "`adit show`"],
    );
    host.sh("printf '#!/bin/sh\\necho >> $1\\n' > /run/editor; chmod +x /run/editor");
    let edit = format!("VISUAL=/run/editor {} edit wg0", adit());
    let said = host.try_sh(&edit).stderr;
    assert!(
        said.contains("wg0.conf is changed, and wg0 runs with it: `adit show wg0`"),
        "{said}"
    );
    says(&host, "down wg0", &["wg0 is down: `adit up wg0`"]);
    let said = host.try_sh(&edit).stderr;
    assert!(
        said.contains("wg0.conf is changed: `adit up wg0`"),
        "{said}"
    );
    says(
        &host,
        "upgrade",
        &["no process of this user serves an interface"],
    );

    says_nothing(&host, "up wg0");
    let quiet = [
        "save wg0",
        "sync wg0",
        "tune wg0 --shards 1",
        "peer rename wg0 a b",
        "peer disable wg0 b",
        "peer enable wg0 b",
        "remove wg0 b",
        "upgrade wg0",
        "down wg0",
    ];
    quiet
        .iter()
        .for_each(|command| says_nothing(&host, command));
    // For programs.
    let json = host.sh(&format!(
        "{} add wg0 {key} --name a --json 2> /run/said; cat /run/said >&2",
        adit()
    ));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        (&json["done"], &json["public_key"]),
        (&"added".into(), &key.into())
    );
    // A process with a name that a person takes for a command is none.
    let word = host.try_sh(&format!("{} status", adit()));
    assert_eq!(word.status.code(), Some(1));
    assert!(word.stderr.contains("adit show"), "{}", word.stderr);
}

#[test]
fn what_changes_an_interface_tells_programs_in_one_object() {
    if !only_adit() {
        return;
    }
    let host = Container::new("host");
    host.sh(&format!(
        "{} init wg0 -q --yes --subnet 10.77.0.0/24 --endpoint 192.0.2.1
         sed -i 's/^\\[Interface\\]/&\\nPostUp = echo hooked\\nPostDown = echo hooked/' /etc/wireguard/wg0.conf",
        adit()
    ));
    let json = |command: &str| -> serde_json::Value {
        let output = host.try_sh(&format!("{} {command} --json", adit()));
        assert!(output.ok(), "{command}: {}", output.stderr);
        let line = output.stderr.lines().any(|line| line.starts_with("adit: "));
        assert!(!line, "{command}: {}", output.stderr);
        serde_json::from_str(&output.stdout)
            .unwrap_or_else(|error| panic!("{command}: {error}: {}", output.stdout))
    };
    let done = |done: &str| serde_json::json!({ "schema": 1, "interface": "wg0", "done": done });
    assert_eq!(json("up wg0"), done("up"));
    assert_eq!(json("save wg0"), done("saved"));
    let runs = || -> Vec<i64> {
        let pids = host.sh("pidof adit");
        pids.split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .collect()
    };
    let old = runs();
    let upgraded = json("upgrade wg0");
    let version = env!("CARGO_PKG_VERSION");
    let process = &upgraded["processes"][0];
    let [pid, old_pid] = ["pid", "old_pid"].map(|field| process[field].as_i64().expect("a number"));
    assert!(old.contains(&old_pid) && !old.contains(&pid), "{old:?}");
    assert!(runs().contains(&pid));
    let expected = serde_json::json!({
        "schema": 1,
        "done": "upgraded",
        "processes": [{
            "interfaces": ["wg0"], "pid": pid, "old_pid": old_pid, "version": version, "old_version": version,
        }],
    });
    assert_eq!(upgraded, expected);
    assert_eq!(json("down wg0"), done("down"));
    assert_eq!(json("upgrade")["processes"], serde_json::json!([]));
    // The file is as it was: `sync` has hooks of which it says that they do not run again.
    host.sh(&format!("{} up wg0 -q > /run/said", adit()));
    assert_eq!(host.sh("cat /run/said"), "hooked\n");
    let output = host.try_sh(&format!("{} sync wg0 --json", adit()));
    let synced: serde_json::Value = serde_json::from_str(&output.stdout).expect("JSON");
    assert_eq!(synced, done("synced"));
    // What fails prints none.
    let again = host.try_sh(&format!("{} up wg0 --json", adit()));
    assert_eq!((again.status.code(), again.stdout.as_str()), (Some(1), ""));
    for both in [
        "up wg0 --json --dry-run",
        "up wg0 --json --foreground",
        "down wg0 --json -q",
    ] {
        let wrong = host.try_sh(&format!("{} {both}", adit()));
        assert_eq!(wrong.status.code(), Some(2), "{both}: {}", wrong.stderr);
    }
}

#[test]
fn up_in_the_foreground_says_when_it_is_up() {
    if !only_adit() {
        return;
    }
    let host = Container::new("host");
    host.sh(&format!(
        "{adit} init wg0 -q --yes --subnet 10.77.0.0/24 --endpoint 192.0.2.1
        {adit} up --foreground wg0 > /run/log 2>&1 & echo $! > /run/pid",
        adit = adit()
    ));
    wait_for("it says so", seconds(30), || {
        host.sh("cat /run/log").contains("adit: wg0 is up\n")
    });
    host.sh("wg show wg0 > /dev/null; kill $(cat /run/pid)");
    wait_for("it is down", seconds(30), || !host.has_interface("wg0"));
}

#[test]
fn a_code_stands_alone_and_a_file_is_for_its_owner() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let (left, right) = (world.left(), &world.net.right);
    server(&world);
    let new = format!("{} new-peer wg0 --endpoint 10.1.0.100:51820", adit());
    let output = left.try_sh(&format!("{new} --name phone --qr"));
    assert!(output.ok(), "{}", output.stderr);
    let lines: Vec<&str> = output.stdout.lines().collect();
    assert!(lines.len() > 20, "{}", output.stdout);
    let width = lines[0].chars().count();
    for line in &lines {
        assert!(
            line.chars().all(|c| " ▀▄█".contains(c)),
            "{}",
            output.stdout
        );
        assert_eq!(line.chars().count(), width, "{}", output.stdout);
    }
    assert_eq!(lines.len(), width.div_ceil(2));
    let said = output.stderr.lines().last().expect("a line");
    assert!(
        said.starts_with("adit: wg0: added phone, 10.77.0.2, fd78::2: WireGuard's app scans"),
        "{said}"
    );
    assert!(
        said.ends_with("`adit why wg0 phone` says whether it connects"),
        "{said}"
    );

    // A file, which is new and for its owner.
    let output = left.try_sh(&format!(
        "umask 0; {new} --name laptop --output /run/wg1.conf"
    ));
    assert!(output.ok() && output.stdout.is_empty(), "{output:?}");
    assert!(
        output.stderr.contains("its file is /run/wg1.conf"),
        "{}",
        output.stderr
    );
    assert_eq!(left.sh("stat -c %a /run/wg1.conf").trim(), "600");
    let (before, text) = (file(left), left.sh("cat /run/wg1.conf"));
    for place in ["/run/wg1.conf", "/run/nowhere/wg1.conf", "/proc/wg1.conf"] {
        let twice = left.try_sh(&format!("{new} --name third --output {place}"));
        assert_eq!(twice.status.code(), Some(1), "{place}");
        assert_eq!(twice.stderr.lines().count(), 1, "{}", twice.stderr);
        assert_eq!(
            (file(left), left.sh("cat /run/wg1.conf")),
            (before.clone(), text.clone())
        );
    }
    // A name that is taken leaves no file behind.
    let taken = left.try_sh(&format!("{new} --name laptop --output /run/wg2.conf"));
    assert_eq!(taken.status.code(), Some(1));
    left.sh("test ! -e /run/wg2.conf");

    // Both sides pass.
    right.sh_with_input("umask 077; cat > /etc/wireguard/wg1.conf", &text);
    for (host, name) in [(left, "wg0"), (right, "wg1")] {
        let checked = host.try_sh(&format!("{} check {name}", adit()));
        assert!(checked.ok(), "{}{}", checked.stdout, checked.stderr);
    }
    right.sh(&format!("{} up wg1 -q", adit()));
    ping(right, "10.77.0.1", 1);
}

#[test]
fn a_device_may_send_all_to_a_name_with_the_interface_s_port() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    server(&world);
    let new = format!("{} new-peer wg0 --endpoint home.example.org", adit());
    let output = left.try_sh(&format!("{new} --full-tunnel --dns 10.77.0.1,fd78::1"));
    let text = &output.stdout;
    for line in [
        "Endpoint = home.example.org:51820\n",
        "AllowedIPs = 0.0.0.0/0, ::/0\n",
        "DNS = 10.77.0.1, fd78::1\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
    assert!(
        output.stderr.contains("no `# Forward = internet`"),
        "{}",
        output.stderr
    );
    left.sh_with_input("umask 077; cat > /run/wg9.conf", text);
    let checked = left.try_sh(&format!("{} check /run/wg9.conf", adit()));
    assert!(checked.ok(), "{}{}", checked.stdout, checked.stderr);
    let json = left.sh(&format!("{new} --name a --json"));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["peer"]["name"], "a");
    let config = json["config"].as_str().expect("a file");
    assert!(
        config.contains("Endpoint = home.example.org:51820\n"),
        "{config}"
    );
    let before = file(left);
    for endpoint in ["'two words'", "host:99999", "''"] {
        let wrong = left.try_sh(&format!("{} new-peer wg0 --endpoint {endpoint}", adit()));
        assert_eq!(wrong.status.code(), Some(1), "{endpoint}: {}", wrong.stderr);
        assert!(wrong.stderr.contains("--endpoint"), "{}", wrong.stderr);
    }
    assert_eq!(file(left), before);
}
