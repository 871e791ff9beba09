//! A client of HTTP between its requests, and what it is told when there is no response.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::http::answer;
use super::report::RefusalReason;
use super::secret::LoginCheck;
use super::socket::reset;

/// What stays of a client from one request to the next.
pub(crate) struct HttpPeer {
    pub(crate) fd: OwnedFd,
    pub(crate) from: Option<SocketAddr>,
    pub(crate) login: Option<Arc<LoginCheck>>,
    /// Where the socket is one of a pair, which has no reset.
    pub(crate) pair: Option<Arc<PairNotes>>,
}

/// What a pair of sockets does not tell of its end.
#[derive(Default)]
pub(crate) struct PairNotes {
    /// What the client got is cut.
    pub(crate) is_cut: AtomicBool,
    /// A stack has the socket: it ends its direction before it closes the socket, but where the connection is cut.
    pub(crate) is_joined: AtomicBool,
}

impl HttpPeer {
    /// Has the client see that what it got is not whole, once its socket is closed.
    pub(crate) fn cut(&self) {
        match &self.pair {
            Some(pair) => pair.is_cut.store(true, Ordering::Release),
            None => reset(&self.fd),
        }
    }

    /// Its socket, for a stack.
    pub(crate) fn into_joined(self) -> OwnedFd {
        if let Some(pair) = &self.pair {
            pair.is_joined.store(true, Ordering::Release);
        }
        self.fd
    }
}

/// The answer that tells a client why. Programs find the reason in Proxy-Status (RFC 9209 §2.3).
pub(crate) fn answer_for(reason: RefusalReason) -> Vec<u8> {
    let (status, error) = match reason {
        RefusalReason::Refused => ("502 Bad Gateway", "connection_refused"),
        RefusalReason::Unreachable => ("502 Bad Gateway", "destination_ip_unroutable"),
        RefusalReason::UnknownName | RefusalReason::NoDnsServers => {
            ("502 Bad Gateway", "dns_error")
        }
        RefusalReason::BadAnswer => ("502 Bad Gateway", "http_protocol_error"),
        RefusalReason::TimedOut => ("504 Gateway Timeout", "connection_timeout"),
        RefusalReason::NoMemory | RefusalReason::Busy | RefusalReason::NoDescriptors => {
            ("503 Service Unavailable", "connection_limit_reached")
        }
        _ => ("502 Bad Gateway", "proxy_internal_error"),
    };
    let fields = format!("Proxy-Status: adit; error={error}\r\n");
    answer(status, &fields, &reason.to_string())
}
