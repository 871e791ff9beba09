use super::*;
use crate::targets::{self, Verdict};

fn report(samples: &[(u32, Contender, &'static str, f64)]) -> Report {
    let mut report = Report::new("cubic".to_owned(), vec![Step::Tcp1]);
    report.samples.extend(
        samples
            .iter()
            .map(|&(round, contender, metric, value)| Sample {
                round,
                contender,
                metric,
                value,
            }),
    );
    for who in Contender::ALL {
        if samples.iter().any(|sample| sample.1 == who) {
            report.contenders.push(Entry {
                who,
                version: "1".to_owned(),
                binary: None,
            });
        }
    }
    report
}

use Contender::{Adit, Direct, Gotatun, Tailscale, WireguardGo};

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
    assert_eq!(report.best(&Contender::PEERS, "tcp1"), Some(Tailscale));
    assert_eq!(report.best(&Contender::PEERS, "ping.p50"), Some(Gotatun));
    assert_eq!(report.best(&Contender::PEERS, "vxlan"), None);
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

#[test]
fn the_document_holds_every_raw_value_and_the_tables_render() {
    let report = report(&[
        (1, Direct, "tcp1", 20.0),
        (1, Tailscale, "tcp1", 5.0),
        (1, Adit, "tcp1", 10.0),
        (2, Adit, "tcp1", 11.0),
    ]);
    let json: serde_json::Value =
        serde_json::from_str(&crate::document::render(&report).unwrap()).unwrap();
    assert_eq!(json["schema"], 1);
    let adit = &json["metrics"][0]["contenders"]["adit"];
    assert_eq!(adit["rounds"][1]["value"], 11.0);
    assert_eq!(adit["median"], 10.5);
    let tables = crate::tables::render(&report);
    assert!(tables.contains("TCP, 1 stream"), "{tables}");
}
