//! What this host has that a new tunnel must not collide with.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::{Path, PathBuf};

use adit_ctl::config::{self, Config};
use adit_netlink::{Family, Netlink, netns};
use adit_proto::config::{AllowedIpChange, Cidr};

use super::choose;
use crate::failure::{Context, Result, bail};
use crate::keys as new_keys;
use crate::networks::overlap;
use crate::quick::defaults;

/// Something that has addresses.
enum AddressOwner {
    /// A route or an address of the interface with this index; a route may have none.
    Interface(u32),
    Route,
    File(PathBuf),
}

/// This host, as far as a new tunnel concerns it.
pub(super) struct ThisHost {
    /// Private networks that are taken, and by what.
    taken: Vec<(Cidr, AddressOwner)>,
    /// Ports of tunnels that may be down now.
    ports: BTreeMap<u16, PathBuf>,
    /// Names of interfaces.
    links: BTreeMap<u32, String>,
    /// Its address towards the Internet.
    pub(super) address: Option<IpAddr>,
    has_v6: bool,
}

impl ThisHost {
    pub(super) fn look(netlink: &Netlink, dir: Option<&Path>) -> Result<Self> {
        let failed = || "cannot see this host's networks".to_owned();
        let links = netlink.links().context(failed)?;
        let mut host = Self {
            taken: Vec::new(),
            ports: BTreeMap::new(),
            links: links
                .into_iter()
                .map(|link| (link.index, link.name))
                .collect(),
            address: defaults::address_towards_internet(),
            has_v6: false,
        };
        for family in Family::BOTH {
            for route in netlink.routes(family).context(failed)? {
                let source = route
                    .oif
                    .map_or(AddressOwner::Route, AddressOwner::Interface);
                let (ip, len) = route.destination;
                host.take(Cidr::new(ip, len), source);
            }
        }
        for address in netlink.addresses().context(failed)? {
            let block = Cidr::new(address.ip, address.prefix_len);
            host.take(block, AddressOwner::Interface(address.ifindex));
            host.has_v6 |= matches!(address.ip, IpAddr::V6(ip) if !ip.is_loopback() && !ip.is_unicast_link_local());
        }
        // Without the sysctl there is no IPv6; new interfaces get what `default` says.
        let is_on = |place| {
            let sysctl = format!("net/ipv6/conf/{place}/disable_ipv6");
            netns::sysctl(&sysctl).is_ok_and(|value| value == "0")
        };
        host.has_v6 &= is_on("all") && is_on("default");
        host.read_files(Path::new(config::DIR));
        if let Some(dir) = dir.filter(|dir| *dir != Path::new(config::DIR)) {
            // Of the working directory, nothing is left.
            host.read_files(&Path::new(".").join(dir));
        }
        Ok(host)
    }

    /// Files of other tunnels, also of those that are down.
    fn read_files(&mut self, dir: &Path) {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        for path in paths.filter(|path| path.extension().is_some_and(|end| end == "conf")) {
            let Ok((config, _)) = Config::salvage(&path) else {
                continue;
            };
            if let Some(port) = config.interface.listen_port.filter(|port| *port != 0) {
                self.ports.insert(port, path.clone());
            }
            for address in &config.interface.addresses {
                let block = Cidr::new(address.ip, address.prefix_len);
                self.take(block, AddressOwner::File(path.clone()));
            }
            for change in config.peers.iter().flat_map(|peer| &peer.allowed_ips) {
                if let AllowedIpChange::Add(block) = change {
                    self.take(Some(*block), AddressOwner::File(path.clone()));
                }
            }
        }
    }

    /// Takes a network out of the choice. There may be a million routes, few of them private.
    fn take(&mut self, block: Option<Cidr>, source: AddressOwner) {
        let counts = |block: &Cidr| choose::is_taking(*block) && choose::has_private(*block);
        self.taken
            .extend(block.filter(counts).map(|block| (block, source)));
    }

    /// Networks that collide with nothing.
    pub(super) fn free_networks(&self) -> Result<Vec<Cidr>> {
        let taken: Vec<Cidr> = self.taken.iter().map(|(block, _)| *block).collect();
        let mut random = [0; 16];
        new_keys::fill_random(&mut random)?;
        let random = u128::from_ne_bytes(random);
        let Some(v4) = choose::free_network(Family::V4, &taken, random) else {
            bail!(
                State,
                "this host has routes to all private networks of IPv4: give --subnet, one that it can do without"
            );
        };
        let v6 = self
            .has_v6
            .then(|| choose::free_network(Family::V6, &taken, random));
        Ok([Some(v4), v6.flatten()].into_iter().flatten().collect())
    }

    /// The networks, if a tunnel may have them.
    pub(super) fn check_networks(
        &self,
        networks: &[Cidr],
    ) -> std::result::Result<Vec<Cidr>, String> {
        if networks.is_empty() || !choose::is_one_of_each(networks) {
            return Err("expected one network of IPv4, or one of IPv6, or both".to_owned());
        }
        for network in networks {
            if !choose::is_private(*network) {
                return Err(format!(
                    "{network} is no private network: take one inside 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or fc00::/7"
                ));
            }
            if choose::own_address(*network).is_none() {
                return Err(format!(
                    "{network} has no room for peers: take a shorter prefix"
                ));
            }
            let other = self
                .taken
                .iter()
                .find(|(block, _)| overlap(*block, *network));
            if let Some((block, source)) = other {
                return Err(format!(
                    "{network} collides with {block} of {}: take another",
                    self.name(source)
                ));
            }
        }
        Ok(networks.to_vec())
    }

    fn name(&self, source: &AddressOwner) -> String {
        match source {
            AddressOwner::Interface(index) => match self.links.get(index) {
                Some(name) => format!("the interface {name}"),
                None => "an interface".to_owned(),
            },
            AddressOwner::Route => "a route".to_owned(),
            AddressOwner::File(path) => path.display().to_string(),
        }
    }

    /// The port, if it is free.
    pub(super) fn check_port(&self, port: u16) -> std::result::Result<u16, String> {
        if let Some(file) = self.ports.get(&port) {
            return Err(format!(
                "UDP port {port} is that of {}: take another",
                file.display()
            ));
        }
        let v4: IpAddr = Ipv4Addr::UNSPECIFIED.into();
        let v6: IpAddr = Ipv6Addr::UNSPECIFIED.into();
        for any in [v4, v6] {
            match UdpSocket::bind((any, port)) {
                Err(error) if error.kind() == ErrorKind::AddrInUse => {
                    return Err(format!("UDP port {port} is in use: take another"));
                }
                // There may be no IPv6.
                _ => {}
            }
        }
        Ok(port)
    }
}
