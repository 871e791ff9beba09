//! The part of a document of `compare` that a chart shows.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::summary;

/// The part of the document of `document.rs` that the chart shows.
#[derive(Deserialize)]
pub(super) struct Results {
    pub(super) started: u64,
    pub(super) stopped: Option<String>,
    pub(super) machine: Machine,
    pub(super) settings: Settings,
    pub(super) implementations: Vec<Entry>,
    pub(super) metrics: Vec<Metric>,
}

#[derive(Deserialize)]
pub(super) struct Machine {
    pub(super) cpu: String,
    pub(super) cores: usize,
    pub(super) kernel: String,
}

#[derive(Deserialize)]
pub(super) struct Settings {
    pub(super) congestion_control: String,
    pub(super) steps: Vec<String>,
}

#[derive(Deserialize)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) version: String,
}

#[derive(Deserialize)]
pub(super) struct Metric {
    pub(super) id: String,
    pub(super) implementations: BTreeMap<String, Median>,
}

#[derive(Clone, Copy, Deserialize)]
pub(super) struct Median {
    pub(super) median: f64,
    /// How many rounds.
    pub(super) count: usize,
}

pub(super) const SCHEMA: u64 = 2;

/// The results in `text`, or why it has none.
pub(super) fn parse(text: &str) -> Result<Results, String> {
    const WANTED: &str = "a file that `adit-lab compare --json=FILE` or `adit-lab gateway --json=FILE` wrote is wanted";
    if text.trim().is_empty() {
        return Err(format!("the file is empty; {WANTED}"));
    }
    let json = summary::parse(text).map_err(|e| format!("this is not JSON ({e}); {WANTED}"))?;
    match json["command"].as_str() {
        Some("compare") => {}
        Some(other) => {
            return Err(format!("these are results of `adit-lab {other}`; {WANTED}"));
        }
        None => {
            return Err(format!(
                "this is no results file: it has no `command`; {WANTED}"
            ));
        }
    }
    match json["schema"].as_u64() {
        Some(SCHEMA) => {}
        Some(other) => {
            return Err(format!(
                "its schema is {other}, and this adit-lab reads schema {SCHEMA}: compare again with this version"
            ));
        }
        None => {
            return Err(format!(
                "this is no results file: it has no `schema`; {WANTED}"
            ));
        }
    }
    serde_json::from_value(json)
        .map_err(|e| format!("this is no whole results file: {e}; {WANTED}"))
}
