use super::*;
use serde_json::json;

fn results() -> Value {
    let measure = |id: &str, title: &str, unit: &str, adit: f64| {
        json!({"id": id, "title": title, "unit": unit,
        "subjects": {"adit": {"median": adit}}})
    };
    let mut all: Vec<Value> = [
        "tcp-1",
        "tcp-1.cpu-machine",
        "tcp-8",
        "tcp-8.cpu-machine",
        "tcp-64",
        "tcp-64.cpu-machine",
        "http-1k-1000.p50",
        "http-1k-1000.p99",
        "http-64k-1000.p50",
        "http-64k-1000.p99",
        "http-64k.highest",
    ]
    .map(|id| measure(id, id, "x", 1.0))
    .to_vec();
    all.push(measure(
        "http-1k.highest",
        "the highest rate",
        "1/s",
        12000.0,
    ));
    json!({"sources": [{
        "source": "userspace-vs-kernel",
        "subjects": [{"name": "direct", "what": ""}, {"name": "adit", "what": ""}],
        "measures": all,
        "goals": [{"name": "userspace-vs-kernel: http-1k.highest, adit / haproxy-aes",
            "value": 0.5, "goal": "≥ 1 ×", "met": false},
            {"name": "in vectors", "value": null, "goal": "≥ 1 ×", "met": false}],
    }]})
}

#[test]
fn rows_are_measures_and_what_is_missing_is_empty() {
    let mut table = Table::default();
    tls(&[results()], &mut table).unwrap();
    assert_eq!(table.head, ["", "no tunnel", "Adit"]);
    assert_eq!(table.rows[8], ["the highest rate, 1/s", "", "12,000"]);
    assert!(ideas_of_2022(&[results()], &mut table).is_err());
}

#[test]
fn subjects_without_a_stream_are_in_no_table_of_streams() {
    let of =
        |id: &str, subjects: Value, at: Value| json!({"id": id, "subjects": subjects, "curve": at});
    let mut measures = vec![of(
        "checksum-64",
        json!({"SIMD": {"median": 4.84}}),
        json!({"title": "Internet checksum", "at": 64.0}),
    )];
    for id in [
        "tcp-1420",
        "tcp-1420-bbr",
        "tcp-8920",
        "tcp-8920-bbr",
        "tcp-1420.cpu",
        "tcp-1420.retransmits",
    ] {
        measures.push(of(id, json!({"plain": {"median": 2.0}}), Value::Null));
    }
    let file = json!({"sources": [{
        "source": "tailscale-2023",
        "subjects": [{"name": "plain", "what": "no offload"}, {"name": "SIMD", "what": ""}],
        "measures": measures,
    }]});
    let mut table = Table::default();
    ideas_of_2023(std::slice::from_ref(&file), &mut table).unwrap();
    let row = [
        "`plain`: no offload",
        "2.00",
        "2.00",
        "2.00",
        "2.00",
        "2.00",
        "2",
    ];
    assert_eq!(table.rows, [row]);
    checksum(&[file], &mut table).unwrap();
    assert_eq!(
        (table.head, table.rows),
        (
            ["octets", "SIMD"].map(str::to_owned).to_vec(),
            vec![["64", "4.8"].map(str::to_owned).to_vec()]
        )
    );
}

#[test]
fn both_ways_stand_beside_one_and_what_is_emulated_in_no_row() {
    let measures = [
        ("udp-64", "kpps", 150.4),
        ("udp-64.percent", "%", 99.0),
        ("udp.knee", "octets", 512.0),
        ("udp-both-64", "kpps", 299.6),
        ("udp-both-64.percent", "%", 101.0),
        ("tcp-1-8", "Gb/s", 14.0),
        ("forwarded-4", "Gb/s", 5.0),
        ("forwarded-4.percent", "%", 70.0),
    ]
    .map(|(id, unit, value)| {
        let value = json!({"median": value});
        json!({"id": id, "title": id, "unit": unit, "subjects": {"adit": value}})
    });
    let file = json!({"sources": [{
        "source": "pfsense",
        "subjects": [{"name": "ipsec"}, {"name": "adit"}, {"name": "emulated"}],
        "measures": measures,
    }]});
    let mut table = Table::default();
    ipsec(&[file], &mut table).unwrap();
    let head = ["", "strongSwan's ESP", "Adit", "Adit, % of theory"];
    assert_eq!(table.head, head);
    let rows = [
        [
            "UDP, 64 octets, kpps one way, both",
            "",
            "150, 300",
            "99, 101",
        ],
        ["tcp-1-8, Gb/s", "", "14.00", ""],
        ["forwarded-4, Gb/s", "", "5.00", "70"],
    ];
    assert_eq!(table.rows, rows);
}

#[test]
fn cubic_and_bbr_stand_in_one_cell() {
    let of = |id: &str, title: &str, adit: f64| json!({"id": id, "title": title, "unit": "x", "subjects": {"adit": {"median": adit}}});
    let measures = [
        of("tcp-1", "TCP, cubic", 14.0),
        of("tcp-1.per-cpu", "TCP, cubic", 7.0),
        of("tcp-1-bbr", "TCP, bbr, CPU", 9.0),
        of("tcp-1-bbr.per-cpu", "TCP, bbr", 4.0),
        of("http-1k-1000.p50", "HTTP, cubic", 1.0),
        of("http-1k-1000.p90", "HTTP, cubic", 1.0),
        of("http-1k-1000-bbr.p50", "HTTP, bbr", 2.0),
        of("http-1k-1000-bbr.p90", "HTTP, bbr", 2.0),
        of("http-1k.highest", "HTTP, cubic", 8000.0),
        of("http-1k-bbr.highest", "highest, bbr", 7000.0),
        of("emulated.esp-bbr", "ESP, bbr", 1.0),
    ];
    let file = json!({"sources": [{
        "source": "userspace-vs-kernel",
        "subjects": [{"name": "direct"}, {"name": "adit"}, {"name": "emulated"}],
        "measures": measures,
    }]});
    let mut table = Table::default();
    tls_congestion(&[file], &mut table).unwrap();
    assert_eq!(table.head, ["with cubic, under BBR", "no tunnel", "Adit"]);
    let rows = [
        ["TCP, CPU, x", "", "14.00, 9.00"],
        ["HTTP, x", "", "1.00, 2.00"],
        ["highest, x", "", "8,000, 7,000"],
    ];
    assert_eq!(table.rows, rows);
}

#[test]
fn goals_are_named_by_the_title_of_their_measure() {
    let goal = |name: &str, value: Value| json!({"name": name, "value": value, "goal": "≥ 1 ×", "met": false});
    let file = json!({"sources": [{
        "source": "tailscale-2022",
        "measures": [{"id": "tcp-1420", "title": "one TCP stream"}],
        "goals": [
            goal("tailscale-2022: tcp-1420, adit / plain", json!(0.5)),
            goal("in vectors", Value::Null),
        ],
    }]});
    let mut table = Table::default();
    goals(std::slice::from_ref(&file), &mut table).unwrap();
    let name = "tailscale-2022: one TCP stream, adit over plain";
    assert_eq!(table.rows[0], [name, "0.50, **missed**", "≥ 1 ×"]);
    let other = "tailscale-2022: in vectors";
    assert_eq!(table.rows[1], [other, "–, **missed**", "≥ 1 ×"]);
    assert!(ideas_of_2023(&[file], &mut table).is_err());
}

#[test]
fn two_runs_have_a_row_for_each_source() {
    let row = |name: &str, values: u32, agree: u32, half: Value| {
        json!({"name": name, "values": values, "agree": agree, "by_chance": 0.7143,
            "half": half, "most": 0.91})
    };
    let rows = [
        row("pfsense", 2_000, 500, json!(0.55)),
        row("all", 3, 3, Value::Null),
    ];
    let mut table = Table::default();
    two_runs(&[json!({"agreement": rows})], &mut table).unwrap();
    let rows = [
        ["pfsense", "2,000", "25 %", "71 %", "55.0 %", "91.0 %"],
        ["all", "3", "100 %", "71 %", "–", "91.0 %"],
    ];
    assert_eq!(table.rows, rows);
    assert!(two_runs(&[json!({})], &mut table).is_err());
}

#[test]
fn a_published_figure_stands_beside_what_was_measured() {
    let figure = |what: &str, subject: &str, value: f64| {
        json!({"what": what, "subject": subject, "value": value, "unit": "Gb/s",
            "measure": "tcp-1420", "differs": "two hosts"})
    };
    let file = json!({"sources": [{
        "source": "tailscale-2023",
        "measures": [{"id": "tcp-1420", "unit": "Gb/s", "subjects": {"tailscale": {"median": 5.43}}}],
        "published": [
            figure("kernel WireGuard, i5-12400", "kernel", 11.8),
            figure("wireguard-go after, i5-12400", "tailscale", 13.0),
        ],
    }]});
    let mut table = Table::default();
    published(std::slice::from_ref(&file), &mut table).unwrap();
    let rows = [
        [
            "tailscale-2023",
            "kernel WireGuard, i5-12400",
            "11.8 Gb/s",
            "not measured",
            "two hosts",
        ],
        [
            "",
            "wireguard-go after, i5-12400",
            "13 Gb/s",
            "5.43 Gb/s",
            "the same",
        ],
    ];
    assert_eq!(table.rows, rows);
    let found = kernel(&file, "i5-12400").unwrap();
    assert_eq!(
        format!("{:.1}, {:.1}", found.gbps, found.over_fork),
        "11.8, 0.9"
    );
    assert!(kernel(&file, "c6i.8xlarge").is_err());
}
