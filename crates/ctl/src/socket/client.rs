//! One client of a socket: what it is asked, what it is told, and what it waits for.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use adit_proto::memory::can_allocate;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net;

use crate::zeroized::Zeroized;

/// How long a client may stand still within a request or an answer.
pub(crate) const STALL: Duration = Duration::from_secs(10);
/// Bytes read at once, and kept of a client that sends requests before it takes answers.
const READ_SIZE: usize = 16 << 10;
/// Pieces of a long answer that a client gets before others have their turn.
const PIECES: usize = 8;
/// Bytes that have to be there before a request is heard. What is read at once takes less, also
/// where malloc(3) has to take a page for each small thing, as it does close to a limit.
pub(crate) const RESERVE: usize = 4 << 20;

/// One client's side of a conversation.
pub(crate) trait Talk: Send {
    /// Whether anything is read. If not, the conversation ends when the client has read the
    /// greeting.
    fn listens(&self) -> bool {
        true
    }

    /// Whether its requests change nothing, so that nobody needs an answer to one whose client has
    /// hung up.
    fn only_tells(&self) -> bool {
        false
    }

    /// The process has hardly any memory left: the present request is refused.
    fn refuse_for_memory(&mut self);

    /// Consumes bytes of `input` and appends an answer to `out` as soon as there is one. False ends
    /// the conversation once the answer was read.
    fn hear(&mut self, input: &mut &[u8], out: &mut Zeroized) -> bool;

    /// Appends the next piece of a long answer, when the client has taken what was there. What is
    /// appended is never nothing until the answer is whole.
    fn go_on(&mut self, _: &mut Zeroized) {}

    /// The client has stopped writing, or stalled. Whatever is in `out` afterwards is the last it
    /// gets.
    fn end(&mut self, out: &mut Zeroized);

    /// Whether it has to end for want of memory.
    fn is_given_up(&self) -> bool {
        false
    }

    /// Whether a request is unfinished.
    fn is_within_request(&self) -> bool;

    /// Bytes that an unfinished request takes, and the part of an answer that is not told yet.
    fn held(&self) -> usize;

    /// How long the client may do nothing before it counts as stalled; `None` for as long as it
    /// likes. `owes` says that it has an answer to read.
    fn patience(&self, owes: bool) -> Option<Duration> {
        (owes || self.is_within_request()).then_some(STALL)
    }
}

pub(super) struct Client {
    stream: OwnedFd,
    /// The id of the socket that it connected to.
    pub(super) socket: u64,
    /// The user that it ran as when it connected.
    pub(super) uid: u32,
    /// When the client last did something.
    pub(super) seen: Instant,
    /// Bytes that it holds, as the service has counted them.
    pub(super) counted: usize,
    /// Bytes that it has sent and taken since the service set this to 0.
    pub(super) moved: usize,
    talk: Box<dyn Talk>,
    /// Bytes that are read but not parsed, because the client has to read an answer first.
    unheard: Zeroized,
    out: Zeroized,
    sent: usize,
    /// Nothing more is heard; what is in `out` is the end.
    ending: bool,
    /// Events that epoll waits for. `None`: the stream is not registered yet.
    registered: Option<EventFlags>,
}

impl Client {
    /// A client with a greeting to read, which may be empty.
    pub(super) fn new(
        stream: OwnedFd,
        (socket, uid): (u64, u32),
        now: Instant,
        talk: Box<dyn Talk>,
        greeting: Zeroized,
    ) -> Self {
        Self {
            stream,
            socket,
            uid,
            seen: now,
            counted: 0,
            moved: 0,
            ending: !talk.listens(),
            talk,
            unheard: Zeroized::default(),
            out: greeting,
            sent: 0,
            registered: None,
        }
    }

    /// Bytes that it holds.
    pub(super) fn held(&self) -> usize {
        self.talk.held()
    }

    /// Whether its next step may read what takes memory.
    pub(super) fn is_to_be_heard(&self) -> bool {
        self.out.is_empty() && !self.talk.only_tells()
    }

    /// Has epoll wait for nothing of it.
    pub(super) fn deregister(&mut self, epoll: &OwnedFd) {
        if self.registered.take().is_some() {
            _ = epoll::delete(epoll, &self.stream);
        }
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

    /// Whether the client has closed its end, and reads no answer. One that has only stopped writing
    /// reads it.
    fn has_hung_up(&self) -> bool {
        // Nothing is sent, but the kernel looks whether something could be.
        net::send(&self.stream, &[], net::SendFlags::NOSIGNAL) == Err(Errno::PIPE)
    }

    /// Handles one request at most, so that every client is served. False: the conversation is
    /// over.
    pub(super) fn step(&mut self, now: Instant) -> bool {
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
                Ok(n) => {
                    self.unheard.extend(&buffer[..n]);
                    self.moved += n;
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => return true,
                Err(_) => return false,
            }
            self.seen = now;
        }
        if !self.ending {
            if self.talk.only_tells() && self.has_hung_up() {
                return false;
            }
            if !can_allocate(RESERVE) {
                self.talk.refuse_for_memory();
            }
            let mut input = &*self.unheard;
            self.ending = !self.talk.hear(&mut input, &mut self.out);
            let heard = self.unheard.len() - input.len();
            self.unheard.consume(heard);
        }
        self.send(now)
    }

    /// There may be something new to tell the client. False: the conversation is over.
    pub(super) fn poke(&mut self, now: Instant) -> bool {
        // Until the client has read what there is, nothing is added.
        !self.talk.is_given_up() && (!self.out.is_empty() || self.ending || self.send(now))
    }

    /// Sends what the client takes now, up to some pieces of a long answer.
    fn send(&mut self, now: Instant) -> bool {
        let mut pieces = 0;
        loop {
            if self.sent == self.out.len() {
                self.sent = 0;
                self.out.clear();
                self.talk.go_on(&mut self.out);
                if self.out.is_empty() {
                    return !self.ending;
                }
                pieces += 1;
                if pieces > PIECES {
                    return true;
                }
            }
            match net::send(
                &self.stream,
                &self.out[self.sent..],
                net::SendFlags::NOSIGNAL,
            ) {
                Ok(n) => {
                    self.sent += n;
                    self.moved += n;
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
