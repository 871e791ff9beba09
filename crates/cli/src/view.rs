//! Peers as rows: what `adit show`, when there are many, and `adit top` print. Filters, orders,
//! rates and short numbers.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use adit_ctl::status::{InterfaceJson, PeerJson, PeerRef};
use adit_proto::config::Cidr;

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
    /// The beginning of a key, as lines of peers shorten it.
    key: String,
    ip: Option<IpAddr>,
}

impl Filter {
    /// Nothing passes all.
    pub(crate) fn new(words: &str) -> Self {
        Self {
            words: words.to_owned(),
            lower: words.to_lowercase(),
            key: words.strip_suffix('…').unwrap_or(words).to_owned(),
            ip: words.parse().ok(),
        }
    }

    pub(crate) fn words(&self) -> &str {
        &self.words
    }

    /// Whether a peer passes.
    pub(crate) fn passes(&self, peer: &PeerJson) -> bool {
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

    pub(crate) fn matches<'a, I: Iterator<Item = &'a str>>(
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
            || (!self.key.is_empty() && key.starts_with(&self.key))
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

/// Of bytes received, of bytes sent, and of packets dropped, in a second.
pub(crate) type Rates = [f32; 3];

/// The counters of all peers at one time, to tell rates from the next.
pub(crate) struct Sample {
    at: Instant,
    peers: HashMap<(Arc<str>, Arc<str>), [u64; 3]>,
}

impl Sample {
    pub(crate) fn of<'a>(rows: impl IntoIterator<Item = &'a Row>, at: Instant) -> Self {
        let counted = |row: &Row| {
            let names = (Arc::clone(&row.interface), Arc::clone(&row.key));
            (names, row.counted())
        };
        let peers = rows.into_iter().map(counted).collect();
        Self { at, peers }
    }
}

/// A peer as it is now. Cheap to copy.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Row {
    known: Arc<Known>,
    /// `None` for one that was not there before.
    pub(crate) rates: Option<Rates>,
}

impl Row {
    pub(crate) fn new(known: Arc<Known>, rates: Option<Rates>) -> Self {
        Self { known, rates }
    }
}

impl Deref for Row {
    type Target = Known;

    fn deref(&self) -> &Known {
        &self.known
    }
}

/// A peer as it is shown. There may be many thousands of them.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Known {
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
    /// The look that told this, if there are several, and the rates from the one before to that.
    pub(crate) told: (u64, Option<Rates>),
}

impl Known {
    pub(crate) fn new(interface: Arc<str>, peer: &PeerRef<'_>) -> Self {
        let most = peer.drops.iter().max_by_key(|(_, packets)| **packets);
        let failure = peer.last_failure.as_ref();
        let failure = failure.filter(|failure| Some(failure.at) > peer.latest_handshake);
        let words = |text: &str| text.replace('_', " ").into_boxed_str();
        let blocks: Box<str> = match peer.allowed_ips.as_slice() {
            [one] => (**one).into(),
            several => {
                let several: Vec<&str> = several.iter().map(|block| &**block).collect();
                several.join(",").into()
            }
        };
        let endpoint = peer.endpoint.as_ref();
        let latency = peer.handshake_microseconds;
        Self {
            interface,
            given_name: peer.name.as_ref().map(|name| (**name).into()),
            key: (*peer.public_key).into(),
            state: state(peer),
            endpoint: endpoint.map_or_else(Box::default, |endpoint| (**endpoint).into()),
            blocks,
            handshake: peer.latest_handshake,
            latency: latency.map(|it| it.try_into().unwrap_or(u32::MAX)),
            unanswered: peer.unanswered.unwrap_or(0),
            failure: failure.map(|failure| words(&failure.reason)),
            rx: peer.transfer_rx,
            tx: peer.transfer_tx,
            drops: peer.drops.values().copied().fold(0, u64::saturating_add),
            drop_reason: most.map(|(reason, _)| words(reason)),
            told: (0, None),
        }
    }

    fn counted(&self) -> [u64; 3] {
        [self.rx, self.tx, self.drops]
    }

    /// The rates since it was as `before`, so many seconds ago.
    pub(crate) fn rates(&self, before: &Self, seconds: f64) -> Rates {
        rates(self.counted(), before.counted(), seconds)
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
fn state(peer: &PeerRef<'_>) -> Cow<'static, str> {
    let known = ["unknown", "up", "silent", "gone"];
    match (&peer.state, peer.latest_handshake) {
        (Some(state), _) => match known.into_iter().find(|known| **known == **state) {
            Some(known) => known.into(),
            None => state.to_string().into(),
        },
        (None, Some(_)) => "up".into(),
        (None, None) => "unknown".into(),
    }
}

fn rates(now: [u64; 3], before: [u64; 3], seconds: f64) -> Rates {
    let rate = |at: usize| coarse(precise(now[at].saturating_sub(before[at])) / seconds);
    [0, 1, 2].map(rate)
}

/// The rows of all peers, in their order.
pub(crate) fn rows(interfaces: &[InterfaceJson], before: Option<&Sample>, at: Instant) -> Vec<Row> {
    let mut rows = Vec::new();
    for interface in interfaces {
        let name: Arc<str> = interface.name.as_str().into();
        rows.extend(interface.peers.iter().map(|peer| {
            let known = Known::new(Arc::clone(&name), &peer.into());
            let rates = before.and_then(|before| {
                let names = (Arc::clone(&name), Arc::clone(&known.key));
                let counted = before.peers.get(&names)?;
                let seconds = at.duration_since(before.at).as_secs_f64().max(0.001);
                Some(rates(known.counted(), *counted, seconds))
            });
            Row::new(Arc::new(known), rates)
        }));
    }
    rows
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
            None => precise(row.counted()[which]),
        }
    };
    let by_key = |a: &u32, b: &u32| {
        let (a, b) = (row(a), row(b));
        (&a.interface, &a.key).cmp(&(&b.interface, &b.key))
    };
    let lower = |name: &'_ str| {
        name.chars()
            .flat_map(char::to_lowercase)
            .collect::<String>()
    };
    // Most peers are idle, and equal in that.
    let by_name = |a: &u32, b: &u32| {
        let order = match (&row(a).given_name, &row(b).given_name) {
            (Some(a), Some(b)) if a == b => Ordering::Equal,
            (Some(a), Some(b)) => lower(a).cmp(&lower(b)),
            (a, b) => b.is_some().cmp(&a.is_some()),
        };
        order.then_with(|| by_key(a, b))
    };
    let descending = |which: usize| {
        move |a: &u32, b: &u32| {
            let order = amount(b, which).total_cmp(&amount(a, which));
            order.then_with(|| by_name(a, b))
        }
    };
    match sort {
        Sort::Handshake => order.sort_by(|a, b| {
            let order = row(b).handshake.cmp(&row(a).handshake);
            order.then_with(|| by_name(a, b))
        }),
        Sort::Name => {
            order.sort_by(by_key);
            order.sort_by_cached_key(|at| {
                let row = row(at);
                (row.given_name.is_none(), row.name().to_lowercase())
            });
        }
        Sort::Endpoint => {
            order.sort_by(by_name);
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

/// `text` in so many columns at most: what is longer ends behind a word, with `…`.
pub(crate) fn fit(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    let next = text.chars().nth(kept.chars().count());
    let is_end = next.is_none_or(|c| matches!(c, ' ' | ','));
    let end = match kept.rfind(' ') {
        Some(end) if !is_end => end,
        _ => kept.len(),
    };
    let words = kept[..end].trim_end_matches([' ', ',']);
    words.chars().chain(['…']).take(width).collect()
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
