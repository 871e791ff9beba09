use super::*;

fn report() -> DemoReport {
    let direct = PathReport {
        tcp_gbps: 20.0,
        rtt_us_p50: 5.0,
        rtt_us_p99: 9.0,
        pings_lost: 0,
        cpu_s_per_gb: None,
    };
    let tunnel = PathReport {
        tcp_gbps: 5.12345,
        rtt_us_p50: 80.04,
        rtt_us_p99: 120.0,
        pings_lost: 0,
        cpu_s_per_gb: Some(0.98765),
    };
    let offloads = BTreeMap::from([("tun-tso".into(), true), ("tun-uso".into(), false)]);
    DemoReport {
        schema: 1,
        ok: true,
        direct,
        tunnel: tunnel.rounded(),
        aead: "test".into(),
        offloads,
        placement: true,
    }
}

#[test]
fn the_json_object_has_exactly_the_promised_fields() {
    assert_eq!(
        report().json(),
        r#"{"schema":1,"ok":true,"direct":{"tcp_gbps":20.0,"rtt_us_p50":5.0,"rtt_us_p99":9.0,"pings_lost":0},"tunnel":{"tcp_gbps":5.123,"rtt_us_p50":80.0,"rtt_us_p99":120.0,"pings_lost":0,"cpu_s_per_gb":0.988},"aead":"test","offloads":{"tun-tso":true,"tun-uso":false},"placement":true}"#
    );
}

#[test]
fn the_framing_limit_is_the_ratio_of_payload_to_wire_octets() {
    let limit = report().framing_limit_gbps();
    assert!((limit - 19.144).abs() < 0.001, "{limit}");
}

#[test]
fn the_table_names_the_offloads_in_force_and_those_that_are_not() {
    let table = report().table(("", ""));
    assert!(
        table.contains("offloads   tun-tso\n") && table.contains("not here   tun-uso\n"),
        "{table}"
    );
    assert!(table.contains("27 %"), "{table}");
}

#[test]
fn the_table_says_what_makes_its_pings_look_better_or_worse() {
    let mut report = report();
    let table = report.table(("", ""));
    assert!(
        !table.contains("lost") && !table.contains("CAP_BPF"),
        "{table}"
    );
    report.tunnel.pings_lost = 3;
    report.placement = false;
    let table = report.table(("", ""));
    let lost = table.lines().find(|line| line.contains("pings lost"));
    assert!(
        lost.is_some_and(|line| line.contains(" 0 of 300 ") && line.ends_with(" 3 of 300")),
        "{table}"
    );
    assert!(table.contains("without CAP_BPF"), "{table}");
}
