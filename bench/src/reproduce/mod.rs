//! `adit-lab reproduce`: the tables of the published measurements that Adit comes from, made again.
//!
//! - `tailscale`: what each idea of Tailscale's two articles is worth, by turning it off in Adit;
//! - `proxies`: WireGuard beside TLS (`tls` starts the proxies, `http` makes the requests);
//! - `pfsense`: WireGuard beside IPsec, by packet size (`emulated` has both of the kernel);
//! - `inline`: the engine by policy, from `adit-lab scale`.
//!
//! Stages: find what a source compares → alternating rounds → published beside here → goals, JSON.

mod articles;
mod emulated;
mod http;
mod inline;
mod pfsense;
mod proxies;
mod results;
mod tailscale;
mod tls;

#[cfg(test)]
mod tests;

use std::time::Instant;

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::goals::{self, GoalResult};
use crate::implementation::{Entry, Implementation};
use crate::install::AditArg;
use crate::output::{self, JsonArg};
use crate::pair::require_congestion;
use crate::report::Machine;
use crate::sandbox::Failure;
use crate::{install, tools};
use results::{Results, SourceResults};

/// Makes the tables of the published measurements again, with their figures beside those of here.
///
/// Builds two hosts in network namespaces joined by a veth link, and measures what the source
/// compared in alternating rounds: medians, least and greatest values.
///
/// tailscale-2022 and tailscale-2023: one TCP stream through Adit itself, with one idea of the
/// articles after the other turned on: offloads of the TUN, sendmmsg and recvmmsg, UDP GSO and GRO,
/// checksums in vectors, encryption across packets, GSO packets that fit one send. wireguard-go,
/// Tailscale's fork, the kernel's module where it is, and the link without a tunnel stand beside it.
/// Adit is built once more for this, with switches that a build for users does not have: one that is
/// given was built with `RUSTFLAGS="--cfg adit_lab_steps"`. Of the first
/// article's first and last step, sender and receiver are recorded, where perf is there; the second
/// article's checksum is measured by size.
///
/// userspace-vs-kernel: WireGuard beside TLS 1.3 through a pair of proxies, stunnel, HAProxy and
/// ghostunnel, with AES-GCM and ChaCha20-Poly1305: TCP, the CPU time of the whole machine, and the
/// latency of HTTP, with each congestion control.
///
/// inline: the engine over devices in memory, by policy, as `adit-lab scale` measures it.
///
/// pfsense: UDP by packet size in one direction and in both, with the size from which larger packets
/// bring no more; one to eight TCP streams in one tunnel and in four, with each congestion control; and
/// UDP that two gateways forward through one tunnel and through four. IPsec, ESP with AES-GCM-128 by strongSwan in userspace, stands
/// beside WireGuard. In an emulated guest the kernel's ESP stands beside the kernel's WireGuard, for their
/// ratio (`scripts/guest` builds it).
///
/// JSON is one object with `schema` (1), `command`, `started`, `seconds`, `stopped`, `machine`, `tools`,
/// `settings`, `sources` and `goals`. Each source has its `subjects`; its `measures`, each with
/// the values of every round, `median`, `min`, `max` and `spread` of each subject, and with the
/// `curve` and the `distribution` that it is a point of; `published`, the figures of the source,
/// each with the measure and the subject that stand for it here and why they differ; `flame_graphs`,
/// folded stacks by subject and end; `left_out`, what is not there and why; `goals` and `notes`. Each
/// of the `goals` has `name`, `value`, `goal` and `met`.
///
/// `scripts/lab-tools` installs what these need besides root, iperf3, ping, ip and wg. What is not
/// there is left out by name. Leaves nothing behind.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReproduceArgs {
    /// Whose tables to make again.
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<Source>,
    /// How many rounds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seconds that each load counts, after one that does not. In pfsense half of that: it has many.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// TCP's congestion controls. What uses TCP is measured with each; `inline` has no TCP.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "cubic,bbr",
        value_name = "NAME"
    )]
    congestion: Vec<String>,
    /// Measure only these, by their names in the tables.
    #[arg(long, value_delimiter = ',', value_name = "SUBJECT")]
    subjects: Vec<String>,
    #[command(flatten)]
    adit: AditArg,
    #[command(flatten)]
    json: JsonArg,
}

/// A published measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Source {
    /// "Userspace isn't slow, some kernel interfaces are!" (2022).
    #[value(name = "tailscale-2022")]
    Tailscale2022,
    /// "Surpassing 10Gb/s over Tailscale" (2023).
    #[value(name = "tailscale-2023")]
    Tailscale2023,
    /// "User space vs kernel": WireGuard beside TLS.
    UserspaceVsKernel,
    /// "WireGuard Inline": cores and policies.
    Inline,
    /// "WireGuard in pfSense 2.5 Performance" (2021).
    Pfsense,
    /// All of these, one after the other.
    All,
}

impl Source {
    const EACH: [Self; 5] = [
        Self::Tailscale2022,
        Self::Tailscale2023,
        Self::UserspaceVsKernel,
        Self::Inline,
        Self::Pfsense,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Tailscale2022 => "tailscale-2022",
            Self::Tailscale2023 => "tailscale-2023",
            Self::UserspaceVsKernel => "userspace-vs-kernel",
            Self::Inline => "inline",
            Self::Pfsense => "pfsense",
            Self::All => "all",
        }
    }

    /// The names of all that its tables may have, whether it is here or not.
    fn subjects(self) -> Vec<&'static str> {
        match self {
            Self::Tailscale2022 => tailscale::subjects(&articles::FIRST),
            Self::Tailscale2023 => tailscale::subjects(&articles::SECOND),
            Self::UserspaceVsKernel => proxies::subjects(),
            Self::Inline => inline::subjects(),
            Self::Pfsense => pfsense::subjects(),
            Self::All => Vec::new(),
        }
    }

    fn measure(self, args: &ReproduceArgs, results: &mut Results) -> Result<(), Failure> {
        match self {
            Self::Tailscale2022 => tailscale::measure(&articles::FIRST, args, results),
            Self::Tailscale2023 => tailscale::measure(&articles::SECOND, args, results),
            Self::UserspaceVsKernel => proxies::measure(args, results),
            Self::Inline => inline::measure(args, results),
            Self::Pfsense => pfsense::measure(args, results),
            Self::All => Ok(()),
        }
    }
}

impl ReproduceArgs {
    /// Each source once, in the order in which they were published.
    fn each(&self) -> Vec<Source> {
        let asked =
            |source: &Source| self.sources.contains(source) || self.sources.contains(&Source::All);
        Source::EACH.into_iter().filter(asked).collect()
    }

    /// Whether a subject is to be measured.
    fn wants(&self, name: &str) -> bool {
        self.subjects.is_empty() || self.subjects.iter().any(|subject| subject == name)
    }

    /// The congestion controls that were asked for and that this kernel has.
    fn congestion(&self, results: &mut Results) -> Vec<String> {
        let mut found = Vec::new();
        for control in &self.congestion {
            match require_congestion(control) {
                Ok(()) => found.push(control.clone()),
                Err(why) => results.leave_out(control, &why.to_string()),
            }
        }
        found
    }

    /// An error if this kernel has none of the congestion controls that were asked for.
    fn check_congestion(&self) -> Result<(), Failure> {
        let mut checked = Ok(());
        for control in &self.congestion {
            checked = require_congestion(control);
            if checked.is_ok() {
                break;
            }
        }
        checked
    }

    /// An error that names the subjects that were asked for and stand in no table of the sources,
    /// and those that do.
    fn check_subjects(&self) -> Result<(), Failure> {
        let mut known: Vec<&str> = self.each().into_iter().flat_map(Source::subjects).collect();
        known.sort_unstable();
        known.dedup();
        let missing: Vec<&str> = (self.subjects.iter().map(String::as_str))
            .filter(|name| !known.contains(name))
            .collect();
        match missing.is_empty() {
            true => Ok(()),
            false => Err(format!(
                "no table has the subject {}; they have {}",
                missing.join(", "),
                known.join(", ")
            )
            .into()),
        }
    }

    /// An implementation that is wanted and there; left out by name if it is not there.
    fn find(&self, who: Implementation, results: &mut Results) -> Option<Entry> {
        if !self.wants(who.name()) {
            return None;
        }
        match install::find(who, self.adit.path()) {
            Ok(entry) => Some(entry),
            Err(why) => {
                results.leave_out(who.name(), &why.to_string());
                None
            }
        }
    }
}

/// What an id ends with if TCP has this congestion control: with nothing if it is the usual one.
fn ending(congestion: &str) -> String {
    match congestion {
        "cubic" => String::new(),
        other => format!("-{other}"),
    }
}

/// Makes the tables.
pub(crate) fn run(args: &ReproduceArgs) -> Result<(), Failure> {
    tools::require(&tools::LOAD)?;
    args.check_congestion()?;
    args.check_subjects()?;
    let json = args.json.open()?;
    let started = output::now();
    let clock = Instant::now();
    let mut machine = Machine::here();
    let (mut sources, mut stopped) = (Vec::new(), None);
    for source in args.each() {
        eprintln!("{}", source.name());
        let mut results = Results::new(source.name(), args.rounds);
        let done = source.measure(args, &mut results);
        sources.push(results.finish());
        if let Err(why) = done {
            eprintln!("stopped: {why}");
            stopped = Some(why.to_string());
            break;
        }
    }
    machine.finish();
    let goals: Vec<GoalResult> = sources.iter().flat_map(|of| of.goals.clone()).collect();
    let tables = tables(&sources, &goals, stopped.as_deref());
    let document = json!({
        "schema": 1,
        "command": "reproduce",
        "started": started,
        "seconds": clock.elapsed().as_secs_f64(),
        "stopped": stopped,
        "machine": machine,
        "tools": tools::versions(),
        "settings": {
            "rounds": args.rounds,
            "seconds": args.seconds,
            "congestion": args.congestion,
        },
        "sources": sources,
        "goals": goals,
    });
    json.publish(&tables, &document)?;
    let failed = sources.iter().map(SourceResults::failures).sum();
    output::verdict(stopped.is_some(), failed)
}

fn tables(sources: &[SourceResults], goals: &[GoalResult], stopped: Option<&str>) -> String {
    let mut text: String = sources.iter().map(SourceResults::table).collect();
    if !goals.is_empty() {
        text += "\ngoals\n";
        text += &goals::table(goals);
    }
    if let Some(why) = stopped {
        text += &format!("\nINCOMPLETE: {why}\n");
    }
    text
}
