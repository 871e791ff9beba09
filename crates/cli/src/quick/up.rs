//! `adit up`, in wg-quick's order, and the way back when a step fails:
//!
//! 1. start the interface's process;
//! 2. PreUp hooks;
//! 3. keys, peers and endpoints as one transaction; a mark if it takes the default route;
//! 4. addresses, forwarding for peers, MTU, up;
//! 5. DNS;
//! 6. routes to the allowed IPs that are in force, policy routing and firewall for default routes;
//! 7. PostUp hooks;
//! 8. what killed runs left goes, now that the new state is in place.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use adit_ctl::config::{InterfaceSection, Table};
use adit_netlink::netns;
use adit_netlink::{Family, LinkChange, Netlink};
use adit_proto::config::{Cidr, DeviceChange, DeviceStatus};

use super::routing::{self, Planned};
use super::{
    MIN_V6_MTU, Quick, allowed_ips, done, dry_run, foreground, has_default, open_netlink, programs,
    require_rights,
};
use crate::cli::{RunArgs, UpArgs};
use crate::failure::{Context, Result, bail, say};
use crate::run;

/// Has reverse-path filters look up the answers to marked packets with the mark.
const SRC_VALID_MARK: &str = "net.ipv4.conf.all.src_valid_mark";

/// What `up` has begun to change that does not go with the interface.
#[derive(Debug, Default)]
pub(super) struct Begun {
    pre_up: bool,
    post_up: bool,
    dns: bool,
    /// The table and the families in which look-ups were made to end.
    blocks: Vec<(Family, u32)>,
    /// The value that [`SRC_VALID_MARK`] had.
    src_valid_mark: Option<String>,
}

/// The sysctl of an interface, of `all` or of `default`.
fn disable_ipv6(place: &str) -> Option<String> {
    netns::sysctl(&format!("net/ipv6/conf/{place}/disable_ipv6")).ok()
}

/// Whether the kernel has IPv6.
fn has_v6() -> bool {
    disable_ipv6("all").is_some()
}

pub(crate) fn up(args: &UpArgs) -> Result<()> {
    if args.dry_run {
        return dry_run::print(args);
    }
    require_rights()?;
    // When PID 1 of a container ends, so does all that it started.
    if args.join.is_none() && (args.foreground || std::process::id() == 1) {
        return foreground::up(args);
    }
    let (mut quick, netlink) = Quick::prepare(args)?;
    quick.prints_json = args.said.json;
    match &args.join {
        Some(with) => run::join(with, &quick.name)?,
        None => drop(run::start_in_background(&quick.process(args))?),
    }
    quick.bring_up_or_undo(&netlink)?;
    let name = &quick.name;
    let line = format!(
        "{name} is up: `adit show {name}` shows it, `adit down {}` takes it down",
        quick.called()
    );
    done::say(args.said, name, "up", &line)
}

impl Quick {
    /// Finds what can be found wrong before anything is started.
    pub(super) fn prepare(args: &UpArgs) -> Result<(Self, Netlink)> {
        let quick = Self::load(&args.file)?;
        let name = &quick.name;
        routing::table_number(&quick.config.interface.table)
            .context(|| quick.path.display().to_string())?;
        quick.check_stated_mtu()?;
        let netlink = open_netlink()?;
        if netlink.link(name).is_ok() {
            bail!(
                State,
                "`{name}` already exists: `adit down {}` takes it down if Adit runs it",
                quick.called()
            );
        }
        Ok((quick, netlink))
    }

    /// How to start the interface's process.
    pub(super) fn process(&self, args: &UpArgs) -> RunArgs {
        RunArgs {
            disable_offload: args.disable_offload.clone(),
            threads: args.threads.clone(),
            gateway: args.gateway.clone(),
            no_sandbox: args.no_sandbox,
            names: true,
            ..RunArgs::new(&self.name)
        }
    }

    pub(super) fn bring_up_or_undo(&self, netlink: &Netlink) -> Result<()> {
        let mut begun = Begun::default();
        self.bring_up(netlink, &mut begun).inspect_err(|_| {
            say!("adit: taking {} down again", self.name);
            self.undo(netlink, begun);
        })
    }

    fn bring_up(&self, netlink: &Netlink, begun: &mut Begun) -> Result<()> {
        let interface = &self.config.interface;
        let orphans = self.orphans(netlink);
        self.blocked.set(!orphans.is_empty());
        begun.pre_up = !interface.pre_up.is_empty();
        self.hooks(&interface.pre_up)?;
        let endpoints = self.endpoints()?;
        self.remember(&endpoints);
        self.name_peers(None);
        // Settings of the hooks stay, such as a key that is in no file.
        self.set(&DeviceChange {
            replace_peers: false,
            ..self.config.to_change(&endpoints)
        })?;
        // An agent that waits for the interface may have brought its peers, whose quotas go on.
        let others = self.others(None)?;
        self.allow_peers(&others)?;
        self.name_endpoints(&others);
        // A hook may have set more than the file.
        let status = self.status()?;
        let mark = self.mark(netlink, &status, &orphans, &mut begun.blocks)?;

        let about = || format!("cannot set up {}", self.name);
        let index = netlink.link(&self.name).context(about)?.index;
        self.add_addresses(netlink, index)?;
        let known: Vec<SocketAddr> = (status.peers.iter())
            .filter_map(|peer| peer.endpoint)
            .collect();
        let mtu = interface
            .mtu
            .map_or_else(|| routing::automatic_mtu(netlink, &known, mark), u32::from);
        let change = LinkChange {
            mtu: Some(mtu),
            up: Some(true),
            ..LinkChange::default()
        };
        self.check_mtu(mtu, allowed_ips(&status))?;
        // Before anything can come out of it. `undo` ends it in any case.
        self.set_forwarding()?;
        netlink.set_link(index, &change).context(about)?;
        self.warn(&status, mtu);
        self.check_interrupted()?;

        if interface.has_dns() {
            begun.dns = true;
            programs::set_dns(&self.name, &interface.dns, &interface.dns_search)?;
        }
        let full = self.add_routes(netlink, index, &status, mark, begun)?;
        begun.post_up = !interface.post_up.is_empty();
        self.hooks(&interface.post_up)?;
        self.blocked.set(false);
        if full {
            let allowed: Vec<Cidr> = allowed_ips(&status).collect();
            let others = Family::BOTH.map(|family| (family, routing::covers(&allowed, family)));
            for (family, _) in others.iter().filter(|(_, covers)| !covers) {
                routing::remove_default_of(netlink, *family, mark);
            }
        }
        // Its file may have had a default route when it was killed.
        if full || !orphans.is_empty() && routing::unset_firewall(&self.name) {
            self.remove_orphans(netlink, full.then_some(mark));
        }
        Ok(())
    }

    /// Leaves what [`Self::bring_up`] found. Hooks undo what hooks did.
    fn undo(&self, netlink: &Netlink, begun: Begun) {
        let InterfaceSection {
            pre_down,
            post_down,
            ..
        } = &self.config.interface;
        let mut failures = Vec::new();
        if begun.post_up {
            failures.extend(self.down_hooks(pre_down));
        }
        // What a killed run blocks stays blocked, its DNS servers included.
        if begun.dns && !self.blocked.get() {
            programs::unset_dns(&self.name);
        }
        let status = self.ask().ok();
        failures.extend(self.delete(netlink, status.is_some()).err());
        self.undo_routing(netlink, status.as_ref());
        if !self.blocked.get() {
            for (family, table) in begun.blocks {
                routing::remove_block(netlink, family, table);
            }
        }
        if begun.pre_up || begun.post_up {
            failures.extend(self.down_hooks(post_down));
        }
        if let Some(before) = begun.src_valid_mark
            // Another tunnel may have come to need it.
            && !routing::has_rules(netlink)
        {
            let restored = netns::set_sysctl(SRC_VALID_MARK, &before);
            failures.extend(restored.context(|| "cannot restore a setting".into()).err());
        }
        for failure in failures {
            say!("adit: {failure}");
        }
    }

    /// The part of [`Self::check_mtu`] that needs only the file.
    pub(super) fn check_stated_mtu(&self) -> Result<()> {
        let stated = self.config.interface.mtu.map(u32::from);
        stated.map_or(Ok(()), |mtu| self.check_mtu(mtu, self.blocks()))
    }

    /// Refuses routes that the kernel would refuse with less of a reason.
    pub(super) fn check_mtu(
        &self,
        mtu: u32,
        mut allowed: impl Iterator<Item = Cidr>,
    ) -> Result<()> {
        let v6 = allowed.find(|block| block.addr().is_ipv6());
        if let Some(block) = v6
            && mtu < MIN_V6_MTU
            && self.config.interface.table != Table::Off
        {
            bail!(
                Mistake,
                "cannot route {block} through {}: its MTU is {mtu}, and IPv6 needs {MIN_V6_MTU}. Set MTU = {MIN_V6_MTU} \
                 or more, or remove what is IPv6 from AllowedIPs",
                self.name
            );
        }
        Ok(())
    }

    /// Says what is missing where the interface comes up all the same.
    fn warn(&self, status: &DeviceStatus, mtu: u32) {
        let Self { name, .. } = self;
        let InterfaceSection {
            addresses,
            post_up,
            table,
            ..
        } = &self.config.interface;
        // A hook may set it.
        if status.private_key.is_none() && post_up.is_empty() {
            say!("Warning: {name} has no PrivateKey: no peer will answer it");
        }
        let v6 = addresses.iter().find(|address| address.ip.is_ipv6());
        if let (Some(address), true) = (v6, mtu < MIN_V6_MTU) {
            say!(
                "Warning: {name} has no IPv6, not even {address}: its MTU is {mtu}, and IPv6 needs {MIN_V6_MTU}"
            );
        }
        let allowed: Vec<Cidr> = allowed_ips(status).collect();
        if let Some(text) = routing::leaves_in_clear(&allowed, table) {
            say!("Warning: {name}: {text}");
        }
    }

    /// Gives the interface the addresses of the file, as far as the host allows it.
    fn add_addresses(&self, netlink: &Netlink, index: u32) -> Result<()> {
        let Self { name, .. } = self;
        let addresses = &self.config.interface.addresses;
        let without_v6 = self.without_v6();
        if let Some(why) = &without_v6 {
            let v6 = |ip: IpAddr| ip.is_ipv6();
            let lost = || addresses.iter().filter(|address| v6(address.ip));
            if let (Some(address), true) = (lost().next(), lost().count() == addresses.len()) {
                bail!(State, "cannot give {name} the address {address}: {why}");
            }
            let blocks = self.blocks().filter(|block| v6(block.addr()));
            let lost: Vec<String> = lost()
                .map(ToString::to_string)
                .chain(blocks.take(1).map(|it| format!("routes to {it}")))
                .collect();
            if !lost.is_empty() {
                say!(
                    "Warning: {name} goes without {}: {why}",
                    lost.join(" and without ")
                );
            }
        }
        for (n, address) in addresses.iter().enumerate() {
            if without_v6.is_some() && address.ip.is_ipv6() {
                continue;
            }
            match netlink.add_address(index, address.ip, address.prefix_len, false) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                    let mut before = addresses.iter().take(n);
                    // Otherwise a hook was faster.
                    if let Some(other) = before.find(|other| other.ip == address.ip) {
                        say!(
                            "Warning: {}: Address = {address} and Address = {other} are the same address, which {name} has \
                             once: remove one of them",
                            self.path.display()
                        );
                    }
                }
                result => result.context(|| format!("cannot set up {name}"))?,
            }
        }
        Ok(())
    }

    /// Why the interface has no IPv6, if it has none: which sysctl, and what to type.
    pub(super) fn without_v6(&self) -> Option<String> {
        if !has_v6() {
            return Some(
                "this kernel has no IPv6 (perhaps `ipv6.disable=1` is on its command line)".into(),
            );
        }
        // A short MTU takes all of IPv6 from it, the sysctl included.
        if disable_ipv6(&self.name)? == "0" {
            return None;
        }
        let is_on = |place: &&str| disable_ipv6(place).as_deref() != Some("0");
        let place = ["all", "default"].into_iter().find(is_on);
        let place = place.unwrap_or(&self.name);
        Some(format!(
            "IPv6 is disabled by the sysctl net.ipv6.conf.{place}.disable_ipv6 = 1; `sysctl -w \
             net.ipv6.conf.{place}.disable_ipv6=0` before `adit up` enables it"
        ))
    }

    /// Adds routes to the allowed IPs of all peers: those of the file, and those that a hook has
    /// added. True if one of them is a default route.
    fn add_routes(
        &self,
        netlink: &Netlink,
        index: u32,
        status: &DeviceStatus,
        mark: u32,
        begun: &mut Begun,
    ) -> Result<bool> {
        let interface = &self.config.interface;
        let addresses = routing::addresses(netlink, index, &interface.addresses)?;
        let allowed: Vec<Cidr> = allowed_ips(status).collect();
        let without_v6 = self.without_v6().is_some();
        let mut full = false;
        for planned in routing::plan(&addresses, &allowed, &interface.table)? {
            self.check_interrupted()?;
            match planned {
                Planned::Plain(block, _) if without_v6 && block.addr().is_ipv6() => {}
                Planned::Plain(block, table) => routing::add_route(netlink, index, block, table)?,
                Planned::Default(block) => {
                    begun.src_valid_mark = self
                        .add_default(netlink, index, block, mark)?
                        .or(begun.src_valid_mark.take());
                    full = true;
                }
            }
        }
        Ok(full)
    }

    /// The mark of what the tunnel sends and, if it is to have default routes, the number of their
    /// table, which is made to end look-ups, those in `made`. It is set before the interface comes up: what a killed
    /// run left blocks what has no mark.
    pub(super) fn mark(
        &self,
        netlink: &Netlink,
        status: &DeviceStatus,
        orphans: &BTreeSet<u32>,
        made: &mut Vec<(Family, u32)>,
    ) -> Result<u32> {
        let mut mark = status.fwmark;
        if self.config.interface.table != Table::Auto || !has_default(status) {
            return Ok(mark);
        }
        if mark == 0 {
            mark = routing::free_table(netlink, orphans)?;
            self.set(&DeviceChange {
                fwmark: Some(mark),
                ..DeviceChange::default()
            })?;
        }
        let allowed: Vec<Cidr> = allowed_ips(status).collect();
        for family in Family::BOTH {
            if routing::covers(&allowed, family) && routing::add_block(netlink, family, mark)? {
                made.push((family, mark));
            }
        }
        Ok(mark)
    }

    /// Routes everything of a family into the tunnel, and protects that. Returns what
    /// [`SRC_VALID_MARK`] was if it had to be set.
    pub(super) fn add_default(
        &self,
        netlink: &Netlink,
        index: u32,
        block: Cidr,
        mark: u32,
    ) -> Result<Option<String>> {
        if block.addr().is_ipv6() && !has_v6() {
            return Ok(None);
        }
        // Without IPv6 on the interface, what other interfaces would send ends in the table.
        let with_route = block.addr().is_ipv4() || self.without_v6().is_none();
        if with_route {
            routing::add_route(netlink, index, block, mark)?;
        }
        routing::add_default(netlink, Family::of(block.addr()), mark)?;
        let own: Vec<IpAddr> =
            routing::addresses(netlink, index, &self.config.interface.addresses)?
                .iter()
                .map(|address| address.ip)
                .collect();
        routing::set_firewall(&self.name, Family::of(block.addr()), mark, &own)?;
        if block.addr().is_ipv6() {
            return Ok(None);
        }
        // In a container, it may have been set from outside.
        let before = netns::sysctl(SRC_VALID_MARK).ok();
        if before.as_deref() == Some("1") {
            return Ok(None);
        }
        let set = netns::set_sysctl(SRC_VALID_MARK, "1");
        set.context(|| {
            format!(
                "cannot make reverse-path filtering respect marks (a container may need the option \
                 `--sysctl {SRC_VALID_MARK}=1`)"
            )
        })?;
        Ok(before)
    }
}
