//! Networks that this host has without a tunnel, and which of the tunnel's have the same addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use adit_netlink::{Address, Family, Link, Netlink, netns};
use adit_proto::config::Cidr;

/// Shorter prefixes are default routes, or parts of one.
const SHORTEST: u8 = 8;
/// Routes that are compared: there may be a million.
const MAX_ROUTES: usize = 4096;

/// A network that a device of this host leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) block: Cidr,
    pub(crate) device: String,
}

/// The networks of this host's other devices.
#[derive(Clone, Debug, Default)]
pub(crate) struct Networks {
    /// Those that hold an address of this host, and those that other tunnels lead to.
    pub(crate) near: Vec<Network>,
    /// Every route.
    routes: Vec<Network>,
}

/// A network of the tunnel that has addresses of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Collision {
    pub(crate) ours: Cidr,
    pub(crate) theirs: Network,
}

impl Networks {
    /// Those of the devices that `counts` names.
    pub(crate) fn look(
        netlink: &Netlink,
        links: &[Link],
        addresses: &[Address],
        counts: impl Fn(&Link) -> bool,
    ) -> Self {
        let link = |index: u32| {
            let mut links = links.iter().filter(|link| link.up && !link.loopback);
            links.find(|link| link.index == index && counts(link))
        };
        let mut found = Self::default();
        let connected = addresses
            .iter()
            .filter(|address| !is_link_local(address.ip));
        for address in connected {
            let block = Cidr::new(address.ip, address.prefix_len);
            if let (Some(block), Some(link)) = (block, link(address.ifindex)) {
                found.add(block, link, true);
            }
        }
        for family in Family::BOTH {
            for route in netlink.routes(family).unwrap_or_default() {
                let (ip, len) = route.destination;
                let is_network = route.unicast && !is_link_local(ip) && !ip.is_multicast();
                let block = Cidr::new(ip, len).filter(|_| is_network);
                if let (Some(block), Some(link)) = (block, route.oif.and_then(link)) {
                    // One host of a tunnel is no network.
                    let is_near = is_tunnel(link) && len < family.bits() && route.gateway.is_none();
                    found.add(block, link, is_near);
                }
            }
        }
        found
    }

    /// These, with the name of each one's device.
    #[cfg(test)]
    pub(crate) fn of(networks: &[(&str, &str)]) -> Self {
        let network = |(block, device): &(&str, &str)| {
            let (ip, len) = block.split_once('/')?;
            Some(Network {
                block: Cidr::new(ip.parse().ok()?, len.parse().ok()?)?,
                device: (*device).to_owned(),
            })
        };
        let near: Vec<Network> = networks.iter().filter_map(network).collect();
        Self {
            routes: near.clone(),
            near,
        }
    }

    fn add(&mut self, block: Cidr, link: &Link, is_near: bool) {
        let network = Network {
            block,
            device: link.name.clone(),
        };
        let push = |list: &mut Vec<Network>| {
            let has_room = list.len() < MAX_ROUTES && block.prefix_len() >= SHORTEST;
            if has_room && !list.contains(&network) {
                list.push(network.clone());
            }
        };
        push(&mut self.routes);
        if is_near {
            push(&mut self.near);
        }
    }

    /// The networks that have addresses of a block of the tunnel. A block of public addresses may
    /// hold one: a list of all but some addresses does.
    pub(crate) fn collisions(&self, ours: Cidr) -> Vec<Collision> {
        if ours.prefix_len() < SHORTEST {
            return Vec::new();
        }
        let collides = |theirs: &&Network| {
            let is_wider = ours.prefix_len() < theirs.block.prefix_len();
            overlap(ours, theirs.block) && (!is_wider || is_private(ours.addr()))
        };
        let theirs = self.near.iter().filter(collides).cloned();
        theirs.map(|theirs| Collision { ours, theirs }).collect()
    }

    /// The narrowest route by a device that holds an address.
    pub(crate) fn route(&self, to: IpAddr, device: &str) -> Option<Cidr> {
        let holds = |network: &&Network| network.device == device && network.block.contains(to);
        let holding = self
            .routes
            .iter()
            .filter(holds)
            .map(|network| network.block);
        holding.max_by_key(|block| block.prefix_len())
    }

    /// Whether this host is in a provider's NAT itself, or in a network that uses its addresses.
    pub(crate) fn has_cgnat(&self) -> bool {
        self.near
            .iter()
            .any(|network| is_cgnat(network.block.addr()))
    }
}

/// A device of WireGuard, or of another program that makes tunnels.
pub(crate) fn is_tunnel(link: &Link) -> bool {
    matches!(link.kind.as_deref(), Some("tun" | "wireguard"))
}

pub(crate) fn overlap(one: Cidr, other: Cidr) -> bool {
    one.contains(other.addr()) || other.contains(one.addr())
}

/// Whether it is an address of a provider's NAT (RFC 6598).
pub(crate) fn is_cgnat(ip: IpAddr) -> bool {
    let pool = Cidr::new(Ipv4Addr::new(100, 64, 0, 0).into(), 10);
    pool.is_some_and(|pool| pool.contains(ip))
}

/// Whether only hosts of its own network find it, a provider's NAT among these.
pub(crate) fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_private() || is_cgnat(ip),
        IpAddr::V6(v6) => is_unique_local(v6),
    }
}

/// RFC 4193.
fn is_unique_local(ip: Ipv6Addr) -> bool {
    ip.octets()[0] & 0xfe == 0xfc
}

pub(crate) fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// The sysctl that keeps a device from having IPv6, if one does: that of the device, or of all where
/// it is the same there. For a device that is not there yet, the one of new devices counts.
pub(crate) fn disables_v6(device: &str) -> Option<String> {
    let is_off = |place: &str| {
        netns::sysctl(&format!("net/ipv6/conf/{place}/disable_ipv6")).map(|value| value == "1")
    };
    let (all, own) = (is_off("all"), is_off(device));
    let own = own.or_else(|_| is_off("default"));
    let place = match (all, own) {
        (Ok(true), Ok(true)) => "all",
        (_, Ok(true)) if is_off(device).is_ok() => device,
        (_, Ok(true)) => "default",
        _ => return None,
    };
    Some(format!("net.ipv6.conf.{place}.disable_ipv6"))
}

#[cfg(test)]
#[path = "networks_tests.rs"]
mod tests;
