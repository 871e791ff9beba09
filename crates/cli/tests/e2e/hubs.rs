//! `adit why` at a hub: what keeps it from forwarding for its peers.

use crate::causes::{causes, obey, text};
use crate::forwards::{findings, is_first};
use crate::harness::*;
use crate::quick::adit;

/// A hub whose file has `# Forward = internet`, a peer, and what the Internet is here.
///
/// ```text
///   left ──────── right (the hub) ──────── internet
///   192.168.77.2  192.168.77.1  198.51.100.1  198.51.100.2
/// ```
struct Hub {
    net: SitePair,
    internet: Container,
    peer: String,
}

impl Hub {
    fn new() -> Self {
        let net = SitePair::new();
        let (hub, peer) = (Keys::new(), Keys::new());
        let write = |host: &Container, text: &str| {
            host.sh_with_input("umask 077; cat > /etc/wireguard/wg0.conf", text);
        };
        write(
            &net.right,
            &format!(
                "[Interface]\nPrivateKey = {}\nAddress = 192.168.77.1/24\nListenPort = 51820\n# Forward = internet\n\
                 [Peer]\nPublicKey = {}\nAllowedIPs = 192.168.77.2/32\n\
                 [Peer]\nPublicKey = {}\nAllowedIPs = 192.168.77.3/32\n",
                hub.private,
                peer.public,
                Keys::new().public
            ),
        );
        write(
            &net.left,
            &format!(
                "[Interface]\nPrivateKey = {}\nAddress = 192.168.77.2/24\n\
                 [Peer]\nPublicKey = {}\nAllowedIPs = 192.168.77.0/24, 198.51.100.0/24\nEndpoint = 10.0.0.2:51820\n\
                 PersistentKeepalive = 1\n",
                peer.private, hub.public
            ),
        );
        Self {
            net,
            internet: Container::new("internet"),
            peer: peer.public,
        }
    }

    fn up(&self) {
        for host in [&self.net.right, &self.net.left] {
            host.sh(&format!("{} up wg0", adit()));
        }
        ping(&self.net.left, "192.168.77.1", 1);
    }

    fn gets_an_uplink(&self) {
        let hub = &self.net.right;
        link(
            hub,
            "eth1",
            &["198.51.100.1/24"],
            &self.internet,
            "eth0",
            &["198.51.100.2/24"],
        );
        hub.sh("ip route add default via 198.51.100.2");
    }

    /// The peer gets to the Internet, and nothing is wrong.
    fn works(&self) {
        ping(&self.net.left, "198.51.100.2", 1);
        let (status, found) = findings(&self.net.right, &format!("wg0 {}", self.peer));
        assert_eq!((status, found.len()), (Some(0), 0), "{found:?}");
        for host in [&self.net.left, &self.net.right] {
            host.sh(&format!("{} down wg0", adit()));
        }
    }
}

#[test]
fn why_names_a_chain_of_another_program_that_drops_what_is_forwarded() {
    if !Program::Adit.is_adit() {
        return;
    }
    let hub = Hub::new();
    hub.gets_an_uplink();
    hub.up();
    let host = &hub.net.right;
    // As Docker has it.
    host.sh(
        "nft 'table ip filter { chain DOCKER-USER { return; }; chain FORWARD { type filter hook forward priority filter; \
         policy drop; counter jump DOCKER-USER; oifname docker0 ct state established,related counter accept; }; }'",
    );
    ping_fails(&hub.net.left, "198.51.100.2");
    let args = format!("wg0 {}", hub.peer);
    assert_eq!(causes(host, &args), ["forward_firewall"]);
    let finding = is_first(host, &args, "forward_firewall");
    assert!(text(&finding).contains("ip filter FORWARD"), "{finding}");
    for command in finding["commands"]
        .as_array()
        .expect("commands")
        .iter()
        .take(2)
    {
        host.sh(command.as_str().expect("a command"));
    }
    hub.works();
}

#[test]
fn why_names_an_uplink_that_came_after_up() {
    if !Program::Adit.is_adit() {
        return;
    }
    let hub = Hub::new();
    hub.up();
    hub.gets_an_uplink();
    let host = &hub.net.right;
    ping_fails(&hub.net.left, "198.51.100.2");
    let args = format!("wg0 {}", hub.peer);
    assert_eq!(causes(host, &args), ["no_forwarding"]);
    let finding = is_first(host, &args, "no_forwarding");
    assert!(text(&finding).contains("eth1"), "{finding}");
    obey(&finding, host, &[]);
    hub.works();
}
