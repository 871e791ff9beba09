//! What the measured values mean for fleets of other sizes.
//!
//! Each quantity is taken as proportional to what causes it: records, peers, new peers a second. That holds for the
//! sizes that were measured (1,000 to 100,000 records); beyond them it is an estimate.

use serde_json::{Value, json};

use super::{AGENT_MEMORY, CALL_CPU, Experiment, Implementation, LIST, PUTS, Part};

/// Peers of a fleet, and its gateways.
const PEERS: [u32; 4] = [1_000, 10_000, 100_000, 1_000_000];
const GATEWAYS: [u32; 4] = [2, 4, 8, 32];
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
}

impl Model {
    /// From what was measured, if all of it was.
    pub(super) fn of(run: &Experiment<Part>, records: u32) -> Option<Self> {
        let value = |part, id| Some(run.summary(part, id, Implementation::Adit)?.median);
        let records = f64::from(records);
        Some(Self {
            puts: value(Part::Records, PUTS)?,
            list: value(Part::Records, LIST)? / records,
            memory: value(Part::Records, AGENT_MEMORY)? / records,
            call_cpu: value(Part::Called, CALL_CPU)?,
        })
    }

    /// A row for each fleet.
    pub(super) fn rows(&self) -> Vec<Value> {
        let fleets = PEERS
            .into_iter()
            .flat_map(|peers| GATEWAYS.into_iter().map(move |gateways| (peers, gateways)));
        let row = |(peers, gateways): (u32, u32)| {
            let all = f64::from(peers);
            // The peers of the one that dies come to the others.
            let dead = all / f64::from(gateways);
            let calls = dead / CALLS.min(1000.0 / self.call_cpu);
            json!({
                "peers": peers,
                "gateways": gateways,
                "put_seconds": all / self.puts,
                "list_seconds": all * self.list,
                "agent_mib": all * self.memory,
                "call_seconds": calls,
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
        text
    }
}
