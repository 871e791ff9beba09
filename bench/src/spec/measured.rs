//! Tables of `compare`, `hostile`, `idle` and `upgrade`, and README's of machines.

use serde_json::Value;

use super::Table;
use super::reproduced::kernel;
use super::tables::{
    ALL, MISSED, OTHERS, array, columns, entry, files, fixed, goal, limit, median, meets, metric,
    number, shown, title, verdict,
};

/// What a row of the table of speed divides Adit's median by.
#[derive(Clone, Copy)]
enum Over {
    /// Another's median of the same.
    Other(&'static str),
    /// That of the best other.
    Best,
    /// Adit's own with one stream.
    OneStream,
}

const TAILSCALE: Over = Over::Other("tailscale");
const BEST: Option<Over> = Some(Over::Best);
const FORK: Option<Over> = Some(TAILSCALE);
const ONE: Option<Over> = Some(Over::OneStream);

/// Label, measure, places of its values, and what Adit stands beside, if that is anything. A row without a label is another
/// ratio of the one above.
#[rustfmt::skip]
const SPEED: [(&str, &str, usize, Option<Over>); 26] = [
    ("one TCP stream, Gb/s", "tcp1", 2, Some(Over::Other("wireguard-go"))),
    ("", "tcp1", 2, FORK),
    ("the same, one end per core, Gb/s", "tcp1-pinned", 2, FORK),
    ("CPU-seconds per GB, both daemons", "tcp1.cpu", 2, FORK),
    ("8 streams, Gb/s", "tcp8", 2, ONE),
    ("128 streams, Gb/s", "tcp128", 2, ONE),
    ("the same by the lab's generator", "tcp128-own", 2, ONE),
    ("both directions, sum, Gb/s", "bidir", 2, ONE),
    ("UDP 64 B delivered, lab's generator, kpps", "udp64-own", 0, BEST),
    ("the same by iperf3", "udp64", 0, BEST),
    ("UDP 1368 B delivered, lab's generator, kpps", "udp1368-own", 0, BEST),
    ("the same by iperf3", "udp1368", 0, BEST),
    ("UDP from an application with GSO, Gb/s", "udp-gso", 2, BEST),
    ("TCP in VXLAN, Gb/s", "vxlan", 2, BEST),
    ("one stream, IPv6 inside, Gb/s", "ipv6-inside", 2, BEST),
    ("one stream, IPv6 outside, Gb/s", "ipv6-outside", 2, BEST),
    ("ping idle p50, µs", "ping.p50", 0, BEST),
    ("ping beside a TCP stream p50, µs", "ping-load.p50", 0, FORK),
    ("the same, p99", "ping-load.p99", 0, BEST),
    ("", "ping-load.p99", 0, FORK),
    ("the stream meanwhile, Gb/s", "ping-load.tcp", 2, ONE),
    ("200 KB answers beside 8 streams p50, ms", "answers.p50", 1, BEST),
    ("the same, p99", "answers.p99", 1, FORK),
    ("the streams meanwhile, Gb/s", "answers.tcp", 2, FORK),
    ("retransmitted segments, one stream", "tcp1.retransmits", 0, None),
    ("peak memory, MiB", "rss.peak", 0, None),
];

/// Adit beside something.
struct Beside {
    ratio: f64,
    interval: Option<(f64, f64)>,
    /// What it stands beside.
    over: String,
}

impl Beside {
    fn of(json: &Value, id: &str, over: Over) -> Result<Self, String> {
        let all = entry(array(json, "metrics")?, "id", id)?;
        let interval = |low: &Value, high: &Value| Some((low.as_f64()?, high.as_f64()?));
        let other = |who: &str| -> Result<Self, String> {
            let to = &all["adit_to"][who];
            Ok(Self {
                ratio: number(to, "value").map_err(|why| format!("{id}, {who}: {why}"))?,
                interval: interval(&to["low"], &to["high"]),
                over: title(who),
            })
        };
        match over {
            Over::Other(who) => other(who),
            Over::Best => {
                let there = OTHERS
                    .iter()
                    .filter_map(|who| Some((median(all, who)?, *who)));
                let best = match all["better"] == "lower" {
                    true => there.min_by(|a, b| a.0.total_cmp(&b.0)),
                    false => there.max_by(|a, b| a.0.total_cmp(&b.0)),
                };
                other(best.ok_or_else(|| format!("no other has {id}"))?.1)
            }
            Over::OneStream => {
                let name = all["title"].as_str().unwrap_or_default().trim();
                let mut targets = array(json, "targets")?.iter();
                let target = targets.find(|target| {
                    let measure = target["measure"].as_str().unwrap_or_default();
                    target["against"] == "Adit's TCP, 1 stream" && measure.ends_with(name)
                });
                let target = target.ok_or_else(|| format!("the file has no target for {id}"))?;
                Ok(Self {
                    ratio: number(target, "measured")?,
                    interval: interval(&target["interval"][0], &target["interval"][1]),
                    over: "one".to_owned(),
                })
            }
        }
    }
}

/// Of the first file all values and ratios, of the second a column of ratios.
pub(super) fn speed(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [first, second] = files(results)?;
    table.check_labels(&SPEED.map(|(label, ..)| label))?;
    for (row, (label, id, places, over)) in SPEED.into_iter().enumerate() {
        let all = entry(array(first, "metrics")?, "id", id)?;
        for who in ALL {
            let value = median(all, who).filter(|_| !label.is_empty());
            table.set(row, &title(who), shown(value, places))?;
        }
        // Where the goal itself is marked, it is missed everywhere.
        let goal = table.rows[row].last().cloned().unwrap_or_default();
        let verdict = |value: f64| match goal.ends_with(MISSED) || meets(value, &goal) {
            true => "",
            false => MISSED,
        };
        let (ratio, column) = match over {
            None => {
                let value = metric(second, id, "adit")?;
                (String::new(), format!("{value:.places$}{}", verdict(value)))
            }
            Some(over) => {
                let (first, second) = (Beside::of(first, id, over)?, Beside::of(second, id, over)?);
                let interval = first.interval.map_or(String::new(), |(low, high)| {
                    format!(" ({low:.2}–{high:.2})")
                });
                let text = |it: &Beside, interval: &str, over: &str| {
                    let ratio = it.ratio;
                    format!("{ratio:.2} ×{interval}{over}{}", verdict(ratio))
                };
                let [of_first, mut of_second] = [&first, &second].map(|it| format!(" {}", it.over));
                if of_first == of_second {
                    of_second.clear();
                }
                (
                    text(&first, &interval, &of_first),
                    text(&second, "", &of_second),
                )
            }
        };
        table.set(row, "ratio", ratio)?;
        table.set(row, "Zen 4, AVX2", column)?;
    }
    Ok(())
}

/// Label, measure, and places of the values with many CPUs.
const COMPARED: [(&str, &str, usize); 4] = [
    ("one TCP stream, Gb/s", "tcp1", 2),
    ("CPU-seconds per GB, both daemons", "tcp1.cpu", 2),
    ("8 streams, Gb/s", "tcp8", 2),
    ("both directions, sum, Gb/s", "bidir", 2),
];

/// Some measures of one file, with the path without a tunnel, and Adit beside the best other.
pub(super) fn compared(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    table.begin(columns(&["", "no tunnel"], &ALL, &["ratio"]));
    for (label, id, places) in COMPARED {
        let measure = entry(array(json, "metrics")?, "id", id)?;
        let mut row = vec![label.to_owned()];
        let cells = [&["direct"], &ALL[..]].concat().into_iter();
        row.extend(cells.map(|who| shown(median(measure, who), places)));
        let beside = Beside::of(json, id, Over::Best)?;
        row.push(format!("{:.2} × {}", beside.ratio, beside.over));
        table.rows.push(row);
    }
    Ok(())
}

/// The machines of which README has the kernel's WireGuard, as Tailscale published it.
const PUBLISHED: [&str; 2] = ["c6i.8xlarge", "i5-12400"];

/// README's: a row for each file of measurements, and for each published figure of the kernel.
pub(super) fn machines(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [zen5, avx2, published] = files(results)?;
    for (json, machine) in [(zen5, "(Zen 5)"), (avx2, "AVX2 only")] {
        let row = row_of(table, machine)?;
        let over = |id: &str, over: Over| Beside::of(json, id, over).map(|it| it.ratio);
        let stream = metric(json, "tcp1", "adit")?;
        let go = over("tcp1", Over::Other("wireguard-go"))?;
        let fork = over("tcp1", TAILSCALE)?;
        let cpu = over("tcp1.cpu", TAILSCALE)?;
        let best = over("udp64-own", Over::Best)?;
        for (column, text) in [
            ("one TCP stream", format!("{stream:.1} Gb/s")),
            ("× wireguard-go", format!("{go:.1}")),
            ("× Tailscale's fork", format!("{fork:.1}")),
            ("its CPU time", format!("{cpu:.2} ×")),
            ("UDP 64 B, × the best other", format!("{best:.1}")),
        ] {
            table.set(row, column, text)?;
        }
    }
    for machine in PUBLISHED {
        let row = row_of(table, machine)?;
        let kernel = kernel(published, machine)?;
        table.set(row, "one TCP stream", format!("{:.1} Gb/s", kernel.gbps))?;
        table.set(
            row,
            "× Tailscale's fork",
            format!("{:.1}", kernel.over_fork),
        )?;
    }
    Ok(())
}

/// The row whose first cell has this text.
fn row_of(table: &Table, text: &str) -> Result<usize, String> {
    let row = table.rows.iter().position(|row| row[0].contains(text));
    row.ok_or_else(|| format!("it has no row for {text}"))
}

/// The column of the run that is committed.
pub(super) fn hand_overs(results: &[Value], table: &mut Table) -> Result<(), String> {
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

pub(super) fn silent(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    let measures = array(json, "measures")?;
    let all = ["wireguard-go", "tailscale", "boringtun", "adit"];
    table.begin(columns(&[""], &all, &["goal"]));
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
pub(super) fn floods(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [others, adit] = files(results)?;
    table.begin(columns(&["attack"], &ALL, &["goal"]));
    for (attack, label) in ATTACKS {
        let mut row = vec![label.to_owned()];
        for who in ALL {
            let json = if who == "adit" { adit } else { others };
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
