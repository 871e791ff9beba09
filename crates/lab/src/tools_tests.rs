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
fn round_trips_are_read_in_microseconds() {
    let said = "PING 10.0.0.2 (10.0.0.2) 56(84) bytes of data.\n\
        64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=0.069 ms\n\
        64 bytes from 10.0.0.2: icmp_seq=2 ttl=64 time=3.51 ms\n\
        \n--- 10.0.0.2 ping statistics ---\n\
        2 packets transmitted, 2 received, 0% packet loss, time 1ms\n";
    let times = parse_ping(said);
    assert_eq!(times.len(), 2);
    assert!((times[0] - 69.0).abs() < 1e-6 && (times[1] - 3510.0).abs() < 1e-6);
}
