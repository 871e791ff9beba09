//! `adit-lab idle`: what a tunnel costs that carries nothing, and how one works on a small router.
//!
//! - this file: what is measured, the table and the document;
//! - `limits`: a part of a CPU and of memory for one process.

mod limits;

use std::time::Duration;

use adit_testbed::framing::Family;
use adit_testbed::proc;
use adit_testbed::stats::quantile;
use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::goals::{GoalResult, Limit};
use crate::hosts;
use crate::implementation::{Entry, Implementation};
use crate::measure::wait;
use crate::output::JsonArg;
use crate::pair::{LinkedHosts, Placement};
use crate::rounds::{Experiment, Measure, RoundArgs, Values, measure};
use crate::sandbox::Failure;
use crate::tools::{self, Iperf};
use limits::Limits;

/// Measures idle tunnels, and one whose daemon has a quarter of a CPU and 64 MiB.
///
/// Builds two hosts in network namespaces with a tunnel between them, for each implementation in
/// alternating rounds. Once the tunnel is silent, the wake-ups and the CPU time of one daemon are
/// counted, with one peer and with 1,000. Then a control group gives the daemon as much as a small
/// router has, and a TCP stream and pings go through it. One implementation takes some 90 seconds a
/// round.
///
/// JSON is one object with `schema` (1), `command`, `started`, `machine`, `stopped`, `rounds`,
/// `seconds`, `implementations`, `measures`, `goals` and `notes`. Each of the `measures` has `id`,
/// `title`, `unit` and, for each implementation, the value of every round, `median`, `min`, `max` and
/// `spread`. Each of the `goals` has `name`, `value`, `goal` and `met`. `notes` say what did not work.
///
/// Needs root, iperf3, ping, ip and wg; the small router needs control groups. Leaves nothing behind.
#[derive(Args, Clone, Debug)]
#[command(mut_arg("rounds", |rounds| rounds.default_value("3")))]
pub(crate) struct IdleArgs {
    #[command(flatten)]
    rounds: RoundArgs,
    /// Seconds that silence is watched.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    #[command(flatten)]
    json: JsonArg,
}

const MEASURES: [Measure; 9] = [
    measure("wakeups_1", "wake-ups, one peer", "1/s", 2),
    measure("cpu_1", "CPU time, one peer", "ms/s", 2),
    measure("memory_1", "memory, one peer", "MiB", 1),
    measure("wakeups_1000", "wake-ups, 1,000 peers", "1/s", 2),
    measure("cpu_1000", "CPU time, 1,000 peers", "ms/s", 2),
    measure("memory_1000", "memory, 1,000 peers", "MiB", 1),
    measure(
        "small_rate",
        "TCP, a quarter of a CPU and 64 MiB",
        "Mb/s",
        0,
    ),
    measure("small_ping", "ping there, median", "ms", 2),
    measure("small_memory", "memory there, most", "MiB", 1),
];

/// Peers that never said anything, beside the one that did.
const OTHERS: u32 = 999;
/// After its last packet a tunnel has timers of up to 15 seconds.
const SETTLES: Duration = Duration::from_secs(16);
/// Seconds of the stream through the small router, after those that do not count.
const STREAM: u32 = 5;
const WARM_UP: u32 = 2;

/// What is measured after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Part {
    /// A tunnel that carries nothing.
    Silence,
    /// A stream and pings to a host whose daemon has little.
    SmallRouter,
}

fn tunnel(entry: &Entry) -> Result<LinkedHosts, Failure> {
    LinkedHosts::new(entry, Placement::Free, Family::V4, "cubic")
}

/// With one peer, and with many more.
fn silent_tunnel(entry: &Entry, seconds: u32) -> Result<Values, Failure> {
    let mut pair = tunnel(entry)?;
    let [daemon, _] = pair.daemons().ok_or("it has no daemon")?;
    let mut values = silence(daemon, seconds, ["wakeups_1", "cpu_1", "memory_1"])?;
    add_peers(&pair)?;
    let names = ["wakeups_1000", "cpu_1000", "memory_1000"];
    values.extend(silence(daemon, seconds, names)?);
    pair.check()?;
    Ok(values)
}

/// Wake-ups and milliseconds of CPU time a second, and memory, of a daemon that has nothing to do.
fn silence(daemon: u32, seconds: u32, names: [&'static str; 3]) -> Result<Values, Failure> {
    wait(SETTLES)?;
    let before = (proc::wake_ups(daemon)?, proc::cpu_time(daemon)?);
    wait(Duration::from_secs(seconds.into()))?;
    let wake_ups = proc::wake_ups(daemon)?.saturating_sub(before.0);
    let cpu = proc::cpu_time(daemon)?.saturating_sub(before.1);
    let memory = proc::memory(daemon)?.now;
    let seconds = f64::from(seconds);
    #[allow(clippy::cast_precision_loss, reason = "counts of a minute are small")]
    let wake_ups = wake_ups as f64;
    let cpu = cpu.as_secs_f64() * 1000.0;
    let values = [wake_ups / seconds, cpu / seconds, memory];
    Ok(names.into_iter().zip(values).collect())
}

/// Gives host a peers that have neither endpoint nor traffic.
fn add_peers(pair: &LinkedHosts) -> Result<(), Failure> {
    let peer = |n: u32| {
        // Any 32 bytes are a public key; digits are base64, and the last one stands for four bits.
        let (block, host) = (n >> 8, n & 255);
        format!(
            "[Peer]\nPublicKey = {n:08}{:034}0=\nAllowedIPs = 10.100.{block}.{host}/32\n",
            7
        )
    };
    let text: String = (0..OTHERS).map(peer).collect();
    pair.a.run(move || std::fs::write("/run/peers", text))?;
    hosts::wg(&pair.a, "addconf wg0 /run/peers")
}

/// With a daemon that was never large.
fn small_router(entry: &Entry) -> Result<Values, Failure> {
    let mut pair = tunnel(entry)?;
    let [_, daemon] = pair.daemons().ok_or("it has no daemon")?;
    let limits = Limits::on(daemon)?;
    let stream = Iperf {
        warm_up: WARM_UP,
        ..Iperf::tcp(1, STREAM)
    };
    let rate = stream.run(&pair, pair.address(Family::V4, 1))?.gbps() * 1000.0;
    let pings = tools::ping(&pair, Duration::from_millis(20), 250, 6)?;
    pair.check()?;
    let median = quantile(&pings.times, 0.5).ok_or("no ping was answered")?;
    let memory = proc::memory(daemon)?.peak;
    drop(limits);
    Ok(vec![
        ("small_rate", rate),
        ("small_ping", median / 1000.0),
        ("small_memory", memory),
    ])
}

/// Runs all of it.
pub(crate) fn run(args: &IdleArgs) -> Result<(), Failure> {
    tools::require(&tools::LOAD)?;
    let json = args.json.open()?;
    let mut experiment = Experiment::new(&MEASURES);
    let measure = |entry: &Entry, part| match part {
        Part::Silence => silent_tunnel(entry, args.seconds),
        Part::SmallRouter => small_router(entry),
    };
    experiment.run(&args.rounds, &[], measure, |_, values| progress(values))?;
    let goals = goals(&experiment);
    let tables = experiment.tables(experiment.parts()) + &experiment.end(&goals);
    let document = document(&experiment, args.seconds, &goals);
    experiment.publish(json, &tables, &document)
}

/// One list of measures: each is of one part.
fn document(experiment: &Experiment<Part>, seconds: u32, goals: &[GoalResult]) -> Value {
    let mut document = experiment.document("idle", "part", goals);
    let mut measures = Vec::new();
    for part in document["parts"].as_array_mut().into_iter().flatten() {
        measures.extend(
            part["measures"]
                .as_array_mut()
                .into_iter()
                .flatten()
                .map(Value::take),
        );
    }
    for measure in &mut measures {
        measure["id"] = measure["name"].take();
    }
    document["measures"] = measures.into();
    document["seconds"] = seconds.into();
    document
        .as_object_mut()
        .expect("it has fields")
        .remove("parts");
    document
}

/// A tunnel that is silent wakes nobody up, and a router with 64 MiB has room for it.
fn goals(experiment: &Experiment<Part>) -> Vec<GoalResult> {
    use Part::{Silence, SmallRouter};
    let goal = |part, id, name: &str, most, unit| {
        let value = experiment.summary(part, id, Implementation::Adit)?.median;
        let name = name.to_owned();
        Some(GoalResult::new(name, value, Limit::AtMost(most), unit))
    };
    let all = [
        goal(Silence, "wakeups_1", "wake-ups, one peer", 0.1, " a second"),
        goal(
            Silence,
            "wakeups_1000",
            "wake-ups, 1,000 peers",
            0.1,
            " a second",
        ),
        goal(
            SmallRouter,
            "small_memory",
            "memory on a small router",
            64.0,
            " MiB",
        ),
    ];
    all.into_iter().flatten().collect()
}

fn progress(values: &Values) -> String {
    let label = |id| MEASURES.iter().find(|measure| measure.id == id);
    let shown = values.iter().filter_map(|&(id, value)| {
        let measure = label(id)?;
        Some(format!("{} {value:.*}", measure.label(), measure.places))
    });
    shown.collect::<Vec<_>>().join(" · ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_those_of_what_was_measured() {
        let mut experiment = Experiment::new(&MEASURES);
        assert!(goals(&experiment).is_empty());
        for value in [0.0, 0.3, 0.0] {
            let values = vec![("wakeups_1", value)];
            experiment.add(Part::Silence, Implementation::Adit, values);
        }
        let values = vec![("wakeups_1", 9.0)];
        experiment.add(Part::Silence, Implementation::WireguardGo, values);
        let values = vec![("small_memory", 65.0)];
        experiment.add(Part::SmallRouter, Implementation::Adit, values);
        let judged = goals(&experiment);
        let judged: Vec<_> = judged
            .iter()
            .map(|goal| (goal.name.as_str(), goal.met))
            .collect();
        let expected = [
            ("wake-ups, one peer", true),
            ("memory on a small router", false),
        ];
        assert_eq!(judged, expected);
        let json = document(&experiment, 20, &goals(&experiment));
        let [wakeups, memory] = [0, 1].map(|n| &json["measures"][n]);
        assert_eq!(wakeups["id"], "wakeups_1");
        assert_eq!(wakeups["implementations"]["adit"]["max"], 0.3);
        assert_eq!(memory["id"], "small_memory");
        assert!(json["parts"].is_null() && json["seconds"] == 20);
    }

    #[test]
    fn measures_have_ids_of_their_own() {
        let ids: std::collections::BTreeSet<_> = MEASURES.iter().map(|it| it.id).collect();
        assert_eq!(ids.len(), MEASURES.len());
    }
}
