//! `adit-lab fleet`: peers from a store, and gateways that take each other's place.
//!
//! - `store`: a real etcd;
//! - `clients`: clients that ping through the tunnel;
//! - `strangers`: a flood of unknown keys;
//! - `parts`: what is measured;
//! - `model`: what that means for larger fleets.

mod clients;
mod model;
mod parts;
mod store;
mod strangers;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::goals::{GoalResult, Limit};
use crate::implementation::{Entry, Implementation};
use crate::output::JsonArg;
use crate::rounds::{Experiment, Measure, RoundArgs, Values, measure};
use crate::sandbox::Failure;
use crate::tools;

/// Measures peers from etcd, and gateways that take each other's place.
///
/// Builds gateways, etcd and clients in network namespaces, for each part in each round anew. Two parts
/// are about `adit agent`, which others do not have: peers that come just in time, and a flood of unknown keys beside
/// peers that come. Two are about a gateway that dies, with clients that ping each 100 ms, or, if there are more than
/// 1,000, 10,000 times a second together: another one with its key gets its address, and calls the peers (`adit call`)
/// or waits for them. The clients, the gateways and etcd share
/// the machine. All parts take some four minutes a round.
///
/// JSON is one object with `schema` (2), `command`, `started`, `machine`, `stopped`, `rounds`, `records`,
/// `clients`, `implementations`, `parts`, `goals` and `notes`. `silence` has percentiles of the milliseconds without an
/// answer after a gateway died: a client that did not come back has the whole time that was waited. `model` is what the
/// measured values mean for other `fleets`, and `limits`: for how many peers something takes too much.
///
/// Needs root, etcd, curl, ip and wg. Leaves nothing behind.
#[derive(Args, Clone, Debug)]
#[command(mut_arg("rounds", |rounds| rounds.default_value("3")))]
pub(crate) struct FleetArgs {
    #[command(flatten)]
    rounds: RoundArgs,
    /// Records in etcd.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1000..=1_000_000))]
    records: u32,
    /// Clients of the gateway that dies.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    clients: u32,
    /// Only these parts.
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    only: Vec<Part>,
    #[command(flatten)]
    json: JsonArg,
}

/// What is measured after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Part {
    /// An agent that has all records, and changes of them.
    Records,
    /// Unknown peers that have a record, 200 a second.
    JustInTime,
    /// 60,000 unknown keys a second from one address, and 20 peers that have a record.
    FloodOne,
    /// The same from 4,096 forged addresses.
    FloodMany,
    /// A gateway dies, and the other one calls its peers.
    Called,
    /// A gateway dies, and the other one waits for its peers.
    Waiting,
}

const PUTS: &str = "puts";
const LIST: &str = "list";
const AGENT_MEMORY: &str = "agent_memory";
const ADDED: &str = "added";
const REMOVED: &str = "removed";
const MEDIAN: &str = "median";
const P95: &str = "p95";
const P99: &str = "p99";
const SLOWEST: &str = "slowest";
const CONNECTED: &str = "connected";
const LOOKUPS: &str = "lookups";
const SENT: &str = "sent";
const CALL_CPU: &str = "call_cpu";

/// Percentiles of the silence of clients, each with the name of its value.
const PERCENTILES: [(u32, &str); 10] = [
    (1, "silence_1"),
    (5, "silence_5"),
    (10, "silence_10"),
    (25, "silence_25"),
    (50, "silence_50"),
    (75, "silence_75"),
    (90, "silence_90"),
    (95, "silence_95"),
    (99, "silence_99"),
    (100, "silence_100"),
];

const MEASURES: [Measure; 13] = [
    measure(PUTS, "records put into etcd", "1/s", 0),
    measure(LIST, "all peers are brought after", "s", 1),
    measure(AGENT_MEMORY, "memory of the agent", "MiB", 0),
    measure(ADDED, "a new record is a peer after, median", "ms", 1),
    measure(REMOVED, "a peer is removed after, median", "ms", 1),
    measure(MEDIAN, "time without an answer, median", "ms", 0),
    measure(P95, "  95th percentile", "ms", 0),
    measure(P99, "  99th percentile", "ms", 0),
    measure(SLOWEST, "  slowest", "ms", 0),
    measure(CONNECTED, "peers that connect", "%", 1),
    measure(LOOKUPS, "look-ups", "1/s", 1),
    measure(SENT, "initiations sent, thousand", "1/s", 0),
    measure(CALL_CPU, "CPU time of the gateway, a peer", "ms", 2),
];

pub(crate) fn run(args: &FleetArgs) -> Result<(), Failure> {
    tools::require(&[
        ("etcd", "--version", "etcd-server"),
        ("curl", "--version", "curl"),
        ("ip", "-V", "iproute2"),
        ("wg", "--version", "wireguard-tools"),
    ])?;
    let json = args.json.open()?;
    let mut experiment = Experiment::new(&MEASURES);
    let measure = |entry: &Entry, part: Part| -> Result<Values, Failure> {
        let is_adit = entry.who == Implementation::Adit;
        match part {
            Part::Waiting => parts::fail_over(entry, args.clients, false),
            _ if !is_adit => Err("it has no such command".into()),
            Part::Records => parts::records(entry, args.records),
            Part::JustInTime => parts::just_in_time(entry, args.records),
            Part::FloodOne => parts::flood(entry, 1),
            Part::FloodMany => parts::flood(entry, u32::MAX),
            Part::Called => parts::fail_over(entry, args.clients, true),
        }
    };
    experiment.run(&args.rounds, &args.only, measure, |_, values| {
        progress(values)
    })?;
    let goals = goals(&experiment);
    let model = model::Model::of(&experiment, args.records, args.clients);
    let tables = experiment.tables(experiment.parts())
        + &model.as_ref().map_or_else(String::new, model::Model::table)
        + &experiment.end(&goals);
    let mut document = experiment.document("fleet", "part", &goals);
    document["records"] = json!(args.records);
    document["clients"] = json!(args.clients);
    document["schema"] = json!(2);
    document["silence"] = silence(&experiment);
    document["model"] = json!(model.map(|it| it.json()));
    experiment.publish(json, &tables, &document)
}

/// Percentiles of the time without an answer, where it was measured.
fn silence(experiment: &Experiment<Part>) -> Value {
    let rows = PERCENTILES.iter().filter_map(|(percentile, id)| {
        let [called, waiting] = [Part::Called, Part::Waiting].map(|it| experiment.values(it, id));
        let row = json!({"percentile": percentile, "called": called, "waiting": waiting});
        (!called.is_empty() || !waiting.is_empty()).then_some(row)
    });
    rows.collect()
}

fn progress(values: &Values) -> String {
    let shown = values.iter().filter_map(|&(id, value)| {
        let measure = MEASURES.iter().find(|measure| measure.id == id)?;
        Some(format!(
            "{} {value:.*}",
            measure.label().trim(),
            measure.places
        ))
    });
    shown.collect::<Vec<_>>().join(" · ")
}

fn goals(experiment: &Experiment<Part>) -> Vec<GoalResult> {
    use Limit::{AtLeast, AtMost};
    let goals = [
        (Part::Records, REMOVED, AtMost(100.0), " ms"),
        (Part::JustInTime, P99, AtMost(50.0), " ms"),
        (Part::JustInTime, CONNECTED, AtLeast(100.0), " %"),
        (Part::FloodOne, LOOKUPS, AtMost(100.0), " a second"),
        (Part::FloodOne, CONNECTED, AtLeast(100.0), " %"),
        (Part::FloodMany, LOOKUPS, AtMost(100.0), " a second"),
        (Part::FloodMany, CONNECTED, AtLeast(100.0), " %"),
        (Part::Called, P99, AtMost(200.0), " ms"),
    ];
    let judged = goals.into_iter().filter_map(|(part, id, limit, unit)| {
        let value = experiment.summary(part, id, Implementation::Adit)?.median;
        let name = format!("{}: {id}", crate::output::name(part));
        Some(GoalResult::new(name, value, limit, unit))
    });
    judged.collect()
}
