//! Peers as rows: what `adit show`, when there are many, and `adit top` print. Filters, orders,
//! rates and short numbers.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use adit_ctl::status::{Interface, Peer};
use adit_proto::config::Cidr;

use crate::seen;

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;

/// The order of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sort {
    /// The latest handshake first, as `wg show` does
    #[default]
    Handshake,
    /// By name, then by key
    Name,
    /// By endpoint
    Endpoint,
    /// Most received first: bytes in a second, or in all
    Rx,
    /// Most sent first: bytes in a second, or in all
    Tx,
    /// Most dropped first: packets in a second, or in all
    Drops,
}

impl Sort {
    /// The next one, for a key that goes through all.
    pub(crate) fn next(self) -> Self {
        match self {
            Self::Handshake => Self::Name,
            Self::Name => Self::Endpoint,
            Self::Endpoint => Self::Rx,
            Self::Rx => Self::Tx,
            Self::Tx => Self::Drops,
            Self::Drops => Self::Handshake,
        }
    }

    /// Its word on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Handshake => "handshake",
            Self::Name => "name",
            Self::Endpoint => "endpoint",
            Self::Rx => "rx",
            Self::Tx => "tx",
            Self::Drops => "drops",
        }
    }
}

/// Which peers to show: those of which a name contains the words, a key begins with them, or an
/// address is meant by them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    words: String,
    lower: String,
    ip: Option<IpAddr>,
}

impl Filter {
    /// Nothing passes all.
    pub(crate) fn new(words: &str) -> Self {
        Self {
            words: words.to_owned(),
            lower: words.to_lowercase(),
            ip: words.parse().ok(),
        }
    }

    pub(crate) fn words(&self) -> &str {
        &self.words
    }

    /// Whether a peer passes.
    pub(crate) fn passes(&self, peer: &Peer) -> bool {
        let blocks = || peer.allowed_ips.iter().map(String::as_str);
        let (name, endpoint) = (peer.name.as_deref(), peer.endpoint.as_deref());
        self.matches(name, &peer.public_key, endpoint, blocks)
    }

    fn passes_row(&self, row: &Row) -> bool {
        let blocks = || row.blocks.split(',');
        self.matches(
            row.given_name.as_deref(),
            &row.key,
            Some(&row.endpoint),
            blocks,
        )
    }

    fn matches<'a, I: Iterator<Item = &'a str>>(
        &self,
        name: Option<&str>,
        key: &str,
        endpoint: Option<&str>,
        blocks: impl Fn() -> I,
    ) -> bool {
        let text = self.words.as_str();
        if text.is_empty() {
            return true;
        }
        let endpoint = endpoint.unwrap_or_default();
        let at_address = |ip: IpAddr| {
            let endpoint: Option<SocketAddr> = endpoint.parse().ok();
            endpoint.is_some_and(|endpoint| endpoint.ip() == ip)
                || blocks().filter_map(cidr).any(|block| block.contains(ip))
        };
        name.is_some_and(|name| name.to_lowercase().contains(&self.lower))
            || key.starts_with(text)
            || match self.ip {
                Some(ip) => at_address(ip),
                None => endpoint.starts_with(text) || blocks().any(|block| block.starts_with(text)),
            }
    }
}

fn cidr(block: &str) -> Option<Cidr> {
    let (ip, len) = block.split_once('/')?;
    Cidr::new(ip.parse().ok()?, len.parse().ok()?)
}

/// What a peer had counted at a time.
#[derive(Clone, Copy, Default)]
struct Counted {
    rx: u64,
    tx: u64,
    drops: u64,
}

/// The counters of all peers at one time, to tell rates from the next.
pub(crate) struct Sample {
    at: Instant,
    peers: Vec<(Arc<str>, Arc<str>, Counted)>,
}

impl Sample {
    pub(crate) fn of<'a>(rows: impl IntoIterator<Item = &'a Row>, at: Instant) -> Self {
        let counted = |row: &Row| {
            let Row { rx, tx, drops, .. } = *row;
            let counted = Counted { rx, tx, drops };
            (Arc::clone(&row.interface), Arc::clone(&row.key), counted)
        };
        let peers = rows.into_iter().map(counted).collect();
        Self { at, peers }
    }
}

/// Finds peers in a sample. They come in the order of the sample, but for those that came or went
/// meanwhile.
struct Finder<'a> {
    sample: &'a Sample,
    next: usize,
    /// Made when one stands elsewhere.
    places: Option<HashMap<(&'a str, &'a str), usize>>,
}

impl Finder<'_> {
    fn find(&mut self, interface: &str, key: &str) -> Option<Counted> {
        let peers = &self.sample.peers;
        let is_it =
            |(of, other, _): &&(Arc<str>, Arc<str>, Counted)| **other == *key && **of == *interface;
        if let Some((_, _, counted)) = peers.get(self.next).filter(is_it) {
            self.next += 1;
            return Some(*counted);
        }
        let places = self.places.get_or_insert_with(|| {
            let places = peers.iter().enumerate();
            places
                .map(|(at, (interface, key, _))| ((&**interface, &**key), at))
                .collect()
        });
        let at = *places.get(&(interface, key))?;
        self.next = at + 1;
        Some(peers[at].2)
    }
}

/// Makes rows of peers, in the order in which they come.
pub(crate) struct Rows<'a> {
    interface: Arc<str>,
    /// With the seconds since then.
    before: Option<(Finder<'a>, f64)>,
    pub(crate) rows: Vec<Row>,
}

impl<'a> Rows<'a> {
    /// `before` is for rates.
    pub(crate) fn new(before: Option<&'a Sample>, at: Instant) -> Self {
        let before = before.map(|sample| {
            let seconds = at.duration_since(sample.at).as_secs_f64();
            let finder = Finder {
                sample,
                next: 0,
                places: None,
            };
            (finder, seconds.max(0.001))
        });
        // As many as there were.
        let many = before
            .as_ref()
            .map_or(0, |(finder, _)| finder.sample.peers.len());
        Self {
            interface: Arc::from(""),
            before,
            rows: Vec::with_capacity(many),
        }
    }

    pub(crate) fn push(&mut self, interface: &str, peer: &seen::Peer<'_>) {
        if *self.interface != *interface {
            self.interface = Arc::from(interface);
        }
        let mut row = Row::new(Arc::clone(&self.interface), peer);
        if let Some((finder, seconds)) = &mut self.before
            && let Some(counted) = finder.find(interface, &row.key)
        {
            let rate =
                |now: u64, before: u64| coarse(precise(now.saturating_sub(before)) / *seconds);
            row.rates = Some([
                rate(row.rx, counted.rx),
                rate(row.tx, counted.tx),
                rate(row.drops, counted.drops),
            ]);
        }
        self.rows.push(row);
    }
}

/// One peer, ready to be shown. There may be many thousands of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Row {
    pub(crate) interface: Arc<str>,
    pub(crate) given_name: Option<Box<str>>,
    pub(crate) key: Arc<str>,
    pub(crate) state: Cow<'static, str>,
    pub(crate) endpoint: Box<str>,
    /// Allowed IPs, with commas.
    blocks: Box<str>,
    /// Seconds since the Unix epoch.
    pub(crate) handshake: Option<u64>,
    /// Microseconds.
    pub(crate) latency: Option<u32>,
    pub(crate) unanswered: u32,
    /// The reason of a failure since the latest handshake.
    pub(crate) failure: Option<Box<str>>,
    pub(crate) rx: u64,
    pub(crate) tx: u64,
    pub(crate) drops: u64,
    /// The reason that most packets were dropped for.
    pub(crate) drop_reason: Option<Box<str>>,
    /// Of bytes received, of bytes sent, and of packets dropped, in a second.
    pub(crate) rates: Option<[f32; 3]>,
}

impl Row {
    fn new(interface: Arc<str>, peer: &seen::Peer<'_>) -> Self {
        let most = peer.drops.iter().max_by_key(|(_, packets)| **packets);
        let failure = peer.last_failure.as_ref();
        let failure = failure.filter(|failure| Some(failure.at) > peer.latest_handshake);
        let words = |text: &str| text.replace('_', " ").into_boxed_str();
        let blocks: Box<str> = match peer.allowed_ips.as_slice() {
            [one] => (*one.0).into(),
            several => {
                let several: Vec<&str> = several.iter().map(|block| &*block.0).collect();
                several.join(",").into()
            }
        };
        let endpoint = peer.endpoint.as_ref();
        let latency = peer.handshake_microseconds;
        Self {
            interface,
            given_name: peer.name.as_ref().map(|name| (*name.0).into()),
            key: (*peer.public_key.0).into(),
            state: state(peer),
            endpoint: endpoint.map_or_else(Box::default, |endpoint| (*endpoint.0).into()),
            blocks,
            handshake: peer.latest_handshake,
            latency: latency.map(|it| it.try_into().unwrap_or(u32::MAX)),
            unanswered: peer.unanswered.unwrap_or(0),
            failure: failure.map(|failure| words(&failure.reason.0)),
            rx: peer.transfer_rx,
            tx: peer.transfer_tx,
            drops: peer.drops.values().sum(),
            drop_reason: most.map(|(reason, _)| words(&reason.0)),
            rates: None,
        }
    }

    /// Its name, or the beginning of its key.
    pub(crate) fn name(&self) -> Cow<'_, str> {
        match &self.given_name {
            Some(name) => Cow::Borrowed(name),
            None => Cow::Owned(self.key.chars().take(8).chain(['…']).collect()),
        }
    }
}

/// The peer's state; that of another implementation's peer is told by its handshake.
fn state(peer: &seen::Peer<'_>) -> Cow<'static, str> {
    let known = ["unknown", "up", "silent", "gone"];
    match (&peer.state, peer.latest_handshake) {
        (Some(state), _) => match known.into_iter().find(|known| *known == state.0) {
            Some(known) => known.into(),
            None => state.0.clone().into_owned().into(),
        },
        (None, Some(_)) => "up".into(),
        (None, None) => "unknown".into(),
    }
}

/// The rows of all peers, in their order.
pub(crate) fn rows(interfaces: &[Interface], before: Option<&Sample>, at: Instant) -> Vec<Row> {
    let mut rows = Rows::new(before, at);
    for interface in interfaces {
        for peer in &interface.peers {
            rows.push(&interface.name, &peer.into());
        }
    }
    rows.rows
}

/// The places of those that pass, in order.
pub(crate) fn order(rows: &[Row], filter: &Filter, sort: Sort) -> Vec<u32> {
    let all = (0_u32..).zip(rows);
    let passing = all.filter(|(_, row)| filter.passes_row(row));
    let mut order: Vec<u32> = passing.map(|(at, _)| at).collect();
    let row = |at: &u32| &rows[*at as usize];
    let amount = |at: &u32, which: usize| {
        let row = row(at);
        match row.rates {
            Some(rates) => rates[which].into(),
            None => precise([row.rx, row.tx, row.drops][which]),
        }
    };
    let by_key = |a: &u32, b: &u32| {
        let (a, b) = (row(a), row(b));
        (&a.interface, &a.key).cmp(&(&b.interface, &b.key))
    };
    let descending = |which: usize| {
        move |a: &u32, b: &u32| {
            let order = amount(b, which).total_cmp(&amount(a, which));
            order.then_with(|| by_key(a, b))
        }
    };
    match sort {
        Sort::Handshake => order.sort_by_key(|at| Reverse(row(at).handshake)),
        Sort::Name => {
            order.sort_by(by_key);
            order.sort_by_cached_key(|at| {
                let row = row(at);
                (row.given_name.is_none(), row.name().to_lowercase())
            });
        }
        Sort::Endpoint => {
            order.sort_by(by_key);
            order.sort_by_cached_key(|at| endpoint(row(at)));
        }
        Sort::Rx => order.sort_by(descending(0)),
        Sort::Tx => order.sort_by(descending(1)),
        Sort::Drops => order.sort_by(descending(2)),
    }
    order
}

/// By number; those without come last.
fn endpoint(row: &Row) -> (bool, Option<SocketAddr>, &str) {
    let addr = row.endpoint.parse().ok();
    (row.endpoint.is_empty(), addr, &row.endpoint)
}

/// For people: the last digits of a large number do not count.
pub(crate) fn precise(number: u64) -> f64 {
    number as f64
}

/// Three digits of a rate are shown, and there are many.
#[expect(clippy::cast_possible_truncation, reason = "seven digits remain")]
fn coarse(rate: f64) -> f32 {
    rate as f32
}

/// A number with three digits and a unit: `999`, `1.21K`, `12.1M`.
fn short(number: f64, base: f64) -> String {
    let units = ["", "K", "M", "G", "T", "P"];
    let (mut number, mut unit) = (number, 0);
    // What would be rounded up to four digits has the next unit.
    while number >= base - 0.5 && unit + 1 < units.len() {
        (number, unit) = (number / base, unit + 1);
    }
    let digits = match number {
        _ if unit == 0 => 0,
        n if n < 9.995 => 2,
        n if n < 99.95 => 1,
        _ => 0,
    };
    format!("{number:.digits$}{}", units[unit])
}

/// Bytes, in powers of 1024.
pub(crate) fn bytes(bytes: u64) -> String {
    short(precise(bytes), 1024.0)
}

/// Bytes in a second, as bits: in powers of 1000, as networks are sold.
pub(crate) fn bit_rate(bytes: f64) -> String {
    short(bytes * 8.0, 1000.0)
}

/// Packets, or packets in a second.
pub(crate) fn count(number: f64) -> String {
    short(number, 1000.0)
}

/// A time of `microseconds`.
pub(crate) fn latency(microseconds: u32) -> String {
    match microseconds {
        0..10_000 => format!("{:.1}ms", f64::from(microseconds) / 1000.0),
        10_000..10_000_000 => format!("{}ms", microseconds / 1000),
        _ => format!("{}s", microseconds / 1_000_000),
    }
}

/// How long ago `at` is at `now`: `59s`, `3m12s`, `5h07m`, `3d04h`; `-` for never.
pub(crate) fn age(at: Option<u64>, now: u64) -> String {
    let Some(at) = at else {
        return "-".to_owned();
    };
    let Some(seconds) = now.checked_sub(at) else {
        return "future".to_owned();
    };
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// `text` in exactly so many columns, cut with `…` if it is longer.
pub(crate) fn cell(text: &str, width: usize, is_right: bool) -> String {
    let length = text.chars().count();
    if length > width {
        let kept = text.chars().take(width.saturating_sub(1));
        return kept.chain(['…']).take(width).collect();
    }
    match is_right {
        true => format!("{text:>width$}"),
        false => format!("{text:<width$}"),
    }
}
