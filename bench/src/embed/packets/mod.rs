//! What it costs to seal and to open a packet, without I/O: Adit's device and trains of Adit's, beside
//! boringtun's `Tunn`.
//!
//! Stages: two ends of each implementation shake hands → rounds in which every way passes packets
//! of each length, in an order that changes → medians and ratios.

mod adit;
mod boringtun;

use std::fmt::Write as _;

use nix::time::ClockId;
use serde::Serialize;

use adit_testbed::interrupt;
use adit_testbed::stats::to_f64;

use crate::goals::{GoalResult, Limit};
use crate::sandbox::Failure;
use crate::stats::{self, Ratio, Summary};

/// The smallest packet of a bulk transfer with its acknowledgements, and the longest in a tunnel.
const LENS: [usize; 2] = [64, 1420];
/// The packets of a full GSO packet.
const TRAIN: usize = 45;
/// Packets between two looks at the clock.
const PACKETS: usize = 40 * TRAIN;

/// A way to seal a packet and open it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
enum Way {
    #[serde(rename = "boringtun Tunn")]
    Tunn,
    #[serde(rename = "adit, one packet")]
    One,
    #[serde(rename = "adit, trains of 45")]
    Trains,
}

const WAYS: [Way; 3] = [Way::Tunn, Way::One, Way::Trains];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Tunn => "boringtun Tunn",
            Self::One => "adit, one packet",
            Self::Trains => "adit, trains of 45",
        }
    }

    /// How many times as fast as boringtun it is to be.
    fn goal(self) -> Option<f64> {
        match self {
            Self::Tunn => None,
            Self::One => Some(1.3),
            Self::Trains => Some(2.3),
        }
    }
}

/// One way at one length.
#[derive(Serialize)]
pub(super) struct Row {
    way: Way,
    len: usize,
    ns: Summary,
    /// As boringtun; None for itself.
    faster: Option<Ratio>,
}

/// Both ends of each implementation.
struct Ends {
    tunn: boringtun::Ends,
    adit: adit::Ends,
}

impl Ends {
    /// Seals and opens [`PACKETS`] packets.
    fn pass(&mut self, way: Way, packet: &[u8]) -> Result<(), Failure> {
        match way {
            Way::Tunn => (0..PACKETS).try_for_each(|_| self.tunn.pass(packet)),
            Way::One => (0..PACKETS).try_for_each(|_| self.adit.pass(packet)),
            Way::Trains => (0..PACKETS / TRAIN).try_for_each(|_| self.adit.pass_train(packet)),
        }
    }
}

/// All ways at each length.
pub(super) fn measure(rounds: u16) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for len in LENS {
        rows.extend(measure_len(len, rounds)?);
    }
    Ok(rows)
}

/// All ways at one length.
fn measure_len(len: usize, rounds: u16) -> Result<Vec<Row>, Failure> {
    let packet = packet(len)?;
    let mut ends = Ends {
        tunn: boringtun::Ends::connected()?,
        adit: adit::Ends::connected()?,
    };
    let mut ns = [const { Vec::new() }; WAYS.len()];
    for round in 0..usize::from(rounds) {
        interrupt::check()?;
        for turn in 0..WAYS.len() {
            let number = (turn + round) % WAYS.len();
            // The first run is for caches and branch predictors, which the others left cold.
            ends.pass(WAYS[number], &packet)?;
            let before = cpu_ns()?;
            ends.pass(WAYS[number], &packet)?;
            ns[number].push((cpu_ns()? - before) / to_f64(PACKETS));
        }
    }
    let of_tunn = &ns[0];
    let rows = WAYS.into_iter().zip(&ns).map(|(way, ns)| {
        // The time of boringtun over ours is how many times as fast we are.
        let pairs: Vec<_> = of_tunn.iter().copied().zip(ns.iter().copied()).collect();
        Some(Row {
            way,
            len,
            ns: stats::summary(ns)?,
            faster: way.goal().and(stats::ratio(&pairs)),
        })
    });
    rows.collect::<Option<_>>()
        .ok_or_else(|| "no round was measured".into())
}

/// The CPU time of this thread.
fn cpu_ns() -> Result<f64, Failure> {
    let spent = ClockId::CLOCK_THREAD_CPUTIME_ID.now()?;
    Ok(std::time::Duration::from(spent).as_secs_f64() * 1e9)
}

/// An IPv4 packet from the first end to the second.
fn packet(len: usize) -> Result<Vec<u8>, Failure> {
    let mut packet = vec![0x5a; len];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&u16::try_from(len)?.to_be_bytes());
    packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    Ok(packet)
}

/// How many times as fast as boringtun each way is.
pub(super) fn goals(results: &[Row]) -> Vec<GoalResult> {
    let judged = results.iter().filter_map(|row| {
        let (goal, ratio) = (row.way.goal()?, row.faster?);
        let name = format!("{}, {} B, of boringtun", row.way.name(), row.len);
        Some(GoalResult::new(
            name,
            ratio.value,
            Limit::AtLeast(goal),
            " ×",
        ))
    });
    judged.collect()
}

/// The table; nothing of nothing.
pub(super) fn text(rows: &[Row]) -> String {
    let Some(rounds) = rows.first().map(|row| row.ns.rounds) else {
        return String::new();
    };
    let mut out = format!(
        "Adit's AEAD is {} here; {rounds} rounds\n\n{:20}{:>8}{:>14}{:>14}{:>20}\n",
        adit_aead::implementation(),
        "seal + open",
        "bytes",
        "ns, median",
        "range",
        "× boringtun (95 %)"
    );
    for row in rows {
        let ns = row.ns;
        let range = format!("{:.0}–{:.0}", ns.min, ns.max);
        let faster = row.faster.map_or_else(String::new, |ratio| {
            format!("{:.2} ({:.2}–{:.2})", ratio.value, ratio.low, ratio.high)
        });
        let (way, len) = (row.way.name(), row.len);
        let _ = writeln!(
            out,
            "{way:20}{len:>8}{:>14.0}{range:>14}{faster:>20}",
            ns.median
        );
    }
    out + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_passes_packets_of_each_length() {
        let rows = measure(1).unwrap();
        for (rows, len) in rows.chunks(WAYS.len()).zip(LENS) {
            let ways: Vec<_> = rows.iter().map(|row| row.way).collect();
            assert_eq!(ways, WAYS);
            assert!(rows.iter().all(|row| row.len == len && row.ns.median > 0.0));
            assert_eq!(goals(rows).len(), 2);
        }
        assert!(text(&rows).contains("boringtun Tunn"));
        assert_eq!(text(&[]), "");
    }

    #[test]
    fn a_way_that_takes_half_the_time_is_twice_as_fast() {
        let pairs = [(400.0, 200.0), (402.0, 201.0)];
        let row = Row {
            way: Way::One,
            len: 64,
            ns: stats::summary(&[200.0, 201.0]).unwrap(),
            faster: stats::ratio(&pairs),
        };
        let goals = goals(&[row]);
        assert_eq!(goals[0].value, Some(2.0));
        assert!(goals[0].met);
    }
}
