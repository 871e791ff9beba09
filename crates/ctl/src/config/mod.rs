//! wg-quick's configuration files.
//!
//! The format is that of wg(8) and wg-quick(8): sections `[Interface]` and `[Peer]`, and lines `Key
//! = value`. `#` starts a comment, except in a hook, which the shell reads. Sections and keys are
//! read in any case, and spaces may stand wherever wg allows them. When a key stands twice, the
//! last one counts, and a warning says so. Where those tools fail or guess, this parser says
//! `file:line: what is wrong, what was expected`.

mod dialects;
mod layout;
mod names;
mod notes;
mod parse;
mod unknown;
mod values;
mod write;

#[cfg(test)]
mod corpus;
#[cfg(test)]
mod tests;

pub use names::clean as clean_name;
pub use notes::Forward;
pub use write::{save, strip, with_section, without_peer};

use std::collections::HashMap;
use std::fmt;
use std::fs::Metadata;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use adit_proto::config::{AllowedIpChange, DeviceChange, PeerChange, PublicKey, Secret};
use zeroize::Zeroizing;

/// Where interfaces that are given by name have their files.
pub const DIR: &str = "/etc/wireguard";
/// Longest file that is read, in bytes.
const MAX_FILE: u64 = 512 << 20;

/// A configuration file, understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The interface to bring up.
    pub interface: Interface,
    /// In the order of the file. A public key may stand twice: the later section changes the
    /// earlier.
    pub peers: Vec<Peer>,
    /// Warnings: settings that are allowed but probably not meant.
    pub warnings: Vec<Remark>,
}

/// The `[Interface]` section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// `None` if the file has none.
    pub private_key: Option<Secret>,
    /// A UDP port; 0 lets the system choose.
    pub listen_port: Option<u16>,
    /// 0 for `off`.
    pub fwmark: Option<u32>,
    /// In the order of the file.
    pub addresses: Vec<Address>,
    /// Addresses, perhaps with `%scope`.
    pub dns: Vec<String>,
    /// Search domains, from `DNS`.
    pub dns_search: Vec<String>,
    /// Bytes; `None` is for `up` to find out.
    pub mtu: Option<u16>,
    /// Where the routes to the allowed IPs go.
    pub table: Table,
    /// Shell commands, `%i` standing for the interface; see [`hook`].
    pub pre_up: Vec<String>,
    /// The same, run when everything is up.
    pub post_up: Vec<String>,
    /// The same, run before anything is taken down.
    pub pre_down: Vec<String>,
    /// The same, run when everything is down.
    pub post_down: Vec<String>,
    /// Whether `down` writes the interface's state to the file: see [`save`].
    pub save_config: bool,
    /// What peers may reach through this host, from the comment `# Forward = …`.
    pub forward: Option<Forward>,
    /// Where peers find this host, from the comment `# PublicEndpoint = …`.
    pub public_endpoint: Option<Endpoint>,
}

impl Interface {
    /// Whether the file says anything to the resolver.
    pub fn has_dns(&self) -> bool {
        !self.dns.is_empty() || !self.dns_search.is_empty()
    }
}

/// An address of the interface, host bits included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// The interface's own address.
    pub ip: IpAddr,
    /// How many leading bits its network has: 0 to 32, or 128 of IPv6.
    pub prefix_len: u8,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix_len)
    }
}

/// Which routing table the routes to the peers go to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Table {
    /// The main one, and policy routing for default routes.
    #[default]
    Auto,
    /// No routes.
    Off,
    /// The table of this number.
    Number(u32),
    /// To be looked up in `/etc/iproute2/rt_tables`.
    Name(String),
}

/// A `[Peer]` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Names the peer.
    pub public_key: PublicKey,
    /// What a comment beside `[Peer]` calls it, for people.
    pub name: Option<String>,
    /// `None` if the file has none.
    pub preshared_key: Option<Secret>,
    /// Where the peer is at first; a name is not resolved here.
    pub endpoint: Option<Endpoint>,
    /// In the order of the file.
    pub allowed_ips: Vec<AllowedIpChange>,
    /// A `+` or `-` stood before an allowed IP: they change those that the peer has instead of
    /// replacing them.
    pub incremental: bool,
    /// Seconds; 0 for `off`.
    pub persistent_keepalive: Option<u16>,
}

/// `host:port`; the host may be an address (without brackets, perhaps with `%scope`) or a name to
/// resolve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// An address without brackets, or a name.
    pub host: String,
    /// A UDP port.
    pub port: u16,
}

impl Endpoint {
    /// The address, if it is one and no name.
    pub fn numeric(&self) -> Option<SocketAddr> {
        let Self { host, port } = self;
        match host.contains(':') {
            true => crate::uapi::endpoint(&format!("[{host}]:{port}")),
            false => Some(SocketAddr::new(host.parse().ok()?, *port)),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Something about one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The file that it is about, as it was named.
    pub file: String,
    /// From 1; 0 for the file as a whole.
    pub line: usize,
    /// One line for people.
    pub text: String,
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.text),
            line => write!(f, "{}:{line}: {}", self.file, self.text),
        }
    }
}

/// Everything that is wrong with a file, one line each. Never contains a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors(pub Vec<Remark>);

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(Remark::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for Errors {}

impl std::str::FromStr for Endpoint {
    type Err = String;

    /// As a file has it: `host:port`, `[address]:port`.
    fn from_str(text: &str) -> Result<Self, String> {
        values::endpoint(text)
    }
}

impl Errors {
    fn none_or(self, config: Config) -> Result<Config, Self> {
        match self.0.is_empty() {
            true => Ok(config),
            false => Err(self),
        }
    }
}

impl Config {
    /// Reads and parses a file; also warns if others may read it.
    ///
    /// Returns what it says apart from its mistakes, and those: enough to take down what it brought
    /// up before it had them.
    ///
    /// # Errors
    /// The file cannot be read, or has more than 512 MiB.
    pub fn salvage(path: &Path) -> Result<(Self, Errors), Errors> {
        let file = path.display().to_string();
        let about = |text: String| Remark {
            file: file.clone(),
            line: 0,
            text,
        };
        let (text, found) =
            read_with(path).map_err(|error| Errors(vec![about(error.to_string())]))?;
        let (mut config, errors) = parse::parse(&text, &file);
        let risks = risks(path, &found).into_iter().map(about);
        config.warnings.splice(0..0, risks);
        Ok((config, errors))
    }

    /// Parses the text of `file`, which is only named in errors and warnings.
    ///
    /// # Errors
    /// Every mistake in the text.
    pub fn parse(text: &str, file: &str) -> Result<Self, Errors> {
        let (config, errors) = parse::parse(text, file);
        errors.none_or(config)
    }

    /// Whether this can be shown as the public key of a peer. What is none may be a secret in the wrong
    /// place, and so is what the file has as a secret: one in sixteen private or preshared keys looks
    /// like a public one.
    pub fn can_show(&self, key: &PublicKey) -> bool {
        let preshared = self.peers.iter().filter_map(|it| it.preshared_key.as_ref());
        let mut secrets = preshared.chain(&self.interface.private_key);
        crate::keys::is_public(key) && secrets.all(|secret| *secret != Secret::new(&key.0))
    }

    /// What the file calls its peers; of a peer's sections, the last one with a name counts.
    pub fn names(&self) -> HashMap<PublicKey, &str> {
        let peers = self.peers.iter();
        peers
            .filter_map(|peer| Some((peer.public_key, peer.name.as_deref()?)))
            .collect()
    }

    /// The transaction that brings a device to this configuration: peers that the file does not
    /// name go, and each peer has the file's allowed IPs afterwards. What the file says nothing
    /// about stays, but for the preshared key and keepalive of a peer.
    ///
    /// `endpoints[i]` is the resolved endpoint of `peers[i]`; a peer without one keeps the one it
    /// has.
    pub fn to_change(&self, endpoints: &[Option<SocketAddr>]) -> DeviceChange {
        let peer = |(i, peer): (usize, &Peer)| PeerChange {
            preshared_key: peer.preshared_key.clone(),
            endpoint: endpoints.get(i).copied().flatten(),
            persistent_keepalive: peer.persistent_keepalive,
            replace_allowed_ips: !peer.incremental,
            allowed_ips: peer.allowed_ips.clone(),
            ..PeerChange::new(peer.public_key)
        };
        DeviceChange {
            private_key: self.interface.private_key.clone(),
            listen_port: self.interface.listen_port,
            fwmark: self.interface.fwmark,
            replace_peers: true,
            peers: self.peers.iter().enumerate().map(peer).collect(),
        }
    }
}

/// The text of a configuration file, and its mode. Bytes that are not UTF-8 are taken for Latin-1.
///
/// # Errors
/// The file cannot be read, or has more than 512 MiB.
pub fn read(path: &Path) -> io::Result<(Zeroizing<String>, u32)> {
    let (text, found) = read_with(path)?;
    Ok((text, found.mode()))
}

/// Who may read a file, or change it and so have commands run by root, and should not.
fn risks(path: &Path, found: &Metadata) -> Vec<String> {
    let mut risks = Vec::new();
    let dir = (path.canonicalize().ok()).and_then(|path| path.parent()?.metadata().ok());
    // A file in a closed directory is safe.
    let open = dir.as_ref().map_or(0o777, MetadataExt::mode);
    let reached = [(0o010, 0o070), (0o001, 0o007)].into_iter();
    let reached = reached.filter(|(search, _)| open & search != 0);
    let mode = found.mode() & reached.fold(0, |all, (_, class)| all | class);
    if mode & 0o007 != 0 {
        risks.push("everybody may use this file, which should be secret: chmod 600 it".into());
    }
    if !found.is_file() {
        return risks;
    }
    let own = rustix::process::geteuid().as_raw();
    // Who typed sudo may do anything already.
    let sudo = std::env::var("SUDO_UID")
        .ok()
        .and_then(|uid| uid.parse().ok());
    let is_trusted = |uid: u32| uid == 0 || uid == own || Some(uid) == sudo;
    if mode & 0o020 != 0 && mode & 0o002 == 0 && found.gid() != 0 {
        risks.push(format!(
            "the group {} may change this file, and so what root runs: chmod g-w it",
            found.gid()
        ));
    }
    if !is_trusted(found.uid()) {
        risks.push(format!(
            "the user {} owns this file, and so can change what root runs: chown root it",
            found.uid()
        ));
    }
    // Others cannot replace a file of root's where the sticky bit is set.
    let may_replace = |dir: &Metadata| {
        let by_group = dir.mode() & 0o020 != 0 && dir.gid() != 0;
        let by_mode = (by_group || dir.mode() & 0o002 != 0) && dir.mode() & 0o1000 == 0;
        by_mode || !is_trusted(dir.uid())
    };
    // A link has one directory, and the file that it leads to another.
    let of_link = (path.symlink_metadata().ok())
        .filter(Metadata::is_symlink)
        .and_then(|_| Path::new(".").join(path.parent()?).metadata().ok());
    if dir.iter().chain(&of_link).any(may_replace) {
        risks.push(
            "others may replace this file, as they may write to its directory: move it, or chmod go-w the directory"
                .into(),
        );
    }
    risks
}

fn read_with(path: &Path) -> io::Result<(Zeroizing<String>, Metadata)> {
    let file = std::fs::File::open(path)?;
    let found = file.metadata()?;
    // All at once: a buffer that grows would leave copies of keys behind.
    let size = usize::try_from(found.len().min(MAX_FILE)).unwrap_or(0);
    let mut bytes = Zeroizing::new(Vec::with_capacity(size.max(64 << 10) + 1));
    file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    let wrong = |why| io::Error::new(io::ErrorKind::InvalidData, why);
    if bytes.len() as u64 > MAX_FILE {
        return Err(wrong("this is too long for a configuration file"));
    }
    let mut text = Zeroizing::new(String::with_capacity(2 * bytes.len()));
    match std::str::from_utf8(&bytes) {
        Ok(utf8) => text.push_str(utf8),
        // Comments from before UTF-8, which no tool minds: Latin-1.
        Err(_) => text.extend(bytes.iter().copied().map(char::from)),
    }
    Ok((text, found))
}

/// What a text is that is no configuration file at all, such as UTF-16 or JSON.
pub fn other_file(text: &str) -> Option<&'static str> {
    dialects::other_file(text)
}

/// `hook` with the interface's name in place of every `%i`.
pub fn hook(hook: &str, interface: &str) -> String {
    hook.replace("%i", interface)
}

/// Resolves the argument of `adit up`: a file `…/NAME.conf`, or an interface name that stands for
/// `/etc/wireguard/NAME.conf`. Returns the path and NAME. It does not look whether the file is
/// there.
///
/// # Errors
///
/// A sentence for people: the file has another name, or NAME cannot be the name of an interface.
pub fn locate(argument: &str) -> Result<(PathBuf, String), String> {
    let path = match argument.contains('/') || argument.ends_with(".conf") {
        true => PathBuf::from(argument),
        false => Path::new(DIR).join(format!("{argument}.conf")),
    };
    let name = (path.file_name().and_then(|name| name.to_str()))
        .and_then(|name| name.strip_suffix(".conf"))
        .ok_or_else(|| format!("{argument}: expected a file named INTERFACE.conf"))?
        .to_owned();
    check_name(&name)?;
    Ok((path, name))
}

/// As [`locate`], for what only reads: a file may have any name, and be a pipe.
///
/// # Errors
/// As of [`locate`].
pub fn locate_any(argument: &str) -> Result<PathBuf, String> {
    let path = Path::new(argument);
    match argument.contains('/') && path.metadata().is_ok_and(|found| !found.is_dir())
        || path.is_file()
    {
        true => Ok(path.to_owned()),
        false => locate(argument).map(|(path, _)| path),
    }
}

/// Whether `name` can be an interface's: `[a-zA-Z0-9_=+.-]{1,15}`, and neither `.` nor `..`.
///
/// # Errors
/// Words for people.
pub fn check_name(name: &str) -> Result<(), String> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"_=+.-".contains(&byte);
    let length = (1..=15).contains(&name.len());
    if length && name.bytes().all(good) && name != "." && name != ".." {
        return Ok(());
    }
    Err(format!(
        "{name:?} is no interface name: expected 1 to 15 letters, digits or any of _=+.-"
    ))
}
