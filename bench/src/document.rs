//! A run as JSON, for machines: schema 2. Schema 1 said `contenders` for `implementations`.
//!
//! Fields are only ever added under the same schema number.

use std::collections::BTreeMap;

use adit_testbed::framing::{LINK_MTU, TUNNEL_MTU};
use serde_json::{Value, json};

use crate::implementation::Implementation;
use crate::metric::{METRICS, Metric};
use crate::report::ComparisonReport;
use crate::stats::Rounds;
use crate::targets;

/// The whole run.
pub(crate) fn document(report: &ComparisonReport) -> Value {
    let tools = report.tools.iter();
    let targets = targets::judge(report);
    let metrics = METRICS.iter().filter_map(|metric| measured(report, metric));
    json!({
        "schema": 2,
        "command": "compare",
        "started": report.started,
        "seconds": report.took.as_secs_f64(),
        "stopped": report.stopped,
        "machine": report.machine,
        "tools": tools.cloned().collect::<BTreeMap<String, String>>(),
        "settings": {
            "congestion_control": report.congestion,
            "link_mtu": LINK_MTU,
            "tunnel_mtu": TUNNEL_MTU,
            "steps": report.steps,
        },
        "implementations": report.implementations,
        "metrics": metrics.collect::<Value>(),
        "goals": targets::goals(&targets),
        "targets": targets,
        "notes": report.notes,
    })
}

/// One measure, if it has values. Its `maximum` is the direct path's median times what framing leaves of
/// it; where it is `tool_bound`, the tool that made the load was the limit, not the tunnel.
fn measured(report: &ComparisonReport, metric: &Metric) -> Option<Value> {
    let there = || report.implementations.iter().map(|entry| entry.who);
    let values = |who: Implementation| {
        let rounds = report.values(who, metric.id).into_iter();
        let rounds = rounds.map(|(round, value)| json!({"round": round, "value": value}));
        let rounds = Rounds::new(rounds.collect(), report.summary(who, metric.id)?);
        let mut values = json!(rounds);
        values["share_of_maximum"] = json!(report.share_of_maximum(who, metric));
        values["tool_bound"] = report.is_tool_bound(who, metric.id).into();
        Some((who.name(), values))
    };
    let values: BTreeMap<_, _> = there().filter_map(values).collect();
    if values.is_empty() {
        return None;
    }
    let adit = (Implementation::Adit, metric.id);
    let others = there().filter(|&who| who != Implementation::Adit);
    let ratios = others.filter_map(|who| Some((who.name(), report.ratio(adit, (who, metric.id))?)));
    let mut measured = json!(metric);
    measured["tool"] = metric.step.tool().into();
    measured["maximum"] = json!(report.maximum(metric));
    measured["implementations"] = json!(values);
    measured["adit_to"] = json!(ratios.collect::<BTreeMap<_, _>>());
    Some(measured)
}
