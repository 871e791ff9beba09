//! One handshake with each peer, and what happens meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use adit_ctl::status::{self, EventJson, EventKind, InterfaceJson, PeerJson};
use adit_proto::limits::{REKEY_JITTER, REKEY_TIMEOUT};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::diagnose::concerns;
use super::evidence::Evidence;
use super::reach::reach;
use crate::events::EventStream;
use crate::failure::Result;
use crate::show;

/// How long to listen on when a handshake has failed, for what else there is.
const GRACE: Duration = Duration::from_secs(1);
/// How often to look at an implementation that tells no events.
const LOOK: Duration = Duration::from_millis(250);
/// How old a handshake may be while there is traffic: Reject-After-Time.
const FRESH: u64 = 180;

pub(super) struct Attempt {
    /// Absent where there are no events.
    source: Option<EventStream>,
    events: Vec<EventJson>,
    /// The peers that have a new session, by key.
    sessions: BTreeSet<String>,
    not_tried: BTreeMap<String, String>,
    waited: Duration,
    /// When it began: seconds since the Unix epoch.
    since: u64,
}

impl Attempt {
    /// Has an Adit begin handshakes, and listens until each has succeeded or failed, or was not
    /// answered within `wait`.
    pub(super) fn of_adit(
        name: &str,
        seen: &[Evidence],
        wait: Duration,
        say: impl Fn(String),
    ) -> Result<Self> {
        let mut attempt = Self::new(wait);
        let listening = status::listen(name).and_then(EventStream::new);
        attempt.source = Some(listening.map_err(|error| show::explain(name, error.into()))?);
        // Until it says so, nobody is told of what a request causes that is heard first.
        let start = Instant::now();
        while attempt.events.is_empty() && start.elapsed() < wait {
            attempt.go_on(LOOK);
        }
        let mut due = Duration::ZERO;
        let mut begun = 0;
        for one in seen.iter().filter(|one| one.up) {
            if one.endpoint.is_none() {
                begun += 1;
                continue;
            }
            let key = &one.peer.public_key;
            match status::probe(name, key) {
                Ok(probe) => match (probe.milliseconds, probe.error) {
                    (Some(milliseconds), _) => {
                        due = due.max(until_begun(milliseconds));
                        begun += 1;
                    }
                    (None, error) => attempt.is_not_tried(key, &error.unwrap_or_default()),
                },
                Err(error) => {
                    let text =
                        format!("the process of {name} begins no handshake when asked: {error}");
                    attempt.is_not_tried(key, &text);
                }
            }
        }
        if begun == 0 {
            return Ok(attempt);
        }
        if due > GRACE {
            say(format!(
                "the next handshake may begin in {} s; then up to {} s for an answer",
                due.as_secs() + 1,
                wait.as_secs()
            ));
        } else {
            say(format!("up to {} s for an answer", wait.as_secs()));
        }
        let start = Instant::now();
        let end = start + due + wait;
        let mut settled: BTreeMap<&str, Instant> = BTreeMap::new();
        while Instant::now() < end {
            attempt.go_on(Duration::from_millis(50));
            for one in seen.iter().filter(|one| one.up) {
                let key = one.peer.public_key.as_str();
                if attempt.sessions.contains(key) || attempt.not_tried.contains_key(key) {
                    settled.entry(key).or_insert(start);
                } else if start.elapsed() >= due && attempt.failed(one) {
                    settled.entry(key).or_insert(Instant::now() + GRACE);
                }
            }
            let count = settled.values().filter(|at| **at <= Instant::now()).count();
            if count == seen.len() {
                break;
            }
        }
        Ok(attempt)
    }

    /// Another implementation: a packet to the peer is what begins a handshake.
    pub(super) fn of_another(
        name: &str,
        seen: &[Evidence],
        wait: Duration,
        say: impl Fn(String),
    ) -> Self {
        let mut attempt = Self::new(wait);
        say(format!(
            "{name} is not served by Adit: less can be seen; up to {} s for an answer",
            wait.as_secs()
        ));
        let mut waiting: BTreeSet<&str> = BTreeSet::new();
        for one in seen.iter().filter(|one| one.up) {
            let key = one.peer.public_key.as_str();
            match one.inner_address() {
                Some(to) => {
                    waiting.insert(key);
                    std::thread::spawn(move || reach(to, 8));
                }
                None => attempt
                    .is_not_tried(key, "no address inside is known that a packet could go to"),
            }
        }
        let end = Instant::now() + wait;
        while Instant::now() < end && attempt.sessions.len() < waiting.len() {
            std::thread::sleep(LOOK);
            let Ok(status) = show::interface_status(name) else {
                break;
            };
            for peer in &status.peers {
                // Within a session no new handshake comes.
                if waiting.contains(peer.public_key.as_str()) && is_fresh(peer) {
                    attempt.sessions.insert(peer.public_key.clone());
                }
            }
        }
        attempt
    }

    fn new(waited: Duration) -> Self {
        Self {
            source: None,
            events: Vec::new(),
            sessions: BTreeSet::new(),
            not_tried: BTreeMap::new(),
            waited,
            since: show::now(),
        }
    }

    fn is_not_tried(&mut self, key: &str, why: &str) {
        self.not_tried.insert(key.to_owned(), why.to_owned());
    }

    /// Whether there is more to hear.
    pub(super) fn listens(&self) -> bool {
        self.source.is_some()
    }

    /// Listens for a while.
    pub(super) fn go_on(&mut self, timeout: Duration) {
        let Some(source) = &mut self.source else {
            return;
        };
        let timeout = Timespec::try_from(timeout).ok();
        let mut polled = [PollFd::new(source.stream(), PollFlags::IN)];
        _ = poll(&mut polled, timeout.as_ref());
        let events = &mut self.events;
        let goes_on = source.take(|line| {
            events.extend(serde_json::from_slice::<EventJson>(line).ok());
            Ok(())
        });
        if !matches!(goes_on, Ok(true)) {
            self.source = None;
        }
        let sessions = self
            .events
            .iter()
            .filter(|event| event.event == EventKind::Session.name());
        self.sessions
            .extend(sessions.filter_map(|event| event.peer.clone()));
    }

    /// Whether something says why the handshake fails.
    fn failed(&self, seen: &Evidence) -> bool {
        let kinds = [
            EventKind::NotSent,
            EventKind::IcmpError,
            EventKind::HandshakeFailed,
            EventKind::UnknownPeer,
        ];
        let is_failure = |event: &&EventJson| kinds.iter().any(|kind| kind.name() == event.event);
        let key = &seen.peer.public_key;
        let endpoint = seen.endpoint.map(|to| to.ip());
        let mut failures = self.events.iter().filter(is_failure);
        failures.any(|event| concerns(event, key, endpoint))
    }

    /// Adds to what is known of a peer.
    pub(super) fn tell(&self, seen: &mut Evidence, before: &InterfaceJson, after: &InterfaceJson) {
        let key = seen.peer.public_key.clone();
        // What comes from the address of another peer is not this one's.
        let others: Vec<&str> = (before.peers.iter())
            .filter(|peer| peer.public_key != key && peer.endpoint != seen.peer.endpoint)
            .filter_map(|peer| peer.endpoint.as_deref())
            .collect();
        let is_others = |event: &EventJson| {
            let from = event.endpoint.as_deref();
            event.peer.as_ref() != Some(&key) && from.is_some_and(|from| others.contains(&from))
        };
        let endpoint = seen.endpoint.map(|to| to.ip());
        let concerned = |event: &&EventJson| concerns(event, &key, endpoint) && !is_others(event);
        seen.events = self.events.iter().filter(concerned).cloned().collect();
        seen.not_tried = self.not_tried.get(&key).cloned();
        (seen.waited, seen.since) = (self.waited, self.since);
        let peer = |status: &InterfaceJson| {
            let mut peers = status.peers.iter();
            peers.find(|peer| peer.public_key == key).cloned()
        };
        let latest = |peer: Option<PeerJson>| peer?.latest_handshake;
        let refused = |peer: Option<PeerJson>| {
            peer.and_then(|peer| peer.drops.get("wrong_source").copied())
                .unwrap_or(0)
        };
        seen.wrong_sources = refused(peer(after)).saturating_sub(refused(peer(before)));
        if let Some(peer) = peer(after) {
            seen.peer = peer;
        }
        seen.session = match seen.not_tried {
            // What was before tells.
            Some(_) => is_fresh(&seen.peer),
            None => self.sessions.contains(&key) || latest(peer(before)) != latest(peer(after)),
        };
        let counters = |status: &InterfaceJson| {
            let engine = status.engine.as_ref();
            engine
                .map(|engine| engine.handshakes.clone())
                .unwrap_or_default()
        };
        seen.counters = [counters(before), counters(after)];
    }
}

/// Until an initiation leaves: no longer than the protocol makes one wait, whatever is answered.
fn until_begun(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds).min(REKEY_TIMEOUT + REKEY_JITTER)
}

/// There is a session that packets may use, as far as that can be told without one.
pub(super) fn is_fresh(peer: &PeerJson) -> bool {
    peer.latest_handshake
        .is_some_and(|at| at + FRESH >= show::now())
        && peer.unanswered.unwrap_or(0) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_answer_makes_it_wait_longer_than_the_protocol_does() {
        let longest = Duration::from_millis(5_333);
        for (said, is) in [
            (0, Duration::ZERO),
            (4_999, Duration::from_millis(4_999)),
            (5_333, longest),
            (5_334, longest),
            (u64::MAX, longest),
        ] {
            assert_eq!(until_begun(said), is, "{said}");
        }
    }
}
