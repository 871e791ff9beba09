//! `adit-lab agree`: whether two runs of one command say the same.
//!
//! Whatever the command, a value in its JSON is an object with `median`, `min`, `max` and `count`.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use adit_testbed::stats::quantile;
use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::goals::{GoalResult, Limit};
use crate::{output, summary};

/// Compares the values of two runs of the same command on one machine.
///
/// Takes two files of `--json`. A value agrees if the median of each run lies between the least and
/// the greatest round of the other. Prints how many do, how many would if nothing but chance
/// differed, the same of Adit's ratios to others in the same round, where both files have single
/// rounds, and each value that does not agree.
#[derive(Args, Clone, Debug)]
pub(crate) struct AgreeArgs {
    /// The results of one run.
    #[arg(value_name = "FIRST")]
    first: PathBuf,
    /// Those of another.
    #[arg(value_name = "SECOND")]
    second: PathBuf,
    /// Write how far they agree to FILE as JSON, in all and by source, without the values.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Compares, and prints.
pub(crate) fn run(args: &AgreeArgs) -> Result<(), Box<dyn Error>> {
    let [first, second] = [&args.first, &args.second].map(|path| read(path));
    let (first, second) = (first?, second?);
    let both = pairs(&first, &second)?;
    let ratios = pairs(&ratios(&first), &ratios(&second)).unwrap_or_default();
    if let Some(path) = &args.json {
        let document = document(&first, &second, &both, &ratios);
        let document = serde_json::to_string_pretty(&document)? + "\n";
        fs::write(path, document).map_err(|why| format!("{}: {why}", path.display()))?;
    }
    output::print(&text(&both, &ratios))?;
    Ok(())
}

fn read(path: &Path) -> Result<Value, String> {
    let text = fs::read_to_string(path).map_err(|why| format!("{}: {why}", path.display()))?;
    summary::parse(&text).map_err(|why| format!("{}: {why}", path.display()))
}

/// How far two runs agree, for machines: schema 1.
fn document(first: &Value, second: &Value, pairs: &[Pair], ratios: &[Pair]) -> Value {
    let named = |name: &str, pairs: &[Pair]| Named {
        name: name.to_owned(),
        agreement: Agreement::of(pairs),
    };
    let sources = first["sources"].as_array().into_iter().flatten();
    let sources = sources.filter_map(|source| source["source"].as_str());
    let mut agreement: Vec<Named> = sources
        .map(|source| {
            let of = |pair: &&Pair| pair.path.iter().any(|name| name == source);
            named(
                source,
                &pairs.iter().filter(of).cloned().collect::<Vec<_>>(),
            )
        })
        .collect();
    let all = named("all", pairs);
    let goal = GoalResult::new(
        "medians within the range of the other's rounds".to_owned(),
        all.agreement.share() * 100.0,
        Limit::AtLeast(100.0),
        " %",
    );
    agreement.push(all);
    if !ratios.is_empty() {
        agreement.push(named("ratios of Adit to others", ratios));
    }
    json!({
        "schema": 1,
        "command": "agree",
        "runs_of": first["command"],
        "started": first["started"],
        "second_started": second["started"],
        "version": version(first),
        "machine": first["machine"],
        "agreement": agreement,
        "goals": [goal],
    })
}

/// What a file says that Adit was: the first text like that of `adit --version`.
fn version(json: &Value) -> Option<&str> {
    match json {
        Value::String(text) => {
            let number = text.strip_prefix("adit ")?;
            number
                .starts_with(|c: char| c.is_ascii_digit())
                .then_some(text)
        }
        Value::Object(fields) => fields.values().find_map(version),
        Value::Array(list) => list.iter().find_map(version),
        _ => None,
    }
}

/// What the rounds of one run say of one value.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Range {
    median: f64,
    min: f64,
    max: f64,
    rounds: u64,
}

impl Range {
    /// None if it is something else, or of one round, which has no range.
    fn of(json: &Value) -> Option<Self> {
        let range = Self {
            median: json["median"].as_f64()?,
            min: json["min"].as_f64()?,
            max: json["max"].as_f64()?,
            rounds: json["count"].as_u64()?,
        };
        (range.rounds > 1).then_some(range)
    }

    fn holds(&self, value: f64) -> bool {
        (self.min..=self.max).contains(&value)
    }
}

/// A value in both runs.
#[derive(Clone, Debug)]
struct Pair {
    /// Where it stands in the files: names, the outermost first.
    path: Vec<String>,
    first: Range,
    second: Range,
}

impl Pair {
    /// Whether each median lies within the other's range.
    fn agrees(&self) -> bool {
        self.first.holds(self.second.median) && self.second.holds(self.first.median)
    }

    /// The second median over the first, less one.
    fn change(&self) -> f64 {
        self.second.median / self.first.median - 1.0
    }
}

/// The values that both have, in the order of the first; an error if they are of two commands, or
/// have nothing in common.
fn pairs(first: &Value, second: &Value) -> Result<Vec<Pair>, String> {
    let command = |json: &Value| json["command"].as_str().unwrap_or_default().to_owned();
    let commands = [command(first), command(second)];
    if commands[0] != commands[1] {
        let [one, other] = commands;
        return Err(format!(
            "these are runs of two commands, {one:?} and {other:?}"
        ));
    }
    let [firsts, seconds] = [first, second].map(|json| {
        let mut found = Vec::new();
        find(json, &mut Vec::new(), &mut found);
        found
    });
    let other = |path: &Vec<String>| seconds.iter().find(|(there, _)| there == path);
    let pairs: Vec<Pair> = (firsts.into_iter())
        .filter_map(|(path, first)| {
            let (_, second) = *other(&path)?;
            Some(Pair {
                path,
                first,
                second,
            })
        })
        .collect();
    match pairs.is_empty() {
        true => Err("the files have no value of two rounds or more in common".to_owned()),
        false => Ok(pairs),
    }
}

/// Finds all values in a part of a file.
fn find(json: &Value, path: &mut Vec<String>, found: &mut Vec<(Vec<String>, Range)>) {
    if let Some(range) = Range::of(json) {
        found.push((path.clone(), range));
        return;
    }
    let named: Vec<(String, &Value)> = match json {
        Value::Object(fields) => (fields.iter())
            .map(|(name, field)| (name.clone(), field))
            .collect(),
        Value::Array(list) => (list.iter().enumerate())
            .map(|(at, entry)| (name(entry).unwrap_or_else(|| at.to_string()), entry))
            .collect(),
        _ => return,
    };
    for (name, inner) in named {
        path.push(name);
        find(inner, path, found);
        path.pop();
    }
}

/// Adit, or its last step where there are only its steps.
const ADIT: [&str; 2] = ["adit", "sized-frames"];

/// The file with the ratios of Adit to all others in place of its values: of the same round,
/// for both had the machine as it was then. Its own steps are others, too; the link without a tunnel
/// is none.
fn ratios(json: &Value) -> Value {
    match json {
        Value::Object(fields) => {
            let inner = fields
                .iter()
                .filter(|(_, field)| Range::of(field).is_none());
            let ratio = |(name, field): (&String, &Value)| match (name.as_str(), field) {
                ("subjects", Value::Object(subjects)) => (name.clone(), over_others(subjects)),
                _ => (name.clone(), ratios(field)),
            };
            inner.map(ratio).collect()
        }
        Value::Array(list) => list.iter().map(ratios).collect(),
        other => other.clone(),
    }
}

fn over_others(subjects: &Map<String, Value>) -> Value {
    let Some(adit) = ADIT.into_iter().find(|name| subjects.contains_key(*name)) else {
        return Value::Null;
    };
    let ours = rounds(&subjects[adit]);
    let others = subjects
        .iter()
        .filter(|(name, _)| *name != adit && *name != "direct");
    others
        .filter_map(|(name, theirs)| {
            let theirs = rounds(theirs);
            let ratio = |(round, ours): (&u64, &f64)| Some(ours / theirs.get(round)?);
            let all: Vec<f64> = ours.iter().filter_map(ratio).collect();
            let of = |part| quantile(&all, part).filter(|ratio| ratio.is_finite());
            let (min, max) = (of(0.0)?, of(1.0)?);
            let range = json!({"median": of(0.5)?, "min": min, "max": max, "count": all.len()});
            Some((name.clone(), range))
        })
        .collect()
}

/// The values of a program by round.
fn rounds(of: &Value) -> BTreeMap<u64, f64> {
    let all = of["rounds"].as_array().into_iter().flatten();
    all.filter_map(|one| Some((one["round"].as_u64()?, one["value"].as_f64()?)))
        .collect()
}

/// What an entry of a list calls itself.
fn name(entry: &Value) -> Option<String> {
    let mut keys = ["source", "id", "name"].into_iter();
    keys.find_map(|key| entry[key].as_str().map(str::to_owned))
}

/// The share of values that agree if both runs are drawn alike: of the orders in which two times
/// `rounds` values can lie, those with neither median outside the other's range. None for an even
/// number of rounds, whose median is no round.
fn by_chance(rounds: u64) -> Option<f64> {
    if rounds.is_multiple_of(2) {
        return None;
    }
    // As many values of one run lie below all of the other's if its median does.
    let half = rounds.div_ceil(2);
    let all = choose(2 * rounds, rounds);
    let one = choose(2 * rounds - half, rounds) / all;
    let both = choose(2 * rounds - 2 * half, rounds - half) / all;
    Some(1.0 - 4.0 * one + 2.0 * both)
}

/// In how many ways `count` of `all` can be taken.
fn choose(all: u64, count: u64) -> f64 {
    let factor = |at: u64| (all - count + at) as f64 / at as f64;
    (1..=count).map(factor).product()
}

/// How far values agree.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Agreement {
    values: usize,
    /// How many agree.
    agree: usize,
    /// The share that would by chance, where all have as many rounds.
    by_chance: Option<f64>,
    /// By which part of the first half of the medians, and nine in ten, differ at most.
    half: Option<f64>,
    most: Option<f64>,
}

/// How far some of the values agree.
#[derive(Serialize)]
struct Named {
    name: String,
    #[serde(flatten)]
    agreement: Agreement,
}

impl Agreement {
    fn of(pairs: &[Pair]) -> Self {
        let rounds = pairs.first().map_or(0, |pair| pair.first.rounds);
        let same = |pair: &Pair| [pair.first.rounds, pair.second.rounds] == [rounds; 2];
        let mut changes: Vec<f64> = pairs.iter().map(|pair| pair.change().abs()).collect();
        changes.retain(|change| change.is_finite());
        Self {
            values: pairs.len(),
            agree: pairs.iter().filter(|pair| pair.agrees()).count(),
            by_chance: by_chance(rounds).filter(|_| pairs.iter().all(same)),
            half: quantile(&changes, 0.5),
            most: quantile(&changes, 0.9),
        }
    }

    /// The share that agrees.
    fn share(&self) -> f64 {
        self.agree as f64 / self.values as f64
    }
}

/// How many agree, and those that do not.
fn text(pairs: &[Pair], ratios: &[Pair]) -> String {
    let mut text = paragraph("values in both runs", pairs);
    if !ratios.is_empty() {
        text.push('\n');
        text += &paragraph("ratios of Adit to others in the same round", ratios);
    }
    for pair in pairs.iter().filter(|pair| !pair.agrees()) {
        let _ = write!(text, "\n{}\n", pair.path.join(" "));
        let mut line = |run: &str,
                        Range {
                            median, min, max, ..
                        }: Range| {
            let _ = writeln!(
                text,
                "  {run:<8}{:>12} ({} to {})",
                short(median),
                short(min),
                short(max)
            );
        };
        line("first", pair.first);
        line("second", pair.second);
    }
    text
}

fn paragraph(what: &str, pairs: &[Pair]) -> String {
    let of = Agreement::of(pairs);
    let mut text = format!(
        "{} {what}\n{} agree, {:.0} %: each median within the range of the other's rounds\n",
        of.values,
        of.agree,
        of.share() * 100.0,
    );
    if let Some(chance) = of.by_chance {
        let _ = writeln!(
            text,
            "{:.0} % would, with {} rounds each, if nothing but chance differed",
            chance * 100.0,
            pairs[0].first.rounds,
        );
    }
    if let (Some(half), Some(most)) = (of.half, of.most) {
        let (half, most) = (half * 100.0, most * 100.0);
        let _ = writeln!(
            text,
            "half of the medians differ by at most {half:.1} %, nine in ten by at most {most:.1} %"
        );
    }
    text
}

/// With four digits, or all of the whole number.
fn short(value: f64) -> String {
    let places = match value.abs() {
        0.0 | 1000.0.. => 0,
        100.0.. => 1,
        10.0.. => 2,
        1.0.. => 3,
        _ => 5,
    };
    format!("{value:.places$}")
}

#[cfg(test)]
#[path = "agree_tests.rs"]
mod tests;
