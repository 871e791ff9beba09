//! Tables of `compare`, `gateway`, `hostile`, `idle` and `upgrade`.

use serde_json::Value;

use super::Table;
use super::tables::{
    MISSED, OTHERS, array, entry, files, fixed, goal, limit, median, meets, metric, number, title,
    verdict,
};

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
pub(super) fn speed(results: &[Value], table: &mut Table) -> Result<(), String> {
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
pub(super) fn machines(results: &[Value], table: &mut Table) -> Result<(), String> {
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

pub(super) fn slow_peer(results: &[Value], table: &mut Table) -> Result<(), String> {
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
