//! The goals, and the tables.

use super::Case;
use super::measures::{self, Goal, MEASURES};
use crate::goals::{GoalResult, Limit};
use crate::implementation::Implementation;
use crate::output::name;
use crate::rounds::Experiment;

/// What Adit reached.
pub(super) fn goals(run: &Experiment<Case>) -> Vec<GoalResult> {
    let all = run.parts().flat_map(|case| {
        let goals = measures::goals(case, run.machine.cores);
        goals.into_iter().map(move |(id, goal)| (case, id, goal))
    });
    all.filter_map(|(case, id, goal)| {
        let median = |case, who| Some(run.summary(case, id, who)?.median);
        let own = median(case, Implementation::Adit)?;
        let unit = MEASURES.iter().find(|measure| measure.id == id)?.unit;
        let unit = match unit {
            "" => String::new(),
            unit => format!(" {unit}"),
        };
        let (value, limit, unit) = match goal {
            Goal::Own(limit) => (own, limit, unit),
            Goal::TimesBest(times) => {
                let others = Implementation::PEERS.into_iter();
                let best = others
                    .filter_map(|who| median(case, who))
                    .reduce(f64::max)?;
                (own / best, Limit::AtLeast(times), " × best".to_owned())
            }
            Goal::TimesCase(other, times) => {
                let of = format!(" × {}", name(other));
                let other = median(other, Implementation::Adit)?;
                (own / other, Limit::AtLeast(times), of)
            }
        };
        let goal = format!("{}: {id}", name(case));
        Some(GoalResult::new(goal, value, limit, &unit))
    })
    .collect()
}

/// Medians: a table for each case, one for all numbers of active peers, then the goals.
pub(super) fn table(run: &Experiment<Case>, goals: &[GoalResult]) -> String {
    let mut text = run.tables(run.parts().filter(|case| !Case::ACTIVE.contains(case)));
    // One measure after the other, so that its values for more and more peers stand together.
    for measure in &MEASURES {
        let rows = Case::ACTIVE.into_iter().map(|case| {
            let name = name(case);
            let peers = name.trim_start_matches("peers-active-");
            (format!("  {peers} active peers"), case, measure)
        });
        text += &run.table(measure.label().trim(), rows);
    }
    text + &run.end(goals)
}
