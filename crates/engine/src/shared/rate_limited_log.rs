//! The rate-limited log of mistakes and failures, for `verbose`: few lines, also under a flood.
//!
//! Each cause and source has a line at once, then one a second that counts the repeats. The number
//! of sources with lines of their own is bounded, and the others are counted together. Shards only
//! leave a note: the control thread writes the lines. At other log levels, and while nobody listens
//! to events, nothing is noted.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use adit_io::{IcmpError, IcmpKind};
use adit_proto::config::PublicKey;
use adit_proto::{HandshakeKind, HandshakeOutcome, Refusal, Time};
use rustix::io::Errno;

use crate::thread::lock::lock;

/// How long a cause and source that had a line waits for its next one.
const PAUSE: Duration = Duration::from_secs(1);
/// Sources of one cause that have lines of their own at a time, and of all causes.
const SOURCES_OF_CAUSE: usize = 8;
const SOURCES: usize = 32;

/// An incident, for people who look for a fault. Nothing in it is secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// A handshake message was refused.
    Handshake(HandshakeOutcome),
    /// A packet of a peer has an inner source that is not among the peer's allowed IPs.
    WrongSource {
        /// The peer, which is certain: the packet was authentic.
        peer: PublicKey,
        /// Where the datagram came from.
        from: SocketAddr,
        /// The source address of the packet inside.
        source: IpAddr,
    },
    /// A message of a handshake left, and those before it were in vain.
    InVain {
        /// The peer it was for.
        peer: PublicKey,
        /// An initiation or a response.
        kind: HandshakeKind,
        /// Where it went.
        to: SocketAddr,
        /// How many of its kind left before it: initiations without an answer, or responses that
        /// led to no session.
        before: u32,
    },
    /// Something could not be sent.
    NotSent {
        /// The peer that it was for; `None` for a cookie reply.
        peer: Option<PublicKey>,
        /// The message of a handshake; `None` for data.
        kind: Option<HandshakeKind>,
        /// Where it was to go.
        to: SocketAddr,
        /// The kernel's error; `None` if there is no socket of the address family.
        error: Option<Errno>,
    },
    /// An ICMP error came back. It may be forged.
    Icmp {
        /// The peer whose endpoint it names.
        peer: Option<PublicKey>,
        /// Its contents.
        error: IcmpError,
    },
}

/// An address as it counts for limits of a source: an IPv4 address, or the network of an IPv6 one, in which a host has
/// as many as it likes.
pub fn source_network(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => ip.into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
    }
}

/// The fields by which the log takes two incidents for the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum LogCause {
    Handshake(Option<Refusal>),
    WrongSource,
    InVain(HandshakeKind),
    NotSent(Option<Errno>),
    Icmp(IcmpKind),
}

impl Incident {
    fn cause(&self) -> LogCause {
        match self {
            Self::Handshake(outcome) => LogCause::Handshake(outcome.refusal),
            Self::WrongSource { .. } => LogCause::WrongSource,
            Self::InVain { kind, .. } => LogCause::InVain(*kind),
            Self::NotSent { error, .. } => LogCause::NotSent(*error),
            Self::Icmp { error, .. } => LogCause::Icmp(error.kind),
        }
    }

    /// The other end as it counts for the log.
    pub(crate) fn source(&self) -> IpAddr {
        let addr = match self {
            Self::Handshake(outcome) => outcome.from,
            Self::WrongSource { from, .. } => *from,
            Self::InVain { to, .. } | Self::NotSent { to, .. } => *to,
            Self::Icmp { error, .. } => error.to,
        };
        source_network(addr.ip())
    }

    /// The peer that the line begins with. The key of a stranger stands in the line itself.
    fn peer(&self) -> Option<PublicKey> {
        match self {
            Self::Handshake(outcome) => outcome
                .peer
                .filter(|_| outcome.refusal != Some(Refusal::UnknownPeer)),
            Self::WrongSource { peer, .. } | Self::InVain { peer, .. } => Some(*peer),
            Self::NotSent { peer, .. } | Self::Icmp { peer, .. } => *peer,
        }
    }
}

impl fmt::Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(peer) = self.peer() {
            write!(f, "peer {peer}: ")?;
        }
        match self {
            Self::Handshake(outcome) => outcome.fmt(f),
            Self::WrongSource { from, source, .. } => write!(
                f,
                "packet from {from} dropped: its inner source {source} is not among this peer's allowed IPs"
            ),
            Self::InVain {
                kind, to, before, ..
            } => {
                write!(f, "{kind} sent to {to}; {before} before it ")?;
                f.write_str(match kind {
                    HandshakeKind::Initiation => {
                        "had no answer: the peer is down, its address or port is another, a firewall is between, or \
                         the peer refuses and its log says why"
                    }
                    _ => "led to no session: the preshared keys differ, or the peer does not hear us",
                })
            }
            Self::NotSent {
                kind, to, error, ..
            } => {
                match kind {
                    Some(kind) => kind.fmt(f)?,
                    None => f.write_str("data")?,
                }
                write!(f, " could not be sent to {to}: ")?;
                match error {
                    Some(error) => ErrnoText(*error).fmt(f),
                    None => f.write_str("this host has no socket of that address family"),
                }
            }
            Self::Icmp { error, .. } => error.fmt(f),
        }
    }
}

/// An errno of a send, in the words of the C library and with what most likely causes it.
struct ErrnoText(Errno);

impl fmt::Display for ErrnoText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = std::io::Error::from(self.0).to_string();
        // "(os error 1)" does not help.
        f.write_str(words.split(" (os error").next().unwrap_or(&words))?;
        f.write_str(match self.0 {
            Errno::PERM => " (a local firewall?)",
            Errno::NETUNREACH => " (no route?)",
            Errno::HOSTUNREACH => " (no route, or one that says unreachable?)",
            Errno::ACCESS => " (a route that says prohibit, or a broadcast address?)",
            Errno::NOBUFS => " (the queue of the outgoing interface is full)",
            Errno::AGAIN => " (the socket's send buffer is full)",
            Errno::INVAL => " (is the endpoint's port 0?)",
            _ => "",
        })
    }
}

/// A line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogLine {
    /// An incident, and how often it came since the last line of its kind.
    Of(Incident, u64),
    /// How many incidents had no line of their own.
    Others(u64),
}

impl LogLine {
    /// Whether it is about unknown peers, which have events of their own: their keys count.
    pub(crate) fn is_stranger(&self) -> bool {
        let unknown = LogCause::Handshake(Some(Refusal::UnknownPeer));
        matches!(self, Self::Of(incident, _) if incident.cause() == unknown)
    }
}

impl fmt::Display for LogLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Of(incident, 1) => incident.fmt(f),
            Self::Of(incident, times) => write!(f, "{incident} ({times} times)"),
            Self::Others(count) => write!(f, "{count} more such messages of other addresses"),
        }
    }
}

/// The log: incidents that wait for a line.
pub(crate) struct RateLimitedLog {
    is_logged: bool,
    /// There is a listener for events.
    is_heard: AtomicBool,
    state: Mutex<Incidents>,
}

#[derive(Default)]
struct Incidents {
    /// Incidents that had a line in the last second, by cause and source.
    recent: HashMap<(LogCause, IpAddr), RecentIncident>,
    /// Lines that are due at once.
    fresh: Vec<LogLine>,
    /// How many incidents found `recent` full, and when their line is due.
    others: Option<(Time, u64)>,
}

struct RecentIncident {
    until: Time,
    /// The incidents since its last line, and how many.
    again: Option<(Incident, u64)>,
}

impl RateLimitedLog {
    /// Notes nothing unless it `is_logged` or there is a listener.
    pub(crate) fn new(is_logged: bool) -> Self {
        Self {
            is_logged,
            is_heard: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// A listener for events came, or went.
    pub(crate) fn listen(&self, listens: bool) {
        self.is_heard.store(listens, Ordering::Relaxed);
    }

    pub(crate) fn is_heard(&self) -> bool {
        self.is_heard.load(Ordering::Relaxed)
    }

    pub(crate) fn is_logged(&self) -> bool {
        self.is_logged
    }

    fn is_read(&self) -> bool {
        self.is_logged || self.is_heard()
    }

    /// Something happened, so many `times`. True if that changes what is due, and when: the control
    /// thread must look.
    pub(crate) fn note(&self, now: Time, times: u64, incident: impl FnOnce() -> Incident) -> bool {
        if !self.is_read() || times == 0 {
            return false;
        }
        let incident = incident();
        let mut state = lock(&self.state);
        let key = (incident.cause(), incident.source());
        let of_cause = state.recent.keys().filter(|(cause, _)| *cause == key.0);
        let is_full = of_cause.count() >= SOURCES_OF_CAUSE || state.recent.len() >= SOURCES;
        match state.recent.get_mut(&key) {
            Some(recent) if recent.until > now || recent.again.is_some() => {
                let before = recent.again.map(|(_, times)| times);
                recent.again = Some((incident, before.unwrap_or(0) + times));
                return before.is_none();
            }
            None if is_full => {
                let before = state.others;
                let (due, count) = before.unwrap_or((now + PAUSE, 0));
                state.others = Some((due, count + times));
                return before.is_none();
            }
            _ => {}
        }
        let until = now + PAUSE;
        state
            .recent
            .insert(key, RecentIncident { until, again: None });
        state.fresh.push(LogLine::Of(incident, times));
        true
    }

    /// The lines to be written now.
    pub(crate) fn take_due(&self, now: Time) -> Vec<LogLine> {
        if !self.is_read() {
            return Vec::new();
        }
        let mut state = lock(&self.state);
        let mut due = std::mem::take(&mut state.fresh);
        state.recent.retain(|_, recent| {
            if recent.until > now {
                return true;
            }
            recent.until = now + PAUSE;
            let again = recent.again.take();
            due.extend(again.map(|(incident, times)| LogLine::Of(incident, times)));
            again.is_some()
        });
        let others = state.others.take_if(|(at, _)| *at <= now);
        due.extend(others.map(|(_, count)| LogLine::Others(count)));
        due
    }

    /// When there is something to be written, if nothing more happens.
    pub(crate) fn deadline(&self) -> Option<Time> {
        if !self.is_read() {
            return None;
        }
        let state = lock(&self.state);
        let untold = state.recent.values().filter(|one| one.again.is_some());
        let untold = untold.map(|one| one.until);
        untold.chain(state.others.map(|(at, _)| at)).min()
    }
}

#[cfg(test)]
#[path = "rate_limited_log_tests.rs"]
mod tests;
