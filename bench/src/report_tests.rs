use clap::ValueEnum as _;

use super::*;
use crate::targets::{self, Verdict};

fn report(samples: &[(u32, Implementation, &'static str, f64)]) -> ComparisonReport {
    let mut report = ComparisonReport::new("cubic".to_owned(), vec![Step::Tcp1]);
    report.samples.extend(
        samples
            .iter()
            .map(|&(round, implementation, metric, value)| Sample {
                round,
                implementation,
                metric,
                value,
            }),
    );
    for &who in Implementation::value_variants() {
        if samples.iter().any(|sample| sample.1 == who) {
            report.implementations.push(Entry::plain(who, "1"));
        }
    }
    report
}

use Implementation::{Adit, Direct, Gotatun, Tailscale, WireguardGo};

#[test]
fn ratios_pair_the_rounds_that_have_both() {
    let report = report(&[
        (1, Adit, "tcp1", 10.0),
        (2, Adit, "tcp1", 12.0),
        (3, Adit, "tcp1", 99.0),
        (2, Tailscale, "tcp1", 4.0),
        (1, Tailscale, "tcp1", 5.0),
    ]);
    let ratio = report.ratio((Adit, "tcp1"), (Tailscale, "tcp1")).unwrap();
    assert_eq!((ratio.rounds, ratio.min, ratio.max), (2, 2.0, 3.0));
}

#[test]
fn the_turns_of_a_round_are_averaged_and_counts_added() {
    let report = report(&[
        (1, Adit, "tcp1", 10.0),
        (1, Adit, "tcp1", 12.0),
        (2, Adit, "tcp1", 9.0),
        (1, Adit, "tcp1.retransmits", 1.0),
        (1, Adit, "tcp1.retransmits", 2.0),
    ]);
    assert_eq!(report.values(Adit, "tcp1"), [(1, 11.0), (2, 9.0)]);
    assert_eq!(report.values(Adit, "tcp1.retransmits"), [(1, 3.0)]);
}

#[test]
fn steps_that_are_compared_run_forth_and_back() {
    use Step::{Bidir, Ping, Tcp1, Tcp8, Vxlan};
    let order = Step::in_turns(&[Ping, Tcp1, Tcp8, Bidir, Vxlan]);
    assert_eq!(order, [Ping, Tcp1, Tcp8, Bidir, Bidir, Tcp8, Tcp1, Vxlan]);
}

#[test]
fn the_best_peer_is_the_fastest_or_the_cheapest() {
    let report = report(&[
        (1, Tailscale, "tcp1", 4.0),
        (1, Gotatun, "tcp1", 1.0),
        (1, Tailscale, "ping.p50", 120.0),
        (1, Gotatun, "ping.p50", 80.0),
        (1, Adit, "ping.p50", 1.0),
    ]);
    assert_eq!(report.best(&Implementation::PEERS, "tcp1"), Some(Tailscale));
    assert_eq!(
        report.best(&Implementation::PEERS, "ping.p50"),
        Some(Gotatun)
    );
    assert_eq!(report.best(&Implementation::PEERS, "vxlan"), None);
}

#[test]
fn the_maximum_is_the_direct_path_less_framing() {
    let report = report(&[(1, Direct, "tcp1", 20.0), (1, Adit, "tcp1", 10.0)]);
    let metric = metric("tcp1").unwrap();
    let share = report.share_of_maximum(Adit, metric).unwrap();
    assert!(share > 0.5 && share < 0.54, "{share}");
    assert_eq!(report.share_of_maximum(Direct, metric), None);
}

#[test]
fn targets_pass_miss_or_are_not_measured() {
    let report = report(&[
        (1, Adit, "tcp1", 12.0),
        (1, WireguardGo, "tcp1", 4.0),
        (1, Tailscale, "tcp1", 6.0),
        (1, Adit, "tcp1.retransmits", 0.0),
    ]);
    let targets = targets::judge(&report);
    let verdict = |measure: &str, against: &str| {
        let found = targets
            .iter()
            .find(|target| target.measure == measure && target.against == against);
        found.unwrap().verdict
    };
    let tcp1 = "TCP, 1 stream";
    assert_eq!(verdict(tcp1, "wireguard-go"), Verdict::Pass);
    assert_eq!(verdict(tcp1, "tailscale"), Verdict::Miss);
    assert_eq!(verdict("retransmits, TCP, 1 stream", "–"), Verdict::Pass);
    assert_eq!(verdict("peak memory", "–"), Verdict::NotMeasured);
}

fn verdict_of(report: &ComparisonReport, measure: &str, against: &str) -> Verdict {
    let targets = targets::judge(report).into_iter();
    let mut found = targets.filter(|target| target.measure == measure);
    let found = found.find(|target| target.against.starts_with(against));
    found.unwrap().verdict
}

fn note(round: u32, implementation: Implementation, step: Option<Step>) -> Note {
    Note {
        round,
        implementation,
        step,
        text: "it did not work".to_owned(),
    }
}

#[test]
fn a_goal_whose_measurement_failed_is_not_called_unmeasured() {
    let mut report = report(&[(1, Tailscale, "tcp1", 6.0)]);
    report.steps = vec![Step::Tcp1, Step::Udp64];
    report.notes.push(note(1, Adit, Some(Step::Tcp1)));
    let verdict = |report: &ComparisonReport, measure| verdict_of(report, measure, "");
    let tcp1 = "TCP, 1 stream";
    assert_eq!(verdict_of(&report, tcp1, "tailscale"), Verdict::Failed);
    assert_eq!(
        verdict_of(&report, tcp1, "wireguard-go"),
        Verdict::NotMeasured
    );
    assert_eq!(verdict(&report, "TCP, 8 streams"), Verdict::NotMeasured);
    assert_eq!(
        verdict(&report, "retransmits, TCP, 1 stream"),
        Verdict::Failed
    );
    assert_eq!(verdict(&report, "UDP 64 B delivered"), Verdict::NotMeasured);
    report.notes.push(note(1, Gotatun, Some(Step::Udp64)));
    assert_eq!(verdict(&report, "UDP 64 B delivered"), Verdict::Failed);
    assert_eq!(report.failures(), 2);
}

#[test]
fn a_note_without_a_step_names_what_is_missing() {
    let mut report = report(&[(1, Adit, "tcp1", 12.0), (1, Tailscale, "tcp1", 4.0)]);
    report.steps = vec![Step::Tcp1, Step::Tcp8];
    report.notes.push(note(1, Adit, None));
    report.notes.push(note(0, WireguardGo, None));
    let tcp1 = "TCP, 1 stream";
    assert_eq!(verdict_of(&report, tcp1, "tailscale"), Verdict::Pass);
    assert_eq!(verdict_of(&report, tcp1, "wireguard-go"), Verdict::Failed);
    assert_eq!(verdict_of(&report, "TCP, 8 streams", ""), Verdict::Failed);
    let pinned = "TCP, 1 stream, one end per core";
    assert_eq!(verdict_of(&report, pinned, ""), Verdict::NotMeasured);
    assert_eq!(report.failures(), 1);
}

#[test]
fn peak_memory_is_judged_beside_a_stream_only() {
    let idle = report(&[(1, Adit, "rss.peak", 9.0)]);
    assert_eq!(verdict_of(&idle, "peak memory", ""), Verdict::NotMeasured);
    let loaded = report(&[(1, Adit, "rss.peak", 9.0), (1, Adit, "tcp1", 12.0)]);
    assert_eq!(verdict_of(&loaded, "peak memory", ""), Verdict::Pass);
}

#[test]
fn goals_are_shown_once_one_is_judged_and_ranges_are_named() {
    let nothing = report(&[(1, Adit, "udp512", 1.0)]);
    assert!(!crate::tables::render(&nothing).contains("verdict"));
    let vxlan = report(&[
        (1, Adit, "vxlan", 10.0),
        (1, Gotatun, "vxlan", 1.0),
        (2, Adit, "vxlan", 12.0),
        (2, Gotatun, "vxlan", 1.0),
    ]);
    let tables = crate::tables::render(&vxlan);
    assert!(tables.contains("11.00 (range 10.00–12.00)"), "{tables}");
    assert!(tables.contains("  pass"), "{tables}");
}

#[test]
fn retransmits_are_judged_by_the_median_and_shown_with_the_most() {
    let samples = [0.0, 0.0, 3.0].map(|count| ("tcp1.retransmits", count));
    let rounds = (1..).zip(samples);
    let samples: Vec<_> = rounds
        .map(|(n, (id, count))| (n, Adit, id, count))
        .collect();
    let report = report(&samples);
    let id = "retransmits, TCP, 1 stream";
    assert_eq!(verdict_of(&report, id, ""), Verdict::Pass);
    let tables = crate::tables::render(&report);
    assert!(tables.contains("0.00 (range 0.00–3.00)"), "{tables}");
}

#[test]
fn the_document_holds_every_raw_value_and_the_tables_render() {
    let report = report(&[
        (1, Direct, "tcp1", 20.0),
        (1, Tailscale, "tcp1", 5.0),
        (1, Adit, "tcp1", 10.0),
        (2, Adit, "tcp1", 11.0),
    ]);
    let json: serde_json::Value = crate::document::document(&report);
    assert_eq!(json["schema"], 2);
    let adit = &json["metrics"][0]["implementations"]["adit"];
    assert_eq!(adit["rounds"][1]["value"], 11.0);
    assert_eq!(adit["median"], 10.5);
    let tables = crate::tables::render(&report);
    assert!(tables.contains("TCP, 1 stream"), "{tables}");
}
