//! `adit sync`: brings a running tunnel to what its file says now, without taking it down, and says
//! what it leaves.
//!
//! 1. keys, peers, port and mark, as one transaction;
//! 2. the MTU, which IPv6 addresses need;
//! 3. addresses, new ones first, so that the interface is never without;
//! 4. forwarding for peers;
//! 5. routes: allowed IPs get those that are missing, unless a hook may have removed them or they
//!    are a default route that was left to others before; those that are gone lose them, and others
//!    are not touched.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::SystemTime;

use adit_ctl::config::{InterfaceAddress, Table};
use adit_netlink::netns;
use adit_netlink::{Family, Link, LinkChange, Netlink, Route};
use adit_proto::config::{Cidr, DeviceStatus};
use adit_proto::limits::REJECT_AFTER_TIME;

use super::routing::{self, Planned};
use super::{MIN_V6_MTU, Quick, allowed_ips};
use crate::failure::{Context, Result, say};

/// The destinations of an interface's routes, and their tables.
type Routes = HashSet<((IpAddr, u8), u32)>;

/// An interface as it was before.
struct Before {
    status: DeviceStatus,
    link: Link,
    addresses: Vec<InterfaceAddress>,
    routes: Routes,
}

impl Quick {
    pub(super) fn sync(&self, netlink: &Netlink) -> Result<()> {
        let Self { name, config, .. } = self;
        self.check_stated_mtu()?;
        let status = self.status()?;
        let link = netlink.link(name).ok();
        let mut endpoints = self.endpoints()?;
        self.remember(&endpoints);
        self.keep_endpoints(&status, &mut endpoints);
        let others = self.others(Some(&status))?;
        let mut change = self.to_change(&endpoints, &others);
        if change.fwmark == Some(0) && self.may_be_full() && config.interface.table == Table::Auto {
            // No mark is stated: the one that was chosen stays.
            change.fwmark = None;
        }
        // Anything that cannot be had is found before anything is changed.
        routing::table_number(&config.interface.table)?;
        let before = match link {
            Some(link) => Some(Before {
                addresses: routing::addresses(netlink, link.index, &config.interface.addresses)?,
                routes: routes(netlink, link.index)?,
                status,
                link,
            }),
            None => None,
        };
        self.name_peers(None);
        self.set(&change)?;
        self.name_peers(Some(&others));
        self.allow_peers(&others)?;
        self.name_endpoints(&others);
        match before {
            Some(before) => {
                let status = self.status()?;
                self.sync_mtu(netlink, &before, &status)?;
                self.sync_addresses(netlink, &before)?;
                self.sync_forwarding()?;
                self.sync_routes(netlink, &before, &status)?;
            }
            None => say!(
                "adit: {name} has another name or is in another network namespace: addresses, MTU and routes stay as \
                 they are"
            ),
        }
        let dns = config.interface.has_dns().then_some("DNS");
        let hooks = self.has_hooks().then_some("hooks");
        let left: Vec<&str> = dns.into_iter().chain(hooks).collect();
        if !left.is_empty() {
            say!(
                "adit: {name}: not applied again: {}; if the file has others now, `adit down {called}` and `adit up \
                 {called}` apply them",
                left.join(", "),
                called = self.called()
            );
        }
        Ok(())
    }

    /// A name that leads elsewhere now does not move a peer that answers: it is followed when the
    /// peer falls silent.
    fn keep_endpoints(&self, status: &DeviceStatus, endpoints: &mut [Option<SocketAddr>]) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.unwrap_or_default();
        let running: HashMap<_, _> = (status.peers.iter())
            .map(|peer| (peer.public_key, peer))
            .collect();
        for (peer, endpoint) in self.config.peers.iter().zip(endpoints) {
            let name = peer.endpoint.as_ref().filter(|it| it.numeric().is_none());
            let known = running.get(&peer.public_key).filter(|peer| {
                (peer.last_handshake).is_some_and(|at| now.saturating_sub(at) < REJECT_AFTER_TIME)
            });
            if let (Some(_), None, Some(peer)) = (name, *endpoint, running.get(&peer.public_key)) {
                // It cannot be looked up now.
                *endpoint = peer.endpoint;
            }
            let here = known.and_then(|peer| peer.endpoint);
            if let (Some(name), Some(here), Some(there)) = (name, here, *endpoint)
                && here != there
            {
                *endpoint = Some(here);
                say!(
                    "adit: {}: peer {} answers at {here} and stays there; `{name}` leads to {there}",
                    self.name,
                    peer.public_key
                );
            }
        }
    }

    fn has_hooks(&self) -> bool {
        let interface = &self.config.interface;
        [&interface.pre_up, &interface.post_up]
            .iter()
            .any(|hooks| !hooks.is_empty())
    }

    fn sync_mtu(&self, netlink: &Netlink, before: &Before, status: &DeviceStatus) -> Result<()> {
        let Self { name, .. } = self;
        let mtu = before.link.mtu;
        match self.config.interface.mtu.map(u32::from) {
            Some(stated) if stated != mtu => {
                let change = LinkChange {
                    mtu: Some(stated),
                    ..LinkChange::default()
                };
                let set = netlink.set_link(before.link.index, &change);
                set.context(|| format!("cannot set up {name}"))?;
                say!("adit: {name}: MTU {stated} instead of {mtu}");
            }
            Some(_) => {}
            None => {
                let peers = status.peers.iter();
                let known: Vec<SocketAddr> = peers.filter_map(|peer| peer.endpoint).collect();
                let automatic = routing::automatic_mtu(netlink, &known, status.fwmark);
                if automatic != mtu {
                    say!(
                        "adit: {name} keeps its MTU of {mtu}: the file states none, and `adit up` would choose \
                         {automatic} now"
                    );
                }
            }
        }
        Ok(())
    }

    /// A file without addresses leaves them to others, and one with hooks may have got more from
    /// them.
    fn sync_addresses(&self, netlink: &Netlink, before: &Before) -> Result<()> {
        let Self { name, .. } = self;
        let stated = &self.config.interface.addresses;
        let about = || format!("cannot set up {name}");
        let index = before.link.index;
        if stated.is_empty() {
            return Ok(());
        }
        // Those that a lower MTU took may be back, and those that it took now are gone.
        let present = routing::addresses(netlink, index, stated)?;
        let mtu = self.config.interface.mtu.map_or(before.link.mtu, u32::from);
        let without_v6 = self.without_v6().is_some();
        let can_be =
            |address: &&InterfaceAddress| address.ip.is_ipv4() || mtu >= MIN_V6_MTU && !without_v6;
        let missing = stated.iter().filter(|address| !present.contains(address));
        for address in missing.filter(can_be) {
            let added = netlink.add_address(index, address.ip, address.prefix_len, false);
            added.context(about)?;
            say!("adit: {name}: added address {address}");
        }
        for address in present.iter().filter(|address| !stated.contains(address)) {
            if self.has_hooks() {
                say!(
                    "adit: {name} keeps the address {address}, which is not in the file: a hook may have set it; `ip \
                     address del {address} dev {name}` removes it"
                );
                continue;
            }
            // Or else the kernel removes those of the same network, too.
            let _ = netns::set_sysctl(&format!("net/ipv4/conf/{name}/promote_secondaries"), "1");
            let removed = netlink.delete_address(index, address.ip, address.prefix_len);
            removed.context(about)?;
            say!("adit: {name}: removed address {address}");
        }
        Ok(())
    }

    fn sync_routes(&self, netlink: &Netlink, before: &Before, status: &DeviceStatus) -> Result<()> {
        let Self { name, .. } = self;
        let interface = &self.config.interface;
        let index = before.link.index;
        if let Some(table) = self.other_table(before) {
            say!(
                "adit: {name}: its routes are in table {table} and stay as they are, but the file's Table is another: \
                 `adit down {called}` and `adit up {called}` apply it",
                called = self.called()
            );
            return Ok(());
        }
        if !before.link.up {
            say!("adit: {name} is down: its routes stay as they are");
            return Ok(());
        }
        let addresses = routing::addresses(netlink, index, &interface.addresses)?;
        let plan = |addresses: &[InterfaceAddress], status: &DeviceStatus| {
            let allowed: Vec<Cidr> = allowed_ips(status).collect();
            routing::plan(addresses, &allowed, &interface.table)
        };
        let old: HashSet<Planned> = plan(&before.addresses, &before.status)?
            .into_iter()
            .collect();
        let new = plan(&addresses, status)?;
        let old_mark = before.status.fwmark;
        let was_there = |planned: &Planned| before.routes.contains(&planned.key(old_mark));

        // 1. What is new, and what went with an address. The firewall guards the addresses, and the
        //    rules know the mark.
        let present = routes(netlink, index)?;
        let changed = addresses != before.addresses || status.fwmark != old_mark;
        let without_v6 = self.without_v6().is_some();
        let is_wanted = |planned: &&Planned| match planned {
            Planned::Plain(block, _) | Planned::Default(block)
                if without_v6 && block.addr().is_ipv6() =>
            {
                false
            }
            Planned::Plain(..) => {
                let wanted = !old.contains(planned) || was_there(planned) || !self.has_hooks();
                wanted && !present.contains(&planned.key(0))
            }
            Planned::Default(_) if !old.contains(planned) => true,
            Planned::Default(_) if was_there(planned) => changed,
            Planned::Default(block) => {
                say!(
                    "adit: {name}: {block} was among the allowed IPs without a route and gets none: `adit down {called}` \
                     and `adit up {called}` route everything through the tunnel",
                    called = self.called()
                );
                false
            }
        };
        let mut mark = status.fwmark;
        let wanted: Vec<Planned> = new.iter().filter(is_wanted).copied().collect();
        let is_default = |planned: &Planned| matches!(planned, Planned::Default(_));
        if wanted.iter().any(is_default) {
            mark = self.mark(netlink, status, &self.orphans(netlink), &mut Vec::new())?;
        }
        for planned in &wanted {
            match *planned {
                Planned::Plain(block, table) => routing::add_route(netlink, index, block, table)?,
                Planned::Default(block) => {
                    let _ = self.add_default(netlink, index, block, mark)?;
                }
            }
        }
        if wanted.iter().any(is_default) {
            // Remains of killed runs are removed, now that the new state is in place.
            self.remove_orphans(netlink, Some(mark));
        }
        // 2. What is gone.
        for planned in old.iter().filter(|planned| was_there(planned)) {
            let is_gone = !new.contains(planned);
            match *planned {
                Planned::Plain(block, table) if is_gone => {
                    routing::delete_route(netlink, index, block, table)?;
                }
                Planned::Default(block) if is_gone || mark != old_mark => {
                    routing::delete_route(netlink, index, block, old_mark)?;
                    routing::remove_default(netlink, old_mark);
                    if is_gone {
                        routing::remove_firewall(name, Family::of(block.addr()));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The table of the routes to the allowed IPs, if it is none that the file says.
    fn other_table(&self, before: &Before) -> Option<u32> {
        let number = routing::table_number(&self.config.interface.table).ok()?;
        let is_right = |table: u32| match (&self.config.interface.table, number) {
            // Hooks make the routes then.
            (Table::Off, _) => self.has_hooks(),
            (_, Some(number)) => table == number,
            (_, None) => table == Route::MAIN || table == before.status.fwmark,
        };
        let connected: HashSet<Cidr> = (before.addresses.iter())
            .filter_map(|address| Cidr::new(address.ip, address.prefix_len))
            .collect();
        let allowed: HashSet<(IpAddr, u8)> = allowed_ips(&before.status)
            .filter(|block| !connected.contains(block))
            .map(|block| (block.addr(), block.prefix_len()))
            .collect();
        let other = |(to, table): &&((IpAddr, u8), u32)| allowed.contains(to) && !is_right(*table);
        before.routes.iter().find(other).map(|(_, table)| *table)
    }
}

/// Routes to hosts through an interface.
fn routes(netlink: &Netlink, index: u32) -> Result<Routes> {
    let mut found = Routes::new();
    for family in Family::BOTH {
        let routes = netlink.routes(family);
        let routes = routes.context(|| "cannot list routes".into())?;
        let ours = (routes.iter()).filter(|route| route.unicast && route.oif == Some(index));
        found.extend(ours.map(|route| (route.destination, route.table)));
    }
    Ok(found)
}
