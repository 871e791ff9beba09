//! At the end of every test the packet accounting of each Adit balances (invariant 10): the packets that came in
//! went out, or are counted among the drops.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use adit_ctl::status::{self, EngineJson};

/// What is under way arrives within this time, on a busy machine, too.
const LIMIT: Duration = Duration::from_secs(20);

/// Waits until the packet accounting balances of every interface in the container whose first process this is.
/// Panics with those that do not.
pub fn check(container: &str, init: u32) {
    let began = Instant::now();
    loop {
        let wrong = imbalances(init);
        if wrong.is_empty() {
            return;
        }
        assert!(
            began.elapsed() < LIMIT,
            "the packet accounting of {container} does not balance:\n{}",
            wrong.join("\n")
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn imbalances(init: u32) -> Vec<String> {
    let root = PathBuf::from(format!("/proc/{init}/root"));
    // What is stopped answers nobody.
    if is_stopped(&root.join("proc")) {
        return Vec::new();
    }
    let dir = root.join("run/adit");
    let names = std::fs::read_dir(&dir).into_iter().flatten();
    let names = names.filter_map(|entry| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        Some(name.strip_suffix(".sock")?.to_owned())
    });
    let mut wrong = Vec::new();
    for name in names {
        // A killed process leaves its socket.
        let answer = status::fetch_in(&dir, &name);
        if let Some(engine) = answer
            .ok()
            .and_then(|mut interface| interface.engine.take())
        {
            wrong.extend(of_engine(&engine).map(|what| format!("{name}: {what}\n{engine:?}")));
        }
    }
    wrong
}

/// Whether a process stands still.
fn is_stopped(proc: &std::path::Path) -> bool {
    let processes = std::fs::read_dir(proc).into_iter().flatten();
    let stats =
        processes.filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("stat")).ok());
    let state = |stat: String| {
        stat.rsplit_once(')')
            .map(|(_, rest)| rest.starts_with(" T"))
    };
    stats.filter_map(state).any(|is_stopped| is_stopped)
}

/// Packet accounting that does not balance.
pub fn of_engine(engine: &EngineJson) -> Option<String> {
    let accounting = engine.packet_accounting();
    let balance = accounting
        .iter()
        .all(|account| account.came == account.known);
    (!balance).then(|| format!("outbound, inbound: {accounting:?}"))
}
