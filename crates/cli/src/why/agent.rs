//! A peer that is not there because of the agent that brings the peers of its interface.

use std::path::Path;

use adit_ctl::status::PeerJson;
use adit_fleet::{AgentStatus, RefusedRecord, SourceState};

use adit_proto::limits::REJECT_AFTER_TIME;

use super::attempt::is_fresh;
use super::causes::{Cause, Certainty, Finding};
use crate::agent::{held_path, status_of};
use crate::cli::AGENT_DIR;
use crate::show;

/// Why the peer that `words` name, or any, is not there; `None` if no agent has served the interface.
pub(super) fn missing(interface: &str, words: Option<&str>) -> Option<Finding> {
    let status = match status_of(Path::new(AGENT_DIR), interface) {
        Ok(status) => status?,
        Err(error) => {
            let text = format!("the status of the agent of {interface} cannot be read: {error}");
            return Some(not_brought(interface, text));
        }
    };
    Some(of_status(&status, words))
}

fn of_status(status: &AgentStatus, words: Option<&str>) -> Finding {
    let (name, source) = (&status.interface, &status.source);
    let refused = status.refusals.iter();
    let refused = refused.filter(|it| words.is_none_or(|words| is_meant(it, words)));
    // One of several may be the one that is meant: the first is told, and the command has all.
    if let Some(RefusedRecord { record, reason, .. }) = { refused }.next() {
        let text = format!("the agent of {name} refuses the record {record} of {source}: {reason}");
        return Finding::new(Cause::RecordRefused, Certainty::Certain, text)
            .run(format!("adit agent status {name}"));
    }
    let what = words.map_or("any peer".to_owned(), |words| format!("a peer {words}"));
    if !status.is_running {
        let text = format!(
            "the peers of {name} come from {source}, and no agent brings them now: what was added there since is not here"
        );
        return not_brought(name, text)
            .run(format!("systemctl start adit-agent@{name}"))
            .run(format!("adit agent {name} --source {source}"));
    }
    let text = match (status.state, &status.failure) {
        (_, Some(why)) => format!("the agent of {name} cannot bring what {source} has: {why}"),
        (SourceState::Listing, None) => {
            format!("the agent of {name} has not read {source} whole yet")
        }
        _ if status.refused > status.refusals.len() => format!(
            "{source}, from which the peers of {name} come, has no good record of {what}. {} records are refused, and \
             not all of them are known by name",
            status.refused
        ),
        _ => format!("{source}, from which the peers of {name} come, has no record of {what}"),
    };
    not_brought(name, text)
}

/// That another gateway has the peer, if that is so.
pub(super) fn elsewhere(interface: &str, peer: &PeerJson) -> Option<Finding> {
    if is_fresh(peer) {
        return None;
    }
    let dir = Path::new(AGENT_DIR);
    let own = status_of(dir, interface).ok()??.gateway?;
    let list = std::fs::read_to_string(held_path(dir, interface)).ok()?;
    let (gateway, at, since) = holder(&list, &peer.public_key)?;
    // No session is older.
    let is_over = show::now().saturating_sub(since) >= REJECT_AFTER_TIME.as_secs();
    if gateway == own || is_over {
        return None;
    }
    let text = format!(
        "gateway {gateway} has the peer, which is at {at}; this one is {own}. Nothing was tried: a handshake would move \
         the peer here"
    );
    let call = format!(
        "adit call {interface} --endpoints {}",
        held_path(dir, interface).display()
    );
    Some(
        Finding::new(Cause::OtherGateway, Certainty::Likely, text)
            .run(format!("at {gateway}: adit why {interface}"))
            .run(format!("if {gateway} has died: {call}")),
    )
}

/// The gateway and the endpoint of a peer in the list of an agent, and since when, in seconds since the Unix epoch.
fn holder<'a>(list: &'a str, key: &str) -> Option<(&'a str, &'a str, u64)> {
    let mut lines = list.lines().map(str::split_whitespace);
    let mut words = lines.find_map(|mut words| (words.next() == Some(key)).then_some(words))?;
    let at = words.next()?;
    let since = words.nth(2)?.parse().ok()?;
    Some((words.next()?, at, since))
}

fn not_brought(interface: &str, text: String) -> Finding {
    Finding::new(Cause::NotBrought, Certainty::Certain, text)
        .run(format!("adit agent status {interface}"))
}

/// Whether these words are the record's name or its peer's, or the beginning of its key.
fn is_meant(refused: &RefusedRecord, words: &str) -> bool {
    let lower = words.to_lowercase();
    let names = [Some(&refused.record), refused.name.as_ref()];
    let is_named = |name: &String| name.to_lowercase().contains(&lower);
    let key = words.strip_suffix('…').unwrap_or(words);
    names.into_iter().flatten().any(is_named)
        || (refused.public_key.as_deref()).is_some_and(|it| !key.is_empty() && it.starts_with(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> AgentStatus {
        AgentStatus {
            interface: "wg0".into(),
            source: "dir:/peers".into(),
            is_running: true,
            state: SourceState::Listed,
            refused: 2,
            refusals: vec![
                RefusedRecord {
                    record: "bad.conf".into(),
                    reason: "line 2: no key".into(),
                    public_key: None,
                    name: None,
                },
                RefusedRecord {
                    record: "7.conf".into(),
                    reason: "another has the key".into(),
                    public_key: Some("KEY+of+alice=".into()),
                    name: Some("Alice".into()),
                },
            ],
            ..AgentStatus::default()
        }
    }

    fn found(status: &AgentStatus, words: Option<&str>) -> (Cause, String) {
        let finding = of_status(status, words);
        (finding.cause, finding.text)
    }

    #[test]
    fn a_refused_record_is_found_by_its_name_that_of_its_peer_and_its_key() {
        for (words, record) in [
            (Some("bad"), "bad.conf"),
            (Some("alice"), "7.conf"),
            (Some("KEY+of"), "7.conf"),
            (Some("KEY+of…"), "7.conf"),
            (None, "bad.conf"),
        ] {
            let (cause, text) = found(&status(), words);
            assert_eq!(cause, Cause::RecordRefused, "{words:?}");
            assert!(text.contains(record), "{words:?}: {text}");
        }
    }

    #[test]
    fn the_list_of_an_agent_says_which_gateway_has_a_peer() {
        let list = "KEY1\t192.0.2.1:7\t-\t@4000\t5\ta\nKEY2\t192.0.2.2:7\t-\t-\t9\tb\nKEY3\n";
        assert_eq!(holder(list, "KEY2"), Some(("b", "192.0.2.2:7", 9)));
        assert_eq!(holder(list, "KEY"), None);
        assert_eq!(holder(list, "KEY3"), None);
    }

    #[test]
    fn what_keeps_an_agent_from_bringing_a_peer_is_told() {
        let of = |change: &dyn Fn(&mut AgentStatus)| {
            let mut status = status();
            change(&mut status);
            let (cause, text) = found(&status, Some("bob"));
            assert_eq!(cause, Cause::NotBrought, "{text}");
            text
        };
        assert!(of(&|_| {}).contains("has no record of a peer bob"));
        assert!(of(&|it| it.refused = 200).contains("not all of them"));
        assert!(of(&|it| it.state = SourceState::Listing).contains("not read dir:/peers whole"));
        assert!(of(&|it| it.failure = Some("gone".into())).contains("/peers has: gone"));
        assert!(of(&|it| it.is_running = false).contains("no agent brings them now"));
    }
}
