//! Events of the interfaces of a process: what the engine tells, and what looks at the counters
//! show while a client listens.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use adit_ctl::Caller;
use adit_ctl::status::{Change, EventJson, EventKind, Events};
use adit_ctl::uapi::{Configured, Item};
use adit_engine::{EngineReport, Event, EventListener, Incident, Interface};
use adit_proto::config::PublicKey;
use adit_proto::{Access, LastSeen, Liveness, Refusal, Tai64N};
use adit_sandbox::{Role, confine};
use rustix::time::{ClockId, clock_gettime};

use super::names::Names;
use super::resolve::Resolver;

/// How often to look at the counters: what they show is told within 100 ms.
const PERIOD: Duration = Duration::from_millis(50);
/// Looks at many interfaces take a twentieth of a CPU at most.
const SHARE: u32 = 20;
/// How long no packet must be dropped until that counts as the end.
const QUIET: Duration = Duration::from_secs(1);

/// Of the calling thread.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(now).unwrap_or_default()
}

/// Listens to the engine's events.
pub(crate) fn listener(
    interface: &str,
    events: &Arc<Events>,
    names: &Arc<Names>,
    resolver: &Arc<Resolver>,
) -> EventListener {
    let (events, names) = (Arc::clone(events), Arc::clone(names));
    let (interface, resolver) = (interface.to_owned(), Arc::clone(resolver));
    Arc::new(move |event| {
        if let Event::Unanswered { peer } = event {
            resolver.unanswered(&interface, peer);
        }
        if events.is_heard() {
            publish(&events, &names, event);
        }
    })
}

fn publish(events: &Events, names: &Names, event: &Event) {
    tell(names, event, |kind, text, fill| {
        events.publish(kind, text, fill);
    });
}

/// The same event as a line of JSON; `None` if it is none that is told.
pub(crate) fn as_json(interface: &str, names: &Names, event: &Event) -> Option<EventJson> {
    let mut told = None;
    tell(names, event, |kind, text, fill| {
        let mut line = EventJson::new(interface, kind, text);
        fill(&mut line);
        told = Some(line);
    });
    told
}

/// Gives `say` the kind of an event, its text, and what fills the other fields.
fn tell(
    names: &Names,
    event: &Event,
    mut say: impl FnMut(EventKind, String, &dyn Fn(&mut EventJson)),
) {
    let mut say = |kind, text: String, peer: Option<PublicKey>, about: About| {
        say(kind, names.annotate(&text), &|line| {
            line.peer = peer.map(|peer| peer.to_string());
            line.name = peer.and_then(|peer| names.of(&peer));
            line.endpoint = about.endpoint.map(|addr| addr.to_string());
            line.from = about.from.map(|addr| addr.to_string());
            line.reason = about.reason.map(str::to_owned);
            line.count = about.count;
            line.proven = about.is_proven;
            let known = |it: Tai64N| (it != Tai64N::default()).then(|| it.to_string());
            line.sent = about.last.and_then(|last| known(last.sent));
            line.received = about.last.and_then(|last| known(last.received));
        });
    };
    match *event {
        Event::Liveness {
            peer,
            state,
            endpoint,
        } => {
            let (kind, words) = match state {
                Liveness::Unknown => return,
                Liveness::Up => (EventKind::PeerUp, "has a session"),
                Liveness::Silent => (EventKind::PeerSilent, "does not answer"),
                Liveness::Gone => (EventKind::PeerGone, "has not answered for long"),
            };
            let at = endpoint.map_or_else(String::new, |addr| format!(", at {addr}"));
            let about = About {
                endpoint,
                ..About::default()
            };
            say(kind, format!("peer {peer}: {words}{at}"), Some(peer), about);
        }
        Event::Access { peer, access } => {
            let words = match access {
                Access::Open => "has access again",
                Access::Expired => "has no access any more: its time is over",
                Access::OverQuota => "has no access any more: its quota is used up",
            };
            let about = About {
                reason: Some(access.name()),
                ..About::default()
            };
            let text = format!("peer {peer}: {words}");
            say(EventKind::Access, text, Some(peer), about);
        }
        Event::Session { peer, last } => {
            let about = About {
                endpoint: last.at,
                last: Some(last),
                ..About::default()
            };
            let text = format!("peer {peer}: has a new session");
            say(EventKind::Session, text, Some(peer), about);
        }
        Event::Roamed { peer, from, to } => {
            let about = About {
                endpoint: Some(to),
                from: Some(from),
                ..About::default()
            };
            let text = format!("peer {peer}: moved from {from} to {to}");
            say(EventKind::PeerRoamed, text, Some(peer), about);
        }
        // Watchers are told of each initiation in vain.
        Event::Unanswered { .. } => {}
        Event::GivenUp { peer, initiations } => {
            let about = About {
                reason: Some("no_answer"),
                count: Some(initiations.into()),
                ..About::default()
            };
            let text = format!(
                "peer {peer}: handshake given up after {initiations} initiations without an answer"
            );
            say(EventKind::HandshakeFailed, text, Some(peer), about);
        }
        Event::Stranger { outcome, is_proven } => {
            let incident = Incident::Handshake(outcome);
            let (kind, peer, mut about) = of_incident(&incident);
            about.is_proven = Some(is_proven);
            say(kind, incident.to_string(), peer, about);
        }
        Event::Incident { incident, times } => {
            let (kind, peer, mut about) = of_incident(&incident);
            about.count = about.count.or((times > 1).then_some(times));
            say(kind, incident.to_string(), peer, about);
        }
        Event::Others { count } => {
            let about = About {
                count: Some(count),
                ..About::default()
            };
            let text = format!("{count} more events of other addresses");
            say(EventKind::Others, text, None, about);
        }
    }
}

/// The fields of an event besides the peer.
#[derive(Default)]
struct About {
    endpoint: Option<SocketAddr>,
    from: Option<SocketAddr>,
    reason: Option<&'static str>,
    count: Option<u64>,
    is_proven: Option<bool>,
    last: Option<LastSeen>,
}

fn of_incident(incident: &Incident) -> (EventKind, Option<PublicKey>, About) {
    let at = |endpoint| About {
        endpoint: Some(endpoint),
        ..About::default()
    };
    match *incident {
        Incident::Handshake(outcome) => {
            let kind = match outcome.refusal {
                Some(Refusal::UnknownPeer) => EventKind::UnknownPeer,
                _ => EventKind::HandshakeFailed,
            };
            let about = About {
                reason: outcome.refusal.map(Refusal::name),
                ..at(outcome.from)
            };
            (kind, outcome.peer, about)
        }
        Incident::WrongSource { peer, from, .. } => (EventKind::WrongSource, Some(peer), at(from)),
        Incident::InVain {
            peer, to, before, ..
        } => {
            let about = About {
                count: Some(before.into()),
                ..at(to)
            };
            (EventKind::Unanswered, Some(peer), about)
        }
        Incident::NotSent { peer, to, .. } => (EventKind::NotSent, peer, at(to)),
        Incident::Icmp { peer, error } => {
            let about = About {
                reason: Some(error.kind.name()),
                ..at(error.to)
            };
            (EventKind::IcmpError, peer, about)
        }
    }
}

/// A client changed the configuration.
pub(crate) fn configured(events: &Events, change: &Configured) {
    if !events.is_heard() {
        return;
    }
    let Configured { by, changed } = change;
    events.publish(EventKind::Configured, change.to_string(), |line| {
        say_who(line, by);
        let (peer, name) = changed.peer().cloned().unzip();
        line.peer = peer.map(|peer| peer.to_string());
        line.name = name.flatten();
        line.count = (u64::try_from(changed.peers).ok()).filter(|count| *count > 0);
        line.changes = changed.items.iter().map(told).collect();
    });
}

fn told(item: &Item) -> Change {
    let (peer, name) = item.peer.clone().unzip();
    Change {
        what: item.what.to_owned(),
        peer: peer.map(|peer| peer.to_string()),
        name: name.flatten(),
        from: item.from.clone(),
        to: item.to.clone(),
    }
}

/// Another process was the one before, and who asked this one to go on. Those who listened to that one
/// come back.
pub(super) fn upgraded(events: &Events, by: &Caller, text: String) {
    events.publish_first(EventKind::Upgraded, text, |line| say_who(line, by));
}

fn say_who(line: &mut EventJson, by: &Caller) {
    line.pid = Some(by.origin.pid);
    line.uid = Some(by.origin.uid);
    line.login = by.login;
    line.command.clone_from(&by.command);
}

/// One thread that looks at the counters of every interface that a client listens to, as long as
/// there is one.
#[derive(Default)]
pub(crate) struct Looks {
    watched: Mutex<Watching>,
}

#[derive(Default)]
struct Watching {
    interfaces: Vec<WatchedInterface>,
    /// The thread runs.
    runs: bool,
}

struct WatchedInterface {
    interface: Weak<Interface>,
    events: Arc<Events>,
    seen: Option<SeenReport>,
}

impl Looks {
    /// From now on, as long as a client listens to `events`, tells of offloads that are lost, and
    /// of drops. What the engine tells only to listeners, it tells then, or `always`.
    pub(crate) fn watch(
        self: &Arc<Self>,
        interface: &Arc<Interface>,
        events: &Arc<Events>,
        always: bool,
    ) {
        if always {
            interface.listen(true);
        }
        let (looks, handle) = (Arc::downgrade(self), Arc::downgrade(interface));
        let source = Arc::downgrade(events);
        events.on_listen(move |listens| {
            let Some(interface) = handle.upgrade() else {
                return;
            };
            interface.listen(listens || always);
            if let (true, Some(looks), Some(events)) = (listens, looks.upgrade(), source.upgrade())
            {
                looks.add(Arc::downgrade(&interface), events);
            }
        });
    }

    fn add(self: &Arc<Self>, interface: Weak<Interface>, events: Arc<Events>) {
        let mut watching = self.watching();
        watching.interfaces.push(WatchedInterface {
            interface,
            events,
            seen: None,
        });
        if !watching.runs {
            let looks = Arc::clone(self);
            let look = move || {
                if confine(Role::Sockets).is_ok() {
                    looks.run();
                }
            };
            // Without it, other events are told all the same.
            watching.runs = adit_sandbox::start("adit-events", look).is_ok();
        }
    }

    fn run(&self) {
        loop {
            let (start, before) = (Instant::now(), cpu_time());
            // Reports are asked for without the lock: their answers may take a while.
            let mut mine = std::mem::take(&mut self.watching().interfaces);
            mine.retain_mut(WatchedInterface::look);
            let mut watching = self.watching();
            watching.interfaces.append(&mut mine);
            // A client that stopped listening and began again is there twice.
            let mut known: Vec<*const Events> = Vec::new();
            watching.interfaces.retain(|one| {
                let is_new = !known.contains(&Arc::as_ptr(&one.events));
                known.push(Arc::as_ptr(&one.events));
                is_new
            });
            if watching.interfaces.is_empty() {
                watching.runs = false;
                return;
            }
            drop(watching);
            let took = start.elapsed();
            // The control thread works about as long for a look as this one. Waiting for a CPU is
            // no work.
            let work = took.min((cpu_time() - before) * 2);
            std::thread::sleep(PERIOD.saturating_sub(took).max(work * SHARE));
        }
    }

    fn watching(&self) -> MutexGuard<'_, Watching> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatchedInterface {
    /// False if nobody listens any more, or the interface has ended.
    fn look(&mut self) -> bool {
        let Some(interface) = self.interface.upgrade().filter(|_| self.events.is_heard()) else {
            return false;
        };
        let report = interface.report();
        drop(interface);
        match &mut self.seen {
            Some(seen) => {
                let events = &self.events;
                seen.look(&report, Instant::now(), |kind, reason, count, text| {
                    events.publish(kind, text, |line| {
                        line.reason = Some(reason.to_owned());
                        line.count = count;
                    });
                });
            }
            None => self.seen = Some(SeenReport::new(&report)),
        }
        true
    }
}

/// The last report.
struct SeenReport {
    drops: BTreeMap<&'static str, DropCount>,
    offloads: BTreeMap<&'static str, bool>,
}

#[derive(Default)]
struct DropCount {
    count: u64,
    /// While packets are dropped: the count before, and when the last look saw more of them.
    since: Option<(u64, Instant)>,
}

impl SeenReport {
    fn new(report: &EngineReport) -> Self {
        let drops = report.drops.iter().map(|&(reason, count)| {
            let dropping = DropCount { count, since: None };
            (reason, dropping)
        });
        Self {
            drops: drops.collect(),
            offloads: report.offloads.iter().collect(),
        }
    }

    fn look(
        &mut self,
        report: &EngineReport,
        now: Instant,
        mut tell: impl FnMut(EventKind, &str, Option<u64>, String),
    ) {
        for (name, is_on) in report.offloads.iter() {
            if self.offloads.insert(name, is_on) == Some(true) && !is_on {
                let text = format!("offload {name} is off: the kernel or the device failed at it");
                tell(EventKind::OffloadLost, name, None, text);
            }
        }
        for &(reason, count) in &report.drops {
            let dropping = self.drops.entry(reason).or_default();
            let more = count.saturating_sub(dropping.count);
            let before = std::mem::replace(&mut dropping.count, count);
            match &mut dropping.since {
                Some((_, last)) if more > 0 => *last = now,
                Some((begin, last)) if now.duration_since(*last) >= QUIET => {
                    let all = count.saturating_sub(*begin);
                    let text = format!("no more packets are dropped as {reason}; {all} were");
                    dropping.since = None;
                    tell(EventKind::DropsEnded, reason, Some(all), text);
                }
                None if more > 0 => {
                    dropping.since = Some((before, now));
                    let text = format!("packets are dropped as {reason}: {more} so far");
                    tell(EventKind::DropsStarted, reason, Some(more), text);
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
