use serde_json::json;

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
            {"id": "tcp1", "implementations": of(&stream)},
            {"id": "tcp1.cpu", "implementations": of(&[("adit", 1.1), ("wireguard-go", 5.9)])},
            {"id": "ping-load.p50", "implementations": of(&[("adit", 400.0), ("kernel", 300.0)])},
        ],
    })
}

fn drawn(results: &serde_json::Value) -> String {
    draw(&results.to_string()).unwrap()
}

fn refused(text: &str) -> String {
    draw(text).unwrap_err()
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
    let at = |text: &str| svg.find(text).unwrap();
    assert!(at(">adit</text>") < at(">kernel</text>"));
    assert!(at(">kernel</text>") < at(">wireguard-go</text>"));
    assert!(svg.contains(
        "<desc id=\"desc\">One TCP stream, Gb/s: adit 12.00, kernel 6.00, wireguard-go 3.00."
    ));
    assert!(
        svg.contains("Ping beside one TCP stream, µs: kernel 300, adit 400."),
        "{svg}"
    );
    // Of 520 pixels for the greatest round, 13.2, 12 take 472.7.
    let bar = "<g class=\"adit\">\n<text x=\"150\" y=\"59\" text-anchor=\"end\">adit</text>\n\
        <rect class=\"bar\" x=\"160\" y=\"46\" width=\"472.7\"";
    assert!(svg.contains(bar), "{svg}");
    assert_eq!(svg.matches("<g class=\"adit\">").count(), 3);
}

#[test]
fn the_link_without_a_tunnel_is_no_bar() {
    let svg = drawn(&results());
    assert!(
        svg.contains("Without a tunnel: the stream 24.00 Gb/s"),
        "{svg}"
    );
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
        svg.contains("Some CPU, 2 cores, Linux 6.12; cubic; 2024-02-29"),
        "{svg}"
    );
    assert!(
        svg.contains("kernel 1.0, wireguard-go 0.0.2, adit 0.1.0 (abc1234)"),
        "{svg}"
    );
    assert!(svg.contains("Medians of 5 rounds"), "{svg}");
    assert!(
        svg.contains("Made by: adit-lab compare --only ping-load,tcp1<"),
        "{svg}"
    );
}

#[test]
fn the_command_names_what_is_not_the_default() {
    let command = |steps: &[Step], rounds| {
        let mut some = parse(&results().to_string()).unwrap();
        some.settings.steps = steps.iter().map(|step| step.name()).collect();
        command(&some, rounds)
    };
    assert_eq!(command(&Step::DEFAULT, 5), "adit-lab compare");
    assert_eq!(command(&Step::DEFAULT, 3), "adit-lab compare --rounds 3");
    assert_eq!(command(&Step::QUICK, 1), "adit-lab compare --quick");
    assert_eq!(
        command(&[Step::Tcp1], 1),
        "adit-lab compare --only tcp1 --rounds 1"
    );
}

#[test]
fn what_was_not_measured_is_left_out_and_noted() {
    let mut results = results();
    let note = "Not measured: its CPU time of kernel; the ping beside a stream of wireguard-go";
    assert!(drawn(&results).contains(note));
    results["metrics"].as_array_mut().unwrap().pop();
    let svg = drawn(&results);
    assert!(!svg.contains("Ping beside"), "{svg}");
    assert!(
        svg.contains("Not measured: its CPU time of kernel; the ping beside a stream<"),
        "{svg}"
    );
    results["metrics"] = json!([]);
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
    assert!(
        svg.contains(">a&lt;b&gt;&amp;&quot;\u{fffd}\u{fffd}</text>"),
        "{svg}"
    );
}

#[test]
fn bars_of_nothing_have_no_length() {
    let mut results = results();
    for name in ["adit", "kernel", "wireguard-go"] {
        results["metrics"][0]["implementations"][name] =
            json!({"median": 0.0, "min": -1.0, "max": 0.0, "count": 2});
    }
    let svg = drawn(&results);
    assert_eq!(svg.matches("width=\"0.0\"").count(), 3, "{svg}");
    assert!(!svg.contains("NaN"), "{svg}");
}

#[test]
fn what_is_no_results_file_is_refused_with_the_reason() {
    let with = |key: &str, value: serde_json::Value| {
        let mut results = results();
        results[key] = value;
        refused(&results.to_string())
    };
    assert!(
        refused("").starts_with("the file is empty; a file that `adit-lab compare --json=FILE`")
    );
    assert!(refused("median ± half the range").starts_with("this is not JSON"));
    assert!(refused("[1, 2]").contains("it has no `command`"));
    assert!(refused(r#"{"schema": 2}"#).contains("it has no `command`"));
    assert!(refused(r#"{"command": "compare"}"#).contains("it has no `schema`"));
    assert!(
        with("command", json!("checksum")).starts_with("these are results of `adit-lab checksum`")
    );
    assert!(with("schema", json!(1)).contains("its schema is 1, and this adit-lab reads schema 2"));
    assert!(with("machine", json!(null)).starts_with("this is no whole results file: "));
}

#[test]
fn days_are_those_of_the_calendar() {
    for (seconds, day) in [
        (0, "1970-01-01"),
        (951_782_399, "2000-02-28"),
        (951_782_400, "2000-02-29"),
        (951_868_800, "2000-03-01"),
        (1_767_225_599, "2025-12-31"),
        (1_767_225_600, "2026-01-01"),
        (4_107_542_400, "2100-03-01"),
    ] {
        assert_eq!(date(seconds), day);
    }
}

#[test]
fn a_document_of_this_version_can_be_drawn() {
    use crate::implementation::Entry;
    use crate::implementation::Implementation::Tailscale;
    use crate::report::{ComparisonReport, Sample};
    let mut report = ComparisonReport::new("cubic".to_owned(), vec![Step::Tcp1]);
    for (implementation, value) in [(Tailscale, 5.0), (Adit, 10.0)] {
        let version = "1".to_owned();
        report.implementations.push(Entry {
            who: implementation,
            version,
            binary: None,
            environment: Vec::new(),
        });
        report.samples.push(Sample {
            round: 1,
            implementation,
            metric: "tcp1",
            value,
        });
    }
    let svg = draw(&crate::document::render(&report).unwrap()).unwrap();
    check_well_formed(&svg).unwrap();
    assert!(svg.contains("adit 10.00, tailscale 5.00"), "{svg}");
    assert!(
        svg.contains("Values of one round. Made by: adit-lab compare --only tcp1 --rounds 1"),
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
    };
    run(&args).unwrap();
    let svg = fs::read_to_string(args.out.join(FILE)).unwrap();
    let missing = ChartArgs {
        results: dir.join("nothing.json"),
        ..args
    };
    let why = run(&missing).unwrap_err().to_string();
    fs::remove_dir_all(&dir).unwrap();
    assert_eq!(svg, drawn(&results()));
    assert!(why.contains("nothing.json: No such file"), "{why}");
}
