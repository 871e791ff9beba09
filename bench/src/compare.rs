//! `adit-lab compare`: every implementation in alternating rounds of one run.
//!
//! Stages: find the implementations → print the estimate → rounds (each implementation: free
//! placement, over IPv6, one end per core) → tables, targets, JSON.

use std::io::Write;
use std::time::{Duration, Instant};

use adit_testbed::framing::Family;
use adit_testbed::stats::to_f64;
use adit_testbed::{interrupt, proc};
use clap::{Args, ValueEnum};

use crate::implementation::{Entry, Implementation};
use crate::install::{self, AditArg};
use crate::measure::{self, Values};
use crate::metric::{Step, metric};
use crate::output::{self, JsonArg};
use crate::pair::{LinkedHosts, Placement, require_congestion};
use crate::report::{ComparisonReport, Note, Sample};
use crate::sandbox::Failure;
use crate::{document, tables, tools};

/// Runs every implementation side by side and prints how fast each is.
///
/// Builds two hosts in network namespaces joined by a veth link and measures, in alternating rounds
/// of one run, the bare link, wireguard-go, Tailscale's fork of it, boringtun, gotatun and Adit.
/// Missing implementations are built first, from the package registries. Streams that are compared
/// with each other (one, 8, 128, both directions) run once forth and once back in each round. Needs
/// root, iperf3, ping, ip and wg. Leaves nothing behind.
///
/// JSON is one object with `schema` (2; schema 1 said `contenders` for `implementations`), `command`,
/// `machine`, `tools`, `settings` and `implementations`. Each of the `metrics` has for each
/// implementation the value of every round, `median`, `min`, `max` and `spread` (half the range
/// as a share of the median), and in `adit_to` Adit's ratio to the others (`low` to `high` is
/// its 95 % interval, with fewer than five rounds the range: `interval_kind`). Each of the
/// `targets` has a `verdict`: pass, miss, failed or not_measured. `goals` say the same of those
/// that were measured, as every command does: `name`, `value` (null if it failed), `goal` and
/// `met`. `notes` say what did not work, `stopped` why the run ended early.
#[derive(Args, Clone, Debug)]
pub(crate) struct CompareArgs {
    /// A first impression in two minutes: one round of the main measures.
    #[arg(long)]
    quick: bool,
    /// How many rounds (5, or 1 with --quick).
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Measure only these.
    #[arg(long, value_delimiter = ',', value_name = "MEASURE")]
    only: Vec<Step>,
    /// Run only these.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    implementations: Vec<Implementation>,
    #[command(flatten)]
    adit: AditArg,
    /// Also build Adit without its AEAD, and tell how near Adit comes to that.
    #[arg(long)]
    ceiling: bool,
    /// TCP's congestion control.
    #[arg(long, default_value = "cubic")]
    congestion: String,
    #[command(flatten)]
    json: JsonArg,
}

/// Runs the comparison.
pub(crate) fn run(args: &CompareArgs) -> Result<(), Failure> {
    tools::require(&tools::LOAD)?;
    require_congestion(&args.congestion)?;
    let json = args.json.open()?;
    let steps = steps(args);
    let mut report = ComparisonReport::new(args.congestion.clone(), steps.clone());
    let entries = find(args, &mut report)?;
    report.implementations.clone_from(&entries);
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { 5 });
    let estimate = estimate(&steps, entries.len()) * rounds;
    eprintln!(
        "{} implementations, {} measures, {rounds} rounds: about {} min {} s",
        entries.len(),
        steps.len(),
        estimate.as_secs() / 60,
        estimate.as_secs() % 60,
    );
    let deadline = Instant::now() + estimate * 2 + Duration::from_secs(60);
    for round in 1..=rounds {
        if let Err(stopped) = one_round(args, round, rounds, &steps, &mut report, deadline) {
            eprintln!("\nstopped: {stopped}");
            report.stopped = Some(stopped.to_string());
            break;
        }
    }
    report.finish();
    json.publish(&tables::render(&report), &document::document(&report))?;
    output::verdict(report.stopped.is_some(), report.failures())
}

fn steps(args: &CompareArgs) -> Vec<Step> {
    let mut steps = if !args.only.is_empty() {
        args.only.clone()
    } else if args.quick {
        Step::QUICK.to_vec()
    } else {
        Step::DEFAULT.to_vec()
    };
    let mut seen = Vec::new();
    steps.retain(|step| {
        !seen.contains(step) && {
            seen.push(*step);
            true
        }
    });
    steps
}

/// The implementations that are there or can be built. One that cannot is left out, with a note.
fn find(args: &CompareArgs, report: &mut ComparisonReport) -> Result<Vec<Entry>, Failure> {
    let wanted = |who: Implementation| {
        if who == Implementation::Ceiling {
            return args.ceiling || args.implementations.contains(&who);
        }
        args.implementations.is_empty() || args.implementations.contains(&who)
    };
    let mut entries = Vec::new();
    let all = Implementation::value_variants().iter().copied();
    for who in all.filter(|&who| wanted(who)) {
        interrupt::check()?;
        match install::find(who, args.adit.path()) {
            Ok(entry) => {
                eprintln!("{:<14}{}", who.name(), entry.version);
                entries.push(entry);
            }
            Err(why) => {
                eprintln!("{:<14}left out: {why}", who.name());
                report.note(0, who, None, format!("left out: {why}"));
            }
        }
    }
    if entries.is_empty() {
        return Err("nothing to compare".into());
    }
    Ok(entries)
}

/// The steps that share a pair of hosts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Free,
    OverIpv6,
    OnePerCore,
}

impl Stage {
    const ALL: [Self; 3] = [Self::Free, Self::OverIpv6, Self::OnePerCore];

    const fn of(step: Step) -> Self {
        match step {
            Step::Ipv6Outside => Self::OverIpv6,
            Step::Tcp1Pinned => Self::OnePerCore,
            _ => Self::Free,
        }
    }

    const fn placement(self) -> (Placement, Family) {
        match self {
            Self::Free => (Placement::Free, Family::V4),
            Self::OverIpv6 => (Placement::Free, Family::V6),
            Self::OnePerCore => (Placement::OnePerCore, Family::V4),
        }
    }
}

/// How long one round takes.
fn estimate(steps: &[Step], implementations: usize) -> Duration {
    const START: Duration = Duration::from_millis(600);
    const OVERHEAD: Duration = Duration::from_millis(350);
    let in_turns = Step::in_turns(steps);
    let loaded: u32 = in_turns
        .iter()
        .map(|step| step.warm_up() + step.seconds())
        .sum();
    let stages = Stage::ALL
        .iter()
        .filter(|&&stage| steps.iter().any(|&step| Stage::of(step) == stage));
    let one = Duration::from_secs(loaded.into())
        + OVERHEAD.mul_f64(to_f64(in_turns.len()))
        + START.mul_f64(to_f64(stages.count()));
    one.mul_f64(to_f64(implementations))
}

/// Every implementation once.
fn one_round(
    args: &CompareArgs,
    round: u32,
    rounds: u32,
    steps: &[Step],
    report: &mut ComparisonReport,
    deadline: Instant,
) -> Result<(), Failure> {
    eprintln!(
        "round {round} of {rounds} (load average {})",
        proc::load_average()
    );
    for entry in install::order(&report.implementations, round) {
        eprint!("  {:<14}", entry.who.name());
        for stage in Stage::ALL {
            let now: Vec<Step> = steps
                .iter()
                .copied()
                .filter(|&step| Stage::of(step) == stage)
                .collect();
            if !now.is_empty() {
                one_stage(args, round, &entry, stage, &now, report)?;
            }
            if Instant::now() > deadline {
                return Err("it took more than twice the time that was estimated".into());
            }
        }
        eprintln!();
    }
    Ok(())
}

/// One implementation on one pair of hosts. A failed measurement is noted, and the next one
/// follows.
fn one_stage(
    args: &CompareArgs,
    round: u32,
    entry: &Entry,
    stage: Stage,
    steps: &[Step],
    report: &mut ComparisonReport,
) -> Result<(), Failure> {
    let (placement, outer) = stage.placement();
    let build = || LinkedHosts::new(entry, placement, outer, &args.congestion);
    let mut turn = Turn {
        report,
        round,
        who: entry.who,
    };
    let Some(mut pair) = turn.attempt(None, build())? else {
        return Ok(());
    };
    let memory = steps.contains(&Step::Memory);
    if memory {
        turn.record(Step::Memory, measure::idle_memory(&pair))?;
    }
    let mut restarted = false;
    let in_turns = Step::in_turns(steps).into_iter();
    for step in in_turns.filter(|&step| step != Step::Memory) {
        interrupt::check()?;
        let done = measure::step(step, &pair);
        // That a daemon has ended tells more than what the tools make of it.
        turn.record(step, pair.check().and(done))?;
        if pair.check().is_err() {
            restarted = true;
            let Some(again) = turn.attempt(None, build())? else {
                return Ok(());
            };
            pair = again;
        }
    }
    if memory {
        let peak = match restarted {
            true => Err("a daemon had to be started again: its peak is not the round's".into()),
            false => measure::peak_memory(&pair),
        };
        turn.record(Step::Memory, peak)?;
    }
    Ok(())
}

/// One implementation's part of a round.
struct Turn<'a> {
    report: &'a mut ComparisonReport,
    round: u32,
    who: Implementation,
}

impl Turn<'_> {
    /// The result, or a note of why it failed; an error only if the user wants to stop.
    fn attempt<T>(
        &mut self,
        step: Option<Step>,
        done: Result<T, Failure>,
    ) -> Result<Option<T>, Failure> {
        let why = match done {
            Ok(done) => return Ok(Some(done)),
            Err(why) => why.to_string(),
        };
        interrupt::check()?;
        match step {
            Some(step) => eprint!(" {}: failed ·", step.name()),
            None => eprint!(" failed: {why} ·"),
        }
        self.report.note(self.round, self.who, step, why);
        Ok(None)
    }

    fn record(&mut self, step: Step, done: Result<Values, Failure>) -> Result<(), Failure> {
        let Some(values) = self.attempt(Some(step), done)? else {
            return Ok(());
        };
        show(step, &values);
        let (round, implementation) = (self.round, self.who);
        let samples = values.into_iter().map(|(metric, value)| Sample {
            round,
            implementation,
            metric,
            value,
        });
        self.report.samples.extend(samples);
        Ok(())
    }
}

/// Progress: the step's first value.
fn show(step: Step, values: &Values) {
    if let Some((id, value)) = values.first() {
        let (places, unit) = metric(id).map_or((2, ""), |metric| (metric.places, metric.unit));
        eprint!(" {} {value:.places$} {unit} ·", step.name());
        let _ = std::io::stderr().flush();
    }
}

impl ComparisonReport {
    fn note(
        &mut self,
        round: u32,
        implementation: Implementation,
        step: Option<Step>,
        text: String,
    ) {
        self.notes.push(Note {
            round,
            implementation,
            step,
            text,
        });
    }
}
