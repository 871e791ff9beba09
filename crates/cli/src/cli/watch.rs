//! The arguments of commands that watch interfaces.

use std::net::IpAddr;

use adit_ctl::status::Field;
use clap::{Args, ValueEnum};

use super::since::Since;
use super::values::{field, interface_name, seconds};
use crate::view::Sort;

#[derive(Args)]
pub(crate) struct ShowArgs {
    /// An interface; `all` of them, as without it; or `interfaces`, to print their names
    #[arg(value_name = "INTERFACE", value_parser = interface_name)]
    pub(crate) interface: Option<String>,
    /// Print only this, byte for byte as `wg show` does: public-key, private-key, listen-port,
    /// fwmark, peers, preshared-keys, endpoints, allowed-ips, latest-handshakes, transfer,
    /// persistent-keepalive or dump
    #[arg(value_name = "FIELD", value_parser = field, requires = "interface", conflicts_with = "json")]
    pub(crate) field: Option<Field>,
    /// Print JSON; `errors` names the interfaces that could not be asked
    #[arg(long)]
    pub(crate) json: bool,
    /// Only peers whose name has this in it, whose key begins with it, or whose endpoint or allowed
    /// IPs are meant by this address
    #[arg(long, value_name = "NAME|KEY|ADDRESS")]
    pub(crate) peer: Option<String>,
    /// The order of peers that have a line each
    #[arg(long, value_enum, default_value_t)]
    pub(crate) sort: Sort,
    /// A block of lines for each peer, as `wg show`, or one line; `auto` is lines for more than 16
    #[arg(long, value_enum, default_value_t)]
    pub(crate) layout: PeerLayout,
    /// Print again and again, every so many seconds (2 if not said), with rates
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
          require_equals = true, value_parser = seconds, conflicts_with_all = ["json", "field"])]
    pub(crate) watch: Option<f64>,
}

/// How `adit show` prints peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum PeerLayout {
    /// Lines where there are many peers
    #[default]
    Auto,
    /// A block for each peer
    Blocks,
    /// A line for each peer
    Lines,
}

#[derive(Args)]
pub(crate) struct WhyArgs {
    /// The interface
    #[arg(value_name = "INTERFACE", value_parser = interface_name)]
    pub(crate) interface: String,
    /// Only peers whose name has this in it, whose key begins with it, or whose endpoint or allowed
    /// IPs are meant by this address; without it all, or eight, those without a session first
    #[arg(value_name = "NAME|KEY|ADDRESS")]
    pub(crate) peer: Option<String>,
    /// An address behind the peer to try; by default one that the allowed IPs name alone, or the first
    /// one of the interface's network
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) inside: Option<IpAddr>,
    /// Seconds to wait for an answer; a second handshake message leaves after five
    #[arg(long, value_name = "SECONDS", default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=90))]
    pub(crate) wait: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct TopArgs {
    /// Only this interface
    #[arg(value_name = "INTERFACE", value_parser = interface_name)]
    pub(crate) interface: Option<String>,
    /// The order of peers
    #[arg(long, value_enum, default_value_t = Sort::Rx)]
    pub(crate) sort: Sort,
    /// Only peers whose name has this in it, whose key begins with it, or whose endpoint or allowed
    /// IPs are meant by this address
    #[arg(long, value_name = "NAME|KEY|ADDRESS")]
    pub(crate) peer: Option<String>,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub(crate) interval: f64,
}

#[derive(Args)]
pub(crate) struct MetricsArgs {
    /// Serve /metrics over HTTP at this address and port, as 127.0.0.1:9586, or at a UNIX socket,
    /// as unix:/run/adit-metrics.sock
    #[arg(long, value_name = "ADDRESS|unix:PATH")]
    pub(crate) listen: Option<String>,
    /// A name that clients know this host by, besides its own and localhost; repeatable. Requests to
    /// other names than these are refused (DNS rebinding), those to addresses are answered
    #[arg(long, value_name = "NAME", requires = "listen")]
    pub(crate) host: Vec<String>,
}

#[derive(Args)]
pub(crate) struct EventsArgs {
    /// Only this interface; without it all, those that come later included
    #[arg(value_name = "INTERFACE", value_parser = interface_name)]
    pub(crate) interface: Option<String>,
    /// Print what the journal kept since then, and end: 30m, 1h, 2d, or a date with or without a time,
    /// as 2026-11-29T12:00 (of this host's time zone, or with a Z of UTC)
    #[arg(long, value_name = "WHEN")]
    pub(crate) since: Option<Since>,
    /// With --since, go on with what happens from then on, as without it
    #[arg(short, long, requires = "since")]
    pub(crate) follow: bool,
    /// Print each event as a line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}
