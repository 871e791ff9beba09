//! Endpoints that are names: when they are looked up, and what becomes of the answers.
//!
//! A name is looked up when it is given, when its addresses hold no longer, and when a handshake
//! with its peer is not answered. The process that asks the system (`crate::resolver`) is started
//! before the first interface; the thread that talks to it runs once there is a name. Everybody else
//! only notes something under a short lock.
//!
//! All of it is bounded: names, look-ups at the same time, their rate, and that of each name.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use adit_ctl::config::HostPort;
use adit_ctl::uapi::{MAX_NAMES, UapiError, UapiResponse};
use adit_engine::Interface;
use adit_io::helper;
use adit_proto::config::{DeviceChange, PublicKey};
use adit_sandbox::{Role, confine};
use rustix::cmsg_space;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

mod handed_over;
mod host;

pub(super) use handed_over::HandedNames;
use host::ResolvedName;

use super::LogLevel;
use super::child::{self, Guard};
use crate::failure::{Context, Result};
use crate::resolver::{ARGUMENT, Answer, BEGUN_ANEW, IN_FLIGHT, MARKED, Request, WITHOUT_SANDBOX};

/// Between two look-ups of any names.
const PACE: Duration = Duration::from_millis(20);
/// After this, an answer does not come any more: the longest that the system's resolver takes with
/// the settings that it allows is shorter.
const LOST: Duration = Duration::from_secs(600);

/// The resolver: looks up the names of a process's interfaces.
pub(crate) struct Resolver {
    state: Mutex<ResolverState>,
    /// To the other process; `None` if it could not be started.
    socket: Option<OwnedFd>,
    /// Names are to be looked up again, also in a process that goes on for this one.
    pub(super) wanted: bool,
    wake: OwnedFd,
    level: LogLevel,
}

#[derive(Default)]
struct ResolverState {
    peers: BTreeMap<(String, PublicKey), Named>,
    hosts: BTreeMap<String, ResolvedName>,
    /// The marks of interfaces that have one.
    marks: BTreeMap<String, u32>,
    requests: BTreeMap<u32, (String, Instant)>,
    next_id: u32,
    /// When the last request left.
    last: Option<Instant>,
    runs: bool,
    /// The other process has ended.
    is_lost: bool,
}

/// A peer whose endpoint is a name.
struct Named {
    interface: Weak<Interface>,
    endpoint: HostPort,
    /// Another program has set this address: if the name does not lead there, it is not the
    /// peer's any more.
    claimed: Option<SocketAddr>,
}

/// The addresses of a peer.
fn with_port(addrs: &[SocketAddr], port: u16) -> Vec<SocketAddr> {
    let with = |addr: &SocketAddr| {
        let mut addr = *addr;
        addr.set_port(port);
        addr
    };
    addrs.iter().map(with).collect()
}

impl ResolverState {
    fn tell(&self, key: &(String, PublicKey), named: &Named) {
        if let Some(interface) = named.interface.upgrade() {
            let host = self.hosts.get(&named.endpoint.host);
            let addrs = host.map_or(&[][..], |host| &host.addrs);
            let addrs = with_port(addrs, named.endpoint.port);
            interface.set_candidates(vec![(key.1, Some(addrs))]);
        }
    }

    /// The peer's endpoint is a name no longer.
    fn forget(&mut self, key: &(String, PublicKey)) {
        let named = self.peers.remove(key);
        if let Some(interface) = named.and_then(|named| named.interface.upgrade()) {
            interface.set_candidates(vec![(key.1, None)]);
        }
    }

    fn forget_unused(&mut self) {
        self.peers
            .retain(|_, named| named.interface.strong_count() > 0);
        let peers = self.peers.values();
        let used: BTreeSet<&str> = peers.map(|named| named.endpoint.host.as_str()).collect();
        self.hosts.retain(|host, _| used.contains(host.as_str()));
    }

    /// The next request and the mark of the interface's packets, or when there is one.
    fn next(&mut self, now: Instant) -> std::result::Result<(Request, u32), Option<Instant>> {
        let lost = |at: &Instant| now.duration_since(*at) >= LOST;
        while let Some((&id, (host, _))) = self.requests.iter().find(|(_, (_, at))| lost(at)) {
            if let Some(host) = self.hosts.get_mut(host) {
                host.is_asked = false;
            }
            self.requests.remove(&id);
        }
        if self.requests.len() >= IN_FLIGHT {
            let first = self.requests.values().map(|(_, at)| *at + LOST).min();
            return Err(first);
        }
        let waiting = self.hosts.iter_mut().filter(|(_, host)| !host.is_asked);
        let Some((name, host)) = waiting.min_by_key(|(_, host)| host.due) else {
            return Err(None);
        };
        let paced = self.last.map_or(now, |last| last + PACE);
        let at = host.due.max(paced);
        if at > now {
            return Err(Some(at));
        }
        (host.is_asked, host.asked, self.last) = (true, Some(now), Some(now));
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        self.requests.insert(id, (name.clone(), now));
        let mut peers = self.peers.iter();
        let of_host = peers.find(|(_, named)| named.endpoint.host == *name);
        let mark = of_host.and_then(|((interface, _), _)| self.marks.get(interface));
        let host = name.clone();
        Ok((Request { id, host }, mark.copied().unwrap_or(0)))
    }

    /// Requests that are under way have failed: one of them ended the other process, perhaps.
    fn begin_anew(&mut self, now: Instant) {
        for (id, (host, _)) in std::mem::take(&mut self.requests) {
            let none = Answer {
                id,
                addrs: Vec::new(),
                ttl: Duration::ZERO,
            };
            if let Some(host) = self.hosts.get_mut(&host) {
                host.answered(now, &none);
            }
        }
    }

    fn answered(&mut self, now: Instant, answer: &Answer) -> Option<(String, Outcome)> {
        let (name, _) = self.requests.remove(&answer.id)?;
        let host = self.hosts.get_mut(&name)?;
        let before: BTreeSet<IpAddr> = host.addrs.iter().map(SocketAddr::ip).collect();
        host.answered(now, answer);
        let after: BTreeSet<IpAddr> = host.addrs.iter().map(SocketAddr::ip).collect();
        if answer.addrs.is_empty() {
            let first = host.failures == 1;
            return first.then_some((name, Outcome::Failed));
        }
        let of_host = |named: &Named| named.endpoint.host == name;
        let peers: Vec<_> = (self.peers.iter())
            .filter(|(_, named)| of_host(named))
            .map(|(key, _)| key.clone())
            .collect();
        for key in peers {
            let addrs = &self.hosts.get(&name)?.addrs;
            let named = self.peers.get_mut(&key)?;
            let addrs = with_port(addrs, named.endpoint.port);
            let claimed = named.claimed.take();
            if claimed.is_some_and(|addr| !addrs.contains(&addr)) {
                self.forget(&key);
            } else if claimed.is_some() || before != after {
                self.tell(&key, self.peers.get(&key)?);
            }
        }
        (before != after).then_some((name, Outcome::Changed(after)))
    }
}

/// Outcomes that are worth a line of the log.
enum Outcome {
    Failed,
    Changed(BTreeSet<IpAddr>),
}

impl Resolver {
    /// Starts the process, where names are `wanted`. Without it, they are looked up once, by the
    /// command that sets them.
    pub(crate) fn start(
        level: LogLevel,
        sandbox: bool,
        wanted: bool,
    ) -> Result<(Arc<Self>, Option<Guard>)> {
        let failed = || "cannot start the resolver".to_owned();
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context(failed)?;
        let arguments = [ARGUMENT, WITHOUT_SANDBOX];
        let arguments = &arguments[..if sandbox { 1 } else { 2 }];
        let (child, socket) = match wanted.then(|| child::start(arguments)).transpose() {
            Ok(started) => started.unzip(),
            Err(error) => {
                level.error(format_args!(
                    "cannot start a process that looks names up: those of endpoints are looked up only when a tunnel \
                     comes up: {error}"
                ));
                (None, None)
            }
        };
        let resolver = Self {
            state: Mutex::default(),
            socket,
            wake,
            level,
            wanted,
        };
        Ok((Arc::new(resolver), child))
    }

    /// The endpoints of these peers of an interface are names; with `replace`, those of no others
    /// are.
    pub(crate) fn name(
        self: &Arc<Self>,
        name: &str,
        interface: &Arc<Interface>,
        named: Vec<(PublicKey, HostPort)>,
        replace: bool,
    ) -> UapiResponse {
        if !self.wanted && named.iter().any(|(_, it)| it.numeric().is_none()) {
            let errno = rustix::io::Errno::OPNOTSUPP.raw_os_error();
            let why = "looks names up once: see --names";
            return UapiResponse::Refused(UapiError::new(errno, why));
        }
        let now = Instant::now();
        let mut state = self.state();
        let kept: BTreeSet<PublicKey> = named.iter().map(|(peer, _)| *peer).collect();
        let gone: Vec<_> = (state.peers.keys())
            .filter(|(owner, peer)| owner == name && replace && !kept.contains(peer))
            .cloned()
            .collect();
        gone.iter().for_each(|key| state.forget(key));
        for (peer, endpoint) in named {
            let key = (name.to_owned(), peer);
            if endpoint.numeric().is_some() {
                state.forget(&key);
                continue;
            }
            if state.peers.len() >= MAX_NAMES && !state.peers.contains_key(&key) {
                self.level.error(format_args!(
                    "{name}: a process looks up {MAX_NAMES} names again; that of {peer} is not among them"
                ));
                break;
            }
            let host = endpoint.host.clone();
            state
                .hosts
                .entry(host)
                .or_insert_with(|| ResolvedName::new(now));
            let new = Named {
                interface: Arc::downgrade(interface),
                endpoint,
                claimed: None,
            };
            state.tell(&key, &new);
            state.peers.insert(key, new);
        }
        state.forget_unused();
        self.start_thread(&mut state);
        drop(state);
        self.wake();
        UapiResponse::Done
    }

    /// There is something to do, perhaps.
    fn start_thread(self: &Arc<Self>, state: &mut ResolverState) {
        let is_possible = self.socket.is_some() && !state.is_lost;
        if !state.runs && !state.peers.is_empty() && is_possible {
            let this = Arc::clone(self);
            let work = move || {
                let this = Runs(this);
                if confine(Role::Sockets).is_ok() {
                    this.0.run();
                }
            };
            state.runs = adit_sandbox::start("adit-names", work).is_ok();
        }
    }

    /// A program has changed the configuration of an interface.
    pub(crate) fn configured(&self, name: &str, change: &DeviceChange) {
        let now = Instant::now();
        let state = &mut *self.state();
        match change.fwmark {
            Some(0) => drop(state.marks.remove(name)),
            Some(mark) => drop(state.marks.insert(name.to_owned(), mark)),
            None => {}
        }
        if state.peers.is_empty() {
            return;
        }
        let mut stays = BTreeSet::new();
        for section in &change.peers {
            let key = (name.to_owned(), section.public_key);
            let Some(named) = state.peers.get_mut(&key) else {
                continue;
            };
            let known = state.hosts.get_mut(&named.endpoint.host);
            match section.endpoint {
                _ if section.remove => state.forget(&key),
                None if change.replace_peers => state.forget(&key),
                None => {}
                Some(addr) => {
                    stays.insert(key.1);
                    let is_known = known.as_ref().is_some_and(|host| {
                        with_port(&host.addrs, named.endpoint.port).contains(&addr)
                    });
                    if !is_known {
                        named.claimed = Some(addr);
                        known.into_iter().for_each(|host| host.due = now);
                    }
                }
            }
        }
        if change.replace_peers {
            let gone: Vec<_> = (state.peers.keys())
                .filter(|(owner, peer)| owner == name && !stays.contains(peer))
                .cloned()
                .collect();
            gone.iter().for_each(|key| state.forget(key));
        }
        self.wake();
    }

    /// A handshake with a peer is not answered. It is called by the control thread, which must not
    /// wait: the next initiation is soon.
    pub(crate) fn unanswered(&self, name: &str, peer: &PublicKey) {
        let Ok(mut state) = self.state.try_lock() else {
            return;
        };
        let ResolverState { peers, hosts, .. } = &mut *state;
        let named = peers.get(&(name.to_owned(), *peer));
        if let Some(host) = named.and_then(|named| hosts.get_mut(&named.endpoint.host)) {
            host.hurry(Instant::now());
            drop(state);
            self.wake();
        }
    }

    fn run(&self) {
        let Some(socket) = &self.socket else {
            return;
        };
        loop {
            let until = self.send_due(socket);
            if self.state().is_lost {
                return;
            }
            let mut fds = [
                PollFd::new(socket, PollFlags::IN),
                PollFd::new(&self.wake, PollFlags::IN),
            ];
            let timeout = until.map(|at| {
                // Not before it is due.
                let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
                Timespec::try_from(left).unwrap_or_default()
            });
            // Errors are of signals.
            let _ = poll(&mut fds, timeout.as_ref());
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            self.take_answers(socket);
        }
    }

    /// Sends what may be sent, and returns when there may be more.
    fn send_due(&self, socket: &OwnedFd) -> Option<Instant> {
        loop {
            let mut state = self.state();
            state.forget_unused();
            let (request, mark) = match state.next(Instant::now()) {
                Ok(request) => request,
                Err(until) => return until,
            };
            drop(state);
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let sockets = if mark == 0 {
                Vec::new()
            } else {
                helper::marked(mark)
            };
            let fds: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MARKED))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(&fds));
            }
            let bytes = request.to_bytes();
            // It holds more than may be in flight. What is lost all the same is asked for again.
            let _ = sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags);
        }
    }

    fn take_answers(&self, socket: &OwnedFd) {
        let mut bytes = [0; 512];
        loop {
            let length = match rustix::net::recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((length, _)) if length > 0 => length,
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::AGAIN) => return,
                _ => {
                    self.state().is_lost = true;
                    self.level.error(
                        "the process that looks names up has ended: those of endpoints stay at the addresses that they have",
                    );
                    return;
                }
            };
            if &bytes[..length] == BEGUN_ANEW {
                self.state().begin_anew(Instant::now());
                self.level
                    .error("the process that looks names up has failed, and is started again");
                continue;
            }
            let Some(answer) = Answer::parse(&bytes[..length]) else {
                continue;
            };
            let told = self.state().answered(Instant::now(), &answer);
            match told {
                Some((name, Outcome::Failed)) => {
                    self.level.verbose(format_args!("{name}: no address found"));
                }
                Some((name, Outcome::Changed(addrs))) => {
                    let addrs: Vec<String> = addrs.iter().map(IpAddr::to_string).collect();
                    let addrs = addrs.join(", ");
                    self.level.verbose(format_args!("{name} is at {addrs}"));
                }
                None => {}
            }
        }
    }

    fn wake(&self) {
        // Fails only when it is full, and then a wake-up is already due.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn state(&self) -> MutexGuard<'_, ResolverState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that talks to the other process. When it has ended, as by a panic, the next name that is
/// given starts another one.
struct Runs(Arc<Resolver>);

impl Drop for Runs {
    fn drop(&mut self) {
        self.0.state().runs = false;
    }
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
