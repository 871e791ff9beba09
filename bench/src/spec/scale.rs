//! Tables of `scale`.

use adit_testbed::stats::quantile;
use serde_json::Value;

use super::Table;
use super::tables::{
    ALL, MISSED, array, columns, entry, files, goal, limit, meets, number, row, shown, title,
    verdict,
};

pub(super) fn engine_in_memory(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    let memory = array(json, "memory")?;
    let row = |load: &str, policy: &str| {
        row(memory, [("load", &load.into()), ("policy", &policy.into())])
    };
    let [auto, pipeline] = ["auto", "pipeline"].map(|policy| {
        let threads = match &row("to one peer", policy)?["threads"] {
            two if *two == 2 => "two".to_owned(),
            threads => threads.to_string(),
        };
        Ok::<_, String>(format!("`{policy}`, {threads} threads"))
    });
    table.begin([
        "packets",
        "one thread, Gb/s",
        &auto?,
        "ratio",
        &pipeline?,
        "goal",
    ]);
    for load in [
        "to one peer",
        "to 64 peers",
        "from one peer",
        "from 64 peers",
    ] {
        let gbps = |policy: &str| number(&row(load, policy)?["gbps"], "median");
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

pub(super) fn real_tunnels(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    table.begin([
        "tunnels, flows",
        "`inline`",
        "`pipeline`",
        "`auto`",
        "CPU s/GB of both ends, `inline`, `auto`",
    ]);
    let all = array(json, "tunnels")?;
    for first in all.iter().filter(|row| row["policy"] == "inline") {
        let (tunnels, flows) = (&first["tunnels"], &first["flows"]);
        let of = |policy: &str| {
            row(
                all,
                [
                    ("tunnels", tunnels),
                    ("flows", flows),
                    ("policy", &policy.into()),
                ],
            )
        };
        let rate = |policy: &str| -> Result<String, String> {
            let row = of(policy)?;
            let [with, alone] = ["gbps", "gbps_alone"].map(|key| number(&row[key], "median"));
            Ok(format!("{:.2} ({:.2})", with?, alone?))
        };
        let cpu = |policy: &str| -> Result<String, String> {
            let row = of(policy)?;
            Ok(format!("{:.2}", both_ends(row)?))
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

/// CPU seconds of both ends' daemons for each GB.
fn both_ends(row: &Value) -> Result<f64, String> {
    let [sender, receiver] = ["sender_cpu_s_per_gb", "receiver_cpu_s_per_gb"];
    Ok(number(&row[sender], "median")? + number(&row[receiver], "median")?)
}

pub(super) fn loads(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    table.begin(["offered, Gb/s", "`inline`", "`pipeline`", "`auto`"]);
    let all = array(json, "loads")?;
    for first in all.iter().filter(|row| row["policy"] == "inline") {
        let offered = &first["offered_gbps"];
        let cell = |policy: &str| -> Result<String, String> {
            let row = row(all, [("policy", &policy.into()), ("offered_gbps", offered)])?;
            let gbps = number(&row["gbps"], "median")?;
            Ok(format!("{gbps:.2}, {:.2}", both_ends(row)?))
        };
        let offered = format!("{:.1}", number(first, "offered_gbps")?);
        let row = [offered, cell("inline")?, cell("pipeline")?, cell("auto")?];
        table.rows.push(row.to_vec());
    }
    Ok(())
}

pub(super) fn forwarded(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    let all = array(json, "forwarded")?;
    let who = [&["direct"], &ALL[..]].concat();
    table.begin(columns(
        &["both directions, Gb/s", "no tunnel"],
        &ALL,
        &["goal"],
    ));
    let cell = |who: &str, tunnels: u64, key: &str, digits: usize| -> Result<String, String> {
        let wanted = [
            ("implementation", &who.into()),
            ("tunnels", &tunnels.into()),
        ];
        Ok(shown(row(all, wanted)?[key]["median"].as_f64(), digits))
    };
    let row = |name: &str, tunnels, key, digits, goal: String| -> Result<Vec<String>, String> {
        let cells = who.iter().map(|who| cell(who, tunnels, key, digits));
        let cells = cells.collect::<Result<Vec<String>, String>>()?;
        let name = vec![name.to_owned()];
        Ok(name.into_iter().chain(cells).chain([goal]).collect())
    };
    let goals = ["wireguard-go", "tailscale"].map(|other| {
        let name = format!("forwarded, four tunnels: adit against {other}");
        let goal = goal(json, &name)?;
        let value = number(goal, "value")?;
        let text = format!(
            "{value:.2} × {}, ≥ {}{}",
            title(other),
            limit(goal),
            verdict(goal)
        );
        Ok::<_, String>(text)
    });
    let goals = goals.into_iter().collect::<Result<Vec<String>, String>>()?;
    table.rows = vec![
        row("one tunnel", 1, "gbps", 2, String::new())?,
        row("four tunnels", 4, "gbps", 2, goals.join("; "))?,
        row(
            "daemons' CPU time a packet, four tunnels, µs",
            4,
            "cpu_us_per_packet",
            1,
            String::new(),
        )?,
    ];
    Ok(())
}

pub(super) fn stages(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    table.begin(["", "take", "work", "put", "polls"]);
    let stages = array(json, "stages")?;
    for (direction, load) in [("outbound", "to one peer"), ("inbound", "from one peer")] {
        for (devices, name) in [("memory", "in memory"), ("kernel", "the kernel's devices")] {
            let row = row(
                stages,
                [("load", &load.into()), ("devices", &devices.into())],
            )?;
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

pub(super) fn model(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    let first = ["`auto`, Gb/s", "1 core"].map(str::to_owned).into_iter();
    let cores = CORES[1..].iter().map(u64::to_string);
    let last = ["over one thread", "goal"].map(str::to_owned);
    table.begin(first.chain(cores).chain(last));
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
            number(
                row(array(line, "points")?, [("at", &cores.into())])?,
                "gbps",
            )
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
        // The goal is for the lesser of both directions.
        let (times, goal) = match (title, small) {
            (_, true) => {
                let times = at(8)? / at(1)?;
                let wanted = format!("≥ {}", limit(one_tunnel));
                let missed = if meets(times, &wanted) { "" } else { MISSED };
                (
                    format!("8 cores: {times:.2} ×"),
                    format!("{wanted}{missed}"),
                )
            }
            ("16 tunnels outbound", _) => (
                format!("32 cores: {:.1} × without the link", number(many, "value")?),
                format!("≥ {}{}", limit(many), verdict(many)),
            ),
            _ => (String::new(), String::new()),
        };
        row.extend([times, goal]);
        table.rows.push(row);
    }
    Ok(())
}

pub(super) fn model_errors(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    table.begin(["error of the model", "in the middle", "greatest", "goal"]);
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
