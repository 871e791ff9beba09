//! `adit-lab hostile`: what floods do to a server, its peers and those that want to connect.
//!
//! - `hosts`: the server, a client of it, and a host that has any address;
//! - `clients`: peers that the lab is itself;
//! - `attack`: what is sent;
//! - `report`: the measures and the goals.

mod attack;
mod clients;
mod hosts;
mod report;

#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::time::Duration;

use adit_testbed::stats::{quantile, to_f64};
use clap::{Args, ValueEnum};

use crate::implementation::Entry;
use crate::measure::wait;
use crate::output::JsonArg;
use crate::rounds::{Experiment, RoundArgs, Values};
use crate::sandbox::Failure;
use crate::tools;
use attack::Attacker;
use hosts::{HONEST, Hosts};
use report::MEASURES;

/// Measures what floods of forged messages do to a server.
///
/// Builds hosts in network namespaces, and measures each implementation in alternating rounds. Each
/// attack runs against a server of its own: TCP from a client of the server, alone, beside the same
/// flood at a port where nobody listens, and beside the attack; pings, 20 honest peers that want to
/// connect, and memory, beside the attack. The attacker, the server and the client share the
/// machine. One attack takes some 20 seconds.
///
/// JSON is one object with `schema` (1), `command`, `started`, `machine`, `rounds`, `rate` and
/// `implementations`. Each of the `attacks` has `measures`, and each of these, for each
/// implementation, the value of every round, `median`, `min`, `max` and `spread`; in `cannot` it has
/// the reason why an implementation has no value at all. Each of the `goals` has `name`, `value`,
/// `goal` and `met`. `notes` say what did not work.
///
/// Needs root, iperf3, ping, ip and wg. Leaves nothing behind.
#[derive(Args, Clone, Debug)]
#[command(mut_arg("rounds", |rounds| rounds.default_value("3")))]
pub(crate) struct HostileArgs {
    #[command(flatten)]
    rounds: RoundArgs,
    /// How many messages a second the attacker sends.
    #[arg(long, default_value = "250000")]
    rate: Rate,
    /// Only these attacks.
    #[arg(long, value_delimiter = ',', value_name = "ATTACK")]
    only: Vec<Attack>,
    #[command(flatten)]
    json: JsonArg,
}

/// Messages a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate(f64);

impl std::str::FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(rate) if (1.0..=1e8).contains(&rate) => Ok(Self(rate)),
            _ => Err("a rate is a number of messages a second, from 1 to 100000000".into()),
        }
    }
}

/// What the server is flooded with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Attack {
    /// Initiations with a right mac1 of unknown keys, from one source.
    OneSource,
    /// The same from 4,096 forged sources.
    Sources,
    /// Initiations with a wrong mac1, from 4,096 forged sources.
    #[value(name = "wrong-mac1")]
    WrongMac1,
    /// Initiations of which one in eight has a valid mac2, replayed from 32 sources.
    Cookies,
    /// Data messages for sessions that are none.
    UnknownIndices,
    /// Data messages for a session with wrong tags.
    BadTags,
    /// Data messages that the server has received before.
    Replays,
    /// Data messages of a peer.
    Peer,
}

const STREAM: &str = "stream";
const STREAM_CLOSED: &str = "stream_closed_port";
const STREAM_ATTACKED: &str = "stream_attacked";
const KEPT: &str = "stream_kept";
const PING_P99: &str = "ping_p99";
const LOST: &str = "ping_lost";
const CONNECTED: &str = "connected";
const CONNECTED_AFTER: &str = "connected_after";
const GROWTH: &str = "memory_growth";
const SENT: &str = "sent";
const SENT_CLOSED: &str = "sent_closed_port";

/// Seconds of each stream.
const SECONDS: u32 = 3;
/// From the beginning of an attack to the first measurement.
const WARM_UP: Duration = Duration::from_secs(2);
/// What an honest peer may take: one answer by a cookie, and the next attempt.
const CONNECT: Duration = Duration::from_secs(6);
const PING_EVERY: Duration = Duration::from_millis(10);
const PINGS: u32 = 250;

/// One attack.
fn measure(entry: &Entry, attack: Attack, rate: Rate) -> Result<Values, Failure> {
    let mut hosts = Hosts::new(entry)?;
    let attacker = Attacker::new(&hosts, attack, rate)?;
    let alone = hosts.stream(SECONDS)?;
    let flood = attacker.start(&hosts, false)?;
    wait(WARM_UP / 4)?;
    let closed = hosts.stream(SECONDS)?;
    let sent_closed = flood.stop();

    let before = hosts.memory()?;
    let flood = attacker.start(&hosts, true)?;
    wait(WARM_UP)?;
    // A stream that cannot even connect reached nothing.
    let attacked = hosts.stream(SECONDS).unwrap_or(0.0);
    let server = IpAddr::from([10, 77, 0, 1]);
    let pings = tools::ping_from(hosts.client(), server, PING_EVERY, PINGS, 5);
    let honest = hosts.honest()?;
    let connecting = hosts.outside.thread(|| clients::connect(honest, CONNECT))?;
    let connected = connecting.join();
    let (count, after) = connected.map_err(|_| "a thread of the lab failed")?;
    let sent = flood.stop();
    hosts.check()?;
    let peak = hosts.memory()?.peak;

    let mut values = vec![
        (STREAM, alone),
        (STREAM_CLOSED, closed),
        (STREAM_ATTACKED, attacked),
        (KEPT, attacked / closed),
        (CONNECTED, to_f64(count)),
        (GROWTH, (peak - before.now).max(0.0)),
        (SENT, sent),
        (SENT_CLOSED, sent_closed),
    ];
    if count > 0 {
        values.push((CONNECTED_AFTER, after.as_secs_f64()));
    }
    match pings {
        Ok(pings) => {
            let p99 = quantile(&pings.times, 0.99);
            values.extend(p99.map(|p99| (PING_P99, p99 / 1000.0)));
            values.push((LOST, pings.lost));
        }
        Err(_) => values.push((LOST, 100.0)),
    }
    Ok(values)
}

/// Runs all attacks.
pub(crate) fn run(args: &HostileArgs) -> Result<(), Failure> {
    tools::require(&tools::LOAD)?;
    let json = args.json.open()?;
    let mut run = Experiment::new(&MEASURES);
    let measure = |entry: &Entry, attack| measure(entry, attack, args.rate);
    run.run(&args.rounds, &args.only, measure, progress)?;
    let goals = report::goals(&run);
    let mut document = run.document("hostile", "attack", &goals);
    document["rate"] = args.rate.0.into();
    run.publish(
        json,
        &(run.tables(run.parts()) + &run.end(&goals)),
        &document,
    )
}

/// The values that goals are about.
fn progress(_: Attack, values: &Values) -> String {
    let of = |id| {
        values
            .iter()
            .find(|(of, _)| *of == id)
            .map(|(_, value)| *value)
    };
    let text =
        |id, unit: &str| of(id).map_or_else(|| "-".into(), |value| format!("{value:.2}{unit}"));
    format!(
        "{} of {} · ping p99 {} · {} of {HONEST} connect · +{}",
        text(STREAM_ATTACKED, ""),
        text(STREAM_CLOSED, " Gb/s"),
        text(PING_P99, " ms"),
        of(CONNECTED).unwrap_or(0.0),
        text(GROWTH, " MiB")
    )
}
