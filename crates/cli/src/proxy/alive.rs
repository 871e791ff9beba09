//! Whether hosts inside the tunnel are there: `CheckAlive`, and `/readyz`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use adit_sandbox::Role;

use super::tunnel::Ping;
use crate::failure::{Context, Result};
use crate::run::answer::now;

/// How long an answer may be late, as wireproxy has it.
const GRACE: u64 = 2;

/// When each of the hosts answered last.
pub(super) struct AliveChecks {
    interval: Duration,
    /// Seconds since the Unix epoch; 0 before the first answer.
    pongs: BTreeMap<IpAddr, AtomicU64>,
}

impl AliveChecks {
    pub(super) fn new(hosts: &[IpAddr], interval: Duration) -> Arc<Self> {
        let pongs = hosts.iter().map(|host| (*host, AtomicU64::new(0)));
        Arc::new(Self {
            interval,
            pongs: pongs.collect(),
        })
    }

    /// Asks each host again and again, on a thread of its own, until this is dropped: an answer may take as
    /// long as the interval.
    pub(super) fn begin(self: &Arc<Self>, ping: &Arc<Ping>) -> Result<()> {
        for host in self.pongs.keys().copied() {
            let (this, ping, interval) =
                (Arc::downgrade(self), Arc::downgrade(ping), self.interval);
            let work = move || {
                if adit_sandbox::confine(Role::Proxy).is_ok() {
                    while ask(&this, &ping, host).is_some() {
                        std::thread::sleep(interval);
                    }
                }
            };
            adit_sandbox::start("adit-alive", work).context(|| "cannot start a thread".into())?;
        }
        Ok(())
    }

    /// The status of HTTP, and the times as JSON: 503 while one of the hosts has not answered for the
    /// interval and two seconds.
    pub(super) fn ready(&self, now: u64) -> (u16, String) {
        let times = self
            .pongs
            .iter()
            .map(|(host, pong)| (host.to_string(), pong.load(Relaxed)));
        let times: BTreeMap<String, u64> = times.collect();
        let patience = self.interval.as_secs() + GRACE;
        let is_late = |pong: &u64| now.saturating_sub(*pong) > patience;
        let status = match times.values().any(is_late) {
            true => 503,
            false => 200,
        };
        (status, serde_json::to_string(&times).unwrap_or_default())
    }
}

/// Asks a host once; `None` when nobody wants to know any more.
fn ask(alive: &Weak<AliveChecks>, ping: &Weak<Ping>, host: IpAddr) -> Option<()> {
    let answered = ping.upgrade()?(host, alive.upgrade()?.interval);
    let alive = alive.upgrade()?;
    if answered.is_ok() {
        alive.pongs.get(&host)?.store(now(), Relaxed);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_that_is_late_makes_it_not_ready() {
        let hosts = ["10.0.0.1", "fd00::1"].map(|host| host.parse().expect("an address"));
        let alive = AliveChecks::new(&hosts, Duration::from_secs(5));
        let never = r#"{"10.0.0.1":0,"fd00::1":0}"#;
        assert_eq!(alive.ready(1_000), (503, never.to_owned()));
        for (host, at) in hosts.iter().zip([1_000, 1_004]) {
            alive.pongs[host].store(at, Relaxed);
        }
        let times = r#"{"10.0.0.1":1000,"fd00::1":1004}"#;
        assert_eq!(alive.ready(1_007), (200, times.to_owned()));
        assert_eq!(alive.ready(1_008), (503, times.to_owned()));
        let nobody = AliveChecks::new(&[], Duration::from_secs(5));
        assert_eq!(nobody.ready(1_000), (200, "{}".to_owned()));
    }
}
