//! Endpoints by name, looked up with wg(8)'s patience.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::failure::{Failure, Result, bail, say};

/// How often a failing look-up is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retries {
    Times(u32),
    Forever,
}

impl Retries {
    /// As wg(8) reads WG_ENDPOINT_RESOLUTION_RETRIES: 15 unless it says otherwise.
    pub(crate) fn from_env() -> Result<Self> {
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

/// The first address of `endpoint` (`name:port`, `ip:port` or `[ip]:port`). Gives up at once when
/// the name certainly does not exist, and when `interrupted` between attempts or while it waits for
/// the next.
pub(crate) fn resolve(
    endpoint: &str,
    retries: Retries,
    interrupted: impl Fn() -> bool,
) -> Result<SocketAddr> {
    let mut attempts = 0;
    let mut pause = Duration::from_secs(1);
    loop {
        let error = match endpoint.to_socket_addrs() {
            Ok(mut addresses) => match addresses.next() {
                Some(address) => return Ok(address),
                None => bail!(Mistake, "endpoint `{endpoint}` has no address"),
            },
            Err(error) => error.to_string(),
        };
        let exhausted = matches!(retries, Retries::Times(times) if attempts >= times);
        if interrupted() {
            return Err(Failure::Interrupted);
        }
        if exhausted || is_permanent(&error) {
            bail!(State, "cannot look up endpoint `{endpoint}`: {error}");
        }
        say!(
            "adit: `{endpoint}`: {error}. Trying again in {:.2} seconds...",
            pause.as_secs_f32()
        );
        wait(pause, &interrupted);
        attempts += 1;
        pause = (pause * 6 / 5).min(Duration::from_secs(20));
    }
}

/// The address that `endpoint` had, by lines of `name:port address`.
pub(crate) fn remembered(lines: &str, endpoint: &str) -> Option<SocketAddr> {
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
