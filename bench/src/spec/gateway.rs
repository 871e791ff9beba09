//! Tables of `gateway`: a slow peer, overload, shares, many active peers.

use serde_json::Value;

use super::Table;
use super::tables::{
    ALL, OTHERS, array, columns, entry, files, goal, median, shown, title, verdict,
};

pub(super) fn slow_peer(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    table.head = columns(&["the other peer"], &ALL, &["goal"]);
    table.rows = gateway_rows(
        json,
        "slow",
        &[
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
        ],
    )?;
    Ok(())
}

/// What an application gets of more than can be carried.
pub(super) fn overload(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    table.head = columns(&["Gb/s that the application gets"], &ALL, &["goal"]);
    let rows = |case, most| {
        let twice = "when twice that is offered";
        let of_most = "as a share of the most";
        let unlimited = "when senders offer what they can";
        gateway_rows(
            json,
            case,
            &[
                (most, "goodput_most", 2),
                (twice, "goodput_at_twice", 2),
                (of_most, "goodput_at_twice_ratio", 2),
                (unlimited, "offered_most", 2),
            ],
        )
    };
    table.rows = rows("overload", "one way, the most")?;
    table
        .rows
        .extend(rows("overload-both", "both ways together, the most")?);
    Ok(())
}

/// What four tunnels in one process take, and what each of several busy peers gets.
pub(super) fn fair_shares(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [all, two] = files(results)?;
    table.begin(columns(&["measure"], &ALL, &["goal"]));
    for (json, case, rows) in [
        (
            all,
            "four-tunnels",
            &[
                (
                    "four tunnels against one: throughput",
                    "four_tunnels_ratio",
                    2,
                ),
                ("their CPU", "four_cpu_ratio", 2),
                ("their memory", "four_memory_ratio", 2),
            ][..],
        ),
        (
            two,
            "peers-2",
            &[
                ("Jain's index, a TCP stream to each of 2 peers", "jain", 3),
                ("64 streams to one, 1 to the other", "share_ratio", 2),
                (
                    "Jain's index, a stream from each of 2 peers",
                    "jain_back",
                    3,
                ),
                (
                    "64 streams from one, 1 from the other",
                    "share_ratio_back",
                    2,
                ),
            ],
        ),
        (
            all,
            "peers-8",
            &[
                ("Jain's index, to 8 peers", "jain", 3),
                ("from 8 peers", "jain_back", 3),
            ],
        ),
        (
            all,
            "peers-64",
            &[
                ("Jain's index, to 64 peers", "jain", 3),
                ("all streams to them, Gb/s", "total", 2),
                ("Jain's index, from 64 peers", "jain_back", 3),
                ("all streams from them, Gb/s", "total_back", 2),
            ],
        ),
    ] {
        table.rows.extend(gateway_rows(json, case, rows)?);
    }
    Ok(())
}

/// What is measured of active peers: label, name, places, and the name of the CPU time.
#[rustfmt::skip]
const ACTIVE: [(&str, &str, usize, &str); 8] = [
    ("UDP 64 B from them, kpps, µs", "from_peers_64", 0, "from_peers_64_cpu"),
    ("UDP 64 B to them, kpps, µs", "to_peers_64", 0, "to_peers_64_cpu"),
    ("UDP 1368 B from them, kpps, µs", "from_peers_1368", 0, "from_peers_1368_cpu"),
    ("UDP 1368 B to them, kpps, µs", "to_peers_1368", 0, "to_peers_1368_cpu"),
    ("TCP from 100 of them, Gb/s, s/GB", "from_peers_tcp", 2, "from_peers_tcp_cpu"),
    ("TCP to 100 of them, Gb/s, s/GB", "to_peers_tcp", 2, "to_peers_tcp_cpu"),
    ("handshakes a second", "handshakes", 0, ""),
    ("peak memory, MiB", "peak_memory", 0, ""),
];

/// Peers that are all active at once, by their number.
pub(super) fn active_peers(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    let counts = ["1", "10", "100", "1,000", "10,000"];
    table.begin(["measure", "implementation"].into_iter().chain(counts));
    let cases = array(json, "cases")?;
    for (label, name, places, cpu) in ACTIVE {
        for (row, who) in ["wireguard-go", "tailscale", "adit"].iter().enumerate() {
            let cell = |count: &&str| -> Result<String, String> {
                let case = format!("peers-active-{}", count.replace(',', ""));
                let measures = array(entry(cases, "case", &case)?, "measures")?;
                let of = |name| median(entry(measures, "name", name).ok()?, who);
                let time = of(cpu).map(|time| format!(", {time:.1}"));
                Ok(shown(of(name), places) + &time.unwrap_or_default())
            };
            let cells = counts.iter().map(cell).collect::<Result<Vec<_>, _>>()?;
            let label = if row == 0 { label } else { "" };
            table
                .rows
                .push([vec![label.to_owned(), title(who)], cells].concat());
        }
    }
    Ok(())
}

/// A row for each of these measures: label, name, places.
fn gateway_rows(
    json: &Value,
    case: &str,
    rows: &[(&str, &str, usize)],
) -> Result<Vec<Vec<String>>, String> {
    let measures = array(entry(array(json, "cases")?, "case", case)?, "measures")?;
    let row = |(label, name, places): &(&str, &str, usize)| -> Result<Vec<String>, String> {
        let measure = entry(measures, "name", name)?;
        let goal = goal(json, &format!("{case}: {name}")).ok();
        let cell = |who: &&str| match median(measure, who) {
            Some(0.0) => "0".to_owned(),
            value => shown(value, *places),
        };
        let mut row = vec![(*label).to_owned()];
        row.extend(ALL.iter().map(cell));
        row[1 + OTHERS.len()] += goal.map_or("", verdict);
        row.push(goal.map_or_else(String::new, |goal| {
            goal["goal"].as_str().unwrap_or_default().to_owned()
        }));
        Ok(row)
    };
    rows.iter().map(row).collect()
}
