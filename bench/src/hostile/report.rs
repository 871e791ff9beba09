//! What is measured, and the goals.

use super::{
    Attack, CONNECTED, CONNECTED_AFTER, GROWTH, HONEST, KEPT, LOST, PING_P99, SENT, SENT_CLOSED,
    STREAM, STREAM_ATTACKED, STREAM_CLOSED,
};
use crate::goals::GoalResult;
use crate::goals::Limit::{AtLeast, AtMost};
use crate::implementation::Implementation;
use crate::output::name;
use crate::rounds::{Experiment, Measure, measure};

pub(super) const MEASURES: [Measure; 11] = [
    measure(STREAM, "TCP, alone", "Gb/s", 2),
    measure(
        STREAM_CLOSED,
        "  beside a flood of a closed port",
        "Gb/s",
        2,
    ),
    measure(STREAM_ATTACKED, "  beside the attack", "Gb/s", 2),
    measure(KEPT, "  of that of a closed port", "×", 2),
    measure(PING_P99, "ping beside the attack, p99", "ms", 2),
    measure(LOST, "  not answered", "%", 1),
    measure(CONNECTED, "honest peers of 20 that connect", "", 0),
    measure(CONNECTED_AFTER, "  the last of them after", "s", 2),
    measure(GROWTH, "memory, growth to its peak", "MiB", 1),
    measure(SENT, "messages sent, thousand", "1/s", 0),
    measure(SENT_CLOSED, "  to a closed port", "1/s", 0),
];

/// What Adit reached of what it is to reach.
pub(super) fn goals(run: &Experiment<Attack>) -> Vec<GoalResult> {
    let all = run.parts().flat_map(|attack| {
        let kept = match attack {
            Attack::BadTags => Some((KEPT, AtLeast(0.6))),
            // A peer has its share.
            Attack::Peer => None,
            _ => Some((KEPT, AtLeast(0.8))),
        };
        let others = [
            (PING_P99, AtMost(10.0)),
            (CONNECTED, AtLeast(f64::from(HONEST))),
            (GROWTH, AtMost(16.0)),
        ];
        let goals = kept.into_iter().chain(others);
        goals.map(move |(id, limit)| (attack, id, limit))
    });
    let judged = all.filter_map(|(attack, id, limit)| {
        let value = run.summary(attack, id, Implementation::Adit)?.median;
        let goal = format!("{}: {id}", name(attack));
        Some(GoalResult::new(goal, value, limit, ""))
    });
    judged.collect()
}
