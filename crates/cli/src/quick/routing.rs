//! MTU, routes, policy routing and packet filter of a tunnel, over netlink.

mod cover;

use std::collections::{BTreeSet, HashSet};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use adit_ctl::config::{InterfaceAddress, Table};
use adit_netlink::{Family, Firewall, Netlink, Route, Rule};
use adit_proto::config::Cidr;

use crate::failure::{Context, Result, bail, say};
pub(crate) use cover::{covers, leaves_in_clear, parts};

/// Where the tables that serve default routes begin, and the mark that goes with each.
const FIRST_TABLE: u32 = 51820;
/// Outer IPv6, UDP, data header and tag.
const OVERHEAD: u32 = 80;

/// The largest MTU that fits the way to every endpoint for packets with this mark; that of the
/// default route if there is no endpoint yet.
pub(super) fn automatic_mtu(netlink: &Netlink, endpoints: &[SocketAddr], mark: u32) -> u32 {
    let device_mtu = |oif: u32| netlink.link_by_index(oif).ok().map(|link| link.mtu);
    let path_mtu = |endpoint: &SocketAddr| {
        let path = netlink.route_get(endpoint.ip(), None, mark, None).ok()?;
        // What ICMP taught may be forged, and would stay with the interface.
        let by_route = path.mtu.filter(|_| path.learned.is_none());
        by_route.or_else(|| device_mtu(path.oif))
    };
    let smallest = endpoints.iter().filter_map(path_mtu).min();
    let default_mtu = || {
        let routes = Family::BOTH
            .into_iter()
            .flat_map(|family| netlink.routes(family).unwrap_or_default());
        let route = routes
            .into_iter()
            .find(|route| is_default(route, Route::MAIN))?;
        route.mtu.or_else(|| device_mtu(route.oif?))
    };
    smallest
        .or_else(default_mtu)
        .filter(|mtu| *mtu > OVERHEAD)
        .unwrap_or(1500)
        - OVERHEAD
}

fn is_default(route: &Route, table: u32) -> bool {
    route.destination.1 == 0 && route.table == table && route.unicast
}

/// Where look-ups end when the tunnel's default route is gone, as with its process: without it they
/// would go on to the main table, and packets leave in clear.
fn block(family: Family, table: u32) -> Route {
    Route {
        oif: None,
        table,
        // Whatever else is there comes first.
        metric: Some(u32::MAX),
        unicast: false,
        ..Route::through(0, any(family), 0)
    }
}

fn any(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn is_block(route: &Route) -> bool {
    route.destination.1 == 0 && !route.unicast && route.metric == Some(u32::MAX)
}

/// A route to some of a peer's allowed IPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Planned {
    /// In this table.
    Plain(Cidr, u32),
    /// Everything, except what the tunnel itself sends: policy routing.
    Default(Cidr),
}

impl Planned {
    /// Its destination and its table, which for a default route is `mark`.
    pub(super) fn key(&self, mark: u32) -> ((IpAddr, u8), u32) {
        let (block, table) = match self {
            Self::Plain(block, table) => (block, *table),
            Self::Default(block) => (block, mark),
        };
        ((block.addr(), block.prefix_len()), table)
    }
}

/// The routes that wg-quick would add: longest prefixes first, none that an address of the
/// interface or another of these routes covers already. Blocks that together are all addresses of a
/// family become its default route.
pub(super) fn plan(
    addresses: &[InterfaceAddress],
    allowed: &[Cidr],
    table: &Table,
) -> Result<Vec<Planned>> {
    if *table == Table::Off {
        return Ok(Vec::new());
    }
    let number = table_number(table)?;
    let mut blocks: Vec<Cidr> = allowed.to_vec();
    if number.is_none() {
        for family in Family::BOTH {
            let parts = parts(allowed, family);
            if !parts.is_empty() {
                blocks.retain(|block| !parts.contains(block));
                blocks.extend(Cidr::new(any(family), 0));
            }
        }
    }
    blocks.sort_by_key(|block| (std::cmp::Reverse(block.prefix_len()), *block));
    blocks.dedup();
    // The kernel's own routes; for an IPv4 host address it makes none in the main table.
    let connected = addresses
        .iter()
        .filter(|address| address.ip.is_ipv6() || address.prefix_len < 32);
    let connected: Vec<Cidr> = connected
        .filter_map(|address| Cidr::new(address.ip, address.prefix_len))
        .collect();
    let covered = |block: &Cidr| {
        connected
            .iter()
            .any(|net| net.prefix_len() <= block.prefix_len() && net.contains(block.addr()))
    };
    let planned = blocks.into_iter().filter_map(|block| match number {
        Some(number) => Some(Planned::Plain(block, number)),
        None if block.prefix_len() == 0 => Some(Planned::Default(block)),
        None => (!covered(&block)).then_some(Planned::Plain(block, Route::MAIN)),
    });
    Ok(planned.collect())
}

/// The number of a table that is stated.
pub(super) fn table_number(table: &Table) -> Result<Option<u32>> {
    match table {
        Table::Auto | Table::Off => Ok(None),
        Table::Number(number) => Ok(Some(*number)),
        Table::Name(name) => named_table(name).map(Some),
    }
}

/// A name from iproute2's list of tables.
fn named_table(name: &str) -> Result<u32> {
    let fixed = [("local", 255), ("main", 254), ("default", 253)];
    if let Some((_, number)) = fixed.iter().find(|(fixed, _)| *fixed == name) {
        return Ok(*number);
    }
    for dir in ["/etc/iproute2", "/usr/share/iproute2", "/usr/lib/iproute2"] {
        let main = std::path::PathBuf::from(format!("{dir}/rt_tables"));
        let more = std::fs::read_dir(format!("{dir}/rt_tables.d"))
            .into_iter()
            .flatten()
            .flatten();
        for path in std::iter::once(main).chain(more.map(|entry| entry.path())) {
            if let Some(number) = std::fs::read_to_string(path)
                .ok()
                .and_then(|list| table_in(&list, name))
            {
                return Ok(number);
            }
        }
    }
    bail!(
        Mistake,
        "there is no routing table `{name}`: use a number, or add the name to /etc/iproute2/rt_tables"
    )
}

fn table_in(list: &str, name: &str) -> Option<u32> {
    list.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let number = words.next()?.parse().ok()?;
        (words.next() == Some(name)).then_some(number)
    })
}

pub(super) fn add_route(netlink: &Netlink, ifindex: u32, block: Cidr, table: u32) -> Result<()> {
    let route = Route {
        table,
        ..Route::through(ifindex, block.addr(), block.prefix_len())
    };
    match netlink.add_route(&route) {
        // A hook may have been faster.
        Err(e) if e.kind() == ErrorKind::AlreadyExists && leads_to(netlink, ifindex, &route) => {
            Ok(())
        }
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            bail!(State, "{}", collision(netlink, ifindex, &route));
        }
        result => result.context(|| "cannot route allowed IPs".into()),
    }
}

/// What is in the way of a route, and what to do.
fn collision(netlink: &Netlink, ifindex: u32, wanted: &Route) -> String {
    let name = |index| netlink.link_by_index(index).map(|link| link.name);
    let routes = netlink
        .routes(Family::of(wanted.destination.0))
        .unwrap_or_default();
    let other = (routes.iter())
        .filter(|route| route.destination == wanted.destination && route.table == wanted.table)
        .min_by_key(|route| route.metric.unwrap_or(0));
    let via = other.and_then(|route| route.gateway);
    let via = via.map_or_else(String::new, |router| format!(" via {router}"));
    let by = other
        .and_then(|route| name(route.oif?).ok())
        .map_or_else(String::new, |device| format!(" dev {device}"));
    let (ip, len) = wanted.destination;
    let block = format!("{ip}/{len}");
    let table = match wanted.table {
        Route::MAIN => String::new(),
        table => format!(" table {table}"),
    };
    let own = name(ifindex).unwrap_or_default();
    let version = if ip.is_ipv6() { " -6" } else { "" };
    let advice = match len {
        0 => "give one of the two another FwMark or Table".to_owned(),
        _ => format!("take {block} out of AllowedIPs, or set Table = off and route it yourself"),
    };
    format!(
        "cannot route {block} into {own}: another route has it already ({block}{via}{by}{table}): delete that one, with \
         `ip{version} route del {block}{via}{by}{table}`, or {advice}"
    )
}

/// Deletes a route that [`add_route`] added, if it is still there.
pub(super) fn delete_route(netlink: &Netlink, ifindex: u32, block: Cidr, table: u32) -> Result<()> {
    let route = Route {
        table,
        ..Route::through(ifindex, block.addr(), block.prefix_len())
    };
    match netlink.delete_route(&route) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        result => result.context(|| "cannot remove the route to allowed IPs".into()),
    }
}

fn leads_to(netlink: &Netlink, ifindex: u32, wanted: &Route) -> bool {
    let routes = netlink
        .routes(Family::of(wanted.destination.0))
        .unwrap_or_default();
    let same =
        |route: &Route| route.destination == wanted.destination && route.table == wanted.table;
    routes
        .iter()
        .any(|route| same(route) && route.oif == Some(ifindex))
}

/// A table for default routes: the first of those that killed runs left, or the first unused one
/// from 51820 on.
pub(super) fn free_table(netlink: &Netlink, orphans: &BTreeSet<u32>) -> Result<u32> {
    if let Some(table) = orphans.first() {
        return Ok(*table);
    }
    let mut used = HashSet::new();
    for family in Family::BOTH {
        let failed = || "cannot choose a routing table".to_owned();
        used.extend(
            netlink
                .routes(family)
                .context(failed)?
                .iter()
                .map(|route| route.table),
        );
        used.extend(
            netlink
                .rules(family)
                .context(failed)?
                .iter()
                .map(|rule| rule.table),
        );
    }
    Ok((FIRST_TABLE..)
        .find(|table| !used.contains(table))
        .unwrap_or(FIRST_TABLE))
}

/// Makes look-ups of this family that get to the table, and find no default route there, end there.
/// False if they did already.
pub(super) fn add_block(netlink: &Netlink, family: Family, table: u32) -> Result<bool> {
    match netlink.add_route(&block(family, table)) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
        // Of a kernel without it, nothing leaves.
        Err(e) if e.kind() == ErrorKind::Unsupported && family == Family::V6 => Ok(false),
        Err(e) => Err(e).context(|| "cannot route everything through the tunnel".into()),
    }
}

/// Sends all packets through the tunnel, except the tunnel's own (marked `table`), and those for
/// which the main table has a more specific route. [`add_block`] and the route come before any rule
/// that leads to the table: when this function ends half way, nothing leaves in clear.
pub(super) fn add_default(netlink: &Netlink, family: Family, table: u32) -> Result<()> {
    let failed = || "cannot route everything through the tunnel".to_owned();
    let orphans = netlink.rules(family).context(failed)?;
    let orphans = orphans.iter().filter(|rule| is_unmarked(rule, table));
    let new = unmarked(family, table);
    netlink.insert_rule(&new).context(failed)?;
    // The kernel chose the place; the other rule goes right before it. Its place is stated because
    // the kernel would take the same rule of another tunnel, which may stand behind this one, for
    // it.
    let rules = netlink.rules(family).context(failed)?;
    let own = rules.into_iter().find(|rule| is_unmarked(rule, table));
    match netlink.add_rule(&specific(&own.unwrap_or(new))) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        result => result.context(failed)?,
    }
    orphans.for_each(|rule| delete_rules(netlink, rule));
    Ok(())
}

fn unmarked(family: Family, table: u32) -> Rule {
    Rule {
        family,
        priority: None,
        fwmark: Some(table),
        not: true,
        table,
        suppress_prefixlength: None,
    }
}

fn is_unmarked(rule: &Rule, table: u32) -> bool {
    rule.not && rule.table == table && rule.fwmark == Some(table)
}

/// The rule that comes right before the unmarked rule.
fn specific(unmarked: &Rule) -> Rule {
    Rule {
        family: unmarked.family,
        priority: unmarked.priority.map(|place| place.saturating_sub(1)),
        fwmark: None,
        not: false,
        table: Route::MAIN,
        suppress_prefixlength: Some(0),
    }
}

/// Removes what [`add_default`] and [`add_block`] added, in the families whose default route has
/// gone with the interface. Other tunnels keep their rules: one with the same mark has its default
/// route in the table.
pub(super) fn remove_default(netlink: &Netlink, table: u32) {
    for family in Family::BOTH {
        remove_default_of(netlink, family, table);
    }
}

/// The same in one family.
pub(super) fn remove_default_of(netlink: &Netlink, family: Family, table: u32) {
    let rules = netlink.rules(family).unwrap_or_default();
    let routes = netlink.routes(family).unwrap_or_default();
    if routes.iter().any(|route| is_default(route, table)) {
        return;
    }
    let rules = rules.iter().filter(|rule| is_unmarked(rule, table));
    rules.for_each(|rule| delete_rules(netlink, rule));
    if (routes.iter()).any(|route| route.table == table && is_block(route)) {
        remove_block(netlink, family, table);
    }
}

/// Removes what [`add_block`] added.
pub(super) fn remove_block(netlink: &Netlink, family: Family, table: u32) {
    tolerate(netlink.delete_route(&block(family, table)));
}

/// Deletes an unmarked rule and the one before it.
fn delete_rules(netlink: &Netlink, unmarked: &Rule) {
    tolerate(netlink.delete_rule(unmarked));
    tolerate(netlink.delete_rule(&specific(unmarked)));
}

/// A rule or route that is to be deleted may be gone already.
fn tolerate(deleted: adit_netlink::Result<()>) {
    if let Err(e) = deleted
        && e.kind() != ErrorKind::NotFound
    {
        say!("adit: {e}");
    }
}

/// Whether there are rules as [`add_default`] and wg-quick make them.
pub(super) fn has_rules(netlink: &Netlink) -> bool {
    let rules = Family::BOTH.map(|family| netlink.rules(family).unwrap_or_default());
    (rules.iter().flatten()).any(|rule| is_unmarked(rule, rule.table))
}

/// The tables of tunnels whose process was killed: `stated` and those from 51820 on that hold
/// [`add_block`]'s route, or that a pair of rules leads to, as [`add_default`] and wg-quick make
/// them, and that have no other route left.
pub(super) fn orphans(netlink: &Netlink, stated: Option<u32>) -> BTreeSet<u32> {
    // Rules before routes: of a tunnel that comes up meanwhile, the route is there first.
    let rules = Family::BOTH.map(|family| netlink.rules(family).unwrap_or_default());
    let mut tables: BTreeSet<u32> = (rules.iter().flatten())
        .filter(|rule| is_unmarked(rule, rule.table))
        .filter(|rule| rules.iter().flatten().any(|other| *other == specific(rule)))
        .map(|rule| rule.table)
        .collect();
    let mut routes = Vec::new();
    for family in Family::BOTH {
        match netlink.routes(family) {
            Ok(of_family) => routes.extend(of_family),
            Err(_) => return BTreeSet::new(),
        }
    }
    let blocked = routes.iter().filter(|route| is_block(route));
    tables.extend(blocked.map(|route| route.table));
    let others: HashSet<u32> = (routes.iter().filter(|route| !is_block(route)))
        .map(|route| route.table)
        .collect();
    tables.retain(|table| *table >= FIRST_TABLE || stated == Some(*table));
    tables.retain(|table| !others.contains(table));
    tables
}

/// Addresses of an interface, in the order in which the kernel lists them. It makes link-local ones
/// itself: those count only if they are `stated`.
pub(super) fn addresses(
    netlink: &Netlink,
    ifindex: u32,
    stated: &[InterfaceAddress],
) -> Result<Vec<InterfaceAddress>> {
    let all = netlink
        .addresses()
        .context(|| "cannot list addresses".into())?;
    let ours = all.into_iter().filter(|address| address.ifindex == ifindex);
    let ours = ours.map(|address| InterfaceAddress {
        ip: address.ip,
        prefix_len: address.prefix_len,
    });
    let made = |address: &InterfaceAddress| matches!(address.ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    Ok(ours
        .filter(|address| !made(address) || stated.contains(address))
        .collect())
}

/// Sets [`Firewall`]'s rules. The table is wg-quick's, so that either tool removes what the other
/// left.
pub(super) fn set_firewall(
    interface: &str,
    family: Family,
    mark: u32,
    addresses: &[IpAddr],
) -> Result<()> {
    let firewall = Firewall {
        family,
        table: &firewall_table(interface),
        interface,
        mark,
        addresses,
    };
    match firewall.set() {
        Err(e) if e.kind() == ErrorKind::Unsupported => bail!(
            State,
            "a default route through the tunnel needs firewall rules that keep it from being spoofed, and this kernel \
             has no nf_tables ({e}); use one that has, or set Table = off and add the routes yourself"
        ),
        Err(e) if e.kind() == ErrorKind::NotFound => bail!(
            State,
            "cannot protect the default route: {e}; the kernel's nf_tables needs fib and conntrack (modules nft_fib, \
             nft_ct), or set Table = off and add the routes yourself"
        ),
        result => result.context(|| "cannot protect the default route".into()),
    }
}

/// Removes what [`set_firewall`] set, in both families, now or before the process was killed;
/// whether there was any.
pub(super) fn unset_firewall(interface: &str) -> bool {
    let remove = |family| remove_firewall(interface, family);
    Family::BOTH.map(remove).contains(&true)
}

/// The same in one family.
pub(super) fn remove_firewall(interface: &str, family: Family) -> bool {
    Firewall::remove(family, &firewall_table(interface)).unwrap_or_else(|e| {
        say!("adit: {e}");
        true
    })
}

fn firewall_table(interface: &str) -> String {
    format!("wg-quick-{interface}")
}

#[cfg(test)]
#[path = "routing_tests.rs"]
mod tests;
