//! `adit peer limit`, `quota` and `expire`: what a peer may do, in its file and while it is connected.

use std::time::{Duration, Instant};

use crate::everyday::{file, server};
use crate::harness::*;
use crate::peers::connect;
use crate::quick::{World, adit, kill_adit, only_adit};

const FILE: &str = "/etc/wireguard/wg0.conf";

/// A hub on the left, and the phone, a peer of it, on the right.
fn hub() -> World {
    let world = World::new();
    server(&world);
    connect(&world, "phone");
    world
}

fn peer(host: &Container) -> serde_json::Value {
    let printed = host.sh(&format!("{} peer show wg0 phone --json", adit()));
    let document: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
    document["peers"][0].clone()
}

fn drops(host: &Container, reason: &str) -> u64 {
    let printed = host.sh(&format!("{} show wg0 --json", adit()));
    let document: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
    let drops = &document["interfaces"][0]["peers"][0]["drops"];
    drops[reason].as_u64().unwrap_or(0)
}

/// Sends so many bytes by TCP from one to the other inside the tunnel. Returns how long that took.
fn transfer(world: &World, to_phone: bool, bytes: usize) -> Duration {
    let (left, right) = (world.left(), &world.net.right);
    let (from, to, addr) = match to_phone {
        true => (left, right, "10.77.0.2"),
        false => (right, left, "10.77.0.1"),
    };
    let listen = format!(
        "perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(LocalAddr => \"{addr}\", LocalPort => 7000, Listen => 1, \
         ReuseAddr => 1) or die; print \"up\\n\"; close STDOUT; $c = $s->accept; $n = 0; \
         while ($r = sysread($c, $b, 65536)) {{ $n += $r }} open F, \">/run/got\"; print F $n' > /run/listens 2> /dev/null < /dev/null &"
    );
    to.sh(&format!(
        "rm -f /run/got /run/listens; {listen} until grep -q up /run/listens; do sleep 0.05; done"
    ));
    let start = Instant::now();
    from.sh(&format!(
        "perl -MIO::Socket::INET -e '$c = IO::Socket::INET->new(PeerAddr => \"{addr}\", PeerPort => 7000) or die; \
         $b = \"x\" x 65536; for (1 .. {}) {{ print $c $b or die }}'",
        bytes / 65_536
    ));
    to.sh(&format!(
        "until [ \"$(cat /run/got 2> /dev/null)\" = {bytes} ]; do sleep 0.05; done"
    ));
    start.elapsed()
}

#[test]
fn a_peer_with_a_limit_gets_no_more_and_local_tcp_to_it_loses_nothing() {
    if !only_adit() {
        return;
    }
    let world = hub();
    let left = world.left();
    let said = left.sh(&format!("{} peer limit wg0 phone 8M/4M", adit()));
    assert_eq!(
        said,
        "wg0: phone is limited to 8Mbit/s to it and 4Mbit/s from it: `adit peer show wg0 phone` shows it\n"
    );
    assert!(file(left).contains("# Limit = 8M/4M\n"));
    // Two seconds for each at the rates. More may pass at first, and then only what they allow.
    let bytes = 2 << 20;
    let least = |mbits: f64| Duration::from_secs_f64(bytes as f64 * 8.0 / 1e6 / mbits * 0.8);
    let took = transfer(&world, true, bytes);
    assert!(took >= least(8.0), "{took:?}");
    assert_eq!(drops(left, "limit_to_peer"), 0);
    assert_eq!(drops(left, "limit_from_peer"), 0);
    let took = transfer(&world, false, bytes / 2);
    assert!(took >= least(8.0), "{took:?}");
    assert!(drops(left, "limit_from_peer") > 0);
    // Also where other threads work on what one has read: the owner of a queue goes on with it after its rest,
    // also if another thread found that it is to rest.
    left.sh(&format!("{} tune wg0 --shards 2 --policy pipeline", adit()));
    let took = transfer(&world, true, bytes);
    assert!(took >= least(8.0), "{took:?}");
    assert_eq!(drops(left, "limit_to_peer"), 0);
    // What `wg` sees is what it was, and the limit stays through a change, an upgrade and a kill.
    assert!(!left.sh("wg showconf wg0").to_lowercase().contains("limit"));
    let limits = |host: &Container| {
        let of = peer(host)["allowance"].clone();
        (of["to_peer_bits"].as_u64(), of["from_peer_bits"].as_u64())
    };
    let both = (Some(8_000_000), Some(4_000_000));
    left.sh(&format!(
        "{adit} sync wg0; wg set wg0 fwmark 7; wg set wg0 fwmark 0",
        adit = adit()
    ));
    assert_eq!(limits(left), both);
    left.sh(&format!("{} upgrade wg0", adit()));
    assert_eq!(limits(left), both);
    kill_adit(left);
    left.sh(&format!("{} up wg0", adit()));
    assert_eq!(limits(left), both);
    left.sh(&format!("{} save wg0", adit()));
    assert!(file(left).contains("# Limit = 8M/4M\n"));
    left.sh(&format!("{} peer limit wg0 phone none", adit()));
    assert!(!file(left).contains("Limit"));
    assert_eq!(limits(left), (None, None));
}

#[test]
fn an_expired_peer_has_no_access_until_it_is_given_more_time() {
    if !only_adit() {
        return;
    }
    let world = hub();
    let (left, right) = (world.left(), &world.net.right);
    left.sh(&format!("{} peer expire wg0 10.77.0.2 1s", adit()));
    left.sh("sleep 2.5");
    ping_fails(right, "10.77.0.1");
    ping_fails(left, "10.77.0.2");
    assert_eq!(peer(left)["state"], "expired");
    assert!(drops(left, "no_access") > 0);
    let shown = left.sh(&format!("{} show wg0", adit()));
    assert!(shown.contains("which is over"), "{shown}");
    // Also for a process that begins with it.
    left.sh(&format!("{adit} down wg0; {adit} up wg0", adit = adit()));
    ping_fails(right, "10.77.0.1");
    let said = left.sh(&format!("{} peer expire wg0 phone never", adit()));
    assert!(
        said.contains("phone has access for as long as it is a peer"),
        "{said}"
    );
    assert!(!file(left).contains("Expires"));
    // It still sends on the session that it had, and notices after 15 s that nothing comes back.
    phone_is_back(&world);
    assert_eq!(peer(left)["state"], "connected");
}

#[test]
fn a_peer_that_has_used_its_quota_up_has_no_access_until_it_gets_another() {
    if !only_adit() {
        return;
    }
    let world = hub();
    let (left, right) = (world.left(), &world.net.right);
    let said = left.sh(&format!("{} peer quota wg0 phone 100k", adit()));
    assert!(
        said.contains("phone may send and get 100kB from now on"),
        "{said}"
    );
    assert_eq!(peer(left)["state"], "connected");
    right.sh("ping -q -c 60 -i 0.02 -s 1200 -W 1 10.77.0.1 || true; sleep 2.5");
    let phone = peer(left);
    assert_eq!(phone["state"], "over_quota", "{phone}");
    assert!(
        phone["allowance"]["used_bytes"].as_u64() >= Some(100_000),
        "{phone}"
    );
    ping_fails(right, "10.77.0.1");
    // The file read again changes nothing, and a quota that is given again counts anew.
    left.sh(&format!("{} sync wg0", adit()));
    assert_eq!(peer(left)["state"], "over_quota");
    left.sh(&format!("{} peer quota wg0 phone 100k", adit()));
    ping(left, "10.77.0.2", 1);
    assert!(peer(left)["allowance"]["used_bytes"].as_u64() < Some(50_000));
}

/// Bytes that the phone has used, as the hub says.
fn used(hub: &Container) -> u64 {
    let phone = peer(hub);
    let used = phone["allowance"]["used_bytes"].as_u64();
    used.unwrap_or_else(|| panic!("a quota: {phone}"))
}

/// The phone sends 1,250 bytes and gets as many, so often, and the hub looks at its quota.
fn use_up(world: &World, times: u32) {
    let ping = "ping -q -i 0.02 -s 1200 -W 1 10.77.0.1";
    world
        .net
        .right
        .sh(&format!("{ping} -c {times} || true; sleep 1.5"));
}

/// The phone connects by itself, if it can.
fn phone_is_back(world: &World) {
    wait_for("the phone is back", Duration::from_secs(60), || {
        let ping = "ping -n -q -c 1 -W 1 10.77.0.1";
        world.net.right.try_sh(ping).ok()
    });
}

#[test]
fn a_quota_goes_on_in_the_next_process_however_the_last_one_ended() {
    if !only_adit() {
        return;
    }
    let world = hub();
    let (left, right) = (world.left(), &world.net.right);
    let kept = "/run/adit/wg0.peers";
    left.sh(&format!("{} peer quota wg0 phone 200k", adit()));
    use_up(&world, 45);
    let before = used(left);
    assert!(before > 100_000, "{before}");
    let file_says = |more_than: u64| {
        let script = format!(
            "awk '$2 == \"used\" && $3 >= {more_than} {{ found = 1 }} END {{ exit !found }}' {kept}"
        );
        wait_for("the file has it", Duration::from_secs(30), || {
            left.try_sh(&script).ok()
        });
    };
    file_says(before);
    // A hand-over counts nothing twice.
    left.sh(&format!("{} upgrade wg0", adit()));
    assert!((before..before + 20_000).contains(&used(left)));
    kill_adit(left);
    // What says nothing is passed over.
    left.sh(&format!(
        "printf '%064d used x\\n%064d used 99999999999999999999999\\nused\\n' 1 2 >> {kept}; {} up wg0",
        adit()
    ));
    let after = used(left);
    assert!(
        (before..before + 20_000).contains(&after),
        "{before}, {after}"
    );
    assert_ne!(peer(left)["state"], "over_quota");
    phone_is_back(&world);
    use_up(&world, 45);
    assert_eq!(peer(left)["state"], "over_quota");
    ping_fails(right, "10.77.0.1");
    // One that ends leaves it, too, and nothing else.
    let end = used(left);
    left.sh(&format!("{} down wg0", adit()));
    let text = left.sh(&format!("cat {kept}"));
    assert!(
        text.lines().count() == 1 && text.ends_with(&format!(" used {end}\n")),
        "{end}: {text}"
    );
    assert_eq!(used(left), end);
    left.sh(&format!("{} up wg0", adit()));
    assert_eq!(
        (used(left), &peer(left)["state"]),
        (end, &"over_quota".into())
    );
    ping_fails(right, "10.77.0.1");
    // A quota that is given while the interface is down counts from then.
    left.sh(&format!(
        "{adit} down wg0; {adit} peer quota wg0 phone 200k; {adit} up wg0",
        adit = adit()
    ));
    phone_is_back(&world);
    assert!(used(left) < 50_000);
    // Without a quota nothing is left.
    left.sh(&format!(
        "{adit} peer quota wg0 phone none; {adit} down wg0",
        adit = adit()
    ));
    assert!(!left.try_sh(&format!("ls {kept}")).ok());
}

#[test]
fn what_cannot_be_allowed_has_one_line_and_changes_nothing() {
    if !only_adit() {
        return;
    }
    let world = hub();
    let left = world.left();
    let before = left.sh(&format!("cat {FILE}"));
    for (command, code, words) in [
        (
            "peer limit wg0 phone 20",
            2,
            "expected bits a second with a unit",
        ),
        (
            "peer limit wg0 phone fast",
            2,
            "expected bits a second with a unit",
        ),
        ("peer quota wg0 phone 5", 2, "expected bytes with a unit"),
        (
            "peer expire wg0 phone tomorrow",
            2,
            "expected a time such as 7d",
        ),
        (
            "peer limit wg0 nobody 5M",
            1,
            "wg0 has no such peer as nobody",
        ),
        ("peer limit wg9 phone 5M", 1, "there is no file"),
    ] {
        let output = left.try_sh(&format!("{} {command}", adit()));
        assert_eq!(
            output.status.code(),
            Some(code),
            "{command}: {}",
            output.stderr
        );
        assert!(
            output.stderr.contains(words),
            "{command}: {}",
            output.stderr
        );
    }
    assert_eq!(left.sh(&format!("cat {FILE}")), before);
    assert!(peer(left)["allowance"].is_null());
}

#[test]
fn a_peer_with_new_keys_is_the_same_to_all_but_who_has_the_old_ones() {
    if !only_adit() {
        return;
    }
    let world = hub();
    let (left, right) = (world.left(), &world.net.right);
    left.sh(&format!("{} peer limit wg0 phone 800M", adit()));
    let before = file(left);
    let rekey = format!(
        "{} peer rekey wg0 phone --endpoint 10.1.0.100 --output /run/phone.conf 2>&1",
        adit()
    );
    let said = left.sh(&rekey);
    assert!(
        said.starts_with(
            "adit: wg0: rekeyed phone, 10.77.0.2, fd78::2: its file is /run/phone.conf"
        ),
        "{said}"
    );
    // Nothing of the file is another but the keys.
    let after = file(left);
    let changed: Vec<_> = (before.lines().zip(after.lines()))
        .filter(|(before, after)| before != after)
        .collect();
    assert_eq!(before.lines().count(), after.lines().count());
    assert_eq!(changed.len(), 2, "{changed:?}");
    assert!(changed.iter().all(|(line, _)| line.contains("Key = ")));
    assert_eq!(peer(left)["allowance"]["to_peer_bits"], 800_000_000);
    // The old device is out, and the new one in.
    ping_fails(right, "10.77.0.1");
    right.sh(&format!("{} down wg1", adit()));
    let config = left.sh("cat /run/phone.conf; rm /run/phone.conf");
    right.sh_with_input("umask 077; cat > /etc/wireguard/wg1.conf", &config);
    right.sh(&format!("{adit} check wg1; {adit} up wg1", adit = adit()));
    ping(right, "10.77.0.1", 1);
    ping(left, "10.77.0.2", 1);
    // Another file in its way, and a peer that is disabled, change nothing.
    left.sh(&format!(
        "touch /run/there; {} peer disable wg0 phone",
        adit()
    ));
    let before = file(left);
    for (command, words) in [
        (
            "peer rekey wg0 phone --endpoint 10.1.0.100",
            "phone is disabled",
        ),
        ("peer rekey wg0 nobody", "no such peer"),
    ] {
        let output = left.try_sh(&format!("{} {command}", adit()));
        assert_eq!(output.status.code(), Some(1), "{}", output.stderr);
        assert!(output.stderr.contains(words), "{}", output.stderr);
    }
    left.sh(&format!("{} peer enable wg0 phone", adit()));
    let enabled = file(left);
    let output = left.try_sh(&format!(
        "{} peer rekey wg0 phone --endpoint 10.1.0.100 --output /run/there",
        adit()
    ));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        output.stderr.contains("is there already"),
        "{}",
        output.stderr
    );
    assert_eq!(file(left), enabled);
    assert_ne!(before, enabled);
}

#[test]
fn a_new_peer_has_what_it_is_given_and_a_change_of_that_is_told() {
    if !only_adit() {
        return;
    }
    let world = hub();
    let left = world.left();
    left.sh(&format!(
        "{} new-peer wg0 --name guest --endpoint 10.1.0.100 --limit 5M --quota 1G --expires 2099-12-31 > /dev/null",
        adit()
    ));
    let text = file(left);
    for line in [
        "# Limit = 5M\n",
        "# Quota = 1G\n",
        "# Expires = 2100-01-01T00:00:00Z\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let shown = left.sh(&format!("{} peers wg0", adit()));
    assert!(
        shown.contains("2100-01-01") && shown.contains(" 5M "),
        "{shown}"
    );
    let event = left.sh(&format!(
        "{adit} events wg0 --json > /run/events 2> /dev/null < /dev/null & pid=$!; until grep -q listening /run/events; do sleep 0.05; done
         {adit} peer limit wg0 guest 6M -q; until grep limit /run/events; do sleep 0.05; done; kill $pid",
        adit = adit()
    ));
    let event: serde_json::Value = serde_json::from_str(event.trim()).expect("one event");
    assert_eq!(event["event"], "configured");
    let text = event["text"].as_str().unwrap_or_default();
    assert!(text.contains("(guest): limit from 5M to 6M"), "{text}");
}

#[test]
fn the_next_step_for_a_file_elsewhere_names_its_path() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let say = |command: &str| left.sh(&format!("cd /run; {} {command} 2>&1", adit()));
    say("init ./wg7.conf --yes --endpoint 10.1.0.100 --reach peers");
    let head = left.sh("head -n 1 /run/wg7.conf");
    assert!(head.contains("`adit up ./wg7.conf`"), "{head}");
    let new_peer = say("new-peer ./wg7.conf --name phone --output phone.conf");
    for said in [
        new_peer,
        say("peer limit ./wg7.conf phone 5M"),
        say("peer enable ./wg7.conf phone"),
    ] {
        assert!(said.contains("`adit up ./wg7.conf` starts wg7"), "{said}");
    }
    let said = say("peer disable ./wg7.conf phone");
    assert!(
        said.contains("`adit peer enable ./wg7.conf phone`"),
        "{said}"
    );
    say("peer enable ./wg7.conf phone");
    say("up ./wg7.conf");
    let said = say("peer limit ./wg7.conf phone 6M");
    assert!(said.contains("`adit peer show ./wg7.conf phone`"), "{said}");
    say("peer show ./wg7.conf phone");
    // Where file and interface differ, and where the file is in the way.
    let (late, only) = (Keys::new().public, Keys::new().public);
    left.sh(&format!(
        "printf '\\n[Peer]\\n# late\\nPublicKey = {late}\\nAllowedIPs = 10.77.0.50/32\\n' >> /run/wg7.conf
         wg set wg7 peer {only} allowed-ips 10.77.0.60/32"
    ));
    let said = say("peers ./wg7.conf");
    for next in [
        "`adit sync ./wg7.conf` adds it",
        "`adit save ./wg7.conf` keeps it",
    ] {
        assert!(said.contains(next), "{said}");
    }
    assert!(say("peers ./wg7.conf nobody").contains("`adit peers ./wg7.conf` lists all"));
    let fails = |command: &str, next: &str| {
        let said = left
            .try_sh(&format!("cd /run; {} {command}", adit()))
            .stderr;
        assert!(said.contains(next), "{command}: {said}");
    };
    let remove = format!("`adit remove ./wg7.conf {late}` removes it");
    fails(&format!("add ./wg7.conf {late}"), &remove);
    fails(
        &format!("peer disable ./wg7.conf {only}"),
        "`adit save ./wg7.conf`",
    );
    fails("up ./wg7.conf", "`adit down ./wg7.conf`");
    fails("init ./wg7.conf --yes", "`adit edit ./wg7.conf` changes it");
    say("down ./wg7.conf");
    left.sh("sed -i 's,^Address.*,Address = 10.77.0.1/32,' /run/wg7.conf");
    let full =
        "`adit edit ./wg7.conf` gives it a larger network, `adit remove ./wg7.conf PEER` frees";
    fails(&format!("add ./wg7.conf {only}"), full);
    let output = left.try_sh(&format!("cd /run; {} new-peer ./wg8.conf", adit()));
    assert!(
        output.stderr.contains("`adit init ./wg8.conf`"),
        "{}",
        output.stderr
    );
}
