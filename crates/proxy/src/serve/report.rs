//! What the clients of a proxy come to: counters, and lines of the log, at most one a second for each reason.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, io};

use adit::net::NetError;
use rustix::io::Errno;

/// How long a reason that had a line waits for its next one.
const PAUSE: Duration = Duration::from_secs(1);

/// How much a line of the log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Something does not work.
    Error,
    /// A client was refused, or something was lost.
    Warn,
}

/// Gets the lines of the log, on any thread. Nothing in them is secret.
pub type LogSink = Arc<dyn Fn(Level, fmt::Arguments<'_>) + Send + Sync>;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $label:literal,)+) => {
        /// Why a client, or what it asked for, was refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum RefusalReason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl RefusalReason {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// Its name in statistics.
            pub fn label(self) -> &'static str {
                match self {
                    $(Self::$name => $label),+
                }
            }
        }
    };
}

reasons! {
    /// There are as many clients as may be.
    Full = "too_many_clients",
    /// The process has no descriptor left.
    NoDescriptors = "no_descriptors",
    /// What it sent is not of the protocol.
    Malformed = "malformed",
    /// It speaks SOCKS4.
    Socks4 = "socks4",
    /// It asks for what the proxy does not do.
    NotSupported = "not_supported",
    /// Its name or password is wrong, or it gave none.
    NotAllowed = "not_allowed",
    /// Its request did not come in time.
    Slow = "slow_request",
    /// It went before its request was complete.
    Gone = "gone",
    /// The target refused the connection.
    Refused = "refused",
    /// There is no way to the target.
    Unreachable = "unreachable",
    /// The target did not answer in time.
    TimedOut = "timed_out",
    /// The name of the target is unknown.
    UnknownName = "unknown_name",
    /// The target is a name, and no DNS server is known.
    NoDnsServers = "no_dns_servers",
    /// The memory for connections is used up.
    NoMemory = "no_memory",
    /// Too many names are being looked up, or too many clients send long heads.
    Busy = "busy",
    /// What the server answered is no HTTP.
    BadAnswer = "bad_answer",
    /// The tunnel has ended, or the system refused something.
    Failed = "failed",
    /// A mistake in the proxy: the client was given up.
    Defect = "defect",
}

impl RefusalReason {
    /// The reason that an error of a stack is.
    pub(crate) fn of(error: &NetError) -> Self {
        match error {
            NetError::Refused(_) => Self::Refused,
            NetError::Unreachable(_) | NetError::NoAddress(_) => Self::Unreachable,
            NetError::TimedOut(_) => Self::TimedOut,
            NetError::UnknownName(_) => Self::UnknownName,
            NetError::NoDnsServers(_) => Self::NoDnsServers,
            NetError::NoMemory | NetError::PortTaken(_) => Self::NoMemory,
            NetError::Host(error) => Self::of_host(error),
            _ => Self::Failed,
        }
    }

    /// The reason that an error of this host is.
    pub(crate) fn of_host(error: &io::Error) -> Self {
        match Errno::from_io_error(error) {
            Some(Errno::MFILE | Errno::NFILE) => Self::NoDescriptors,
            Some(Errno::NOMEM | Errno::NOBUFS) => Self::NoMemory,
            _ => Self::Failed,
        }
    }
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "refused, because there are as many clients as may be",
            Self::NoDescriptors => {
                "refused, because the process has no descriptor left: raise its limit of open files"
            }
            Self::Malformed => "what it sent is not of this protocol",
            Self::Socks4 => "it speaks SOCKS4, which is not spoken here: set it to SOCKS5",
            Self::NotSupported => "it asks for what this proxy does not do",
            Self::NotAllowed => "its user name or password is wrong, or it gave none",
            Self::Slow => "its request did not come in time",
            Self::Gone => "it went before its request was complete",
            Self::Refused => "the target refused the connection: nothing listens there",
            Self::Unreachable => {
                "the target cannot be reached: no route or no address of that family"
            }
            Self::TimedOut => "the target did not answer in time",
            Self::UnknownName => "the name of the target is unknown",
            Self::NoDnsServers => {
                "the target is a name, and no DNS server is known: set DNS, or give an address"
            }
            Self::NoMemory => "no memory is left for another connection",
            Self::Busy => "too many clients ask for what takes time or memory",
            Self::BadAnswer => "what the server answered is not HTTP",
            Self::Failed => "the tunnel has ended, or the system refused what this takes",
            Self::Defect => "given up because of a defect of this program",
        })
    }
}

/// What clients come to for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceName {
    /// SOCKS5.
    Socks5,
    /// HTTP.
    Http,
    /// TLS, by its server name.
    Sni,
    /// A port of this host.
    TcpClient,
    /// A TCP port inside the tunnel.
    TcpServer,
    /// A UDP port of this host: its clients are addresses.
    UdpClient,
    /// A UDP port inside the tunnel.
    UdpServer,
    /// Ports for datagrams of clients of SOCKS5.
    UdpAssociate,
    /// Standard input and output.
    Stdio,
    /// The info page.
    Info,
}

impl ServiceName {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::Socks5,
        Self::Http,
        Self::Sni,
        Self::TcpClient,
        Self::TcpServer,
        Self::UdpClient,
        Self::UdpServer,
        Self::UdpAssociate,
        Self::Stdio,
        Self::Info,
    ];

    /// Its name in statistics and in the log.
    pub fn label(self) -> &'static str {
        match self {
            Self::Socks5 => "socks5",
            Self::Http => "http",
            Self::Sni => "sni",
            Self::TcpClient => "tcp_client",
            Self::TcpServer => "tcp_server",
            Self::UdpClient => "udp_client",
            Self::UdpServer => "udp_server",
            Self::UdpAssociate => "udp_associate",
            Self::Stdio => "stdio",
            Self::Info => "info",
        }
    }
}

/// Counters of a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProxyStats {
    /// Clients whose request is under way, exchanges of HTTP, and UDP clients. Those that were joined to a
    /// connection are the stack's.
    pub clients: u64,
    /// Clients that came, by service.
    pub accepted: Vec<(ServiceName, u64)>,
    /// What was refused, by reason.
    pub refused: Vec<(RefusalReason, u64)>,
    /// Datagrams that were dropped: malformed, from elsewhere, too long, or too many that wait.
    pub datagrams_dropped: u64,
}

impl ProxyStats {
    /// Clients that came to a service.
    pub fn accepted_by(&self, service: ServiceName) -> u64 {
        let of = self.accepted.iter().find(|(it, _)| *it == service);
        of.map_or(0, |(_, count)| *count)
    }

    /// What was refused for a reason.
    pub fn refused_for(&self, reason: RefusalReason) -> u64 {
        let of = self.refused.iter().find(|(it, _)| *it == reason);
        of.map_or(0, |(_, count)| *count)
    }
}

/// Counts, and writes the log.
pub(crate) struct ServeReport {
    pub(crate) clients: AtomicU64,
    accepted: [AtomicU64; ServiceName::ALL.len()],
    refused: [AtomicU64; RefusalReason::ALL.len()],
    datagrams_dropped: AtomicU64,
    /// When each reason had its last line, and how many it has had none for since.
    lines: Mutex<[(Option<Instant>, u64); RefusalReason::ALL.len()]>,
    log: Option<LogSink>,
}

impl ServeReport {
    pub(crate) fn new(log: Option<LogSink>) -> Self {
        Self {
            clients: AtomicU64::new(0),
            accepted: Default::default(),
            refused: Default::default(),
            datagrams_dropped: AtomicU64::new(0),
            lines: Mutex::new([(None, 0); RefusalReason::ALL.len()]),
            log,
        }
    }

    pub(crate) fn accepted(&self, service: ServiceName) {
        self.accepted[service as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn dropped_datagram(&self) {
        self.datagrams_dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// A client of a service, or what it asked for, was refused.
    pub(crate) fn refused(
        &self,
        service: ServiceName,
        reason: RefusalReason,
        who: &dyn fmt::Display,
    ) {
        self.refused[reason as usize].fetch_add(1, Ordering::Relaxed);
        let Some(log) = &self.log else { return };
        let now = Instant::now();
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, untold) = &mut lines[reason as usize];
        if last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            *untold += 1;
            return;
        }
        *last = Some(now);
        let more = std::mem::take(untold);
        drop(lines);
        let label = service.label();
        let level = match reason {
            RefusalReason::Defect => Level::Error,
            _ => Level::Warn,
        };
        match more {
            0 => log(level, format_args!("{label}: {who}: {reason}")),
            more => log(
                level,
                format_args!("{label}: {who}: {reason} ({more} more since the last line)"),
            ),
        }
    }

    pub(crate) fn stats(&self) -> ProxyStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let accepted = ServiceName::ALL
            .iter()
            .copied()
            .zip(self.accepted.iter().map(of));
        let refused = RefusalReason::ALL
            .iter()
            .copied()
            .zip(self.refused.iter().map(of));
        ProxyStats {
            clients: of(&self.clients),
            accepted: accepted.collect(),
            refused: refused.collect(),
            datagrams_dropped: of(&self.datagrams_dropped),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_descriptors_or_memory_of_the_host_is_named() {
        for (error, reason) in [
            (Errno::MFILE, RefusalReason::NoDescriptors),
            (Errno::NFILE, RefusalReason::NoDescriptors),
            (Errno::NOBUFS, RefusalReason::NoMemory),
            (Errno::INVAL, RefusalReason::Failed),
        ] {
            assert_eq!(RefusalReason::of(&NetError::Host(error.into())), reason);
        }
    }

    #[test]
    fn a_flood_of_refusals_is_counted_and_has_one_line() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        let log: LogSink = Arc::new(move |_, line| {
            kept.lock().expect("a log").push(line.to_string());
        });
        let report = ServeReport::new(Some(log));
        for _ in 0..1000 {
            report.refused(ServiceName::Socks5, RefusalReason::Socks4, &"10.0.0.1:1");
        }
        report.refused(ServiceName::Http, RefusalReason::Malformed, &"10.0.0.2:1");
        assert_eq!(report.stats().refused_for(RefusalReason::Socks4), 1000);
        let lines = lines.lock().expect("a log");
        // A second one if the machine took longer than a second.
        assert!(lines.len() < 10, "{lines:?}");
        assert!(
            lines[0].starts_with("socks5: 10.0.0.1:1: it speaks SOCKS4"),
            "{lines:?}"
        );
        let labels: std::collections::HashSet<_> =
            RefusalReason::ALL.iter().map(|it| it.label()).collect();
        assert_eq!(labels.len(), RefusalReason::ALL.len());
        for (at, service) in ServiceName::ALL.iter().enumerate() {
            assert_eq!(*service as usize, at);
        }
    }
}
