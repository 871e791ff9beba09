//! Defaults of `adit new-peer` where its command says nothing.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use adit_ctl::config::{Forward, HostPort, InterfaceAddress};
use adit_netlink::{Family, Netlink};
use adit_proto::config::Cidr;

use super::Quick;
use super::forward::PRIVATE;
use crate::cli::DeviceArgs;
use crate::failure::{Context, Result, bail, say};

#[cfg(test)]
#[path = "defaults_tests.rs"]
mod tests;

/// Where the servers are that the host's own resolver asks, if it has one.
const RESOLVED: &str = "/run/systemd/resolve/resolv.conf";
const RESOLVER: &str = "/etc/resolv.conf";

/// This host's address towards the Internet.
pub(super) fn address_towards_internet() -> Option<IpAddr> {
    // Connecting a UDP socket sends nothing. The addresses are of the documentation.
    let towards = |any: &str, there: &str| {
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((there, 9)).ok()?;
        socket.local_addr().ok().map(|address| address.ip())
    };
    towards("0.0.0.0", "192.0.2.1").or_else(|| towards("::", "2001:db8::1"))
}

/// Where the peer finds this host: what the file says or else its address towards the Internet, with
/// the port of the interface.
pub(super) fn endpoint(quick: &Quick, is_quiet: bool) -> Result<HostPort> {
    if let Some(endpoint) = &quick.config.interface.public_endpoint {
        return Ok(endpoint.clone());
    }
    let Some(port) = port(quick) else {
        bail!(
            Mistake,
            "{} has no ListenPort, so that no peer can find it: add one, or give --endpoint",
            quick.path.display()
        );
    };
    let Some(ip) = address_towards_internet() else {
        bail!(
            State,
            "this host has no route to the Internet: give --endpoint HOST:PORT, where the peer finds it"
        );
    };
    if !is_quiet {
        say!(
            "adit: the peer is told to find this host at {}; if it has another address outside, give --endpoint HOST",
            SocketAddr::new(ip, port)
        );
    }
    Ok(HostPort {
        host: ip.to_string(),
        port,
    })
}

/// The port of the interface, of the file or as it runs.
pub(super) fn port(quick: &Quick) -> Option<u16> {
    let port = quick.config.interface.listen_port.filter(|port| *port != 0);
    let running = || quick.ask().ok().map(|status| status.listen_port);
    port.or_else(running).filter(|port| *port != 0)
}

/// Whether the file has this host forward to the Internet.
pub(super) fn forwards_everything(quick: &Quick) -> bool {
    quick.config.interface.forward == Some(Forward::Internet)
}

/// All addresses, of the families that an interface has addresses of.
pub(super) fn everything(addresses: &[InterfaceAddress]) -> Vec<Cidr> {
    let has = |family: &Family| {
        let mut own = addresses.iter();
        own.any(|address| Family::of(address.ip) == *family)
    };
    let families = Family::BOTH.into_iter().filter(has);
    families
        .filter_map(|family| Cidr::new(any(family), 0))
        .collect()
}

/// What the peer sends through the tunnel: what it may reach there.
pub(super) fn allowed_ips(quick: &Quick, netlink: &Netlink) -> Result<Vec<Cidr>> {
    let addresses = &quick.config.interface.addresses;
    let mut blocks = networks(addresses);
    match quick.config.interface.forward {
        None | Some(Forward::Peers) => {}
        Some(Forward::Lan) => {
            let own = netlink.link(&quick.name).ok().map(|link| link.index);
            let failed = || "cannot see this host's networks".to_owned();
            let others = netlink.addresses().context(failed)?;
            let others = others.iter().filter(|address| Some(address.ifindex) != own);
            let others = others.filter_map(|address| Cidr::new(address.ip, address.prefix_len));
            blocks.extend(lan(&blocks, others));
        }
        Some(Forward::Internet) => blocks = everything(addresses),
    }
    Ok(blocks)
}

fn any(family: Family) -> IpAddr {
    match family {
        Family::V4 => [0; 4].into(),
        Family::V6 => [0; 16].into(),
    }
}

pub(super) fn networks(addresses: &[InterfaceAddress]) -> Vec<Cidr> {
    let networks = addresses.iter();
    networks
        .filter_map(|address| Cidr::new(address.ip, address.prefix_len))
        .collect()
}

/// The private ones among networks, of the families of the tunnel, and not the tunnel's own.
fn lan(tunnel: &[Cidr], networks: impl Iterator<Item = Cidr>) -> Vec<Cidr> {
    let private: Vec<Cidr> = (PRIVATE.into_iter())
        .filter_map(|(ip, len)| Cidr::new(ip, len))
        .collect();
    let holds = |outer: &Cidr, inner: &Cidr| {
        outer.prefix_len() <= inner.prefix_len() && outer.contains(inner.addr())
    };
    let mut found: Vec<Cidr> = networks
        .filter(|block| private.iter().any(|outer| holds(outer, block)))
        .filter(|block| !tunnel.iter().any(|outer| holds(outer, block)))
        .filter(|block| {
            tunnel
                .iter()
                .any(|it| it.addr().is_ipv4() == block.addr().is_ipv4())
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Name servers for a peer that sends everything through the tunnel: its own may be out of reach then.
pub(super) fn name_servers(quick: &Quick, args: &DeviceArgs) -> Vec<IpAddr> {
    let sends_all = args.full_tunnel || forwards_everything(quick) && args.allowed_ips.is_empty();
    if !args.dns.is_empty() || !sends_all {
        return args.dns.clone();
    }
    let read = |path| std::fs::read_to_string(path).ok();
    let text = read(RESOLVED)
        .or_else(|| read(RESOLVER))
        .unwrap_or_default();
    let addresses = &quick.config.interface.addresses;
    let has = |v4: bool| addresses.iter().any(|address| address.ip.is_ipv4() == v4);
    let mut servers = servers_of(&text);
    servers.retain(|ip| has(ip.is_ipv4()));
    match servers.is_empty() {
        _ if args.said.quiet => {}
        true => say!(
            "adit: the peer sends everything through the tunnel and keeps its own name servers; if it cannot reach them \
             there, give --dns ADDRESS"
        ),
        false => {
            let list: Vec<String> = servers.iter().map(IpAddr::to_string).collect();
            say!(
                "adit: the peer sends everything through the tunnel, and asks this host's name servers, {}; --dns names \
                 others",
                list.join(", ")
            );
        }
    }
    servers
}

/// The servers in the text of resolv.conf(5) that other hosts may ask.
fn servers_of(text: &str) -> Vec<IpAddr> {
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("nameserver")).then(|| words.next()?.parse().ok())?
    });
    let is_far = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local() && !ip.is_unspecified(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local() && !ip.is_unspecified(),
    };
    lines.filter(is_far).collect()
}
