//! The longest packet that the path to a peer takes whole: found by probes.
//!
//! A probe is an echo request inside the tunnel, of which any peer's host sends an answer: to the
//! address that a long packet of the tunnel's users went to, with a TTL of 1, so that a router
//! answers, too. Its datagram leaves whole or not at all. A long one and a short one leave
//! together. If only the short one is answered, three times, the path has a limit, and rounds of
//! five lengths find it. Beside them leaves a long one that may be cut into fragments: if none of
//! these is answered, what is longer than the limit is lost. A limit beyond which fragments arrive
//! costs no packet: senders are told, and what they send passes. If no probe is answered, a limit
//! beyond which packets are lost stays as it was.
//!
//! This host itself may know that the long one does not fit. It depends on who says so:
//!
//! - A route, while the device would take it. The path is narrower than the device, by which the MTU
//!   was chosen. What the route says is the limit until the search says otherwise.
//! - ICMP, which may be forged: probes leave all the same. If one is answered that is longer than
//!   what ICMP said, the host is to ignore ICMP ([`PeerEvent::DoubtIcmp`]). If none is answered at
//!   all, what it said is the limit; if that is less than IPv6 takes anywhere, it is ignored, too.
//! - The device, which takes less than the MTU of the interface needs, as with 9,000 bytes over
//!   Ethernet, or 1,500 for networks behind the tunnel. Both are set on this host, and such an MTU
//!   asks for fragments: programs rely on packets of that length. Senders are told of no limit
//!   while fragments arrive, whatever route and ICMP say, and `adit why` names the MTU that makes
//!   none.
//!
//! There is one search for each session and for each MTU of the interface, when a long packet
//! leaves, and one when the kernel finds datagrams too long to segment: a path that changes
//! otherwise is looked at again after two minutes, or when the peer has fallen silent. While there is
//! a limit, senders keep within it, so no long packet is waited for: the search begins at once,
//! between the addresses of the last one.
//!
//! A limit belongs to the two outer addresses, the peer's and ours. When one of them changes, the
//! next search begins at once, too, and if nobody answers, the limit goes.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Device;
use super::peer_state::PeerState;
use crate::device::common::Core;
use crate::device::output::{Output, PeerEvent};
use crate::device::search::{FRAGMENTED, LEAST, LEAST_TOLD, Next, STEP, Search, Why};
use crate::{Peer, Time};

/// The longest one that a datagram of UDP over IPv4 holds when it is padded. A longer one never
/// leaves, whatever the path takes.
const MOST: u16 = (65_507 - 32) / STEP * STEP;
/// How often searches begin because the path is another one.
const NEW_PATHS: Duration = Duration::from_secs(1);

impl Device {
    /// Probes paths from now on, up to this MTU of the interface; `None` for not at all. The
    /// embedder then sends what [`PeerEvent::ProbePath`] asks for, calls [`Peer::sample`],
    /// [`Peer::look_at_path`], [`Peer::probe_answered`] and [`Device::path_refused`], and keeps
    /// within [`Peer::path_limit`].
    pub fn probe_paths(&mut self, mtu: Option<u16>) {
        let mtu = mtu.map(|mtu| mtu.min(MOST));
        if mtu != self.core.probed_mtu {
            self.core.probed_mtu = mtu;
            for state in self.peers.values_mut() {
                state.mtu_changed(&self.core);
            }
        }
    }

    /// The host would not send a probe whole: it does that with none that is longer than `longest`,
    /// and its device with none that is longer than `device`.
    pub fn path_refused(&mut self, now: Time, peer: &Peer, longest: u16, device: u16) {
        if let Some(state) = self.peers.get_mut(&peer.id()) {
            state.path_refused(&mut self.core, now, longest, device);
            self.reschedule(peer.id());
        }
    }

    /// The host would not send a probe whole, and ICMP alone says why: that the path takes none that
    /// is longer than `longest`.
    pub fn path_told(&mut self, peer: &Peer, longest: u16) {
        let state = self.peers.get_mut(&peer.id());
        if let Some(search) = state.and_then(|state| state.search.as_mut()) {
            search.told = Some(longest / STEP * STEP);
        }
    }

    /// The peer is reached by another path than before, though its address may be the same: routing
    /// chose another source.
    pub fn path_changed(&mut self, now: Time, peer: &Peer) {
        if let Some(state) = self.peers.get_mut(&peer.id()) {
            state.path_is_new(&mut self.core, now);
            self.reschedule(peer.id());
        }
    }
}

impl PeerState {
    /// There is a new session: the next long packet on it begins a search, or, where a limit keeps
    /// long packets away, the session itself.
    pub(super) fn look_at_path(&mut self, core: &mut Core, now: Time) {
        if core.probed_mtu.is_none() {
            return;
        }
        match self.searched {
            Some((between, _)) if self.peer.path_limit().is_some() && self.search.is_none() => {
                self.begin_search(core, now, between, Why::Renewal);
            }
            _ => self.peer.want_sample(),
        }
    }

    /// Begins a search anew: what is known is of another path.
    pub(super) fn path_is_new(&mut self, core: &mut Core, now: Time) {
        if core.probed_mtu.is_none() {
            return;
        }
        if (self.search.as_ref()).is_some_and(|search| search.round.is_empty()) {
            // It has not begun.
            return;
        }
        let under_way = self.search.take().is_some();
        if under_way {
            self.peer.end_probes();
        }
        match self.searched {
            Some((between, _)) if under_way || self.peer.path_limit().is_some() => {
                self.begin_search(core, now, between, Why::NewPath);
            }
            _ => self.peer.want_sample(),
        }
    }

    fn begin_search(&mut self, core: &mut Core, now: Time, between: (IpAddr, IpAddr), why: Why) {
        let Some(mtu) = core.probed_mtu.filter(|mtu| *mtu > LEAST) else {
            return;
        };
        // A peer that moves with each packet has no more probes sent for it.
        let last = self.searched.map(|(_, at)| at + NEW_PATHS);
        let at = last.filter(|at| why == Why::NewPath && *at > now);
        self.searched = Some((between, at.unwrap_or(now)));
        let search = Search::new(at.unwrap_or(now), between, mtu, why);
        self.search = Some(Box::new(search));
        if at.is_none() {
            self.probe_path(core, now);
        }
    }

    /// The interface takes packets of another length. A limit less than a step below it says no
    /// more: perhaps that length is what was found, and the path takes it.
    fn mtu_changed(&mut self, core: &Core) {
        if self.search.take().is_some() {
            self.peer.end_probes();
        }
        let mtu = core.probed_mtu.unwrap_or(0);
        if (self.peer.path_limit()).is_some_and(|limit| mtu < limit + STEP) {
            self.peer.set_path_limit(None, false);
        }
        if core.probed_mtu.is_some() {
            self.peer.want_sample();
        }
    }

    /// A shard saw a long packet, or an answer to a probe.
    pub(super) fn path_event(&mut self, core: &mut Core, now: Time) {
        if let Some(search) = &mut self.search {
            if search.round.is_empty() {
                return;
            }
            let next = search.answered(now, self.peer.probe_answers());
            return self.go_on_searching(core, now, next);
        }
        if let Some(between) = self.peer.take_sample() {
            self.begin_search(core, now, between, Why::Packet);
        }
    }

    fn path_refused(&mut self, core: &mut Core, now: Time, longest: u16, device: u16) {
        let Some(search) = &mut self.search else {
            return;
        };
        if !search.refused(longest, device) {
            return;
        }
        let known = search.known();
        if let Some(known) = known.filter(|known| *known >= LEAST_TOLD)
            && self.peer.path_limit().is_none_or(|limit| limit > known)
        {
            self.limit_path(core, Some(known), self.peer.loses_longer());
        }
        self.probe_path(core, now);
    }

    pub(super) fn search_due(&mut self, core: &mut Core, now: Time) {
        if let Some(search) = self.search.as_mut().filter(|it| it.due <= now) {
            let next = match search.round.is_empty() {
                true => Next::Round,
                false => search.end_round(self.peer.probe_answers()),
            };
            self.go_on_searching(core, now, next);
        }
    }

    fn go_on_searching(&mut self, core: &mut Core, now: Time, next: Next) {
        match next {
            Next::Wait => return,
            Next::Round => return self.probe_path(core, now),
            Next::Found(_) | Next::Unknown => {}
        }
        let Some(search) = self.search.take() else {
            return;
        };
        self.peer.end_probes();
        if search.doubts_icmp(&next) {
            let peer = Arc::clone(&self.peer);
            core.push(Output::Event(PeerEvent::DoubtIcmp { peer }));
        }
        if next == Next::Unknown && search.why != Why::Packet {
            // The next long packet may be for a host that answers.
            self.peer.want_sample();
        }
        let (limit, loses) = match next {
            Next::Found(limit) => (limit, !search.fragments),
            _ if self.peer.loses_longer() && search.why != Why::NewPath => return,
            // What this host knows is all that is known.
            _ => (search.known(), false),
        };
        let limit = limit.filter(|limit| loses || *limit >= LEAST_TOLD);
        self.limit_path(core, limit, loses);
    }

    fn limit_path(&self, core: &mut Core, limit: Option<u16>, loses: bool) {
        let loses = loses && limit.is_some();
        if self.peer.set_path_limit(limit, loses) {
            let peer = Arc::clone(&self.peer);
            let found = PeerEvent::PathFound { peer, limit, loses };
            core.push(Output::Event(found));
        }
    }

    fn probe_path(&mut self, core: &mut Core, now: Time) {
        let Some(search) = &mut self.search else {
            return;
        };
        search.begin_round(now);
        let mut id = [0; 2];
        (core.random)(&mut id);
        let id = u16::from_le_bytes(id);
        self.peer.begin_probes(id);
        let (from, to) = search.between;
        let whole = (0..).zip(search.round.iter().copied()).collect();
        let fragmented = search.tries_fragments().then_some((FRAGMENTED, search.mtu));
        core.push(Output::Event(PeerEvent::ProbePath {
            peer: Arc::clone(&self.peer),
            from,
            to,
            id,
            whole,
            fragmented,
        }));
    }
}
