//! The report of a run: its document, and its tables as text.

use std::fmt::Write as _;

use serde::Serialize;

use super::machine::Cores;
use super::model::predict::{self, Model, Validated};
use super::stages::StageCosts;
use super::{forwarded, tunnels};
use crate::goals::{self, GoalResult};
use crate::report::Machine;
use crate::stats::Summary;

#[derive(Serialize)]
pub(super) struct ScaleReport {
    pub(super) schema: u32,
    pub(super) command: &'static str,
    /// Seconds since 1970.
    pub(super) started: u64,
    pub(super) machine: Machine,
    pub(super) congestion_control: String,
    pub(super) cpus: usize,
    pub(super) rounds: u16,
    pub(super) memory: Vec<Row>,
    pub(super) stages: Vec<StageRow>,
    pub(super) tunnels: Vec<tunnels::Row>,
    pub(super) loads: Vec<tunnels::Row>,
    pub(super) forwarded: Vec<forwarded::Row>,
    pub(super) left_out: Vec<String>,
    pub(super) model: Option<Model>,
    pub(super) goals: Vec<GoalResult>,
    /// Why it ended early.
    pub(super) stopped: Option<String>,
}

/// What the stages of one load cost.
#[derive(Serialize)]
pub(super) struct StageRow {
    pub(super) load: &'static str,
    /// Those of the engine in memory, or the kernel's.
    pub(super) devices: &'static str,
    #[serde(flatten)]
    pub(super) costs: StageCosts,
}

/// One load by one policy.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) load: &'static str,
    pub(super) policy: &'static str,
    pub(super) threads: usize,
    pub(super) gbps: Summary,
    /// Without the time in which threads were ready and other programs had the CPUs.
    pub(super) gbps_alone: Summary,
    pub(super) cpu_s_per_gb: Summary,
}

pub(super) fn table(report: &ScaleReport) -> String {
    let mut text = String::new();
    if !report.memory.is_empty() {
        let _ = write!(
            text,
            "The engine over devices in memory, {} CPUs, {} rounds\n\n{:<16}{:<10}{:>8}{:>12}{:>18}{:>16}\n",
            report.cpus, report.rounds, "packets", "policy", "threads", "Gb/s", "range", "CPU-s/GB"
        );
    }
    for row in &report.memory {
        let range = format!("{:.1}–{:.1}", row.gbps.min, row.gbps.max);
        let _ = writeln!(
            text,
            "{:<16}{:<10}{:>8}{:>12.1}{range:>18}{:>16.3}",
            row.load, row.policy, row.threads, row.gbps.median, row.cpu_s_per_gb.median
        );
    }
    text += &stage_table(&report.stages);
    text += &tunnel_table(&report.tunnels);
    text += &load_table(&report.loads);
    text += &forwarded::table(&report.forwarded, &report.left_out);
    if let Some(model) = &report.model {
        text += &model_table(model);
    }
    if let Some(why) = &report.stopped {
        let _ = writeln!(text, "\nThe run is incomplete: {why}");
    }
    text.push('\n');
    text + &goals::table(&report.goals)
}

fn stage_table(rows: &[StageRow]) -> String {
    let mut text = String::new();
    if !rows.is_empty() {
        let _ = write!(
            text,
            "\nStages, one thread, CPU ns a packet\n\n{:<16}{:<10}{:>8}{:>8}{:>8}{:>8}{:>8}{:>16}\n",
            "packets", "devices", "take", "work", "put", "polls", "all", "packets a batch"
        );
    }
    for StageRow {
        load,
        devices,
        costs,
    } in rows
    {
        let _ = writeln!(
            text,
            "{load:<16}{devices:<10}{:>8.0}{:>8.0}{:>8.0}{:>8.0}{:>8.0}{:>16.0}",
            costs.take_ns,
            costs.work_ns,
            costs.put_ns,
            costs.poll_ns,
            costs.total_ns(),
            costs.batch_packets
        );
    }
    text
}

fn tunnel_table(rows: &[tunnels::Row]) -> String {
    let mut text = String::new();
    if !rows.is_empty() {
        let _ = write!(
            text,
            "\nReal tunnels, both ends on this machine\n\n{:>8}{:>7}  {:<10}{:>8}{:>8}{:>14}{:>10}{:>10}{:>10}  cores\n",
            "tunnels",
            "flows",
            "policy",
            "threads",
            "Gb/s",
            "range",
            "sender",
            "receiver",
            "machine"
        );
        let _ = writeln!(text, "{:>57}{:>30}  % busy", "", "CPU-s/GB");
    }
    for row in rows {
        let range = format!("{:.2}–{:.2}", row.gbps.min, row.gbps.max);
        let cores = row.core_load.iter();
        let cores: Vec<String> = cores
            .map(|core| format!("{:.0}", core.busy() * 100.0))
            .collect();
        let _ = writeln!(
            text,
            "{:>8}{:>7}  {:<10}{:>8}{:>8.2}{range:>14}{:>10.2}{:>10.2}{:>10.2}  {}",
            row.tunnels,
            row.flows,
            row.policy,
            row.threads,
            row.gbps.median,
            row.sender_cpu_s_per_gb.median,
            row.receiver_cpu_s_per_gb.median,
            row.machine_cpu_s_per_gb.median,
            cores.join(" ")
        );
    }
    text
}

fn load_table(rows: &[tunnels::Row]) -> String {
    let mut text = String::new();
    if !rows.is_empty() {
        let _ = write!(
            text,
            "\nFlows that offer less than the tunnel carries\n\n{:>14}  {:<10}{:>8}{:>14}{:>10}{:>10}\n",
            "offered, Gb/s", "policy", "Gb/s", "range", "CPU-s/GB", "machine"
        );
    }
    for row in rows {
        let range = format!("{:.2}–{:.2}", row.gbps.min, row.gbps.max);
        let _ = writeln!(
            text,
            "{:>14.1}  {:<10}{:>8.2}{range:>14}{:>10.2}{:>10.2}",
            row.offered_gbps.unwrap_or_default(),
            row.policy,
            row.gbps.median,
            row.cpu(),
            row.machine_cpu_s_per_gb.median
        );
    }
    text
}

fn model_table(model: &Model) -> String {
    let Cores {
        wake_ns,
        fetch_ns_per_byte,
        side_by_side,
        ..
    } = model.cores;
    let mut text = format!(
        "\nModel: a thread wakes in {:.1} µs, another core's batch takes {:.1} µs to fetch, two busy cores \
         have {:.0} % of their speed\n\n{:<24}{:<10}{:>10}{:>10}{:>10}{:>8}{:>8}\n",
        wake_ns / 1e3,
        fetch_ns_per_byte * 262.144,
        side_by_side * 100.0,
        "measured before",
        "policy",
        "measured",
        "alone",
        "model",
        "error",
        "alone"
    );
    for point in &model.validation {
        let _ = writeln!(
            text,
            "{:<24}{:<10}{:>10.2}{:>10.2}{:>10.2}{:>7.0}%{:>7.0}%",
            point.load,
            point.policy,
            point.measured_gbps,
            point.alone_gbps,
            point.model_gbps,
            point.error * 100.0,
            point.error_alone * 100.0
        );
    }
    for part in ["memory", "tunnels"] {
        let of = |error| predict::errors(&model.validation, part, error);
        let median = of(|point: &Validated| point.error);
        let alone = of(|point: &Validated| point.error_alone);
        if let Some((median, alone)) = median.zip(alone) {
            let [middle, greatest] = median.map(|error| error * 100.0);
            let [middle_alone, greatest_alone] = alone.map(|error| error * 100.0);
            let _ = writeln!(
                text,
                "{part}: error {middle:.0} % in the middle, {greatest:.0} % at most; without what other \
                 programs took {middle_alone:.0} %, {greatest_alone:.0} %"
            );
        }
    }
    for curve in &model.curves {
        let at = curve
            .lines
            .first()
            .into_iter()
            .flat_map(|line| &line.points);
        let at: String = at.map(|point| format!("{:>7}", point.at)).collect();
        let _ = writeln!(
            text,
            "\n{:<24}{at} {}",
            format!("{}, Gb/s", curve.title),
            curve.axis
        );
        for line in &curve.lines {
            let gbps = line
                .points
                .iter()
                .map(|point| format!("{:>7.1}", point.gbps));
            let _ = writeln!(text, "  {:<22}{}", line.name, gbps.collect::<String>());
        }
    }
    let _ = writeln!(
        text,
        "\n{:<44}{:>10}{:>10}{:>8}",
        "published, Gb/s", "", "model", "error"
    );
    for point in &model.published {
        let _ = writeln!(
            text,
            "{:<44}{:>10.1}{:>10.1}{:>7.0}%",
            point.what,
            point.published_gbps,
            point.model_gbps,
            point.error * 100.0
        );
    }
    text
}
