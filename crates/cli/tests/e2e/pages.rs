//! The pages of `docs/` that tell how to back up, move, upgrade and uninstall: each command in them
//! is run as it stands there.

use crate::harness::*;
use crate::init::Hub;
use crate::installed::{Package, debian};
use crate::quick::{World, adit, only_adit};

/// The commands below a heading of a page.
#[track_caller]
fn commands(page: &str, heading: &str) -> String {
    let path = repository().join("docs").join(page);
    let text = std::fs::read_to_string(&path).expect("a page");
    let (_, section) = (text.split_once(&format!("\n## {heading}\n")))
        .unwrap_or_else(|| panic!("{page} has no heading {heading}"));
    let section = section.split("\n## ").next().unwrap_or_default();
    let blocks: Vec<&str> = (section.split("```sh\n").skip(1))
        .filter_map(|block| block.split("```").next())
        .collect();
    assert_eq!(blocks.len(), 1, "{page}, {heading}: one block of commands");
    blocks[0].to_owned()
}

/// How many blocks a page has: a new one needs a test.
#[track_caller]
fn has_blocks(page: &str, count: usize) {
    let text = std::fs::read_to_string(repository().join("docs").join(page)).expect("a page");
    assert_eq!(text.matches("```sh\n").count(), count, "{page}");
}

/// Runs them as a user would: one after the other, in /root, with `adit` installed.
#[track_caller]
fn follow(host: &Container, page: &str, heading: &str) -> String {
    host.sh(&format!(
        "mkdir -p /run/bin /run/root; ln -sf {} /run/bin/adit",
        adit()
    ));
    host.sh(&format!(
        "set -e; PATH=/run/bin:$PATH; cd /run/root\n{}",
        commands(page, heading)
    ))
}

/// The files, with their rights.
fn files(host: &Container) -> String {
    host.sh("cd /etc/wireguard; stat -c '%n %a' *; cat *")
}

#[test]
fn a_backup_gives_peers_back_that_were_removed_and_all_that_was_lost() {
    if !only_adit() {
        return;
    }
    has_blocks("backup.md", 3);
    let net = Hub::new();
    let (hub, phone) = (&net.hub, &net.phone);
    hub.sh(&format!(
        "{0} init wg0 --endpoint 198.51.100.1; {0} up wg0",
        adit()
    ));
    let printed = hub.sh(&format!("{} new-peer wg0 --name phone", adit()));
    net.connect_phone(&printed);
    ping(phone, &net.inner("wg0"), 1);
    let before = files(hub);
    // The phone has its old session for a while, which the hub has not.
    let inner = net.inner("wg0");
    let comes_back = || {
        wait_for("the phone is back", seconds(60), || {
            phone.try_sh(&format!("ping -n -q -c 1 -W 1 {inner}")).ok()
        });
    };
    follow(hub, "backup.md", "Back up");
    assert_eq!(
        hub.sh("stat -c %a /run/root/adit-backup.tar.gz").trim(),
        "600"
    );

    hub.sh(&format!(
        "{0} remove wg0 phone; {0} new-peer wg0 --name other",
        adit()
    ));
    ping_fails(phone, &net.inner("wg0"));
    let process = hub.sh("pgrep -f 'adit run .*wg0$'");
    follow(hub, "backup.md", "Restore while the tunnel runs");
    assert_eq!(files(hub), before);
    assert_eq!(hub.sh("wg show wg0 peers").lines().count(), 1);
    assert_eq!(hub.sh("pgrep -f 'adit run .*wg0$'"), process);
    comes_back();

    hub.sh(&format!("{} down wg0; rm /etc/wireguard/*", adit()));
    follow(hub, "backup.md", "Restore on a new installation");
    assert_eq!(files(hub), before);
    comes_back();
}

/// The new host is in the old one's network, and the phone knows a name.
#[test]
fn a_tunnel_moves_to_another_host_and_its_peers_follow() {
    if !only_adit() {
        return;
    }
    has_blocks("move.md", 4);
    let [old, new, phone] = ["old", "new", "phone"].map(Container::new);
    link(
        &phone,
        "eth0",
        &["198.51.100.2/24"],
        &old,
        "eth0",
        &["198.51.100.1/24"],
    );
    link(
        &phone,
        "eth1",
        &["203.0.113.2/24"],
        &new,
        "eth0",
        &["203.0.113.1/24"],
    );
    old.sh("ip route add default via 198.51.100.2");
    new.sh("ip route add default via 203.0.113.2");
    old.sh(&format!(
        "{0} init wg0 --endpoint hub.test --reach peers; {0} up wg0",
        adit()
    ));
    let file = old.sh(&format!("{} new-peer wg0 --name phone", adit()));
    assert!(file.contains("Endpoint = hub.test:"), "{file}");
    let leads_to = |address: &str| phone.sh(&format!("echo {address} hub.test > /etc/hosts"));
    leads_to("198.51.100.1");
    phone.sh_with_input("umask 077; cat > /etc/wireguard/wg0.conf", &file);
    phone.sh(&format!("{} up wg0", adit()));
    let inner = old.sh("sed -n 's/^Address = \\([^/]*\\).*/\\1/p' /etc/wireguard/wg0.conf");
    let inner = inner.trim();
    ping(&phone, inner, 1);
    let before = files(&old);

    follow(&old, "move.md", "On the old host");
    assert!(!old.has_interface("wg0"));
    let archive = "/run/root/adit-move.tar.gz";
    new.sh("mkdir -p /run/root");
    std::fs::copy(old.path(archive), new.path(archive)).expect("copied");
    follow(&new, "move.md", "On the new host");
    assert_eq!(files(&new), before);
    leads_to("203.0.113.1");
    wait_for("the phone finds the new host", seconds(180), || {
        phone.try_sh(&format!("ping -n -q -c 1 -W 1 {inner}")).ok()
    });
    let arrived = follow(&new, "move.md", "Who has arrived");
    assert!(
        arrived.contains("phone") && arrived.contains("connected"),
        "{arrived}"
    );
    follow(&old, "move.md", "Afterwards");
    assert_eq!(
        old.sh("ls /etc/wireguard /run/root | grep -c 'wg0\\|tar' || true")
            .trim(),
        "0"
    );
}

#[test]
fn the_package_is_upgraded_and_uninstalled_as_the_pages_say() {
    if !only_adit() {
        return;
    }
    has_blocks("upgrade.md", 2);
    has_blocks("uninstall.md", 3);
    let Some(debian) = debian() else {
        return;
    };
    let [old, new] = ["0.1.0", "0.2.0"].map(|version| Package::build(&debian, version));
    let world = World::new();
    let left = world.left();
    let systemd = Systemd::boot_debian(left, &debian);
    let follow = |page: &str, heading: &str| {
        systemd.sh(&format!("set -e; cd /root; {}", commands(page, heading)))
    };
    old.install(&systemd);
    let file = "/etc/wireguard/wg0.conf";
    let config = world.config("", "0.0.0.0/0, ::/0");
    std::fs::write(systemd.path(file), config).expect("written");
    systemd.sh(&format!(
        "chmod 600 {file}; systemctl enable --now adit@wg0"
    ));
    ping(left, "172.31.0.1", 1);
    let handshake = systemd.sh("wg show wg0 latest-handshakes");
    let process = systemd.sh("pgrep -f 'adit run .* wg0$'");

    systemd.sh(&format!("cp {} /root", new.inside()));
    let shown = follow("upgrade.md", "The package");
    assert!(shown.contains("{interface=\"wg0\",version=\""), "{shown}");
    let version = systemd.sh("dpkg-query -W -f '${Version}' adit");
    assert_eq!(version, new.version);
    wait_for("the tunnel has the new program", seconds(30), || {
        systemd.sh("pgrep -f 'adit run .* wg0$'") != process
    });
    assert_eq!(systemd.sh("wg show wg0 latest-handshakes"), handshake);
    ping(left, "172.31.0.1", 1);

    follow("uninstall.md", "The package");
    assert!(!left.has_interface("wg0"));
    let rules = systemd.sh("ip rule; ip -6 rule; nft list ruleset; ls /etc/systemd/system/*.wants");
    for part in ["51820", "wg0", "adit"] {
        assert!(!rules.contains(part), "{part} in {rules}");
    }
    let left_over =
        systemd.sh("ls /usr/bin/adit /usr/share/doc/adit /run/adit 2> /dev/null || true");
    assert_eq!(left_over, "");
    systemd.sh("test -s /etc/wireguard/wg0.conf");
    follow("uninstall.md", "The keys");
    systemd.sh("test ! -e /etc/wireguard");
}

#[test]
fn what_was_built_is_upgraded_and_uninstalled_as_the_pages_say() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    world.write(&world.config("", "0.0.0.0/0, ::/0"));
    // The machine's own stays as it is: this is the container's.
    left.sh("mount -t tmpfs tmpfs /usr/local");
    let here = |commands: &str| {
        left.sh(&format!(
            "set -e; export PATH=/usr/local/bin:$PATH ADIT={} MAKEFLAGS=-s; cd {}\n{commands}",
            adit(),
            repository().display()
        ))
    };
    here("make install; adit up wg0");
    ping(left, "172.31.0.1", 1);
    let handshake = left.sh("wg show wg0 latest-handshakes");
    let process = left.sh("pgrep -f 'adit run .*wg0$'");
    here(&commands("upgrade.md", "From source"));
    assert_ne!(left.sh("pgrep -f 'adit run .*wg0$'"), process);
    assert_eq!(left.sh("wg show wg0 latest-handshakes"), handshake);
    ping(left, "172.31.0.1", 1);
    here(&commands("uninstall.md", "From source"));
    assert!(!left.has_interface("wg0"));
    assert_eq!(left.sh("find /usr/local -type f"), "");
}
