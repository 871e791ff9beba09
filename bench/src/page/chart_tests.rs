use serde_json::json;

use super::super::plot;
use super::*;

/// A small results file, in which Adit stands last.
fn results() -> serde_json::Value {
    let values = |median: f64| json!({"median": median, "min": median * 0.9, "max": median * 1.1, "count": 5});
    let of = |all: &[(&str, f64)]| {
        let all = all
            .iter()
            .map(|&(name, median)| (name.to_owned(), values(median)));
        all.collect::<serde_json::Map<_, _>>()
    };
    let entries = ["direct", "kernel", "wireguard-go", "adit", "ceiling"];
    let entries = entries.map(|name| json!({"name": name, "version": "1.0"}));
    let stream = [
        ("direct", 24.0),
        ("kernel", 6.0),
        ("wireguard-go", 3.0),
        ("adit", 12.0),
        ("ceiling", 15.0),
    ];
    json!({
        "schema": 2,
        "command": "compare",
        "started": 1_709_164_800_u64,
        "seconds": 1.0,
        "stopped": null,
        "machine": {"cpu": "Some CPU", "cores": 2, "kernel": "6.12", "load_before": "0", "load_after": "0"},
        "settings": {"congestion_control": "cubic", "steps": ["ping-load", "tcp1"]},
        "implementations": entries,
        "metrics": [
            {"id": "tcp1", "title": "TCP", "unit": "Gb/s", "implementations": of(&stream)},
            {"id": "tcp1.cpu", "unit": "CPU-s/GB", "implementations": of(&[("adit", 1.1), ("wireguard-go", 5.9)])},
            {"id": "ping-load.p50", "unit": "µs", "implementations": of(&[("adit", 400.0), ("kernel", 300.0)])},
        ],
    })
}

fn drawn(results: &serde_json::Value) -> String {
    picture(&results.to_string()).unwrap().1
}

fn refused(text: &str) -> String {
    picture(text).unwrap_err()
}

/// Whether every tag is closed by its own, attributes are quoted, and text and attributes have no
/// bare `<` or `&`. Naive: for what this module writes, which has no comments, no CDATA and no `>`
/// in attributes.
pub(super) fn check_well_formed(xml: &str) -> Result<(), String> {
    let mut open = Vec::new();
    let mut rest = xml.trim_end();
    while !rest.is_empty() {
        let (text, tag) = rest.split_once('<').ok_or("text after the last tag")?;
        check_text(text)?;
        let (tag, after) = tag.split_once('>').ok_or("a tag without an end")?;
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop() != Some(name) {
                return Err(format!("</{name}> closes something else"));
            }
            continue;
        }
        let (tag, is_empty) = tag
            .strip_suffix('/')
            .map_or((tag, false), |tag| (tag, true));
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        check_attributes(attributes)?;
        if !is_empty {
            open.push(name);
        }
        if open.is_empty() {
            return Err(format!("<{name}> stands beside the root"));
        }
    }
    match open.pop() {
        None => Ok(()),
        Some(name) => Err(format!("<{name}> is not closed")),
    }
}

fn check_attributes(mut text: &str) -> Result<(), String> {
    let mut seen = Vec::new();
    while !text.trim().is_empty() {
        let (name, after) = text
            .split_once("=\"")
            .ok_or("an attribute without a value")?;
        let (value, after) = after.split_once('"').ok_or("a value without an end")?;
        check_text(value)?;
        let name = name.trim();
        if seen.contains(&name) || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            return Err(format!("the attribute {name:?}"));
        }
        seen.push(name);
        text = after;
    }
    Ok(())
}

fn check_text(text: &str) -> Result<(), String> {
    let is_char = |c: char| matches!(c, '\n' | ' '..='\u{fffd}' | '\u{10000}'..);
    let entities = ["amp;", "lt;", "gt;", "quot;"];
    let is_entity = |after: &str| entities.iter().any(|entity| after.starts_with(entity));
    match text.chars().all(is_char) && text.split('&').skip(1).all(is_entity) {
        true => Ok(()),
        false => Err(format!("the text {text:?}")),
    }
}

#[test]
fn the_chart_is_well_formed_and_always_the_same() {
    let svg = drawn(&results());
    check_well_formed(&svg).unwrap();
    assert_eq!(svg, drawn(&results()));
    assert!(svg.contains("prefers-color-scheme: dark"), "{svg}");
    for foreign in ["<script", "href", "url(", "@import"] {
        assert!(!svg.contains(foreign), "{foreign}");
    }
}

#[test]
fn the_check_for_well_formed_xml_finds_mistakes() {
    for wrong in [
        "<a>",
        "<a></b>",
        "<a/><b",
        "<a>&</a>",
        "<a b=c/>",
        "<a b=\"<\"/>",
        "<a>\u{1}</a>",
        "text",
    ] {
        check_well_formed(wrong).unwrap_err();
    }
    check_well_formed("<a b=\"c\"><d/>&lt;</a>\n").unwrap();
}

#[test]
fn the_best_bar_comes_first_and_adit_stands_out() {
    let svg = drawn(&results());
    let at = |text: &str| svg.find(&format!(">{text}</text>")).unwrap();
    assert!(at("adit") < at("kernel") && at("kernel") < at("wireguard-go"));
    assert!(svg.contains(
        "One TCP stream, Gb/s (more is better): adit 12.0, kernel 6.00, wireguard-go 3.00."
    ));
    assert!(
        svg.contains("Ping beside one TCP stream, µs (less is better): kernel 300, adit 400."),
        "{svg}"
    );
    let colour = plot::hex(plot::LINES[0].0);
    assert_eq!(svg.matches(&format!("fill=\"{colour}\"/>")).count(), 0);
    let bars = svg.matches(&format!("fill=\"{colour}\" stroke")).count();
    assert_eq!(bars, 3, "a bar in each panel");
}

#[test]
fn the_link_without_a_tunnel_is_no_bar() {
    let svg = drawn(&results());
    assert!(
        !svg.contains(">direct<") && !svg.contains(">ceiling<"),
        "{svg}"
    );
}

#[test]
fn the_small_print_has_machine_date_versions_and_command() {
    let mut results = results();
    results["implementations"][3]["version"] = json!("adit 0.1.0 (abc1234)");
    results["implementations"][2]["version"] = json!("0.0.2 (/home/somebody/wireguard-go)");
    let svg = drawn(&results);
    assert!(
        svg.contains("Some CPU, 2 cores, Linux 6.12; 2024-02-29"),
        "{svg}"
    );
    assert!(
        svg.contains("kernel 1.0, wireguard-go 0.0.2, adit 0.1.0 (abc1234)"),
        "{svg}"
    );
    assert!(svg.contains("Medians of 5 rounds"), "{svg}");
    assert!(
        svg.contains("Made by: adit-lab compare --only ping-load,tcp1"),
        "{svg}"
    );
    assert!(svg.contains("TCP with cubic</text>"), "{svg}");
}

#[test]
fn what_was_not_measured_is_left_out() {
    let mut results = results();
    results["metrics"].as_array_mut().unwrap().pop();
    let svg = drawn(&results);
    assert!(!svg.contains("Ping beside"), "{svg}");
    results["metrics"] = json!([]);
    results["goals"] = json!([{"name": "x", "goal": "≥ 1", "met": true}]);
    assert!(refused(&results.to_string()).contains("--only tcp1,ping-load"));
}

#[test]
fn a_run_that_was_stopped_is_called_incomplete() {
    let mut results = results();
    results["stopped"] = json!("interrupted");
    assert!(drawn(&results).contains("The run is incomplete: interrupted"));
}

#[test]
fn text_of_the_file_cannot_become_markup() {
    let mut results = results();
    let name = "a<b>&\"\u{0}\u{ffff}";
    results["machine"]["cpu"] = json!("<script>alert('&')</script>\u{1b}[0m");
    results["implementations"][3]["version"] = json!("</text> ".repeat(200));
    results["implementations"][2]["name"] = json!(name);
    results["metrics"][0]["implementations"][name] =
        json!({"median": 5.0, "min": 5.0, "max": 5.0, "count": 1});
    let svg = drawn(&results);
    check_well_formed(&svg).unwrap();
    assert!(!svg.contains("<script"), "{svg}");
    assert!(svg.contains(">a&lt;b&gt;&amp;"), "{svg}");
}

#[test]
fn bars_of_nothing_have_no_length() {
    let mut results = results();
    for name in ["adit", "kernel", "wireguard-go"] {
        results["metrics"][0]["implementations"][name] =
            json!({"median": 0.0, "min": -1.0, "max": 0.0, "count": 2});
    }
    let svg = drawn(&results);
    assert_eq!(svg.matches("width=\"0\" height=\"18\"").count(), 3, "{svg}");
    assert!(!svg.contains("NaN"), "{svg}");
}

#[test]
fn what_is_no_results_file_is_refused_with_the_reason() {
    let with = |key: &str, value: serde_json::Value| {
        let mut results = results();
        results[key] = value;
        refused(&results.to_string())
    };
    assert!(refused("median ± half the range").starts_with("this is not JSON"));
    assert!(refused("[1, 2]").contains("this is no results file of agree, compare"));
    assert!(with("command", json!("checksum")).contains("its command is \"checksum\""));
    assert!(with("schema", json!(1)).contains("its schema is 1, and this adit-lab reads schema 2"));
    assert!(with("schema", json!(null)).contains("it has no schema"));
}

#[test]
fn a_document_of_this_version_can_be_drawn() {
    use crate::implementation::Entry;
    use crate::implementation::Implementation::{Adit, Tailscale};
    use crate::metric::Step;
    use crate::report::{ComparisonReport, Sample};
    let mut report = ComparisonReport::new("cubic".to_owned(), vec![Step::Tcp1]);
    for (implementation, value) in [(Tailscale, 5.0), (Adit, 10.0)] {
        report
            .implementations
            .push(Entry::plain(implementation, "1"));
        report.samples.push(Sample {
            round: 1,
            implementation,
            metric: "tcp1",
            value,
        });
    }
    let svg = picture(&crate::document::document(&report).to_string())
        .unwrap()
        .1;
    check_well_formed(&svg).unwrap();
    assert!(svg.contains("adit 10.0, tailscale 5.00"), "{svg}");
    assert!(
        svg.contains("Values of one round; thin lines reach from the least to the greatest."),
        "{svg}"
    );
}

#[test]
fn the_chart_is_written_to_a_directory_that_is_made() {
    let dir = std::env::temp_dir().join(format!("adit-lab-chart-{}", std::process::id()));
    let file = dir.join("results.json");
    fs::create_dir_all(&dir).unwrap();
    fs::write(&file, results().to_string()).unwrap();
    let args = ChartArgs {
        results: file.clone(),
        out: dir.join("new/pictures"),
        bars: false,
    };
    run(&args).unwrap();
    let svg = fs::read_to_string(args.out.join("comparison.svg")).unwrap();
    let missing = ChartArgs {
        results: dir.join("nothing.json"),
        ..args
    };
    let why = run(&missing).unwrap_err().to_string();
    fs::remove_dir_all(&dir).unwrap();
    assert_eq!(svg, drawn(&results()));
    assert!(why.contains("nothing.json: No such file"), "{why}");
}

fn gateway() -> Value {
    let measure = |name: &str, unit: &str, values: &[(&str, f64)]| {
        let values = values.iter().map(|&(who, median)| {
            let all = json!({"median": median, "min": median, "max": median, "count": 3});
            (who.to_owned(), all)
        });
        let values: serde_json::Map<_, _> = values.collect();
        json!({"name": name, "title": name, "unit": unit, "implementations": values})
    };
    let both = |adit: f64, other: f64| [("adit", adit), ("wireguard-go", other)];
    json!({
        "schema": 1, "command": "gateway", "started": 1_709_164_800_u64, "rounds": 3,
        "machine": {"cpu": "Some <CPU>", "cores": 2, "kernel": "6.12"},
        "implementations": [
            {"name": "wireguard-go", "version": "0.0.2"},
            {"name": "adit", "version": "adit 0.1.0"},
        ],
        "cases": [
            {"case": "overload", "measures": [
                measure("offered_0.1", "Gb/s", &both(0.1, 0.1)),
                measure("offered_4", "Gb/s", &both(4.0, 1.0)),
                measure("offered_most", "Gb/s", &both(5.0, 0.5)),
            ]},
            {"case": "peers-active-1", "measures": [measure("to_peers_64", "kpps", &[("adit", 200.0)])]},
            {"case": "peers-active-10000", "measures": [measure("to_peers_64", "kpps", &[("adit", 160.0)])]},
            {"case": "interfaces", "measures": [
                measure("interfaces", "", &both(1000.0, 100.0)),
                measure("start", "s", &both(1.1, 2.0)),
            ]},
        ],
    })
}

#[test]
fn bars_of_a_gateway_begin_with_the_best() {
    let values = |adit: f64, go: f64| {
        let of = |value: f64| json!({"median": value, "min": value, "max": value});
        json!({"adit": of(adit), "wireguard-go": of(go)})
    };
    let mut file = gateway();
    let slow = json!({"name": "stream", "unit": "Gb/s", "implementations": values(9.0, 2.0)});
    let four = json!({"name": "one_cpu", "unit": "s/GB", "implementations": values(1.5, 6.0)});
    file["cases"] = json!([
        {"case": "slow", "measures": [slow]},
        {"case": "four-tunnels", "measures": [four]},
    ]);
    let (name, svg) = bars(&file.to_string()).unwrap();
    assert_eq!(name, "comparison.svg");
    check_well_formed(&svg).unwrap();
    for panel in [
        "One TCP stream, Gb/s (more is better): adit 9.00, wireguard-go 2.00",
        "CPU time of both ends, 4 TCP streams, s/GB (less is better): adit 1.50, wireguard-go 6.00",
    ] {
        assert!(svg.contains(panel), "{svg}");
    }
    assert!(bars(&gateway().to_string()).is_err());
}

#[test]
fn a_gateway_has_a_curve_for_each_quantity() {
    let (name, svg) = picture(&gateway().to_string()).unwrap();
    assert_eq!(name, "gateway.svg");
    check_well_formed(&svg).unwrap();
    assert_eq!(svg.matches("class=\"title\"").count(), 3, "{svg}");
    for curve in [
        "goodput of UDP one way, Gb/s: by offered, Gb/s: adit 0.100 at 0.100, 4.00 at 4; wireguard-go 0.100 at 0.100, 1.00 at 4.",
        "64 B to peers, kpps: by active peers: adit 200 at 1, 160 at 10000.",
        // 100 interfaces are no 1,000.
        "time until all answer, s: by interfaces: adit 1.10 at 1000.",
    ] {
        assert!(svg.contains(curve), "{curve}: {svg}");
    }
    assert!(svg.contains("Some &lt;CPU&gt;, 2 cores, Linux 6.12; 2024-02-29"));
    assert!(svg.contains("wireguard-go 0.0.2, adit 0.1.0"));
    assert!(svg.contains("Medians of 3 rounds"));
}

fn scale() -> Value {
    let row = |tunnels, flows, policy: &str, median: f64| {
        let core = json!({"user": 0.5, "system": 0.25, "interrupts": 0.0});
        let values = json!({"median": median, "min": median, "max": median});
        json!({"tunnels": tunnels, "flows": flows, "policy": policy, "gbps": values,
            "core_load": [core, core], "thread_load": {"sender adit-shard-0": 0.5}})
    };
    let point = |at: u32, gbps: f64| json!({"at": at, "gbps": gbps, "core_load": [1.0, 0.25]});
    json!({
        "schema": 1, "command": "scale", "started": 1_709_164_800_u64, "rounds": 3,
        "machine": {"cpu": "Some CPU", "cores": 2, "kernel": "6.12"},
        "tunnels": [
            row(1, 1, "auto", 4.0), row(1, 32, "auto", 6.0), row(1, 12, "auto", 5.0),
            row(1, 1, "inline", 3.0), row(2, 12, "auto", 7.0),
        ],
        "model": {"curves": [
            {"title": "One tunnel outbound", "axis": "cores", "lines": [
                {"name": "auto", "points": [point(1, 5.0), point(32, 15.0)]},
                {"name": "kernel", "points": [point(1, 2.0), point(32, 5.0)]},
            ]},
        ]},
    })
}

#[test]
fn scale_has_curves_and_the_load_of_cores_and_threads() {
    let (name, svg) = picture(&scale().to_string()).unwrap();
    assert_eq!(name, "scale.svg");
    check_well_formed(&svg).unwrap();
    let at = |text: &str| svg.find(text).unwrap_or_else(|| panic!("{text} in {svg}"));
    let measured = at(">Measured: one tunnel: throughput, Gb/s<");
    assert!(measured < at(">Measured: 12 flows: throughput, Gb/s<"));
    assert!(at(">Measured: 12 flows: load, auto<") < at(">Model: One tunnel outbound, Gb/s<"));
    assert!(svg.contains(">Model: One tunnel outbound: load, auto<"));
    assert!(!svg.contains("load, inline<"), "{svg}");
    // Three and two points with two cores each; a thread at each; what the model says of the second.
    assert_eq!(svg.matches("opacity=\"0.75\"").count(), 10);
    assert_eq!(svg.matches("opacity=\"0.5\"").count(), 5);
    assert_eq!(svg.matches("opacity=\"0.25\"").count(), 2);
    for line in [
        "throughput, Gb/s: by flows: auto 4.00 at 1, 5.00 at 12, 6.00 at 32; inline 3.00 at 1.",
        "by cores: kernel 2.00 at 1, 5.00 at 32; ",
    ] {
        assert!(svg.contains(line), "{line}: {svg}");
    }
}

#[test]
fn what_has_no_curves_is_refused_with_the_reason() {
    let mut empty = gateway();
    empty["cases"] = json!([]);
    assert!(refused(&empty.to_string()).contains("no values"));
    empty["cases"] = json!([{"case": "x", "measures": [gateway()["cases"][3]["measures"][1]]}]);
    assert!(refused(&empty.to_string()).contains("nothing in it can be drawn"));
    let mut newer = gateway();
    newer["schema"] = json!(2);
    assert!(refused(&newer.to_string()).contains("its schema is 2"));
    newer["schema"] = json!(null);
    assert!(refused(&newer.to_string()).contains("it has no schema"));
}

#[test]
fn the_committed_pictures_are_those_of_the_committed_results() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../results");
    let kinds = [
        ("gateway-xeon.json", " --bars", bars as fn(&str) -> _),
        ("scale-zen5.json", "", picture),
    ];
    for (results, option, draw) in kinds {
        let text = fs::read_to_string(dir.join(results)).unwrap();
        let (name, svg): (&str, String) = draw(&text).unwrap();
        let committed = fs::read_to_string(dir.join(name)).unwrap();
        let made_by = format!("adit-lab chart results/{results}{option} --out results");
        assert!(svg == committed, "{name} is another one: {made_by}");
    }
}
