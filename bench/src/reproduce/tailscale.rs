//! Tailscale's two articles: what each of their ideas is worth, on one machine and in one program.
//!
//! Each step is the Adit of the same build with one idea more than the step before. What cannot be
//! turned off is in all of them: packets pass in trains from one end to the other.

use std::path::Path;
use std::time::Duration;

use adit_offload::lab::{Idea, VARIABLE};
use adit_testbed::framing::Family;
use adit_testbed::interrupt;

use super::results::{Curve, FlameGraph, Measure, Published, Results, Subject, Values};
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

/// One of the articles.
pub(super) struct Article {
    steps: &'static [Step],
    published: &'static [Published],
    also: Also,
}

/// What an article shows besides streams.
#[derive(Clone, Copy, PartialEq)]
enum Also {
    /// Flame graphs, of the first step and of the last.
    FlameGraphs,
    /// What the Internet checksum costs, by size.
    Checksum,
}

/// Adit with some of its ideas.
#[derive(Clone, Copy)]
struct Step {
    name: &'static str,
    /// What it has that the step before has not.
    adds: &'static str,
    /// Offloads that it does without.
    disabled: &'static [&'static str],
    without: &'static [Idea],
    /// The AEAD of a library, packet by packet.
    library: bool,
    /// The egress device segments UDP itself.
    tx_udp_segmentation: bool,
}

/// UDP tunnels such as VXLAN are none of the articles' ideas, and keep GSO packets long.
const TUNNELS: [&str; 2] = ["tun-tunnel", "tun-gro-tunnel"];
const NO_TUN: &[&str] = &[
    TUNNELS[0],
    TUNNELS[1],
    "tun-tso",
    "tun-uso",
    "tun-gro-tcp",
    "tun-gro-udp",
    "udp-gso",
    "udp-gro",
];
const NO_UDP: &[&str] = &[TUNNELS[0], TUNNELS[1], "udp-gso", "udp-gro"];
const NO_TUNNELS: &[&str] = &TUNNELS;

const PLAIN: Step = Step {
    name: "plain",
    adds: "one read, one seal, one sendmsg a packet; no offload",
    disabled: NO_TUN,
    without: &[Idea::Mmsg, Idea::VectorChecksum, Idea::SizedFrames],
    library: true,
    tx_udp_segmentation: true,
};
const TUN_OFFLOADS: Step = Step {
    name: "tun-offloads",
    adds: "+ TSO and GRO on the TUN",
    disabled: NO_UDP,
    ..PLAIN
};
const MMSG: Step = Step {
    name: "mmsg",
    adds: "+ sendmmsg, recvmmsg",
    without: &[Idea::VectorChecksum, Idea::SizedFrames],
    ..TUN_OFFLOADS
};
const UDP_GSO: Step = Step {
    name: "udp-gso",
    adds: "+ UDP GSO and GRO",
    disabled: NO_TUNNELS,
    ..MMSG
};
const CHECKSUM: Step = Step {
    name: "vector-checksum",
    adds: "+ the Internet checksum in vectors",
    without: &[Idea::SizedFrames],
    ..UDP_GSO
};
const AEAD: Step = Step {
    name: "aead-across-packets",
    adds: "+ one call encrypts a train, packets in lanes",
    library: false,
    ..CHECKSUM
};
const FRAMES: Step = Step {
    name: LAST,
    adds: "+ GSO packets that fit one send",
    without: &[],
    ..AEAD
};
const NO_TX_SEGMENTATION: Step = Step {
    name: "sized-frames, sw-gso",
    adds: "the same, tx-udp-segmentation of the egress device off",
    tx_udp_segmentation: false,
    ..FRAMES
};
const RELEASED: Step = Step {
    name: "adit",
    adds: "as released: longer GSO packets where the kernel offloads VXLAN (Linux 6.17)",
    disabled: &[],
    ..FRAMES
};
const LAST: &str = "sized-frames";

/// What differs in every row.
const HERE: &str =
    "two hosts share the cores of this machine, over a veth link instead of a cloud's network";

/// "Userspace isn't slow, some kernel interfaces are!"
pub(super) const FIRST: Article = Article {
    steps: &[PLAIN, TUN_OFFLOADS, MMSG, FRAMES],
    also: Also::FlameGraphs,
    published: &[
        Published::gbps(
            "one stream, no tunnel",
            9.53,
            "tcp-1420",
            "direct",
            "no line rate, no cloud cap; the hosts share the cores",
        ),
        Published::gbps("kernel WireGuard", 2.66, "tcp-1420", "kernel", HERE),
        Published::gbps(
            "wireguard-go before",
            2.42,
            "tcp-1420",
            "plain",
            "Adit without its ideas stands for the program of then",
        ),
        Published::gbps(
            "wireguard-go before, MTU 8920",
            7.88,
            "tcp-8920",
            "plain",
            "the same; MTU 9000 on the link",
        ),
        Published::gbps(
            "wireguard-go with TSO, GRO and mmsg",
            5.36,
            "tcp-1420",
            "mmsg",
            "Adit with these ideas; trains are in all steps",
        ),
        Published {
            what: "retransmits before",
            value: 4711.0,
            unit: "",
            measure: "tcp-1420.retransmits",
            subject: "plain",
            over: None,
            differs: "in 10 s there; Adit makes the local TCP wait instead",
        },
        Published::gbps(
            "its successor today",
            5.36,
            "tcp-1420",
            "tailscale",
            "newer: it has UDP GSO as well",
        ),
    ],
};

/// "Surpassing 10Gb/s over Tailscale".
pub(super) const SECOND: Article = Article {
    steps: &[
        PLAIN,
        MMSG,
        UDP_GSO,
        CHECKSUM,
        AEAD,
        FRAMES,
        NO_TX_SEGMENTATION,
        RELEASED,
    ],
    also: Also::Checksum,
    published: &[
        Published::gbps(
            "kernel WireGuard, c6i.8xlarge",
            2.67,
            "tcp-1420",
            "kernel",
            HERE,
        ),
        Published::gbps(
            "wireguard-go before, c6i.8xlarge",
            5.34,
            "tcp-1420",
            "mmsg",
            "Adit with the ideas of 2022",
        ),
        Published::gbps(
            "wireguard-go after, c6i.8xlarge",
            7.32,
            "tcp-1420",
            "vector-checksum",
            "the cloud's own cap there; none here",
        ),
        Published::gbps(
            "kernel WireGuard, i5-12400",
            11.8,
            "tcp-1420",
            "kernel",
            "25 GbE between two machines there",
        ),
        Published::gbps(
            "wireguard-go after, i5-12400",
            13.0,
            "tcp-1420",
            "tailscale",
            "today's fork; 25 GbE between two machines there",
        ),
        Published::gbps(
            "after, tx-udp-segmentation off, E3-1230-V2",
            4.86,
            "tcp-1420",
            "sized-frames, sw-gso",
            "off, the kernel segments before the veth link; no network card here",
        ),
        Published::gbps(
            "after, tx-udp-segmentation on, E3-1230-V2",
            6.59,
            "tcp-1420",
            LAST,
            "on, the veth link hands long packets on; no network card here",
        ),
    ],
};

/// The tunnel MTUs of the articles.
const MTUS: [usize; 2] = [1420, 8920];
const WARM_UP: u32 = 1;

impl Step {
    /// The environment in which a daemon has no more ideas than this.
    pub(super) fn environment(&self) -> Vec<(&'static str, String)> {
        let without: Vec<&str> = self.without.iter().map(|idea| idea.name()).collect();
        let mut all = vec![
            ("ADIT_DISABLE_OFFLOADS", self.disabled.join(",")),
            (VARIABLE, without.join(",")),
        ];
        if self.library {
            all.push(("ADIT_AEAD", "ring".to_owned()));
        }
        all
    }
}

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
    let adit = install::adit(args.adit.as_deref(), Flavour::StepsFramePointers)?;
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
    let (times, goals) = checksum::times()?;
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
    results.goals.extend(goals);
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
    let adit = install::adit(args.adit.as_deref(), Flavour::Steps)?;
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
mod tests {
    use super::*;
    use adit_io::Offloads;

    #[test]
    fn each_step_does_without_less_than_the_one_before() {
        for article in [&FIRST, &SECOND] {
            let steps = article.steps.iter().filter(|step| step.tx_udp_segmentation);
            let lacks: Vec<usize> = steps
                .map(|step| step.disabled.len() + step.without.len() + usize::from(step.library))
                .collect();
            assert!(lacks.is_sorted_by(|a, b| a > b), "{lacks:?}");
        }
    }

    #[test]
    fn steps_turn_off_only_offloads_that_there_are() {
        let mut offloads = Offloads::ALL;
        for name in PLAIN.disabled {
            offloads.disable(name).unwrap();
        }
        assert_eq!(offloads, Offloads::NONE);
        let environment = UDP_GSO.environment();
        assert_eq!(environment[0].1, "tun-tunnel,tun-gro-tunnel");
        assert_eq!(
            environment[1],
            (VARIABLE, "vector-checksum,sized-frames".to_owned())
        );
        assert_eq!(environment[2], ("ADIT_AEAD", "ring".to_owned()));
        assert_eq!(
            RELEASED.environment(),
            [
                ("ADIT_DISABLE_OFFLOADS", String::new()),
                (VARIABLE, String::new())
            ]
        );
    }

    #[test]
    fn every_published_figure_has_a_measure_and_a_subject() {
        let measures = measures(&["cubic".to_owned()]);
        for article in [&FIRST, &SECOND] {
            for of in article.published {
                assert!(
                    measures.iter().any(|measure| measure.id == of.measure),
                    "{}",
                    of.what
                );
                let reference =
                    ["direct", "kernel", "wireguard-go", "tailscale"].contains(&of.subject);
                let step = article.steps.iter().any(|step| step.name == of.subject);
                assert!(reference || step, "{}", of.what);
            }
        }
    }
}
