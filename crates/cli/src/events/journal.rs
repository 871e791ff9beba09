//! What the journal kept of the log: read by journalctl(1), and believed no more than any text.
//!
//! 1. run journalctl, which prints an object of JSON for each entry;
//! 2. take entries of root and of this user alone: others may write what they like there;
//! 3. take lines of the log, `adit: INTERFACE: TEXT`, and tell what they are about.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use adit_ctl::config::check_name;
use adit_ctl::status::{EventJson, EventKind};
use adit_ctl::{Caller, keys};
use serde_json::Value;

use crate::cli::Since;
use crate::failure::{Context, Result, bail};

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;

/// Longest entry.
const MAX_ENTRY: u64 = 1 << 20;

/// Hands over what the journal kept of an interface, or of all.
pub(super) fn read(
    since: &Since,
    only: Option<&str>,
    mut tell: impl FnMut(EventJson) -> Result<()>,
) -> Result<()> {
    let when = match since {
        Since::Ago(span) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            format!(
                "@{}",
                now.unwrap_or_default().saturating_sub(*span).as_secs()
            )
        }
        Since::At { text, is_utc } => format!("{text}{}", if *is_utc { " UTC" } else { "" }),
    };
    let mut command = Command::new("journalctl");
    command
        .args(["--output=json", "--all", "--quiet", "--no-pager"])
        .args(["--identifier=adit", &format!("--since={when}")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = match command.spawn() {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            State,
            "there is no journal here (no journalctl in PATH): the log is where the process of the interface writes it; \
             without --since, `adit events` tells what happens from now on"
        ),
        child => child.context(|| "cannot run journalctl".into())?,
    };
    let user = rustix::process::getuid().as_raw();
    if let Some(stdout) = child.stdout.take() {
        let mut lines = BufReader::new(stdout);
        let mut line = Vec::new();
        while next_line(&mut lines, &mut line).context(|| "cannot read the journal".into())? {
            let event = event(&line, user);
            let is_asked = |event: &EventJson| only.is_none_or(|only| event.interface == only);
            if let Some(event) = event.filter(is_asked) {
                tell(event)?;
            }
        }
    }
    let status = child
        .wait()
        .context(|| "cannot wait for journalctl".into())?;
    match status.success() {
        true => Ok(()),
        false => bail!(
            State,
            "journalctl failed ({status}): what it kept cannot be told; members of the groups systemd-journal and adm may \
             read it, and root"
        ),
    }
}

/// The next line; of one that is too long nothing. False at the end.
fn next_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<bool> {
    line.clear();
    let count = input.by_ref().take(MAX_ENTRY).read_until(b'\n', line)?;
    if count > 0 && line.last() != Some(&b'\n') {
        line.clear();
        input.skip_until(b'\n')?;
    }
    Ok(count > 0)
}

/// An entry of the journal, if it is one of this program's log.
fn event(line: &[u8], user: u32) -> Option<EventJson> {
    let entry: Value = serde_json::from_slice(line).ok()?;
    let writer = text(&entry["_UID"])?.parse().ok();
    if writer.is_none_or(|writer: u32| writer != 0 && writer != user) {
        return None;
    }
    let micros: u64 = text(&entry["__REALTIME_TIMESTAMP"])?.parse().ok()?;
    let message = text(&entry["MESSAGE"])?;
    let message = message.strip_prefix("adit: ").unwrap_or(&message);
    let (interface, said) = message.split_once(": ")?;
    check_name(interface).ok()?;
    let changed = said.strip_prefix("configuration changed: ");
    let upgraded = said.strip_prefix("upgraded: ");
    let kind = match (changed, upgraded) {
        (Some(_), _) => EventKind::Configured,
        (_, Some(_)) => EventKind::Upgraded,
        _ => EventKind::Logged,
    };
    let said = changed.or(upgraded).unwrap_or(said);
    let mut event = EventJson::new(interface, kind, said.to_owned());
    event.time = std::time::Duration::from_micros(micros).as_secs_f64();
    if let (Some((by, what)), true) = (Caller::parse(said), kind != EventKind::Logged) {
        event.pid = Some(by.origin.pid);
        event.uid = Some(by.origin.uid);
        event.login = by.login;
        event.command = by.command;
        event.peer = only_peer(what);
    }
    Some(event)
}

/// The peer that a change is about, if it is one.
fn only_peer(what: &str) -> Option<String> {
    let mut words = what.split([' ', ':', ';']);
    let mut keys = std::iter::from_fn(|| {
        words.find(|word| *word == "peer")?;
        words.next()
    });
    let key = keys.next()?;
    (keys.next().is_none() && keys::public_from_base64(key).is_some()).then(|| key.to_owned())
}

/// A field, which has bytes where it is no plain text, and several values where it occurs twice.
fn text(field: &Value) -> Option<String> {
    match field {
        Value::String(text) => Some(text.clone()),
        Value::Array(bytes) => {
            let byte = |byte: &Value| u8::try_from(byte.as_u64()?).ok();
            let bytes: Option<Vec<u8>> = bytes.iter().map(byte).collect();
            Some(String::from_utf8_lossy(&bytes?).into_owned())
        }
        _ => None,
    }
}
