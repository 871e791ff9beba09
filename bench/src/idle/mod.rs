//! `adit-lab idle`: what a tunnel costs that carries nothing, and how one works on a small router.
//!
//! - this file: what is measured, the table and the document;
//! - `limits`: a part of a CPU and of memory for one process.

mod limits;

use std::time::Duration;

use adit_testbed::framing::Family;
use adit_testbed::stats::quantile;
use adit_testbed::{interrupt, proc};
use clap::Args;
use serde_json::{Value, json};

use crate::goals::{self, GoalResult, Limit};
use crate::hosts;
use crate::implementation::{Entry, Implementation};
use crate::install;
use crate::measure::wait;
use crate::output::JsonArg;
use crate::pair::{LinkedHosts, Placement};
use crate::report::Machine;
use crate::rounds::{self, Measure, RoundArgs, Samples, Values, measure};
use crate::sandbox::Failure;
use crate::stats::summary;
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
/// JSON is one object with `schema` (1), `command`, `machine`, `rounds`, `seconds`, `implementations`,
/// `measures`, `goals` and `notes`. Each of the `measures` has `id`, `title`, `unit` and, for each
/// implementation, the value of every round, `median`, `min`, `max` and `spread`. Each of the
/// `goals` has `name`, `value`, `goal` and `met`. `notes` say what did not work.
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

/// The values, and why there are none of a small router.
fn one(entry: &Entry, seconds: u32) -> Result<(Values, Option<Failure>), Failure> {
    let tunnel = || LinkedHosts::new(entry, Placement::Free, Family::V4, "cubic");
    let mut pair = tunnel()?;
    let [daemon, _] = pair.daemons().ok_or("it has no daemon")?;
    let mut values = silence(daemon, seconds, ["wakeups_1", "cpu_1", "memory_1"])?;
    add_peers(&pair)?;
    let names = ["wakeups_1000", "cpu_1000", "memory_1000"];
    values.extend(silence(daemon, seconds, names)?);
    pair.check()?;
    drop(pair);
    // A daemon that was never large.
    match tunnel().and_then(small_router) {
        Ok(small) => values.extend(small),
        Err(why) => return Ok((values, Some(why))),
    }
    Ok((values, None))
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

/// A stream and pings to a host whose daemon has little.
fn small_router(mut pair: LinkedHosts) -> Result<Values, Failure> {
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
    let mut machine = Machine::here();
    let (implementations, left_out) =
        install::find_all(&args.rounds.implementations, args.rounds.adit.path())?;
    let told = |(who, why): (Implementation, String)| format!("{}: {why}", who.name());
    let mut notes: Vec<String> = left_out.into_iter().map(told).collect();
    let mut samples = Samples::new();
    let rounds = args.rounds.rounds;
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        for entry in install::order(&implementations, round) {
            interrupt::check()?;
            let name = entry.who.name();
            eprint!("  {name:<14}");
            let (values, why_not) = match one(&entry, args.seconds) {
                Ok(measured) => measured,
                Err(why) => (Vec::new(), Some(why)),
            };
            if let Some(why) = why_not {
                interrupt::check()?;
                eprint!("failed: {why} · ");
                notes.push(format!("{name}, round {round}: {why}"));
            }
            eprintln!("{}", progress(&values));
            for (id, value) in values {
                samples.entry(((), id, entry.who)).or_default().push(value);
            }
        }
    }
    machine.finish();
    let goals = goals(&samples);
    let table = format!(
        "{}\n{}",
        table(&implementations, &samples),
        goals::table(&goals)
    );
    let measures = MEASURES.iter().map(|measure| {
        json!({"id": measure.id, "title": measure.title, "unit": measure.unit,
            "implementations": rounds::implementations(&samples, (), measure.id)})
    });
    let document = json!({
        "schema": 1,
        "command": "idle",
        "machine": machine,
        "rounds": rounds,
        "seconds": args.seconds,
        "implementations": implementations,
        "measures": measures.collect::<Value>(),
        "goals": goals,
        "notes": notes,
    });
    json.publish(&table, &document)
}

/// A tunnel that is silent wakes nobody up, and a router with 64 MiB has room for it.
fn goals(samples: &Samples<()>) -> Vec<GoalResult> {
    let goal = |id, name: &str, most, unit| {
        let value = summary(samples.get(&((), id, Implementation::Adit))?)?.median;
        let name = name.to_owned();
        Some(GoalResult::new(name, value, Limit::AtMost(most), unit))
    };
    let all = [
        goal("wakeups_1", "wake-ups, one peer", 0.1, " a second"),
        goal("wakeups_1000", "wake-ups, 1,000 peers", 0.1, " a second"),
        goal("small_memory", "memory on a small router", 64.0, " MiB"),
    ];
    all.into_iter().flatten().collect()
}

/// The medians.
fn table(implementations: &[Entry], samples: &Samples<()>) -> String {
    let names = implementations.iter().map(|entry| entry.who.name());
    let mut text = format!("{:<40}", "median");
    names.for_each(|name| text += &format!("{name:>14}"));
    text.push('\n');
    for measure in &MEASURES {
        text += &format!("{:<40}", measure.label());
        for entry in implementations {
            let values = samples.get(&((), measure.id, entry.who));
            let median = values.and_then(|values| Some(summary(values)?.median));
            let cell =
                median.map_or_else(|| "-".to_owned(), |it| format!("{it:.*}", measure.places));
            text += &format!("{cell:>14}");
        }
        text.push('\n');
    }
    text
}

fn progress(values: &Values) -> String {
    let of = |id| {
        let found = values.iter().find(|(of, _)| *of == id);
        found.map_or_else(|| "-".to_owned(), |(_, value)| format!("{value:.2}"))
    };
    format!(
        "{} and {} wake-ups/s · {} and {} ms/s · small: {} Mb/s, {} MiB",
        of("wakeups_1"),
        of("wakeups_1000"),
        of("cpu_1"),
        of("cpu_1000"),
        of("small_rate"),
        of("small_memory")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_those_of_what_was_measured() {
        let mut samples = Samples::new();
        assert!(goals(&samples).is_empty());
        samples.insert(((), "wakeups_1", Implementation::Adit), vec![0.0, 0.3, 0.0]);
        samples.insert(((), "wakeups_1", Implementation::WireguardGo), vec![9.0]);
        samples.insert(((), "small_memory", Implementation::Adit), vec![65.0]);
        let judged = goals(&samples);
        let judged: Vec<_> = judged
            .iter()
            .map(|goal| (goal.name.as_str(), goal.met))
            .collect();
        let expected = [
            ("wake-ups, one peer", true),
            ("memory on a small router", false),
        ];
        assert_eq!(judged, expected);
    }

    #[test]
    fn measures_have_ids_of_their_own() {
        let ids: std::collections::BTreeSet<_> = MEASURES.iter().map(|it| it.id).collect();
        assert_eq!(ids.len(), MEASURES.len());
    }
}
