//! `adit peers` and `adit peer show`: the peers of the file and of the running interface.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use adit_ctl::config::{self, Config};
use adit_ctl::status::{AllowanceJson, InterfaceJson};
use adit_ctl::text::{printable_json, printable_lines};
use serde::Serialize;

use super::file;
use super::roster::{Entry, PeerActivity, Roster, is_missing, quoted};
use crate::agent::brought_to;
use crate::cli::{self, ConfArgs, PeerSort, PeersArgs, ShowPeerArgs};
use crate::failure::{Context, Failure, Result, bail, say};
use crate::show::{self, now};
use crate::view::{self, Filter};

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;

/// Version of the JSON of `adit peers` and `adit peer`.
pub(super) const SCHEMA: u32 = 1;

/// Every field of the JSON of `adit peers`, for the manual page.
pub(crate) const FIELDS: &[(&str, &str)] = &[
    (
        "schema",
        "Version of the document. Fields may be added under the same version.",
    ),
    ("interface", "The interface."),
    (
        "is_up",
        "Whether a process serves it. If none does, the peers are those of the file.",
    ),
    (
        "has_file",
        "Whether its file is there. If it is not, the peers are those of the interface.",
    ),
    (
        "peers[].public_key",
        "The peer's public key, in base64. Absent where it may be a secret in the wrong place.",
    ),
    (
        "peers[].name",
        "What people call it. Absent without a name.",
    ),
    (
        "peers[].allowed_ips",
        "Blocks of addresses that are the peer's.",
    ),
    (
        "peers[].state",
        "`connected` while it has a session, `idle` when it had one, `never` when it had none since the interface is up, \
         `disabled`; absent where the interface is down or does not have the peer.",
    ),
    (
        "peers[].in_file",
        "Whether the file has it, disabled peers included.",
    ),
    (
        "peers[].in_interface",
        "Whether the running interface has it.",
    ),
    (
        "peers[].endpoint",
        "Address and port that it is reached at now. Absent while that is not known.",
    ),
    (
        "peers[].latest_handshake",
        "Seconds since the Unix epoch. Absent before the first.",
    ),
    (
        "peers[].transfer_rx",
        "Bytes received from it. Absent where the interface does not have it.",
    ),
    (
        "peers[].transfer_tx",
        "Bytes sent to it. Absent as the former.",
    ),
    (
        "peers[].allowance",
        "What it may do, as in adit-show(8). Absent for a peer that may do everything.",
    ),
    (
        "peers[].note",
        "Where file and interface differ, and what to type. Absent where they do not.",
    ),
];

/// The document of `adit peers --json`.
#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    interface: &'a str,
    is_up: bool,
    has_file: bool,
    peers: Vec<Shown>,
}

/// A peer as JSON.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Shown {
    #[serde(skip_serializing_if = "Option::is_none")]
    public_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    allowed_ips: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) state: Option<PeerActivity>,
    pub(super) in_file: bool,
    pub(super) in_interface: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latest_handshake: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transfer_rx: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transfer_tx: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allowance: Option<AllowanceJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl Shown {
    pub(super) fn of(entry: &Entry, roster: &Roster, now: u64) -> Self {
        let traffic = entry.traffic();
        Self {
            public_key: entry.shown_key(),
            name: entry.name.clone(),
            allowed_ips: entry.blocks.iter().map(ToString::to_string).collect(),
            state: entry.state(now),
            in_file: entry.is_in_file(),
            in_interface: entry.running.is_some(),
            endpoint: (entry.running.as_ref()).and_then(|peer| peer.endpoint.clone()),
            latest_handshake: entry.handshake(),
            transfer_rx: traffic.map(|(rx, _)| rx),
            transfer_tx: traffic.map(|(_, tx)| tx),
            allowance: entry.allowance.clone(),
            note: entry.note(roster),
        }
    }
}

pub(crate) fn peers(args: &PeersArgs) -> Result<()> {
    let roster = Roster::open(&args.conf)?;
    let now = now();
    let chosen = roster.chosen(args.peer.as_deref(), args.sort);
    if args.json {
        return print_json(&roster.document(&chosen, now));
    }
    cli::print(printable_lines(&roster.table(&chosen, now)).as_bytes())
}

pub(crate) fn show_peer(args: &ShowPeerArgs) -> Result<()> {
    let roster = Roster::open(&args.of.conf)?;
    let now = now();
    let entry = roster.find(&args.of.peer)?;
    if args.json {
        return print_json(&roster.document(&[entry], now));
    }
    cli::print(printable_lines(&roster.block(entry, now)).as_bytes())
}

pub(crate) fn print_json(document: &impl Serialize) -> Result<()> {
    let json = serde_json::to_string_pretty(document);
    let json = json.context(|| "cannot write JSON".into())? + "\n";
    cli::print(printable_json(&json).as_bytes())
}

impl Roster {
    /// What the file says and what runs; one of them is enough.
    fn open(conf: &ConfArgs) -> Result<Self> {
        let (path, name) = config::locate(&conf.conf).map_err(Failure::Mistake)?;
        let running = match show::interface_status(&name) {
            Ok(status) => Some(status),
            Err(error) if error.is_unserved() => None,
            Err(error) => return Err(show::explain(&name, error)),
        };
        let config = read(&path, &name, running.as_ref())?;
        let called = (&*name, file::called(&path));
        let roster = Self::new(called, config.as_ref(), running.as_ref());
        Ok(match roster.runs {
            // Only root may read that; others see that it runs.
            true => roster.with_agent(brought_to(&name).unwrap_or_default()),
            false => roster.with_used(adit_engine::used_quotas(&file::peers_file(&name))),
        })
    }

    /// Those that pass, in order.
    fn chosen(&self, pattern: Option<&str>, sort: PeerSort) -> Vec<&Entry> {
        let filter = Filter::new(pattern.unwrap_or_default());
        let passes = |entry: &&Entry| {
            let blocks: Vec<String> = entry.blocks.iter().map(ToString::to_string).collect();
            let endpoint = (entry.running.as_ref()).and_then(|peer| peer.endpoint.as_deref());
            let key = entry.shown_key().unwrap_or_default();
            let name = entry.name.as_deref();
            filter.matches(name, &key, endpoint, || blocks.iter().map(String::as_str))
        };
        let mut chosen: Vec<&Entry> = self.peers.iter().filter(passes).collect();
        chosen.sort_by_cached_key(|it| (it.name.is_none(), it.label().to_lowercase(), it.key));
        match sort {
            PeerSort::Name => {}
            PeerSort::Handshake => chosen.sort_by_key(|it| std::cmp::Reverse(it.handshake())),
            PeerSort::Traffic => chosen.sort_by_key(|it| {
                let sum = it.traffic().map(|(rx, tx)| rx.saturating_add(tx));
                std::cmp::Reverse(sum)
            }),
            PeerSort::Address => chosen.sort_by_cached_key(|it| it.first_address()),
        }
        chosen
    }

    fn document(&self, chosen: &[&Entry], now: u64) -> Document<'_> {
        let peers = chosen.iter().map(|entry| Shown::of(entry, self, now));
        Document {
            schema: SCHEMA,
            interface: &self.name,
            is_up: self.runs,
            has_file: self.has_file,
            peers: peers.collect(),
        }
    }

    /// A line about all, and one for each peer.
    fn table(&self, chosen: &[&Entry], now: u64) -> String {
        let mut out = self.summary(chosen, now);
        if chosen.is_empty() {
            return out;
        }
        let widest = |of: &dyn Fn(&Entry) -> String, least: usize, most: usize| {
            let widths = chosen.iter().map(|it| of(it).chars().count());
            widths.max().unwrap_or(0).clamp(least, most)
        };
        let addresses = |entry: &Entry| entry.addresses().join(", ");
        let name = widest(&|it| it.name.clone().unwrap_or_default(), 4, 24);
        let address = widest(&addresses, 9, 40);
        let has_terms = chosen.iter().any(|it| it.allowance.is_some());
        let mut line = |cells: [&str; 10]| {
            let [
                called,
                key,
                of,
                state,
                handshake,
                rx,
                tx,
                limit,
                expires,
                note,
            ] = cells;
            let terms = match has_terms {
                true => format!("{limit:<10}  {expires:<10}  "),
                false => String::new(),
            };
            let text = format!(
                "{}  {}  {}  {state:<9}  {handshake:>9}  {rx:>7}  {tx:>7}  {terms}{note}",
                view::cell(called, name, false),
                view::cell(key, 9, false),
                view::cell(of, address, false),
            );
            _ = writeln!(out, "{}", text.trim_end());
        };
        line([
            "NAME",
            "KEY",
            "ADDRESSES",
            "STATE",
            "HANDSHAKE",
            "RX",
            "TX",
            "LIMIT",
            "EXPIRES",
            "",
        ]);
        for entry in chosen {
            let amount = |of: fn((u64, u64)) -> u64| {
                let bytes = entry.traffic().map(of);
                bytes.map_or_else(|| "-".into(), view::bytes)
            };
            line([
                entry.name.as_deref().unwrap_or("-"),
                &entry.short_key(),
                &addresses(entry),
                entry.state(now).map_or("-", PeerActivity::name),
                &view::age(entry.handshake(), now),
                &amount(|(rx, _)| rx),
                &amount(|(_, tx)| tx),
                &entry.limit().unwrap_or_else(|| "-".into()),
                &entry.expires().map_or("-".into(), |it| it[..10].to_owned()),
                &entry.note(self).unwrap_or_default(),
            ]);
        }
        out
    }

    fn summary(&self, chosen: &[&Entry], now: u64) -> String {
        let Roster { name, called, .. } = self;
        let count = |state| {
            chosen
                .iter()
                .filter(|it| it.state(now) == Some(state))
                .count()
        };
        let peers = match chosen.len() {
            1 => "1 peer".to_owned(),
            several => format!("{several} peers"),
        };
        let mut out = match self.runs {
            true => format!(
                "{name}: {peers}, {} connected",
                count(PeerActivity::Connected)
            ),
            false => format!("{name}: {peers}"),
        };
        match count(PeerActivity::Disabled) {
            0 => {}
            disabled => _ = write!(out, ", {disabled} disabled"),
        }
        out += match (self.runs, self.has_file) {
            (true, true) => "",
            (true, false) => "; without a file",
            (false, _) => "; not up, this is the file",
        };
        match self.peers.len() {
            0 => _ = writeln!(out, "\n`adit new-peer {called} --name phone` adds one"),
            _ if chosen.is_empty() => _ = writeln!(out, "\n`adit peers {called}` lists all"),
            _ => out.push('\n'),
        }
        out
    }

    /// Some lines about one peer.
    fn block(&self, entry: &Entry, now: u64) -> String {
        let mut out = format!("peer: {}\n", entry.label());
        let mut line = |title: &str, text: &str| _ = writeln!(out, "  {title}: {text}");
        if let Some(key) = entry.shown_key() {
            line("public key", &key);
        }
        line(
            "addresses",
            &match entry.addresses().as_slice() {
                [] => "none".to_owned(),
                some => some.join(", "),
            },
        );
        line(
            "state",
            match (entry.state(now), self.runs) {
                (Some(state), _) => state.name(),
                (None, true) => "not running",
                (None, false) => "the interface is not up",
            },
        );
        if let Some(endpoint) = entry.running.as_ref().and_then(|it| it.endpoint.as_ref()) {
            line("endpoint", endpoint);
        }
        if let Some(at) = entry.handshake() {
            line(
                "latest handshake",
                &format!("{} ago", view::age(Some(at), now)),
            );
        }
        if let Some((rx, tx)) = entry.traffic() {
            let text = format!("{} received, {} sent", view::bytes(rx), view::bytes(tx));
            line("transfer", &text);
        }
        if let Some(limit) = entry.limit() {
            line("limit", &format!("{limit} bit/s, to the peer/from it"));
        }
        let quota = entry.allowance.as_ref();
        if let Some((of, quota)) = quota.and_then(|of| Some((of, of.quota_bytes?))) {
            let text = format!(
                "{} of {} used",
                view::bytes(of.used_bytes),
                view::bytes(quota)
            );
            line("quota", &text);
        }
        if let Some(expires) = entry.expires() {
            line("expires", &expires);
        }
        if let Some(note) = entry.note(self) {
            line("note", &note);
        }
        out
    }
}

/// The file, which need not be there if the interface runs.
fn read(path: &Path, name: &str, running: Option<&InterfaceJson>) -> Result<Option<Config>> {
    let shown = quoted(&PathBuf::from(path).display().to_string());
    if is_missing(path) {
        if running.is_some() {
            return Ok(None);
        }
        bail!(
            Mistake,
            "{name} is not up, and there is no file {shown}: `adit init {}` makes one for a hub",
            file::called(path)
        );
    }
    match config::read(path) {
        Ok((text, _)) => {
            let parsed = Config::parse(&text, &path.display().to_string());
            parsed.map(Some).map_err(|errors| {
                let first = errors.0.first().map(ToString::to_string);
                Failure::Mistake(format!(
                    "{}: `adit check {shown}` says all that is wrong",
                    first.unwrap_or_default()
                ))
            })
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied && running.is_some() => {
            say!("adit: cannot read {shown}: only what runs is shown; root sees both");
            Ok(None)
        }
        Err(error) => bail!(State, "cannot read {shown}: {error}; run as root"),
    }
}
