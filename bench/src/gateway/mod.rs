//! `adit-lab gateway`: what a gateway with many peers and interfaces is measured by.
//!
//! - `slow`: whether peers are delayed when the path to another one fails;
//! - `tunnels`: many interfaces, in one process where the implementation can;
//! - `fairness`: what each of several busy peers gets;
//! - `overload`: what an application receives of more than can be carried;
//! - `active`: up to 10,000 peers that are all active, played by the lab (`many`, `clients`, `load`,
//!   `tcp`);
//! - `state`: half a million peers, most of them silent (`beside` is who must not notice).

mod active;
mod beside;
pub(crate) mod clients;
mod fairness;
pub(crate) mod load;
pub(crate) mod many;
mod measures;
mod overload;
mod peers;
mod report;
mod slow;
pub(crate) mod state;
mod tcp;
mod tunnels;

#[cfg(test)]
mod tests;

use clap::{Args, ValueEnum};

use crate::implementation::{Entry, Implementation};
use crate::output::JsonArg;
use crate::pair::require_congestion;
use crate::rounds::{Experiment, RoundArgs, Values};
use crate::sandbox::Failure;
use crate::tools;
use measures::MEASURES;
pub(crate) use tunnels::{Tunnels, inner};

/// Measures what a gateway with many peers and interfaces needs: isolation, fairness, overload.
///
/// Builds hosts in network namespaces, and measures each implementation in alternating rounds.
///
/// Isolation: a TCP stream and pings to one peer, alone and beside a UDP flood of 200 Mb/s to peers
/// behind a path that fails. Interfaces: four tunnels against one, and a thousand idle ones.
/// Fairness: TCP to 2, 8 and 64 peers at once. Overload: what an application that reads one
/// datagram a call receives of UDP, by offered rate, in one direction and in both. Active peers: 1 to
/// 10,000 of them, all played by this process, half over IPv4 and half over IPv6, exchange UDP with
/// an application behind the gateway, in turn, as fast as it goes; then a hundred of them have a TCP
/// connection each. State: 500,000 peers are loaded while a stream and pings to another go on, and
/// 20,000 of them shake hands within 5 s after a restart.
///
/// A round of one implementation takes some six minutes with all cases. What an implementation
/// cannot do is in the table as "cannot", and the reason below it.
///
/// `adit-lab chart FILE --out DIR` draws the curves of what `--json=FILE` wrote.
///
/// JSON is one object with `schema` (1), `command`, `started`, `machine`, `rounds`,
/// `congestion_control` and `implementations`. Each of the `cases` has `measures`, and each of
/// these, for each implementation, the value of every round, `median`, `min`, `max` and `spread`;
/// in `cannot` it has the reason why an implementation has no value at all. Each of the `goals`
/// has `name`, `value`, `goal` and `met`. `notes` say what did not work.
///
/// Needs root, iperf3, ping, ip, tc and wg. Leaves nothing behind.
#[derive(Args, Clone, Debug)]
pub(crate) struct GatewayArgs {
    #[command(flatten)]
    rounds: RoundArgs,
    /// Measure only these cases.
    #[arg(long, value_delimiter = ',', value_name = "CASE")]
    only: Vec<Case>,
    /// How many peers the case `state` loads. Other implementations get 20,000 at most.
    #[arg(long, default_value_t = 500_000, value_name = "PEERS", value_parser = clap::value_parser!(u32).range(1000..=1_000_000))]
    silent_peers: u32,
    /// TCP's congestion control.
    #[arg(long, default_value = "cubic")]
    congestion: String,
    #[command(flatten)]
    json: JsonArg,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Case {
    /// One peer behind 10 Mb/s.
    Slow,
    /// 50 peers behind 10 Mb/s.
    SlowPeers,
    /// Packets vanish on the path.
    BlackHole,
    /// The address of the peer's host is not resolved.
    NoNeighbour,
    /// The gateway has no route to the peer.
    NoRoute,
    /// The peer's port is closed: ICMP errors come back.
    ClosedPort,
    /// Four tunnels between two hosts, against one.
    FourTunnels,
    /// One idle interface.
    #[value(name = "interfaces-1")]
    Interfaces1,
    /// 10 of them.
    #[value(name = "interfaces-10")]
    Interfaces10,
    /// 100 of them.
    #[value(name = "interfaces-100")]
    Interfaces100,
    /// A thousand interfaces in one process; a hundred where each needs a process of its own.
    Interfaces,
    /// Bulk TCP to two peers.
    #[value(name = "peers-2")]
    Peers2,
    /// Bulk TCP to 8 peers.
    #[value(name = "peers-8")]
    Peers8,
    /// Bulk TCP to 64 peers.
    #[value(name = "peers-64")]
    Peers64,
    /// More UDP than can be carried, in one direction.
    Overload,
    /// The same in both directions.
    OverloadBoth,
    /// One active peer that the lab plays.
    #[value(name = "peers-active-1")]
    Active1,
    /// 10 of them.
    #[value(name = "peers-active-10")]
    Active10,
    /// 100 of them.
    #[value(name = "peers-active-100")]
    Active100,
    /// 1,000 of them.
    #[value(name = "peers-active-1000")]
    Active1000,
    /// 10,000 of them.
    #[value(name = "peers-active-10000")]
    Active10000,
    /// Half a million peers, most of them silent.
    State,
}

impl Case {
    /// The same load with more and more peers.
    const ACTIVE: [Self; 5] = [
        Self::Active1,
        Self::Active10,
        Self::Active100,
        Self::Active1000,
        Self::Active10000,
    ];

    /// One round.
    fn measure(self, entry: &Entry, args: &GatewayArgs) -> Result<Values, Failure> {
        match self {
            Self::FourTunnels => tunnels::four(entry, &args.congestion),
            Self::Interfaces1 => tunnels::interfaces(entry, 1),
            Self::Interfaces10 => tunnels::interfaces(entry, 10),
            Self::Interfaces100 => tunnels::interfaces(entry, 100),
            Self::Interfaces if entry.who == Implementation::Adit => {
                tunnels::interfaces(entry, 1000)
            }
            Self::Interfaces => tunnels::interfaces(entry, 100),
            Self::Peers2 => fairness::fairness(entry, 2, &args.congestion),
            Self::Peers8 => fairness::fairness(entry, 8, &args.congestion),
            Self::Peers64 => fairness::fairness(entry, 64, &args.congestion),
            Self::Overload => overload::overload(entry, false),
            Self::OverloadBoth => overload::overload(entry, true),
            Self::Active1 => active::active(entry, 1, &args.congestion),
            Self::Active10 => active::active(entry, 10, &args.congestion),
            Self::Active100 => active::active(entry, 100, &args.congestion),
            Self::Active1000 => active::active(entry, 1000, &args.congestion),
            Self::Active10000 => active::active(entry, 10_000, &args.congestion),
            Self::State => state::state(entry, args.silent_peers),
            failing_path => slow::slow(entry, failing_path, &args.congestion),
        }
    }
}

/// Runs all cases.
pub(crate) fn run(args: &GatewayArgs) -> Result<(), Failure> {
    tools::require(&tools::LOAD)?;
    require_congestion(&args.congestion)?;
    let json = args.json.open()?;
    let mut run = Experiment::new(&MEASURES);
    let measure = |entry: &Entry, case: Case| case.measure(entry, args);
    run.run(&args.rounds, &args.only, measure, progress)?;
    let goals = report::goals(&run);
    let mut document = run.document("gateway", "case", &goals);
    document["congestion_control"] = args.congestion.as_str().into();
    run.publish(json, &report::table(&run, &goals), &document)
}

/// The values that goals are about.
fn progress(case: Case, values: &Values) -> String {
    let goals = measures::goals(case, 1);
    let shown = values.iter().filter_map(|(id, value)| {
        let wanted = goals.iter().any(|(of, _)| of == id);
        let measure = MEASURES.iter().find(|measure| measure.id == *id)?;
        let places = measure.places;
        wanted.then(|| format!("{id} {value:.places$} {}", measure.unit))
    });
    shown.collect::<Vec<_>>().join(" · ")
}
