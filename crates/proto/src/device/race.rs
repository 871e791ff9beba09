//! A peer whose endpoint is a name: the name's addresses, and the race between them.
//!
//! The initiation goes to the present endpoint first. While it is not answered, the same bytes go
//! to the other addresses, one by one. A responder takes the first copy that arrives and drops the
//! others as replays (5.1), and its response comes back from the address that works: the endpoint
//! follows it, as it follows any authentic packet. So a race is one initiation per Rekey-Timeout,
//! in up to [`MAX_CANDIDATES`] + 1 copies.
//!
//! A name does not disturb a tunnel that works: an endpoint that a packet from the peer has shown
//! stays until the peer falls silent. DNS is not authenticated. All that a forged answer can do is
//! to add addresses that are tried when the present one does not answer.

use std::net::SocketAddr;
use std::sync::Arc;

use arrayvec::ArrayVec;

use crate::Time;
use crate::device::Device;
use crate::device::candidates::Addresses;
use crate::device::common::Core;
use crate::device::output::{Output, PeerEvent};
use crate::device::peer_state::PeerState;
use crate::limits::*;
use crate::secret::PublicKey;

impl Device {
    /// The addresses that the name of a peer's endpoint leads to now, in the order of preference; at
    /// most [`MAX_CANDIDATES`] of them are used. `None` if its endpoint has no name any more. An
    /// empty list says that it has one, which could not be looked up so far.
    pub fn set_candidates(&mut self, now: Time, peer: &PublicKey, addrs: Option<&[SocketAddr]>) {
        let id = self.by_key.get(peer).copied();
        if let Some(id) = id
            && let Some(state) = self.peers.get_mut(&id)
        {
            state.set_candidates(now, addrs);
            self.reschedule(id);
        }
    }
}

impl PeerState {
    fn set_candidates(&mut self, now: Time, addrs: Option<&[SocketAddr]>) {
        let Some(addrs) = addrs else {
            self.candidates = None;
            return;
        };
        let mut candidates = self.candidates.take().unwrap_or_default();
        let new = alternate(addrs);
        let here = self.peer.endpoint().map(|to| to.addr);
        let is_of_name = |addr| candidates.contains(addr) || self.configured_endpoint == Some(addr);
        let silent = |at| now.since(at) >= REJECT_AFTER_TIME;
        let is_silent = self.peer.last_received().is_none_or(silent);
        if let Some(&first) = new.first()
            && here.is_none_or(|addr| !new.contains(&addr) && is_of_name(addr) && is_silent)
        {
            self.peer.set_endpoint(Some(first.into()));
        }
        candidates.addrs = new;
        self.candidates = Some(candidates);
        // One may still be answered.
        let unanswered = self.initiations_in_vain > 1;
        if self.initiation.is_some() && self.may_race(now, unanswered) {
            self.join_race(now);
        }
    }

    /// Whether the present endpoint may be the wrong one.
    fn may_race(&self, now: Time, unanswered: bool) -> bool {
        let silent = |at| now.since(at) >= NO_ANSWER_TIMEOUT;
        unanswered || self.peer.last_received().is_none_or(silent)
    }

    /// New addresses take part in the race that is under way.
    fn join_race(&mut self, now: Time) {
        let candidates = self.candidates.as_mut();
        // An initiation from before the peer had a name is not kept.
        let Some(candidates) = candidates.filter(|it| !it.message.is_empty()) else {
            return;
        };
        let new = candidates.addrs.iter().copied();
        candidates.waiting = new.filter(|addr| !candidates.sent.contains(addr)).collect();
        let next = self.last_sent_handshake.map_or(now, |at| at + STAGGER);
        candidates.due = match candidates.waiting.is_empty() {
            true => None,
            false => candidates.due.or(Some(next.max(now))),
        };
    }

    /// A new initiation is about to leave. Where to, if not to the present endpoint.
    pub(super) fn begin_race(&mut self, now: Time, message: &[u8]) -> Option<SocketAddr> {
        let may_race = self.may_race(now, self.initiations_in_vain > 0);
        let here = self.peer.endpoint().map(|to| to.addr);
        let candidates = self.candidates.as_mut()?;
        candidates.stop();
        candidates.message = message.iter().copied().collect();
        candidates.sent.extend(here);
        if !may_race {
            return None;
        }
        let mut all: Addresses = here.into_iter().collect();
        let others = candidates.addrs.iter().filter(|addr| Some(**addr) != here);
        all.extend(others.copied());
        if all.len() < 2 {
            return None;
        }
        let turn = candidates.races % all.len();
        candidates.races = candidates.races.wrapping_add(1);
        all.rotate_left(turn);
        let first = all.remove(0);
        candidates.sent = [first].into_iter().collect();
        candidates.waiting = all;
        candidates.due = Some(now + STAGGER);
        Some(first)
    }

    /// Sends the next copy, whose time has come.
    pub(super) fn race_due(&mut self, core: &mut Core, now: Time) {
        let Some(candidates) = &mut self.candidates else {
            return;
        };
        if candidates.due.is_none_or(|due| due > now) {
            return;
        }
        let to = match candidates.waiting.is_empty() {
            false => candidates.waiting.remove(0),
            true => return candidates.due = None,
        };
        candidates.sent.push(to);
        candidates.due = (!candidates.waiting.is_empty()).then_some(now + STAGGER);
        let message = candidates.message.clone();
        if core.up && self.initiation.is_some() {
            self.send_handshake(core, now, to.into(), &message, 0);
        }
    }

    /// A copy did not leave: there is no route to that family, perhaps. The next one need not wait.
    /// Returns whether there is one.
    pub(super) fn copy_not_sent(&mut self) -> bool {
        let race = self.candidates.as_mut().and_then(|it| it.due.as_mut());
        race.map(|due| *due = Time::default()).is_some()
    }

    /// The initiation was answered, or given up.
    pub(super) fn end_race(&mut self) {
        if let Some(candidates) = &mut self.candidates {
            candidates.stop();
            candidates.races = 0;
        }
    }

    /// A change of the configuration has moved the peer: unless it is one of them, the addresses of
    /// the name are another's.
    pub(super) fn endpoint_configured(&mut self, addr: SocketAddr) {
        self.candidates.take_if(|known| !known.contains(addr));
    }

    /// Asks for the present addresses of the name, since those that are known do not answer.
    pub(super) fn ask_for_candidates(&self, core: &mut Core) {
        if self.candidates.is_some() {
            let peer = Arc::clone(&self.peer);
            core.push(Output::Event(PeerEvent::Unanswered { peer }));
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        let race = self.candidates.as_ref().and_then(|it| it.due());
        let search = self.search.as_ref().map(|it| it.due());
        let timers = self.timers.next_deadline();
        timers.into_iter().chain(race).chain(search).min()
    }
}

/// The addresses, each once, so that families alternate: where one family is lost on the way, the
/// second address is of the other.
fn alternate(addrs: &[SocketAddr]) -> ArrayVec<SocketAddr, MAX_CANDIDATES> {
    let mut unique: Vec<SocketAddr> = Vec::new();
    for addr in addrs {
        if !unique.contains(addr) {
            unique.push(*addr);
        }
    }
    let first_is_v6 = unique.first().is_some_and(SocketAddr::is_ipv6);
    let (first, other): (Vec<_>, Vec<_>) =
        (unique.into_iter()).partition(|addr| addr.is_ipv6() == first_is_v6);
    let longest = first.len().max(other.len());
    let pairs = (0..longest).flat_map(|at| [first.get(at), other.get(at)]);
    pairs.flatten().copied().take(MAX_CANDIDATES).collect()
}

const _: () = assert!(
    STAGGER.as_millis() * (MAX_CANDIDATES as u128) < REKEY_TIMEOUT.as_millis(),
    "all copies leave before the next initiation"
);
