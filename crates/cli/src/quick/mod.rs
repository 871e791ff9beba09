//! `adit up`, `down`, `save`, `strip` and `sync`: wg-quick's files and behaviour, without wg-quick.

mod addresses;
mod defaults;
mod done;
mod down;
mod dry_run;
mod edit;
mod endpoint;
mod file;
mod foreground;
mod forward;
mod init;
mod keys;
mod list;
mod new_peer;
mod others;
mod peers;
mod programs;
mod rekey;
mod roster;
mod routing;
mod sync;
mod terms;
mod up;
mod verbs;
mod watchdog;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use adit_ctl::config::{self, Config, InterfaceSection};
use adit_ctl::uapi::{self, ClientError, UapiClient};
use adit_netlink::{Family, Netlink};
use adit_proto::ConfigError;
use adit_proto::config::{AllowedIpChange, Cidr, DeviceChange, DeviceStatus};
use adit_proto::limits::MAX_PEERS;
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::agent;
use crate::cli::{self, ChangeArgs, ConfArgs, FileArgs};
use crate::failure::{Context, Failure, Result, bail, say};
pub(crate) use down::{down, unblock};
pub(crate) use edit::edit;
use file::{Lock, read, write};
pub(crate) use init::init;
pub(crate) use list::{FIELDS, peers, print_json, show_peer};
pub(crate) use new_peer::new_peer;
pub(crate) use peers::add;
pub(crate) use rekey::rekey;
pub(crate) use routing::{covers, leaves_in_clear, parts};
pub(crate) use terms::{expire, limit, quota};
pub(crate) use up::up;
pub(crate) use verbs::{disable, enable, remove, rename};

/// The kernel has no IPv6 on an interface with less.
const MIN_V6_MTU: u32 = 1280;
/// How long `down` waits for the process to be gone.
const PATIENCE: Duration = Duration::from_secs(10);

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
    /// Standard output is a JSON document: what hooks print goes to standard error.
    prints_json: bool,
}

pub(crate) fn save(args: &ChangeArgs) -> Result<()> {
    require_rights()?;
    let quick = Quick::load_with_mistakes(&args.file)?;
    quick.save(&open_netlink()?)?;
    let line = format!(
        "{} says what {name} runs with: `adit check {}` says whether it is in order",
        quick.path.display(),
        quick.called(),
        name = quick.name
    );
    done::say(args.said, &quick.name, "saved", &line)
}

pub(crate) fn sync_command(args: &ChangeArgs) -> Result<()> {
    sync(&args.file)?;
    let (_, name) = config::locate(&args.file.conf.conf).map_err(Failure::Mistake)?;
    let line = format!("{name} runs with what its file says: `adit show {name}` shows it");
    done::say(args.said, &name, "synced", &line)
}

/// Applies a changed file to a running interface; peers that stay as they are notice nothing.
pub(crate) fn sync(args: &FileArgs) -> Result<()> {
    require_rights()?;
    // A peer that another command adds meanwhile would go again.
    let _lock = Quick::lock(&args.conf)?;
    Quick::load(args)?.sync(&open_netlink()?)
}

pub(crate) fn strip(args: &ConfArgs) -> Result<()> {
    let path = config::locate_any(&args.conf).map_err(Failure::Mistake)?;
    check_exists(&path)?;
    // Once: it may be a pipe.
    let text = read(&path)?;
    Config::parse(&text, &path.display().to_string())
        .map_err(|errors| Failure::Mistake(errors.to_string()))?;
    cli::print(config::strip(&text).as_bytes())
}

/// Says where files are, if there is none.
pub(crate) fn check_exists(path: &Path) -> Result<()> {
    if !path.try_exists().is_ok_and(|exists| !exists) {
        return Ok(());
    }
    let (called, name) = (
        file::called(path),
        path.file_stem().unwrap_or_default().display(),
    );
    let other = match path.parent() == Some(Path::new(config::DIR)) {
        true => format!("one elsewhere has a slash in its path (./{name}.conf)"),
        false => format!(
            "one in {} is called by its name alone ({name})",
            config::DIR
        ),
    };
    bail!(
        Mistake,
        "there is no file {}: `adit init {called}` makes one for a hub; {other}",
        path.display()
    )
}

/// The kernel asks for CAP_NET_ADMIN. Where it is missing, the command starts again with sudo, as
/// wg-quick does.
pub(crate) fn require_rights() -> Result<()> {
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

pub(crate) fn open_netlink() -> Result<Netlink> {
    Netlink::open().context(|| "cannot talk to the kernel over netlink".into())
}

fn allowed_ips(status: &DeviceStatus) -> impl Iterator<Item = Cidr> + '_ {
    let peers = status.peers.iter();
    peers.flat_map(|peer| peer.allowed_ips.iter().copied())
}

/// Whether all addresses of a family are among the allowed IPs.
fn has_default(status: &DeviceStatus) -> bool {
    let allowed: Vec<Cidr> = allowed_ips(status).collect();
    Family::BOTH.iter().any(|family| covers(&allowed, *family))
}

impl Quick {
    /// Keeps other commands from changing the file.
    fn lock(conf: &ConfArgs) -> Result<Option<Lock>> {
        let (path, _) = config::locate(&conf.conf).map_err(Failure::Mistake)?;
        // A file that is missing is reported by what reads it.
        path.exists().then(|| Lock::take(&path)).transpose()
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

    /// An interface goes down without its file, too, which may have been moved or deleted.
    fn load_for_down(args: &FileArgs) -> Result<Self> {
        let (path, name) = config::locate(&args.conf.conf).map_err(Failure::Mistake)?;
        let is_missing = path.try_exists().is_ok_and(|exists| !exists);
        let runs = || UapiClient::connect(&name).is_ok();
        if !is_missing || !runs() {
            return Self::load_with_mistakes(args);
        }
        say!(
            "Warning: there is no file {} any more: {name} goes down without its PreDown and PostDown",
            path.display()
        );
        // What the resolver was told goes in any case.
        let config = Config {
            interface: InterfaceSection {
                dns_search: vec![String::new()],
                ..InterfaceSection::default()
            },
            ..Config::default()
        };
        Self::new(name, path, config, keys::Kept::default())
    }

    fn parse(args: &FileArgs) -> Result<(Self, config::Errors)> {
        let (path, name) = config::locate(&args.conf.conf).map_err(Failure::Mistake)?;
        check_exists(&path)?;
        let (mut config, mut mistakes) =
            Config::salvage(&path).map_err(|errors| Failure::Mistake(errors.to_string()))?;
        let (kept, wrong) = keys::add(&mut config, args.keys.as_deref(), &name);
        mistakes.0.extend(wrong);
        Ok((Self::new(name, path, config, kept)?, mistakes))
    }

    fn new(name: String, path: PathBuf, config: Config, kept: keys::Kept) -> Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, interrupted.clone())
                .context(|| "cannot catch signals".into())?;
        }
        Ok(Self {
            name,
            path,
            config,
            kept,
            interrupted,
            blocked: Cell::new(false),
            prints_json: false,
        })
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

    fn hooks(&self, hooks: &[String]) -> Result<()> {
        programs::run_hooks(hooks, &self.name, &self.path, self.prints_json)?;
        self.check_interrupted()
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
        let client = UapiClient::connect(&self.name).map_err(ClientError::Io);
        client
            .and_then(|mut client| client.set(change))
            .map_err(refused)
    }

    /// What commands call it by.
    fn called(&self) -> String {
        file::called(&self.path)
    }

    fn ask(&self) -> std::result::Result<DeviceStatus, ClientError> {
        UapiClient::connect(&self.name)?.get()
    }

    fn status(&self) -> Result<DeviceStatus> {
        self.ask().map_err(|error| match error.is_unserved() {
            true => Failure::State(format!(
                "{}: `adit up {}` brings it up",
                self.explain(error),
                self.called()
            )),
            false => self.explain(error),
        })
    }

    /// Why there is no status.
    fn explain(&self, error: ClientError) -> Failure {
        let Self { name, .. } = self;
        Failure::State(match error.is_unserved() {
            true => format!(
                "`{name}` is not up: no process serves {}/{name}.sock",
                uapi::DIR
            ),
            false => format!("cannot ask {name}: {error}"),
        })
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
                let status = UapiClient::connect(other)
                    .ok()
                    .map(|mut client| client.get());
                tables.retain(|table| !matches!(&status, Some(Ok(s)) if s.fwmark == *table));
            }
        }
        tables
    }

    /// The allowed IPs of the file.
    fn blocks(&self) -> impl Iterator<Item = Cidr> + '_ {
        let changes = self.config.peers.iter().flat_map(|peer| &peer.allowed_ips);
        changes.filter_map(AllowedIpChange::added)
    }

    /// Whether it takes a default route, by the file or perhaps by a hook.
    fn may_be_full(&self) -> bool {
        let blocks: Vec<Cidr> = self.blocks().collect();
        let full = Family::BOTH.iter().any(|family| covers(&blocks, *family));
        full || !self.config.interface.pre_up.is_empty()
    }

    /// Removes what killed runs left, but in this tunnel's own table.
    fn remove_orphans(&self, netlink: &Netlink, own: Option<u32>) {
        let mut orphans = self.orphans(netlink);
        orphans.retain(|table| own != Some(*table));
        (orphans.iter()).for_each(|table| routing::remove_default(netlink, *table));
    }

    /// Writes the running configuration to the file, but for peers that an agent brought.
    fn save(&self, netlink: &Netlink) -> Result<()> {
        // What an agent removes meanwhile is known before, and what it brings is known afterwards.
        let mut brought = agent::brought_to(&self.name)?;
        let mut status = self.status()?;
        brought.extend(agent::brought_to(&self.name)?);
        let link = netlink
            .link(&self.name)
            .context(|| format!("cannot save {}", self.name))?;
        let addresses = routing::addresses(netlink, link.index, &self.config.interface.addresses)?;
        let mtu = self.config.interface.mtu.and(u16::try_from(link.mtu).ok());
        let _lock = Lock::take(&self.path)?;
        let old = read(&self.path)?;
        if let Some(other) = config::other_file(&old) {
            bail!(
                Mistake,
                "{}: {other}; it stays as it is",
                self.path.display()
            );
        }
        let in_file = config::peers_of(&old);
        (status.peers).retain(|peer| {
            in_file.contains(&peer.public_key) || !brought.contains_key(&peer.public_key)
        });
        let text = config::save(&old, &self.kept.strip(status), &addresses, mtu);
        file::write_or_explain(&self.path, &text)
    }
}
