//! A run as JSON, for machines: schema 2. Schema 1 said `contenders` for `implementations`.
//!
//! Fields are only ever added under the same schema number.

use std::collections::BTreeMap;

use adit_testbed::framing::{LINK_MTU, TUNNEL_MTU};
use serde::Serialize;

use crate::goals::GoalResult;
use crate::implementation::{Entry, Implementation};
use crate::metric::{METRICS, Metric, Step};
use crate::report::{ComparisonReport, Machine, Note};
use crate::sandbox::Failure;
use crate::stats::{Ratio, Summary};
use crate::targets::{self, Target};

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    command: &'static str,
    /// Seconds since 1970.
    started: u64,
    seconds: f64,
    stopped: Option<&'a str>,
    machine: &'a Machine,
    tools: BTreeMap<&'a str, &'a str>,
    settings: Settings<'a>,
    implementations: &'a [Entry],
    metrics: Vec<Measured>,
    targets: Vec<Target>,
    goals: Vec<GoalResult>,
    notes: &'a [Note],
}

#[derive(Serialize)]
struct Settings<'a> {
    congestion_control: &'a str,
    link_mtu: usize,
    tunnel_mtu: usize,
    steps: &'a [Step],
}

#[derive(Serialize)]
struct Measured {
    #[serde(flatten)]
    metric: Metric,
    tool: &'static str,
    /// The direct path's median times what framing leaves of it.
    maximum: Option<f64>,
    implementations: BTreeMap<&'static str, Values>,
    /// Adit's ratio to each of the others.
    adit_to: BTreeMap<&'static str, Ratio>,
}

#[derive(Serialize)]
struct Values {
    rounds: Vec<Round>,
    #[serde(flatten)]
    summary: Summary,
    share_of_maximum: Option<f64>,
    /// The tool that made the load was the limit, not the tunnel.
    tool_bound: bool,
}

#[derive(Serialize)]
struct Round {
    round: u32,
    value: f64,
}

/// The whole run.
pub(crate) fn render(report: &ComparisonReport) -> Result<String, Failure> {
    let tools = report.tools.iter();
    let targets = targets::judge(report);
    let document = Document {
        schema: 2,
        command: "compare",
        started: report.started,
        seconds: report.took.as_secs_f64(),
        stopped: report.stopped.as_deref(),
        machine: &report.machine,
        tools: tools.map(|(k, v)| (k.as_str(), v.as_str())).collect(),
        settings: Settings {
            congestion_control: &report.congestion,
            link_mtu: LINK_MTU,
            tunnel_mtu: TUNNEL_MTU,
            steps: &report.steps,
        },
        implementations: &report.implementations,
        metrics: METRICS
            .iter()
            .map(|metric| measured(report, metric))
            .filter(|measured| !measured.implementations.is_empty())
            .collect(),
        goals: targets::goals(&targets),
        targets,
        notes: &report.notes,
    };
    Ok(serde_json::to_string_pretty(&document)?)
}

fn measured(report: &ComparisonReport, metric: &Metric) -> Measured {
    let there = || report.implementations.iter().map(|entry| entry.who);
    let values = |who| {
        let rounds = report.values(who, metric.id).into_iter();
        Some(Values {
            rounds: rounds
                .map(|(round, value)| Round { round, value })
                .collect(),
            summary: report.summary(who, metric.id)?,
            share_of_maximum: report.share_of_maximum(who, metric),
            tool_bound: report.is_tool_bound(who, metric.id),
        })
    };
    let adit = (Implementation::Adit, metric.id);
    Measured {
        metric: *metric,
        tool: metric.step.tool(),
        maximum: report.maximum(metric),
        implementations: there()
            .filter_map(|who| Some((who.name(), values(who)?)))
            .collect(),
        adit_to: there()
            .filter(|&who| who != Implementation::Adit)
            .filter_map(|who| Some((who.name(), report.ratio(adit, (who, metric.id))?)))
            .collect(),
    }
}
