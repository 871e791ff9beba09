//! The file with an agent's status, and `adit agent status`.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_ctl::text::printable_json;
use adit_fleet::{
    AgentStatus, MAX_REFUSALS, Reconciler, RecordId, RecordList, RefusedRecord, SourceState,
};

use super::brought::{is_running, replace};
use super::news::TOLD;
use crate::cli::{self, AgentStatusArgs};
use crate::failure::{Context, Result, bail, say};
use crate::show::now;

/// How often `--follow` looks.
const LOOK: Duration = Duration::from_millis(100);

/// Every field of the JSON, for the manual page.
pub(crate) const FIELDS: &[(&str, &str)] = &[
    (
        "schema",
        "Version of the document. Fields may be added under the same version.",
    ),
    ("interface", "The interface."),
    ("is_running", "Whether an agent serves it now."),
    ("pid", "The process that does the work, or did."),
    ("source", "The source, as it was given."),
    (
        "state",
        "`listing` until its first whole list is complete, before which nothing is removed; `listed` while each change \
         takes effect; `failing` while it cannot be read, and everything stays as it is.",
    ),
    (
        "failure",
        "Why the source cannot be read, or the interface not be changed. Absent otherwise.",
    ),
    ("is_up", "Whether the interface is there."),
    ("records", "Records of the source, good and bad."),
    (
        "applied",
        "Peers of the interface that come from the source.",
    ),
    ("refused", "Records that are refused."),
    (
        "refusals[].record",
        "What the source calls such a record; of the first 100.",
    ),
    ("refusals[].reason", "Why it is refused."),
    (
        "refusals[].public_key",
        "The public key of its peer. Absent where the record itself is wrong.",
    ),
    (
        "refusals[].name",
        "What it calls the peer. Absent where it does not, or is wrong itself.",
    ),
    (
        "last_list",
        "When the last whole list was complete: seconds since the Unix epoch. Absent before the first.",
    ),
    ("gateway", "With `--write-back`: the name of this gateway."),
    (
        "write_back_failure",
        "With `--write-back`: why the keys of gateways cannot be written or read. Absent otherwise.",
    ),
    (
        "held",
        "With `--write-back`: peers of all gateways, as their keys say.",
    ),
    (
        "just_in_time.found",
        "With `--just-in-time`: unknown peers that the store had.",
    ),
    (
        "just_in_time.missing",
        "Unknown keys that the store did not have.",
    ),
    (
        "just_in_time.limited",
        "Unknown keys for which the store was not asked, since too many are unknown.",
    ),
    (
        "just_in_time.evicted",
        "Peers that were removed since they were gone.",
    ),
];

pub(super) fn path(dir: &Path, interface: &str) -> PathBuf {
    dir.join(format!("{interface}.json"))
}

/// Puts the status in the place of the last one, for a group to read.
pub(super) fn write(dir: &Path, status: &AgentStatus, group: Option<u32>) -> std::io::Result<()> {
    let text = serde_json::to_string(status)?;
    let path = path(dir, &status.interface);
    replace(&path, (text + "\n").as_bytes(), group).map(drop)
}

/// What the agent of an interface tells of itself, or told last; `None` if there was none.
///
/// # Errors
///
/// It cannot be read.
pub(crate) fn status_of(dir: &Path, interface: &str) -> Result<Option<AgentStatus>> {
    let path = path(dir, interface);
    let text = match std::fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.context(|| format!("cannot read {}", path.display()))?,
    };
    let status: AgentStatus = serde_json::from_slice(&text)
        .context(|| format!("{} is no status of an agent", path.display()))?;
    Ok(Some(AgentStatus {
        is_running: is_running(dir, interface),
        ..status
    }))
}

/// What all agents tell of themselves, or told last, as far as it can be read.
pub(crate) fn all(dir: &Path) -> Vec<AgentStatus> {
    let found = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = found
        .filter_map(|file| Some(file.file_name().to_str()?.strip_suffix(".json")?.to_owned()))
        .collect();
    names.sort_unstable();
    let of_name = |name: &String| status_of(dir, name).ok().flatten();
    names.iter().filter_map(of_name).collect()
}

pub(super) fn print(args: &AgentStatusArgs) -> Result<()> {
    let mut last = None;
    loop {
        let Some(status) = status_of(&args.state, &args.interface)? else {
            bail!(
                State,
                "no agent has served {name}: `adit agent {name} --source dir:PATH` starts one",
                name = args.interface
            );
        };
        if last.as_ref() != Some(&status) {
            let is_first = last.is_none();
            print_one(args, &status, is_first)?;
            last = Some(status);
        }
        if !args.follow {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
}

/// The status, below an earlier one unless it is the first.
fn print_one(args: &AgentStatusArgs, status: &AgentStatus, is_first: bool) -> Result<()> {
    let text = match args.json {
        true => {
            let text = serde_json::to_string(status).context(|| "cannot write JSON".into())?;
            printable_json(&text).into_owned() + "\n"
        }
        false if is_first => told(status),
        false => format!("\n{}", told(status)),
    };
    cli::print(text.as_bytes())
}

fn told(status: &AgentStatus) -> String {
    let count = |count: usize, what: &str| match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    };
    let mut text = format!(
        "{}: {} from {}",
        status.interface,
        count(status.applied, "peer"),
        status.source
    );
    if let Some(at) = status.last_list {
        let ago = Duration::from_secs(now().saturating_sub(at));
        text += &format!(", listed {} ago", humantime::format_duration(ago));
    }
    text.push('\n');
    if !status.is_running {
        text += "no agent serves it now: everything stays as it is\n";
    }
    if !status.is_up {
        text += "the interface is not there: its peers are brought when it is\n";
    }
    match (status.state, &status.failure) {
        (_, Some(failure)) => _ = writeln!(text, "failing: {failure}"),
        (SourceState::Listing, None) => {
            text += "the first whole list is not complete: nothing is removed\n"
        }
        _ => {}
    }
    if let Some(failure) = &status.write_back_failure {
        _ = writeln!(text, "failing: {failure}");
    }
    if let Some(held) = status.held {
        let peers = count(held, "peer");
        _ = writeln!(text, "write-back: the endpoints of {peers} are known");
    }
    if let Some(counts) = status.just_in_time {
        _ = writeln!(
            text,
            "just in time: {} found, {} unknown, {} not asked for, {} removed since they were gone",
            counts.found, counts.missing, counts.limited, counts.evicted
        );
    }
    if status.refused > 0 {
        let of = count(status.records, "record");
        _ = writeln!(text, "{} of {of} refused:", status.refused);
    }
    for refused in &status.refusals {
        _ = writeln!(text, "  {}: {}", refused.record, refused.reason);
    }
    if status.refused > status.refusals.len() {
        _ = writeln!(
            text,
            "  and {} more",
            status.refused - status.refusals.len()
        );
    }
    adit_ctl::text::printable_lines(&text).into_owned()
}

/// The first refusals of all.
pub(super) fn first_refusals(list: &RecordList) -> Vec<RefusedRecord> {
    let refused = list.refused().iter().take(MAX_REFUSALS);
    refused
        .map(|(id, reason)| {
            let record = list.waiting(id);
            RefusedRecord {
                record: id.to_string(),
                reason: reason.clone(),
                public_key: record.map(|it| it.public_key.to_string()),
                name: record.and_then(|it| it.name.clone()),
            }
        })
        .collect()
}

/// Tells of records that are refused, and for what, where that is news.
pub(super) fn tell_refusals(
    interface: &str,
    reconciler: &mut Reconciler,
    told: &mut HashMap<RecordId, String>,
) {
    let news = reconciler.refusal_news();
    let refused = reconciler.list().refused();
    let mut count = 0;
    for id in news {
        let Some(why) = refused.get(&id) else {
            told.remove(&id);
            continue;
        };
        if told.get(&id) == Some(why) {
            continue;
        }
        told.insert(RecordId::clone(&id), why.clone());
        if count < TOLD {
            say!("adit: {interface}: {id} is refused: {why}");
        }
        count += 1;
    }
    if let Some(rest @ 1..) = usize::checked_sub(count, TOLD) {
        say!(
            "adit: {interface}: and {rest} more records are refused: `adit agent status {interface}` counts them"
        );
    }
}
