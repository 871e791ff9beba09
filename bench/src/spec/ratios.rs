//! The table of goals in SPEC.md: a row for each claim, a column for each processor.
//!
//! Goals are found by name in the results. Where a claim is about several, the cell has the value that
//! is furthest from its limit. A value that no file has stays as the document has it, in italics; such a row
//! has the goal that stands here. A value that misses its goal is bold, and its row has a link to what
//! explains it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Table;
use super::claims::{BY_HAND, CLAIMS};
use super::tables::{array, goal_of, meets, number};

/// What SPEC.md writes in place of the names of these files.
pub(super) const ALL: &str = "results/*";

/// Columns, and the files of each. Of a goal that two files have, the first counts.
const PROCESSORS: [(&str, &[&str]); 5] = [
    (
        "Zen 5",
        &[
            "zen5",
            "reproduce-tailscale-zen5",
            "reproduce-tls-zen5",
            "reproduce-pfsense-zen5",
            "gateway-overload-zen5",
            "scale-zen5",
        ],
    ),
    (
        "Zen 4",
        &[
            "reproduce-tailscale-zen4",
            "reproduce-tls-zen4",
            "agree-zen4",
            "scale-zen4",
            "upgrade-zen4",
            "idle-zen4",
            "hostile-adit-zen4",
        ],
    ),
    ("Zen 4, AVX2", &["zen4-avx2", "gateway-zen4-avx2"]),
    (
        "Xeon",
        &[
            "gateway-two-peers-xeon",
            "gateway-xeon",
            "gateway-active-xeon",
            "reproduce-tls-xeon",
            "reproduce-pfsense-xeon",
        ],
    ),
    (
        "Xeon, 16 CPUs",
        &["xeon16", "scale-xeon16", "forwarded-xeon16"],
    ),
];

/// The files of all columns.
pub(super) fn files() -> Vec<String> {
    let all = PROCESSORS.iter().flat_map(|(_, files)| *files);
    all.map(|file| format!("results/{file}.json")).collect()
}

/// A goal of a results file.
struct Measured {
    value: f64,
    goal: String,
    is_met: bool,
}

/// The goals of one column by name.
type Goals = BTreeMap<String, Measured>;

/// Fills the cells that files have, marks what is missed, and fails if a goal has no row.
pub(super) fn goals(results: &[Value], table: &mut Table) -> Result<(), String> {
    let columns = columns(results)?;
    every_goal_has_a_claim(&columns)?;
    every_claim_has_a_row(table)?;
    for row in 0..table.rows.len() {
        let claim = table.rows[row][0].clone();
        fill(row, &claim, &columns, table).map_err(|why| format!("{claim}: {why}"))?;
    }
    Ok(())
}

fn every_claim_has_a_row(table: &Table) -> Result<(), String> {
    let measured = CLAIMS.iter().map(|(claim, _)| *claim);
    let all: Vec<&str> = measured
        .chain(BY_HAND.iter().map(|(claim, _)| *claim))
        .collect();
    for claim in &all {
        match table.rows.iter().filter(|row| row[0] == *claim).count() {
            1 => {}
            count => return Err(format!("the row {claim:?} is there {count} times")),
        }
    }
    let unknown = table
        .rows
        .iter()
        .find(|row| !all.contains(&row[0].as_str()));
    match unknown {
        None => Ok(()),
        Some(row) => Err(format!("no claim is called {:?}", row[0])),
    }
}

/// The goal and the cells of one row.
fn fill(row: usize, claim: &str, columns: &[Goals], table: &mut Table) -> Result<(), String> {
    if let Some((_, goal)) = BY_HAND.iter().find(|(name, _)| *name == claim) {
        table.set(row, "goal", (*goal).to_owned())?;
    }
    let known = CLAIMS.iter().find(|(name, _)| *name == claim);
    let patterns = known.map_or(&[][..], |(_, patterns)| *patterns);
    let found = columns.iter().map(|goals| worst(goals, patterns));
    let found: Vec<Option<&Measured>> = found.collect::<Result<_, _>>()?;
    if let Some(first) = found.iter().flatten().next() {
        let goal = wanted(&first.goal);
        let same = |other: &&Measured| limit(&other.goal) == limit(&goal);
        if !found.iter().flatten().all(same) {
            return Err("files differ in its goal".to_owned());
        }
        table.set(row, "goal", goal)?;
    }
    for ((processor, _), measured) in PROCESSORS.iter().zip(found) {
        let kept = table.cell(row, processor)?.to_owned();
        let text = match measured {
            Some(measured) => shown(measured),
            None => by_hand(&kept, table.cell(row, "goal")?)?,
        };
        table.set(row, processor, text)?;
    }
    let is_missed = table.rows[row].iter().any(|cell| cell.contains("**"));
    if is_missed && !table.cell(row, "why missed")?.contains('[') {
        return Err("nothing says why it is missed".to_owned());
    }
    Ok(())
}

/// The goals of each column.
fn columns(results: &[Value]) -> Result<Vec<Goals>, String> {
    let mut results = results.iter();
    let mut columns = Vec::new();
    for (_, files) in PROCESSORS {
        let mut goals = Goals::new();
        for json in results.by_ref().take(files.len()) {
            for (name, measured) in measured(json)? {
                goals.entry(name).or_insert(measured);
            }
        }
        columns.push(goals);
    }
    Ok(columns)
}

/// The goals of one file; files of `compare` from before these had a list have targets.
fn measured(json: &Value) -> Result<Vec<(String, Measured)>, String> {
    let text = |of: &Value, key: &str| of[key].as_str().unwrap_or_default().to_owned();
    let of = |goal: &Value, name: String, value: &str, is_met: bool| {
        let measured = Measured {
            value: number(goal, value)?,
            goal: text(goal, "goal"),
            is_met,
        };
        Ok((name, measured))
    };
    if let Ok(goals) = array(json, "goals") {
        let all = goals.iter();
        return all
            .map(|goal| of(goal, text(goal, "name"), "value", goal["met"] == true))
            .collect();
    }
    let targets = array(json, "targets")?.iter();
    let targets = targets.filter(|target| !target["measured"].is_null());
    targets
        .map(|target| {
            let name = match text(target, "against").as_str() {
                "–" => text(target, "measure"),
                against => format!("{}, of {against}", text(target, "measure")),
            };
            of(target, name, "measured", target["verdict"] == "pass")
        })
        .collect()
}

fn every_goal_has_a_claim(columns: &[Goals]) -> Result<(), String> {
    let patterns: Vec<&str> = CLAIMS.iter().flat_map(|(_, all)| *all).copied().collect();
    let mut names = columns.iter().flat_map(Goals::keys);
    let lost = names.find(|name| !patterns.iter().any(|pattern| matches(pattern, name)));
    match lost {
        None => Ok(()),
        Some(name) => Err(format!("no row is about the goal {name:?}")),
    }
}

/// Whether a name is the pattern, or begins and ends as it does around its `*`.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => name == pattern,
        Some((first, last)) => name
            .strip_prefix(first)
            .is_some_and(|rest| rest.ends_with(last)),
    }
}

/// Of the goals with these names, the one furthest from its limit.
fn worst<'a>(goals: &'a Goals, patterns: &[&str]) -> Result<Option<&'a Measured>, String> {
    let found = goals.iter().filter(|(name, _)| {
        let mut all = patterns.iter();
        all.any(|pattern| matches(pattern, name))
    });
    let found: Vec<&Measured> = found.map(|(_, measured)| measured).collect();
    let Some(first) = found.first() else {
        return Ok(None);
    };
    if found
        .iter()
        .any(|other| limit(&other.goal) != limit(&first.goal))
    {
        return Err("its goals have different limits".to_owned());
    }
    let by_value = |a: &&&Measured, b: &&&Measured| a.value.total_cmp(&b.value);
    let worst = match first.goal.starts_with('≥') {
        true => found.iter().min_by(by_value),
        false => found.iter().max_by(by_value),
    };
    Ok(worst.copied())
}

/// A goal as the table has it: "≥ 2.5 ×" of "≥ 2.5 × best".
fn wanted(goal: &str) -> String {
    let end = goal.find('×').map_or(goal.len(), |at| at + '×'.len_utf8());
    goal[..end].to_owned()
}

/// The sign and the number of a goal.
fn limit(goal: &str) -> Vec<&str> {
    goal.split(' ').take(2).collect()
}

/// A value with as many digits as show on which side of its limit it is.
fn shown(measured: &Measured) -> String {
    let Measured {
        value,
        ref goal,
        is_met,
    } = *measured;
    let mut places = match value {
        value if value.fract() == 0.0 || value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    let rounded = |places: usize| format!("{value:.places$}");
    while places < 6 && meets(rounded(places).parse().unwrap_or(value), goal) != is_met {
        places += 1;
    }
    match is_met {
        true => rounded(places),
        false => format!("**{}**", rounded(places)),
    }
}

/// Values that no file has, between commas, in italics.
fn by_hand(cell: &str, goal: &str) -> Result<String, String> {
    if cell.is_empty() {
        return Ok(String::new());
    }
    let text = cell.trim_matches('*');
    let numbers = text
        .split(", ")
        .map(|part| part.replace(',', "").parse::<f64>());
    let numbers = numbers.collect::<Result<Vec<f64>, _>>();
    let numbers = numbers.map_err(|_| format!("{cell} is neither of a file nor a number"))?;
    let is_missed = match goal_of(goal) {
        Some(_) => !numbers.iter().all(|&value| meets(value, goal)),
        None => cell.contains("**"),
    };
    Ok(match is_missed {
        true => format!("***{text}***"),
        false => format!("*{text}*"),
    })
}

#[cfg(test)]
#[path = "ratios_tests.rs"]
mod tests;
