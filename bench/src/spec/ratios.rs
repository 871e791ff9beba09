//! The table of goals in SPEC.md: a row for each claim, a column for each processor.
//!
//! Goals are found by name in the results. Where a claim is about several, the cell has the value that
//! is furthest from its limit. A value that no file has stays as the document has it, in italics; such a row
//! has the goal that stands here. A value that misses its goal is bold, and its row has a link to what
//! explains it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Table;
use super::tables::{array, goal_of, meets, number};

/// What SPEC.md writes in place of the names of these files.
pub(super) const ALL: &str = "results/*";

/// Columns, and the files of each. Of a goal that two files have, the first counts.
const PROCESSORS: [(&str, &[&str]); 5] = [
    (
        "Zen 5",
        &[
            "zen5",
            "reproduce-tailscale-zen5",
            "reproduce-tls-zen5",
            "reproduce-pfsense-zen5",
            "gateway-overload-zen5",
            "scale-zen5",
        ],
    ),
    (
        "Zen 4",
        &[
            "reproduce-tailscale-zen4",
            "reproduce-tls-zen4",
            "agree-zen4",
            "scale-zen4",
            "upgrade-zen4",
            "idle-zen4",
            "hostile-adit-zen4",
        ],
    ),
    ("Zen 4, AVX2", &["zen4-avx2", "gateway-zen4-avx2"]),
    (
        "Xeon",
        &[
            "gateway-two-peers-xeon",
            "gateway-xeon",
            "gateway-active-xeon",
            "reproduce-tls-xeon",
            "reproduce-pfsense-xeon",
        ],
    ),
    (
        "Xeon, 16 CPUs",
        &["xeon16", "scale-xeon16", "forwarded-xeon16"],
    ),
];

/// The first cell of a row, and the names of its goals, in which `*` stands for any text.
const CLAIMS: &[(&str, &[&str])] = &[
    (
        "one TCP stream, over wireguard-go",
        &["TCP, 1 stream, of wireguard-go"],
    ),
    (
        "one TCP stream, over Tailscale's fork",
        &["TCP, 1 stream, of tailscale"],
    ),
    (
        "one TCP stream, an end per core, over the better of both",
        &["TCP, 1 stream, one end per core, of *"],
    ),
    (
        "CPU time of one TCP stream, over Tailscale's fork",
        &["TCP, 1 stream: CPU of both daemons, of tailscale"],
    ),
    (
        "one TCP stream, over Adit without encryption",
        &["TCP, 1 stream, of ceiling"],
    ),
    ("8 TCP streams, over one", &["TCP, 8 streams, of *"]),
    (
        "128 TCP streams by iperf3, over one",
        &["TCP, 128 streams, of *"],
    ),
    (
        "128 TCP streams by the lab's generator, over one",
        &["TCP, 128 streams, lab's generator, of *"],
    ),
    (
        "TCP in both directions, sum, over one",
        &["TCP, both directions, sum, of *"],
    ),
    (
        "UDP 64 B by the lab's generator, over the best other",
        &["UDP 64 B, lab's generator, of *"],
    ),
    (
        "UDP 64 B by iperf3, over the best other",
        &["UDP 64 B delivered, of *"],
    ),
    (
        "UDP 1368 B by the lab's generator, over the best other",
        &["UDP 1368 B, lab's generator, of *"],
    ),
    (
        "UDP 1368 B by iperf3, over the best other",
        &["UDP 1368 B delivered, of *"],
    ),
    ("TCP in VXLAN, over the best other", &["TCP in VXLAN, of *"]),
    ("idle ping, over the best other", &["ping idle p50, of *"]),
    (
        "ping beside a TCP stream, over Tailscale's fork",
        &["ping beside a TCP stream p50, of *"],
    ),
    (
        "a TCP stream beside pings, over one alone",
        &["ping beside a TCP stream p50: the stream meanwhile, of *"],
    ),
    (
        "retransmitted segments of one TCP stream",
        &["retransmits, TCP, 1 stream"],
    ),
    ("peak memory, MiB", &["peak memory"]),
    (
        "Tailscale's ideas of 2022, all over none",
        &["tailscale-2022: tcp-1420, *"],
    ),
    (
        "Tailscale's ideas of 2023, all over none",
        &["tailscale-2023: tcp-1420, *"],
    ),
    (
        "one TCP stream under BBR, over Tailscale's fork",
        &["tailscale-*: tcp-1420-bbr, sized-frames / tailscale"],
    ),
    (
        "checksum in vectors, over the best other way",
        &["SIMD of the best other way, at the worst size"],
    ),
    (
        "one connection, over the best TLS proxy",
        &["userspace-vs-kernel: tcp-1, *"],
    ),
    (
        "its CPU time, over the best TLS proxy",
        &["userspace-vs-kernel: tcp-1.cpu-machine, *"],
    ),
    (
        "8 connections, over the best TLS proxy",
        &["userspace-vs-kernel: tcp-8, *"],
    ),
    (
        "HTTP of 1 KB, p50 and p99, over the best TLS proxy",
        &["userspace-vs-kernel: http-1k-1000.p*"],
    ),
    (
        "HTTP of 64 KB, p50 and p99, over the best TLS proxy",
        &["userspace-vs-kernel: http-64k-1000.p*"],
    ),
    (
        "under BBR: one connection, over the best TLS proxy",
        &["userspace-vs-kernel: tcp-1-bbr, *"],
    ),
    (
        "under BBR: its CPU time, over the best TLS proxy",
        &["userspace-vs-kernel: tcp-1-bbr.cpu-machine, *"],
    ),
    (
        "under BBR: 8 connections, over the best TLS proxy",
        &["userspace-vs-kernel: tcp-8-bbr, *"],
    ),
    (
        "under BBR: HTTP of 1 KB, over the best TLS proxy",
        &["userspace-vs-kernel: http-1k-1000-bbr.p*"],
    ),
    (
        "under BBR: HTTP of 64 KB, over the best TLS proxy",
        &["userspace-vs-kernel: http-64k-1000-bbr.p*"],
    ),
    (
        "UDP of 64 to 1518 octets, over the best other",
        &["pfsense: udp-*"],
    ),
    (
        "UDP forwarded by 4 tunnels, over wireguard-go",
        &[
            "forwarded, four tunnels: adit against wireguard-go",
            "pfsense: forwarded-4, adit / wireguard-go",
        ],
    ),
    (
        "UDP forwarded by 4 tunnels, over Tailscale's fork",
        &[
            "forwarded, four tunnels: adit against tailscale",
            "pfsense: forwarded-4, adit / tailscale",
        ],
    ),
    (
        "medians of a run within the range of another, %",
        &["medians within the range of the other's rounds"],
    ),
    (
        "a stream beside a flood to a slow peer, over one alone",
        &["slow: stream_ratio"],
    ),
    (
        "longest time without an answer to pings, ms",
        &["slow: ping_beside_gap"],
    ),
    (
        "4 interfaces over one: throughput",
        &["four-tunnels: four_tunnels_ratio"],
    ),
    (
        "4 interfaces over one: CPU time",
        &["four-tunnels: four_cpu_ratio"],
    ),
    (
        "4 interfaces over one: memory",
        &["four-tunnels: four_memory_ratio"],
    ),
    (
        "Jain's index of TCP to and from 2, 8 and 64 peers",
        &["peers-*: jain", "peers-*: jain_back"],
    ),
    (
        "64 connections of one peer, over 1 of another",
        &["peers-2: share_ratio", "peers-2: share_ratio_back"],
    ),
    (
        "UDP received at twice the most, over the most: one way",
        &["overload: goodput_at_twice_ratio"],
    ),
    (
        "UDP received at twice the most, over the most: both ways",
        &["overload-both: goodput_at_twice_ratio"],
    ),
    (
        "UDP received at twice the most, over the best other",
        &[
            "overload: goodput_at_twice",
            "overload-both: goodput_at_twice",
        ],
    ),
    (
        "UDP 1368 B from 1,000 active peers, over the best other",
        &["peers-active-1000: from_peers_1368"],
    ),
    (
        "UDP 1368 B to 1,000 active peers, over the best other",
        &["peers-active-1000: to_peers_1368"],
    ),
    (
        "UDP 1368 B from 10,000 active peers, over one peer",
        &["peers-active-10000: from_peers_1368"],
    ),
    (
        "UDP 1368 B to 10,000 active peers, over one peer",
        &["peers-active-10000: to_peers_1368"],
    ),
    (
        "longest gap of hand-overs with 1,000 peers, ms",
        &["longest gap"],
    ),
    ("hand-overs in that run", &["hand-overs"]),
    (
        "handshakes, datagrams lost or delivered twice in it",
        &[
            "handshake messages",
            "datagrams lost",
            "datagrams delivered twice",
        ],
    ),
    (
        "wake-ups a second, 1 and 1,000 silent peers",
        &["wake-ups, *"],
    ),
    (
        "memory on a quarter of a CPU, MiB",
        &["memory on a small router"],
    ),
    (
        "engine in memory, threads over one: to one peer",
        &["memory, to one peer: auto against one thread"],
    ),
    (
        "engine in memory, threads over one: to 64 peers",
        &["memory, to 64 peers: auto against one thread"],
    ),
    (
        "engine in memory, threads over one: from one peer",
        &["memory, from one peer: auto against one thread"],
    ),
    (
        "engine in memory, threads over one: from 64 peers",
        &["memory, from 64 peers: auto against one thread"],
    ),
    (
        "`auto` over the better policy: least throughput",
        &["tunnels: auto against the better policy, least throughput of all loads"],
    ),
    (
        "`auto` over the better policy: most CPU time",
        &["tunnels: auto against the better policy, most CPU time of all loads"],
    ),
    (
        "model: 1 tunnel on 8 cores, over one thread",
        &["model: one tunnel on 8 cores over one thread"],
    ),
    (
        "model: 16 tunnels on 32 cores, over one thread",
        &["model: 16 tunnels on 32 cores over one thread"],
    ),
    (
        "greatest error of the model, in memory, %",
        &["model, memory: greatest error"],
    ),
    (
        "greatest error of the model, real tunnels, %",
        &["model, tunnels: greatest error"],
    ),
    (
        "a stream under forged messages, over one alone",
        &[
            "one-source: stream_kept",
            "sources: stream_kept",
            "wrong-mac1: stream_kept",
            "cookies: stream_kept",
            "unknown-indices: stream_kept",
            "replays: stream_kept",
        ],
    ),
    (
        "a stream under a flood of bad tags, over one alone",
        &["bad-tags: stream_kept"],
    ),
    ("pings' p99 under any flood, ms", &["*: ping_p99"]),
    (
        "new peers, of 20, that connect under any flood",
        &["*: connected"],
    ),
    (
        "growth of memory under any flood, MiB",
        &["*: memory_growth"],
    ),
];

/// Claims that no file has now: the first cell of a row, and its goal.
const BY_HAND: &[(&str, &str)] = &[
    ("one TCP stream, over Adit without encryption", "≥ 0.75 ×"),
    ("1,000 interfaces: start, s", "≤ 10"),
    ("1,000 interfaces: memory, MiB", "≤ 250"),
    ("1,000 interfaces: threads, on 2 CPUs", "≤ 6"),
    ("500,000 peers: load, s", "≤ 15"),
    ("500,000 peers: memory of each, KiB", "≤ 2"),
    ("500,000 peers: `wg show dump`, s", "≤ 3"),
    ("500,000 peers: handshakes per CPU second", "≥ 4,000"),
    (
        "500,000 peers: time without a ping, load and rekeys, ms",
        "≤ 50",
    ),
    (
        "look-up of a peer, 500,000 over 10: in turn, at random",
        "≤ 1.5 ×",
    ),
    ("handshakes answered a second, protocol alone", "≥ 4,000"),
    ("handshakes answered a second, one core", "≥ 3,000"),
    ("10,000 silent peers watched: CPU, ms/s", "≤ 20"),
    ("10,000 silent peers watched: memory, MiB", "≤ 20"),
    ("longest delay of an event, ms", "≤ 100"),
    ("with the sandbox, over before it: TCP", "as before"),
    ("with the sandbox, over before it: CPU time", "as before"),
    ("with the sandbox, over before it: UDP", "as before"),
    ("with the sandbox, over before it: idle ping", "as before"),
    (
        "AEAD over ring (seal, open): AVX-512, 45 × 1420 B",
        "≥ 3.5 ×",
    ),
    ("AEAD over ring: AVX-512, 64 × 64 B", "≥ 5 ×"),
    ("AEAD over ring: AVX-512, 1 × 1420 B", "≥ 1.2 ×"),
    ("AEAD over ring: AVX-512, 1 × 16384 B", "≥ 1.5 ×"),
    ("AEAD over ring: AVX2, 45 × 1420 B", "≥ 1.3 ×"),
    ("AEAD over ring: 1 × 64 B", "≥ 1 ×"),
];

/// The files of all columns.
pub(super) fn files() -> Vec<String> {
    let all = PROCESSORS.iter().flat_map(|(_, files)| *files);
    all.map(|file| format!("results/{file}.json")).collect()
}

/// A goal of a results file.
struct Measured {
    value: f64,
    goal: String,
    is_met: bool,
}

/// The goals of one column by name.
type Goals = BTreeMap<String, Measured>;

/// Fills the cells that files have, marks what is missed, and fails if a goal has no row.
pub(super) fn goals(results: &[Value], table: &mut Table) -> Result<(), String> {
    let columns = columns(results)?;
    every_goal_has_a_claim(&columns)?;
    every_claim_has_a_row(table)?;
    for row in 0..table.rows.len() {
        let claim = table.rows[row][0].clone();
        fill(row, &claim, &columns, table).map_err(|why| format!("{claim}: {why}"))?;
    }
    Ok(())
}

fn every_claim_has_a_row(table: &Table) -> Result<(), String> {
    let measured = CLAIMS.iter().map(|(claim, _)| *claim);
    let all: Vec<&str> = measured
        .chain(BY_HAND.iter().map(|(claim, _)| *claim))
        .collect();
    for claim in &all {
        match table.rows.iter().filter(|row| row[0] == *claim).count() {
            1 => {}
            count => return Err(format!("the row {claim:?} is there {count} times")),
        }
    }
    let unknown = table
        .rows
        .iter()
        .find(|row| !all.contains(&row[0].as_str()));
    match unknown {
        None => Ok(()),
        Some(row) => Err(format!("no claim is called {:?}", row[0])),
    }
}

/// The goal and the cells of one row.
fn fill(row: usize, claim: &str, columns: &[Goals], table: &mut Table) -> Result<(), String> {
    if let Some((_, goal)) = BY_HAND.iter().find(|(name, _)| *name == claim) {
        table.set(row, "goal", (*goal).to_owned())?;
    }
    let known = CLAIMS.iter().find(|(name, _)| *name == claim);
    let patterns = known.map_or(&[][..], |(_, patterns)| *patterns);
    let found = columns.iter().map(|goals| worst(goals, patterns));
    let found: Vec<Option<&Measured>> = found.collect::<Result<_, _>>()?;
    if let Some(first) = found.iter().flatten().next() {
        let goal = wanted(&first.goal);
        let same = |other: &&Measured| limit(&other.goal) == limit(&goal);
        if !found.iter().flatten().all(same) {
            return Err("files differ in its goal".to_owned());
        }
        table.set(row, "goal", goal)?;
    }
    for ((processor, _), measured) in PROCESSORS.iter().zip(found) {
        let kept = table.cell(row, processor)?.to_owned();
        let text = match measured {
            Some(measured) => shown(measured),
            None => by_hand(&kept, table.cell(row, "goal")?)?,
        };
        table.set(row, processor, text)?;
    }
    let is_missed = table.rows[row].iter().any(|cell| cell.contains("**"));
    if is_missed && !table.cell(row, "why missed")?.contains('[') {
        return Err("nothing says why it is missed".to_owned());
    }
    Ok(())
}

/// The goals of each column.
fn columns(results: &[Value]) -> Result<Vec<Goals>, String> {
    let mut results = results.iter();
    let mut columns = Vec::new();
    for (_, files) in PROCESSORS {
        let mut goals = Goals::new();
        for json in results.by_ref().take(files.len()) {
            for (name, measured) in measured(json)? {
                goals.entry(name).or_insert(measured);
            }
        }
        columns.push(goals);
    }
    Ok(columns)
}

/// The goals of one file; files of `compare` from before these had a list have targets.
fn measured(json: &Value) -> Result<Vec<(String, Measured)>, String> {
    let text = |of: &Value, key: &str| of[key].as_str().unwrap_or_default().to_owned();
    let of = |goal: &Value, name: String, value: &str, is_met: bool| {
        let measured = Measured {
            value: number(goal, value)?,
            goal: text(goal, "goal"),
            is_met,
        };
        Ok((name, measured))
    };
    if let Ok(goals) = array(json, "goals") {
        let all = goals.iter();
        return all
            .map(|goal| of(goal, text(goal, "name"), "value", goal["met"] == true))
            .collect();
    }
    let targets = array(json, "targets")?.iter();
    let targets = targets.filter(|target| !target["measured"].is_null());
    targets
        .map(|target| {
            let name = match text(target, "against").as_str() {
                "–" => text(target, "measure"),
                against => format!("{}, of {against}", text(target, "measure")),
            };
            of(target, name, "measured", target["verdict"] == "pass")
        })
        .collect()
}

fn every_goal_has_a_claim(columns: &[Goals]) -> Result<(), String> {
    let patterns: Vec<&str> = CLAIMS.iter().flat_map(|(_, all)| *all).copied().collect();
    let mut names = columns.iter().flat_map(Goals::keys);
    let lost = names.find(|name| !patterns.iter().any(|pattern| matches(pattern, name)));
    match lost {
        None => Ok(()),
        Some(name) => Err(format!("no row is about the goal {name:?}")),
    }
}

/// Whether a name is the pattern, or begins and ends as it does around its `*`.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => name == pattern,
        Some((first, last)) => name
            .strip_prefix(first)
            .is_some_and(|rest| rest.ends_with(last)),
    }
}

/// Of the goals with these names, the one furthest from its limit.
fn worst<'a>(goals: &'a Goals, patterns: &[&str]) -> Result<Option<&'a Measured>, String> {
    let found = goals.iter().filter(|(name, _)| {
        let mut all = patterns.iter();
        all.any(|pattern| matches(pattern, name))
    });
    let found: Vec<&Measured> = found.map(|(_, measured)| measured).collect();
    let Some(first) = found.first() else {
        return Ok(None);
    };
    if found
        .iter()
        .any(|other| limit(&other.goal) != limit(&first.goal))
    {
        return Err("its goals have different limits".to_owned());
    }
    let by_value = |a: &&&Measured, b: &&&Measured| a.value.total_cmp(&b.value);
    let worst = match first.goal.starts_with('≥') {
        true => found.iter().min_by(by_value),
        false => found.iter().max_by(by_value),
    };
    Ok(worst.copied())
}

/// A goal as the table has it: "≥ 2.5 ×" of "≥ 2.5 × best".
fn wanted(goal: &str) -> String {
    let end = goal.find('×').map_or(goal.len(), |at| at + '×'.len_utf8());
    goal[..end].to_owned()
}

/// The sign and the number of a goal.
fn limit(goal: &str) -> Vec<&str> {
    goal.split(' ').take(2).collect()
}

/// A value with as many digits as show on which side of its limit it is.
fn shown(measured: &Measured) -> String {
    let Measured {
        value,
        ref goal,
        is_met,
    } = *measured;
    let mut places = match value {
        value if value.fract() == 0.0 || value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    let rounded = |places: usize| format!("{value:.places$}");
    while places < 6 && meets(rounded(places).parse().unwrap_or(value), goal) != is_met {
        places += 1;
    }
    match is_met {
        true => rounded(places),
        false => format!("**{}**", rounded(places)),
    }
}

/// Values that no file has, between commas, in italics.
fn by_hand(cell: &str, goal: &str) -> Result<String, String> {
    if cell.is_empty() {
        return Ok(String::new());
    }
    let text = cell.trim_matches('*');
    let numbers = text
        .split(", ")
        .map(|part| part.replace(',', "").parse::<f64>());
    let numbers = numbers.collect::<Result<Vec<f64>, _>>();
    let numbers = numbers.map_err(|_| format!("{cell} is neither of a file nor a number"))?;
    let is_missed = match goal_of(goal) {
        Some(_) => !numbers.iter().all(|&value| meets(value, goal)),
        None => cell.contains("**"),
    };
    Ok(match is_missed {
        true => format!("***{text}***"),
        false => format!("*{text}*"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(value: f64, goal: &str, is_met: bool) -> Measured {
        let goal = goal.to_owned();
        Measured {
            value,
            goal,
            is_met,
        }
    }

    #[test]
    fn a_star_stands_for_any_text() {
        assert!(matches("peers-*: jain", "peers-64: jain"));
        assert!(!matches("peers-*: jain", "peers-64: jain_back"));
        assert!(matches("hand-overs", "hand-overs"));
        assert!(!matches("tcp-1, *", "tcp-1.cpu, a / b"));
    }

    #[test]
    fn a_claim_has_the_value_that_is_furthest_from_its_limit() {
        let all = [
            ("a: low", measured(0.5, "≤ 1 ×", true)),
            ("b: low", measured(0.7, "≤ 1 ×", true)),
            ("c: high", measured(3.0, "≥ 2 × best", true)),
        ];
        let goals: Goals = all.map(|(name, it)| (name.to_owned(), it)).into();
        let found = worst(&goals, &["*: low"]).ok().flatten();
        assert_eq!(found.map(|it| it.value), Some(0.7));
        assert!(worst(&goals, &["*: low", "*: high"]).is_err());
        assert!(matches!(worst(&goals, &["none"]), Ok(None)));
    }

    #[test]
    fn digits_show_on_which_side_of_its_limit_a_value_is() {
        assert_eq!(shown(&measured(0.897_4, "≥ 0.9 ×", false)), "**0.897**");
        assert_eq!(shown(&measured(0.952_6, "≥ 0.95 ×", true)), "0.95");
        assert_eq!(shown(&measured(100.0, "≥ 100", true)), "100");
        assert_eq!(shown(&measured(23.175_2, "≤ 50 ms", true)), "23.2");
        assert_eq!(wanted("≥ 2.5 × best"), "≥ 2.5 ×");
    }

    #[test]
    fn what_no_file_has_is_in_italics_and_bold_if_it_is_missed() {
        let by_hand = |cell, goal| by_hand(cell, goal).unwrap();
        assert_eq!(by_hand("5,263", "≥ 4,000"), "*5,263*");
        assert_eq!(by_hand("*3.67, 3.4*", "≥ 3.5 ×"), "***3.67, 3.4***");
        assert_eq!(by_hand("***1.09***", "as before"), "***1.09***");
        assert_eq!(by_hand("", "≥ 3.5 ×"), "");
    }
}
