//! One thread that serves all clients of a socket.
//!
//! No client can stop it. Sockets do not block. A client that does not read its answer is not read
//! from. A client that stalls within a request or an answer is dropped after [`STALL`]. When there
//! are too many clients, the one that has been silent for longest is dropped. The thread sleeps in
//! poll(2) until a client, the socket's file or [`Serving::stop`] wakes it, or the earliest of
//! those deadlines passes.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net;

use super::Bound;
use crate::zeroized::Zeroized;

/// Clients at a time.
pub(super) const MAX_CLIENTS: usize = 32;
/// How long a client may stand still within a request or an answer.
pub(super) const STALL: Duration = Duration::from_secs(10);
/// Bytes of unfinished requests, of all clients together.
const MAX_HELD: usize = crate::uapi::MAX_REQUEST;
/// How long to leave waiting clients alone when accept(2) fails, as it does without free file
/// descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// Bytes read at once, and kept of a client that sends requests before it takes answers.
const READ_SIZE: usize = 16 << 10;

/// Events that the owner of a socket has to handle.
#[derive(Debug)]
pub enum ServerEvent<'a> {
    /// A client got this error: a line for the log.
    Refused(&'a crate::uapi::UapiError),
    /// The socket's file was removed: no client can reach this process any more, so it should end.
    Removed,
    /// Clients cannot be accepted at the moment.
    Failed(&'a io::Error),
}

/// One client's side of a conversation.
pub(crate) trait Talk {
    /// Whether anything is read. If not, the conversation ends when the client has read the
    /// greeting.
    const LISTENS: bool = true;

    /// Consumes bytes of `input` and appends an answer to `out` as soon as there is one. False ends
    /// the conversation once the answer was read.
    ///
    /// The present request may grow to `room` bytes.
    fn hear(&mut self, input: &mut &[u8], room: usize, out: &mut Zeroized) -> bool;

    /// The client has stopped writing, or stalled. Whatever is in `out` afterwards is the last it
    /// gets.
    fn end(&mut self, out: &mut Zeroized);

    /// Bytes of an unfinished request.
    fn held(&self) -> usize;
}

/// A socket that is being served; dropping it stops that and removes the socket.
#[derive(Debug)]
pub struct Serving {
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Returns when the thread has ended and the socket's file is gone.
    pub fn stop(self) {}
}

impl Drop for Serving {
    fn drop(&mut self) {
        _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

/// Serves `bound` on a thread of its own; `open` returns the greeting for a new client and the
/// conversation with it.
pub(crate) fn serve<T: Talk>(
    bound: Bound,
    open: impl Fn(&mut Zeroized) -> T + Send + 'static,
    notify: impl Fn(ServerEvent<'_>) + Send + 'static,
) -> io::Result<Serving> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let stop = Arc::clone(&wake);
    let thread = std::thread::Builder::new()
        .name("adit-ctl".into())
        .spawn(move || run(bound, &stop, open, notify))?;
    let thread = Some(thread);
    Ok(Serving { wake, thread })
}

struct Client<T> {
    socket: OwnedFd,
    talk: T,
    /// Bytes that are read but not parsed, because the client has to read an answer first.
    unheard: Zeroized,
    out: Zeroized,
    sent: usize,
    /// Nothing more is heard; what is in `out` is the end.
    ending: bool,
    /// When the client last did something.
    seen: Instant,
}

fn run<T: Talk>(
    mut bound: Bound,
    wake: &OwnedFd,
    open: impl Fn(&mut Zeroized) -> T,
    notify: impl Fn(ServerEvent<'_>),
) {
    let mut clients: Vec<Client<T>> = Vec::new();
    let mut accept_after: Option<Instant> = None;
    loop {
        let now = Instant::now();
        accept_after = accept_after.filter(|&at| at > now);
        let deadline = (clients.iter().filter_map(Client::deadline))
            .chain(accept_after)
            .min();
        let busy = clients.iter().any(Client::is_ready);
        let wait = match deadline {
            _ if busy => Some(Duration::ZERO),
            // A millisecond late rather than a moment early.
            Some(at) => Some(at.saturating_duration_since(now) + Duration::from_millis(1)),
            None => None,
        };
        let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
        let listen = match accept_after {
            Some(_) => PollFlags::empty(),
            None => PollFlags::IN,
        };
        let listener = bound.listener();
        let mut fds = vec![
            PollFd::new(wake, PollFlags::IN),
            // Without a watch there is nothing else to wait for here.
            PollFd::new(bound.watch.as_ref().unwrap_or(wake), PollFlags::IN),
            PollFd::from_borrowed_fd(listener, listen),
        ];
        fds.extend((clients.iter()).map(|client| PollFd::new(&client.socket, client.interest())));
        match poll(&mut fds, wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                notify(ServerEvent::Failed(&error.into()));
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        }
        let woken: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        if woken[0] {
            return;
        }
        if woken[1] && bound.was_removed() {
            notify(ServerEvent::Removed);
        }
        let now = Instant::now();
        let mut held: usize = clients.iter().map(|client| client.talk.held()).sum();
        let mut woken_clients = woken[3..].iter();
        clients.retain_mut(|client| {
            let woken = woken_clients.next().is_some_and(|&woken| woken);
            let before = client.talk.held();
            let room = MAX_HELD.saturating_sub(held - before);
            let stays = if woken || client.is_ready() {
                client.step(now, room)
            } else {
                client.deadline().is_none_or(|at| at > now) || client.give_up(now)
            };
            held = held - before + if stays { client.talk.held() } else { 0 };
            stays
        });
        if woken[2] {
            match accept(&bound) {
                Ok(Some(socket)) => {
                    if clients.len() >= MAX_CLIENTS {
                        make_room(&mut clients);
                    }
                    clients.push(Client::new(socket, now, &open));
                }
                Ok(None) => {}
                Err(error) => {
                    notify(ServerEvent::Failed(&error));
                    accept_after = Some(now + ACCEPT_PAUSE);
                }
            }
        }
    }
}

fn accept(bound: &Bound) -> io::Result<Option<OwnedFd>> {
    let flags = net::SocketFlags::CLOEXEC | net::SocketFlags::NONBLOCK;
    match net::accept_with(bound.listener(), flags) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::WOULDBLOCK | Errno::CONNABORTED | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Drops the client that has been silent for longest.
fn make_room<T>(clients: &mut Vec<Client<T>>) {
    let silent = (0..clients.len()).min_by_key(|&i| clients[i].seen);
    if let Some(i) = silent {
        clients.swap_remove(i);
    }
}

impl<T: Talk> Client<T> {
    fn new(socket: OwnedFd, now: Instant, open: impl Fn(&mut Zeroized) -> T) -> Self {
        let mut out = Zeroized::default();
        let talk = open(&mut out);
        Self {
            socket,
            talk,
            unheard: Zeroized::default(),
            out,
            sent: 0,
            ending: !T::LISTENS,
            seen: now,
        }
    }

    fn interest(&self) -> PollFlags {
        match self.out.is_empty() {
            true => PollFlags::IN,
            false => PollFlags::OUT,
        }
    }

    /// Whether there is work that can be done without waiting.
    fn is_ready(&self) -> bool {
        self.out.is_empty() && !self.unheard.is_empty()
    }

    fn deadline(&self) -> Option<Instant> {
        let within = self.talk.held() > 0 || !self.out.is_empty();
        within.then(|| self.seen + STALL)
    }

    /// Handles one request at most, so that every client is served. False: the conversation is
    /// over.
    fn step(&mut self, now: Instant, room: usize) -> bool {
        if !self.out.is_empty() {
            return self.send(now);
        }
        if self.unheard.is_empty() {
            let mut buffer = zeroize::Zeroizing::new([0; READ_SIZE]);
            match rustix::io::read(&self.socket, buffer.as_mut_slice()) {
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

    /// Sends what the client takes now, the whole answer with one call if it takes it.
    fn send(&mut self, now: Instant) -> bool {
        while self.sent < self.out.len() {
            match net::send(
                &self.socket,
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
        self.sent = 0;
        self.out.clear();
        !self.ending
    }

    /// The client stalled: one last word if it was within a request, none if it does not read.
    fn give_up(&mut self, now: Instant) -> bool {
        if self.ending || !self.out.is_empty() {
            return false;
        }
        self.ending = true;
        self.talk.end(&mut self.out);
        self.send(now)
    }
}
