//! Which tables there are, and how each is made of its results.

use adit_testbed::stats::quantile;
use serde_json::Value;

use super::Table;

/// A table of a document.
pub(super) struct Known {
    pub(super) name: &'static str,
    pub(super) document: &'static str,
    pub(super) extent: Extent,
    /// Makes the table, or its cells, of the files that the comment names.
    pub(super) fill: fn(&[Value], &mut Table) -> Result<(), String>,
}

/// How much of a table comes from files.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Extent {
    Whole,
    Part,
}

impl Extent {
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Whole => "from ",
            Self::Part => "in part from ",
        }
    }
}

const SPEC: &str = "SPEC.md";

/// Those of one document stand together.
pub(super) const TABLES: [Known; 11] = [
    known(SPEC, Extent::Part, "speed", speed),
    known(SPEC, Extent::Whole, "slow peer", slow_peer),
    known(SPEC, Extent::Part, "hand-overs", hand_overs),
    known(SPEC, Extent::Whole, "silent", silent),
    known(SPEC, Extent::Whole, "engine in memory", engine_in_memory),
    known(SPEC, Extent::Whole, "real tunnels", real_tunnels),
    known(SPEC, Extent::Whole, "stages", stages),
    known(SPEC, Extent::Whole, "model", model),
    known(SPEC, Extent::Whole, "errors of the model", model_errors),
    known(SPEC, Extent::Whole, "floods", floods),
    known("README.md", Extent::Part, "machines", machines),
];

const fn known(
    document: &'static str,
    extent: Extent,
    name: &'static str,
    fill: fn(&[Value], &mut Table) -> Result<(), String>,
) -> Known {
    Known {
        name,
        document,
        extent,
        fill,
    }
}

const MISSED: &str = ", **missed**";

/// The files, if there are as many as there are to be.
fn files<const N: usize>(results: &[Value]) -> Result<&[Value; N], String> {
    let count = results.len();
    let all = results.try_into();
    all.map_err(|_| format!("it names {count} files, and {N} are wanted"))
}

fn array<'a>(json: &'a Value, name: &str) -> Result<&'a [Value], String> {
    let array = json[name].as_array().map(Vec::as_slice);
    array.ok_or_else(|| format!("the file has no {name}"))
}

/// The entry of a list whose `key` is `wanted`.
fn entry<'a>(list: &'a [Value], key: &str, wanted: &str) -> Result<&'a Value, String> {
    let found = list.iter().find(|of| of[key] == wanted);
    found.ok_or_else(|| format!("the file has no {key} {wanted:?}"))
}

fn number(json: &Value, name: &str) -> Result<f64, String> {
    let number = json[name].as_f64();
    number.ok_or_else(|| format!("the file has no number {name}"))
}

/// The median of one implementation, where the measure has it.
fn median(measure: &Value, who: &str) -> Option<f64> {
    measure["implementations"][who]["median"].as_f64()
}

fn metric(json: &Value, id: &str, who: &str) -> Result<f64, String> {
    let metric = entry(array(json, "metrics")?, "id", id)?;
    median(metric, who).ok_or_else(|| format!("{who} has no {id}"))
}

/// With commas between thousands.
fn fixed(value: f64, places: usize) -> String {
    let text = format!("{value:.places$}");
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) => (whole, format!(".{fraction}")),
        None => (text.as_str(), String::new()),
    };
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + &fraction
}

/// "≥ 0.95" or "≤ 0.40" at the beginning of a cell; true where there is no goal.
fn meets(value: f64, goal: &str) -> bool {
    let (at_least, limit) = match goal.split_once(' ') {
        Some(("≥", limit)) => (true, limit),
        Some(("≤", limit)) => (false, limit),
        _ => return true,
    };
    let digits = limit.split(|c: char| c != '.' && !c.is_ascii_digit());
    let limit = digits
        .into_iter()
        .next()
        .and_then(|it| it.parse::<f64>().ok());
    limit.is_none_or(|limit| {
        if at_least {
            value >= limit
        } else {
            value <= limit
        }
    })
}

/// A goal of the file, by its name.
fn goal<'a>(json: &'a Value, name: &str) -> Result<&'a Value, String> {
    entry(array(json, "goals")?, "name", name)
}

/// Nothing where a goal of the file is met.
fn verdict(goal: &Value) -> &'static str {
    match goal["met"] == true {
        true => "",
        false => MISSED,
    }
}

/// The limit of a goal, without its sign and unit.
fn limit(goal: &Value) -> String {
    let text = goal["goal"].as_str().unwrap_or_default();
    text.split(' ').nth(1).unwrap_or_default().to_owned()
}

fn strings<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).to_vec()
}

const OTHERS: [&str; 4] = ["wireguard-go", "tailscale", "boringtun", "gotatun"];

/// As the documents call it.
fn title(who: &str) -> String {
    match who {
        "tailscale" => "Tailscale's fork".to_owned(),
        "adit" => "Adit".to_owned(),
        who => who.to_owned(),
    }
}

/// What a row of the table of speed divides Adit's median by.
#[derive(Clone, Copy)]
enum Over {
    /// Another's median of the same.
    Other(&'static str),
    /// The same; the cell says whose, because that is another one than in the column "ratio".
    Named(&'static str),
    /// Adit's own with one stream.
    OneStream,
    /// Nothing: it stands with its unit.
    Nothing(&'static str),
}

const TAILSCALE: Over = Over::Other("tailscale");
const GOTATUN: Over = Over::Other("gotatun");
const BORINGTUN: Over = Over::Other("boringtun");

const SPEED: [(&str, &str, Over); 26] = [
    ("one TCP stream, Gb/s", "tcp1", Over::Other("wireguard-go")),
    ("", "tcp1", TAILSCALE),
    ("the same, one end per core, Gb/s", "tcp1-pinned", TAILSCALE),
    ("CPU-seconds per GB, both daemons", "tcp1.cpu", TAILSCALE),
    ("8 streams, Gb/s", "tcp8", Over::OneStream),
    ("128 streams, Gb/s", "tcp128", Over::OneStream),
    (
        "the same by the lab's generator",
        "tcp128-own",
        Over::OneStream,
    ),
    ("both directions, sum, Gb/s", "bidir", Over::OneStream),
    (
        "UDP 64 B delivered, lab's generator, kpps",
        "udp64-own",
        GOTATUN,
    ),
    ("the same by iperf3", "udp64", Over::Named("gotatun")),
    (
        "UDP 1368 B delivered, lab's generator, kpps",
        "udp1368-own",
        GOTATUN,
    ),
    ("the same by iperf3", "udp1368", Over::Named("gotatun")),
    (
        "UDP from an application with GSO, Gb/s",
        "udp-gso",
        TAILSCALE,
    ),
    ("TCP in VXLAN, Gb/s", "vxlan", GOTATUN),
    ("one stream, IPv6 inside, Gb/s", "ipv6-inside", TAILSCALE),
    ("one stream, IPv6 outside, Gb/s", "ipv6-outside", TAILSCALE),
    ("ping idle p50, µs", "ping.p50", BORINGTUN),
    (
        "ping beside a TCP stream p50, µs",
        "ping-load.p50",
        TAILSCALE,
    ),
    ("the same, p99", "ping-load.p99", BORINGTUN),
    ("", "ping-load.p99", TAILSCALE),
    (
        "the stream meanwhile, Gb/s",
        "ping-load.tcp",
        Over::OneStream,
    ),
    (
        "200 KB answers beside 8 streams p50, ms",
        "answers.p50",
        BORINGTUN,
    ),
    ("the same, p99", "answers.p99", TAILSCALE),
    ("the streams meanwhile, Gb/s", "answers.tcp", TAILSCALE),
    (
        "retransmitted segments, one stream",
        "tcp1.retransmits",
        Over::Nothing(""),
    ),
    ("peak memory, MiB", "rss.peak", Over::Nothing(" MiB")),
];

/// The column of the machine whose results are committed.
fn speed(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    table.check_labels(&SPEED.map(|(label, ..)| label))?;
    for (row, (_, id, over)) in SPEED.into_iter().enumerate() {
        let adit = metric(json, id, "adit")?;
        let (value, mut text) = match over {
            Over::Nothing(unit) => (adit, format!("{adit:.0}{unit}")),
            Over::Other(who) | Over::Named(who) => {
                let ratio = adit / metric(json, id, who)?;
                (ratio, format!("{ratio:.2} ×"))
            }
            Over::OneStream => {
                let ratio = adit / metric(json, "tcp1", "adit")?;
                (ratio, format!("{ratio:.2} ×"))
            }
        };
        if let Over::Named(who) = over {
            text = format!("{text} {who}");
        }
        // Where the goal itself is marked, it is missed everywhere.
        let goal = table.rows[row].last().cloned().unwrap_or_default();
        if !goal.ends_with(MISSED) && !meets(value, &goal) {
            text += MISSED;
        }
        table.set(row, "Zen 4, AVX2", text)?;
    }
    Ok(())
}

/// README's: the last machine.
fn machines(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    let row = table
        .rows
        .iter()
        .position(|row| row[0].contains("AVX2 only"));
    let row = row.ok_or("it has no row for AVX2 only")?;
    let stream = metric(json, "tcp1", "adit")?;
    let over =
        |id: &str, who: &str| Ok::<_, String>(metric(json, id, "adit")? / metric(json, id, who)?);
    let best = over("udp64-own", "gotatun")?;
    for (column, text) in [
        ("one TCP stream", format!("{stream:.1} Gb/s")),
        (
            "× wireguard-go",
            format!("{:.1}", over("tcp1", "wireguard-go")?),
        ),
        (
            "× Tailscale's fork",
            format!("{:.1}", over("tcp1", "tailscale")?),
        ),
        (
            "its CPU time",
            format!("{:.2} ×", over("tcp1.cpu", "tailscale")?),
        ),
        ("UDP 64 B, × the best other", format!("{best:.1}")),
    ] {
        table.set(row, column, text)?;
    }
    Ok(())
}

fn slow_peer(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    let measures = array(entry(array(json, "cases")?, "case", "slow")?, "measures")?;
    let all = [&OTHERS[..], &["adit"]].concat();
    table.head = ["the other peer".to_owned()]
        .into_iter()
        .chain(all.iter().map(|who| title(who)))
        .chain(["goal".to_owned()])
        .collect();
    table.rows.clear();
    for (label, name, places) in [
        ("TCP stream, alone, Gb/s", "stream", 2),
        ("the same beside the flood", "stream_beside", 2),
        ("as a share of the stream alone", "stream_ratio", 2),
        ("pings not answered, %", "ping_beside_lost", 0),
        (
            "longest time without an answer (a ping each 10 ms), ms",
            "ping_beside_gap",
            0,
        ),
        ("TCP to the slow peer alone, Mb/s", "slow_tcp", 2),
    ] {
        let measure = entry(measures, "name", name)?;
        let goal = goal(json, &format!("slow: {name}")).ok();
        let cell = |who: &&str| match median(measure, who) {
            None => String::new(),
            Some(0.0) => "0".to_owned(),
            Some(value) => format!("{value:.places$}"),
        };
        let mut row = vec![label.to_owned()];
        row.extend(all.iter().map(cell));
        row[all.len()] += goal.map_or("", verdict);
        row.push(goal.map_or_else(String::new, |goal| {
            goal["goal"].as_str().unwrap_or_default().to_owned()
        }));
        table.rows.push(row);
    }
    Ok(())
}

/// The column of the run that is committed.
fn hand_overs(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    let metrics = array(json, "metrics")?;
    let of = |name: &str, key: &str| {
        let metric = entry(metrics, "name", name)?;
        number(&metric["implementations"]["adit"], key)
    };
    let both = |name: &str| -> Result<String, String> {
        Ok(format!(
            "{:.1}, {:.1}",
            of(name, "median")?,
            of(name, "max")?
        ))
    };
    let count = |name: &str| Ok::<_, String>(fixed(number(goal(json, name)?, "value")?, 0));
    let sent = fixed(number(json, "datagrams")?, 0);
    let settings = &json["settings"];
    let (peers, times) = (number(settings, "peers")?, number(settings, "hand_overs")?);
    let column = format!("{} peers, {} hand-overs", fixed(peers, 0), fixed(times, 0));
    let rows = [
        ("gap, median and longest, ms", both("gap")?),
        (
            "the slowest datagram in the 300 ms before, median and longest, ms",
            both("before")?,
        ),
        (
            "`adit upgrade` takes, median, ms",
            format!("{:.0}", of("took", "median")?),
        ),
        (
            "the stream meanwhile, Gb/s",
            format!("{:.1}", of("stream", "median")?),
        ),
        (
            "peak memory of the new process, MiB",
            format!("{:.0}", of("memory", "max")?),
        ),
        ("handshake messages", count("handshake messages")?),
        (
            "datagrams sent, lost, delivered twice",
            format!(
                "{sent}, {}, {}",
                count("datagrams lost")?,
                count("datagrams delivered twice")?
            ),
        ),
    ];
    table.check_labels(&rows.each_ref().map(|(label, _)| *label))?;
    for (row, (_, text)) in rows.into_iter().enumerate() {
        table.set(row, &column, text)?;
    }
    Ok(())
}

fn silent(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    let measures = array(json, "measures")?;
    let all = ["wireguard-go", "tailscale", "boringtun", "adit"];
    table.head = ["".to_owned()]
        .into_iter()
        .chain(all.map(title))
        .chain(["goal".to_owned()])
        .collect();
    table.rows.clear();
    for (label, id, places, goal_name) in [
        (
            "wake-ups a second, one silent peer",
            "wakeups_1",
            1,
            "wake-ups, one peer",
        ),
        (
            "the same, 1,000 peers",
            "wakeups_1000",
            1,
            "wake-ups, 1,000 peers",
        ),
        ("memory, 1,000 peers, MiB", "memory_1000", 1, ""),
        (
            "one end with a quarter of a CPU and 64 MiB: TCP, Mb/s",
            "small_rate",
            0,
            "",
        ),
        ("its ping, median, ms", "small_ping", 2, ""),
        (
            "its memory, MiB",
            "small_memory",
            1,
            "memory on a small router",
        ),
    ] {
        let measure = entry(measures, "id", id)?;
        let goal = goal(json, goal_name).ok();
        let failed = |who: &str| {
            let notes = json["notes"].as_array().into_iter().flatten();
            let mut notes = notes.filter_map(Value::as_str);
            notes.any(|note| note.starts_with(who) && note.contains("iperf3 did not end"))
        };
        let cell = |who: &str| match median(measure, who) {
            Some(0.0) => "0".to_owned(),
            Some(value) => fixed(value, places),
            None if id == "small_rate" && failed(who) => "the stream did not end".to_owned(),
            None => String::new(),
        };
        let mut row = vec![label.to_owned()];
        row.extend(all.map(cell));
        row[all.len()] += goal.map_or("", verdict);
        row.push(goal.map_or_else(String::new, limit));
        table.rows.push(row);
    }
    Ok(())
}

fn engine_in_memory(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    table.head = strings([
        "packets",
        "one thread, Gb/s",
        "`auto`, two threads",
        "ratio",
        "`pipeline`, two threads",
        "goal",
    ]);
    table.rows.clear();
    for load in [
        "to one peer",
        "to 64 peers",
        "from one peer",
        "from 64 peers",
    ] {
        let gbps = |policy: &str| -> Result<f64, String> {
            let mut rows = array(json, "memory")?.iter();
            let row = rows.find(|row| row["load"] == load && row["policy"] == policy);
            let row = row.ok_or_else(|| format!("the file has no {policy} {load}"))?;
            number(&row["gbps"], "median")
        };
        let (one, auto, pipeline) = (gbps("inline")?, gbps("auto")?, gbps("pipeline")?);
        let goal = goal(json, &format!("memory, {load}: auto against one thread"))?;
        table.rows.push(vec![
            load.to_owned(),
            format!("{one:.1}"),
            format!("{auto:.1}"),
            format!("{:.2}", auto / one),
            format!("{pipeline:.1}"),
            limit(goal) + verdict(goal),
        ]);
    }
    Ok(())
}

fn real_tunnels(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    table.head = strings([
        "tunnels, flows",
        "`inline`",
        "`pipeline`",
        "`auto`",
        "CPU s/GB of both ends, `inline`, `auto`",
    ]);
    table.rows.clear();
    let all = array(json, "tunnels")?;
    for first in all.iter().filter(|row| row["policy"] == "inline") {
        let (tunnels, flows) = (&first["tunnels"], &first["flows"]);
        let same = |row: &&Value| row["tunnels"] == *tunnels && row["flows"] == *flows;
        let of = |policy: &str| -> Result<&Value, String> {
            let mut rows = all.iter().filter(same);
            let row = rows.find(|row| row["policy"] == policy);
            row.ok_or_else(|| format!("the file has no {policy} with {tunnels}, {flows}"))
        };
        let rate = |policy: &str| -> Result<String, String> {
            let row = of(policy)?;
            let [with, alone] = ["gbps", "gbps_alone"].map(|key| number(&row[key], "median"));
            Ok(format!("{:.2} ({:.2})", with?, alone?))
        };
        let cpu = |policy: &str| -> Result<String, String> {
            let row = of(policy)?;
            let [sender, receiver] = ["sender_cpu_s_per_gb", "receiver_cpu_s_per_gb"]
                .map(|key| number(&row[key], "median"));
            Ok(format!("{:.2}", sender? + receiver?))
        };
        table.rows.push(vec![
            format!("{tunnels}, {flows}"),
            rate("inline")?,
            rate("pipeline")?,
            rate("auto")?,
            format!("{}, {}", cpu("inline")?, cpu("auto")?),
        ]);
    }
    Ok(())
}

fn stages(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    table.head = strings(["", "take", "work", "put", "polls"]);
    table.rows.clear();
    for (direction, load) in [("outbound", "to one peer"), ("inbound", "from one peer")] {
        for (devices, name) in [("memory", "in memory"), ("kernel", "the kernel's devices")] {
            let mut rows = array(json, "stages")?.iter();
            let row = rows.find(|row| row["load"] == load && row["devices"] == devices);
            let row = row.ok_or_else(|| format!("the file has no stages {load}, {devices}"))?;
            let mut cells = vec![format!("{direction}, {name}")];
            for key in ["take_ns", "work_ns", "put_ns", "poll_ns"] {
                cells.push(format!("{:.0}", number(row, key)?));
            }
            table.rows.push(cells);
        }
    }
    Ok(())
}

/// As much of 100 Gb/s as packets of this length can be.
const AT_THE_LINK: f64 = 93.5;
const CORES: [u64; 6] = [1, 2, 4, 8, 16, 32];

fn model(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    let over = "over one thread";
    let first = ["`auto`, Gb/s".to_owned(), "1 core".to_owned()];
    table.head = first
        .into_iter()
        .chain(CORES[1..].iter().map(u64::to_string))
        .chain([over.to_owned(), "goal".to_owned()])
        .collect();
    table.rows.clear();
    let one_tunnel = goal(json, "model: one tunnel on 8 cores over one thread")?;
    let many = goal(json, "model: 16 tunnels on 32 cores over one thread")?;
    for title in [
        "One tunnel outbound",
        "One tunnel inbound",
        "16 tunnels outbound",
        "16 tunnels inbound",
    ] {
        let curve = entry(array(&json["model"], "curves")?, "title", title)?;
        let line = entry(array(curve, "lines")?, "name", "auto")?;
        let at = |cores: u64| -> Result<f64, String> {
            let mut points = array(line, "points")?.iter();
            let point = points.find(|point| point["at"] == cores);
            number(point.ok_or("a point is missing")?, "gbps")
        };
        let (mut name, small) = (title.to_owned(), title.starts_with("One"));
        if small {
            name = name.replacen("One", "one", 1);
        }
        let mut row = vec![name];
        for cores in CORES {
            row.push(match at(cores)? {
                gbps if gbps >= AT_THE_LINK => "the link".to_owned(),
                gbps => format!("{gbps:.1}"),
            });
        }
        let ratio = |goal: &Value| number(goal, "value");
        let wanted = |goal: &Value| format!("≥ {}{}", limit(goal), verdict(goal));
        let (times, goal) = match title {
            "One tunnel outbound" => (
                format!("8 cores: {:.2} ×", ratio(one_tunnel)?),
                wanted(one_tunnel),
            ),
            "One tunnel inbound" => (format!("8 cores: {:.2} ×", at(8)? / at(1)?), String::new()),
            "16 tunnels outbound" => (
                format!("32 cores: {:.1} × without the link", ratio(many)?),
                wanted(many),
            ),
            _ => (String::new(), String::new()),
        };
        row.extend([times, goal]);
        table.rows.push(row);
    }
    Ok(())
}

fn model_errors(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    table.head = strings(["error of the model", "in the middle", "greatest", "goal"]);
    table.rows.clear();
    for (part, name) in [("memory", "engine in memory"), ("tunnels", "real tunnels")] {
        let all = array(&json["model"], "validation")?.iter();
        let points: Vec<&Value> = all.filter(|point| point["part"] == part).collect();
        let errors = |key: &str| -> Result<[f64; 2], String> {
            let errors = points
                .iter()
                .map(|point| Ok(number(point, key)?.abs() * 100.0));
            let errors = errors.collect::<Result<Vec<f64>, String>>()?;
            let at = |share| quantile(&errors, share).ok_or("the file has no validation");
            Ok([at(0.5)?, at(1.0)?])
        };
        let ([middle, most], [middle_alone, most_alone]) =
            (errors("error")?, errors("error_alone")?);
        let goal = goal(json, &format!("model, {part}: greatest error"))?;
        table.rows.push(vec![
            format!("{name}, {} points", points.len()),
            format!("{middle:.0} %, without other programs {middle_alone:.0} %"),
            format!("{most:.0} %, {most_alone:.0} %"),
            format!("≤ {} %{}", limit(goal), verdict(goal)),
        ]);
    }
    Ok(())
}

const ATTACKS: [(&str, &str); 8] = [
    ("one-source", "initiations with a right mac1, one source"),
    ("sources", "the same, 4,096 forged sources"),
    ("wrong-mac1", "wrong mac1"),
    ("cookies", "one in eight with a valid mac2, replayed"),
    ("unknown-indices", "unknown indices"),
    ("bad-tags", "bad tags"),
    ("replays", "replays"),
    ("peer", "one authenticated peer"),
];

/// The others from the first file, Adit from the second.
fn floods(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [others, adit] = files(results)?;
    let all = [&OTHERS[..], &["adit"]].concat();
    table.head = ["attack".to_owned()]
        .into_iter()
        .chain(all.iter().map(|who| title(who)))
        .chain(["goal".to_owned()])
        .collect();
    table.rows.clear();
    for (attack, label) in ATTACKS {
        let mut row = vec![label.to_owned()];
        for who in &all {
            let json = if *who == "adit" { adit } else { others };
            row.push(flood(json, attack, who)?);
        }
        let goals = ["stream_kept", "ping_p99", "connected"].map(|name| {
            let goal = goal(adit, &format!("{attack}: {name}"));
            goal.map_or_else(|_| "–".to_owned(), limit)
        });
        row.push(goals.join(", "));
        table.rows.push(row);
    }
    Ok(())
}

/// What is left under one attack: the stream, the pings, and new peers.
fn flood(json: &Value, attack: &str, who: &str) -> Result<String, String> {
    let mut notes = json["notes"].as_array().into_iter().flatten();
    let said = notes.find(|note| note["attack"] == attack && note["implementation"] == who);
    if let Some(text) = said.and_then(|note| note["text"].as_str()) {
        return Ok(text.trim_start_matches("the server ").to_owned());
    }
    let measures = array(
        entry(array(json, "attacks")?, "attack", attack)?,
        "measures",
    )?;
    let of = |name: &str| {
        let value = median(entry(measures, "name", name)?, who);
        value.ok_or_else(|| format!("{who} has no {name} under {attack}"))
    };
    let text = |name: &str| -> Result<String, String> {
        let value = of(name)?;
        let mut text = match (name, value) {
            ("stream_kept", value) if value < 0.005 => "0".to_owned(),
            ("stream_kept", value) => format!("{value:.2}"),
            ("ping_p99", value) if value < 9.95 => format!("{value:.1}"),
            (_, value) => format!("{value:.0}"),
        };
        let goal = goal(json, &format!("{attack}: {name}"));
        if who == "adit" && goal.is_ok_and(|goal| goal["met"] == false) {
            text += " (**missed**)";
        }
        Ok(text)
    };
    let all = [text("stream_kept")?, text("ping_p99")?, text("connected")?];
    Ok(all.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_stand_apart() {
        let texts = [0.0, 999.4, 1000.0, 497_604.0, 1_234_567.0].map(|value| fixed(value, 0));
        assert_eq!(texts, ["0", "999", "1,000", "497,604", "1,234,567"]);
        assert_eq!(fixed(2086.54, 1), "2,086.5");
    }

    #[test]
    fn goals_are_read_as_they_are_written() {
        assert!(meets(3.0, "≥ 3") && !meets(2.99, "≥ 3"));
        assert!(meets(0.4, "≤ 0.40, **missed**") && !meets(0.41, "≤ 0.40"));
        assert!(meets(9.0, "") && meets(9.0, "0"));
    }
}
