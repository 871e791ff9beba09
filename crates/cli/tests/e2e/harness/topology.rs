//! Networks that more than one test uses.

use super::{Container, link};

/// The address family that carries the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub fn with_port(self, address: &str, port: u16) -> String {
        match self {
            Family::V4 => format!("{address}:{port}"),
            Family::V6 => format!("[{address}]:{port}"),
        }
    }
}

/// ```text
///   left                      right
///   eth0 ───────────────────── eth0
///   10.0.0.1/24         10.0.0.2/24
///   fd00::1/64           fd00::2/64
/// ```
pub struct SitePair {
    pub left: Container,
    pub right: Container,
}

impl SitePair {
    pub fn new() -> SitePair {
        let left = Container::new("left");
        let right = Container::new("right");
        link(
            &left,
            "eth0",
            &["10.0.0.1/24", "fd00::1/64"],
            &right,
            "eth0",
            &["10.0.0.2/24", "fd00::2/64"],
        );
        SitePair { left, right }
    }

    pub fn address_of_left(&self, family: Family) -> String {
        match family {
            Family::V4 => "10.0.0.1".into(),
            Family::V6 => "fd00::1".into(),
        }
    }

    pub fn address_of_right(&self, family: Family) -> String {
        match family {
            Family::V4 => "10.0.0.2".into(),
            Family::V6 => "fd00::2".into(),
        }
    }
}

/// ```text
///   left                 router                 right
///   eth0 ────────── eth0        eth1 ────────── eth0
///   10.1.0.100/24   10.1.0.1    10.2.0.1  10.2.0.100/24
///   fd01::100/64    fd01::1     fd02::1    fd02::100/64
/// ```
pub struct Routed {
    pub left: Container,
    pub router: Container,
    pub right: Container,
}

impl Routed {
    pub fn new() -> Routed {
        let left = Container::new("left");
        let router = Container::new("router");
        let right = Container::new("right");
        link(
            &left,
            "eth0",
            &["10.1.0.100/24", "fd01::100/64"],
            &router,
            "eth0",
            &["10.1.0.1/24", "fd01::1/64"],
        );
        link(
            &right,
            "eth0",
            &["10.2.0.100/24", "fd02::100/64"],
            &router,
            "eth1",
            &["10.2.0.1/24", "fd02::1/64"],
        );
        router.forwards();
        left.sh("ip route add default via 10.1.0.1; ip -6 route add default via fd01::1");
        right.sh("ip route add default via 10.2.0.1; ip -6 route add default via fd02::1");
        Routed {
            left,
            router,
            right,
        }
    }

    pub fn address_of_left(&self, family: Family) -> &'static str {
        match family {
            Family::V4 => "10.1.0.100",
            Family::V6 => "fd01::100",
        }
    }

    pub fn address_of_right(&self, family: Family) -> &'static str {
        match family {
            Family::V4 => "10.2.0.100",
            Family::V6 => "fd02::100",
        }
    }
}

/// [`Routed`] with the router translating what leaves towards the right, and forgetting an idle UDP
/// mapping after two seconds. The right side has no route to the left one.
pub struct Natted {
    pub net: Routed,
}

impl Natted {
    pub fn new() -> Natted {
        let net = Routed::new();
        net.router.sh(r"set -e
            nft -f - <<RULES
            table ip nat {
              chain post {
                type nat hook postrouting priority srcnat
                oifname eth1 masquerade
              }
            }
            table ip filter {
              chain forward {
                type filter hook forward priority filter
                iifname eth1 ct state new drop
              }
            }
RULES
            echo 2 > /proc/sys/net/netfilter/nf_conntrack_udp_timeout
            echo 2 > /proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream");
        net.right.sh("ip route del default");
        Natted { net }
    }
}
