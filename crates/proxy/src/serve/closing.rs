//! The last words to a client: they are sent, and what the client still sends is thrown away for a while. A
//! socket that is closed with something unread is reset, and the words may be lost.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::net::{Shutdown, shutdown};

use super::core::{ProxyClient, ServeCore, Step, TURN};
use super::news::ClientToken;
use super::socket::{BOTH, Peeked, consume, peek, send_some};

/// How long that may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// A client that is being closed.
pub(crate) struct Closing {
    fd: OwnedFd,
    words: Vec<u8>,
    sent: usize,
    is_shut: bool,
    until: Instant,
    is_watched: bool,
}

impl Closing {
    /// Sends these bytes before the socket is closed. It `is_watched` if descriptor 0 of the client is its.
    pub(crate) fn client(fd: OwnedFd, words: Vec<u8>, now: Instant, is_watched: bool) -> Box<Self> {
        Box::new(Self {
            fd,
            words,
            sent: 0,
            is_shut: false,
            until: now + PATIENCE,
            is_watched,
        })
    }

    fn advance(&mut self, core: &mut ServeCore) -> Step {
        while self.sent < self.words.len() {
            match send_some(&self.fd, &self.words[self.sent..]) {
                Ok(0) => return Step::Wait,
                Ok(len) => self.sent += len,
                Err(_) => return Step::Done,
            }
        }
        if !self.is_shut {
            self.is_shut = true;
            let _ = shutdown(&self.fd, Shutdown::Write);
        }
        let mut thrown = 0;
        while thrown < TURN {
            match peek(&self.fd, &mut core.scratch) {
                Peeked::Bytes(len) if consume(&self.fd, len, &mut core.scratch) => thrown += len,
                Peeked::Nothing => return Step::Wait,
                _ => return Step::Done,
            }
        }
        Step::Again
    }
}

impl ProxyClient for Closing {
    fn begin(&mut self, core: &mut ServeCore, token: ClientToken) -> Step {
        let is_watched = match self.is_watched {
            true => core.rewatch(&self.fd, token, BOTH),
            false => core.watch(&self.fd, token, BOTH),
        };
        match is_watched {
            true => self.advance(core),
            false => Step::Done,
        }
    }

    fn event(&mut self, core: &mut ServeCore, _: ClientToken, _: EventFlags) -> Step {
        self.advance(core)
    }

    fn deadline(&self) -> Option<Instant> {
        Some(self.until)
    }

    fn failed(&mut self, _: &mut ServeCore) {}
}
