//! Lines → sections → [`Config`]. Every mistake in the file is reported, not only the first.

use std::collections::HashMap;

use adit_proto::Allowance;
use adit_proto::config::{AllowedIpChange, PublicKey, Secret};

use super::allowances;
use super::dialects::{self, Dialect};
use super::layout::{Block, Layout};
use super::names::{self, Said};
use super::unknown::{quote, unknown};
use super::values;
use crate::config::keywords::{FileLine, Section, section, spelling};
use crate::config::model::{Config, Errors, PeerSection, Remark};
use crate::config::notes;

/// Shell commands: a `#` in them is the shell's to judge.
const HOOKS: [&str; 4] = ["PreUp", "PostUp", "PreDown", "PostDown"];
/// Keys that add to what stands above; of the others, the last counts.
const LISTS: [&str; 7] = [
    "Address",
    "DNS",
    "PreUp",
    "PostUp",
    "PreDown",
    "PostDown",
    "AllowedIPs",
];

/// Reads what the lines say into a configuration.
#[derive(Default)]
struct ConfigReader {
    config: Config,
    /// The section that the lines belong to; `None` before the first and within an unknown one.
    section: Option<Section>,
    /// A section that is commented out stands in the present one.
    is_off: bool,
    section_line: usize,
    /// Lines of the keys of the present section.
    seen: HashMap<&'static str, usize>,
    /// The present `[PeerSection]` has said which peer it is.
    has_key: bool,
    interface_line: usize,
    unknown_section: bool,
    /// The last section of each peer.
    peer_lines: HashMap<PublicKey, usize>,
    /// Where each of the configuration's peers begins.
    lines: Vec<usize>,
    /// Lines that are another program's.
    foreign: Vec<(usize, Dialect)>,
    errors: Vec<(usize, String)>,
    warnings: Vec<(usize, String)>,
}

/// The parts that can be understood, and the mistakes.
pub(super) fn parse(text: &str, file: &str) -> (Config, Errors) {
    let mut reader = ConfigReader::default();
    if let Some(other) = dialects::other_file(text) {
        let remark = Remark {
            file: file.to_owned(),
            line: 0,
            text: other.to_owned(),
        };
        return (Config::default(), Errors(vec![remark]));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (i, line) in text.lines().enumerate() {
        reader.line(i + 1, line);
    }
    reader.end_section();
    if reader.interface_line == 0 && reader.errors.is_empty() {
        let missing = "there is no [Interface] section";
        reader.warnings.push((0, missing.to_owned()));
    }
    let layout = Layout::of(text);
    let sections = (0..).zip(&layout.sections);
    let sections = sections.filter(|(_, block)| block.is_peer());
    for (peer, (at, block)) in reader.config.peers.iter_mut().zip(sections) {
        peer.name.clone_from(&block.name);
        let (allowance, mut wrong) = allowances::of_section(&layout, at);
        peer.allowance = allowance;
        reader.warnings.append(&mut wrong);
    }
    reader.config.disabled = disabled(&layout);
    reader.check_own_key();
    reader.check_blocks();
    reader.report_foreign();
    let remark = |(line, text)| Remark {
        file: file.to_owned(),
        line,
        text,
    };
    reader.warnings.sort_by_key(|(line, _)| *line);
    reader.errors.sort_by_key(|(line, _)| *line);
    reader.config.warnings = reader.warnings.into_iter().map(remark).collect();
    let errors = reader.errors.into_iter().map(remark).collect();
    (reader.config, Errors(errors))
}

/// Peers that are disabled, without what cannot be understood of them.
fn disabled(layout: &Layout<'_>) -> Vec<PeerSection> {
    let sections = (0..).zip(&layout.sections);
    let read = |(at, block): (usize, &Block)| {
        let mut reader = ConfigReader::default();
        for line in block.header..=block.last {
            if layout.owner(line) == Some(at) {
                reader.line(line + 1, layout.lines[line]);
            }
        }
        let peer = reader.config.peers.pop().filter(|_| reader.has_key)?;
        Some(PeerSection {
            name: block.name.clone(),
            allowance: allowances::of_section(layout, at).0,
            ..peer
        })
    };
    sections
        .filter(|(_, block)| block.is_disabled)
        .filter_map(read)
        .collect()
}

impl ConfigReader {
    fn line(&mut self, number: usize, line: &str) {
        let result = match FileLine::read(line) {
            FileLine::Blank => {
                self.note(number, line);
                Ok(())
            }
            FileLine::Section(header) => self.start_section(number, header),
            FileLine::KeyValue(key, value) => {
                let whole = line
                    .split_once('=')
                    .map_or(value, |(_, whole)| whole.trim());
                self.pair(number, key, value, whole)
            }
            FileLine::Other(_) if self.unknown_section => Ok(()),
            FileLine::Other(text) if self.is_colon(number, text) => Ok(()),
            FileLine::Other(text) => {
                let word = text.split_whitespace().next().unwrap_or_default();
                Err(format!(
                    "expected Key = value, got {} and no '='",
                    quote(word)
                ))
            }
        };
        if let Err(error) = result {
            self.errors.push((number, error));
        }
    }

    /// A comment that is a setting of Adit's. What is wrong with it is no mistake in the file.
    fn note(&mut self, number: usize, line: &str) {
        if self.section != Some(Section::Interface) {
            return;
        }
        let Some((name, value)) = notes::of(line) else {
            self.is_off |= line.contains('#') && names::said(line.trim()) == Said::OffHeader;
            return;
        };
        if self.is_off {
            return;
        }
        if let Err(expected) = notes::apply(&mut self.config.interface, name, value) {
            let ignored = format!("# {name}: {expected}, so that it does nothing");
            self.warnings.push((number, ignored));
            return;
        }
        if let Some(first) = self.seen.insert(name, number) {
            let second = format!("a second # {name}: this one counts, not the one on line {first}");
            self.warnings.push((number, second));
        }
    }

    fn start_section(&mut self, number: usize, header: &str) -> Result<(), String> {
        self.end_section();
        self.is_off = false;
        self.section = section(header);
        self.section_line = number;
        self.unknown_section = self.section.is_none();
        if self.unknown_section
            && let Some(dialect) = Dialect::of(header)
        {
            self.foreign.push((number, dialect));
            return Ok(());
        }
        match self.section {
            None => Err(format!(
                "there is no section {}: expected [Interface] or [Peer]",
                quote(header)
            )),
            Some(Section::Interface) => {
                if self.interface_line != 0 {
                    let first = self.interface_line;
                    let second =
                        format!("a second [Interface]: it continues the one on line {first}");
                    self.warnings.push((number, second));
                }
                self.interface_line = number;
                Ok(())
            }
            Some(Section::Peer) => {
                self.lines.push(number);
                self.config.peers.push(PeerSection {
                    public_key: PublicKey([0; 32]),
                    name: None,
                    preshared_key: None,
                    endpoint: None,
                    allowed_ips: Vec::new(),
                    incremental: false,
                    persistent_keepalive: None,
                    allowance: Allowance::default(),
                });
                Ok(())
            }
        }
    }

    fn end_section(&mut self) {
        let nameless = self.section == Some(Section::Peer) && !self.has_key;
        // A PublicKey with a mistake has been reported already.
        if nameless && !self.seen.contains_key("PublicKey") {
            let missing = "this [Peer] has no PublicKey, which every peer needs";
            self.errors.push((self.section_line, missing.to_owned()));
        } else if self.has_key
            && let Some(peer) = self.config.peers.last()
        {
            let (key, line) = (peer.public_key, self.section_line);
            if let Some(first) = self.peer_lines.insert(key, line) {
                let twice = format!(
                    "the same peer stands on line {first}: this section changes what that one says and replaces \
                     its AllowedIPs"
                );
                self.warnings.push((line, twice));
            }
        }
        self.section = None;
        self.has_key = false;
        self.seen.clear();
    }

    /// Whether a line has a key of this section before a colon.
    fn is_colon(&mut self, number: usize, text: &str) -> bool {
        let Some(name) = dialects::colon(self.section, text) else {
            return false;
        };
        self.foreign.push((number, Dialect::Colons));
        self.seen.insert(name, number);
        true
    }

    /// One line for each program; where a file is another program's altogether, only that one.
    fn report_foreign(&mut self) {
        let foreign = std::mem::take(&mut self.foreign);
        let mut reported: Vec<Dialect> = Vec::new();
        for (first, dialect) in &foreign {
            if reported.contains(dialect) {
                continue;
            }
            reported.push(*dialect);
            let same = foreign.iter().filter(|(_, other)| other == dialect);
            let lines: Vec<usize> = same.map(|(line, _)| *line).collect();
            let error = (*first, dialect.explain(&lines));
            if dialect.is_whole() {
                self.errors = vec![error];
                self.warnings.clear();
                return;
            }
            self.errors.push(error);
        }
    }

    fn check_own_key(&mut self) {
        let private = self.config.interface.private_key.as_ref();
        for (peer, line) in self.config.peers.iter().zip(&self.lines) {
            let key = Secret::new(&peer.public_key.0);
            if private.is_some_and(|private| !private.is_zero() && *private == key) {
                let secret = "PublicKey: this is the PrivateKey of the interface, which is secret: the peer has a public \
                              key of its own";
                self.errors.push((*line, secret.to_owned()));
            }
        }
        let own = self
            .config
            .interface
            .private_key
            .as_ref()
            .map(Secret::public_key);
        if let Some(line) = own.and_then(|own| self.peer_lines.get(&own)) {
            let own = "this peer has the interface's own key and will be ignored";
            self.warnings.push((*line, own.to_owned()));
        }
    }

    fn check_blocks(&mut self) {
        let own = self
            .config
            .interface
            .private_key
            .as_ref()
            .map(Secret::public_key);
        let mut owners = HashMap::new();
        for (peer, line) in self.config.peers.iter().zip(&self.lines) {
            let key = peer.public_key;
            if own == Some(key) || !self.peer_lines.contains_key(&key) {
                continue;
            }
            for change in &peer.allowed_ips {
                if let AllowedIpChange::Add(block) = change
                    && let Some((owner, first)) = owners.insert(*block, (key, line))
                    && owner != key
                {
                    let moved = format!("{block} moves to this peer from the one on line {first}");
                    self.warnings.push((*line, moved));
                }
            }
        }
    }

    /// `whole` is the value with its comment.
    fn pair(&mut self, number: usize, key: &str, value: &str, whole: &str) -> Result<(), String> {
        let Some(section) = self.section else {
            return match self.unknown_section {
                true => Ok(()),
                false => Err(format!(
                    "{} stands before the first section: expected [Interface] or [Peer]",
                    quote(key)
                )),
            };
        };
        if self.is_colon(number, key) {
            return Ok(());
        }
        let name = match spelling(section, key) {
            Some(name) => name,
            None => {
                let dialect = Dialect::of(key).ok_or_else(|| unknown(section, key))?;
                self.foreign.push((number, dialect));
                return Ok(());
            }
        };
        if dialects::is_quoted(value) && !HOOKS.contains(&name) {
            self.foreign.push((number, Dialect::Quotes));
            self.seen.insert(name, number);
            return Ok(());
        }
        if let Some(first) = self.seen.insert(name, number)
            && !LISTS.contains(&name)
        {
            let second = format!("a second {name}: this one counts, not the one on line {first}");
            self.warnings.push((number, second));
        }
        let result = match section {
            // Files that a program fills in have such lines.
            _ if value.is_empty() && LISTS.contains(&name) => Ok(()),
            Section::Interface if value.is_empty() && name == "MTU" => {
                self.config.interface.mtu = None;
                Ok(())
            }
            _ if value.is_empty() && name != "Table" => return Err(format!("{name} has no value")),
            Section::Interface if HOOKS.contains(&name) => self.interface_pair(name, whole),
            Section::Interface => self.interface_pair(name, value),
            Section::Peer => self.peer_pair(number, name, value),
        };
        result.map_err(|error| format!("{name}: {error}"))
    }

    fn interface_pair(&mut self, name: &str, value: &str) -> Result<(), String> {
        let interface = &mut self.config.interface;
        match name {
            "PrivateKey" => interface.private_key = Some(values::key(value)?),
            "ListenPort" => interface.listen_port = Some(values::port(value)?),
            "FwMark" => interface.fwmark = Some(values::fwmark(value)?),
            "Address" => {
                for part in values::words(value) {
                    interface.addresses.push(values::address(part)?);
                }
            }
            "DNS" => {
                for part in values::words(value) {
                    match values::dns(part)? {
                        Ok(server) => interface.dns.push(server),
                        Err(domain) => interface.dns_search.push(domain),
                    }
                }
            }
            "MTU" => interface.mtu = Some(values::mtu(value)?),
            "Table" => interface.table = values::table(value)?,
            "PreUp" => interface.pre_up.push(value.to_owned()),
            "PostUp" => interface.post_up.push(value.to_owned()),
            "PreDown" => interface.pre_down.push(value.to_owned()),
            "PostDown" => interface.post_down.push(value.to_owned()),
            _ => interface.save_config = values::boolean(value)?,
        }
        Ok(())
    }

    fn peer_pair(&mut self, number: usize, name: &str, value: &str) -> Result<(), String> {
        let Some(peer) = self.config.peers.last_mut() else {
            return Ok(());
        };
        match name {
            "PublicKey" => {
                peer.public_key = PublicKey(*values::key(value)?.bytes());
                self.has_key = true;
            }
            "PresharedKey" => peer.preshared_key = Some(values::key(value)?),
            "Endpoint" => {
                let endpoint = values::endpoint(value)?;
                if endpoint.host.contains(':') && !value.starts_with('[') {
                    let read = format!("Endpoint: without brackets, this is read as {endpoint}");
                    self.warnings.push((number, read));
                }
                peer.endpoint = Some(endpoint);
            }
            "AllowedIPs" => {
                peer.incremental = false;
                for part in values::list(value)? {
                    let change = values::allowed_ip(part)?;
                    if let AllowedIpChange::Add(block) | AllowedIpChange::Remove(block) = change
                        && values::has_host_bits(part)
                    {
                        let masked = format!("AllowedIPs: {part} has host bits: {block} is meant");
                        self.warnings.push((number, masked));
                    }
                    peer.allowed_ips.push(change);
                    peer.incremental |= part.starts_with(['+', '-']);
                }
            }
            _ => peer.persistent_keepalive = Some(values::keepalive(value)?),
        }
        Ok(())
    }
}
