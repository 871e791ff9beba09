//! New peers of a configuration file, and of the interface if it runs: `adit add`, and what `adit
//! new-peer` has in common with it.
//!
//! 1. lock the file, read it and find what can be found wrong;
//! 2. change its text, and check the result as `adit up` would;
//! 3. replace the file;
//! 4. change the running interface in the same way: keys, peers and names over its control socket.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use adit_ctl::config::{self, Config, HostPort, InterfaceAddress, PeerSection, Term};
use adit_ctl::keys;
use adit_ctl::uapi::{ClientError, UapiClient};
use adit_proto::Allowance;
use adit_proto::config::{
    AllowedIpChange, Cidr, DeviceChange, DeviceStatus, PeerChange, PublicKey,
};
use serde::Serialize;
use zeroize::Zeroizing;

use super::file::{Lock, read, replace};
use super::list::{SCHEMA, print_json};
use super::roster::quoted;
use super::routing::{self, Planned};
use super::{Quick, addresses, allowed_ips, open_netlink, require_rights};
use crate::agent;
use crate::cli::{AddArgs, ConfArgs, FileArgs};
use crate::failure::{Failure, Result, bail, say};

pub(crate) fn add(args: &AddArgs) -> Result<()> {
    if agent::add_record(args)? {
        return Ok(());
    }
    require_rights()?;
    let (_lock, mut quick) = open(&args.conf)?;
    let allowed = match args.allowed_ips.is_empty() {
        false => args.allowed_ips.clone(),
        true => {
            let addresses = new_addresses(&quick)?;
            addresses
                .iter()
                .filter_map(|address| host(address.ip))
                .collect()
        }
    };
    let change = PeerChange {
        persistent_keepalive: args.persistent_keepalive,
        replace_allowed_ips: true,
        allowed_ips: allowed.iter().copied().map(AllowedIpChange::Add).collect(),
        ..PeerChange::new(args.peer)
    };
    let everything = Allowance::default();
    quick.add_peer(
        &change,
        args.endpoint.as_ref(),
        (args.name.as_deref(), &everything),
    )?;
    let key = args.peer.to_string();
    let (name, word) = (&quick.name, args.name.as_deref().unwrap_or(&key));
    if args.said.json {
        return print_json(&Added {
            schema: SCHEMA,
            interface: name,
            done: "added",
            public_key: &key,
            name: args.name.as_deref(),
            allowed_ips: allowed.iter().map(ToString::to_string).collect(),
        });
    }
    if !args.said.quiet {
        let next = match quick.ask().is_ok() {
            true => format!(
                "`adit why {name} {}` says whether it connects",
                quoted(word)
            ),
            false => format!("`adit up {}` starts {name}", quick.called()),
        };
        say!(
            "adit: {name}: added {word}, with the allowed IPs {}: {next}",
            join(&allowed, ", ")
        );
    }
    Ok(())
}

/// What `adit add` did, as JSON.
#[derive(Serialize)]
struct Added<'a> {
    schema: u32,
    interface: &'a str,
    done: &'a str,
    public_key: &'a str,
    name: Option<&'a str>,
    allowed_ips: Vec<String>,
}

/// The file, without mistakes, and what keeps others from changing it.
pub(super) fn open(conf: &ConfArgs) -> Result<(Option<Lock>, Quick)> {
    let lock = Quick::lock(conf)?;
    let quick = Quick::load(&FileArgs {
        conf: conf.clone(),
        keys: None,
    })?;
    Ok((lock, quick))
}

pub(super) fn join<T: ToString>(items: &[T], between: &str) -> String {
    let items: Vec<String> = items.iter().map(T::to_string).collect();
    items.join(between)
}

pub(super) fn host(ip: IpAddr) -> Option<Cidr> {
    Cidr::new(ip, if ip.is_ipv4() { 32 } else { 128 })
}

/// A free address of each of the interface's networks: free in the file, and in the interface,
/// which may have peers that are in no file.
pub(super) fn new_addresses(quick: &Quick) -> Result<Vec<InterfaceAddress>> {
    let mut taken: Vec<Cidr> = quick.blocks().collect();
    // They come back one day.
    let disabled = quick.config.disabled.iter();
    taken.extend(
        disabled.flat_map(|peer| peer.allowed_ips.iter().filter_map(AllowedIpChange::added)),
    );
    if let Some(status) = quick.running()? {
        taken.extend(allowed_ips(&status));
    }
    let own = &quick.config.interface.addresses;
    let found: Vec<InterfaceAddress> = (own.iter())
        .filter_map(|own| {
            let ip = addresses::free(*own, &taken)?;
            Some(InterfaceAddress { ip, ..*own })
        })
        .collect();
    if found.is_empty() {
        bail!(
            State,
            "no network of {name} has a free address: its Address is {}; `adit edit {called}` gives it a larger network, \
             `adit remove {called} PEER` frees addresses",
            if own.is_empty() {
                "missing".into()
            } else {
                join(own, ", ")
            },
            name = quick.name,
            called = quick.called()
        );
    }
    Ok(found)
}

impl Quick {
    /// A key of the file, unless it may be a secret in the wrong place.
    fn shown(&self, key: &PublicKey) -> String {
        match self.config.can_show(key) {
            true => key.to_string(),
            false => "whose PublicKey is no public key".into(),
        }
    }

    /// The interface as it runs, if Adit runs it.
    pub(super) fn running(&self) -> Result<Option<DeviceStatus>> {
        match self.ask() {
            Ok(status) => Ok(Some(status)),
            Err(error) if error.is_unserved() => Ok(None),
            Err(error) => Err(self.explain(error)),
        }
    }

    /// Refuses what another peer has, in the file or in the interface.
    fn check_free(&self, change: &PeerChange, name: Option<&str>) -> Result<()> {
        let file = self.path.display();
        let same = |peer: &PeerSection| peer.public_key == change.public_key;
        if self.config.peers.iter().any(same) {
            bail!(
                Mistake,
                "{file} has this peer already: `adit remove {} {}` removes it",
                self.called(),
                change.public_key
            );
        }
        if self.config.disabled.iter().any(same) {
            bail!(
                Mistake,
                "{file} has this peer already, disabled: `adit peer enable {} {}` brings it back",
                self.called(),
                change.public_key
            );
        }
        let mut peers = self.config.peers.iter().chain(&self.config.disabled);
        let other = peers.find(|peer| name.is_some() && peer.name.as_deref() == name);
        if let (Some(peer), Some(name)) = (other, name) {
            bail!(
                Mistake,
                "{file} has a peer with the name {name}, {}: give the new one another",
                self.shown(&peer.public_key)
            );
        }
        self.check_blocks(
            change.public_key,
            change.allowed_ips.iter().filter_map(AllowedIpChange::added),
        )
    }

    /// Refuses blocks that another peer has, in the file or in the interface. Those of a disabled one
    /// are taken as well.
    pub(super) fn check_blocks(
        &self,
        key: PublicKey,
        blocks: impl Iterator<Item = Cidr>,
    ) -> Result<()> {
        let mut owners: HashMap<Cidr, PublicKey> = HashMap::new();
        let peers = || self.config.disabled.iter().chain(&self.config.peers);
        for peer in peers().filter(|peer| peer.public_key != key) {
            owners.extend(
                peer.allowed_ips
                    .iter()
                    .filter_map(AllowedIpChange::added)
                    .map(|block| (block, peer.public_key)),
            );
        }
        let running = self.running()?;
        let running = running.iter().flat_map(|status| &status.peers);
        for peer in running.filter(|peer| peer.public_key != key) {
            let blocks = peer.allowed_ips.iter();
            owners.extend(blocks.map(|block| (*block, peer.public_key)));
        }
        for block in blocks {
            if let Some(owner) = owners.get(&block) {
                let called = (peers().find(|peer| peer.public_key == *owner))
                    .and_then(|peer| peer.name.as_ref())
                    .map_or(String::new(), |name| format!(" ({name})"));
                bail!(
                    Mistake,
                    "{block} is among the allowed IPs of the peer {}{called}, which would lose it: choose another, or \
                     remove that peer first",
                    self.shown(owner)
                );
            }
        }
        Ok(())
    }

    /// Adds a peer to the file and to the running interface.
    pub(super) fn add_peer(
        &mut self,
        change: &PeerChange,
        endpoint: Option<&HostPort>,
        (name, allowance): (Option<&str>, &Allowance),
    ) -> Result<()> {
        self.check_free(change, name)?;
        let old = read(&self.path)?;
        let section = section(change, endpoint, (name, allowance));
        let new = config::with_section(&old, &section);
        let parsed = Config::parse(&new, &self.path.display().to_string());
        let read_back = parsed
            .as_ref()
            .ok()
            .and_then(|it| it.names().get(&change.public_key).copied());
        if let (Some(name), Ok(_)) = (name, &parsed)
            && read_back != Some(name)
        {
            bail!(
                Mistake,
                "{name:?} cannot be a name: it would be read as {}",
                read_back.map_or("none".into(), |other| format!("{other:?}"))
            );
        }
        let change = PeerChange {
            endpoint: endpoint.and_then(HostPort::numeric),
            ..change.clone()
        };
        self.change(&old, &new, std::slice::from_ref(&change))?;
        if let Some(endpoint) = endpoint {
            self.have_looked_up(change.public_key, endpoint);
        }
        Ok(())
    }

    /// Has the interface's process look an endpoint up that is a name, if there is one and it is
    /// Adit's.
    pub(super) fn have_looked_up(&self, peer: PublicKey, endpoint: &HostPort) {
        if endpoint.numeric().is_some() {
            return;
        }
        let named = std::iter::once((peer, endpoint));
        let client = UapiClient::connect(&self.name).map_err(ClientError::Io);
        match client.and_then(|mut client| client.name_endpoints(named, false)) {
            Err(error) if !error.is_unserved() => say!(
                "adit: `adit sync {}` looks up the name of the endpoint",
                self.called()
            ),
            _ => {}
        }
    }

    /// Changes the file, which has the `old` text, and peers of the interface, if it is up: both, or
    /// neither. Then its routes follow, and its process learns what the file calls the peers.
    pub(super) fn change(&mut self, old: &str, new: &str, peers: &[PeerChange]) -> Result<()> {
        let running = self.running()?;
        let runs = running.is_some();
        let mut planned = Vec::new();
        for peer in peers.iter().filter(|_| runs) {
            let blocks: Vec<Cidr> = peer
                .allowed_ips
                .iter()
                .filter_map(AllowedIpChange::added)
                .collect();
            let interface = &self.config.interface;
            let plan = routing::plan(&interface.addresses, &blocks, &interface.table)?;
            planned.extend(plan.into_iter().map(|route| (route, peer.remove)));
        }
        self.replace_file(old, new)?;
        if !runs {
            self.say_other();
            return Ok(());
        }
        if !peers.is_empty() {
            self.name_peers(None);
            let set = self.set(&DeviceChange {
                peers: peers.to_vec(),
                ..DeviceChange::default()
            });
            if let Err(failure) = set {
                super::write(&self.path, old)?;
                bail!(
                    State,
                    "{failure}; the file is as it was: nothing is changed"
                );
            }
        }
        let others = self.others(running.as_ref())?;
        self.name_peers(Some(&others));
        self.allow_peers(&others)?;
        self.change_routes(planned)
    }

    /// Says that another program runs the interface, if one does.
    fn say_other(&self) {
        let is_up = open_netlink().is_ok_and(|netlink| netlink.link(&self.name).is_ok());
        if is_up {
            say!(
                "adit: the file is changed, and {name} is not, as another program runs it: `wg syncconf {name} \
                 <(adit strip {})` applies the file",
                self.path.display(),
                name = self.name
            );
        }
    }

    fn change_routes(&self, planned: Vec<(Planned, bool)>) -> Result<()> {
        if planned.is_empty() {
            return Ok(());
        }
        let netlink = open_netlink()?;
        let Ok(link) = netlink.link(&self.name) else {
            return Ok(());
        };
        for planned in planned {
            match planned {
                (Planned::Plain(block, table), true) => {
                    routing::delete_route(&netlink, link.index, block, table)?;
                }
                (Planned::Plain(block, table), false) => {
                    routing::add_route(&netlink, link.index, block, table)?;
                }
                (Planned::Default(_), _) => {
                    say!(
                        "adit: `adit sync {}` brings its default route up to date",
                        self.called()
                    );
                }
            }
        }
        Ok(())
    }

    /// Replaces the file, if it still has the `old` text, and if `adit up` understands the new one.
    fn replace_file(&mut self, old: &str, new: &str) -> Result<()> {
        let parsed = Config::parse(new, &self.path.display().to_string());
        let parsed = parsed.map_err(|errors| Failure::Mistake(errors.to_string()))?;
        let known = &self.config.warnings;
        for warning in parsed.warnings.iter().filter(|it| !known.contains(it)) {
            say!("Warning: {warning}");
        }
        replace(&self.path, old, new)?;
        self.config.peers = parsed.peers;
        self.config.disabled = parsed.disabled;
        Ok(())
    }
}

/// A `[PeerSection]` section. Its name is where prometheus_wireguard_exporter and earlier versions of Adit
/// look for it: below `[PeerSection]`.
fn section(
    change: &PeerChange,
    endpoint: Option<&HostPort>,
    (name, allowance): (Option<&str>, &Allowance),
) -> Zeroizing<String> {
    let mut out = Zeroizing::new(String::with_capacity(1024 + 64 * change.allowed_ips.len()));
    out.push_str("[Peer]\n");
    if let Some(name) = name {
        _ = writeln!(out, "# friendly_name = {name}");
    }
    for term in Term::ALL {
        if let Some(value) = term.value(allowance) {
            _ = writeln!(out, "# {} = {value}", term.key());
        }
    }
    _ = writeln!(
        out,
        "PublicKey = {}",
        *keys::to_base64(&change.public_key.0)
    );
    if let Some(key) = &change.preshared_key {
        _ = writeln!(out, "PresharedKey = {}", *keys::to_base64(key.bytes()));
    }
    let blocks: Vec<Cidr> = change
        .allowed_ips
        .iter()
        .filter_map(AllowedIpChange::added)
        .collect();
    _ = writeln!(out, "AllowedIPs = {}", join(&blocks, ", "));
    if let Some(endpoint) = endpoint {
        _ = writeln!(out, "Endpoint = {endpoint}");
    }
    if let Some(seconds) = change.persistent_keepalive {
        _ = writeln!(out, "PersistentKeepalive = {seconds}");
    }
    out
}
