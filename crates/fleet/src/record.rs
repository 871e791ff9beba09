//! One peer, as a source has it.

use std::sync::Arc;

use adit_ctl::config::{Config, HostPort, InterfaceSection, PeerSection, Remark};
use adit_ctl::keys;
use adit_proto::Allowance;
use adit_proto::config::{AllowedIpChange, Cidr, PublicKey, Secret};
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::ports::AllowedPorts;

/// Longest record in bytes. It bounds the memory of one record.
pub const MAX_RECORD: usize = 64 << 10;
/// Longest name of a file with a preshared key: what a file system takes.
const MAX_FILE_NAME: usize = 255;
/// The key of a `[Peer]` section that names it; a line of its own or a comment, which wg(8) passes over.
const KEY_FILE: &str = "PresharedKeyFile";
/// The key of what a peer may open, likewise.
const ALLOWED_PORTS: &str = "AllowedPorts";

/// What the source calls a record: the name of a file, the key of a store.
pub type RecordId = Arc<str>;

/// A peer as a source has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerRecord {
    /// Names the peer.
    pub public_key: PublicKey,
    /// What people call it.
    pub name: Option<String>,
    /// Each once, in order.
    pub allowed_ips: Vec<Cidr>,
    /// Where it is at first.
    pub endpoint: Option<HostPort>,
    /// The file that has its preshared key, in the folder that was given for these.
    pub preshared_key_file: Option<String>,
    /// The preshared key; `None` until the agent has read `preshared_key_file`.
    pub preshared_key: Option<Secret>,
    /// Seconds; 0 for off.
    pub persistent_keepalive: u16,
    /// What it may do.
    pub allowance: Allowance,
    /// What it may open through the gateway; `None` for all.
    pub allowed_ports: Option<AllowedPorts>,
}

impl PeerRecord {
    /// A `[Peer]` section, as a configuration file has it, with the comments that Adit heeds. A preshared key is
    /// named by a line `PresharedKeyFile = NAME`, and `AllowedPorts = tcp/443` says what it may open.
    ///
    /// # Errors
    /// What is wrong, in one line that repeats no key.
    pub fn from_section(text: &[u8]) -> Result<Self, String> {
        Self::parse(text).map_err(|(line, text)| match line {
            0 => text,
            line => format!("line {line}: {text}"),
        })
    }

    /// A JSON object: `public_key`, `allowed_ips` and, if there are any, `name`, `endpoint`, `preshared_key_file`,
    /// `persistent_keepalive`, `limit`, `quota`, `expires` and `allowed_ports`, with the values of a file.
    ///
    /// # Errors
    /// As of [`PeerRecord::from_section`].
    pub fn from_json(text: &[u8]) -> Result<Self, String> {
        check_length(text)?;
        let fields: RecordFields = serde_json::from_slice(text).map_err(|error| explain(&error))?;
        let section = fields.to_section()?;
        Self::parse(section.as_bytes()).map_err(|(_, text)| text)
    }

    /// The error has its line.
    fn parse(text: &[u8]) -> Result<Self, (usize, String)> {
        let whole = |text: String| (0, text);
        check_length(text).map_err(whole)?;
        let text = std::str::from_utf8(text).map_err(|_| whole("it is not UTF-8".into()))?;
        let section = SectionText::read(text)?;
        // A warning is a mistake in what a program has written.
        let of_line = |remark: Remark| {
            let line = (remark.line.checked_sub(1)).and_then(|at| section.lines.get(at));
            (line.copied().unwrap_or(0), remark.text)
        };
        let config = Config::parse(&section.text, "").map_err(|errors| {
            let first = errors.0.into_iter().next().map(of_line);
            first.unwrap_or_else(|| whole("it cannot be read".into()))
        })?;
        if config.interface.private_key.is_some() {
            return Err(whole(PRIVATE_KEY.into()));
        }
        if config.interface != InterfaceSection::default() {
            return Err(whole("a record has no [Interface] section".into()));
        }
        let mut warnings = config.warnings.into_iter();
        if let Some(warning) = warnings.find(|warning| warning.line > 0) {
            return Err(of_line(warning));
        }
        let mut peers = config.peers.into_iter();
        match (peers.next(), peers.next()) {
            (Some(peer), None) if config.disabled.is_empty() => {
                let record = Self::from_peer(peer, section.key_file).map_err(whole)?;
                record.with_ports(section.allowed_ports).map_err(whole)
            }
            _ => Err(whole("a record has one [Peer] section".into())),
        }
    }

    fn from_peer(peer: PeerSection, key_file: Option<String>) -> Result<Self, String> {
        if !keys::is_public(&peer.public_key) {
            return Err("PublicKey: this is no public key".into());
        }
        if peer.preshared_key.is_some() {
            return Err(format!(
                "PresharedKey: a record has no secret: {KEY_FILE} = NAME names the file that has it"
            ));
        }
        let added = |change: &AllowedIpChange| match change {
            AllowedIpChange::Add(block) if !peer.incremental => Some(*block),
            _ => None,
        };
        let blocks: Option<Vec<Cidr>> = peer.allowed_ips.iter().map(added).collect();
        let mut allowed_ips =
            blocks.ok_or("AllowedIPs: a record says all that the peer has, without + and -")?;
        allowed_ips.sort_unstable();
        allowed_ips.dedup();
        Ok(Self {
            public_key: peer.public_key,
            name: peer.name,
            allowed_ips,
            endpoint: peer.endpoint,
            preshared_key_file: key_file,
            preshared_key: None,
            persistent_keepalive: peer.persistent_keepalive.unwrap_or(0),
            allowance: peer.allowance,
            allowed_ports: None,
        })
    }

    fn with_ports(self, allowed_ports: Option<AllowedPorts>) -> Result<Self, String> {
        if let Some(ports) = &allowed_ports {
            ports.check(&self.allowed_ips)?;
        }
        Ok(Self {
            allowed_ports,
            ..self
        })
    }
}

const PRIVATE_KEY: &str =
    "it has a private key: that belongs to the peer alone, which should get another one now";

fn check_length(text: &[u8]) -> Result<(), String> {
    match text.len() > MAX_RECORD {
        true => Err(format!("it has more than {MAX_RECORD} bytes")),
        false => Ok(()),
    }
}

/// The key in a file of its own.
///
/// # Errors
/// Words that do not repeat it.
pub fn preshared_key(text: &[u8]) -> Result<Secret, String> {
    let text = std::str::from_utf8(text).ok();
    let key = text.and_then(|text| keys::from_base64(text.trim()));
    key.ok_or_else(|| "it has no key: expected 44 characters of base64 and nothing else".into())
}

/// A section without the lines that wg(8) does not know.
struct SectionText {
    /// Without blank lines, so that every comment is the section's.
    text: Zeroizing<String>,
    /// Which line of the record each line is.
    lines: Vec<usize>,
    key_file: Option<String>,
    allowed_ports: Option<AllowedPorts>,
}

impl SectionText {
    fn read(text: &str) -> Result<Self, (usize, String)> {
        let mut section = Self {
            text: Zeroizing::new(String::with_capacity(text.len() + 1)),
            lines: Vec::new(),
            key_file: None,
            allowed_ports: None,
        };
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim_start_matches('\u{feff}').trim();
            let plain = line.strip_prefix('#').unwrap_or(line);
            let of = |name: &str| {
                let (key, value) = plain.split_once('=')?;
                let is_it = key.trim().eq_ignore_ascii_case(name);
                is_it.then(|| value.trim())
            };
            if let Some(value) = of(ALLOWED_PORTS) {
                let value = value.split('#').next().unwrap_or_default();
                let ports = section.allowed_ports.get_or_insert_default();
                ports.extend(value).map_err(|error| (number, error))?;
            } else if let Some(value) = of(KEY_FILE) {
                let value = check_file_name(value).map_err(|error| (number, error))?;
                if section.key_file.replace(value).is_some() {
                    return Err((number, format!("a second {KEY_FILE}")));
                }
            } else if !line.is_empty() {
                section.text.push_str(line);
                section.text.push('\n');
                section.lines.push(number);
            }
        }
        Ok(section)
    }
}

/// A file of one folder, and nothing that leads out of it.
fn check_file_name(name: &str) -> Result<String, String> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "_.-@+=".contains(c);
    let is_file = (1..=MAX_FILE_NAME).contains(&name.len()) && !name.starts_with('.');
    // What has a key in it may be one.
    let is_key = keys::from_base64(name).is_some();
    match is_file && name.chars().all(is_good) && !is_key {
        true => Ok(name.to_owned()),
        false => Err(format!(
            "{KEY_FILE}: expected the name of a file, of letters, digits and _.-@+=, without its folder"
        )),
    }
}

/// The fields of a record as JSON.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordFields {
    public_key: String,
    #[serde(default)]
    allowed_ips: Vec<String>,
    name: Option<String>,
    endpoint: Option<String>,
    preshared_key_file: Option<String>,
    persistent_keepalive: Option<u16>,
    limit: Option<String>,
    quota: Option<String>,
    expires: Option<String>,
    allowed_ports: Option<Vec<String>>,
}

impl RecordFields {
    /// The section that says the same, so that there is one parser.
    fn to_section(&self) -> Result<Zeroizing<String>, String> {
        let mut out = Zeroizing::new(String::with_capacity(512 + 64 * self.allowed_ips.len()));
        let mut line = |field: &str, before: &str, value: &str| {
            let is_comment = field == "name";
            if value.chars().any(char::is_control) || value.contains('#') && !is_comment {
                return Err(format!("{field}: it has a character that no value has"));
            }
            out.push_str(before);
            out.push_str(value);
            out.push('\n');
            Ok(())
        };
        line("public_key", "[Peer]\nPublicKey = ", &self.public_key)?;
        for block in &self.allowed_ips {
            line("allowed_ips", "AllowedIPs = ", block)?;
        }
        if let Some(name) = &self.name {
            line("name", "# friendly_name = ", name)?;
        }
        if let Some(seconds) = self.persistent_keepalive {
            line(
                "persistent_keepalive",
                "PersistentKeepalive = ",
                &seconds.to_string(),
            )?;
        }
        for (field, before, value) in [
            ("endpoint", "Endpoint = ", &self.endpoint),
            (
                "preshared_key_file",
                "PresharedKeyFile = ",
                &self.preshared_key_file,
            ),
            ("limit", "# Limit = ", &self.limit),
            ("quota", "# Quota = ", &self.quota),
            ("expires", "# Expires = ", &self.expires),
        ] {
            if let Some(value) = value {
                line(field, before, value)?;
            }
        }
        if let Some(rules) = &self.allowed_ports {
            line("allowed_ports", "AllowedPorts = ", &rules.join(", "))?;
        }
        Ok(out)
    }
}

/// What is wrong with JSON. serde_json repeats values, which may be secrets.
fn explain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!("line {}, column {}", error.line(), error.column());
    if text.starts_with("unknown field `private_key`") {
        return PRIVATE_KEY.into();
    }
    if text.starts_with("unknown field") {
        return format!(
            "a field that no record has, before {place}: a record has public_key, allowed_ips, name, endpoint, \
             preshared_key_file, persistent_keepalive, limit, quota, expires and allowed_ports"
        );
    }
    match text.starts_with("missing field `") || text.starts_with("duplicate field `") {
        true => text.split(" at line").next().unwrap_or_default().to_owned(),
        false => format!("it is no JSON of a record: {place}"),
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
