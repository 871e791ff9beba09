//! Tailscale's two articles: what each of their ideas is worth, on one machine and in one program.
//!
//! Each step is the Adit of the same build with one idea more than the step before. What cannot be
//! turned off is in all of them: packets pass in trains from one end to the other.

use std::path::Path;
use std::time::Duration;

use adit_offload::lab::VARIABLE;
use adit_testbed::framing::Family;
use adit_testbed::interrupt;

use super::articles::{Also, Article, LAST, PLAIN, Step};
use super::results::{Curve, FlameGraph, Measure, Results, Subject, Values};
use super::{ReproduceArgs, ending};
use crate::checksum;
use crate::goals::Limit;
use crate::implementation::{Entry, Implementation};
use crate::install::{self, Flavour};
use crate::measure;
use crate::metric::Better;
use crate::pair::{LINK, LinkedHosts, Placement};
use crate::profile;
use crate::sandbox::Failure;
use crate::tools::Iperf;

/// The tunnel MTUs of the articles.
const MTUS: [usize; 2] = [1420, 8920];
const WARM_UP: u32 = 1;

/// Who is measured, and whether the link's devices segment UDP themselves.
type Measured = (String, Entry, bool);

/// Measures one article.
pub(super) fn measure(
    article: &Article,
    args: &ReproduceArgs,
    results: &mut Results,
) -> Result<(), Failure> {
    let congestion = args.congestion(results);
    results.measures = measures(&congestion);
    results.published = article.published.to_vec();
    let all = find(article, args, results)?;
    let loads = MTUS.len() * congestion.len();
    let each = Duration::from_secs(u64::from(WARM_UP + args.seconds)) + Duration::from_millis(1200);
    let each = each * u32::try_from(loads)?;
    results.measure_rounds(each, |name, values| {
        let measured = all.iter().find(|(of, ..)| of == name);
        let (_, entry, segments) = measured.ok_or("it is not there")?;
        for mtu in MTUS {
            for control in &congestion {
                values.extend(stream(entry, *segments, mtu, control, args.seconds)?);
            }
        }
        Ok(())
    })?;
    results.judge("tcp-1420", LAST, PLAIN.name, Limit::AtLeast(8.0));
    if congestion.iter().any(|control| control == "bbr") {
        results.judge("tcp-1420-bbr", LAST, "tailscale", Limit::AtLeast(2.3));
    }
    match article.also {
        Also::FlameGraphs => {
            if let Err(why) = flame_graphs(article, args, results) {
                interrupt::check()?;
                results.leave_out("flame graphs", &why.to_string());
            }
            Ok(())
        }
        Also::Checksum => checksum(args, results),
    }
}

/// Records the first step and the last, in a build of their own that tells who called whom.
fn flame_graphs(
    article: &Article,
    args: &ReproduceArgs,
    results: &mut Results,
) -> Result<(), Failure> {
    let ends = [article.steps.first(), article.steps.last()];
    let steps = ends
        .into_iter()
        .flatten()
        .filter(|step| args.wants(step.name));
    let steps: Vec<&Step> = steps.collect();
    if steps.is_empty() {
        return Ok(());
    }
    profile::require_perf()?;
    let adit = install::adit(args.adit.path(), Flavour::StepsFramePointers)?;
    has_switches(&adit)?;
    for step in steps {
        eprintln!("  flame graphs of {}", step.name);
        let entry = Entry {
            environment: step.environment(),
            ..adit.clone()
        };
        for (end, folded) in profile::one_stream(&entry, "cubic", args.seconds)? {
            results.flame_graphs.push(FlameGraph {
                subject: step.name.to_owned(),
                end,
                folded,
            });
        }
    }
    Ok(())
}

/// The checksum by size, each way to sum as a subject.
pub(super) fn checksum(args: &ReproduceArgs, results: &mut Results) -> Result<(), Failure> {
    let ways: Vec<&str> = checksum::ways().filter(|way| args.wants(way)).collect();
    if ways.is_empty() {
        return Ok(());
    }
    eprintln!("  the Internet checksum");
    results.subjects.extend(ways.iter().map(|way| Subject {
        name: (*way).to_owned(),
        what: "a way to sum the Internet checksum".to_owned(),
    }));
    let (times, goal) = checksum::times()?;
    for (bytes, cells) in times {
        let id = format!("checksum-{bytes}");
        results.measures.push(Measure {
            id: id.clone(),
            title: format!("Internet checksum of {bytes} octets"),
            unit: "ns",
            better: Better::Lower,
            places: 1,
            curve: Some(Curve {
                title: "Internet checksum".to_owned(),
                axis: "octets",
                at: f64::from(u32::try_from(bytes)?),
            }),
            distribution: None,
        });
        for (way, ns) in cells {
            if ways.contains(&way) {
                results.add(1, way, vec![(id.clone(), ns)]);
            }
        }
    }
    results.goals.push(goal);
    Ok(())
}

fn id(mtu: usize, congestion: &str) -> String {
    format!("tcp-{mtu}{}", ending(congestion))
}

fn measures(congestion: &[String]) -> Vec<Measure> {
    use Better::{Higher, Lower};
    let mut all = Vec::new();
    for mtu in MTUS {
        for control in congestion {
            let id = id(mtu, control);
            let title = format!("one TCP stream, MTU {mtu}, {control}");
            let mut add = |suffix: &str, what: &str, unit, better, places| {
                all.push(Measure {
                    id: format!("{id}{suffix}"),
                    title: format!("{title}{what}"),
                    unit,
                    better,
                    places,
                    curve: None,
                    distribution: None,
                });
            };
            add("", "", "Gb/s", Higher, 2);
            add(".retransmits", ": retransmits", "", Lower, 0);
            add(".cpu", ": CPU time of both daemons", "s/GB", Lower, 2);
            add(
                ".cpu-machine",
                ": CPU time of the machine",
                "s/GB",
                Lower,
                2,
            );
        }
    }
    all
}

/// What Adit is measured against.
const AGAINST: [Implementation; 4] = [
    Implementation::Direct,
    Implementation::Kernel,
    Implementation::WireguardGo,
    Implementation::Tailscale,
];

/// The names of all that an article's tables may have.
pub(super) fn subjects(article: &Article) -> Vec<&'static str> {
    let against = AGAINST.into_iter().map(Implementation::name);
    let steps = article.steps.iter().map(|step| step.name);
    let mut all: Vec<&str> = against.chain(steps).collect();
    if article.also == Also::Checksum {
        all.extend(checksum::ways());
    }
    all
}

/// What is there, in the order of the table.
fn find(
    article: &Article,
    args: &ReproduceArgs,
    results: &mut Results,
) -> Result<Vec<Measured>, Failure> {
    let mut all = Vec::new();
    for who in AGAINST {
        if let Some(entry) = args.find(who, results) {
            results.subjects.push(Subject {
                name: who.name().to_owned(),
                what: entry.version.clone(),
            });
            all.push((who.name().to_owned(), entry, true));
        }
    }
    let steps: Vec<&Step> = article
        .steps
        .iter()
        .filter(|step| args.wants(step.name))
        .collect();
    if steps.is_empty() {
        return Ok(all);
    }
    let adit = install::adit(args.adit.path(), Flavour::Steps)?;
    has_switches(&adit)?;
    for step in steps {
        results.subjects.push(Subject {
            name: step.name.to_owned(),
            what: step.adds.to_owned(),
        });
        let entry = Entry {
            environment: step.environment(),
            ..adit.clone()
        };
        all.push((step.name.to_owned(), entry, step.tx_udp_segmentation));
    }
    Ok(all)
}

/// A build for users would be measured as if it had been without what it has.
fn has_switches(adit: &Entry) -> Result<(), Failure> {
    let binary = adit.binary.as_deref().ok_or("it has no binary")?;
    let has = |binary: &Path| {
        let bytes = std::fs::read(binary).ok()?;
        let name = VARIABLE.as_bytes();
        Some(bytes.windows(name.len()).any(|part| part == name))
    };
    match has(binary) {
        Some(true) => Ok(()),
        _ => Err(format!(
            "{} was not built with RUSTFLAGS=\"--cfg adit_lab_steps\"",
            binary.display()
        )
        .into()),
    }
}

/// One stream through a pair of hosts of its own.
fn stream(
    entry: &Entry,
    tx_udp_segmentation: bool,
    mtu: usize,
    congestion: &str,
    seconds: u32,
) -> Result<Values, Failure> {
    let mut pair = LinkedHosts::with_mtu(entry, Placement::Free, Family::V4, congestion, mtu)?;
    if !tx_udp_segmentation {
        for host in [&pair.a, &pair.b] {
            let off = ["-K", LINK, "tx-udp-segmentation", "off"];
            host.output("ethtool", &off, Duration::from_secs(5))?;
        }
    }
    let load = Iperf {
        warm_up: WARM_UP,
        ..Iperf::tcp(1, seconds)
    };
    let done = measure::account(&pair, || load.run(&pair, pair.address(Family::V4, 1)));
    pair.check()?;
    let done = done?;
    let id = id(mtu, congestion);
    let mut values = vec![(id.clone(), done.flow.gbps())];
    values.extend(
        done.flow
            .retransmits
            .map(|count| (format!("{id}.retransmits"), count)),
    );
    values.extend(done.daemons.map(|[a, b]| (format!("{id}.cpu"), a + b)));
    values.push((format!("{id}.cpu-machine"), done.machine));
    Ok(values)
}

#[cfg(test)]
#[path = "tailscale_tests.rs"]
mod tests;
