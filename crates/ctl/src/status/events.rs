//! Events of an interface, as lines of JSON.
//!
//! All listeners of an interface read from one queue of the last [`KEPT`] events, each at its own
//! pace. A listener that falls behind costs nothing more, and nobody waits for it: it is told how
//! many events it has missed. Without listeners nothing is kept, and nothing is even made.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use crate::socket::Poker;

/// Version of the lines.
pub const EVENT_SCHEMA: u32 = 1;
/// Events of one interface that are kept for slow listeners.
const KEPT: usize = 1024;
/// How long an event is kept of how a process began.
const RECENT: Duration = Duration::from_secs(10);
/// Lines that a listener is given at once.
const GIVEN_AT_ONCE: usize = 64;

documented! {
    /// One line of `adit events --json`.
    #[derive(Default)]
    pub struct EventJson {
        /// Version of the lines. Fields and kinds may be added under the same version.
        pub schema: u32,
        /// When: seconds since the Unix epoch, with a fraction.
        pub time: f64,
        /// The interface.
        pub interface: String,
        /// What happened: see EVENTS.
        pub event: String,
        /// The public key of the peer that it is about, in base64.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub peer: Option<String>,
        /// What people call that peer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
        /// The address and port that it is reached at, that something came from, or that something
        /// was sent to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub endpoint: Option<String>,
        /// The endpoint before it roamed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub from: Option<String>,
        /// Why: a name of adit-show(1), as of a refusal, a drop or an offload.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub reason: Option<String>,
        /// How often it happened, if that is more than once, or how many packets.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub count: Option<u64>,
        /// Of a new session: the timestamp of this host's last initiation to the peer, as TAI64N.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub sent: Option<String>,
        /// The greatest timestamp of the peer's initiations.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub received: Option<String>,
        /// Of an unknown peer: whether it has shown that it receives at `endpoint`. It has no need to while few begin a
        /// handshake.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub proven: Option<bool>,
        /// The process that changed the configuration, as the kernel names it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub pid: Option<i32>,
        /// The user that it runs as.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub uid: Option<u32>,
        /// The user behind a process of root: who logged in, or who used sudo(8) or its like.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub login: Option<u32>,
        /// The name of its program.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub command: Option<String>,
        /// What changed: the first 16 values.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub changes: Vec<Change>,
        /// The same for people: one line.
        pub text: String,
    }

    /// A value of an interface or of a peer that a client changed.
    pub struct Change {
        /// Its name. `added` and `removed` are about a whole peer; of a preshared key nothing else is told.
        pub what: String,
        /// The public key of the peer whose it is, if it is a peer's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub peer: Option<String>,
        /// What people call that peer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
        /// What it was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub from: Option<String>,
        /// What it is now; of an added peer its allowed IPs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub to: Option<String>,
    }
}

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $variant:ident => $name:literal,)+) => {
        /// What can happen.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum EventKind {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl EventKind {
            /// Every kind, with its name and what it means.
            pub const EXPLAINED: &'static [(&'static str, &'static str)] =
                &[$(($name, concat!($($doc),+).trim_ascii()),)+];

            /// The name in the lines.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

kinds! {
    /// The first line: events from now on follow.
    Listening => "listening",
    /// This listener was too slow, and missed `count` events.
    Missed => "missed",
    /// A session with the peer is there, for the first time or again.
    PeerUp => "peer_up",
    /// A handshake with the peer succeeded: the first, or the one that comes every two minutes while
    /// there is traffic.
    Session => "session",
    /// The peer does not answer: neither data for 15 seconds, nor an initiation for 5 seconds.
    PeerSilent => "peer_silent",
    /// The peer has not answered for 90 seconds, or there was no new session for 9 minutes.
    PeerGone => "peer_gone",
    /// An authentic packet of the peer came from another address or port than before.
    PeerRoamed => "peer_roamed",
    /// The access of the peer has ended, `reason` being `expired` or `over_quota`, or it has access again,
    /// `open`.
    Access => "access",
    /// A handshake message was refused, or a handshake was given up.
    HandshakeFailed => "handshake_failed",
    /// An initiation is of a key, `peer`, that no peer of this interface has.
    UnknownPeer => "unknown_peer",
    /// A packet of a peer has an inner source that is not among the peer's allowed IPs.
    WrongSource => "wrong_source",
    /// A message of a handshake left, and those before it were in vain.
    Unanswered => "unanswered",
    /// Something could not be sent.
    NotSent => "not_sent",
    /// An ICMP error came back. It may be forged.
    IcmpError => "icmp_error",
    /// More of the events that came in a flood from many addresses.
    Others => "others",
    /// A client changed the configuration, the names of peers or the threads: see `changes`. `count`
    /// peers were added, changed or removed.
    Configured => "configured",
    /// Another line of the log, which `--since` found in the journal.
    Logged => "logged",
    /// A new process goes on in place of the one before (`adit upgrade`).
    Upgraded => "upgraded",
    /// An offload was turned off, because the kernel or the device failed at it.
    OffloadLost => "offload_lost",
    /// Packets are dropped for a reason for which none were in the last second.
    DropsStarted => "drops_started",
    /// None were in the last second; `count` were since that began.
    DropsEnded => "drops_ended",
}

impl EventJson {
    /// An event of now.
    pub fn new(interface: &str, kind: EventKind, text: String) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            schema: EVENT_SCHEMA,
            // Milliseconds are enough, and are the same digits in every reader.
            time: (now.map_or(0.0, |now| now.as_secs_f64()) * 1000.0).round() / 1000.0,
            interface: interface.to_owned(),
            event: kind.name().to_owned(),
            text,
            ..Self::default()
        }
    }

    fn line(&self) -> Arc<[u8]> {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line.into()
    }
}

/// Called when the first listener comes (true), and when the last one goes (false).
type OnListen = Box<dyn Fn(bool) + Send + Sync>;

/// The events of one interface.
pub struct Events {
    interface: String,
    queue: Mutex<Queue>,
    listeners: AtomicUsize,
    /// Wakes the thread that serves the listeners.
    poker: OnceLock<Poker>,
    on_listen: OnceLock<OnListen>,
}

#[derive(Default)]
struct Queue {
    /// How this process began: when, the number of the line, and the line.
    kept: Option<(Instant, u64, Arc<[u8]>)>,
    lines: VecDeque<Arc<[u8]>>,
    /// The number of the first line, counted from the first event.
    first: u64,
}

impl Events {
    /// None yet.
    pub fn new(interface: &str) -> Arc<Self> {
        Arc::new(Self {
            interface: interface.to_owned(),
            queue: Mutex::default(),
            listeners: AtomicUsize::new(0),
            poker: OnceLock::new(),
            on_listen: OnceLock::new(),
        })
    }

    /// Calls `on_listen` from now on when the first listener comes and when the last one goes.
    pub fn on_listen(&self, on_listen: impl Fn(bool) + Send + Sync + 'static) {
        _ = self.on_listen.set(Box::new(on_listen));
    }

    /// Whether anybody listens: if not, there is no use in making events.
    pub fn is_heard(&self) -> bool {
        self.listeners.load(Ordering::Relaxed) > 0
    }

    /// Something happened as this process began. Those who listened to the process before this one
    /// come within ten seconds, and are told, too.
    pub fn publish_first(&self, kind: EventKind, text: String, fill: impl FnOnce(&mut EventJson)) {
        let mut event = EventJson::new(&self.interface, kind, text);
        fill(&mut event);
        let line = event.line();
        let mut queue = self.queue();
        let number = queue.first + queue.lines.len() as u64;
        match self.is_heard() {
            true => queue.lines.push_back(Arc::clone(&line)),
            false => queue.first += 1,
        }
        queue.kept = Some((Instant::now(), number, line));
        drop(queue);
        if let Some(poker) = self.poker.get() {
            poker.poke();
        }
    }

    /// Something happened. This never waits for a listener.
    pub fn publish(&self, kind: EventKind, text: String, fill: impl FnOnce(&mut EventJson)) {
        if !self.is_heard() {
            return;
        }
        let mut event = EventJson::new(&self.interface, kind, text);
        fill(&mut event);
        let mut queue = self.queue();
        queue.lines.push_back(event.line());
        if queue.lines.len() > KEPT {
            queue.lines.pop_front();
            queue.first += 1;
        }
        drop(queue);
        if let Some(poker) = self.poker.get() {
            poker.poke();
        }
    }

    pub(super) fn wake_by(&self, poker: Poker) {
        _ = self.poker.set(poker);
    }

    pub(super) fn listen(self: &Arc<Self>) -> Listener {
        // What is published from here on is kept.
        let is_first = self.listeners.fetch_add(1, Ordering::AcqRel) == 0;
        let queue = self.queue();
        let next = queue.first + queue.lines.len() as u64;
        drop(queue);
        if is_first {
            self.tell(true);
        }
        Listener {
            events: Arc::clone(self),
            next,
        }
    }

    fn tell(&self, listens: bool) {
        if let Some(on_listen) = self.on_listen.get() {
            on_listen(listens);
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One listener, and how far it has come.
pub(super) struct Listener {
    events: Arc<Events>,
    /// The number of the next line that it is to be given.
    next: u64,
}

impl Listener {
    /// The first lines.
    pub(super) fn greeting(&self) -> Vec<Arc<[u8]>> {
        let text = "events from now on follow".to_owned();
        let event = EventJson::new(&self.events.interface, EventKind::Listening, text);
        let queue = self.events.queue();
        let kept = queue.kept.as_ref();
        let kept = kept.filter(|(at, number, _)| at.elapsed() < RECENT && *number < self.next);
        let kept = kept.map(|(.., line)| Arc::clone(line));
        std::iter::once(event.line()).chain(kept).collect()
    }

    /// Hands over the next lines, if there are any: a bounded number.
    pub(super) fn take(&mut self, mut out: impl FnMut(&[u8])) {
        let queue = self.events.queue();
        let missed = queue.first.saturating_sub(self.next);
        self.next += missed;
        let from = usize::try_from(self.next - queue.first).unwrap_or(usize::MAX);
        let lines: Vec<Arc<[u8]>> = (queue.lines.iter().skip(from))
            .take(GIVEN_AT_ONCE)
            .cloned()
            .collect();
        drop(queue);
        if missed > 0 {
            let text = format!("{missed} events were missed: this reader is too slow");
            let mut event = EventJson::new(&self.events.interface, EventKind::Missed, text);
            event.count = Some(missed);
            out(&event.line());
        }
        self.next += lines.len() as u64;
        lines.iter().for_each(|line| out(line));
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.events.listeners.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut queue = self.events.queue();
            queue.first += queue.lines.len() as u64;
            queue.lines = VecDeque::new();
            drop(queue);
            self.events.tell(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(lines: &[u8]) -> Vec<EventJson> {
        let lines = lines.split_inclusive(|byte| *byte == b'\n');
        lines
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }

    fn taken(listener: &mut Listener) -> Vec<EventJson> {
        let mut lines = Vec::new();
        listener.take(|line| lines.extend_from_slice(line));
        text(&lines)
    }

    fn publish(events: &Events, number: usize) {
        events.publish(EventKind::Configured, number.to_string(), |_| ());
    }

    #[test]
    fn without_a_listener_no_event_is_made() {
        let events = Events::new("wg0");
        events.publish(EventKind::PeerUp, String::new(), |_| {
            panic!("nobody reads it")
        });
        let mut listener = events.listen();
        assert!(taken(&mut listener).is_empty());
        publish(&events, 1);
        let lines = taken(&mut listener);
        assert_eq!((lines[0].text.as_str(), lines[0].schema), ("1", 1));
        assert_eq!((lines[0].interface.as_str(), lines.len()), ("wg0", 1));
    }

    #[test]
    fn a_slow_listener_learns_how_many_events_it_missed() {
        let events = Events::new("wg0");
        let (mut slow, mut quick) = (events.listen(), events.listen());
        let mut heard = Vec::new();
        for number in 0..KEPT + 10 {
            publish(&events, number);
            heard.extend(taken(&mut quick));
        }
        assert_eq!(heard.len(), KEPT + 10);
        assert_eq!(events.queue().lines.len(), KEPT);
        let lines = taken(&mut slow);
        assert_eq!(
            (lines[0].event.as_str(), lines[0].count),
            ("missed", Some(10))
        );
        assert_eq!(lines[1].text, "10");
        assert_eq!(lines.len(), 1 + GIVEN_AT_ONCE);
        assert_eq!(taken(&mut slow)[0].text, (10 + GIVEN_AT_ONCE).to_string());
    }

    #[test]
    fn how_a_process_began_is_told_once_to_those_who_come_soon() {
        let greeting = |listener: &Listener| text(&listener.greeting().concat());
        let events = Events::new("wg0");
        let mut early = events.listen();
        events.publish_first(EventKind::Upgraded, "new".into(), |event| {
            event.pid = Some(7)
        });
        assert_eq!(greeting(&early).len(), 1);
        assert_eq!(taken(&mut early)[0].text, "new");
        drop(early);
        let events = Events::new("wg0");
        events.publish_first(EventKind::Upgraded, "new".into(), |event| {
            event.pid = Some(7)
        });
        let mut late = events.listen();
        let said = greeting(&late);
        assert_eq!((said[1].event.as_str(), said[1].pid), ("upgraded", Some(7)));
        assert!(taken(&mut late).is_empty());
        events.queue().kept.as_mut().unwrap().0 -= RECENT;
        assert_eq!(greeting(&events.listen()).len(), 1);
    }

    #[test]
    fn the_first_and_the_last_listener_are_noticed() {
        let events = Events::new("wg0");
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = Arc::clone(&told);
        events.on_listen(move |listens| tell.lock().unwrap().push(listens));
        let (one, two) = (events.listen(), events.listen());
        drop(one);
        publish(&events, 1);
        drop(two);
        assert_eq!(*told.lock().unwrap(), [true, false]);
        assert!(events.queue().lines.is_empty() && !events.is_heard());
    }
}
