//! Two gateways with one tunnel between them and with four: UDP in both directions, counted behind them.
//!
//! The measurement that this follows ("WireGuard in pfSense 2.5 Performance") had generators and
//! gateways of their own; here all share the cores of one machine.

use std::collections::BTreeMap;

use adit_testbed::interrupt;
use serde::Serialize;

use crate::goals::{GoalResult, Limit};
use crate::implementation::{Entry, Implementation};
use crate::install;
use crate::sandbox::Failure;
use crate::sites::{Forwarded, PACKET, Sites};
use crate::stats::{Summary, ratio, summary};

/// Tunnels between the gateways.
const TUNNELS: [u8; 2] = [1, 4];

/// What one implementation forwards.
#[derive(Serialize)]
pub(super) struct Row {
    implementation: &'static str,
    version: String,
    tunnels: u8,
    /// IP packets that arrived, both directions together.
    pub(super) gbps: Summary,
    /// What was offered then.
    offered_gbps: Summary,
    /// Of the daemons of both gateways, for each packet.
    cpu_us_per_packet: Option<Summary>,
    /// Of what the same links forward without a tunnel, less framing.
    of_theory: Option<f64>,
}

/// What the rounds bring.
pub(super) struct Measured {
    entries: Vec<Entry>,
    left_out: install::LeftOut,
    /// By implementation and tunnels, by round.
    samples: BTreeMap<(Implementation, u8), BTreeMap<u16, Forwarded>>,
}

impl Measured {
    /// Of nothing.
    pub(super) const fn nothing() -> Self {
        Self {
            entries: Vec::new(),
            left_out: Vec::new(),
            samples: BTreeMap::new(),
        }
    }

    /// Of Adit, of every other implementation that is there or can be built, and of no tunnel at all.
    pub(super) fn find(adit: &Entry) -> Result<Self, Failure> {
        let (mut entries, left_out) = install::find_all(&Implementation::PEERS, None)
            .or_else(|_| Ok::<_, Failure>((Vec::new(), Vec::new())))?;
        entries.insert(0, install::find(Implementation::Direct, None)?);
        entries.push(adit.clone());
        Ok(Self {
            entries,
            left_out,
            samples: BTreeMap::new(),
        })
    }

    /// Measures everything once.
    pub(super) fn round(&mut self, round: u16, rounds: u16) -> Result<(), Failure> {
        for tunnels in TUNNELS {
            eprint!("round {round} of {rounds}: forwarded, {tunnels} tunnels:");
            for entry in install::order(&self.entries, round.into()) {
                interrupt::check()?;
                let name = entry.who.name();
                match Sites::new(&entry, tunnels).and_then(|sites| sites.most()) {
                    Ok(forwarded) => {
                        eprint!(" {name} {:.2}", forwarded.gbps());
                        let of = self.samples.entry((entry.who, tunnels)).or_default();
                        of.insert(round, forwarded);
                    }
                    Err(why) if interrupt::interrupted() => return Err(why),
                    Err(why) if entry.who == Implementation::Adit => {
                        return Err(format!("forwarded, {tunnels} tunnels: {why}").into());
                    }
                    // The others stay in the table without it.
                    Err(why) => eprint!(" {name} ({why})"),
                }
            }
            eprintln!(" Gb/s");
        }
        Ok(())
    }

    pub(super) fn rows(&self) -> Vec<Row> {
        let of = |who: Implementation, tunnels: u8| -> Vec<Forwarded> {
            let samples = self.samples.get(&(who, tunnels));
            samples.map_or_else(Vec::new, |of| of.values().copied().collect())
        };
        let mut rows = Vec::new();
        for (entry, tunnels) in self
            .entries
            .iter()
            .flat_map(|entry| TUNNELS.map(|tunnels| (entry, tunnels)))
        {
            let samples = of(entry.who, tunnels);
            let all = |value: fn(&Forwarded) -> f64| {
                let values: Vec<f64> = samples.iter().map(value).collect();
                summary(&values)
            };
            let Some((gbps, offered_gbps)) = all(Forwarded::gbps).zip(all(Forwarded::offered_gbps))
            else {
                continue;
            };
            let cpu: Vec<f64> = samples.iter().filter_map(|of| of.cpu_us).collect();
            let direct: Vec<f64> = of(Implementation::Direct, tunnels)
                .iter()
                .map(Forwarded::gbps)
                .collect();
            let theory = summary(&direct)
                .filter(|_| entry.who != Implementation::Direct)
                .map(|direct| direct.median * entry.who.share_of_direct(PACKET, PACKET));
            rows.push(Row {
                implementation: entry.who.name(),
                version: entry.version.clone(),
                tunnels,
                gbps,
                offered_gbps,
                cpu_us_per_packet: summary(&cpu),
                of_theory: theory.map(|theory| gbps.median / theory),
            });
        }
        rows
    }

    /// Who is not there, and why.
    pub(super) fn left_out(&self) -> Vec<String> {
        let all = self.left_out.iter();
        all.map(|(who, why)| format!("{}: {why}", who.name()))
            .collect()
    }

    /// Four tunnels, against both that the goal names.
    pub(super) fn goals(&self) -> Vec<GoalResult> {
        let four = |who| self.samples.get(&(who, 4));
        let Some(adit) = four(Implementation::Adit) else {
            return Vec::new();
        };
        let goal = |other: Implementation| {
            let theirs = four(other)?;
            let pairs = adit.iter().filter_map(|(round, ours)| {
                let theirs = theirs.get(round)?;
                Some((ours.arrived, theirs.arrived))
            });
            let pairs: Vec<(f64, f64)> = pairs.collect();
            let name = format!("forwarded, four tunnels: adit against {}", other.name());
            let value = ratio(&pairs)?.value;
            Some(GoalResult::new(name, value, Limit::AtLeast(2.5), " ×"))
        };
        let others = [Implementation::WireguardGo, Implementation::Tailscale];
        others.into_iter().filter_map(goal).collect()
    }
}

/// For people: nothing of nothing.
pub(super) fn table(rows: &[Row], left_out: &[String]) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    if !rows.is_empty() {
        let _ = write!(
            text,
            "\nForwarded by two gateways, UDP in IP packets of {} octets both ways at once, counted behind \
             them\n\n{:<16}{:>8}{:>8}{:>14}{:>10}{:>12}{:>12}\n",
            PACKET, "", "tunnels", "Gb/s", "range", "offered", "CPU µs", "% of theory"
        );
    }
    for row in rows {
        let range = format!("{:.2}–{:.2}", row.gbps.min, row.gbps.max);
        let or_dash = |value: Option<f64>, places: usize| {
            value.map_or_else(|| "–".to_owned(), |value| format!("{value:.places$}"))
        };
        let cpu = or_dash(row.cpu_us_per_packet.map(|cpu| cpu.median), 2);
        let theory = or_dash(row.of_theory.map(|share| share * 100.0), 0);
        let _ = writeln!(
            text,
            "{:<16}{:>8}{:>8.2}{range:>14}{:>10.2}{cpu:>12}{theory:>12}",
            row.implementation, row.tunnels, row.gbps.median, row.offered_gbps.median
        );
    }
    for who in left_out {
        let _ = writeln!(text, "{who}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(who: Implementation) -> Entry {
        Entry::plain(who, "1")
    }

    #[test]
    fn rows_stand_beside_the_links_without_a_tunnel_and_goals_pair_the_rounds() {
        use Implementation::{Adit, Direct, WireguardGo};
        let mut measured = Measured {
            entries: [Direct, WireguardGo, Adit].map(entry).to_vec(),
            ..Measured::nothing()
        };
        // Packets a second, in both rounds; wireguard-go failed in the second.
        for (who, arrived) in [
            (Direct, [400.0, 400.0].as_slice()),
            (WireguardGo, &[100.0]),
            (Adit, &[300.0, 200.0]),
        ] {
            let of = measured.samples.entry((who, 4)).or_default();
            for (round, arrived) in (1..).zip(arrived) {
                let sample = Forwarded {
                    packet: PACKET,
                    offered: 500.0,
                    arrived: *arrived,
                    cpu_us: (who != Direct).then_some(2.0),
                };
                of.insert(round, sample);
            }
        }
        let rows = measured.rows();
        let names: Vec<_> = rows.iter().map(|row| row.implementation).collect();
        assert_eq!(names, ["direct", "wireguard-go", "adit"]);
        assert!(rows[0].of_theory.is_none() && rows[0].cpu_us_per_packet.is_none());
        let theory = rows[2].of_theory.expect("there is a direct path");
        let share = Adit.share_of_direct(PACKET, PACKET);
        assert!((theory - 250.0 / 400.0 / share).abs() < 1e-9);
        // The first round alone has both; of Tailscale's fork there is nothing.
        let goals = measured.goals();
        assert_eq!(goals.len(), 1);
        assert_eq!((goals[0].value, goals[0].met), (Some(3.0), true));
        let text = table(&rows, &measured.left_out());
        assert!(text.contains("adit") && text.contains("65"), "{text}");
        assert_eq!(table(&[], &[]), "");
    }
}
