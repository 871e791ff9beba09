//! What the log says of a proxy's peers: each event where that is asked for, and why a peer does not answer,
//! in the words of `adit why`, as far as it shows from here without any right.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use adit_ctl::status::{EventJson, InterfaceJson};
use adit_engine::{Event, EventListener, Incident};
use adit_proto::config::PublicKey;
use adit_sandbox::Role;

use super::control::TunnelFacts;
use crate::failure::{Context, Result};
use crate::run::level::LogLevel;
use crate::run::names::Names;
use crate::run::watch;
use crate::why;

/// Events that wait for the thread at most; those beyond are lost to it, not to clients.
const WAITING: usize = 256;
/// Events that are kept to tell from why a peer does not answer.
const KEPT: usize = 32;
/// How often it is told of a peer that does not answer.
const AGAIN: Duration = Duration::from_secs(60);

/// What the thread is told.
enum PeerNotice {
    Event(Box<EventJson>),
    /// A handshake with this peer had no answer.
    Unanswered(PublicKey),
    /// It has a session.
    Answered(PublicKey),
}

/// The end of the thread at which events come.
pub(super) struct PeerLog {
    told: Receiver<PeerNotice>,
    level: LogLevel,
    recent: VecDeque<EventJson>,
    /// Since when peers do not answer, and when that was told.
    silent: BTreeMap<PublicKey, (Instant, Option<Instant>)>,
}

/// A listener for the engine, and what it tells.
pub(super) fn listener(
    name: &str,
    clients: EventListener,
    names: &Arc<Names>,
    level: LogLevel,
) -> (EventListener, PeerLog) {
    let (tell, told) = sync_channel(WAITING);
    let (name, names) = (name.to_owned(), Arc::clone(names));
    let listener = move |event: &Event| {
        clients(event);
        tell_of(&tell, &name, &names, event);
    };
    let log = PeerLog {
        told,
        level,
        recent: VecDeque::new(),
        silent: BTreeMap::new(),
    };
    (Arc::new(listener), log)
}

/// On a thread of the engine, which must not wait.
fn tell_of(tell: &SyncSender<PeerNotice>, name: &str, names: &Names, event: &Event) {
    let about = match event {
        Event::Incident {
            incident: Incident::InVain { peer, .. },
            ..
        } => Some(PeerNotice::Unanswered(*peer)),
        Event::Session { peer, .. } => Some(PeerNotice::Answered(*peer)),
        _ => None,
    };
    let event = watch::as_json(name, names, event).map(|event| PeerNotice::Event(Box::new(event)));
    for told in event.into_iter().chain(about) {
        let _ = tell.try_send(told);
    }
}

impl PeerLog {
    /// Writes the log on a thread of its own, until the tunnel has ended.
    pub(super) fn begin(mut self, facts: &Arc<TunnelFacts>, is_known: bool) -> Result<()> {
        let facts = Arc::downgrade(facts);
        let work = move || {
            if adit_sandbox::confine(Role::Proxy).is_ok() {
                while let Ok(told) = self.told.recv() {
                    self.take(told, &facts, is_known);
                }
            }
        };
        let thread = adit_sandbox::start("adit-log", work);
        thread.map(drop).context(|| "cannot start a thread".into())
    }

    fn take(&mut self, told: PeerNotice, facts: &Weak<TunnelFacts>, is_known: bool) {
        match told {
            PeerNotice::Event(event) => {
                self.level
                    .verbose(format_args!("{}: {}", event.interface, event.text));
                self.recent.push_back(*event);
                if self.recent.len() > KEPT {
                    self.recent.pop_front();
                }
            }
            PeerNotice::Answered(peer) => {
                if let Some((_, Some(_))) = self.silent.remove(&peer) {
                    self.level.error(format_args!("peer {peer} answers"));
                }
            }
            PeerNotice::Unanswered(peer) => {
                let now = Instant::now();
                let (since, last) = self.silent.entry(peer).or_insert((now, None));
                if last.is_some_and(|last| now.duration_since(last) < AGAIN) {
                    return;
                }
                *last = Some(now);
                let waited = now.duration_since(*since) + adit_proto::limits::REKEY_TIMEOUT;
                let status = facts.upgrade().and_then(|facts| facts.status());
                if let Some(line) =
                    status.and_then(|status| self.explain(&status, &peer, waited, is_known))
                {
                    self.level.error(line);
                }
            }
        }
    }

    /// Why a peer does not answer, most likely, and what to type next.
    fn explain(
        &self,
        status: &InterfaceJson,
        peer: &PublicKey,
        waited: Duration,
        is_known: bool,
    ) -> Option<String> {
        let key = peer.to_string();
        let peer = status.peers.iter().find(|peer| peer.public_key == key)?;
        let events: Vec<EventJson> = self.recent.iter().cloned().collect();
        let found = why::of_silent_peer(status, peer, &events, waited);
        let name = peer
            .name
            .as_ref()
            .map_or_else(String::new, |name| format!(" ({name})"));
        let first = found.first()?;
        let next = match (is_known, first.commands.first()) {
            (true, _) => format!("; `adit why {}` tells more", status.name),
            (false, Some(command)) => format!("; next: {command}"),
            (false, None) => String::new(),
        };
        Some(format!(
            "peer {key}{name} does not answer: {}{next}",
            first.text
        ))
    }
}
