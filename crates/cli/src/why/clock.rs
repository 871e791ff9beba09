//! Whether this host's clock is right.

use std::time::SystemTime;

use adit_ctl::status::InterfaceJson;

use crate::events::utc;

/// A clock that says less was never set: 1 January 2020.
const YEAR_2020: u64 = 1_577_836_800;
/// How much later than the clock a file may be, in seconds.
const SLACK: u64 = 120;

/// What shows that the clock is behind what it was.
pub(super) fn clock(name: &str, status: &InterfaceJson) -> Option<String> {
    let seconds = |time: SystemTime| {
        let time = time.duration_since(SystemTime::UNIX_EPOCH);
        time.map_or(0, |time| time.as_secs())
    };
    // Systemd's own client of NTP keeps there when it last knew the time.
    let files = [
        format!("/etc/wireguard/{name}.conf"),
        "/var/lib/systemd/timesync/clock".into(),
        "/etc/resolv.conf".into(),
        "/var/log/wtmp".into(),
    ];
    let written = files.into_iter().filter_map(|file| {
        let written = std::fs::metadata(&file).ok()?.modified().ok()?;
        Some((seconds(written), format!("{file} was written")))
    });
    let handshakes = status.peers.iter().filter_map(|peer| {
        let at = peer.latest_handshake?;
        Some((at, "the latest handshake was".to_owned()))
    });
    wrong_clock(seconds(SystemTime::now()), written.chain(handshakes))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a time of this age of the universe"
)]
pub(super) fn wrong_clock(
    now: u64,
    happened: impl Iterator<Item = (u64, String)>,
) -> Option<String> {
    let date = |seconds: u64| utc(seconds as f64);
    if now < YEAR_2020 {
        return Some(format!("it says {}", date(now)));
    }
    let (last, what) = happened.max()?;
    (last > now + SLACK).then(|| format!("it says {}, but {what} at {}", date(now), date(last)))
}
