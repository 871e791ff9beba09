use super::*;

#[test]
fn a_tcp_report_gives_rate_and_retransmits() {
    let json = r#"{"start":{},"end":{
        "sum_sent":{"seconds":2.0,"bytes":2600,"bits_per_second":1.0,"retransmits":3},
        "sum_received":{"seconds":2.0,"bytes":2500,"bits_per_second":1.0}}}"#;
    let flow = parse_iperf(json).unwrap();
    assert_eq!(flow.bytes, 2500.0);
    assert_eq!(flow.retransmits, Some(3.0));
    assert_eq!(flow.datagrams, None);
    assert!((flow.gbps() - 1e-5).abs() < 1e-12);
}

#[test]
fn bytes_of_the_warm_up_are_counted_apart() {
    let json = r#"{"intervals":[
        {"streams":[],"sum":{"start":0,"end":1,"bytes":700,"omitted":true}},
        {"streams":[],"sum":{"start":0,"end":1,"bytes":1300,"omitted":false}},
        {"streams":[],"sum":{"start":1,"end":2,"bytes":1300,"omitted":false}}],
        "end":{"sum_sent":{"seconds":2.0,"bytes":2600},"sum_received":{"seconds":2.0,"bytes":2500}}}"#;
    let flow = parse_iperf(json).unwrap();
    assert_eq!((flow.bytes, flow.warm_up_bytes), (2500.0, 700.0));
}

#[test]
fn both_directions_are_added() {
    let json = r#"{"end":{
        "sum_sent":{"seconds":2.0,"bytes":100,"retransmits":1},
        "sum_received":{"seconds":2.0,"bytes":100},
        "sum_sent_bidir_reverse":{"seconds":2.0,"bytes":50,"retransmits":2},
        "sum_received_bidir_reverse":{"seconds":2.0,"bytes":50}}}"#;
    let flow = parse_iperf(json).unwrap();
    assert_eq!((flow.bytes, flow.retransmits), (150.0, Some(3.0)));
}

#[test]
fn delivered_datagrams_are_those_seen_less_those_lost() {
    let json = r#"{"end":{
        "sum_sent":{"seconds":2.0,"bytes":6400,"packets":100,"lost_packets":0},
        "sum_received":{"seconds":2.0,"bytes":5120,"packets":90,"lost_packets":10}}}"#;
    let flow = parse_iperf(json).unwrap();
    assert_eq!(flow.datagrams, Some((100.0, 80.0)));
}

#[test]
fn an_error_in_the_report_is_an_error() {
    assert!(parse_iperf(r#"{"start":{},"error":"the server is busy"}"#).is_err());
    assert!(parse_iperf("nothing").is_err());
    assert!(parse_iperf("{}").is_err());
}

#[test]
fn the_rate_of_a_part_is_of_the_tenths_that_lie_within() {
    let tenth = |at: u32, bytes: u32| {
        let (start, end) = (f64::from(at) / 10.0, f64::from(at + 1) / 10.0);
        format!(r#"{{"streams":[],"sum":{{"start":{start},"end":{end},"bytes":{bytes}}}}}"#)
    };
    let tenths = [(0, 7), (1, 25_000_000), (2, 50_000_000), (3, 7)].map(|(at, n)| tenth(at, n));
    let json = format!(r#"{{"intervals":[{}]}}"#, tenths.join(","));
    let rate = parse_rate_within(&json, 0.05..0.35).unwrap();
    assert!((rate - 3.0).abs() < 1e-9, "{rate}");
    assert!(parse_rate_within(&json, 0.5..0.9).is_err());
    assert!(parse_rate_within(r#"{"error":"the server is busy"}"#, 0.0..1.0).is_err());
}

/// The output of ping for answers with these numbers and round trips in milliseconds.
fn said(answers: &[(u32, f64)], sent: u32) -> String {
    let lines = answers.iter().map(|(number, time)| {
        format!("64 bytes from 10.0.0.2: icmp_seq={number} ttl=64 time={time} ms\n")
    });
    let end = format!("\n--- statistics ---\n{sent} packets transmitted, 2 received, time 1ms\n");
    lines.chain([end]).collect()
}

const INTERVAL: Duration = Duration::from_millis(5);

#[test]
fn round_trips_are_read_in_microseconds() {
    let pings = parse_ping(&said(&[(1, 0.069), (2, 3.51)], 2), INTERVAL).unwrap();
    let [a, b] = pings.times[..] else {
        panic!("{pings:?}")
    };
    assert!((a - 69.0).abs() < 1e-6 && (b - 3510.0).abs() < 1e-6);
    assert_eq!(pings.lost, 0.0);
}

#[test]
fn pings_without_an_answer_are_lost() {
    let answered = [(1, 0.1), (2, 0.1), (4, 0.1), (10, 0.1)];
    let lost = |sent| parse_ping(&said(&answered, sent), INTERVAL).unwrap().lost;
    assert_eq!(lost(10), 60.0);
    // One may still be on its way when the deadline strikes; four of them are not.
    assert_eq!(lost(11), 60.0);
    assert!((lost(14) - 100.0 * 9.0 / 13.0).abs() < 1e-9);
    assert!(parse_ping(&said(&[], 10), INTERVAL).is_err());
}

#[test]
fn an_answer_that_comes_twice_makes_up_for_none_that_is_lost() {
    let once = said(&[(1, 0.1), (3, 0.1)], 3);
    let twice = once.replacen(
        "0.1 ms\n",
        "0.1 ms\n64 bytes: icmp_seq=1 time=0.2 ms (DUP!)\n",
        1,
    );
    assert_eq!(
        parse_ping(&twice, INTERVAL).unwrap(),
        parse_ping(&once, INTERVAL).unwrap()
    );
}

#[test]
fn the_longest_gap_counts_lost_and_late_answers() {
    // 10 pings, 10 ms apart.
    let all: Vec<u32> = (1..=10).collect();
    let gap = |numbers: &[u32], times: &[f64]| longest_gap(numbers, times, 10, 0.01);
    let near = |value: f64, expected: f64| (value - expected).abs() < 1e-9;
    assert!(near(gap(&all, &[100.0; 10]), 0.01));
    // The fourth and the fifth were lost.
    assert!(near(gap(&[1, 2, 3, 6, 7, 8, 9, 10], &[100.0; 8]), 0.03));
    // The last three were lost.
    assert!(near(gap(&all[..7], &[0.0; 7]), 0.03));
    // All came at once in the end.
    let late: Vec<f64> = all.iter().map(|n| f64::from(10 - n) * 10_000.0).collect();
    assert!(near(gap(&all, &late), 0.09));
}

#[test]
fn a_version_stands_in_the_first_line_that_has_a_number() {
    let stunnel =
        "Initializing inetd mode configuration\nstunnel 5.68 on x86_64-pc-linux-gnu platform\n";
    assert_eq!(
        with_number(stunnel),
        Some("stunnel 5.68 on x86_64-pc-linux-gnu platform")
    );
    assert_eq!(with_number("\nno number\n"), None);
}
