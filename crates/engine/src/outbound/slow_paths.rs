//! Send sockets of their own for peers behind slow paths, so that such a peer delays no other
//! (invariant 9).
//!
//! 1. The socket that all peers share is full, and stays full for [`STALL`]: some path is slower
//!    than the traffic to it.
//! 2. The kernel does not say which path. So every peer that sent much lately gets a socket of its
//!    own, on the same port, and the shared socket gets a longer buffer: the bytes that fill it
//!    have to leave first.
//! 3. A peer with a socket of its own delays no other. Packets that do not fit its buffer are
//!    dropped and counted under the peer. The buffer becomes as long as the path transmits in
//!    [`DRAINS_SLOWLY`] to twice that: a slow path gets a short queue, and a fast one is never
//!    full.
//! 4. A peer whose socket was not full for [`KEEP`] uses the shared one again.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use adit_io::UdpSocket;
use adit_io::udp::SEND_BUFFER;
use adit_proto::{DropReason, Drops, Time};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::outbound::context::OutboundContext;
use crate::outbound::train::SealedTrain;
use crate::outbound::transmit::send;
use crate::thread::lock::lock;

/// How long the shared socket may be full until peers get sockets of their own.
///
/// Half of its buffer leaves in this time at 1 Gb/s, so that a local TCP stack does not lose
/// segments where a network card is all that is full.
pub(crate) const STALL: Duration = Duration::from_millis(30);
/// How long a peer keeps its socket after that was full last.
const KEEP: Duration = Duration::from_secs(10);
/// How often to look whether a socket is still needed.
pub(crate) const TIDY: Duration = Duration::from_secs(1);
/// Sockets at most. More slow paths than this delay others again.
const MAX_PATHS: usize = 256;
/// Peers that get sockets at once, at most: those that sent most.
const MAX_ISOLATED: usize = 64;
/// A peer that sent less than this lately does not fill a socket.
const MUCH: usize = 16 << 10;
/// Trains that "lately" means.
const RECENT: usize = 1024;
/// The buffer of a socket at first.
const FIRST_BUFFER: usize = 1 << 20;
/// The shortest buffer: two trains.
const MIN_BUFFER: usize = 128 << 10;
/// A buffer is longer next time if half of it left sooner than this,
const DRAINS_FAST: Duration = Duration::from_millis(10);
/// and shorter if that took longer than this.
const DRAINS_SLOWLY: Duration = Duration::from_millis(50);
/// The shared socket's buffer is extended to so many times its length at most.
const MAX_EXTENSION: usize = 4;

/// The peers of one interface that have send sockets of their own.
pub(crate) struct SlowPaths<U> {
    /// Readable when one of the sockets is to be looked at.
    epoll: OwnedFd,
    /// Some peer has a socket: as long as none has, nobody waits for the lock.
    has_any: AtomicBool,
    is_untidy: AtomicBool,
    state: Mutex<PathsState<U>>,
}

struct PathsState<U> {
    own: HashMap<u32, SlowPath<U>>,
    /// How many times [`SEND_BUFFER`] the shared sockets' buffers are, IPv4 and IPv6.
    extension: [usize; 2],
    /// When the shared socket was last full for long.
    stalled: Time,
    /// When this was last tidied up.
    tidied: Time,
}

/// Which peer sent how many bytes to the shared socket: the last [`RECENT`] trains, a ring.
#[derive(Default)]
pub(crate) struct RecentTrains {
    trains: Vec<(u32, usize)>,
    next: usize,
}

impl RecentTrains {
    /// Bytes to a peer went to the shared socket.
    pub(crate) fn sent(&mut self, peer: u32, bytes: usize) {
        if self.trains.len() < RECENT {
            self.trains.push((peer, bytes));
        } else {
            self.trains[self.next] = (peer, bytes);
            self.next = (self.next + 1) % RECENT;
        }
    }

    /// All of it, which is forgotten.
    pub(crate) fn take(&mut self) -> Vec<(u32, usize)> {
        self.next = 0;
        std::mem::take(&mut self.trains)
    }
}

/// One peer's send socket.
struct SlowPath<U> {
    socket: U,
    /// Of the socket: true for IPv6.
    v6: bool,
    /// The size that the socket's buffer was set to, in bytes.
    buffer: usize,
    /// The socket is full, since then.
    full: Option<Time>,
    /// When it was last full, or made.
    last_full: Time,
}

impl<U: UdpSocket> SlowPaths<U> {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            has_any: AtomicBool::new(false),
            is_untidy: AtomicBool::new(false),
            state: Mutex::new(PathsState {
                own: HashMap::new(),
                extension: [1; 2],
                stalled: Time::default(),
                tidied: Time::default(),
            }),
        })
    }

    /// Readable when [`Self::handle_events`] has something to do.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Whether the peer has a socket of its own.
    pub(crate) fn has(&self, peer: u32) -> bool {
        self.has_any() && lock(&self.state).own.contains_key(&peer)
    }

    /// Whether the peer has a socket of its own that is full: what is sent to it now is dropped.
    pub(crate) fn is_full(&self, peer: u32) -> bool {
        let is_full = |path: &SlowPath<U>| path.full.is_some();
        self.has_any() && lock(&self.state).own.get(&peer).is_some_and(is_full)
    }

    fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Acquire)
    }

    fn note(&self, state: &PathsState<U>) {
        self.has_any.store(!state.own.is_empty(), Ordering::Release);
        let is_untidy = !state.own.is_empty() || state.extension != [1; 2];
        self.is_untidy.store(is_untidy, Ordering::Release);
    }

    /// Gives the peers that sent most to the shared socket of this family sockets of their own, and
    /// the shared one a longer buffer. `recent` says which peer sent how many bytes lately. False if it did
    /// neither.
    pub(crate) fn isolate(
        &self,
        context: OutboundContext<'_, U>,
        v6: bool,
        recent: impl IntoIterator<Item = (u32, usize)>,
    ) -> bool {
        // A single peer delays only itself, and its local TCP loses nothing while it waits.
        if context.common.proto.peer_count() < 2 {
            return false;
        }
        let Some(shared) = context.sockets.family(v6) else {
            return false;
        };
        let mut bytes: HashMap<u32, usize> = HashMap::new();
        for (peer, sent) in recent {
            *bytes.entry(peer).or_default() += sent;
        }
        let mut state = lock(&self.state);
        state.stalled = context.now;
        let mut heavy: Vec<(usize, u32)> = bytes
            .into_iter()
            .filter(|(peer, bytes)| *bytes >= MUCH && !state.own.contains_key(peer))
            .map(|(peer, bytes)| (bytes, peer))
            .collect();
        heavy.sort_unstable_by(|a, b| b.cmp(a));
        let mut changed = false;
        for (_, peer) in heavy.into_iter().take(MAX_ISOLATED) {
            if state.own.len() == MAX_PATHS {
                break;
            }
            // Where sockets cannot share a port, all peers go on to share one socket.
            let Ok(socket) = shared.send_socket() else {
                break;
            };
            let data = EventData::new_u64(peer.into());
            if epoll::add(&self.epoll, socket.fd(), data, EventFlags::empty()).is_err() {
                break;
            }
            socket.set_send_buffer(FIRST_BUFFER);
            let path = SlowPath {
                socket,
                v6,
                buffer: FIRST_BUFFER,
                full: None,
                last_full: context.now,
            };
            state.own.insert(peer, path);
            changed = true;
        }
        let extension = &mut state.extension[usize::from(v6)];
        if changed && *extension < MAX_EXTENSION {
            *extension += 1;
            shared.set_send_buffer(*extension * SEND_BUFFER);
        }
        self.note(&state);
        changed
    }

    /// Sends a train of a peer that has a socket of its own; what that one does not take is
    /// dropped.
    /// False if it has none, and the train is as it was.
    pub(crate) fn send(
        &self,
        context: OutboundContext<'_, U>,
        train: &mut SealedTrain,
        drops: &Drops,
    ) -> bool {
        let mut state = lock(&self.state);
        let Some(path) = state.own.get_mut(&train.peer.id()) else {
            return false;
        };
        // The peer roamed to the other address family: its trains go through the shared socket of
        // that family, if there is one.
        let v6 = train.to.addr.is_ipv6();
        let (socket, is_own) = if v6 == path.v6 {
            (Some(&path.socket), true)
        } else {
            (context.sockets.family(v6), false)
        };
        let train = std::slice::from_mut(train);
        if path.full.is_some() && is_own || send(context, socket, train, drops) == 0 {
            let [
                SealedTrain {
                    peer,
                    sent,
                    len,
                    stride,
                    ..
                },
            ] = train
            else {
                return true;
            };
            let packets = (*len - *sent).div_ceil(*stride) as u64;
            peer.count_dropped(drops, DropReason::SlowPath, packets);
            if is_own && path.full.is_none() {
                path.full = Some(context.now);
                path.watch(&self.epoll, peer.id(), EventFlags::OUT);
            }
        }
        true
    }

    /// Handles events of the sockets: one has space again, or an ICMP error came back.
    pub(crate) fn handle_events(&self, context: OutboundContext<'_, U>) {
        let mut events = Vec::with_capacity(MAX_ISOLATED);
        let at_once = Timespec::default();
        let spare = rustix::buffer::spare_capacity(&mut events);
        if epoll::wait(&self.epoll, spare, Some(&at_once)).is_err() {
            return;
        }
        let mut state = lock(&self.state);
        for event in &events {
            let peer = u32::try_from(event.data.u64()).unwrap_or(u32::MAX);
            let Some(path) = state.own.get_mut(&peer) else {
                continue;
            };
            let flags = event.flags;
            if flags.contains(EventFlags::ERR) {
                context.common.take_errors(&path.socket, context.now);
            }
            if flags.contains(EventFlags::OUT) {
                path.watch(&self.epoll, peer, EventFlags::empty());
                path.drained(context.now);
            }
        }
    }

    /// Whether there is something to tidy up now and then.
    pub(crate) fn is_untidy(&self) -> bool {
        self.is_untidy.load(Ordering::Acquire)
    }

    /// Has peers whose paths are no longer slow use the shared socket again.
    pub(crate) fn tidy(&self, context: OutboundContext<'_, U>) {
        let now = context.now;
        let mut state = lock(&self.state);
        if now.since(state.tidied) < TIDY {
            return;
        }
        state.tidied = now;
        state
            .own
            .retain(|_, path| path.full.is_some() || now.since(path.last_full) < KEEP);
        if now.since(state.stalled) >= KEEP {
            for (extension, v6) in state.extension.iter_mut().zip([false, true]) {
                if *extension > 1
                    && let Some(shared) = context.sockets.family(v6)
                {
                    shared.set_send_buffer(SEND_BUFFER);
                }
                *extension = 1;
            }
        }
        self.note(&state);
    }

    /// The shared sockets or their settings were replaced: all peers use the new ones.
    pub(crate) fn clear(&self) {
        let mut state = lock(&self.state);
        state.own.clear();
        state.extension = [1; 2];
        self.note(&state);
    }
}

impl<U: UdpSocket> SlowPath<U> {
    /// Errors are always reported, whatever `events` are.
    fn watch(&self, epoll: &OwnedFd, peer: u32, events: EventFlags) {
        // Fails for no socket that was added.
        let _ = epoll::modify(
            epoll,
            self.socket.fd(),
            EventData::new_u64(peer.into()),
            events,
        );
    }

    /// The kernel says that half of the buffer is empty.
    fn drained(&mut self, now: Time) {
        let Some(since) = self.full.take() else {
            return;
        };
        self.last_full = now;
        let took = now.since(since);
        let buffer = next_buffer(self.buffer, took);
        if buffer != self.buffer {
            self.buffer = buffer;
            self.socket.set_send_buffer(buffer);
        }
    }
}

/// How long a buffer is to be, half of which left in this time.
fn next_buffer(buffer: usize, took: Duration) -> usize {
    if took < DRAINS_FAST {
        (2 * buffer).min(SEND_BUFFER)
    } else if took > DRAINS_SLOWLY {
        let wanted = buffer as u128 * DRAINS_SLOWLY.as_micros() / took.as_micros();
        usize::try_from(wanted).unwrap_or(buffer).max(MIN_BUFFER)
    } else {
        buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_becomes_as_long_as_its_path_is_fast() {
        // Bytes a second.
        let leaves = |buffer: usize, rate: f64| Duration::from_secs_f64(buffer as f64 / 2.0 / rate);
        for (rate, expected) in [
            (1.25e6, MIN_BUFFER..=MIN_BUFFER),
            (12.5e6, 1_000_000..=1_300_000),
            (1.25e9, SEND_BUFFER..=SEND_BUFFER),
        ] {
            let mut buffer = FIRST_BUFFER;
            for _ in 0..10 {
                buffer = next_buffer(buffer, leaves(buffer, rate));
            }
            assert!(expected.contains(&buffer), "{rate}: {buffer}");
            assert_eq!(next_buffer(buffer, leaves(buffer, rate)), buffer);
        }
    }
}
