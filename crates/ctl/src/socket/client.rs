//! One client of a socket: what it is asked, what it is told, and what it waits for.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net;

use crate::zeroized::Zeroized;

/// How long a client may stand still within a request or an answer.
pub(crate) const STALL: Duration = Duration::from_secs(10);
/// Bytes read at once, and kept of a client that sends requests before it takes answers.
const READ_SIZE: usize = 16 << 10;

/// One client's side of a conversation.
pub(crate) trait Talk: Send {
    /// Whether anything is read. If not, the conversation ends when the client has read the
    /// greeting.
    fn listens(&self) -> bool {
        true
    }

    /// Consumes bytes of `input` and appends an answer to `out` as soon as there is one. False ends
    /// the conversation once the answer was read.
    ///
    /// The present request may grow to `room` bytes.
    fn hear(&mut self, input: &mut &[u8], room: usize, out: &mut Zeroized) -> bool;

    /// Appends the next piece of a long answer, when the client has taken what was there. What is
    /// appended is never nothing until the answer is whole.
    fn go_on(&mut self, _: &mut Zeroized) {}

    /// The client has stopped writing, or stalled. Whatever is in `out` afterwards is the last it
    /// gets.
    fn end(&mut self, out: &mut Zeroized);

    /// Bytes of an unfinished request.
    fn held(&self) -> usize;

    /// How long the client may do nothing before it counts as stalled; `None` for as long as it
    /// likes. `owes` says that it has an answer to read.
    fn patience(&self, owes: bool) -> Option<Duration> {
        (owes || self.held() > 0).then_some(STALL)
    }
}

pub(super) struct Client {
    stream: OwnedFd,
    /// The id of the socket that it connected to.
    pub(super) socket: u64,
    /// When the client last did something.
    pub(super) seen: Instant,
    /// Bytes of its unfinished request, as the service has counted them.
    pub(super) counted: usize,
    talk: Box<dyn Talk>,
    /// Bytes that are read but not parsed, because the client has to read an answer first.
    unheard: Zeroized,
    out: Zeroized,
    sent: usize,
    /// Nothing more is heard; what is in `out` is the end.
    ending: bool,
    /// What epoll waits for. `None`: the stream is not registered yet.
    registered: Option<EventFlags>,
}

impl Client {
    /// A client with a greeting to read, which may be empty.
    pub(super) fn new(
        stream: OwnedFd,
        socket: u64,
        now: Instant,
        talk: Box<dyn Talk>,
        greeting: Zeroized,
    ) -> Self {
        Self {
            stream,
            socket,
            seen: now,
            counted: 0,
            ending: !talk.listens(),
            talk,
            unheard: Zeroized::default(),
            out: greeting,
            sent: 0,
            registered: None,
        }
    }

    /// Bytes of its unfinished request.
    pub(super) fn held(&self) -> usize {
        self.talk.held()
    }

    /// Has epoll wait for what the client can do next, under this id.
    pub(super) fn register(&mut self, epoll: &OwnedFd, id: u64) -> rustix::io::Result<()> {
        let wanted = match self.out.is_empty() {
            true => EventFlags::IN,
            false => EventFlags::OUT,
        };
        match self.registered {
            Some(flags) if flags == wanted => {}
            Some(_) => epoll::modify(epoll, &self.stream, EventData::new_u64(id), wanted)?,
            None => epoll::add(epoll, &self.stream, EventData::new_u64(id), wanted)?,
        }
        self.registered = Some(wanted);
        Ok(())
    }

    /// Whether there is work that can be done without waiting.
    pub(super) fn is_ready(&self) -> bool {
        self.out.is_empty() && !self.unheard.is_empty()
    }

    /// When the client counts as stalled, if it does nothing until then.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let patience = self.talk.patience(!self.out.is_empty());
        patience.map(|patience| self.seen + patience)
    }

    /// Handles one request at most, so that every client is served. False: the conversation is
    /// over.
    pub(super) fn step(&mut self, now: Instant, room: usize) -> bool {
        if !self.out.is_empty() {
            return self.send(now);
        }
        if self.unheard.is_empty() {
            let mut buffer = zeroize::Zeroizing::new([0; READ_SIZE]);
            match rustix::io::read(&self.stream, buffer.as_mut_slice()) {
                Ok(0) => {
                    self.ending = true;
                    self.talk.end(&mut self.out);
                }
                Ok(n) => self.unheard.extend(&buffer[..n]),
                Err(Errno::WOULDBLOCK | Errno::INTR) => return true,
                Err(_) => return false,
            }
            self.seen = now;
        }
        if !self.ending {
            let mut input = &*self.unheard;
            self.ending = !self.talk.hear(&mut input, room, &mut self.out);
            let heard = self.unheard.len() - input.len();
            self.unheard.consume(heard);
        }
        self.send(now)
    }

    /// There may be something new to tell the client. False: the conversation is over.
    pub(super) fn poke(&mut self, now: Instant) -> bool {
        // Until the client has read what there is, nothing is added.
        !self.out.is_empty() || self.ending || self.send(now)
    }

    /// Sends what the client takes now, the whole answer if it takes it.
    fn send(&mut self, now: Instant) -> bool {
        loop {
            if self.sent == self.out.len() {
                self.sent = 0;
                self.out.clear();
                self.talk.go_on(&mut self.out);
                if self.out.is_empty() {
                    return !self.ending;
                }
            }
            match net::send(
                &self.stream,
                &self.out[self.sent..],
                net::SendFlags::NOSIGNAL,
            ) {
                Ok(n) => {
                    self.sent += n;
                    self.seen = now;
                }
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return true,
                Err(_) => return false,
            }
        }
    }

    /// The client stalled: one last word if it was within a request, none if it does not read.
    pub(super) fn give_up(&mut self, now: Instant) -> bool {
        if self.ending || !self.out.is_empty() {
            return false;
        }
        self.ending = true;
        self.talk.end(&mut self.out);
        self.send(now)
    }
}
