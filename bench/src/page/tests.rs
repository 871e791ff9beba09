use serde_json::json;

use super::figures::Drawing;
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
            "flame_graphs": [{"subject": "adit", "end": "sender",
                "folded": "adit-shard-0;main;seal<T> 30\nadit-shard-0;main;send 10\n"}],
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
    // The one address is the name of SVG's elements.
    assert_eq!(
        page.matches("http://").count(),
        page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count()
    );
}

#[test]
fn links_lead_to_places_on_the_page() {
    for page in [page(&results()), html::page(&committed()).unwrap()] {
        let ids: Vec<&str> = quoted(&page, " id=\"");
        let links = quoted(&page, "href=\"");
        assert!(links.len() > 4);
        for link in links.into_iter().filter(|link| *link != "data:,") {
            let places = ids.iter().filter(|id| link.strip_prefix('#') == Some(id));
            assert_eq!(places.count(), 1, "{link}");
        }
    }
}

/// The text between each of these and the next quotation mark.
fn quoted<'a>(page: &'a str, before: &str) -> Vec<&'a str> {
    let parts = page.split(before).skip(1);
    parts.filter_map(|part| part.split('"').next()).collect()
}

#[test]
fn text_from_files_stays_text() {
    let page = page(&results());
    assert!(page.contains("a&lt;b") && !page.contains("a<b"));
    assert!(page.contains("Some &lt;CPU&gt;"));
}

#[test]
fn values_are_folded_below_with_their_range() {
    let page = page(&results());
    let (_, folded) = page
        .split_once("<summary>Some &lt;CPU&gt;, 2 cores")
        .unwrap();
    assert!(folded.contains("<td>12.3<small>6.17–15.4</small></td>"));
    let figures: Vec<&str> = folded.split("<figure").skip(1).collect();
    assert_eq!(figures.len(), 2, "a curve and a flame graph");
    for figure in &figures {
        let (figure, _) = figure.split_once("</figure>").unwrap();
        assert!(figure.contains("<svg ") && figure.contains("<details>"));
    }
    assert!(figures[0].contains("UDP by size, kpps"));
    assert!(figures[1].contains("Where the time goes: adit, sender, ns of CPU time"));
    let stacks = "adit-shard-0;main;seal&lt;T&gt; 30\nadit-shard-0;main;send 10\n</pre>";
    assert!(figures[1].contains(stacks), "{}", figures[1]);
}

/// A comparison of one stream on a machine, with a published figure of the kernel from elsewhere.
fn stream(file: &str, adit: f64, rounds: u64, cores: u64) -> Run {
    let values = |median: f64| json!({"of": [median, median * 0.9, median * 1.1, rounds]});
    let all = json!({"direct": values(60.0), "wireguard-go": values(3.0), "adit": values(adit),
        "tailscale": values(5.0)});
    let published = json!({"what": "kernel WireGuard, some machine", "value": 11.8, "unit": "Gb/s",
        "measure": "tcp1", "subject": "kernel", "differs": ""});
    let metrics = json!([{"id": "tcp1", "title": "TCP", "unit": "Gb/s", "implementations": all}]);
    let mut fork = published.clone();
    (fork["what"], fork["value"]) = (json!("wireguard-go after, some machine"), json!(13.0));
    fork["subject"] = json!("tailscale");
    let other = json!([{"source": "tailscale-2023", "published": [published, fork],
        "measures": [{"id": "x", "unit": "Gb/s", "subjects": {"adit": values(1.0)}}]}]);
    let json = json!({"command": "compare", "machine": {"cpu": "Some(R) CPU", "cores": cores},
        "implementations": [{"name": "wireguard-go"}, {"name": "adit"}, {"name": "tailscale"}],
        "metrics": metrics, "sources": other});
    Run::read(file, &json.to_string()).unwrap()
}

/// The page without its markup.
fn words(page: &str) -> String {
    let (_, body) = page.split_once("<body>").unwrap();
    let mut words = String::new();
    for part in body.split('<') {
        let text = part.split_once('>').map_or(part, |(_, text)| text);
        words = words + " " + text.trim();
    }
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_first_screen_says_how_fast_beside_whom_and_on_what() {
    let runs = [
        stream("one.json", 20.0, 1, 2),
        stream("five.json", 15.0, 5, 2),
        stream("many.json", 10.0, 1, 16),
    ];
    let words = words(&html::page(&runs).unwrap());
    let said = [
        "beside Tailscale's fork of wireguard-go and wireguard-go.",
        "One TCP stream 15.0 Gb/s 3.0 × Tailscale's fork, the best other Some, 2 cores 5 rounds, \
         five.json; 4.0 × in one",
        "One stream, more cores 10.0 Gb/s 2.0 × Tailscale's fork, the best other Some, 16 cores",
        "11.8 Gb/s on some machine (0.91 × Tailscale's fork there); “Surpassing 10Gb/s over Tailscale”",
    ];
    for said in said {
        assert!(words.contains(said), "{said}: {words}");
    }
}

#[test]
fn the_best_bar_comes_first_and_the_link_is_a_line() {
    let page = html::page(&[stream("five.json", 15.0, 5, 2)]).unwrap();
    let (_, bars) = page.split_once("<table class=\"bars\">").unwrap();
    let (bars, below) = bars.split_once("</table>").unwrap();
    let rows: Vec<&str> = bars.split("<tr").skip(1).collect();
    let names = [
        "Adit<",
        "published: some machine",
        "Tailscale's fork",
        "wireguard-go",
    ];
    assert_eq!(rows.len(), names.len());
    for (row, name) in rows.iter().zip(names) {
        assert!(row.contains(name), "{name}: {row}");
        assert!(row.contains("<s style=\"left:100.0%\">"), "{row}");
    }
    assert!(rows[1].contains("class=\"published\""));
    assert!(below.contains(
        "Line: no tunnel, 60.0. Published, of other machines: “Surpassing 10Gb/s over Tailscale”"
    ));
}

#[test]
fn points_of_a_curve_stand_in_order() {
    let run = read(&results()).unwrap();
    let figures::Drawing::Curves { lines, axis, .. } = &run.sections[0].figures[1].drawing else {
        panic!("a curve");
    };
    let at: Vec<f64> = lines[0].points.iter().map(|(at, _)| *at).collect();
    assert_eq!(
        (at.as_slice(), axis.as_str()),
        (&[64.0, 512.0, 1420.0][..], "octets")
    );
}

#[test]
fn a_percentile_stands_in_the_curve_of_its_rate_and_in_the_distribution() {
    let mut json = results();
    let measures = json["sources"][0]["measures"].as_array_mut().unwrap();
    for measure in &mut measures[1..] {
        measure["distribution"] = json!({"title": "latency", "axis": "one of",
            "at": measure["curve"]["at"]});
    }
    measures[3].as_object_mut().unwrap().remove("curve");
    let run = read(&json).unwrap();
    let points = |title: &str| {
        let figures = &run.sections[0].figures;
        let mut named = figures.iter().filter(|figure| figure.title == title);
        let figures::Drawing::Curves { lines, .. } = &named.next().unwrap().drawing else {
            panic!("a curve");
        };
        assert!(named.next().is_none());
        lines[0].points.iter().map(|(at, _)| *at).collect()
    };
    let (curve, distribution): (Vec<f64>, Vec<f64>) = (points("UDP by size"), points("latency"));
    assert_eq!(curve, [64.0, 1420.0]);
    assert_eq!(distribution, [64.0, 512.0, 1420.0]);
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

/// What is in `results/`.
fn committed() -> Vec<Run> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../results");
    let entries = std::fs::read_dir(dir).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|it| it == "json"));
    files.sort();
    let read = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).unwrap();
        Run::read(&file.file_name().unwrap().to_string_lossy(), &text).unwrap()
    };
    files.iter().map(read).collect()
}

#[test]
fn the_committed_results_make_a_page_of_at_most_2_mb() {
    let runs = committed();
    assert!(runs.len() >= 4);
    let page = html::page(&runs).unwrap();
    assert!(page.len() <= 2_000_000, "{} bytes", page.len());
    assert_eq!(page.matches("<li><a href=").count(), 5, "figures first");
    for question in &questions::QUESTIONS {
        let heading = format!("<h2>{}</h2>", question.title);
        assert!(page.contains(&heading), "{heading}");
    }
    // Each figure is a row of a table, a drawing, or a table of shares.
    let figures = runs.iter().flat_map(|run| &run.sections);
    let figures: Vec<_> = figures.flat_map(|section| &section.figures).collect();
    let heats = |figure: &&&figures::Figure| matches!(figure.drawing, Drawing::Heat(_));
    let heats = figures.iter().filter(heats).count();
    assert_eq!(page.matches("<table class=\"heat\">").count(), heats);
    let (_, folded) = page.split_once("<details>").unwrap();
    let missing = figures.iter().find(|figure| {
        let caption = text::escape(&figure.caption());
        !folded.contains(&format!(">{caption}<"))
    });
    assert!(missing.is_none(), "{}", missing.unwrap().caption());
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

/// Finds how wide the page is, where its first screen ends, and which text and which line has the least
/// contrast to what is behind it (WCAG 2.2, 1.4.3 and 1.4.11), and puts that into the title.
const PROBE: &str = r#"<script>
const channels = colour => colour.match(/[\d.]+/g).map(Number)
  .map((v, at) => colour.startsWith('color(') && at < 3 ? v * 255 : v);
const luminance = colour => channels(colour).slice(0, 3).map(v => v / 255)
  .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
const contrast = (a, b) => {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
};
const clear = 'rgba(0, 0, 0, 0)';
const behind = element => {
  const colour = getComputedStyle(element).backgroundColor;
  return colour === clear ? behind(element.parentElement) : colour;
};
let text = 99, drawn = 99;
for (const element of document.body.querySelectorAll('*')) {
  const style = getComputedStyle(element);
  const words = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
  if (element instanceof SVGElement) {
    const svg = element.closest('figure') ?? document.body;
    if (element.tagName === 'text' && words) {
      const field = element.closest('.flame') && element.parentNode.querySelector('rect');
      text = Math.min(text, contrast(style.fill, field ? getComputedStyle(field).fill : behind(svg)));
    } else if (!element.closest('.flame') && !element.hasAttribute('opacity')) {
      for (const name of ['fill', 'stroke'])
        if (element.hasAttribute(name) && style[name].startsWith('rgb('))
          drawn = Math.min(drawn, contrast(style[name], behind(svg)));
    }
  } else if (element.matches('.track *')) {
    const colour = style.backgroundColor === clear ? style.borderTopColor : style.backgroundColor;
    const line = element.matches('s') ? style.borderLeftColor : colour;
    drawn = Math.min(drawn, contrast(line, behind(element.parentElement)));
  } else if (words && !['SCRIPT', 'STYLE'].includes(element.tagName)) {
    text = Math.min(text, contrast(style.color, behind(element)));
  }
}
const {scrollWidth, clientWidth} = document.documentElement;
const first = document.getElementById('headline').getBoundingClientRect().bottom;
const dark = matchMedia('(prefers-color-scheme: dark)').matches;
document.title = `probed ${scrollWidth} ${clientWidth} ${first} ${text} ${drawn} ${dark}`;
</script></body>"#;

/// What a browser says of the page with every table open: the width of the page and of the window, the end
/// of the first screen, the least contrast of text and of what is drawn, and whether it was dark.
fn probe(browser: &str, page: &str, window: u32, is_dark: bool) -> (Vec<f64>, bool) {
    let scheme = u8::from(!is_dark);
    let dir = format!("adit-lab-page-{}-{window}-{scheme}", std::process::id());
    let dir = std::env::temp_dir().join(dir);
    std::fs::create_dir_all(&dir).unwrap();
    let open = page.replace("<details", "<details open");
    let file = dir.join("report.html");
    std::fs::write(&file, open.replace("</body>", PROBE)).unwrap();
    let url = format!("file://{}", file.display());
    let scheme = format!("--blink-settings=preferredColorScheme={scheme}");
    let window = format!("--window-size={window},800");
    let show = |profile: &str| {
        let data = format!("--user-data-dir={}", dir.join(profile).display());
        let args = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            "--dump-dom",
            &window,
            &scheme,
            &data,
            &url,
        ];
        let command = adit_testbed::process::command(browser, &args);
        let limit = std::time::Duration::from_secs(60);
        adit_testbed::process::Process::spawn(command)
            .unwrap()
            .finish(limit)
    };
    // Chromium takes some seconds, but on a busy machine it sometimes never ends.
    let mut shown = show("first");
    let is_late = |why: &std::io::Error| why.kind() == std::io::ErrorKind::TimedOut;
    if shown.as_ref().is_err_and(is_late) {
        shown = show("second");
    }
    std::fs::remove_dir_all(&dir).unwrap();
    let shown = shown.unwrap();
    assert!(shown.ok(), "{}", shown.stderr);
    assert!(!shown.stderr.contains("CONSOLE"), "{}", shown.stderr);
    let (_, title) = shown.stdout.split_once("<title>probed ").unwrap();
    let (title, _) = title.split_once("</title>").unwrap();
    let (numbers, dark) = title.rsplit_once(' ').unwrap();
    let numbers = numbers.split(' ').map(|number| number.parse().unwrap());
    (numbers.collect(), dark == "true")
}

#[test]
fn a_browser_shows_the_page_on_telephones_and_desks_light_and_dark() {
    let Some(browser) = browser() else {
        let is_ci = std::env::var_os("CI").is_some_and(|it| !it.is_empty() && it != "false");
        assert!(!is_ci, "chromium-headless-shell is missing (scripts/setup)");
        eprintln!("skipped: no chromium is here (scripts/setup)");
        return;
    };
    let mut runs = committed();
    runs.push(read(&results()).unwrap());
    let page = html::page(&runs).unwrap();
    for (width, is_dark) in [(360, false), (360, true), (1280, false), (1280, true)] {
        let (found, dark) = probe(browser, &page, width, is_dark);
        let [wide, window, first, text, drawn] = found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(dark, is_dark);
        // A bar to scroll down takes some of it.
        let most = f64::from(width);
        assert!(
            (most - 30.0..=most).contains(&window),
            "a window of {window}"
        );
        assert!(wide <= window, "it is wider than the window: {wide}");
        if width > 1000 {
            assert!(first <= 800.0, "the first screen ends at {first}");
        }
        assert!(text >= 4.5, "text of contrast {text}, dark: {dark}");
        assert!(drawn >= 3.0, "a line of contrast {drawn}, dark: {dark}");
    }
}

#[test]
fn a_fleet_has_curves_of_silence_and_of_the_model() {
    let values = |value: f64| json!({"of": [value, value, value, 1]});
    let silence = [(1, 90.0), (50, 120.0), (100, 20_000.0)].map(|(at, ms)| {
        json!({"percentile": at, "called": {"adit": values(ms)},
            "waiting": {"adit": values(ms * 100.0), "wireguard-go": values(ms * 110.0)}})
    });
    let fleets = [1, 2, 4, 32].map(|gateways| {
        [1000, 1_000_000].map(|peers| {
            json!({"peers": peers, "gateways": gateways, "agent_mib": f64::from(peers) / 500.0,
                "half_back_seconds": f64::from(peers) / 5000.0 / f64::from(gateways)})
        })
    });
    let limits =
        json!([{"what": "too late", "peers": 150_000}, {"what": "too large", "peers": 512_000}]);
    let fleet = json!({"schema": 2, "command": "fleet", "machine": {"cpu": "Some CPU"},
        "silence": silence, "model": {"fleets": fleets.concat(), "limits": limits}});
    let run = read(&fleet).unwrap();
    let figures: Vec<_> = run.sections.iter().flat_map(|it| &it.figures).collect();
    let drawn = figures.iter().map(|figure| match &figure.drawing {
        Drawing::Curves { lines, scales, .. } => {
            let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
            format!("{scales:?} {}", names.join("; "))
        }
        _ => figure.id.clone(),
    });
    let expected = [
        "LogY Adit, called; Adit, passive; wireguard-go, passive",
        "LogBoth 1 gateway; 4 gateways; 32 gateways",
        "LogBoth agent with all records",
        "limits",
    ];
    assert_eq!(drawn.collect::<Vec<_>>(), expected);
    let page = page(&fleet);
    let (_, question) = page.split_once("<section id=\"fleets\">").unwrap();
    let (leads, folded) = question.split_once("<details>").unwrap();
    assert_eq!(leads.matches("<svg ").count(), 2);
    assert!(leads.contains("too late") && leads.contains("150000"));
    assert!(folded.contains("Memory of an agent, MiB"));
}

#[test]
fn a_soak_has_its_goals_and_what_was_done() {
    let soak = json!({"schema": 1, "command": "soak", "version": "adit 0.1.0", "seconds": 60.4,
        "disturbances": 90, "datagrams": 5000, "machine": {"cpu": "Some CPU"},
        "goals": [{"name": "memory, growth", "value": 9.5, "goal": "≤ 8 MiB", "met": false}]});
    let page = page(&soak);
    for cell in [
        "<td>memory, growth</td><td>9.50</td><td>≤ 8 MiB</td><td><span class=\"missed\">missed",
        "<td>disturbances</td><td>90</td>",
        "<td>Adit</td><td>adit 0.1.0</td>",
    ] {
        assert!(page.contains(cell), "{cell}: {page}");
    }
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
