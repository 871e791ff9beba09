//! `adit up`, `down`, `save`, `strip` and `sync`: wg-quick's files and behaviour, without wg-quick.
//!
//! `up`, in wg-quick's order, each step undone when a later one fails:
//! 1. start the interface's process;
//! 2. PreUp hooks;
//! 3. keys, peers and endpoints, names looked up with patience, as one transaction; a mark if it
//!    takes the default route;
//! 4. addresses, MTU, up;
//! 5. DNS;
//! 6. routes to the allowed IPs that are in force, policy routing and firewall for default routes;
//! 7. PostUp hooks.

mod addresses;
mod dry_run;
mod edit;
mod endpoint;
mod foreground;
mod keys;
mod peers;
mod programs;
mod routing;
mod sync;
mod watchdog;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use adit_ctl::config::{self, Config, Interface, Table};
use adit_ctl::status;
use adit_ctl::uapi::{self, Client, ClientError};
use adit_netlink::netns;
use adit_netlink::{Family, LinkChange, Netlink};
use adit_proto::ConfigError;
use adit_proto::config::{AllowedIpChange, Cidr, DeviceChange, DeviceStatus};
use adit_proto::limits::MAX_PEERS;
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::cli::{self, ConfArgs, FileArgs, RunArgs, UpArgs};
use crate::failure::{Context, Failure, Result, bail, say};
use crate::run;
pub(crate) use edit::edit;
use endpoint::Retries;
pub(crate) use peers::{add, new_peer, remove};
use routing::Planned;

/// The kernel has no IPv6 on an interface with less.
const MIN_V6_MTU: u32 = 1280;
/// How long `down` waits for the process to be gone; for one that did not answer, it has waited
/// already.
const PATIENCE: Duration = Duration::from_secs(10);
const PATIENCE_WITH_SILENCE: Duration = Duration::from_secs(1);

/// A configuration file and the interface that it is for.
struct Quick {
    name: String,
    path: PathBuf,
    config: Config,
    /// Secrets of the configuration that are not in that file.
    kept: keys::Kept,
    /// Set by SIGINT, SIGTERM and SIGHUP.
    interrupted: Arc<AtomicBool>,
    /// A killed run left everything blocked that would go through its tunnel: this one must not
    /// unblock it by failing.
    blocked: Cell<bool>,
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
    let (quick, netlink) = Quick::prepare(args)?;
    match &args.join {
        Some(with) => run::join(with, &quick.name)?,
        None => drop(run::start_in_background(&quick.process(args))?),
    }
    quick.bring_up_or_undo(&netlink)
}

pub(crate) fn down(args: &FileArgs) -> Result<()> {
    require_rights()?;
    let quick = Quick::load_with_mistakes(args)?;
    let interface = &quick.config.interface;
    let netlink = open_netlink()?;
    let status = match quick.ask() {
        Ok(status) => Some(status),
        Err(error) if error.is_silence() => {
            say!("adit: {}; going on without", quick.explain(error));
            None
        }
        Err(error) => {
            let unserved = is_unserved(&error);
            let failure = quick.explain(error);
            if !unserved {
                return Err(failure);
            }
            if netlink.link(&quick.name).is_ok() {
                // The interface may be the kernel's, set up by wg-quick.
                bail!(
                    State,
                    "{failure}, so the interface is not one that this takes down"
                );
            }
            // Its process may have died: its routing, firewall and DNS settings are removed now.
            quick.undo_surroundings(&netlink, None);
            quick.remove_dead_files();
            bail!(
                State,
                "{failure}; if a process was killed, what it left (routing rules, what they blocked, firewall, DNS) is removed now, but no hook was run"
            );
        }
    };
    quick.hooks(&interface.pre_down)?;
    if interface.save_config {
        match status {
            // The hooks may have changed it.
            Some(_) => quick.save(&netlink, &quick.status()?)?,
            None => say!("adit: the configuration is not saved"),
        }
    }
    quick.take_down(&netlink, status.as_ref())?;
    quick.hooks(&interface.post_down)
}

pub(crate) fn save(args: &FileArgs) -> Result<()> {
    require_rights()?;
    let quick = Quick::load_with_mistakes(args)?;
    quick.save(&open_netlink()?, &quick.status()?)
}

/// Applies a changed file to a running interface; peers that stay as they are notice nothing.
pub(crate) fn sync(args: &FileArgs) -> Result<()> {
    require_rights()?;
    Quick::load(args)?.sync(&open_netlink()?)
}

pub(crate) fn strip(args: &ConfArgs) -> Result<()> {
    let (path, _) = config::locate(&args.conf).map_err(Failure::Mistake)?;
    // Once: it may be a pipe.
    let text = read(&path)?;
    Config::parse(&text, &path.display().to_string())
        .map_err(|errors| Failure::Mistake(errors.to_string()))?;
    cli::print(config::strip(&text).as_bytes())
}

/// The kernel asks for CAP_NET_ADMIN. Where it is missing, the command starts again with sudo, as
/// wg-quick does.
fn require_rights() -> Result<()> {
    let own = capabilities(None).context(|| "cannot tell this process's rights".into())?;
    if own.effective.contains(CapabilitySet::NET_ADMIN) {
        return Ok(());
    }
    if rustix::process::geteuid().is_root() {
        bail!(
            State,
            "root has no CAP_NET_ADMIN here: in a container, give it that (`--cap-add NET_ADMIN`) and the device \
             (`--device /dev/net/tun`)"
        );
    }
    let failed =
        || "must be root, or have CAP_NET_ADMIN, to do this, and cannot run sudo".to_owned();
    let prompt = "adit must be run as root. Please enter the password for %u to continue: ";
    let this = std::env::current_exe().context(failed)?;
    let error = Command::new("sudo")
        .args(["-p", prompt, "--"])
        .arg(this)
        .args(std::env::args_os().skip(1))
        .exec();
    Err(error).context(failed)
}

fn open_netlink() -> Result<Netlink> {
    Netlink::open().context(|| "cannot talk to the kernel over netlink".into())
}

fn read(path: &Path) -> Result<zeroize::Zeroizing<String>> {
    let (text, _) = config::read(path).context(|| format!("cannot read {}", path.display()))?;
    Ok(text)
}

/// Whether no process serves the interface.
pub(crate) fn is_unserved(error: &ClientError) -> bool {
    matches!(error, ClientError::Io(e)
        if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused))
}

fn allowed_ips(status: &DeviceStatus) -> impl Iterator<Item = Cidr> + '_ {
    let peers = status.peers.iter();
    peers.flat_map(|peer| peer.allowed_ips.iter().copied())
}

fn has_default(status: &DeviceStatus) -> bool {
    allowed_ips(status).any(|block| block.prefix_len() == 0)
}

impl Quick {
    /// Finds what can be found wrong before anything is started.
    fn prepare(args: &UpArgs) -> Result<(Self, Netlink)> {
        let quick = Self::load(&args.file)?;
        let name = &quick.name;
        routing::table_number(&quick.config.interface.table)
            .context(|| quick.path.display().to_string())?;
        quick.check_stated_mtu()?;
        let netlink = open_netlink()?;
        if netlink.link(name).is_ok() {
            let conf = &args.file.conf.conf;
            bail!(
                State,
                "`{name}` already exists: `adit down {conf}` takes it down if Adit runs it"
            );
        }
        Ok((quick, netlink))
    }

    /// How to start the interface's process.
    fn process(&self, args: &UpArgs) -> RunArgs {
        RunArgs {
            disable_offload: args.disable_offload.clone(),
            threads: args.threads.clone(),
            no_sandbox: args.no_sandbox,
            ..RunArgs::new(&self.name)
        }
    }

    fn load(args: &FileArgs) -> Result<Self> {
        let (quick, mistakes) = Self::parse(args)?;
        for warning in &quick.config.warnings {
            say!("Warning: {warning}");
        }
        match mistakes.0.is_empty() {
            true => Ok(quick),
            false => Err(Failure::Mistake(mistakes.to_string())),
        }
    }

    /// The file may have been edited since. `up` has already printed the warnings.
    fn load_with_mistakes(args: &FileArgs) -> Result<Self> {
        let (quick, mistakes) = Self::parse(args)?;
        for mistake in mistakes.0 {
            say!("Warning: {mistake}");
        }
        Ok(quick)
    }

    fn parse(args: &FileArgs) -> Result<(Self, config::Errors)> {
        let (path, name) = config::locate(&args.conf.conf).map_err(Failure::Mistake)?;
        if path.try_exists().is_ok_and(|exists| !exists) {
            return Err(Failure::Mistake(format!(
                "there is no file {}: write one, or name another, with a slash in its path (./{name}.conf)",
                path.display()
            )));
        }
        let (mut config, mut mistakes) =
            Config::salvage(&path).map_err(|errors| Failure::Mistake(errors.to_string()))?;
        let (kept, wrong) = keys::add(&mut config, args.keys.as_deref(), &name);
        mistakes.0.extend(wrong);
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, interrupted.clone())
                .context(|| "cannot catch signals".into())?;
        }
        let quick = Self {
            name,
            path,
            config,
            kept,
            interrupted,
            blocked: Cell::new(false),
        };
        Ok((quick, mistakes))
    }

    /// Where the interface's process listens.
    fn socket(&self) -> PathBuf {
        Path::new(uapi::DIR).join(format!("{}.sock", self.name))
    }

    fn check_interrupted(&self) -> Result<()> {
        if self.interrupted.load(Relaxed) {
            return Err(Failure::Interrupted);
        }
        Ok(())
    }

    fn bring_up_or_undo(&self, netlink: &Netlink) -> Result<()> {
        self.bring_up(netlink).inspect_err(|_| {
            say!("adit: taking {} down again", self.name);
            self.take_down(netlink, self.ask().ok().as_ref())
                .unwrap_or_else(|failure| say!("adit: {failure}"));
        })
    }

    fn bring_up(&self, netlink: &Netlink) -> Result<()> {
        let interface = &self.config.interface;
        let orphans = self.orphans(netlink);
        self.blocked.set(self.may_be_full() && !orphans.is_empty());
        self.hooks(&interface.pre_up)?;
        let endpoints = self.endpoints()?;
        self.remember(&endpoints);
        // Settings of the hooks stay, such as a key that is in no file.
        self.set(&DeviceChange {
            replace_peers: false,
            ..self.config.to_change(&endpoints)
        })?;
        self.name_peers(false);
        self.name_endpoints();
        // A hook may have set more than the file.
        let status = self.status()?;
        let mark = self.mark(netlink, &status, &orphans)?;

        let about = || format!("cannot set up {}", self.name);
        let index = netlink.link(&self.name).context(about)?.index;
        for address in &interface.addresses {
            netlink
                .add_address(index, address.ip, address.prefix_len, false)
                .context(about)?;
        }
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
        netlink.set_link(index, &change).context(about)?;
        self.warn(&status, mtu);
        self.check_interrupted()?;

        if !interface.dns.is_empty() {
            programs::set_dns(&self.name, &interface.dns, &interface.dns_search)?;
        }
        self.add_routes(netlink, index, &status, mark, &orphans)?;
        self.hooks(&interface.post_up)?;
        self.blocked.set(false);
        Ok(())
    }

    /// Tells the process the names that comments of the file give peers; `always` also if there are
    /// none. Nothing depends on them, and other implementations have no names.
    fn name_peers(&self, always: bool) {
        let peers = self.config.peers.iter();
        let names = || {
            peers
                .clone()
                .filter_map(|peer| Some((peer.public_key, peer.name.as_deref()?)))
        };
        if always || names().next().is_some() {
            let client = Client::connect(&self.name);
            _ = client.map(|mut client| client.name_peers(names()));
        }
    }

    /// Tells the process which endpoints are names, which it looks up again when they are needed.
    /// Other implementations do not.
    fn name_endpoints(&self) {
        let named = || {
            (self.config.peers.iter())
                .filter_map(|peer| Some((peer.public_key, peer.endpoint.as_ref()?)))
                .filter(|(_, endpoint)| endpoint.numeric().is_none())
        };
        let client = Client::connect(&self.name);
        _ = client.map(|mut client| client.name_endpoints(named(), true));
    }

    /// The part of [`Self::check_mtu`] that needs only the file.
    fn check_stated_mtu(&self) -> Result<()> {
        let stated = self.config.interface.mtu.map(u32::from);
        stated.map_or(Ok(()), |mtu| self.check_mtu(mtu, self.blocks()))
    }

    /// Refuses routes that the kernel would refuse with less of a reason.
    fn check_mtu(&self, mtu: u32, mut allowed: impl Iterator<Item = Cidr>) -> Result<()> {
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
        let Interface {
            addresses, post_up, ..
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
    }

    fn hooks(&self, hooks: &[String]) -> Result<()> {
        programs::run_hooks(hooks, &self.name, &self.path)?;
        self.check_interrupted()
    }

    /// The address of each peer's endpoint.
    fn endpoints(&self) -> Result<Vec<Option<SocketAddr>>> {
        let retries = Retries::from_env()?;
        let interrupted = || self.interrupted.load(Relaxed);
        let before = match self.blocked.get() {
            true => fs::read_to_string(self.memory()).unwrap_or_default(),
            false => String::new(),
        };
        let resolve = |endpoint: &config::Endpoint| {
            if let Some(address) = endpoint.numeric() {
                return Ok(address);
            }
            let name = endpoint.to_string();
            let Some(address) = endpoint::remembered(&before, &name) else {
                if self.blocked.get() {
                    say!(
                        "adit: what a killed process left may block the look-up of `{name}`; `adit down {}` ends that",
                        self.name
                    );
                }
                return endpoint::resolve(&name, retries, interrupted);
            };
            endpoint::resolve(&name, Retries::Times(0), interrupted).or_else(|failure| {
                say!("adit: {failure}; going on with {address}, where it was before");
                Ok(address)
            })
        };
        self.config
            .peers
            .iter()
            .map(|peer| peer.endpoint.as_ref().map(resolve).transpose())
            .collect()
    }

    /// Where the addresses are kept that names had when the tunnel came up, in case that its
    /// process is killed: what that leaves may block look-ups, and the resolver may be set to ask
    /// through the tunnel.
    fn memory(&self) -> PathBuf {
        self.socket().with_extension("endpoints")
    }

    fn remember(&self, endpoints: &[Option<SocketAddr>]) {
        let named = self
            .config
            .peers
            .iter()
            .zip(endpoints)
            .filter_map(|(peer, address)| {
                let name = peer.endpoint.as_ref()?;
                (name.numeric().is_none()).then_some((name, (*address)?))
            });
        let lines: String = named
            .map(|(name, address)| format!("{name} {address}\n"))
            .collect();
        if !lines.is_empty() && self.may_be_full() {
            let mut options = fs::OpenOptions::new();
            let file = options.write(true).create(true).truncate(true).mode(0o600);
            // The tunnel works without it.
            let _ =
                (file.open(self.memory())).and_then(|mut file| file.write_all(lines.as_bytes()));
        }
    }

    fn set(&self, change: &DeviceChange) -> Result<()> {
        let refused = |error: ClientError| {
            let errno = match error {
                ClientError::Refused(errno) => Some(Errno::from_raw_os_error(errno)),
                _ => None,
            };
            let why = match (errno, change.listen_port) {
                (Some(Errno::ADDRINUSE), Some(port)) => Some(format!("UDP port {port} is in use")),
                (Some(Errno::ACCESS), Some(port)) => Some(format!(
                    "UDP port {port} is refused to this process: below 1024 it needs CAP_NET_BIND_SERVICE"
                )),
                (Some(Errno::INVAL), _) if change.peers.len() > MAX_PEERS => {
                    Some(ConfigError::TooManyPeers.to_string())
                }
                _ => None,
            };
            let why = why.unwrap_or_else(|| error.to_string());
            Failure::Operation {
                name: format!("cannot configure {}", self.name),
                error: why.into(),
            }
        };
        let client = Client::connect(&self.name).map_err(ClientError::Io);
        client
            .and_then(|mut client| client.set(change))
            .map_err(refused)
    }

    fn ask(&self) -> std::result::Result<DeviceStatus, ClientError> {
        Client::connect(&self.name)?.get()
    }

    fn status(&self) -> Result<DeviceStatus> {
        self.ask().map_err(|error| self.explain(error))
    }

    /// Why there is no status.
    fn explain(&self, error: ClientError) -> Failure {
        let Self { name, .. } = self;
        Failure::State(match is_unserved(&error) {
            true => format!(
                "`{name}` is not up: no process serves {}/{name}.sock",
                uapi::DIR
            ),
            false => format!("cannot ask {name}: {error}"),
        })
    }

    /// Adds routes to the allowed IPs of all peers: those of the file, and those that a hook has
    /// added. Routes that killed runs left are removed once the new ones are in place.
    fn add_routes(
        &self,
        netlink: &Netlink,
        index: u32,
        status: &DeviceStatus,
        mark: u32,
        orphans: &BTreeSet<u32>,
    ) -> Result<()> {
        let interface = &self.config.interface;
        let addresses = routing::addresses(netlink, index, &interface.addresses)?;
        let allowed: Vec<Cidr> = allowed_ips(status).collect();
        let mut full = false;
        for planned in routing::plan(&addresses, &allowed, &interface.table)? {
            self.check_interrupted()?;
            match planned {
                Planned::Plain(block, table) => routing::add_route(netlink, index, block, table)?,
                Planned::Default(block) => {
                    self.add_default(netlink, index, block, mark)?;
                    full = true;
                }
            }
        }
        if full {
            // Of the family that has no default route now.
            routing::remove_default(netlink, mark);
        }
        // Its file may have had a default route when it was killed.
        if full || !orphans.is_empty() && routing::unset_firewall(&self.name) {
            self.remove_orphans(netlink);
        }
        Ok(())
    }

    /// The tables of tunnels whose process was killed.
    fn orphans(&self, netlink: &Netlink) -> BTreeSet<u32> {
        // There may be a million routes to look through.
        if !self.may_be_full() && !routing::has_rules(netlink) {
            return BTreeSet::new();
        }
        let mut tables = routing::orphans(netlink, self.config.interface.fwmark);
        if !tables.is_empty() {
            let others = uapi::interfaces(Path::new(uapi::DIR));
            for other in others.iter().filter(|other| **other != self.name) {
                // Its routes may have gone with `ip link set down`, or are about to come.
                let status = Client::connect(other).ok().map(|mut client| client.get());
                tables.retain(|table| !matches!(&status, Some(Ok(s)) if s.fwmark == *table));
            }
        }
        tables
    }

    /// The allowed IPs of the file.
    fn blocks(&self) -> impl Iterator<Item = Cidr> + '_ {
        let changes = self.config.peers.iter().flat_map(|peer| &peer.allowed_ips);
        changes.filter_map(|change| match change {
            AllowedIpChange::Add(block) => Some(*block),
            AllowedIpChange::Remove(_) => None,
        })
    }

    /// Whether it takes a default route, by the file or perhaps by a hook.
    fn may_be_full(&self) -> bool {
        let full = self.blocks().any(|block| block.prefix_len() == 0);
        full || !self.config.interface.pre_up.is_empty()
    }

    fn remove_orphans(&self, netlink: &Netlink) {
        let orphans = self.orphans(netlink);
        (orphans.iter()).for_each(|table| routing::remove_default(netlink, *table));
    }

    /// The mark of what the tunnel sends and, if it is to have default routes, the number of their
    /// table, which is made to end look-ups. It is set before the interface comes up: what a killed
    /// run left blocks what has no mark.
    fn mark(
        &self,
        netlink: &Netlink,
        status: &DeviceStatus,
        orphans: &BTreeSet<u32>,
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
        for block in allowed_ips(status).filter(|block| block.prefix_len() == 0) {
            routing::add_block(netlink, Family::of(block.addr()), mark)?;
        }
        Ok(mark)
    }

    fn add_default(&self, netlink: &Netlink, index: u32, block: Cidr, mark: u32) -> Result<()> {
        routing::add_default(netlink, index, block, mark)?;
        if block.addr().is_ipv4() {
            // Reverse-path filters must look up the answers to marked packets with the mark. In a
            // container, it may have been set from outside.
            let name = "net.ipv4.conf.all.src_valid_mark";
            if netns::sysctl(name).ok().as_deref() != Some("1") {
                let sysctl = netns::set_sysctl(name, "1");
                sysctl.context(|| {
                    format!(
                        "cannot make reverse-path filtering respect marks (a container may need the option \
                         `--sysctl {name}=1`)"
                    )
                })?;
            }
        }
        let own: Vec<IpAddr> =
            routing::addresses(netlink, index, &self.config.interface.addresses)?
                .iter()
                .map(|address| address.ip)
                .collect();
        routing::set_firewall(&self.name, Family::of(block.addr()), mark, &own)
    }

    /// Removes the interface and all that `up` put around it, and waits until its process has
    /// ended. Without a `status`, it is one that does not answer.
    fn take_down(&self, netlink: &Netlink, status: Option<&DeviceStatus>) -> Result<()> {
        let patience = match status {
            Some(_) => PATIENCE,
            None => PATIENCE_WITH_SILENCE,
        };
        let socket = self.socket();
        let bound = adit_ctl::identity(&socket).ok();
        let connection = adit_ctl::connect(&socket, patience);
        let deleted = match netlink.link(&self.name) {
            Ok(link) => netlink.delete_link(link.index),
            // It was moved to another namespace, perhaps. Its process also ends when it loses its
            // socket.
            Err(_) => {
                let _ = fs::remove_file(&socket);
                Ok(())
            }
        };
        if deleted.is_ok() {
            self.wait_for_end(bound, connection, Instant::now() + patience);
        }
        // An interface that was renamed or moved goes with its process only, and its routes with
        // it.
        self.undo_surroundings(netlink, status);
        deleted.context(|| format!("cannot delete {}", self.name))
    }

    /// Waits until the process that bound the socket has ended.
    fn wait_for_end(
        &self,
        bound: Option<(u64, u64)>,
        connection: std::io::Result<UnixStream>,
        deadline: Instant,
    ) {
        let socket = self.socket();
        // 1. the process closes its connections when it has let go of the interface, 2. then it
        //    removes its socket
        match connection {
            Ok(mut connection) => drop(connection.read(&mut [0])),
            // It was killed.
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => self.remove_files(),
            Err(_) => {}
        }
        while bound.is_some() && adit_ctl::identity(&socket).ok() == bound {
            if Instant::now() > deadline {
                // The next one may come; this one ends when it notices.
                self.remove_files();
                say!(
                    "adit: {} is down, but its process does not end: it is stopped or hangs, and stays with its keys \
                     and its UDP port until it goes on or is killed (`pgrep -af adit` finds it)",
                    self.name
                );
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Removes the files that a killed process left, unless the next one listens already.
    fn remove_dead_files(&self) {
        let dead = UnixStream::connect(self.socket());
        if dead.is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused) {
            self.remove_files();
        }
    }

    fn remove_files(&self) {
        let socket = self.socket();
        let status = Path::new(status::DIR).join(format!("{}.sock", self.name));
        for file in [socket.with_extension("name"), socket, status] {
            let _ = fs::remove_file(file);
        }
        let hand_over = Path::new(status::DIR).join(run::hand_over::DIR);
        run::hand_over::remove_dead(&hand_over);
        // The last one takes the directory along.
        let _ = fs::remove_dir(hand_over);
    }

    /// DNS, policy routing, firewall.
    fn undo_surroundings(&self, netlink: &Netlink, status: Option<&DeviceStatus>) {
        let interface = &self.config.interface;
        if !interface.dns.is_empty() {
            programs::unset_dns(&self.name);
        }
        if self.blocked.get() {
            say!(
                "adit: what would go through {name} stays blocked, as the killed process left it; `adit down {name}` ends \
                 that",
                name = self.name
            );
            return;
        }
        let _ = fs::remove_file(self.memory());
        // Where its peers were, as a killed process leaves it to the next one.
        let peers = Path::new(status::DIR).join(format!("{}.peers", self.name));
        let _ = fs::remove_file(peers);
        let firewall = routing::unset_firewall(&self.name);
        if interface.table == Table::Auto {
            match status {
                // Otherwise the rules that lead to its mark's table are another program's.
                Some(status) if has_default(status) => {
                    routing::remove_default(netlink, status.fwmark);
                }
                // The process took the mark that it chose with it.
                None if self.may_be_full() || firewall => self.remove_orphans(netlink),
                _ => {}
            }
        }
    }

    /// Writes the running configuration to the file, all at once.
    fn save(&self, netlink: &Netlink, status: &DeviceStatus) -> Result<()> {
        let link = netlink
            .link(&self.name)
            .context(|| format!("cannot save {}", self.name))?;
        let addresses = routing::addresses(netlink, link.index, &self.config.interface.addresses)?;
        let mtu = self.config.interface.mtu.and(u16::try_from(link.mtu).ok());
        let text = config::save(
            &read(&self.path)?,
            &self.kept.strip(status.clone()),
            &addresses,
            mtu,
        );

        write(&self.path, &text)
    }
}

/// Replaces a configuration file, all at once, with one that only its owner may read.
fn write(path: &Path, text: &str) -> Result<()> {
    // The file itself, not a link to it.
    let failed = || format!("cannot write {}", path.display());
    let path = fs::canonicalize(path).context(failed)?;
    let temporary = path.with_extension("conf.tmp");
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .context(failed)?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all());
    let moved = written.and_then(|()| fs::rename(&temporary, &path));
    moved
        .inspect_err(|_| drop(fs::remove_file(&temporary)))
        .context(failed)
}
