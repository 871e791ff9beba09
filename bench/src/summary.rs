//! `adit-lab summary`: what of a run is kept in `results/`, and how such a file is read.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value};

/// Leaves of results what documents and the page are made of.
///
/// Each value keeps its median, its least and greatest round and how many there were, as a list of
/// this name and order: `of`. Numbers keep six digits, loads of cores and threads thousandths. Single
/// rounds and flame graphs go. FILE is one that `--json=FILE` wrote, and is written again; whatever
/// reads the one reads the other.
#[derive(Args, Clone, Debug)]
pub(crate) struct SummaryArgs {
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

/// Writes each file again.
pub(crate) fn run(args: &SummaryArgs) -> Result<(), Box<dyn Error>> {
    for path in &args.files {
        let at = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let json = fs::read_to_string(path).map_err(|why| at(&why))?;
        let json = parse(&json).map_err(|why| at(&why))?;
        let mut text = String::new();
        write(&summary(&json, six_digits), &mut text);
        fs::write(path, text + "\n").map_err(|why| at(&why))?;
    }
    Ok(())
}

/// Where a summary has a value, and what stands there in this order.
const OF: &str = "of";
const PARTS: [&str; 4] = ["median", "min", "max", "count"];

/// The results in a text, be it a whole file or a summary: values are as in a whole file.
pub(crate) fn parse(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str(text).map(whole)
}

fn whole(json: Value) -> Value {
    let field = |(name, field): (String, Value)| match field {
        Value::Array(parts) if name == OF && parts.len() == PARTS.len() => {
            PARTS.map(str::to_owned).into_iter().zip(parts).collect()
        }
        field => vec![(name, whole(field))],
    };
    match json {
        Value::Object(fields) => fields.into_iter().flat_map(field).collect(),
        Value::Array(list) => list.into_iter().map(whole).collect(),
        other => other,
    }
}

fn summary(json: &Value, rounded: fn(f64) -> f64) -> Value {
    match json {
        Value::Object(fields) => {
            let is_kept = |name: &str, field: &Value| match name {
                // Half of the range over the median, and the median over the maximum.
                "spread" | "share_of_maximum" | "flame_graphs" => false,
                // Those that are a number are how many there were.
                "rounds" => !field.is_array(),
                "tool_bound" => field == true,
                _ => true,
            };
            let kept = fields.iter().filter(|(name, field)| is_kept(name, field));
            let kept = kept.map(|(name, field)| {
                let rounded = match name.as_str() {
                    "core_load" | "thread_load" => thousandths,
                    _ => rounded,
                };
                (name.clone(), summary(field, rounded))
            });
            Value::Object(together(kept.collect()))
        }
        Value::Array(list) => list.iter().map(|entry| summary(entry, rounded)).collect(),
        Value::Number(number) => {
            // Without a fraction that is none: 2 and not 2.0.
            let number = number.as_f64().filter(|_| number.is_f64());
            let short = number.map(|number| rounded(number).to_string());
            let short = short.and_then(|short| serde_json::from_str(&short).ok());
            short.unwrap_or_else(|| json.clone())
        }
        other => other.clone(),
    }
}

fn together(mut fields: Map<String, Value>) -> Map<String, Value> {
    if PARTS.iter().all(|part| fields.contains_key(*part)) {
        let parts = PARTS.iter().filter_map(|part| fields.remove(*part));
        let parts: Value = parts.collect();
        fields.insert(OF.to_owned(), parts);
    }
    fields
}

fn six_digits(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

fn thousandths(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// What is longer has a line for each of its parts.
const LINE: usize = 400;

/// Adds JSON that a comparison of two versions can show line by line.
fn write(json: &Value, text: &mut String) {
    let line = json.to_string();
    let parts: Vec<(String, &Value)> = match json {
        Value::Object(fields) if line.len() > LINE => fields
            .iter()
            .map(|(name, field)| (Value::from(name.as_str()).to_string() + ":", field))
            .collect(),
        Value::Array(list) if line.len() > LINE => {
            list.iter().map(|entry| (String::new(), entry)).collect()
        }
        _ => return text.push_str(&line),
    };
    text.push_str(&line[..1]);
    for (at, (name, part)) in parts.into_iter().enumerate() {
        text.push_str(if at == 0 { "\n" } else { ",\n" });
        text.push_str(&name);
        write(part, text);
    }
    text.push('\n');
    text.push_str(&line[line.len() - 1..]);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run_of(median: f64) -> Value {
        let rounds = json!([{"round": 1, "value": 8.0}, {"round": 2, "value": median},
            {"round": 3, "value": 12.0}]);
        let values = json!({"rounds": rounds, "median": median, "min": 8.0, "max": 12.0, "count": 3,
            "spread": 0.5, "tool_bound": false});
        let cores = json!([{"user": 0.123_456, "system": 1.0}]);
        let measures = json!([{"id": "tcp", "subjects": {"adit": values}, "core_load": cores}]);
        json!({"command": "reproduce", "started": 1_709_164_800_u64, "rounds": 3,
            "sources": [{"source": "pfsense", "measures": measures, "flame_graphs": [1]}]})
    }

    #[test]
    fn a_summary_has_values_without_their_rounds() {
        let short = summary(&run_of(9.123_456_78), six_digits);
        let measure = json!({"id": "tcp", "subjects": {"adit": {"of": [9.123_46, 8, 12, 3]}},
            "core_load": [{"user": 0.123, "system": 1}]});
        let expected = json!({"command": "reproduce", "started": 1_709_164_800_u64, "rounds": 3,
            "sources": [{"source": "pfsense", "measures": [measure]}]});
        assert_eq!(short, expected);
    }

    #[test]
    fn what_is_written_is_read_as_the_whole_file_is() {
        let short = summary(&json!([1.0, 2.0, 3.0].map(run_of)), six_digits);
        let mut text = String::new();
        write(&short, &mut text);
        assert!(text.lines().count() > 3);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), short);
        let read = parse(&text).unwrap();
        let adit = &read[1]["sources"][0]["measures"][0]["subjects"]["adit"];
        assert_eq!(*adit, json!({"median": 2, "min": 8, "max": 12, "count": 3}));
        assert_eq!(
            summary(&read, six_digits),
            short,
            "nothing more is left out"
        );
    }
}
