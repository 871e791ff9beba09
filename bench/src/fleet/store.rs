//! A real etcd on the gateway's host, with a record for each peer.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use adit_testbed::process::{self, Process};
use adit_testbed::{Host, interrupt};
use base64ct::{Base64, Encoding};
use serde_json::{Value, json};

use crate::sandbox::Failure;

/// The source of an agent.
pub(super) const SOURCE: &str = "etcd:http://127.0.0.1:2379/wg0/";
const URL: &str = "http://127.0.0.1:2379";
/// Records of one transaction: etcd takes 128.
const TOGETHER: usize = 100;
/// How long etcd may take to begin, and to take all records.
const READY: Duration = Duration::from_secs(20);
const LOAD: Duration = Duration::from_secs(300);

pub(super) struct Store {
    _process: Process,
}

impl Store {
    /// Starts it on a host that is up.
    pub(super) fn new(host: &Host) -> Result<Self, Failure> {
        host.ip("link set lo up")?;
        let process = host.spawn(process::command(
            "etcd",
            &[
                "--data-dir=/run/etcd",
                "--listen-client-urls=http://127.0.0.1:2379",
                "--advertise-client-urls=http://127.0.0.1:2379",
                "--listen-peer-urls=http://127.0.0.1:2380",
                "--log-level=error",
            ],
        ))?;
        let deadline = Instant::now() + READY;
        let health = format!("{URL}/health");
        while host
            .output("curl", &["-sf", &health], Duration::from_secs(2))
            .is_err()
        {
            interrupt::check()?;
            if Instant::now() > deadline {
                return Err("etcd did not start".into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(Self { _process: process })
    }

    /// Deletes a record.
    pub(super) fn delete(&self, host: &Host, name: &str) -> Result<(), Failure> {
        let asked = json!({ "key": key(name) }).to_string();
        let url = format!("{URL}/v3/kv/deleterange");
        host.output("curl", &["-sf", &url, "-d", &asked], READY)?;
        Ok(())
    }

    /// Puts records, by their names, and returns how many it took a second.
    pub(super) fn load(
        &self,
        host: &Host,
        records: impl Iterator<Item = (String, Value)>,
    ) -> Result<f64, Failure> {
        let puts: Vec<Value> = records.map(|(name, record)| put(&name, &record)).collect();
        let count = puts.len();
        let mut requests = Vec::new();
        let mut config = String::new();
        for (number, puts) in puts.chunks(TOGETHER).enumerate() {
            requests.push(json!({ "success": puts }).to_string());
            // curl reads this file.
            let _ = write!(
                config,
                "url = {URL}/v3/kv/txn\ndata = @/run/puts/{number}\noutput = /dev/null\nfail\nnext\n"
            );
        }
        host.run(move || -> std::io::Result<()> {
            std::fs::create_dir_all("/run/puts")?;
            for (number, request) in requests.iter().enumerate() {
                std::fs::write(format!("/run/puts/{number}"), request)?;
            }
            std::fs::write("/run/puts/config", config.trim_end_matches("next\n"))
        })?;
        let begun = Instant::now();
        host.output("curl", &["-s", "--config", "/run/puts/config"], LOAD)?;
        let seconds = begun.elapsed().as_secs_f64();
        host.run(|| std::fs::remove_dir_all("/run/puts"))?;
        Ok(adit_testbed::stats::to_f64(count) / seconds)
    }
}

fn put(name: &str, record: &Value) -> Value {
    let value = Base64::encode_string(record.to_string().as_bytes());
    json!({ "request_put": { "key": key(name), "value": value } })
}

fn key(name: &str) -> String {
    Base64::encode_string(format!("wg0/{name}").as_bytes())
}
