//! Whether hosts inside the tunnel are there: `CheckAlive`, and `/readyz`.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use adit::net::NetError;
use adit_proxy::serve::{Level, LogSink};
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
    pub(super) fn begin(self: &Arc<Self>, ping: &Arc<Ping>, log: &LogSink) -> Result<()> {
        for host in self.pongs.keys().copied() {
            let (this, ping, log) = (Arc::downgrade(self), Arc::downgrade(ping), log.clone());
            let work = move || {
                if adit_sandbox::confine(Role::Proxy).is_ok() {
                    ask(&this, &ping, host, &log);
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

/// Asks a host until nobody wants to know any more. That this host sends no ping is told once.
fn ask(alive: &Weak<AliveChecks>, ping: &Weak<Ping>, host: IpAddr, log: &LogSink) {
    let mut is_told = false;
    while let (Some(ping), Some(interval)) = (ping.upgrade(), alive.upgrade().map(|it| it.interval))
    {
        let begun = Instant::now();
        let answered = ping(host, interval);
        drop(ping);
        match answered {
            Ok(_) => {
                if let Some(alive) = alive.upgrade() {
                    alive.pongs[&host].store(now(), Relaxed);
                }
            }
            Err(NetError::Host(error)) if !is_told => {
                is_told = true;
                let what = match error.kind() {
                    ErrorKind::PermissionDenied => ": with --stack smoltcp that takes no right",
                    _ => "",
                };
                log(
                    Level::Error,
                    format_args!(
                        "CheckAlive: no ping to {host} can be sent from here: {error}{what}"
                    ),
                );
            }
            // No answer within the interval.
            Err(_) => {}
        }
        std::thread::sleep(rest(interval, begun.elapsed()));
    }
}

/// How long to wait after a ping that took so long: one is sent each interval.
fn rest(interval: Duration, took: Duration) -> Duration {
    interval.saturating_sub(took)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

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

    #[test]
    fn a_ping_that_this_host_refuses_is_told_once_with_what_to_do() {
        let host = IpAddr::from([10, 0, 0, 1]);
        let alive = AliveChecks::new(&[host], Duration::from_millis(1));
        let weak = Arc::downgrade(&alive);
        let (alive, count) = (Mutex::new(Some(alive)), AtomicU64::new(0));
        let ping: Arc<Ping> = Arc::new(move |_, _| match count.fetch_add(1, Relaxed) {
            0 => Err(NetError::TimedOut("10.0.0.1".into())),
            count => {
                if count == 3 {
                    drop(alive.lock().expect("one thread").take());
                }
                Err(NetError::Host(ErrorKind::PermissionDenied.into()))
            }
        });
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = Arc::clone(&lines);
        let log: LogSink = Arc::new(move |_, line| {
            kept.lock().expect("a log").push(line.to_string());
        });
        ask(&weak, &Arc::downgrade(&ping), host, &log);
        let lines = lines.lock().expect("a log");
        let [line] = &lines[..] else {
            panic!("{lines:?}");
        };
        assert!(line.contains("ping to 10.0.0.1"), "{line}");
        assert!(line.contains("--stack smoltcp"), "{line}");
    }

    #[test]
    fn a_ping_that_takes_the_whole_interval_is_followed_by_the_next_one() {
        let [interval, half] = [5000, 2500].map(Duration::from_millis);
        assert_eq!(rest(interval, half), half);
        assert_eq!(rest(interval, interval), Duration::ZERO);
        assert_eq!(rest(interval, interval + half), Duration::ZERO);
    }
}
