//! "WireGuard Inline": what more cores bring, by policy. `adit-lab scale` measures it.

use super::ReproduceArgs;
use super::results::{Measure, Results, Subject};
use crate::metric::Better;
use crate::sandbox::Failure;
use crate::scale;

/// The names of all that its table has. It has all of them, whatever is asked for.
pub(super) fn subjects() -> Vec<&'static str> {
    let ways = scale::ways(scale::several()).into_iter();
    ways.map(|(policy, _)| policy.name()).collect()
}

/// Measures the engine in memory.
pub(super) fn measure(args: &ReproduceArgs, results: &mut Results) -> Result<(), Failure> {
    results.leave_out(
        "figures 4 to 8",
        "they need 32 cores and two gateways with 100 GbE; what is measured is the engine over devices in memory",
    );
    let several = scale::several();
    for (policy, threads) in scale::ways(several) {
        results.subjects.push(Subject {
            name: policy.name().to_owned(),
            what: format!("{threads} threads"),
        });
    }
    for load in scale::loads() {
        let mut add = |suffix: &str, what: &str, unit, better| {
            results.measures.push(Measure {
                id: format!("{load}{suffix}"),
                title: format!("packets {load}{what}"),
                unit,
                better,
                places: 2,
                curve: None,
                distribution: None,
            });
        };
        add("", "", "Gb/s", Better::Higher);
        add(".cpu", ": CPU time", "s/GB", Better::Lower);
    }
    let rounds = u16::try_from(args.rounds)?;
    let goals = scale::measure(rounds, several, |sample| {
        let values = vec![
            (sample.load.to_owned(), sample.gbps),
            (format!("{}.cpu", sample.load), sample.cpu),
        ];
        results.add(sample.round.into(), sample.policy.name(), values);
    })?;
    results.goals.extend(goals);
    Ok(())
}
