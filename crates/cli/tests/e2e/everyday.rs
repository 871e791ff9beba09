//! `adit up --dry-run`, `new-peer`, `add`, `remove`, `edit` and `check`.

use crate::harness::*;
use crate::quick::{World, adit, comes_back, only_adit, state};

/// A server on the left: 10.77.0.1/24, fd78::1/64.
pub fn server(world: &World) {
    let left = world.left();
    left.sh(&format!(
        "umask 077; printf '[Interface]\\nPrivateKey = %s\\nAddress = 10.77.0.1/24, fd78::1/64\\nListenPort = 51820\\n' \
         $({adit} genkey) > /etc/wireguard/wg0.conf; {adit} up wg0",
        adit = adit()
    ));
}

pub fn file(host: &Container) -> String {
    host.sh("cat /etc/wireguard/wg0.conf")
}

/// A command fails with one line that has these words, and leaves the file as it is.
#[track_caller]
pub fn refused(host: &Container, command: &str, code: i32, words: &str) {
    let before = host.sh("cat /etc/wireguard/wg0.conf 2> /dev/null || true");
    let output = host.try_sh(&format!("{} {command}", adit()));
    let said = &output.stderr;
    assert_eq!(output.status.code(), Some(code), "{command}: {said}");
    assert!(said.contains(words), "{command}: {said}");
    if code == 1 {
        assert_eq!(said.trim_end().lines().count(), 1, "{command}: {said}");
    }
    assert_eq!(output.stdout, "", "{command}");
    let after = host.sh("cat /etc/wireguard/wg0.conf 2> /dev/null || true");
    assert_eq!(before, after, "{command}");
}

/// New peers of the left side, with these names.
pub fn new_peers(host: &Container, names: &[&str]) {
    for name in names {
        host.sh(&format!(
            "{} new-peer wg0 --name {name} --endpoint 10.1.0.100:51820",
            adit()
        ));
    }
}

#[test]
fn a_new_peer_connects_with_the_file_that_it_is_given() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let (left, right) = (world.left(), &world.net.right);
    server(&world);
    let printed = left.sh(&format!(
        "{} new-peer wg0 --name 'my phone' --endpoint 10.1.0.100:51820 2> /run/said",
        adit()
    ));
    let config = printed.as_str();
    right.sh_with_input("umask 077; cat > /etc/wireguard/wg1.conf", config);
    right.sh(&format!("{} up wg1", adit()));
    ping(right, "10.77.0.1", 1);
    ping(right, "fd78::1", 1);

    // The file has the peer and not its private key.
    let private = config.lines().nth(1).expect("a line");
    let private = private.strip_prefix("PrivateKey = ").expect("a key");
    let text = file(left);
    assert!(
        text.contains("[Peer]\n# friendly_name = my phone\nPublicKey"),
        "{text}"
    );
    assert!(
        text.contains("AllowedIPs = 10.77.0.2/32, fd78::2/128"),
        "{text}"
    );
    assert!(!text.contains(private));
    // The process knows it at once.
    assert!(
        left.sh(&format!("{} show wg0", adit()))
            .contains("my phone")
    );
    // What the guess of the address would have been.
    let guessed = left.sh(&format!("{} new-peer wg0 2>&1", adit()));
    assert!(guessed.contains("Endpoint = 10.1.0.100:51820"), "{guessed}");
    assert!(guessed.contains("Address = 10.77.0.3/24, fd78::3/64"));

    left.sh(&format!("{} remove wg0 'my phone'", adit()));
    ping_fails(right, "10.77.0.1");
    assert!(!file(left).contains("my phone"));
    // The file is as good as the running interface.
    let before = left.sh("wg show wg0 allowed-ips; wg show wg0 preshared-keys");
    left.sh(&format!("{adit} down wg0; {adit} up wg0", adit = adit()));
    let after = left.sh("wg show wg0 allowed-ips; wg show wg0 preshared-keys");
    assert_eq!(before, after);
}

#[test]
fn a_peer_that_has_keys_is_added_and_removed_with_its_routes() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    server(&world);
    let key = Keys::new().public;
    let adit = adit();
    left.sh(&format!(
        "{adit} add wg0 {key} --allowed-ips 10.77.0.9,172.20.0.0/16 --endpoint 10.2.0.100:7 --persistent-keepalive 9"
    ));
    assert!(left.sh("ip route get 172.20.0.1").contains("dev wg0"));
    let shown = left.sh("wg show wg0 dump | tail -n 1 | cut -f 1,3,4,8");
    assert_eq!(
        shown,
        format!("{key}\t10.2.0.100:7\t10.77.0.9/32,172.20.0.0/16\t9\n")
    );
    refused(left, &format!("add wg0 {key}"), 1, "already");
    left.sh(&format!("{adit} remove wg0 {key}"));
    assert_eq!(left.sh("wg show wg0 peers"), "");
    assert!(!left.sh("ip route").contains("172.20.0.0/16"));
    assert!(!file(left).contains("[Peer]"));
    refused(left, &format!("remove wg0 {key}"), 1, "no such peer");
}

/// The names that `adit show` prints, by the last digits of the peers' addresses.
fn shown(host: &Container) -> Vec<(String, String)> {
    let json = host.sh(&format!("{} show wg0 --json", adit()));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let peers = json["interfaces"][0]["peers"].as_array().expect("peers");
    let mut shown: Vec<(String, String)> = (peers.iter())
        .map(|peer| {
            let block = peer["allowed_ips"][0].as_str().expect("a block");
            let name = peer["name"].as_str().unwrap_or_default();
            (block.to_owned(), name.to_owned())
        })
        .collect();
    shown.sort();
    shown
}

#[test]
fn names_are_of_the_peers_that_they_were_given_to() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    server(&world);
    let adit = adit();
    new_peers(left, &["phone", "laptop", "tablet"]);
    let pairs = |names: &[(u8, &str)]| -> Vec<(String, String)> {
        let pair = |(n, name): &(u8, &str)| (format!("10.77.0.{n}/32"), (*name).to_owned());
        names.iter().map(pair).collect()
    };
    let all = pairs(&[(2, "phone"), (3, "laptop"), (4, "tablet")]);
    assert_eq!(shown(left), all, "at once");
    left.sh(&format!("{adit} sync wg0"));
    assert_eq!(shown(left), all, "from the file");
    let metrics = left.sh(&format!("{adit} metrics"));
    for (block, name) in &all {
        let mut lines = metrics.lines().filter(|line| line.contains(block.as_str()));
        assert!(
            lines.all(|line| line.contains(&format!("friendly_name=\"{name}\""))),
            "{metrics}"
        );
    }
    let why = left.try_sh(&format!("{adit} why wg0 laptop")).stdout;
    assert!(why.contains("laptop") && !why.contains("tablet"), "{why}");

    let new_peer = |name: &str| format!("new-peer wg0 --name '{name}' --endpoint 10.1.0.100:1");
    refused(left, &new_peer("phone"), 1, "a peer with the name phone");
    // What would be read as another name, or as none, is no name: `show` could not print it.
    let id = "3d5fb5a0-1b3c-4f6e-8a7d-0123456789ab";
    for (name, read) in [
        (format!("watch ({id})"), "read as \"watch\""),
        ("x".repeat(40), "read as none"),
    ] {
        refused(left, &new_peer(&name), 1, read);
        assert_eq!(shown(left), all);
    }
    refused(left, "remove wg0 Laptop", 1, "laptop, phone, tablet");
    left.sh(&format!("{adit} remove wg0 laptop"));
    assert_eq!(shown(left), pairs(&[(2, "phone"), (4, "tablet")]));
    left.sh("sed -i s/phone/tablet/ /etc/wireguard/wg0.conf");
    refused(left, "remove wg0 tablet", 1, "2 peers with the name tablet");
    assert_eq!(shown(left).len(), 2);
}

#[test]
fn addresses_of_peers_that_only_run_are_not_given_away() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    server(&world);
    let (old, new) = (Keys::new().public, Keys::new().public);
    left.sh(&format!(
        "wg set wg0 peer {old} allowed-ips 10.77.0.2/32,fd78::2/128"
    ));
    let adit = adit();
    left.sh(&format!("{adit} add wg0 {new} --name new"));
    new_peers(left, &["phone"]);
    let add = format!("add wg0 {} --allowed-ips 10.77.0.2", Keys::new().public);
    refused(left, &add, 1, &old);
    let shown = left.sh("wg show wg0 allowed-ips");
    assert!(
        shown.contains(&format!("{old}\t10.77.0.2/32 fd78::2/128")),
        "{shown}"
    );
    assert!(
        shown.contains(&format!("{new}\t10.77.0.3/32 fd78::3/128")),
        "{shown}"
    );
    assert!(shown.contains("10.77.0.4/32 fd78::4/128"), "{shown}");
}

#[test]
fn thirty_peers_that_are_added_at_once_are_all_there() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    server(&world);
    let adit = adit();
    left.sh("chown 7:8 /etc/wireguard/wg0.conf; chmod 640 /etc/wireguard/wg0.conf");
    let add = |n: u32| {
        format!(
            "{adit} add wg0 {} --name peer{n} 2> /dev/null & ",
            Keys::new().public
        )
    };
    let all: String = (0..30).map(add).collect();
    left.sh(&format!("{all} wait"));
    assert_eq!(file(left).matches("[Peer]").count(), 30);
    let shown = shown(left);
    let mut blocks: Vec<&str> = shown.iter().map(|(block, _)| block.as_str()).collect();
    blocks.dedup();
    assert_eq!(blocks.len(), 30, "{shown:?}");
    assert!(
        shown.iter().all(|(_, name)| name.starts_with("peer")),
        "{shown:?}"
    );
    assert_eq!(
        left.sh("stat -c %a:%u:%g /etc/wireguard/wg0.conf; ls -A /etc/wireguard"),
        "640:7:8\nwg0.conf\n"
    );
}

/// Docker mounts single files: nothing can take their place.
#[test]
fn a_mounted_file_is_written_where_it_is() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    server(&world);
    let adit = adit();
    left.sh("cp -p /etc/wireguard/wg0.conf /run/mounted; mount --bind /run/mounted /etc/wireguard/wg0.conf");
    let key = Keys::new().public;
    left.sh(&format!(
        "{adit} add wg0 {key} --name phone; {adit} save wg0"
    ));
    assert!(left.sh("cat /run/mounted").contains(&key));
    left.sh(&format!("{adit} remove wg0 phone"));
    assert!(!left.sh("cat /run/mounted").contains(&key));
    assert_eq!(left.sh("ls -A /etc/wireguard"), "wg0.conf\n");
}

#[test]
fn check_reads_a_pipe() {
    if !only_adit() {
        return;
    }
    let host = Container::new("host");
    let keys = Keys::new();
    let text = format!(
        "[Interface]\\nPrivateKey = {0}\\n[Peer]\\nPublicKey = {0}\\n",
        keys.private
    );
    let output = host.try_sh(&format!("bash -c \"{} check <(printf '{text}')\"", adit()));
    let said = output.stdout + &output.stderr;
    assert!(
        said.contains("secret") && !said.contains(&keys.private),
        "{said}"
    );
}

#[test]
fn down_needs_no_file() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    world.write(&world.config("", "0.0.0.0/0, ::/0"));
    let before = state(left);
    left.sh(&format!(
        "cd /etc/wireguard; {adit} up wg0; mv wg0.conf /run; {adit} down wg0; mv /run/wg0.conf .",
        adit = adit()
    ));
    comes_back(left, &before, "down without a file");
    left.sh("rm /etc/wireguard/wg0.conf");
    refused(left, "down wg0", 1, "there is no file");
}

#[test]
fn edit_does_not_undo_what_others_change_meanwhile() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    server(&world);
    let key = Keys::new().public;
    let script = format!("{} add wg0 {key}; sed -i s/51820/7000/ $1", adit());
    left.sh_with_input("cat > /run/editor", &script);
    let output = left.try_sh(&format!(
        "VISUAL= EDITOR='sh /run/editor' {} edit wg0",
        adit()
    ));
    assert!(
        !output.ok() && output.stderr.contains("was changed while"),
        "{}",
        output.stderr
    );
    assert!(file(left).contains(&key) && file(left).contains("51820"));
    // The text that was typed is not lost.
    assert!(
        left.sh("cat /etc/wireguard/wg0.conf.edit-*")
            .contains("7000")
    );
}

#[test]
fn edit_of_a_file_that_is_not_there_begins_with_one_that_works() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let edit = |editor: &str| {
        let command = format!("VISUAL= EDITOR=\"{editor}\" {} edit wg5 2>&1", adit());
        left.sh(&command)
    };
    let said = edit("true");
    assert!(
        said.contains("there is still no file /etc/wireguard/wg5.conf"),
        "{said}"
    );
    left.sh("! test -e /etc/wireguard/wg5.conf");
    edit("sed -i s,^#Address.*,Address=10.5.0.1/24,");
    let text = left.sh("cat /etc/wireguard/wg5.conf");
    assert!(
        text.contains("\nPrivateKey = ") && text.contains("Address=10.5.0.1/24"),
        "{text}"
    );
    let own = left.sh("grep ^PrivateKey /etc/wireguard/wg5.conf | cut -d' ' -f3 | wg pubkey");
    assert!(text.contains(&format!("\n# {own}")), "{text}");
    assert_eq!(left.sh("stat -c %a /etc/wireguard/wg5.conf"), "600\n");
    left.sh(&format!(
        "{adit} check wg5; {adit} up wg5; {adit} down wg5",
        adit = adit()
    ));
}

#[test]
fn edit_takes_only_what_is_right_and_applies_it() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    server(&world);
    let before = file(left);
    let edit = |editor: &str, answer: &str| {
        let command = format!("VISUAL= EDITOR=\"{editor}\" {} edit wg0", adit());
        left.try_sh_with_input(&command, answer)
    };
    // Thrown away, and mended at the second try.
    let output = edit("sed -i s/51820/70000/", "x\n");
    assert!(
        !output.ok() && output.stderr.contains("ListenPort"),
        "{}",
        output.stderr
    );
    assert_eq!(file(left), before);
    assert!(edit("true", "").ok());
    assert_eq!(file(left), before);
    let script =
        "if grep -q 70000 $1; then sed -i s/70000/7000/ $1; else sed -i s/51820/70000/ $1; fi";
    left.sh_with_input("cat > /run/editor", script);
    let output = edit("sh /run/editor", "e\n");
    assert!(output.ok(), "{}", output.stderr);
    assert_eq!(file(left), before.replace("51820", "7000"));
    assert_eq!(left.sh("wg show wg0 listen-port"), "7000\n");
    assert_eq!(
        left.sh("stat -c %a /etc/wireguard/wg0.conf; ls -A /etc/wireguard"),
        "600\nwg0.conf\n"
    );
}

#[test]
fn check_needs_no_rights_and_fails_for_errors() {
    if !only_adit() {
        return;
    }
    let host = Container::new("host");
    host.sh(&format!(
        "mkdir -m 755 /run/bin; cp {} /run/bin; chmod 755 /run/bin/*",
        adit()
    ));
    let check = |text: &str| {
        host.sh_with_input(
            "cat > /run/my.conf; chown 65534 /run/my.conf; chmod 600 /run/my.conf",
            text,
        );
        host.try_sh(
            "setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps -all --bounding-set -all \
             /run/bin/adit check /run/my.conf",
        )
    };
    let keys = Keys::new();
    let good = format!(
        "[Interface]\nPrivateKey = {}\nAddress = 10.0.0.1/24\nListenPort = 51820\n[Peer]\nPublicKey = {}\n\
         AllowedIPs = 10.0.0.2\n",
        Keys::new().private,
        keys.public
    );
    let output = check(&good);
    assert!(
        output.ok() && output.stdout.contains("nothing to remark"),
        "{}",
        output.stdout
    );
    let output = check(&good.replace("10.0.0.2", "10.0.0.1"));
    assert!(
        output.ok() && output.stdout.starts_with("warning: "),
        "{}",
        output.stdout
    );
    let output = check(&good.replace("ListenPort", "Listenport = x\nPort"));
    assert!(
        !output.ok() && output.stdout.starts_with("error: "),
        "{}",
        output.stdout
    );
    assert_eq!(
        output.stdout.matches("error: ").count(),
        2,
        "{}",
        output.stdout
    );
}

/// The script leaves the host as `adit up` does.
#[test]
fn a_dry_run_prints_what_up_does_and_changes_nothing() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    left.sh(&format!("mkdir /run/bin; cp {} /run/bin/adit", adit()));
    let hooks =
        "PreUp = echo pre %i >> /run/hooks\nPostUp = echo post %i >> /run/hooks\nMTU = 1400";
    for (interface, allowed) in [
        (hooks, "192.168.77.0/24, 172.31.0.0/16, fd31::/64"),
        ("", "0.0.0.0/0, ::/0, 172.31.0.0/16"),
        ("Table = 77", "192.168.77.0/24, 172.31.0.0/16"),
        ("# Forward = internet", "192.168.77.0/24"),
        ("# Forward = lan", "192.168.77.0/24"),
        ("# Forward = peers", "0.0.0.0/0, ::/0"),
    ] {
        world.write(&world.config(interface, allowed));
        let before = state(left);
        let script = left.sh(&format!("{} up --dry-run wg0", adit()));
        comes_back(left, &before, "a dry run");

        left.sh(&format!("{} up wg0", adit()));
        let link = || left.sh("ip -o link show wg0 | grep -o 'mtu [0-9]*'; cat /run/hooks || true");
        let (up, up_link) = (state(left), link());
        left.sh(&format!("{} down wg0; rm -f /run/hooks", adit()));
        comes_back(left, &before, "down");

        left.sh_with_input("PATH=/run/bin:$PATH sh -e", &script);
        let same = |text: &str| {
            text.replace("/run/bin/adit", &adit())
                .replace(" pref ", " ")
        };
        let differs = |line: &&str| {
            // Numbers of interfaces, priorities of rules, and what a killed run needs.
            !line.contains(": wg0") && !line.ends_with("/adit")
        };
        let lines = |text: &str| -> Vec<String> {
            let text = same(text);
            let mut lines: Vec<String> =
                (text.lines().filter(differs)).map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(lines(&state(left)), lines(&up), "{script}");
        assert_eq!(link(), up_link);
        ping(left, "192.168.77.2", 1);
        left.sh(&format!("{} down wg0; rm -f /run/hooks", adit()));
        comes_back(left, &before, "down");
    }
}
