use serde_json::json;

use super::*;

/// A run of `reproduce` with bars, a curve, goals, and something that is missing.
fn results() -> serde_json::Value {
    let values = |median: f64| {
        json!({"rounds": [{"round": 1, "value": median}, {"round": 2, "value": median * 1.25}],
            "median": median, "min": median * 0.5, "max": median * 1.25})
    };
    let both = |adit: f64, other: f64| json!({"adit": values(adit), "a<b": values(other)});
    let point = |at: f64| {
        json!({"id": format!("udp-{at}"), "title": "x", "unit": "kpps", "subjects": both(900.0, 200.0),
            "curve": {"title": "UDP by size", "axis": "octets", "at": at}})
    };
    json!({
        "schema": 1, "command": "reproduce", "started": 1_709_164_800_u64, "stopped": "interrupted",
        "machine": {"cpu": "Some <CPU>", "cores": 2, "load_before": "0.1"},
        "goals": [{"name": "g1", "value": 9.0, "goal": "≥ 8 ×", "met": true},
            {"name": "g2", "value": null, "goal": "≥ 2 ×", "met": false}],
        "sources": [{
            "source": "pfsense",
            "subjects": [{"name": "adit", "what": "0.1.0"}],
            "measures": [
                {"id": "tcp", "title": "one stream", "unit": "Gb/s", "subjects": both(12.345, 3.0)},
                point(64.0), point(1420.0), point(512.0),
            ],
            "published": [
                {"what": "then", "value": 2.42, "unit": "Gb/s", "measure": "tcp", "subject": "adit", "differs": "veth"},
                {"what": "kernel", "value": 2.66, "unit": "Gb/s", "measure": "tcp", "subject": "kernel", "differs": ""},
            ],
            "left_out": [{"name": "kernel", "why": "no module"}],
            "notes": [],
        }],
    })
}

fn read(json: &serde_json::Value) -> Result<Run, String> {
    Run::read("some.json", &json.to_string())
}

fn page(json: &serde_json::Value) -> String {
    html::page(&[read(json).unwrap()]).unwrap()
}

#[test]
fn a_page_needs_nothing_else_and_runs_nothing() {
    let page = page(&results());
    for word in ["<script", "src=", "url(", "@import", "https://"] {
        assert!(!page.contains(word), "{word}");
    }
    let links = page.matches("href=").count();
    assert_eq!(links, page.matches("href=\"data:,\"").count());
    // The one address is the name of SVG's elements.
    assert_eq!(
        page.matches("http://").count(),
        page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count()
    );
}

#[test]
fn text_from_files_stays_text() {
    let page = page(&results());
    assert!(page.contains("a&lt;b") && !page.contains("a<b"));
    assert!(page.contains("Some &lt;CPU&gt;"));
}

#[test]
fn each_figure_has_its_raw_values_below() {
    let page = page(&results());
    let figures: Vec<&str> = page.split("<figure>").skip(1).collect();
    assert_eq!(figures.len(), 2, "one with bars, one with a curve");
    for figure in &figures {
        let (figure, _) = figure.split_once("</figure>").unwrap();
        assert!(figure.contains("<svg ") && figure.contains("<details>"));
    }
    assert!(
        figures[0].contains("12.345 15.43125"),
        "every round, unrounded"
    );
    assert!(figures[1].contains("UDP by size, kpps"));
}

#[test]
fn bars_stand_in_the_order_of_the_subjects() {
    let mut json = results();
    json["sources"][0]["subjects"] = json!([{"name": "a<b"}, {"name": "adit"}]);
    let names = |json: &serde_json::Value| {
        let run = read(json).unwrap();
        let figures::Drawing::Bars(bars) = &run.sections[0].figures[0].drawing else {
            panic!("bars");
        };
        bars.iter()
            .map(|(name, _)| name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&json), ["a<b", "adit"]);
    json["sources"][0]["subjects"] = json!([{"name": "adit"}, {"name": "a<b"}]);
    assert_eq!(names(&json), ["adit", "a<b"]);
}

#[test]
fn points_of_a_curve_stand_in_order() {
    let run = read(&results()).unwrap();
    let figures::Drawing::Curves { lines, axis } = &run.sections[0].figures[1].drawing else {
        panic!("a curve");
    };
    let at: Vec<f64> = lines[0].points.iter().map(|(at, _)| *at).collect();
    assert_eq!(
        (at.as_slice(), axis.as_str()),
        (&[64.0, 512.0, 1420.0][..], "octets")
    );
}

#[test]
fn goals_that_are_missed_and_what_is_missing_are_shown() {
    let page = page(&results());
    assert!(page.contains("Goals: 1 of 2 met"));
    assert_eq!(page.matches("class=\"missed\">missed<").count(), 1);
    assert!(page.contains("incomplete: interrupted"));
    assert!(page.contains("left out: kernel: no module"));
    assert_eq!(
        page.matches("<td>not measured</td>").count(),
        2,
        "a goal and a figure"
    );
}

#[test]
fn each_colour_of_a_drawing_has_a_dark_counterpart() {
    let page = page(&results());
    let (style, body) = page.split_once("</style>").unwrap();
    for what in ["fill", "stroke"] {
        let key = format!(" {what}=\"#");
        for part in body.split(&key).skip(1) {
            let colour = format!("[{what}=\"#{}\"]", &part[..6]);
            assert!(style.contains(&colour), "{colour}");
        }
    }
}

#[test]
fn the_committed_results_make_a_page() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../results");
    let mut runs = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            let text = std::fs::read_to_string(&path).unwrap();
            runs.push(Run::read(&path.to_string_lossy(), &text).unwrap());
        }
    }
    assert!(runs.len() >= 4);
    let page = html::page(&runs).unwrap();
    let figures: usize = runs
        .iter()
        .flat_map(|run| &run.sections)
        .map(|section| section.figures.len())
        .sum();
    assert_eq!(page.matches("<svg ").count(), figures);
}

/// A browser without a window, where there is one: Debian's chromium-headless-shell or chromium.
fn browser() -> Option<&'static str> {
    let names = ["chromium-headless-shell", "chromium", "chromium-browser"];
    let is_there = |name: &&str| {
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
            .any(|dir| dir.join(name).is_file())
    };
    names.into_iter().find(is_there)
}

/// With every table open, and a script that tells how wide the page is.
fn probed(page: &str) -> String {
    let open = page.replace("<details>", "<details open>");
    let script = "<script>document.title = `wide ${document.documentElement.scrollWidth} of \
                  ${document.documentElement.clientWidth}`</script></body>";
    open.replace("</body>", script)
}

#[test]
fn a_telephone_shows_the_page_without_scrolling_sideways() {
    let Some(browser) = browser() else {
        eprintln!("skipped: no chromium is here");
        return;
    };
    let dir = std::env::temp_dir().join(format!("adit-lab-page-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let mut runs = vec![read(&results()).unwrap()];
    let gateway = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../results/gateway-zen4-avx2.json"
    );
    runs.push(Run::read("gateway", &std::fs::read_to_string(gateway).unwrap()).unwrap());
    let file = dir.join("report.html");
    std::fs::write(&file, probed(&html::page(&runs).unwrap())).unwrap();
    let url = format!("file://{}", file.display());
    let data = format!("--user-data-dir={}", dir.display());
    let args = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        "--dump-dom",
        "--window-size=360,800",
        &data,
        &url,
    ];
    let command = adit_testbed::process::command(browser, &args);
    let limit = std::time::Duration::from_secs(120);
    let shown = adit_testbed::process::Process::spawn(command)
        .unwrap()
        .finish(limit);
    std::fs::remove_dir_all(&dir).unwrap();
    let shown = shown.unwrap();
    assert!(shown.ok(), "{}", shown.stderr);
    let (_, title) = shown.stdout.split_once("<title>").unwrap();
    let (title, _) = title.split_once("</title>").unwrap();
    let words: Vec<&str> = title.split(' ').collect();
    assert_eq!(words[0], "wide", "the page was not shown: {title}");
    assert_eq!(words[1], words[3], "it is wider than the screen: {title}");
    assert!(!shown.stderr.contains("CONSOLE"), "{}", shown.stderr);
}

#[test]
fn what_is_no_results_file_is_refused() {
    for (text, why) in [
        ("x", "not JSON"),
        ("{}", "no results file"),
        (r#"{"command": "aead"}"#, "no results file"),
        (r#"{"command": "compare", "metrics": []}"#, "no values"),
    ] {
        let said = Run::read("x", text).err().unwrap();
        assert!(said.contains(why), "{said}");
    }
}
