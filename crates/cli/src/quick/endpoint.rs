//! Endpoints by name, looked up with wg(8)'s patience.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use adit_ctl::config::HostPort;

use super::Quick;
use crate::failure::{Failure, Result, bail, say};

/// How often a failing look-up is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retries {
    Times(u32),
    Forever,
}

impl Retries {
    /// Reads WG_ENDPOINT_RESOLUTION_RETRIES as wg(8) does: 15 unless it says otherwise.
    fn from_env() -> Result<Self> {
        match std::env::var("WG_ENDPOINT_RESOLUTION_RETRIES") {
            Ok(value) => Self::parse(&value),
            Err(_) => Ok(Self::Times(15)),
        }
    }

    fn parse(value: &str) -> Result<Self> {
        match value.parse() {
            Ok(times) => Ok(Self::Times(times)),
            Err(_) if value == "infinity" => Ok(Self::Forever),
            Err(_) => bail!(
                Mistake,
                "WG_ENDPOINT_RESOLUTION_RETRIES is `{value}`; expected a number or `infinity`"
            ),
        }
    }
}

/// Why a name leads nowhere.
#[derive(Debug)]
pub(super) struct Unknown {
    failure: Failure,
    /// The name certainly does not exist.
    is_permanent: bool,
}

/// The first address of `endpoint` (`name:port`, `ip:port` or `[ip]:port`).
pub(super) fn resolve(endpoint: &str) -> std::result::Result<SocketAddr, Unknown> {
    let unknown = |why: String| Unknown {
        is_permanent: is_permanent(&why),
        failure: Failure::State(format!("cannot look up endpoint `{endpoint}`: {why}")),
    };
    let mut addresses = endpoint
        .to_socket_addrs()
        .map_err(|error| unknown(error.to_string()))?;
    addresses
        .next()
        .ok_or_else(|| unknown("No address associated with hostname".into()))
}

impl std::fmt::Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.failure.fmt(f)
    }
}

impl Quick {
    /// The address of each peer's endpoint. It is `None` also for a name that leads nowhere: that
    /// keeps no other peer from coming up, and the interface's process looks the name up again.
    ///
    /// Fails where no peer could work: after wg(8)'s patience, at once when no name exists, and
    /// when a signal comes meanwhile.
    pub(super) fn endpoints(&self) -> Result<Vec<Option<SocketAddr>>> {
        let retries = Retries::from_env()?;
        let before = match self.blocked.get() {
            true => fs::read_to_string(self.memory()).unwrap_or_default(),
            false => String::new(),
        };
        let mut attempts = 0;
        let mut pause = Duration::from_secs(1);
        loop {
            let found: Vec<_> = (self.config.peers.iter())
                .map(|peer| {
                    let endpoint = peer.endpoint.as_ref()?;
                    Some(self.look_up(endpoint, &before))
                })
                .collect();
            self.check_interrupted()?;
            let is_usable = |found: &Option<std::result::Result<_, _>>| {
                found.as_ref().is_none_or(std::result::Result::is_ok)
            };
            let unknown = || found.iter().flatten().filter_map(|it| it.as_ref().err());
            if found.is_empty() || found.iter().any(is_usable) {
                for unknown in unknown() {
                    say!(
                        "Warning: {unknown}; {} goes on without, and its process looks it up again",
                        self.name
                    );
                }
                let known = found.into_iter().map(|found| found?.ok());
                return Ok(known.collect());
            }
            let exhausted = matches!(retries, Retries::Times(times) if attempts >= times);
            if exhausted || unknown().all(|it| it.is_permanent) {
                let failures = found.into_iter().flatten().filter_map(|it| it.err());
                let mut failures: Vec<Failure> = failures.map(|it| it.failure).collect();
                let last = failures.pop().unwrap_or(Failure::Reported);
                failures.iter().for_each(Failure::report);
                return Err(last);
            }
            for unknown in unknown() {
                say!("adit: {unknown}");
            }
            if self.blocked.get() {
                say!(
                    "adit: what a killed process left may block the look-up; `adit down {}` ends that",
                    self.called()
                );
            }
            say!(
                "adit: trying again in {:.2} seconds...",
                pause.as_secs_f32()
            );
            wait(pause, || self.interrupted.load(Relaxed));
            attempts += 1;
            pause = (pause * 6 / 5).min(Duration::from_secs(20));
        }
    }

    fn look_up(
        &self,
        endpoint: &HostPort,
        before: &str,
    ) -> std::result::Result<SocketAddr, Unknown> {
        if let Some(address) = endpoint.numeric() {
            return Ok(address);
        }
        let name = endpoint.to_string();
        resolve(&name).or_else(|unknown| match remembered(before, &name) {
            Some(address) => {
                say!("adit: {unknown}; going on with {address}, where it was before");
                Ok(address)
            }
            None => Err(unknown),
        })
    }

    /// Where the addresses are kept that names had when the tunnel came up, in case that its
    /// process is killed: what that leaves may block look-ups, and the resolver may be set to ask
    /// through the tunnel.
    pub(super) fn memory(&self) -> PathBuf {
        self.socket().with_extension("endpoints")
    }

    pub(super) fn remember(&self, endpoints: &[Option<SocketAddr>]) {
        let named = self
            .config
            .peers
            .iter()
            .zip(endpoints)
            .filter_map(|(peer, address)| {
                let name = peer.endpoint.as_ref()?;
                (name.numeric().is_none()).then_some((name, (*address)?))
            });
        let lines: String = named
            .map(|(name, address)| format!("{name} {address}\n"))
            .collect();
        if !lines.is_empty() && self.may_be_full() {
            let mut options = fs::OpenOptions::new();
            let file = options.write(true).create(true).truncate(true).mode(0o600);
            // The tunnel works without it.
            let _ =
                (file.open(self.memory())).and_then(|mut file| file.write_all(lines.as_bytes()));
        }
    }
}

/// The address that `endpoint` had, by lines of `name:port address`.
fn remembered(lines: &str, endpoint: &str) -> Option<SocketAddr> {
    lines.lines().find_map(|line| {
        let (name, address) = line.split_once(' ')?;
        (name == endpoint).then(|| address.parse().ok())?
    })
}

/// Sleeps for `pause`, or until `interrupted`: signals do not end a sleep of the standard library.
fn wait(pause: Duration, interrupted: impl Fn() -> bool) {
    let until = Instant::now() + pause;
    while !interrupted() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}

/// The look-up's error code is lost in std's error; its texts (glibc's and musl's) are not.
fn is_permanent(error: &str) -> bool {
    let texts = [
        "Name or service not known",
        "No address associated with hostname",
        "Non-recoverable",
        "Name does not resolve",
        "Name has no usable address",
        "invalid socket address",
        "invalid port value",
    ];
    texts.iter().any(|text| error.contains(text))
}

#[cfg(test)]
#[path = "endpoint_tests.rs"]
mod tests;
