//! Which tables there are, and what they are made with.

use serde_json::Value;

use super::{Table, gateway, measured, ratios, reproduced, scale};
use crate::goals::Limit;

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
const REPORT: &str = "bench/REPORT.md";

/// Those of one document stand together.
#[rustfmt::skip]
pub(super) const TABLES: [Known; 32] = [
    known(SPEC, Extent::Part, "goals", ratios::goals),
    known(REPORT, Extent::Part, "speed", measured::speed),
    known(REPORT, Extent::Whole, "published", reproduced::published),
    known(REPORT, Extent::Whole, "ideas of 2022", reproduced::ideas_of_2022),
    known(REPORT, Extent::Whole, "ideas of 2023", reproduced::ideas_of_2023),
    known(REPORT, Extent::Whole, "checksum", reproduced::checksum),
    known(REPORT, Extent::Whole, "beside TLS", reproduced::tls),
    known(REPORT, Extent::Whole, "beside IPsec", reproduced::ipsec),
    known(REPORT, Extent::Whole, "beside TLS, cubic and BBR", reproduced::tls_congestion),
    known(REPORT, Extent::Whole, "beside IPsec, cubic and BBR", reproduced::ipsec_congestion),
    known(REPORT, Extent::Whole, "reproduced goals", reproduced::goals),
    known(REPORT, Extent::Whole, "reproduced goals, Xeon", reproduced::goals),
    known(REPORT, Extent::Whole, "two runs", reproduced::two_runs),
    known(REPORT, Extent::Whole, "slow peer", gateway::slow_peer),
    known(REPORT, Extent::Whole, "fair shares", gateway::fair_shares),
    known(REPORT, Extent::Whole, "overload", gateway::overload),
    known(REPORT, Extent::Whole, "active peers", gateway::active_peers),
    known(REPORT, Extent::Part, "hand-overs", measured::hand_overs),
    known(REPORT, Extent::Whole, "silent", measured::silent),
    known(REPORT, Extent::Whole, "engine in memory", scale::engine_in_memory),
    known(REPORT, Extent::Whole, "real tunnels", scale::real_tunnels),
    known(REPORT, Extent::Whole, "loads", scale::loads),
    known(REPORT, Extent::Whole, "forwarded", scale::forwarded),
    known(REPORT, Extent::Whole, "stages", scale::stages),
    known(REPORT, Extent::Whole, "model", scale::model),
    known(REPORT, Extent::Whole, "errors of the model", scale::model_errors),
    known(REPORT, Extent::Whole, "engine in memory, 16 CPUs", scale::engine_in_memory),
    known(REPORT, Extent::Whole, "real tunnels, 16 CPUs", scale::real_tunnels),
    known(REPORT, Extent::Whole, "forwarded, 16 CPUs", scale::forwarded),
    known(REPORT, Extent::Whole, "compared, 16 CPUs", measured::compared),
    known(REPORT, Extent::Whole, "floods", measured::floods),
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

/// "≥ 0.95" or "≤ 4,000 ms" at the beginning of a cell.
pub(super) fn goal_of(cell: &str) -> Option<Limit> {
    let (sign, rest) = cell.split_once(' ')?;
    let end = rest.find(|c: char| !matches!(c, '0'..='9' | '.' | ','));
    let number = rest[..end.unwrap_or(rest.len())].trim_end_matches(',');
    let number = number.replace(',', "").parse().ok()?;
    match sign {
        "≥" => Some(Limit::AtLeast(number)),
        "≤" => Some(Limit::AtMost(number)),
        _ => None,
    }
}

/// True where there is no goal, too.
pub(super) fn meets(value: f64, goal: &str) -> bool {
    goal_of(goal).is_none_or(|limit| limit.is_met(value))
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

/// The row of a list that has all of these.
pub(super) fn row<'a, const N: usize>(
    list: &'a [Value],
    wanted: [(&str, &Value); N],
) -> Result<&'a Value, String> {
    let mut rows = list.iter();
    let row = rows.find(|row| wanted.iter().all(|(key, value)| row[*key] == **value));
    row.ok_or_else(|| format!("the file has no row with {wanted:?}"))
}

/// A value, where there is one.
pub(super) fn shown(value: Option<f64>, places: usize) -> String {
    value.map_or_else(String::new, |value| format!("{value:.places$}"))
}

/// The names of columns: a column for each of these implementations between the others.
pub(super) fn columns(first: &[&str], who: &[&str], last: &[&str]) -> Vec<String> {
    let owned = |texts: &[&str]| {
        texts
            .iter()
            .map(|text| (*text).to_owned())
            .collect::<Vec<_>>()
    };
    [
        owned(first),
        who.iter().map(|who| title(who)).collect(),
        owned(last),
    ]
    .concat()
}

pub(super) const OTHERS: [&str; 4] = ["wireguard-go", "tailscale", "boringtun", "gotatun"];
/// With Adit.
pub(super) const ALL: [&str; 5] = [OTHERS[0], OTHERS[1], OTHERS[2], OTHERS[3], "adit"];

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
        assert!(meets(4_001.0, "≥ 4,000") && !meets(3_999.0, "≥ 4,000 a second"));
    }
}
