//! A client of HTTP that sends the head of a request, and waits for the connection that it takes.

use std::time::Instant;

use rustix::event::epoll::EventFlags;

use super::acceptor::From;
use super::closing::Closing;
use super::core::{ProxyClient, ServeCore, Step, Ticket};
use super::dial::Dial;
use super::exchange::HttpExchange;
use super::http::{HeadScan, HttpMistake, RequestKind, answer, request};
use super::http_peer::{HttpPeer, answer_for};
use super::news::{ClientToken, News};
use super::report::{RefusalReason, ServiceName};
use super::socket::{Peeked, READABLE, consume, peek, send_short};

/// A head that is longer takes a ticket.
const LONG_HEAD: usize = 4 << 10;

/// A client of HTTP.
pub(crate) struct HttpClient {
    /// `None` once it went on to something else.
    peer: Option<HttpPeer>,
    is_watched: bool,
    scan: HeadScan,
    head: Vec<u8>,
    /// For a head that is long.
    ticket: Option<Ticket>,
    dial: Option<(Dial, RequestKind)>,
    until: Instant,
}

impl HttpClient {
    /// A client that is to send a request; it `is_watched` if that is not its first one.
    pub(crate) fn new(peer: HttpPeer, is_watched: bool, core: &ServeCore) -> Self {
        Self {
            peer: Some(peer),
            is_watched,
            scan: HeadScan::default(),
            head: Vec::new(),
            ticket: None,
            dial: None,
            until: core.now + core.limits.request,
        }
    }

    fn from(&self) -> From {
        From(self.peer.as_ref().and_then(|peer| peer.from))
    }

    fn refuse(&mut self, core: &ServeCore, reason: RefusalReason, words: Option<Vec<u8>>) -> Step {
        core.report.refused(ServiceName::Http, reason, &self.from());
        match (self.peer.take(), words) {
            (Some(peer), Some(words)) => {
                Step::Become(Closing::client(peer.fd, words, core.now, true))
            }
            _ => Step::Done,
        }
    }

    fn failed_with(&mut self, core: &ServeCore, reason: RefusalReason) -> Step {
        self.refuse(core, reason, Some(answer_for(reason)))
    }

    fn mistaken(&mut self, core: &ServeCore, mistake: HttpMistake) -> Step {
        let words = match mistake {
            HttpMistake::Malformed(what) => answer("400 Bad Request", "", what),
            HttpMistake::TooLong => answer(
                "431 Request Header Fields Too Large",
                "",
                "the head of the request is longer than 64 KB, or has too many fields",
            ),
            HttpMistake::Version => answer(
                "505 HTTP Version Not Supported",
                "",
                "this proxy speaks HTTP/1.1 and HTTP/1.0",
            ),
        };
        self.refuse(core, RefusalReason::Malformed, Some(words))
    }

    /// The client closed its connection. Between two requests, and before the first one, that is no mistake.
    fn gone(&mut self, core: &ServeCore) -> Step {
        match self.head.is_empty() && self.dial.is_none() {
            true => Step::Done,
            false => self.refuse(core, RefusalReason::Gone, None),
        }
    }

    /// Takes the head, and no more: what follows is a body, or the connection's.
    fn read(&mut self, core: &mut ServeCore, token: ClientToken) -> Step {
        loop {
            let Some(peer) = &self.peer else {
                return Step::Done;
            };
            let len = match peek(&peer.fd, &mut core.scratch) {
                Peeked::Bytes(len) => len,
                Peeked::Nothing => return Step::Wait,
                Peeked::End | Peeked::Broken => return self.gone(core),
            };
            let end = match self.scan.scan(&core.scratch[..len]) {
                Ok(end) => end,
                Err(mistake) => return self.mistaken(core, mistake),
            };
            let of_head = end.unwrap_or(len);
            if self.head.len() + of_head > LONG_HEAD && self.ticket.is_none() {
                self.ticket = core.long_heads.take();
                if self.ticket.is_none() {
                    return self.failed_with(core, RefusalReason::Busy);
                }
            }
            self.head.extend_from_slice(&core.scratch[..of_head]);
            if !consume(&peer.fd, of_head, &mut core.scratch) {
                return self.gone(core);
            }
            if end.is_some() {
                return self.serve(core, token);
            }
        }
    }

    fn serve(&mut self, core: &mut ServeCore, token: ClientToken) -> Step {
        self.ticket = None;
        let request = match request(&std::mem::take(&mut self.head)) {
            Ok(request) => request,
            Err(mistake) => return self.mistaken(core, mistake),
        };
        let login = self.peer.as_ref().and_then(|peer| peer.login.as_ref());
        let said = request.authorization.as_deref();
        if login.is_some_and(|login| !said.is_some_and(|said| login.is_basic(said))) {
            let words = answer(
                "407 Proxy Authentication Required",
                "Proxy-Authenticate: Basic realm=\"adit\", charset=\"UTF-8\"\r\n",
                "this proxy takes a user name and a password",
            );
            return self.refuse(core, RefusalReason::NotAllowed, Some(words));
        }
        let from = self.peer.as_ref().and_then(|peer| peer.from);
        match Dial::begin(core, token, from, &request.target) {
            Ok(dial) => {
                self.until = dial.deadline();
                self.dial = Some((dial, request.kind));
                Step::Wait
            }
            Err(reason) => self.failed_with(core, reason),
        }
    }
}

impl ProxyClient for HttpClient {
    fn begin(&mut self, core: &mut ServeCore, token: ClientToken) -> Step {
        let is_watched = self
            .peer
            .as_ref()
            .is_some_and(|peer| match self.is_watched {
                true => core.rewatch(&peer.fd, token, READABLE),
                false => core.watch(&peer.fd, token, READABLE),
            });
        match is_watched {
            true => self.read(core, token),
            false => Step::Done,
        }
    }

    fn event(&mut self, core: &mut ServeCore, token: ClientToken, flags: EventFlags) -> Step {
        match self.dial {
            Some(_) if flags.intersects(EventFlags::HUP | EventFlags::ERR) => self.gone(core),
            Some(_) => Step::Wait,
            None => self.read(core, token),
        }
    }

    fn told(&mut self, core: &mut ServeCore, token: ClientToken, news: News) -> Step {
        let Some((dial, _)) = &mut self.dial else {
            return Step::Wait;
        };
        let opened = match dial.told(core, token, news) {
            None => return Step::Wait,
            Some(Ok(opened)) => opened,
            Some(Err(reason)) => return self.failed_with(core, reason),
        };
        let Some((_, kind)) = self.dial.take() else {
            return Step::Done;
        };
        match kind {
            RequestKind::Connect => {
                if let Some(peer) = self.peer.take() {
                    core.unwatch(&peer.fd);
                    if send_short(&peer.fd, b"HTTP/1.1 200 Connection established\r\n\r\n") {
                        // After the end of the tunnel there is nobody to tell.
                        let _ = opened.join(peer.into_joined());
                    }
                }
                Step::Done
            }
            RequestKind::Forward {
                head,
                body,
                requested,
            } => match (opened.into_stream(), self.peer.take()) {
                (Ok(upstream), Some(peer)) => {
                    let next = |peer, core: &ServeCore| -> Box<dyn ProxyClient> {
                        Box::new(Self::new(peer, true, core))
                    };
                    let exchange = HttpExchange::new(peer, upstream, head, body, requested, next);
                    Step::Become(Box::new(exchange))
                }
                (Err(error), peer) => {
                    self.peer = peer;
                    self.failed_with(core, RefusalReason::of(&error))
                }
                (Ok(_), None) => Step::Done,
            },
        }
    }

    fn deadline(&self) -> Option<Instant> {
        Some(self.until)
    }

    fn expired(&mut self, core: &mut ServeCore, _: ClientToken) -> Step {
        match self.dial {
            Some(_) => self.failed_with(core, RefusalReason::TimedOut),
            // Between two requests there is nothing to say.
            None if self.is_watched && self.head.is_empty() => Step::Done,
            None => {
                let words = answer(
                    "408 Request Timeout",
                    "",
                    "the request did not come in time",
                );
                self.refuse(core, RefusalReason::Slow, Some(words))
            }
        }
    }

    fn failed(&mut self, core: &mut ServeCore) {
        core.report
            .refused(ServiceName::Http, RefusalReason::Defect, &self.from());
    }
}
