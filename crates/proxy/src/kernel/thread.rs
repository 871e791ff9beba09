//! The thread of a stack: it opens connections and carries those that were joined.
//!
//! 1. What is asked for ([`Task`]) may take a socket of the namespace: the child process is asked for it, and
//!    answers in the order of the requests.
//! 2. A socket connects, until its time has passed.
//! 3. Two sockets that were joined are a [`Relay`] until both directions have ended.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit::net::NetError;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{set_tcp_nodelay, socket_error};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, connect, recvmsg, send,
};

use super::child_end::ChildEnd;
use super::relay::{IdlePipes, Relay, RelayState};
use super::setup::request;
use super::socket_kind::SocketKind;
use super::sockets::{KernelConnection, explain, host};
use super::tasks::{Task, Tasks};
use crate::stack::{OpenedTcp, Then};

const WAKE: u64 = 0;
const CHILD: u64 = 1;
/// Of the first connection: each has two, one for each of its sockets.
const FIRST: u64 = 2;
/// Requests that may be under way to the child: fewer than its socket holds.
const MOST_ASKED: usize = 64;
/// Events that are taken at once.
const EVENTS: usize = 256;
/// How long one end of a relay may take to end once the other one is gone, as with the other stack.
const ORPHANED: Duration = Duration::from_secs(60);

/// What is done with a socket that the child was asked for.
enum Use {
    Give(Then<OwnedFd>),
    Connect(SocketAddr, Instant, Then<Box<dyn OpenedTcp>>),
}

/// A socket that connects.
struct Connecting {
    socket: OwnedFd,
    remote: SocketAddr,
    then: Then<Box<dyn OpenedTcp>>,
}

enum StackFlow {
    Connecting(Connecting),
    Joined(Relay),
}

/// The state of the thread.
pub(super) struct StackThread {
    tasks: Arc<Tasks>,
    epoll: OwnedFd,
    child: ChildEnd,
    /// What is to be asked for, and what was.
    to_ask: VecDeque<(SocketKind, Use)>,
    asked: VecDeque<Use>,
    /// The families that there are inner addresses of: IPv4, IPv6.
    families: [bool; 2],
    flows: HashMap<u64, StackFlow>,
    next: u64,
    /// When attempts to connect, and relays with one end, have taken too long.
    deadlines: BinaryHeap<Reverse<(Instant, u64)>>,
    /// Relays that have more to do at once.
    busy: Vec<u64>,
    pipes: IdlePipes,
}

impl StackThread {
    pub(super) fn new(
        tasks: Arc<Tasks>,
        child: ChildEnd,
        addresses: &[IpAddr],
    ) -> io::Result<Self> {
        let has = |v4| addresses.iter().any(|own| own.is_ipv4() == v4);
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let edge = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, &*tasks, EventData::new_u64(WAKE), edge)?;
        let data = EventData::new_u64(CHILD);
        epoll::add(&epoll, &child.socket, data, EventFlags::IN)?;
        Ok(Self {
            tasks,
            epoll,
            child,
            to_ask: VecDeque::new(),
            asked: VecDeque::new(),
            families: [has(true), has(false)],
            flows: HashMap::new(),
            next: FIRST,
            deadlines: BinaryHeap::new(),
            busy: Vec::new(),
            pipes: IdlePipes::default(),
        })
    }

    /// Runs until the stack is dropped, or the child process has ended: connections end then, too. True if nobody
    /// dropped it.
    pub(super) fn run(mut self) -> bool {
        let mut events = Vec::with_capacity(EVENTS);
        while let Some(tasks) = self.tasks.take() {
            for task in tasks {
                self.begin(task);
            }
            self.ask();
            for id in std::mem::take(&mut self.busy) {
                self.run_relay(id);
            }
            self.end_late(Instant::now());
            let timeout = self.timeout();
            events.clear();
            let space = rustix::buffer::spare_capacity(&mut events);
            if let Err(error) = epoll::wait(&self.epoll, space, timeout.as_ref())
                && error != Errno::INTR
            {
                return true;
            }
            for event in &events {
                match event.data.u64() {
                    WAKE => {}
                    CHILD => {
                        if self.hear_child().is_err() {
                            return true;
                        }
                    }
                    data => self.hear_flow(data, event),
                }
            }
        }
        false
    }

    fn timeout(&self) -> Option<Timespec> {
        if !self.busy.is_empty() {
            return Some(Timespec::default());
        }
        let Reverse((first, _)) = self.deadlines.peek()?;
        // More than some 24 days would take a system call that a sandbox does not allow.
        let left = first
            .saturating_duration_since(Instant::now())
            .min(Duration::from_secs(86_400));
        // It is never before its time.
        Timespec::try_from(left + Duration::from_micros(1)).ok()
    }

    fn begin(&mut self, task: Task) {
        match task {
            Task::Socket { kind, then } => self.to_ask.push_back((kind, Use::Give(then))),
            Task::Connect {
                remote,
                until,
                then,
            } => {
                if !self.families[usize::from(remote.is_ipv6())] {
                    return then(Err(NetError::NoAddress(remote)));
                }
                let kind = SocketKind::tcp(remote.ip());
                let used = Use::Connect(remote, until, then);
                self.to_ask.push_back((kind, used));
            }
            Task::Join { inner, client } => self.join(inner, client),
        }
    }

    /// Asks the child for sockets.
    fn ask(&mut self) {
        while self.asked.len() < MOST_ASKED
            && let Some((kind, used)) = self.to_ask.pop_front()
        {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match send(&self.child.socket, &request(kind), flags) {
                Ok(_) => self.asked.push_back(used),
                // Its end is heard of next.
                Err(_) => return,
            }
        }
    }

    /// Takes the child's answers; an error if it has ended.
    fn hear_child(&mut self) -> Result<(), Errno> {
        loop {
            let (len, number, fd) = match receive(&self.child.socket) {
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                received => received?,
            };
            if len == 0 {
                return Err(Errno::PIPE);
            }
            let made = fd.ok_or_else(|| match number {
                // It was made, and there was no descriptor left for it here.
                0 => Errno::MFILE,
                number => Errno::from_raw_os_error(number),
            });
            match self.asked.pop_front() {
                Some(Use::Give(then)) => then(made.map_err(host)),
                Some(Use::Connect(remote, until, then)) => match made {
                    Ok(socket) => self.connect(socket, remote, until, then),
                    Err(error) => then(Err(host(error))),
                },
                None => {}
            }
        }
        self.ask();
        Ok(())
    }

    fn connect(
        &mut self,
        socket: OwnedFd,
        remote: SocketAddr,
        until: Instant,
        then: Then<Box<dyn OpenedTcp>>,
    ) {
        let begun = set_tcp_nodelay(&socket, true).and_then(|()| connect(&socket, &remote));
        let connecting = Connecting {
            socket,
            remote,
            then,
        };
        match begun {
            Ok(()) => self.opened(connecting, Ok(())),
            Err(Errno::INPROGRESS) => {
                let id = self.next_id();
                let data = EventData::new_u64(id);
                let edge = EventFlags::OUT | EventFlags::ET;
                match epoll::add(&self.epoll, &connecting.socket, data, edge) {
                    Ok(()) => {
                        self.deadlines.push(Reverse((until, id)));
                        self.flows.insert(id, StackFlow::Connecting(connecting));
                    }
                    Err(error) => self.opened(connecting, Err(error)),
                }
            }
            Err(error) => self.opened(connecting, Err(error)),
        }
    }

    fn opened(&self, connecting: Connecting, outcome: Result<(), Errno>) {
        let Connecting {
            socket,
            remote,
            then,
        } = connecting;
        then(match outcome {
            Ok(()) => Ok(Box::new(KernelConnection::of(
                Arc::clone(&self.tasks),
                socket,
            ))),
            Err(error) => Err(explain(error, remote)),
        });
    }

    fn next_id(&mut self) -> u64 {
        let id = self.next;
        self.next += 2;
        id
    }

    fn join(&mut self, inner: OwnedFd, client: OwnedFd) {
        let id = self.next_id();
        let relay = Relay::new([inner, client]);
        for (side, socket) in (0..).zip(relay.sockets()) {
            let data = EventData::new_u64(id + side);
            if epoll::add(&self.epoll, socket, data, Relay::EVENTS).is_err() {
                return relay.reset();
            }
        }
        self.flows.insert(id, StackFlow::Joined(relay));
        self.run_relay(id);
    }

    fn run_relay(&mut self, id: u64) {
        let Some(StackFlow::Joined(relay)) = self.flows.get_mut(&id) else {
            return;
        };
        match relay.run(&mut self.pipes) {
            Ok(RelayState::Waits) => {
                if relay.becomes_orphaned() {
                    self.deadlines
                        .push(Reverse((Instant::now() + ORPHANED, id)));
                }
            }
            Ok(RelayState::HasMore) => self.busy.push(id),
            Ok(RelayState::Over) => drop(self.flows.remove(&id)),
            Err(_) => {
                if let Some(StackFlow::Joined(relay)) = self.flows.remove(&id) {
                    relay.reset();
                }
            }
        }
    }

    fn hear_flow(&mut self, data: u64, event: &Event) {
        let (id, side) = (data & !1, usize::from(data & 1 != 0));
        let flags = event.flags;
        match self.flows.get_mut(&id) {
            Some(StackFlow::Joined(relay)) => {
                relay.hear(side, flags);
                if !self.busy.contains(&id) {
                    self.run_relay(id);
                }
            }
            Some(StackFlow::Connecting(_)) => {
                if let Some(StackFlow::Connecting(connecting)) = self.flows.remove(&id) {
                    // What becomes of it may wait for its events elsewhere, as it does here once it is joined.
                    let _ = epoll::delete(&self.epoll, &connecting.socket);
                    let outcome = socket_error(&connecting.socket).unwrap_or_else(Err);
                    self.opened(connecting, outcome);
                }
            }
            None => {}
        }
    }

    /// Ends what has taken too long.
    fn end_late(&mut self, now: Instant) {
        while let Some(Reverse((until, id))) = self.deadlines.peek().copied()
            && until <= now
        {
            self.deadlines.pop();
            match self.flows.remove(&id) {
                Some(StackFlow::Connecting(connecting)) => {
                    self.opened(connecting, Err(Errno::TIMEDOUT));
                }
                Some(StackFlow::Joined(relay)) => relay.reset(),
                None => {}
            }
        }
    }
}

impl Drop for StackThread {
    /// However it ends: nobody waits for it any more, and connections are reset.
    fn drop(&mut self) {
        self.tasks.end();
        for (_, flow) in self.flows.drain() {
            if let StackFlow::Joined(relay) = flow {
                relay.reset();
            }
        }
    }
}

/// An answer of the child process: its length, the number in it, and the descriptor that came with it.
fn receive(socket: &OwnedFd) -> Result<(usize, i32, Option<OwnedFd>), Errno> {
    let mut number = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let mut bytes = [IoSliceMut::new(&mut number)];
    let received = recvmsg(socket.as_fd(), &mut bytes, &mut control, flags)?;
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok((received.bytes, i32::from_ne_bytes(number), fd))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    use super::*;

    /// A thread that is not running, whose child does nothing.
    fn thread() -> StackThread {
        let tasks = Arc::new(Tasks::new().expect("a descriptor"));
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let child = Command::new("cat")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn();
        let child = ChildEnd::new(ours.into(), child.expect("a process"));
        StackThread::new(tasks, child, &[]).expect("descriptors")
    }

    #[test]
    fn a_client_that_goes_does_not_leave_its_connection_for_ever() {
        let mut thread = thread();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let inner = TcpStream::connect(listener.local_addr().expect("an address"));
        let (mut server, _) = listener.accept().expect("a connection");
        // The server does not end when the client does.
        let (client, theirs) = UnixStream::pair().expect("a pair");
        let inner = inner.expect("a connection");
        inner.set_nonblocking(true).expect("a socket");
        theirs.set_nonblocking(true).expect("a socket");
        thread.join(inner.into(), theirs.into());
        let begun = Instant::now();
        drop(client);
        while thread.deadlines.is_empty() {
            let mut events = Vec::with_capacity(EVENTS);
            let space = rustix::buffer::spare_capacity(&mut events);
            epoll::wait(&thread.epoll, space, None).expect("events");
            for event in &events {
                thread.hear_flow(event.data.u64(), event);
            }
        }
        thread.end_late(begun + ORPHANED);
        assert_eq!(thread.flows.len(), 1, "it has some time");
        assert_eq!(server.read(&mut [0]).expect("the end of the client"), 0);
        thread.end_late(Instant::now() + ORPHANED);
        assert!(thread.flows.is_empty());
    }
}
