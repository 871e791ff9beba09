//! The results of the demo, as a table and as JSON.

use std::collections::BTreeMap;

use adit_testbed::framing::{Family, Load};
use serde::Serialize;

/// Echoes per path.
pub(super) const PINGS: u32 = 300;

/// Rates and round trips of one path. Fields are named as in the JSON that `--json` prints.
#[derive(Serialize, Clone, Copy, Debug, Default)]
pub(super) struct PathReport {
    /// Payload bits of one TCP stream, in 10^9 a second.
    pub(super) tcp_gbps: f64,
    /// Of the pings that were answered.
    pub(super) rtt_us_p50: f64,
    pub(super) rtt_us_p99: f64,
    pub(super) pings_lost: usize,
    /// CPU time of both tunnel processes for 10^9 payload bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu_s_per_gb: Option<f64>,
}

impl PathReport {
    pub(super) fn rounded(self) -> Self {
        Self {
            tcp_gbps: round(self.tcp_gbps, 3),
            rtt_us_p50: round(self.rtt_us_p50, 1),
            rtt_us_p99: round(self.rtt_us_p99, 1),
            pings_lost: self.pings_lost,
            cpu_s_per_gb: self.cpu_s_per_gb.map(|s| round(s, 3)),
        }
    }
}

fn round(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

/// The object of `adit demo --json`; `schema` changes when a field changes its meaning.
#[derive(Serialize, Debug)]
pub(super) struct DemoReport {
    pub(super) schema: u32,
    pub(super) ok: bool,
    pub(super) direct: PathReport,
    pub(super) tunnel: PathReport,
    pub(super) aead: String,
    pub(super) offloads: BTreeMap<String, bool>,
    /// Whether packets of sparse flows are processed on the CPU that they come from.
    pub(super) placement: bool,
}

impl DemoReport {
    /// The rate of a tunnel that fills this cable with its frames, if nothing but framing cost
    /// anything: the bare path's rate times the ratio of the two efficiencies.
    pub(super) fn framing_limit_gbps(&self) -> f64 {
        self.direct.tcp_gbps * Load::Tcp(Family::V4).share(Family::V4)
    }

    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    pub(super) fn table(&self, bold: (&str, &str)) -> String {
        let (on, off) = bold;
        let gbps = |path: &PathReport| format!("{:.2} Gb/s", path.tcp_gbps);
        let rtt = |path: &PathReport| format!("{:.0} / {:.0} µs", path.rtt_us_p50, path.rtt_us_p99);
        let row = |name: &str, direct: &str, tunnel: &str| {
            format!("  {name:<22}{direct:>16}{tunnel:>20}\n")
        };
        let cpu = self
            .tunnel
            .cpu_s_per_gb
            .map_or("–".into(), |s| format!("{s:.2} s/GB"));
        let limit = self.framing_limit_gbps();
        let percent = if limit > 0.0 {
            100.0 * self.tunnel.tcp_gbps / limit
        } else {
            0.0
        };
        let names = |state: bool| {
            let names = self
                .offloads
                .iter()
                .filter(|(_, on)| **on == state)
                .map(|(name, _)| name.as_str());
            names.collect::<Vec<_>>().join(", ")
        };
        let (in_force, missing) = (names(true), names(false));

        let mut table = format!("\n{on}{}{off}", row("", "bare cable", "through Adit"));
        table += &row("TCP, one stream", &gbps(&self.direct), &gbps(&self.tunnel));
        table += &row("ping p50 / p99", &rtt(&self.direct), &rtt(&self.tunnel));
        if self.direct.pings_lost + self.tunnel.pings_lost > 0 {
            let lost = |path: &PathReport| format!("{} of {PINGS}", path.pings_lost);
            table += &row("pings lost", &lost(&self.direct), &lost(&self.tunnel));
        }
        table += &row("CPU, both ends", "–", &cpu);
        table += &row("share of framing limit", "–", &format!("{percent:.0} %"));
        table += &format!("\n  AEAD       {}\n  offloads   {in_force}\n", self.aead);
        if !missing.is_empty() {
            table += &format!("  not here   {missing}\n");
        }
        if !self.placement {
            table += "  pings      slower than need be: without CAP_BPF, packets of sparse flows are not processed on the CPU that they \
                      come from\n";
        }
        table += &format!(
            "\n  Framing limit: {limit:.2} Gb/s, the bare rate x (1368/1518) / (1448/1538), payload octets per octet on\n  \
             an Ethernet wire. Both hosts share this machine's {} cores with the traffic's generator.\n",
            std::thread::available_parallelism().map_or(1, usize::from)
        );
        table
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
