//! Who changed what: a line of the log and an event for each change.

use serde_json::Value;

use crate::everyday::file;
use crate::harness::*;
use crate::quick::{World, adit, only_adit};
use crate::watch::Listening;

/// Its log goes to /run/log.
fn server(host: &Container) {
    host.sh(&format!(
        "umask 077; printf '[Interface]\\nPrivateKey = %s\\nAddress = 10.77.0.1/24\\nListenPort = 51820\\n' \
         $({adit} genkey) > /etc/wireguard/wg0.conf; LOG_LEVEL=error ADIT_SHARDS=2 {adit} up wg0 2> /run/log",
        adit = adit()
    ));
}

/// Lines of the log about changes.
fn lines(host: &Container) -> Vec<String> {
    let log = host.sh("cat /run/log");
    let changes = log
        .lines()
        .filter(|line| line.contains(": configuration changed: ") || line.contains(": upgraded: "));
    changes.map(str::to_owned).collect()
}

/// Runs a command, which causes one line and one event with these words; returns the event.
#[track_caller]
fn one(host: &Container, events: &mut Listening, command: &str, words: &[&str]) -> Value {
    let before = lines(host).len();
    host.sh(&format!("{command} > /dev/null 2>&1"));
    let event = events.wait("configured", |_| true);
    let after = lines(host);
    assert_eq!(after.len(), before + 1, "{command}: {after:#?}");
    let text = event["text"].as_str().expect("a text");
    assert!(
        after[before].ends_with(text),
        "{event} is not {}",
        after[before]
    );
    for word in words {
        assert!(text.contains(word), "{command}: {text} has no {word}");
    }
    assert_eq!(event["uid"], 0, "{event}");
    event
}

#[test]
fn each_change_has_one_line_and_one_event() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    server(left);
    let adit = adit();
    let up = lines(left);
    assert_eq!(up.len(), 1, "{up:#?}");
    let wanted = "adit: wg0: configuration changed: adit (pid ";
    assert!(
        up[0].starts_with(wanted) && up[0].contains("listen_port from 0 to 51820"),
        "{}",
        up[0]
    );

    let mut events = Listening::start(left);
    let new_peer = format!("{adit} new-peer wg0 --name phone --endpoint 10.1.0.100:51820");
    let event = one(
        left,
        &mut events,
        &new_peer,
        &["added the peer", "(phone)", "10.77.0.2/32"],
    );
    assert_eq!(
        (&event["name"], &event["command"]),
        (&"phone".into(), &"adit".into())
    );
    assert_eq!(event["changes"][0]["what"], "added");
    assert_eq!(event["changes"][0]["to"], "10.77.0.2/32");
    let phone = event["peer"].as_str().expect("a key").to_owned();
    assert_eq!(left.sh("wg show wg0 peers").trim(), phone);

    let rename = format!("{adit} peer rename wg0 phone tablet");
    let event = one(
        left,
        &mut events,
        &rename,
        &["name from phone to tablet", &phone],
    );
    assert_eq!(event["peer"], *phone);
    let event = one(
        left,
        &mut events,
        "wg set wg0 listen-port 51999 fwmark 7",
        &[
            "listen_port from 51820 to 51999, fwmark from 0 to 7",
            "wg (pid ",
        ],
    );
    assert_eq!(
        (&event["changes"][1]["from"], &event["changes"][1]["to"]),
        (&"0".into(), &"7".into())
    );
    let psk = left.sh("wg genpsk | tee /run/psk");
    let set = format!("wg set wg0 peer {phone} preshared-key /run/psk persistent-keepalive 9");
    one(
        left,
        &mut events,
        &set,
        &["(tablet): persistent_keepalive from 0 to 9, preshared_key"],
    );
    let tune = format!("{adit} tune wg0 --shards 1");
    one(left, &mut events, &tune, &["shards from 2 to 1"]);
    // What changes nothing says nothing: the next event is another one's.
    left.sh(&format!(
        "wg set wg0 fwmark 7; {adit} tune wg0 --shards 1; {adit} peer rename wg0 tablet tablet"
    ));
    let sync = format!(
        "sed -i 's/= 51820/= 51820\\nFwMark = 7/' /etc/wireguard/wg0.conf; {adit} sync wg0"
    );
    one(
        left,
        &mut events,
        &sync,
        &["listen_port from 51999 to 51820; changed the peer"],
    );
    let before = lines(left).len();
    left.sh(&format!("{adit} sync wg0"));
    assert_eq!(lines(left).len(), before);

    let disable = format!("{adit} peer disable wg0 tablet");
    one(
        left,
        &mut events,
        &disable,
        &["removed the peer", &phone, "(tablet)"],
    );
    let enable = format!("{adit} peer enable wg0 tablet");
    one(
        left,
        &mut events,
        &enable,
        &["added the peer", &phone, "(tablet)"],
    );
    let many = "set --; for i in $(seq 60); do set -- \"$@\" peer $(wg genkey | wg pubkey) allowed-ips 10.99.0.$i/32; \
                done; wg set wg0 \"$@\"";
    let event = one(
        left,
        &mut events,
        many,
        &["added 60 peers: ", "; and 57 more"],
    );
    assert_eq!(event["count"], 60);
    assert!(
        event["changes"].as_array().expect("changes").len() <= 16,
        "{event}"
    );
    assert!(event["peer"].is_null());
    let join = format!("{adit} run --join wg0 wg1");
    one(
        left,
        &mut events,
        &join,
        &["had the process serve wg1, too"],
    );

    // The listener comes back, and learns of it.
    let before = lines(left).len();
    left.sh(&format!("{adit} upgrade wg0"));
    let upgraded = events.wait("upgraded", |_| true);
    assert!(
        upgraded["text"]
            .as_str()
            .expect("a text")
            .starts_with("adit (pid "),
        "{upgraded}"
    );
    wait_for("each interface has a line", seconds(10), || {
        lines(left).len() == before + 2
    });
    one(
        left,
        &mut events,
        "wg set wg0 fwmark 8",
        &["fwmark from 7 to 8"],
    );

    let down = format!("{adit} down wg0");
    one(
        left,
        &mut events,
        &down,
        &["adit (pid ", ") takes the interface down"],
    );

    let log = left.sh("cat /run/log");
    let own = file(left);
    let own = own
        .lines()
        .find_map(|line| line.strip_prefix("PrivateKey = "));
    for secret in [psk.trim(), own.expect("a key")] {
        assert!(!log.contains(secret), "{log}");
    }
}

#[test]
fn the_user_behind_root_is_told() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    server(left);
    // A program that makes its user root, as sudo(8) does.
    left.sh("cp $(realpath $(which setpriv)) /run/become; chmod 4755 /run/become");
    let mut events = Listening::start(left);
    let by_user = "setpriv --reuid 1234 --clear-groups sh -c '/run/become --reuid 0 wg set wg0 fwmark 9; true'";
    // Where the one who runs this test has logged in, the kernel knows better.
    let login = left.sh("cat /proc/self/loginuid 2> /dev/null || echo 4294967295");
    let login = match login.trim() {
        "4294967295" => Some(1234),
        "0" => None,
        other => Some(other.parse().expect("a number")),
    };
    let event = one(left, &mut events, by_user, &["fwmark from 0 to 9"]);
    assert_eq!(event["login"].as_u64(), login, "{event}");
    assert_eq!(event["command"], "wg");
    let words = login.map(|login| format!(", uid 0, for uid {login}) changed"));
    assert!(
        event["text"]
            .as_str()
            .expect("a text")
            .contains(&words.unwrap_or_default())
    );
}

#[test]
fn events_since_then_come_from_the_journal() {
    if !only_adit() {
        return;
    }
    let host = Container::new("host");
    let events = format!("{} events", adit());
    host.sh("rm -f /mnt/programs/journalctl");
    let none = host.try_sh(&format!("{events} wg0 --since 1h"));
    assert_eq!(none.status.code(), Some(1));
    assert_eq!(none.stderr.lines().count(), 1, "{}", none.stderr);
    assert!(
        none.stderr.contains("there is no journal here"),
        "{}",
        none.stderr
    );

    let stub = "#!/bin/sh\nprintf '%s\\n' \"$*\" > /run/asked\ncat /run/kept\n";
    let write = "cat > /mnt/programs/journalctl; chmod +x /mnt/programs/journalctl";
    host.sh_with_input(write, stub);
    let entry = |uid: u32, text: &str| {
        format!(
            "{{\"__REALTIME_TIMESTAMP\":\"1764417600250000\",\"_UID\":\"{uid}\",\"MESSAGE\":\"{text}\"}}\n"
        )
    };
    let kept = [
        entry(
            0,
            "adit: wg0: configuration changed: wg (pid 7, uid 0, for uid 1000) changed fwmark from 0 to 7",
        ),
        entry(
            4242,
            "adit: wg0: configuration changed: liar (pid 1, uid 0) changed fwmark from 0 to 7",
        ),
        entry(0, "adit: wg1: cannot accept clients: \\u001b[31mno"),
        "no JSON\n".to_owned(),
    ];
    host.sh_with_input("cat > /run/kept", &kept.concat());
    let said = host.sh(&format!("{events} --since 2026-11-29T12:00"));
    assert_eq!(
        said,
        "2025-11-29T12:00:00.250Z wg0 configured: wg (pid 7, uid 0, for uid 1000) changed fwmark from 0 to 7\n\
         2025-11-29T12:00:00.250Z wg1 logged: cannot accept clients: \u{fffd}[31mno\n"
    );
    let asked = host.sh("cat /run/asked");
    assert!(
        asked.contains("--identifier=adit --since=2026-11-29 12:00:00\n"),
        "{asked}"
    );
    let json = host.sh(&format!("{events} wg0 --since 1h --json"));
    let event: Value = serde_json::from_str(json.trim()).expect("one line of JSON");
    assert_eq!(
        (&event["login"], &event["command"]),
        (&1000.into(), &"wg".into())
    );
    let wrong = host.try_sh(&format!("{events} --since tomorrow"));
    assert_ne!(wrong.status.code(), Some(0));
    host.sh_with_input(write, "#!/bin/sh\nexit 3\n");
    let failed = host.try_sh(&format!("{events} --since 1h"));
    assert!(
        failed.stderr.contains("journalctl failed"),
        "{}",
        failed.stderr
    );
}

/// Of a process in the background, too, whose standard error nobody reads.
#[test]
fn the_journal_has_each_change() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let Some(systemd) = Systemd::boot(world.left()) else {
        return;
    };
    let key = systemd.sh("adit genkey");
    systemd.sh(&format!(
        "umask 077; printf '[Interface]\\nPrivateKey = {}\\n' > /etc/wireguard/wg0.conf; adit up wg0; wg set wg0 fwmark 7; \
         journalctl --sync",
        key.trim()
    ));
    let said = systemd.sh("adit events wg0 --since 1h");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(
        lines[0].contains(" wg0 configured: adit (pid ")
            && lines[0].contains("public_key from none"),
        "{said}"
    );
    assert!(
        lines[1].contains(" wg0 configured: wg (pid ")
            && lines[1].ends_with(") changed fwmark from 0 to 7"),
        "{said}"
    );
    assert!(!said.contains(key.trim()), "{said}");
    systemd.sh("adit down wg0");
}
