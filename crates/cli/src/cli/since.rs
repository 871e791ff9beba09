//! A time in the past, as a person types it.

use std::str::FromStr;
use std::time::Duration;

/// Since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// So long ago.
    Ago(Duration),
    /// A date and a time, as `2026-11-29 12:00:00`.
    At {
        /// As journalctl(1) reads it.
        text: String,
        /// Not of this host's time zone.
        is_utc: bool,
    },
}

impl FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = ago(text).or_else(|| at(text));
        found.ok_or_else(|| "expected 30m, 1h, 2d, 2026-11-29 or 2026-11-29T12:00".into())
    }
}

fn digits(text: &str) -> Option<u32> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

fn ago(text: &str) -> Option<Since> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return None,
    };
    let seconds = u64::from(digits(number)?) * seconds;
    Some(Since::Ago(Duration::from_secs(seconds)))
}

fn at(text: &str) -> Option<Since> {
    let (text, is_utc) = match text.strip_suffix('Z') {
        Some(text) => (text, true),
        None => (text, false),
    };
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00"));
    let fields = |text: &str, separator, lengths: &[usize]| -> Option<Vec<u32>> {
        let words: Vec<&str> = text.split(separator).collect();
        let is_right = words
            .iter()
            .map(|word| word.len())
            .eq(lengths.iter().copied());
        is_right.then(|| words.into_iter().map(digits).collect::<Option<_>>())?
    };
    let date = fields(date, '-', &[4, 2, 2])?;
    let time = fields(time, ':', &[2, 2, 2]).or_else(|| {
        let mut time = fields(time, ':', &[2, 2])?;
        time.push(0);
        Some(time)
    })?;
    let [year, month, day, hour, minute, second] =
        [date[0], date[1], date[2], time[0], time[1], time[2]];
    let is_real = (1970..).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    let text = format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}");
    is_real.then_some(Since::At { text, is_utc })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_spans_or_dates_and_nothing_else() {
        let ago = |seconds| Ok(Since::Ago(Duration::from_secs(seconds)));
        assert_eq!("90s".parse(), ago(90));
        assert_eq!("1h".parse(), ago(3600));
        assert_eq!("2w".parse(), ago(1_209_600));
        let at = |text: &str, is_utc| {
            let text = text.to_owned();
            Ok(Since::At { text, is_utc })
        };
        assert_eq!("2026-11-29".parse(), at("2026-11-29 00:00:00", false));
        assert_eq!("2026-11-29T12:00".parse(), at("2026-11-29 12:00:00", false));
        assert_eq!(
            "2026-11-29 12:00:07Z".parse(),
            at("2026-11-29 12:00:07", true)
        );
        for wrong in [
            "",
            "h",
            "-1h",
            "+1h",
            "1",
            "1y",
            "é",
            "now",
            "--file=x",
            "2026-11",
            "2026-13-01",
            "2026-11-29T24:00",
            "2026-11-29T1:00",
            "2026-11-29T12",
            "99999999999s",
        ] {
            wrong.parse::<Since>().expect_err(wrong);
        }
    }
}
