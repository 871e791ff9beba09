//! A request of HTTP that is forwarded, and its response. Bodies pass from one socket to the other: what was
//! looked at is sent, and what was sent is taken. So a slow end slows down the other one, and nothing is kept
//! here but heads.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use super::acceptor::From;
use super::closing::Closing;
use super::core::{ProxyClient, ServeCore, Step, TURN};
use super::http::{BodyFraming, HeadScan, HttpMistake, Requested, answer, response};
use super::http_peer::{HttpPeer, answer_for};
use super::news::ClientToken;
use super::report::{RefusalReason, ServiceName};
use super::socket::{BOTH, Peeked, consume, peek, reset, send_some};
use crate::stack::InnerStream;

/// The descriptor of the server, where the client's is 0.
const SERVER: usize = 1;
/// Interim responses before the one that counts.
const INTERIM: usize = 64;

/// What goes in one direction: bytes of our own, then a body.
struct BodyFlow {
    head: Vec<u8>,
    sent: usize,
    /// `None` while it is not known.
    body: Option<BodyFraming>,
    is_over: bool,
}

/// Why a direction rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlowRest {
    /// Nothing is there, or nothing fits.
    Waits,
    /// Others have their turn.
    Budget,
    /// All of it was sent.
    Finished,
    /// The sender has ended.
    Ended,
    /// The sender has been reset.
    SenderBroken,
    /// The receiver takes no more.
    ReceiverBroken(Errno),
    Malformed,
}

impl BodyFlow {
    fn new(head: Vec<u8>, body: Option<BodyFraming>) -> Self {
        Self {
            head,
            sent: 0,
            body,
            is_over: false,
        }
    }

    /// Sends what is ours; `Finished` once all is sent.
    fn send_head(&mut self, to: BorrowedFd<'_>) -> FlowRest {
        while self.sent < self.head.len() {
            match send_some(to, &self.head[self.sent..]) {
                Ok(0) => return FlowRest::Waits,
                Ok(len) => self.sent += len,
                Err(error) => return FlowRest::ReceiverBroken(error),
            }
        }
        self.head = Vec::new();
        self.sent = 0;
        FlowRest::Finished
    }

    /// Moves what there is, up to a budget.
    fn advance(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        scratch: &mut [u8],
    ) -> FlowRest {
        match self.send_head(to) {
            FlowRest::Finished => {}
            rest => return rest,
        }
        let Some(body) = &mut self.body else {
            return FlowRest::Waits;
        };
        let mut moved = 0;
        while moved < TURN {
            if body.is_done() {
                return FlowRest::Finished;
            }
            let len = match peek(from, scratch) {
                Peeked::Bytes(len) => len,
                Peeked::Nothing => return FlowRest::Waits,
                Peeked::End => return FlowRest::Ended,
                Peeked::Broken => return FlowRest::SenderBroken,
            };
            // What belongs to the body, and of that what fits.
            let Ok(of_body) = body.clone().take(&scratch[..len]) else {
                return FlowRest::Malformed;
            };
            let sent = match send_some(to, &scratch[..of_body]) {
                Ok(0) => return FlowRest::Waits,
                Ok(sent) => sent,
                Err(error) => return FlowRest::ReceiverBroken(error),
            };
            if body.take(&scratch[..sent]) != Ok(sent) {
                return FlowRest::Malformed;
            }
            if !consume(from, sent, scratch) {
                return FlowRest::SenderBroken;
            }
            moved += sent;
        }
        FlowRest::Budget
    }

    /// Whether the end of the connection would be taken for that of what goes there, which it is not.
    fn is_cut(&self) -> bool {
        self.body == Some(BodyFraming::UntilClose) && !self.is_over
    }
}

/// A request that is forwarded, and its response.
pub(crate) struct HttpExchange {
    /// `None` once it went on to something else.
    peer: Option<HttpPeer>,
    server: Box<dyn InnerStream>,
    /// It reset the connection, which a socket tells once.
    was_reset: bool,
    requested: Requested,
    up: BodyFlow,
    down: BodyFlow,
    /// The head of the response, until it is complete.
    scan: HeadScan,
    head: Vec<u8>,
    /// Interim responses that came.
    interim: usize,
    /// The response that counts is on its way to the client.
    has_answered: bool,
    keeps_alive: bool,
    is_other_protocol: bool,
    next: NextRequest,
}

/// Makes a client that sends a further request.
type NextRequest = fn(HttpPeer, &ServeCore) -> Box<dyn ProxyClient>;

impl HttpExchange {
    pub(crate) fn new(
        peer: HttpPeer,
        server: Box<dyn InnerStream>,
        head: Vec<u8>,
        body: BodyFraming,
        requested: Requested,
        next: NextRequest,
    ) -> Self {
        Self {
            peer: Some(peer),
            server,
            was_reset: false,
            requested,
            up: BodyFlow::new(head, Some(body)),
            down: BodyFlow::new(Vec::new(), None),
            scan: HeadScan::default(),
            head: Vec::new(),
            interim: 0,
            has_answered: false,
            keeps_alive: false,
            is_other_protocol: false,
            next,
        }
    }

    /// Ends the exchange by words of our own, if the client has seen none of the response that counts.
    fn refuse(&mut self, core: &ServeCore, reason: RefusalReason, words: &[u8]) -> Step {
        let from = self.peer.as_ref().and_then(|peer| peer.from);
        core.report.refused(ServiceName::Http, reason, &From(from));
        if self.has_answered {
            return Step::Done;
        }
        let Some(peer) = self.peer.take() else {
            return Step::Done;
        };
        // What is left of an interim response comes first.
        let mut last = self.down.head.split_off(self.down.sent);
        last.extend(words);
        Step::Become(Closing::client(peer.fd, last, core.now, true))
    }

    fn bad_answer(&mut self, core: &ServeCore) -> Step {
        let reason = RefusalReason::BadAnswer;
        self.refuse(core, reason, &answer_for(reason))
    }

    /// The request. `Some` if that ends the exchange.
    fn advance_up(&mut self, core: &mut ServeCore) -> Option<Step> {
        let peer = self.peer.as_ref()?;
        if self.up.is_over {
            return None;
        }
        let (client, server) = (peer.fd.as_fd(), self.server.as_fd());
        match self.up.advance(client, server, &mut core.scratch) {
            FlowRest::Waits => None,
            FlowRest::Budget => Some(Step::Again),
            FlowRest::Finished => {
                self.up.is_over = true;
                // Another protocol may follow.
                None
            }
            FlowRest::Ended if self.is_other_protocol => {
                self.up.is_over = true;
                let _ = shutdown(&self.server, Shutdown::Write);
                None
            }
            // The server answered without reading all of it: its answer counts. The client's connection cannot stay.
            FlowRest::ReceiverBroken(error) if !self.is_other_protocol => {
                // EPIPE: its end had come before.
                self.was_reset = error != Errno::PIPE;
                self.up.is_over = true;
                self.requested.keeps_alive = false;
                self.keeps_alive = false;
                None
            }
            FlowRest::Malformed => {
                let words = answer(
                    "400 Bad Request",
                    "",
                    "the body of the request is malformed",
                );
                Some(self.refuse(core, RefusalReason::Malformed, &words))
            }
            FlowRest::Ended | FlowRest::SenderBroken => {
                core.report
                    .refused(ServiceName::Http, RefusalReason::Gone, &From(peer.from));
                Some(Step::Done)
            }
            FlowRest::ReceiverBroken(_) => Some(Step::Done),
        }
    }

    /// Whether the connection of the server, which is at its end, was ended there, and not cut.
    fn has_ended_well(&mut self) -> bool {
        !self.was_reset && self.server.read(&mut [0]).is_ok()
    }

    /// The response. `Some` if that ends the exchange, or its turn.
    fn advance_down(&mut self, core: &mut ServeCore) -> Option<Step> {
        loop {
            if self.down.is_over {
                return None;
            }
            let peer = self.peer.as_ref()?;
            let (server, client) = (self.server.as_fd(), peer.fd.as_fd());
            let mut rest = self.down.advance(server, client, &mut core.scratch);
            // What the server says next, once what it said before is on its way.
            if rest == FlowRest::Waits && self.down.body.is_none() && self.down.head.is_empty() {
                match self.read_head(core) {
                    // Another one follows, for which others wait meanwhile.
                    Ok(true) if self.down.body.is_none() => return Some(Step::Again),
                    Ok(true) => continue,
                    Ok(false) => return None,
                    Err(step) => return Some(step),
                }
            }
            if rest == FlowRest::Ended && !self.has_ended_well() {
                rest = FlowRest::SenderBroken;
            }
            return match rest {
                FlowRest::Waits => None,
                FlowRest::Budget => Some(Step::Again),
                FlowRest::Finished => {
                    self.down.is_over = true;
                    None
                }
                FlowRest::Ended if self.down.body == Some(BodyFraming::UntilClose) => {
                    self.down.is_over = true;
                    if self.is_other_protocol {
                        let _ = shutdown(&self.peer.as_ref()?.fd, Shutdown::Write);
                    }
                    None
                }
                FlowRest::ReceiverBroken(_) => Some(Step::Done),
                FlowRest::Ended | FlowRest::SenderBroken | FlowRest::Malformed => {
                    Some(self.bad_answer(core))
                }
            };
        }
    }

    /// Reads on in the head of the response. True once one is complete.
    fn read_head(&mut self, core: &mut ServeCore) -> Result<bool, Step> {
        loop {
            let len = match peek(&self.server, &mut core.scratch) {
                Peeked::Bytes(len) => len,
                Peeked::Nothing => return Ok(false),
                Peeked::End | Peeked::Broken => return Err(self.bad_answer(core)),
            };
            let Ok(end) = self.scan.scan(&core.scratch[..len]) else {
                return Err(self.bad_answer(core));
            };
            let of_head = end.unwrap_or(len);
            self.head.extend_from_slice(&core.scratch[..of_head]);
            if !consume(&self.server, of_head, &mut core.scratch) {
                return Err(self.bad_answer(core));
            }
            if end.is_some() {
                break;
            }
        }
        let head = std::mem::take(&mut self.head);
        self.scan = HeadScan::default();
        match response(&head, self.requested) {
            Ok(response) => {
                self.has_answered = response.body.is_some();
                self.interim += usize::from(!self.has_answered);
                if self.interim > INTERIM {
                    return Err(self.bad_answer(core));
                }
                self.down.head = response.head;
                self.down.body = response.body;
                self.keeps_alive = response.keeps_alive;
                if response.switches {
                    self.is_other_protocol = true;
                    self.up.body = Some(BodyFraming::UntilClose);
                    self.up.is_over = false;
                }
                Ok(true)
            }
            Err(HttpMistake::Malformed(_) | HttpMistake::TooLong | HttpMistake::Version) => {
                Err(self.bad_answer(core))
            }
        }
    }

    fn advance(&mut self, core: &mut ServeCore) -> Step {
        let mut again = false;
        // Twice the request: the response may have begun another protocol.
        for part in 0..3 {
            let step = match part {
                1 => self.advance_down(core),
                _ => self.advance_up(core),
            };
            match step {
                Some(Step::Again) => again = true,
                Some(step) => return step,
                None => {}
            }
        }
        if self.down.is_over && (self.up.is_over || !self.is_other_protocol) {
            return self.finish(core);
        }
        match again {
            true => Step::Again,
            false => Step::Wait,
        }
    }

    /// The response is complete.
    fn finish(&mut self, core: &ServeCore) -> Step {
        let Some(peer) = self.peer.take() else {
            return Step::Done;
        };
        // A request that is not complete would be read as the next one.
        match self.keeps_alive && self.up.is_over {
            true => Step::Become((self.next)(peer, core)),
            false => Step::Become(Closing::client(peer.fd, Vec::new(), core.now, true)),
        }
    }
}

impl Drop for HttpExchange {
    fn drop(&mut self) {
        if let Some(peer) = self.peer.as_ref().filter(|_| self.down.is_cut()) {
            peer.cut();
        }
        if self.up.is_cut() {
            reset(&self.server);
        }
    }
}

impl ProxyClient for HttpExchange {
    fn begin(&mut self, core: &mut ServeCore, token: ClientToken) -> Step {
        let is_watched = self.peer.as_ref().is_some_and(|peer| {
            core.rewatch(&peer.fd, token, BOTH)
                && core.watch(&self.server, token.with_part(SERVER), BOTH)
        });
        match is_watched {
            true => self.advance(core),
            false => Step::Done,
        }
    }

    fn event(&mut self, core: &mut ServeCore, token: ClientToken, flags: EventFlags) -> Step {
        let is_gone = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        match token.part() != SERVER && is_gone && !self.is_other_protocol {
            // The client was reset: nobody takes the response.
            true => Step::Done,
            false => self.advance(core),
        }
    }

    fn failed(&mut self, core: &mut ServeCore) {
        let from = self.peer.as_ref().and_then(|peer| peer.from);
        core.report
            .refused(ServiceName::Http, RefusalReason::Defect, &From(from));
    }
}
