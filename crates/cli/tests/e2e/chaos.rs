//! A gateway whose parts are killed, stopped and starved at random, while records come and go.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::agent::{Hub, json as record, kill_interface};
use crate::etcd::{PORT, Store};
use crate::harness::*;
use crate::quick::{adit, only_adit};

/// How long; ADIT_CHAOS_SECONDS says otherwise.
const SECONDS: u64 = 20;
/// Peers that come and go, besides the one that pings.
const PEERS: usize = 8;
/// Actions between two looks at whether all is well.
const ACTIONS: u32 = 6;

/// A sequence of numbers that another run has again (Numerical Recipes' constants).
pub struct Random(u32);

impl Random {
    /// Of the seed in ADIT_CHAOS_SEED, or of this one; it is printed.
    pub fn of_seed(otherwise: u32) -> Self {
        let seed = std::env::var("ADIT_CHAOS_SEED").ok();
        let seed = seed.map_or(otherwise, |text| text.parse().expect("a number"));
        println!("ADIT_CHAOS_SEED={seed}");
        Self(seed)
    }

    pub fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 16) % limit
    }

    pub fn pause(&mut self, most: u32) {
        std::thread::sleep(Duration::from_millis(self.below(most).into()));
    }
}

/// How long a test of this kind goes on, if ADIT_CHAOS_SECONDS does not say otherwise.
pub fn duration(otherwise: u64) -> Duration {
    let time = std::env::var("ADIT_CHAOS_SECONDS").ok();
    seconds(time.map_or(otherwise, |text| text.parse().expect("seconds")))
}

struct Chaos {
    hub: Hub,
    store: Store,
    peers: Vec<Keys>,
    /// The addresses of those that have a record, by their number.
    there: BTreeMap<usize, u8>,
    revision: String,
    random: Random,
}

impl Chaos {
    fn new(random: Random) -> Self {
        let mut hub = Hub::new("etcd:http://127.0.0.1:2379/wg0/");
        let store = Store::new(hub.left());
        store.start(PORT);
        let phone = record(&hub.phone.public, "10.77.0.2/32");
        let answer = store.put("wg0/phone", &phone);
        hub.start(&[]);
        hub.has(&[&hub.phone.public]);
        hub.connect("");
        Self {
            hub,
            store,
            peers: (0..PEERS).map(|_| Keys::new()).collect(),
            there: BTreeMap::new(),
            revision: answer["header"]["revision"]
                .as_str()
                .expect("one")
                .to_owned(),
            random,
        }
    }

    /// Does one thing, and undoes it but for records.
    fn act(&mut self) -> &'static str {
        let left = self.hub.left().clone();
        match self.random.below(10) {
            0..=2 => self.put(),
            3 => {
                let number = self.random.below(8) as usize;
                self.store.delete(&format!("wg0/{number}"));
                self.there.remove(&number);
                "delete a record"
            }
            4 => {
                self.hub.kill();
                self.random.pause(300);
                self.hub.start(&[]);
                "kill the agent"
            }
            5 => {
                self.store.kill();
                self.random.pause(600);
                let with_agent = self.random.below(2) == 0;
                if with_agent {
                    self.hub.kill();
                    self.hub.start(&[]);
                    self.random.pause(600);
                }
                self.store.start(PORT);
                if with_agent {
                    "kill etcd, and then the agent"
                } else {
                    "kill etcd"
                }
            }
            6 => {
                kill_interface(&self.hub);
                self.random.pause(300);
                left.sh(&format!("{} up wg0", adit()));
                "kill the tunnel"
            }
            7 => {
                // It was compacted already, perhaps.
                let asked = json!({ "revision": self.revision }).to_string();
                left.sh_with_input(
                    "curl -s http://127.0.0.1:2379/v3/kv/compaction -d @- > /dev/null",
                    &asked,
                );
                "compact etcd"
            }
            8 => {
                left.sh("kill -STOP $(cat /run/etcd.pid)");
                self.random.pause(1500);
                left.sh("kill -CONT $(cat /run/etcd.pid)");
                "stop etcd"
            }
            _ => {
                left.sh("mount -o remount,size=$(df -k --output=used /run/adit-agent | tail -1 | tr -d ' ')k /run/adit-agent");
                self.random.pause(600);
                self.put();
                self.random.pause(600);
                if self.random.below(2) == 0 {
                    self.hub.kill();
                    self.hub.start(&[]);
                    self.random.pause(600);
                }
                left.sh("mount -o remount,size=16m /run/adit-agent");
                "fill the agent's disk"
            }
        }
    }

    fn put(&mut self) -> &'static str {
        let number = self.random.below(8) as usize;
        let host = 10 + u8::try_from(self.random.below(40)).expect("small");
        if self.there.values().any(|it| *it == host) {
            return "nothing";
        }
        let text = record(&self.peers[number].public, &format!("10.77.0.{host}/32"));
        let answer = self.store.put(&format!("wg0/{number}"), &text);
        let revision = answer["header"]["revision"].as_str();
        self.revision = revision.expect("a revision").to_owned();
        self.there.insert(number, host);
        "put a record"
    }

    /// All that have a record are there, and no others; the one that pings is answered.
    fn is_well(&mut self) {
        // As systemd does: with a full disk it cannot write what it brings, and ends.
        if self.hub.status()["is_running"] == false {
            println!("           the agent is started again");
            self.hub.start(&[]);
        }
        let mut keys = vec![self.hub.phone.public.as_str()];
        keys.extend(self.there.keys().map(|it| self.peers[*it].public.as_str()));
        self.hub.has(&keys);
        let right = &self.hub.world.net.right;
        wait_for("a ping is answered", seconds(30), || {
            right.try_sh("ping -c 1 -W 1 10.77.0.1").ok()
        });
        let there = self.there.iter();
        let lines: Vec<String> = there
            .map(|(number, host)| format!("{}\t10.77.0.{host}/32\n", self.peers[*number].public))
            .collect();
        wait_for("all have their addresses", seconds(20), || {
            let blocks = self.hub.left().sh("wg show wg0 allowed-ips");
            lines.iter().all(|line| blocks.contains(line))
        });
    }
}

#[test]
fn a_fleet_is_whole_after_whatever_befell_its_parts() {
    if !only_adit() {
        return;
    }
    let (time, start) = (duration(SECONDS), Instant::now());
    let mut chaos = Chaos::new(Random::of_seed(7));
    // A disk of the agent's own, so that it alone is full.
    chaos.hub.kill();
    let left = chaos.hub.left().clone();
    left.sh("mount -t tmpfs -o size=16m,mode=700 tmpfs /run/adit-agent");
    chaos.hub.start(&[]);
    chaos.is_well();
    while start.elapsed() < time {
        for _ in 0..ACTIONS {
            let begun = Instant::now();
            let done = chaos.act();
            println!("{:>6} ms  {done}", begun.elapsed().as_millis());
            chaos.random.pause(400);
        }
        let begun = Instant::now();
        chaos.is_well();
        println!("{:>6} ms  all is well", begun.elapsed().as_millis());
    }
}
