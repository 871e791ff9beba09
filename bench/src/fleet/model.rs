//! What the measured values mean for fleets of other sizes.
//!
//! Each quantity is taken as proportional to what causes it: records, peers, new peers a second. That holds for the
//! sizes that were measured (1,000 to 100,000 records); beyond them it is an estimate.

use serde_json::{Value, json};

use super::{AGENT_MEMORY, CALL_CPU, Experiment, Implementation, LIST, MEDIAN, PUTS, Part};

/// Peers of a fleet, and its gateways.
const PEERS: [u32; 4] = [1_000, 10_000, 100_000, 1_000_000];
const GATEWAYS: [u32; 5] = [1, 2, 4, 8, 32];
/// A peer without an answer begins a handshake by itself after so many seconds (KEEPALIVE_TIMEOUT and REKEY_TIMEOUT):
/// a call that comes later is in vain.
const NOTICES: f64 = 15.0;
/// A gateway is to have all peers a minute after its start.
const READY: f64 = 60.0;
/// An agent is to take no more MiB.
const MEMORY: f64 = 1024.0;
/// `adit call` begins so many handshakes a second at most.
const CALLS: f64 = 5_000.0;
/// Of the packets of a peer that land at a gateway by chance, one in so many lands at the right one: the others are
/// forwarded once.
fn forwarded(gateways: u32) -> f64 {
    1.0 - 1.0 / f64::from(gateways)
}

/// The values for one record, or one peer.
pub(super) struct Model {
    /// Records that etcd takes a second.
    puts: f64,
    /// Seconds until an agent has brought a record.
    list: f64,
    /// MiB of an agent.
    memory: f64,
    /// Milliseconds of a gateway's CPU for a peer that it takes over.
    call_cpu: f64,
    /// Seconds until half of the peers are back, but for those that the calls take.
    begin: f64,
}

impl Model {
    /// From what was measured, if all of it was.
    pub(super) fn of(run: &Experiment<Part>, records: u32, clients: u32) -> Option<Self> {
        let value = |part, id| Some(run.summary(part, id, Implementation::Adit)?.median);
        let records = f64::from(records);
        let mut model = Self {
            puts: value(Part::Records, PUTS)?,
            list: value(Part::Records, LIST)? / records,
            memory: value(Part::Records, AGENT_MEMORY)? / records,
            call_cpu: value(Part::Called, CALL_CPU)?,
            begin: 0.0,
        };
        let half = f64::from(clients) / model.calls() / 2.0;
        model.begin = (value(Part::Called, MEDIAN)? / 1000.0 - half).max(0.0);
        Some(model)
    }

    /// What it says, for JSON.
    pub(super) fn json(&self) -> Value {
        let limits = self.limits().into_iter();
        let limits = limits.map(|(what, peers)| json!({"what": what, "peers": peers.floor()}));
        json!({"fleets": self.rows(), "limits": limits.collect::<Value>()})
    }

    /// Peers that a gateway calls a second.
    fn calls(&self) -> f64 {
        CALLS.min(1000.0 / self.call_cpu)
    }

    /// For how many peers something takes too much, the least first.
    fn limits(&self) -> Vec<(String, f64)> {
        let back = [1, 4, 32].map(|gateways| {
            let gateways_text = if gateways == 1 { "gateway" } else { "gateways" };
            // Half of the peers of the one that dies.
            let peers = (NOTICES - self.begin) * self.calls() * 2.0 * f64::from(gateways);
            (
                format!("half are back after {NOTICES} s, {gateways} {gateways_text}"),
                peers,
            )
        });
        let mut limits = Vec::from(back);
        limits.push((
            format!("all are brought after {READY} s"),
            READY / self.list,
        ));
        limits.push((format!("an agent takes {MEMORY} MiB"), MEMORY / self.memory));
        limits.sort_by(|a, b| a.1.total_cmp(&b.1));
        limits
    }

    /// A row for each fleet.
    fn rows(&self) -> Vec<Value> {
        let fleets = PEERS
            .into_iter()
            .flat_map(|peers| GATEWAYS.into_iter().map(move |gateways| (peers, gateways)));
        let row = |(peers, gateways): (u32, u32)| {
            let all = f64::from(peers);
            // The peers of the one that dies come to the others.
            let dead = all / f64::from(gateways);
            let calls = dead / self.calls();
            json!({
                "peers": peers,
                "gateways": gateways,
                "put_seconds": all / self.puts,
                "list_seconds": all * self.list,
                "agent_mib": all * self.memory,
                "call_seconds": calls,
                "half_back_seconds": self.begin + calls / 2.0,
                "forwarded_share": forwarded(gateways),
            })
        };
        fleets.map(row).collect()
    }

    pub(super) fn table(&self) -> String {
        let mut text = String::from(
            "\nestimates for other fleets\n\
             peers      gateways  all put into etcd  all brought  agent's memory  peers of a dead gateway called  forwarded\n",
        );
        for row in self.rows() {
            let number = |name: &str| row[name].as_f64().unwrap_or(0.0);
            text += &format!(
                "{:<11}{:<10}{:>15.1} s{:>11.1} s{:>12.0} MiB{:>30.1} s{:>9.0} %\n",
                row["peers"].as_u64().unwrap_or(0),
                row["gateways"].as_u64().unwrap_or(0),
                number("put_seconds"),
                number("list_seconds"),
                number("agent_mib"),
                number("call_seconds"),
                number("forwarded_share") * 100.0
            );
        }
        text += "\nwhat breaks first (estimates)\n";
        for (what, peers) in self.limits() {
            text += &format!("{what:<40}{peers:>12.0} peers\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_breaks_first_depends_on_the_number_of_gateways() {
        let model = Model {
            puts: 10_000.0,
            list: 0.0003,
            memory: 0.002,
            call_cpu: 0.5,
            begin: 0.5,
        };
        let limits = model.limits();
        let all: Vec<(&str, f64)> = limits
            .iter()
            .map(|(what, at)| (what.as_str(), at.round()))
            .collect();
        assert_eq!(
            all,
            [
                ("half are back after 15 s, 1 gateway", 58_000.0),
                ("all are brought after 60 s", 200_000.0),
                ("half are back after 15 s, 4 gateways", 232_000.0),
                ("an agent takes 1024 MiB", 512_000.0),
                ("half are back after 15 s, 32 gateways", 1_856_000.0),
            ]
        );
        let row = |peers, gateways| {
            let mut rows = model.rows().into_iter();
            rows.find(|it| it["peers"] == peers && it["gateways"] == gateways)
                .unwrap()
        };
        assert_eq!(row(10_000, 1)["half_back_seconds"], 3.0);
        assert_eq!(row(1_000_000, 4)["half_back_seconds"], 63.0);
        assert_eq!(row(1_000_000, 4)["forwarded_share"], 0.75);
    }
}
