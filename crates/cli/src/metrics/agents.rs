//! What agents tell of themselves.

use adit_fleet::{AgentStatus, JustInTime, SourceState};

use super::page::{Metric, Page};

type OfAgent = fn(&AgentStatus) -> Option<u64>;

/// Metrics of one number for each agent: name, help.
const OF_AGENTS: [(&str, &str, OfAgent); 7] = [
    (
        "adit_agent_up",
        "Whether an agent serves the interface (1) or has ended (0)",
        |it| Some(it.is_running.into()),
    ),
    (
        "adit_agent_works",
        "Whether the agent has read its source whole, can read it, write to it where it should, and change the interface (1) or not (0)",
        |it| {
            let fails = it.failure.is_some() || it.write_back_failure.is_some();
            Some((it.state == SourceState::Listed && !fails).into())
        },
    ),
    (
        "adit_agent_records",
        "Records of the source, good and bad",
        |it| Some(it.records as u64),
    ),
    (
        "adit_agent_refused_records",
        "Records that are refused",
        |it| Some(it.refused as u64),
    ),
    (
        "adit_agent_peers",
        "Peers of the interface that come from the source",
        |it| Some(it.applied as u64),
    ),
    (
        "adit_agent_last_list_timestamp_seconds",
        "When the last whole list of the source was complete",
        |it| it.last_list,
    ),
    (
        "adit_agent_held_peers",
        "Peers of all gateways, as their keys say, with --write-back",
        |it| it.held.map(|held| held as u64),
    ),
];

pub(super) fn render(page: &mut Page<'_>, agents: &[AgentStatus]) {
    for (name, help, of) in OF_AGENTS.iter().filter(|_| !agents.is_empty()) {
        let mut metric = Metric::new(page, name, "gauge", help);
        for agent in agents {
            if let Some(value) = of(agent) {
                metric.line(&[("interface", &agent.interface)], value);
            }
        }
    }
    let counts = || agents.iter().filter_map(|it| Some((it, it.just_in_time?)));
    if counts().next().is_none() {
        return;
    }
    let help = "What became of unknown peers that began a handshake, with --just-in-time";
    let mut metric = Metric::new(page, "adit_agent_strangers_total", "counter", help);
    for (agent, counts) in counts() {
        let JustInTime {
            found,
            missing,
            limited,
            ..
        } = counts;
        for (result, count) in [("found", found), ("missing", missing), ("limited", limited)] {
            let labels = [("interface", agent.interface.as_str()), ("result", result)];
            metric.line(&labels, count);
        }
    }
    let help = "Peers that were removed since they were gone, with --just-in-time";
    let mut metric = Metric::new(page, "adit_agent_evicted_total", "counter", help);
    for (agent, counts) in counts() {
        metric.line(&[("interface", &agent.interface)], counts.evicted);
    }
}
