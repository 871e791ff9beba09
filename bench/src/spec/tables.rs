//! Which tables there are, and what they are made with.

use serde_json::Value;

use super::{Table, measured, reproduced, scale};

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
pub(super) const TABLES: [Known; 30] = [
    known(SPEC, Extent::Part, "speed", measured::speed),
    known(
        SPEC,
        Extent::Whole,
        "ideas of 2022",
        reproduced::ideas_of_2022,
    ),
    known(
        SPEC,
        Extent::Whole,
        "ideas of 2023",
        reproduced::ideas_of_2023,
    ),
    known(SPEC, Extent::Whole, "checksum", reproduced::checksum),
    known(SPEC, Extent::Whole, "beside TLS", reproduced::tls),
    known(SPEC, Extent::Whole, "beside IPsec", reproduced::ipsec),
    known(
        SPEC,
        Extent::Whole,
        "beside TLS, cubic and BBR",
        reproduced::tls_congestion,
    ),
    known(
        SPEC,
        Extent::Whole,
        "beside IPsec, cubic and BBR",
        reproduced::ipsec_congestion,
    ),
    known(SPEC, Extent::Whole, "reproduced goals", reproduced::goals),
    known(
        SPEC,
        Extent::Whole,
        "reproduced goals, Xeon",
        reproduced::goals,
    ),
    known(SPEC, Extent::Whole, "two runs", reproduced::two_runs),
    known(SPEC, Extent::Whole, "slow peer", measured::slow_peer),
    known(SPEC, Extent::Whole, "fair shares", measured::fair_shares),
    known(SPEC, Extent::Whole, "overload", measured::overload),
    known(SPEC, Extent::Whole, "active peers", measured::active_peers),
    known(SPEC, Extent::Part, "hand-overs", measured::hand_overs),
    known(SPEC, Extent::Whole, "silent", measured::silent),
    known(
        SPEC,
        Extent::Whole,
        "engine in memory",
        scale::engine_in_memory,
    ),
    known(SPEC, Extent::Whole, "real tunnels", scale::real_tunnels),
    known(SPEC, Extent::Whole, "loads", scale::loads),
    known(SPEC, Extent::Whole, "forwarded", scale::forwarded),
    known(SPEC, Extent::Whole, "stages", scale::stages),
    known(SPEC, Extent::Whole, "model", scale::model),
    known(
        SPEC,
        Extent::Whole,
        "errors of the model",
        scale::model_errors,
    ),
    known(
        SPEC,
        Extent::Whole,
        "engine in memory, 16 CPUs",
        scale::engine_in_memory,
    ),
    known(
        SPEC,
        Extent::Whole,
        "real tunnels, 16 CPUs",
        scale::real_tunnels,
    ),
    known(SPEC, Extent::Whole, "forwarded, 16 CPUs", scale::forwarded),
    known(SPEC, Extent::Whole, "compared, 16 CPUs", measured::compared),
    known(SPEC, Extent::Whole, "floods", measured::floods),
    known("README.md", Extent::Part, "machines", measured::machines),
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

pub(super) const MISSED: &str = ", **missed**";

/// The files, if there are as many as there are to be.
pub(super) fn files<const N: usize>(results: &[Value]) -> Result<&[Value; N], String> {
    let count = results.len();
    let all = results.try_into();
    all.map_err(|_| format!("it names {count} files, and {N} are wanted"))
}

pub(super) fn array<'a>(json: &'a Value, name: &str) -> Result<&'a [Value], String> {
    let array = json[name].as_array().map(Vec::as_slice);
    array.ok_or_else(|| format!("the file has no {name}"))
}

/// The entry of a list whose `key` is `wanted`.
pub(super) fn entry<'a>(list: &'a [Value], key: &str, wanted: &str) -> Result<&'a Value, String> {
    let found = list.iter().find(|of| of[key] == wanted);
    found.ok_or_else(|| format!("the file has no {key} {wanted:?}"))
}

pub(super) fn number(json: &Value, name: &str) -> Result<f64, String> {
    let number = json[name].as_f64();
    number.ok_or_else(|| format!("the file has no number {name}"))
}

/// The median of one implementation, where the measure has it.
pub(super) fn median(measure: &Value, who: &str) -> Option<f64> {
    measure["implementations"][who]["median"].as_f64()
}

pub(super) fn metric(json: &Value, id: &str, who: &str) -> Result<f64, String> {
    let metric = entry(array(json, "metrics")?, "id", id)?;
    median(metric, who).ok_or_else(|| format!("{who} has no {id}"))
}

/// With commas between thousands.
pub(super) fn fixed(value: f64, places: usize) -> String {
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
pub(super) fn meets(value: f64, goal: &str) -> bool {
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
pub(super) fn goal<'a>(json: &'a Value, name: &str) -> Result<&'a Value, String> {
    entry(array(json, "goals")?, "name", name)
}

/// Nothing where a goal of the file is met.
pub(super) fn verdict(goal: &Value) -> &'static str {
    match goal["met"] == true {
        true => "",
        false => MISSED,
    }
}

/// The limit of a goal, without its sign and unit.
pub(super) fn limit(goal: &Value) -> String {
    let text = goal["goal"].as_str().unwrap_or_default();
    text.split(' ').nth(1).unwrap_or_default().to_owned()
}

pub(super) fn strings<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).to_vec()
}

pub(super) const OTHERS: [&str; 4] = ["wireguard-go", "tailscale", "boringtun", "gotatun"];

/// As the documents call it.
pub(super) fn title(who: &str) -> String {
    match who {
        "tailscale" => "Tailscale's fork".to_owned(),
        "adit" => "Adit".to_owned(),
        who => who.to_owned(),
    }
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
