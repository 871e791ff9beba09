//! Hosts, links, implementations and traffic for the end-to-end tests.
//!
//! A [`Container`] is a set of anonymous namespaces (network, mount, PID) held by one process that ends
//! when the test process does, however that ends; with it end all daemons in it. Nothing has a name
//! outside the namespaces, so tests run in parallel, survive killed predecessors and leave nothing
//! behind.

mod capture;
mod container;
mod guest;
mod implementation;
mod packet_accounting;
mod systemd;
mod topology;
mod traffic;
mod tunnel;
mod watchdog;

pub use capture::Capture;
pub use container::{Container, link, move_link};
pub use guest::Guest;
pub use implementation::{Daemon, Program, Start, peer, processes};
pub use packet_accounting::of_engine as wrong_accounting;
pub use systemd::Systemd;
pub use topology::{Family, Natted, Routed, SitePair};
pub use traffic::{
    Flow, Stream, UdpTicker, marker, ping, ping_fails, tcp, tcp_many, udp, within_bytes,
};
pub use tunnel::{Keys, Setup, Side, WgTunnel, setconf};
pub use watchdog::watch_this_test;

use std::time::{Duration, Instant};

/// Waits until `condition` holds; panics with `what` when it does not within `limit`.
#[track_caller]
pub fn wait_for(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// What `/proc/PID/status` says of a process's memory, in KiB.
pub fn memory(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let line = status.lines().find(|line| line.starts_with(field));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.expect("the field").parse().expect("a number")
}

pub fn under_ci() -> bool {
    std::env::var_os("CI").is_some_and(|v| !v.is_empty() && v != "false")
}

/// The repository's root.
pub fn repository() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the repository's root")
}
