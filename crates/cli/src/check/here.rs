//! What of a file cannot work on this host: its networks, addresses and settings. Nothing is said where
//! they cannot be seen, and of a file that is for another host.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use adit_ctl::config::{self, Config, Forward, Table};
use adit_ctl::keys;
use adit_netlink::{Netlink, netns};
use adit_proto::config::{Cidr, PublicKey};
use rustix::fs::{StatVfsMountFlags, statvfs};

use super::parts::{CheckFinding, Severity, all_blocks, blocks, endpoint, name};
use crate::networks::{Collision, Networks, disables_v6, is_cgnat, is_tunnel};
use crate::show;

#[cfg(test)]
#[path = "here_tests.rs"]
mod tests;

/// Collisions that are told.
const MANY: usize = 5;
/// Interfaces and files whose keys are looked at.
const MAX_OTHERS: usize = 256;

/// This host, as far as a file concerns it.
#[derive(Debug, Default)]
pub(super) struct Here {
    networks: Networks,
    /// Its own addresses, and the device of each.
    addresses: Vec<(IpAddr, String)>,
    /// The sysctl that disables IPv6.
    without_v6: Option<String>,
    /// Settings that cannot be changed, and keep it from forwarding.
    fixed: Vec<&'static str>,
    /// Keys of interfaces here. A file that has one as a peer is for another host.
    keys: BTreeSet<String>,
    /// Whether all of these can be seen.
    sees_keys: bool,
}

impl Here {
    /// Nothing where the kernel says nothing.
    pub(super) fn look(file: &Path, config: &Config) -> Self {
        let Ok(netlink) = Netlink::open() else {
            return Self::default();
        };
        let (Ok(links), Ok(addresses)) = (netlink.links(), netlink.addresses()) else {
            return Self::default();
        };
        let own = file
            .file_stem()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        // A copy of a tunnel's file has its addresses.
        let has_ours = |index: u32| {
            let own = |ip: IpAddr| config.interface.addresses.iter().any(|it| it.ip == ip);
            (addresses.iter()).any(|address| address.ifindex == index && own(address.ip))
        };
        let networks = Networks::look(&netlink, &links, &addresses, |link| {
            link.name != own && !(is_tunnel(link) && has_ours(link.index))
        });
        let device = |index: u32| {
            links
                .iter()
                .find(|link| link.index == index && link.name != own)
        };
        let addresses = addresses.iter();
        let addresses = addresses
            .filter_map(|one| Some((one.ip, device(one.ifindex)?.name.clone())))
            .collect();
        Self {
            networks,
            addresses,
            without_v6: disables_v6(own),
            fixed: fixed(),
            keys: all_keys(own),
            sees_keys: rustix::process::geteuid().is_root(),
        }
    }

    pub(super) fn examine(&self, config: &Config, found: &mut Vec<CheckFinding>) {
        cgnat(config, self.networks.has_cgnat(), found);
        let is_here = |key: &PublicKey| self.keys.contains(keys::to_base64(&key.0).as_str());
        if config.peers.iter().any(|peer| is_here(&peer.public_key)) {
            return;
        }
        for peer in &config.peers {
            let Some(to) = endpoint(peer).filter(|to| !to.ip().is_loopback()) else {
                continue;
            };
            let own = self.addresses.iter().find(|(ip, _)| *ip == to.ip());
            if let Some((ip, device)) = own {
                if self.sees_keys {
                    let whose = name(config, &peer.public_key);
                    found.push((
                        Severity::Warning,
                        format!(
                            "{whose}: its Endpoint {to} is this host itself, where {device} has {ip}, and no interface here \
                             has that key: it is to be the address of the peer's host"
                        ),
                    ));
                }
                // It is the file of a peer of this host.
                return;
            }
        }
        self.collisions(config, found);
        self.v6(config, found);
        self.forwarding(config, found);
    }

    fn collisions(&self, config: &Config, found: &mut Vec<CheckFinding>) {
        let addresses = config.interface.addresses.iter();
        let own = addresses.filter_map(|it| Some((*it, Cidr::new(it.ip, it.prefix_len)?)));
        let mut told = Vec::new();
        for (address, network) in own {
            for Collision { theirs, .. } in self.networks.collisions(network) {
                let (block, device) = (theirs.block, theirs.device);
                told.push((
                    Severity::Warning,
                    format!(
                        "Address = {address} collides with {block} of {device} on this host: of hosts with the same address \
                         only one is reached; take another network for the tunnel, one that `adit init` proposes"
                    ),
                ));
            }
        }
        let (mut hints, mut more) = (Vec::new(), 0);
        let is_routed = config.interface.table != Table::Off;
        for peer in config.peers.iter().filter(|_| is_routed) {
            for collision in blocks(peer).flat_map(|block| self.networks.collisions(block)) {
                let list = match collision.ours == collision.theirs.block {
                    true => &mut told,
                    false => &mut hints,
                };
                // Of a million, a few are enough.
                match list.len() < MANY {
                    true => list.push(of_peer(&name(config, &peer.public_key), &collision)),
                    false => more += 1,
                }
            }
        }
        found.extend(told.into_iter().chain(hints));
        if more > 0 {
            let text =
                format!("{more} more networks of the file have addresses that this host has, too");
            found.push((Severity::Hint, text));
        }
    }

    fn v6(&self, config: &Config, found: &mut Vec<CheckFinding>) {
        let Some(sysctl) = &self.without_v6 else {
            return;
        };
        let mut addresses = config.interface.addresses.iter();
        let address = addresses.find(|it| it.ip.is_ipv6());
        let block = all_blocks(config).find(|it| it.addr().is_ipv6());
        let mut endpoints = config.peers.iter().filter_map(endpoint);
        let endpoint = endpoints.find(SocketAddr::is_ipv6);
        let lost = [
            address.map(|it| format!("Address = {it}")),
            block.map(|it| format!("AllowedIPs = {it}")),
            endpoint.map(|it| format!("Endpoint = {it}")),
        ];
        let lost: Vec<String> = lost.into_iter().flatten().collect();
        if !lost.is_empty() {
            found.push((
                Severity::Warning,
                format!(
                    "{} need IPv6, which {sysctl} = 1 disables on this host: `sysctl -w {sysctl}=0` before `adit up` enables \
                     it",
                    lost.join(" and ")
                ),
            ));
        }
    }

    fn forwarding(&self, config: &Config, found: &mut Vec<CheckFinding>) {
        let Some(reach) = config.interface.forward else {
            return;
        };
        for sysctl in &self.fixed {
            let is_v6 = sysctl.contains("ipv6");
            let addresses = &config.interface.addresses;
            if addresses
                .iter()
                .any(|address| address.ip.is_ipv6() == is_v6)
            {
                found.push((
                    Severity::Warning,
                    format!(
                        "Forward = {} needs {sysctl} = 1, and /proc/sys is read-only here: start the container with `--sysctl \
                         {sysctl}=1`",
                        Forward::name(reach)
                    ),
                ));
            }
        }
    }
}

/// A peer's network that this host has without the tunnel.
fn of_peer(whose: &str, collision: &Collision) -> CheckFinding {
    let Collision { ours, theirs } = collision;
    let (block, device) = (theirs.block, &theirs.device);
    let is_wider = ours.prefix_len() < block.prefix_len();
    if *ours == block {
        let text = format!(
            "{whose}: {ours} is the network of {device} on this host, too: of hosts with the same address only one is reached; \
             give one of the two networks other addresses, or put single hosts (/32, /128) into AllowedIPs"
        );
        return (Severity::Warning, text);
    }
    let text = match is_wider {
        true => format!(
            "{whose}: {ours} holds {block} of {device} on this host, which stays with {device}"
        ),
        false => format!(
            "{whose}: {ours} lies inside {block} of {device} on this host: with the tunnel up, it is reached through that, \
             and not by {device}"
        ),
    };
    (Severity::Hint, text)
}

/// Endpoints that nobody outside of a provider's network reaches.
fn cgnat(config: &Config, has_cgnat: bool, found: &mut Vec<CheckFinding>) {
    let addresses = config.interface.addresses.iter();
    let mut inside = addresses.filter_map(|it| Cidr::new(it.ip, it.prefix_len));
    // Networks inside tunnels have such addresses, too; that has been told.
    if has_cgnat || inside.any(|network| is_cgnat(network.addr())) {
        return;
    }
    for peer in &config.peers {
        let Some(to) = endpoint(peer).filter(|to| is_cgnat(to.ip())) else {
            continue;
        };
        let whose = name(config, &peer.public_key);
        found.push((
            Severity::Warning,
            format!(
                "{whose}: its Endpoint {to} is an address of a provider's NAT (CGNAT, 100.64.0.0/10), which nobody outside of \
                 that provider's network reaches: the peer has to call this side, or needs a public address"
            ),
        ));
    }
}

/// What keeps this host from forwarding and cannot be changed: in a container, its sysctls often cannot.
fn fixed() -> Vec<&'static str> {
    let is_fixed = statvfs("/proc/sys/net")
        .is_ok_and(|state| state.f_flag.contains(StatVfsMountFlags::RDONLY));
    let sysctls = ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"];
    let is_off = |sysctl: &&str| netns::sysctl(sysctl).is_ok_and(|value| value == "0");
    sysctls
        .into_iter()
        .filter(|sysctl| is_fixed && is_off(sysctl))
        .collect()
}

/// The public keys of interfaces that run here, and of files, but for one interface.
fn all_keys(own: &str) -> BTreeSet<String> {
    let names = show::names().into_iter().filter(|name| name != own);
    let running = names
        .take(MAX_OTHERS)
        .filter_map(|name| show::interface_status(&name).ok()?.public_key.clone());
    let entries = std::fs::read_dir(config::DIR)
        .into_iter()
        .flatten()
        .flatten();
    let paths = entries.map(|entry| entry.path());
    let paths = paths.filter(|path| path.extension().is_some_and(|end| end == "conf"));
    let paths = paths.filter(|path| path.file_stem().is_some_and(|stem| stem != own));
    let files = paths.take(MAX_OTHERS).filter_map(|path| {
        let (config, _) = Config::salvage(&path).ok()?;
        let private = config.interface.private_key.filter(|key| !key.is_zero())?;
        Some(keys::to_base64(&private.public_key().0).to_string())
    });
    running.chain(files).collect()
}
