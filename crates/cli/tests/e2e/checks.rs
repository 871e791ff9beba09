//! `adit check` says of a file what cannot work on this host, before `up` fails of it.

use crate::harness::*;
use crate::quick::adit;

/// What `adit check` prints of a file.
#[track_caller]
fn check(host: &Container, file: &str, text: &str) -> String {
    host.sh_with_input(&format!("umask 077; cat > {file}"), text);
    host.try_sh(&format!("{} check {file}", adit())).stdout
}

fn client(address: &str, allowed: &str, endpoint: &str) -> String {
    format!(
        "[Interface]\nPrivateKey = {}\nAddress = {address}\nListenPort = 51821\n\
         [Peer]\nPublicKey = {}\nAllowedIPs = {allowed}\nEndpoint = {endpoint}\n",
        Keys::new().private,
        Keys::new().public
    )
}

#[test]
fn check_says_what_of_a_file_collides_with_this_host() {
    if !Program::Adit.is_adit() {
        return;
    }
    let net = SitePair::new();
    let host = &net.left;
    host.sh("ip tuntap add wg9 mode tun; ip addr add 10.9.0.1/24 dev wg9; ip link set wg9 up");
    let file = "/etc/wireguard/wg0.conf";
    for (address, allowed, endpoint, said) in [
        (
            "10.8.0.2/24",
            "10.8.0.0/24",
            "10.0.0.2:51820",
            "nothing to remark",
        ),
        (
            "10.8.0.2/24",
            "0.0.0.0/0, ::/0",
            "10.0.0.2:51820",
            "no IPv6 Address",
        ),
        (
            "10.8.0.2/24, fd08::2/64",
            "0.0.0.0/0, ::/0",
            "10.0.0.2:51820",
            "nothing to remark",
        ),
        (
            "10.0.0.9/24",
            "10.8.0.0/24",
            "192.0.2.1:51820",
            "Address = 10.0.0.9/24 collides with 10.0.0.0/24 of eth0",
        ),
        (
            "10.8.0.2/24",
            "10.8.0.0/24, 10.0.0.0/24",
            "192.0.2.1:51820",
            "10.0.0.0/24 is the network of eth0",
        ),
        (
            "10.8.0.2/24",
            "10.8.0.0/24, 10.9.0.0/24",
            "192.0.2.1:51820",
            "10.9.0.0/24 is the network of wg9",
        ),
        (
            "10.8.0.2/24",
            "10.8.0.0/24",
            "10.8.0.1:51820",
            "the network inside the tunnel",
        ),
        ("10.8.0.2/24", "10.8.0.0/24", "100.64.0.1:51820", "CGNAT"),
        (
            "10.8.0.2/24",
            "10.8.0.0/24",
            "10.0.0.1:51820",
            "is this host itself",
        ),
    ] {
        let out = check(host, file, &client(address, allowed, endpoint));
        assert!(
            out.contains(said) && out.lines().count() == 1,
            "{address} {allowed} {endpoint}: {out}"
        );
    }
    host.sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
    let out = check(
        host,
        file,
        &client(
            "10.8.0.2/24, fd08::2/64",
            "10.8.0.0/24, fd08::/64",
            "10.0.0.2:51820",
        ),
    );
    assert!(
        out.contains("Address = fd08::2/64 and AllowedIPs = fd08::/64 need IPv6"),
        "{out}"
    );
    assert_eq!(out.lines().count(), 1, "{out}");
    // What it says to type makes it right.
    host.sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=0");
    let out = check(
        host,
        file,
        &client(
            "10.8.0.2/24, fd08::2/64",
            "10.8.0.0/24, fd08::/64",
            "10.0.0.2:51820",
        ),
    );
    assert!(out.contains("nothing to remark"), "{out}");
    // Nobody needs rights for it.
    host.sh(&format!(
        "install -m 755 {} /run/bin-adit; cp {file} /run/my.conf; chmod 644 /run/my.conf",
        adit()
    ));
    let text = client("10.0.0.9/24", "10.8.0.0/24", "192.0.2.1:51820");
    host.sh_with_input("cat > /run/my.conf", &text);
    let out = host
        .sh("setpriv --reuid 65534 --regid 65534 --clear-groups /run/bin-adit check /run/my.conf");
    assert!(out.contains("collides with 10.0.0.0/24 of eth0"), "{out}");
}

/// A tunnel does not collide with itself, nor the file of a peer with its hub.
#[test]
fn check_leaves_a_running_tunnel_and_the_files_of_its_peers_alone() {
    if !Program::Adit.is_adit() {
        return;
    }
    let net = SitePair::new();
    let host = &net.left;
    host.sh(&format!(
        "{0} init wg0 --subnet 10.8.0.0/24 --endpoint 10.0.0.1 --reach peers; {0} up wg0; \
         umask 077; {0} new-peer wg0 --name phone > /run/phone.conf",
        adit()
    ));
    for file in ["wg0", "/run/phone.conf"] {
        let out = host.sh(&format!("{} check {file}", adit()));
        assert!(out.contains("nothing to remark"), "{file}: {out}");
    }
    // A copy of the file under another name is no other tunnel.
    let out = host.sh(&format!(
        "cp -p /etc/wireguard/wg0.conf /run/copy.conf; {} check /run/copy.conf",
        adit()
    ));
    assert!(out.contains("nothing to remark"), "{out}");
    // On another host it is looked at.
    let phone = host.sh("cat /run/phone.conf");
    net.right
        .sh("ip tuntap add lan mode tap; ip addr add 10.8.0.77/24 dev lan; ip link set lan up");
    let out = check(&net.right, "/run/phone.conf", &phone);
    assert!(out.contains("of lan on this host"), "{out}");
    host.sh(&format!("{} down wg0", adit()));
}
