//! `adit-lab embed`: Adit's library beside others that programs embed.
//!
//! - `packets`: sealing and opening one packet, without I/O;
//! - `streams`: TCP through programs with a TUN device; `stacks`: between programs with TCP of their own;
//! - `proxies`: through proxies into a tunnel; `socks`: the program that has one; `tailscale`: what one of them needs;
//! - `ways`: these programs; `device`, `net`: those of them that are part of the lab; `load`: what they carry;
//! - `table`: the values of all rounds, ratios;
//! - this file: the command, the rounds, goals, the document.

mod device;
mod load;
mod net;
mod packets;
mod proxies;
mod socks;
mod stacks;
mod streams;
mod table;
mod tailscale;
mod ways;

use std::path::PathBuf;

use adit_testbed::{interrupt, proc};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::{Value, json};

pub(crate) use device::{DeviceArgs, run as run_device};
pub(crate) use net::{NetArgs, run as run_net};
pub(crate) use socks::{SocksArgs, run as run_socks};

use crate::goals::{self, GoalResult, Limit};
use crate::install;
use crate::output::{self, JsonArg};
use crate::pair::require_congestion;
use crate::report::Machine;
use crate::rounds::Values;
use crate::sandbox::Failure;
use crate::tools;
use table::Comparison;
use ways::{End, Program, Way};

/// Compares Adit's library with others that programs embed.
///
/// First what it costs to seal and to open a packet without I/O: Adit's device and trains of Adit's,
/// beside boringtun's `Tunn`. One thread has both ends; numbers are CPU time of that thread, in
/// nanoseconds for both.
///
/// Then programs that embed a library carry TCP between two hosts in network namespaces: one stream, one back,
/// 64 and 1,000, with the CPU time of both programs, pings beside one stream, and memory. All are started as
/// root without a priority. Those with a TUN device are compared with each other, and so are those
/// that TCP ends in. Proxies run as nobody, beside Adit with a TUN device and no proxy. Programs that are missing are built first, others' from the package registries.
///
/// JSON is one object with `schema` (1), `command`, `cpu`, `adit` (the AEAD kernel in use), `rounds` (of
/// packets), `results`: one for each `way` and `len` (bytes), with the `median`, `min`, `max` and
/// `spread` of `ns` a packet, and `faster`: how many times as fast as boringtun, with its interval.
/// `machine`, `seconds`, and three comparisons, `streams` (TCP through a TUN device), `stacks` (TCP
/// that ends in the program) and `proxies` (TCP through a proxy): each has `reference`, `measures`
/// (`id`, `title`, `unit`) and `ways`. A way has `way`, `version`, by measure the value of every round,
/// `median`, `min`, `max` and `spread`, and in `to_reference` its ratios. Each of the `goals` has
/// `name`, `value` (null if it failed), `goal` and `met`. `notes` say what did not work, `stopped` why
/// the run ended early.
///
/// In a round all take turns, in an order that changes; numbers are medians of rounds. The second part
/// needs root, iperf3, ping, ip and wg. Leaves nothing behind.
#[derive(Args, Clone, Debug)]
pub(crate) struct EmbedArgs {
    /// Measure only these.
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    only: Vec<Part>,
    /// How often every way to seal and open packets is measured.
    #[arg(long, default_value_t = 101, value_parser = clap::value_parser!(u16).range(1..))]
    packet_rounds: u16,
    /// How many rounds of TCP.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seconds of each load.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Run only these.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    ways: Vec<Way>,
    /// The example `tun` of Adit's library to measure, instead of building it.
    #[arg(long, value_name = "PATH")]
    tun: Option<PathBuf>,
    /// The program `adit` to measure as a proxy, instead of building it.
    #[arg(long, value_name = "PATH")]
    adit: Option<PathBuf>,
    #[command(flatten)]
    json: JsonArg,
}

/// A part of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Sealing and opening packets.
    Packets,
    /// TCP through programs with a TUN device.
    Streams,
    /// TCP between programs with stacks of their own.
    Stacks,
    /// TCP through proxies into a tunnel.
    Proxies,
}

impl EmbedArgs {
    /// Whether it makes hosts.
    pub(crate) fn needs_root(&self) -> bool {
        [Part::Streams, Part::Stacks, Part::Proxies]
            .map(|part| self.has(part))
            .contains(&true)
    }

    fn has(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// The ways of the parts that are asked for.
    fn ways(&self) -> Vec<Way> {
        let is_asked = |way: &Way| {
            let part = match way.end() {
                End::Tun => Part::Streams,
                End::Stack => Part::Stacks,
                End::Proxy => Part::Proxies,
            };
            self.has(part) && (self.ways.is_empty() || self.ways.contains(way))
        };
        Way::value_variants()
            .iter()
            .copied()
            .filter(is_asked)
            .collect()
    }
}

/// A run.
struct Report {
    machine: Machine,
    packets: Vec<packets::Row>,
    streams: Comparison,
    stacks: Comparison,
    proxies: Comparison,
    notes: Vec<Note>,
    stopped: Option<String>,
}

/// Something that went wrong. Round 0 is before the first round.
#[derive(Clone, Debug, Serialize)]
struct Note {
    round: u32,
    way: Way,
    text: String,
}

/// Measures and prints the tables.
pub(crate) fn run(args: &EmbedArgs) -> Result<(), Failure> {
    let json = args.json.open()?;
    let mut report = Report::begin(args)?;
    if let Err(stopped) = report.measure(args) {
        eprintln!("\nstopped: {stopped}");
        report.stopped = Some(stopped.to_string());
    }
    report.machine.finish();
    json.publish(&report.text(args), &report.document(args))?;
    output::verdict(report.stopped.is_some(), report.notes.len())
}

impl Report {
    /// Finds and builds what is to be measured.
    fn begin(args: &EmbedArgs) -> Result<Self, Failure> {
        let (mut programs, mut left_out) = (Vec::new(), Vec::new());
        if args.needs_root() {
            tools::require(&tools::LOAD)?;
            require_congestion("cubic")?;
            let ways = args.ways();
            if ways.is_empty() {
                return Err("none of these ways is in the parts that are asked for".into());
            }
            (programs, left_out) = ways::find(&ways, args.tun.as_deref(), args.adit.as_deref());
        }
        let comparison = |title, measures, reference, end| {
            let those = programs.iter().filter(|program| program.way.end() == end);
            Comparison::new(title, measures, reference, those.cloned().collect())
        };
        let (title, reference) = ("TCP through a TUN", Way::Gotatun);
        let streams = comparison(title, &streams::MEASURES, reference, End::Tun);
        let (title, reference) = ("TCP in the program", Way::WireguardGoNetstack);
        let stacks = comparison(title, &stacks::MEASURES, reference, End::Stack);
        let (title, reference) = ("TCP through a proxy", Way::Wireproxy);
        let proxies = comparison(title, &proxies::MEASURES, reference, End::Proxy);
        let notes = left_out.into_iter().map(|(way, text)| Note {
            round: 0,
            way,
            text,
        });
        Ok(Self {
            machine: Machine::here(),
            packets: Vec::new(),
            streams,
            stacks,
            proxies,
            notes: notes.collect(),
            stopped: None,
        })
    }

    fn measure(&mut self, args: &EmbedArgs) -> Result<(), Failure> {
        if args.has(Part::Packets) {
            eprintln!("packets: {} rounds", args.packet_rounds);
            self.packets = packets::measure(args.packet_rounds)?;
        }
        // Two loads with their warm-ups, five seconds for the hosts and pings; a third one through proxies.
        let one = |loads, comparison: &Comparison| -> Result<u64, Failure> {
            let one = u64::from(loads * (args.seconds + streams::WARM_UP) + 5);
            Ok(one * u64::try_from(comparison.programs().len())?)
        };
        let round = one(2, &self.streams)? + one(2, &self.stacks)? + one(3, &self.proxies)?;
        if round == 0 {
            return Ok(());
        }
        let all = round * u64::from(args.rounds);
        let comparisons = [&self.streams, &self.stacks, &self.proxies];
        let programs = comparisons
            .map(|it| it.programs().len())
            .iter()
            .sum::<usize>();
        eprintln!(
            "{programs} programs, {} rounds: about {} min",
            args.rounds,
            all.div_ceil(60)
        );
        for round in 1..=args.rounds {
            let load = proc::load_average();
            eprintln!("round {round} of {} (load average {load})", args.rounds);
            let parts: [(&mut Comparison, Load); 3] = [
                (&mut self.streams, streams::measure),
                (&mut self.stacks, stacks::measure),
                (&mut self.proxies, proxies::measure),
            ];
            for (comparison, load) in parts {
                let notes = &mut self.notes;
                one_round(comparison, load, round, args.seconds, notes)?;
            }
        }
        Ok(())
    }

    fn goals(&self) -> Vec<GoalResult> {
        let ways = (Way::AditEngine, Way::Gotatun);
        let to_gotatun = |what: &str, id, limit| {
            let name = format!("adit-engine, {what}, of gotatun's library");
            self.streams.goal(&name, ways, id, limit)
        };
        let of_streams = [
            to_gotatun("one TCP stream", streams::RATE, Limit::AtLeast(4.0)),
            to_gotatun("CPU time of it", streams::CPU, Limit::AtMost(0.3)),
        ];
        let of_packets = packets::goals(&self.packets).into_iter();
        let of_proxies = self.goals_of_proxies().into_iter().flatten();
        let of_streams = of_streams.into_iter().flatten();
        of_packets.chain(of_streams).chain(of_proxies).collect()
    }

    fn goals_of_proxies(&self) -> [Option<GoalResult>; 9] {
        let proxies = &self.proxies;
        let to = |other, what: &str, id, limit| {
            let name = format!("adit-proxy, {what}");
            proxies.goal(&name, (Way::AditProxy, other), id, limit)
        };
        let alone = |what: &str, id, limit: Limit, unit: &str| {
            let name = format!("adit-proxy, {what}");
            let value = proxies.median(Way::AditProxy, id)?;
            Some(GoalResult::new(name, value, limit, unit))
        };
        let (least, most) = (Limit::AtLeast, Limit::AtMost);
        let (go, own) = (Way::Wireproxy, Way::AditDaemon);
        [
            to(go, "one stream, of wireproxy", proxies::RATE, least(10.0)),
            to(go, "CPU time of it", proxies::CPU, most(0.12)),
            to(go, "set-up of a connection", proxies::SET_UP, most(1.2)),
            to(
                Way::Tailscaled,
                "one stream, of tailscaled",
                proxies::RATE,
                least(1.3),
            ),
            to(Way::Tailscaled, "CPU time of that", proxies::CPU, most(0.6)),
            to(
                own,
                "one stream, of adit with a TUN",
                proxies::RATE,
                least(0.8),
            ),
            alone("one stream", proxies::RATE, least(5.0), " Gb/s"),
            alone("one stream back", proxies::BACK, least(5.0), " Gb/s"),
            alone(
                "memory with one stream",
                proxies::MEMORY,
                most(24.0),
                " MiB",
            ),
        ]
    }

    fn text(&self, args: &EmbedArgs) -> String {
        let mut out = format!(
            "{}; {} cores; load average before {}, after {}\n\n",
            self.machine.cpu, self.machine.cores, self.machine.load_before, self.machine.load_after
        );
        out += &packets::text(&self.packets);
        if args.needs_root() {
            let (rounds, seconds) = (args.rounds, args.seconds);
            out += &format!(
                "rounds of {seconds} s: {rounds}; medians ± half their range; ratios with their 95 % interval, \
                 of fewer than five rounds with their range\n\n"
            );
        }
        for comparison in [&self.streams, &self.stacks, &self.proxies] {
            let text = comparison.text();
            if !text.is_empty() {
                out += &(text + "\n");
            }
        }
        for note in &self.notes {
            let (way, round, text) = (note.way.name(), note.round, &note.text);
            out += &format!("{way}, round {round}: {text}\n");
        }
        out + &goals::table(&self.goals())
    }

    fn document(&self, args: &EmbedArgs) -> Value {
        json!({
            "schema": 1,
            "command": "embed",
            "cpu": crate::aead::cpu(),
            "adit": adit_aead::implementation(),
            "rounds": args.packet_rounds,
            "results": self.packets,
            "machine": self.machine,
            "seconds": args.seconds,
            "streams": self.streams.document(),
            "stacks": self.stacks.document(),
            "proxies": self.proxies.document(),
            "goals": self.goals(),
            "notes": self.notes,
            "stopped": self.stopped,
        })
    }
}

/// Measures a program.
type Load = fn(&Program, u32) -> Result<Values, Failure>;

/// Every program of a comparison once. One that fails is noted, and the next one follows.
fn one_round(
    comparison: &mut Comparison,
    load: Load,
    round: u32,
    seconds: u32,
    notes: &mut Vec<Note>,
) -> Result<(), Failure> {
    let programs = comparison.programs().to_vec();
    if programs.is_empty() {
        return Ok(());
    }
    for program in install::order(&programs, round) {
        interrupt::check()?;
        let way = program.way;
        match load(&program, seconds) {
            Ok(values) => {
                let show = |&(id, value): &(&str, f64)| {
                    (id == streams::RATE).then(|| format!("{value:.2} Gb/s"))
                };
                let rate = values.iter().find_map(show).unwrap_or_default();
                eprintln!("  {:<23}{rate}", way.name());
                comparison.add(round, way, values);
            }
            Err(why) => {
                interrupt::check()?;
                eprintln!("  {:<23}failed: {why}", way.name());
                let text = why.to_string();
                notes.push(Note { round, way, text });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::rounds::Measure;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: EmbedArgs,
    }

    fn args(words: &[&str]) -> EmbedArgs {
        let words = ["embed"].iter().chain(words);
        Cli::try_parse_from(words).expect("arguments").args
    }

    #[test]
    fn each_part_has_its_ways() {
        assert!(args(&[]).needs_root());
        assert_eq!(args(&[]).ways(), Way::value_variants());
        let packets = args(&["--only", "packets"]);
        assert!(!packets.needs_root() && packets.ways().is_empty());
        let stacks = args(&["--only", "packets,stacks"]);
        assert_eq!(stacks.ways(), [Way::AditNet, Way::WireguardGoNetstack]);
        let proxies = args(&["--only", "proxies"]);
        assert!(proxies.needs_root() && proxies.ways().contains(&Way::Wireproxy));
        let one = args(&["--ways", "gotatun", "--only", "streams"]);
        assert_eq!(one.ways(), [Way::Gotatun]);
        let none = args(&["--ways", "gotatun", "--only", "stacks"]);
        assert!(none.ways().is_empty());
    }

    #[test]
    fn comparisons_measure_the_same_rates() {
        let rates =
            |measures: &[Measure]| -> Vec<&str> { measures[..4].iter().map(|it| it.id).collect() };
        assert_eq!(rates(&streams::MEASURES), rates(&stacks::MEASURES));
        assert!(streams::MEASURES.iter().any(|it| it.id == streams::CPU));
        assert_eq!(
            rates(&proxies::MEASURES)[..2],
            [streams::RATE, streams::CPU]
        );
    }
}
