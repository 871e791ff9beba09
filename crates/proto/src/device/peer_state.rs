//! A peer as the control thread sees it: its sessions, and how handshakes start and end.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;

use super::candidates::Candidates;
use super::timer_table::{Timer, Timers};
use super::{FailureReason, HandshakeFailure, Liveness};
use crate::allowance::Allowed;
use crate::config::{Cidr, PeerHandshakes, PeerStatus};
use crate::cookie::Stamper;
use crate::device::common::Core;
use crate::device::output::{Output, PeerEvent};
use crate::device::rates::Rate;
use crate::device::search::Search;
use crate::limits::*;
use crate::noise::{CreatedInitiation, Remote, create_initiation};
use crate::peer::{Peer, event};
use crate::secret::PublicKey;
use crate::session::Session;
use crate::{Endpoint, Tai64N, Time};

pub(super) struct PeerState {
    pub(super) peer: Arc<Peer>,
    pub(super) remote: Remote,
    pub(super) stamper: Stamper,
    /// The endpoint as it was last set; that of [`Peer`] follows the peer when it roams.
    pub(super) configured_endpoint: Option<SocketAddr>,
    /// If the endpoint is a name: its addresses.
    pub(super) candidates: Option<Box<Candidates>>,
    /// For the longest packet that the path to it takes.
    pub(super) search: Option<Box<Search>>,
    /// The addresses inside the tunnel of the last search, and when that began.
    pub(super) searched: Option<((IpAddr, IpAddr), Time)>,
    pub(super) persistent_keepalive: u16,
    /// What it may do; `None` for everything.
    pub(super) allowance: Option<Box<Allowed>>,
    pub(super) allowed_ips: BTreeSet<Cidr>,
    /// The number of the last transaction that named the peer.
    pub(super) named_in: u32,
    /// Our initiation that waits for its response.
    pub(super) initiation: Option<CreatedInitiation>,
    /// Where its initiations are expected, as [`Admission::expect_peer`](crate::Admission) has it.
    expected_at: Option<u64>,
    pub(super) sessions: Sessions,
    pub(super) rate: Rate,
    /// "the responder keeps track of the greatest timestamp received per peer" (5.1).
    pub(super) greatest_timestamp: Tai64N,
    pub(super) last_consumed_initiation: Option<Time>,
    pub(super) last_handshake: Option<Time>,
    pub(super) liveness: Liveness,
    pub(super) last_failure: Option<(FailureReason, Time)>,
    /// From our last initiation that was answered to its response.
    pub(super) latency: Option<Duration>,
    /// The timestamp of our last initiation, and when it was made.
    pub(super) sent_timestamp: Tai64N,
    pub(super) last_attempt: Option<Time>,
    /// When an initiation or response was last sent.
    pub(super) last_sent_handshake: Option<Time>,
    /// Initiations that left since the last session, and were not answered.
    pub(super) initiations_in_vain: u32,
    /// Responses that left since the last session, and that the peer did not confirm.
    pub(super) responses_in_vain: u32,
    /// The last response left from where the initiation came to, not from where routing says.
    pub(super) answers_there: bool,
    /// When a packet last asked for the handshake that is under way.
    pub(super) attempts_since: Time,
    pub(super) jitter: Duration,
    pub(super) timers: Timers,
    /// Frames wait for an initiation that is due.
    pub(super) frames_wait: bool,
    /// Why the peer is to be called, in its turn.
    pub(super) call_due: Option<CallReason>,
    /// The handshake under way goes on from the same address: a translation of addresses lets nothing in
    /// from another one.
    pub(super) keeps_source: bool,
    /// The order of the device's deadlines in which the peer stands, and the deadline under which
    /// it does.
    pub(super) scheduled: Option<(usize, Time)>,
}

/// Why a peer waits for a call. The later ones ask for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CallReason {
    /// The process before this one had a session with it: one that has a session by now needs none.
    Remembered,
    /// It had a session elsewhere, which the one here may be older than.
    WasElsewhere,
    /// The same; and what was sent to it lately went to another place, or from another one.
    HasMoved,
}

/// The sessions that a peer's packets may come in on. Packets go out on `current`.
///
/// Where both sides initiate, each may end up with the session that it began itself as the current one,
/// and hear the other on an older one, for as long as a session lasts. A new initiation does not say
/// which session its sender uses meanwhile, and its response may be lost. So more sessions are kept
/// than the whitepaper has.
#[derive(Default)]
pub(super) struct Sessions {
    /// To receive on, in the order in which they ceased to be the current or the next one.
    pub(super) older: ArrayVec<Arc<Session>, MAX_OLDER>,
    pub(super) current: Option<Arc<Session>>,
    /// A responder's, until the initiator's first packet confirms it.
    pub(super) next: Option<Arc<Session>>,
}

/// Sessions that are kept to receive on alone: the one that the peer was last heard on, and two that it
/// may have begun to use since, or just ceased to.
pub(super) const MAX_OLDER: usize = 3;

impl Sessions {
    /// All of them, the one that began last first.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Session>> {
        let newest = self.next.iter().chain(&self.current);
        newest.chain(self.older.iter().rev())
    }

    /// Keeps one to receive on. Returns one that is not needed for that any more, if there are too
    /// many: the peer was last heard on another, and others began or were in use after it.
    pub(super) fn keep(&mut self, session: Arc<Session>) -> Option<Arc<Session>> {
        let Err(full) = self.older.try_push(session) else {
            return None;
        };
        let session = full.element();
        let heard = self
            .all()
            .chain([&session])
            .filter_map(|it| it.heard())
            .max();
        let is_last_heard = |it: &Session| heard.is_some() && it.heard() == heard;
        let sign = |it: &Session| it.heard().max(Some(it.born()));
        let others = self.older.iter().enumerate();
        let others = others.filter(|(_, it)| !is_last_heard(it));
        let place = others
            .min_by_key(|(_, it)| sign(it))
            .map(|(place, _)| place);
        let dropped = self.older.remove(place.unwrap_or(0));
        self.older.push(session);
        Some(dropped)
    }
}

impl PeerState {
    pub(super) fn new(id: u32, remote: Remote) -> Self {
        Self {
            peer: Arc::new(Peer::new(id, remote.public)),
            stamper: Stamper::new(&remote.public),
            remote,
            configured_endpoint: None,
            candidates: None,
            search: None,
            searched: None,
            persistent_keepalive: 0,
            allowance: None,
            allowed_ips: BTreeSet::new(),
            named_in: 0,
            initiation: None,
            expected_at: None,
            sessions: Sessions::default(),
            rate: Rate::default(),
            greatest_timestamp: Tai64N::default(),
            last_consumed_initiation: None,
            last_handshake: None,
            liveness: Liveness::Unknown,
            last_failure: None,
            latency: None,
            sent_timestamp: Tai64N::default(),
            last_attempt: None,
            last_sent_handshake: None,
            initiations_in_vain: 0,
            responses_in_vain: 0,
            answers_there: false,
            attempts_since: Time::default(),
            jitter: Duration::ZERO,
            timers: Timers::default(),
            frames_wait: false,
            call_due: None,
            keeps_source: false,
            scheduled: None,
        }
    }

    pub(super) fn public_key(&self) -> PublicKey {
        self.remote.public
    }

    /// With so many receive queues, and when `epoch` was the time of day at [`Time`]'s zero.
    pub(super) fn status(&self, rx_queues: u8, epoch: Duration) -> PeerStatus {
        let wall = |at: Time| epoch.saturating_add(Duration::from_nanos(at.0));
        let preshared_key = &self.remote.preshared_key;
        PeerStatus {
            public_key: self.public_key(),
            preshared_key: (!preshared_key.is_zero()).then(|| preshared_key.clone()),
            endpoint: self.peer.endpoint().map(|endpoint| endpoint.addr),
            last_handshake: self.last_handshake.map(wall),
            rx_bytes: self.peer.rx_bytes(),
            tx_bytes: self.peer.tx_bytes(),
            drops: self.peer.drops(),
            path_mtu: self.peer.path_limit(),
            rx_queue: self
                .rx_queue()
                .filter(|_| rx_queues > 1)
                .map(|rx_queue| rx_queue % rx_queues),
            persistent_keepalive: self.persistent_keepalive,
            allowed_ips: self.allowed_ips.iter().copied().collect(),
            allowance: self.allowance_status(),
            handshakes: Some(PeerHandshakes {
                state: self.liveness,
                last_attempt: self.last_attempt.map(wall),
                unanswered: self.initiations_in_vain,
                last_failure: self.last_failure.map(|(reason, at)| HandshakeFailure {
                    reason,
                    at: wall(at),
                }),
                latency: self.latency,
            }),
        }
    }

    /// A handshake failed.
    pub(super) fn failed(&mut self, reason: FailureReason, at: Time) {
        self.last_failure = Some((reason, at));
    }

    /// Tells listeners how the peer is now. One that was not up cannot fall silent or go.
    pub(super) fn tell_liveness(&mut self, core: &mut Core, state: Liveness) {
        let is_news = match state {
            Liveness::Silent => self.liveness == Liveness::Up,
            Liveness::Gone => matches!(self.liveness, Liveness::Up | Liveness::Silent),
            state => self.liveness != state,
        };
        if is_news {
            self.liveness = state;
            let peer = Arc::clone(&self.peer);
            core.push(Output::Event(PeerEvent::Liveness { peer, state }));
        }
    }

    /// Tells listeners if the peer has roamed.
    pub(super) fn tell_roamed(&mut self, core: &mut Core) {
        if let Some(from) = self.peer.take_roamed() {
            self.expect_initiations(core);
            let peer = Arc::clone(&self.peer);
            core.push(Output::Event(PeerEvent::Roamed { peer, from }));
        }
    }

    /// Under load, initiations may come from where the peer is, while it has a session.
    pub(super) fn expect_initiations(&mut self, core: &Core) {
        let has_session = self.sessions.current.is_some();
        let at = self.peer.endpoint().filter(|_| has_session);
        let admission = core.shared.admission();
        self.expected_at = admission.expect_peer(self.expected_at, at.map(|at| at.addr));
    }

    /// Shards raised events: the bits of [`event`] say which.
    pub(super) fn events_raised(&mut self, core: &mut Core, now: Time, events: u8) {
        if events & event::CONFIRMED != 0 {
            self.session_confirmed(core, now);
        }
        if events & event::WANT_SESSION != 0 {
            self.session_wanted(core, now);
        }
        if events & event::REKEY != 0 {
            // A new session may have come while the event was on its way.
            let current = self.sessions.current.as_ref();
            if current.is_none_or(|current| current.is_stale_for_sending(now)) {
                self.handshake_wanted(now, false);
            }
        }
        if events & event::ROAMED != 0 {
            self.tell_roamed(core);
        }
        if events & event::NEW_PATH != 0 && self.peer.take_new_path() {
            self.path_is_new(core, now);
        }
        if events & event::PATH != 0 {
            self.path_event(core, now);
        }
        self.arm_for_activity(now, events);
    }

    /// Frames are staged.
    fn session_wanted(&mut self, core: &mut Core, now: Time) {
        if self.can_send(now) {
            self.peer.take_wanted();
            core.push(self.session_ready());
        } else {
            self.handshake_wanted(now, true);
        }
    }

    pub(super) fn can_send(&self, now: Time) -> bool {
        let current = self.peer.current();
        current.is_some_and(|session| session.may_send(now))
    }

    pub(super) fn session_ready(&self) -> Output {
        Output::SessionReady {
            peer: Arc::clone(&self.peer),
        }
    }

    /// Something asks for a new session. A handshake starts unless one is under way, as soon as the
    /// last one is Rekey-Timeout ago ("never … more than one \[initiation\] per Rekey-Timeout",
    /// 6.1).
    ///
    /// The timer alone sends initiations: thousands of peers may want one at the same time.
    /// [`Device::handle_timeout`](super::Device::handle_timeout) sends a few at a time, so that
    /// their answers are read in between, and it serves peers with staged frames and other peers
    /// alternately.
    pub(super) fn handshake_wanted(&mut self, now: Time, frames_wait: bool) {
        self.peer.take_wanted();
        if self.is_barred() {
            return;
        }
        self.attempts_since = now;
        let armed = self.timers.deadline(Timer::Retransmit);
        if armed.is_some_and(|at| at > now) {
            return;
        }
        let allowed = self.last_sent_handshake.map(|last| last + REKEY_TIMEOUT);
        let at = match allowed {
            Some(allowed) if allowed > now => allowed,
            _ => armed.unwrap_or(now),
        };
        self.frames_wait = at <= now && (self.frames_wait || frames_wait);
        // A peer whose initiation is not yet sent still learns that frames are staged.
        self.peer.set_handshaking(at > now);
        self.timers.arm(Timer::Retransmit, at);
    }

    /// Asks for a session as a packet would, but gives up after `patience`.
    pub(super) fn call(
        &mut self,
        core: &mut Core,
        now: Time,
        reason: CallReason,
        patience: Duration,
    ) {
        let is_under_way = self.timers.is_armed(Timer::Retransmit);
        if reason == CallReason::Remembered && (self.sessions.current.is_some() || is_under_way) {
            return;
        }
        if reason == CallReason::HasMoved {
            self.end_handshake(core);
        }
        self.handshake_wanted(now, false);
        if reason == CallReason::HasMoved {
            self.restart_handshake(now);
        }
        let endpoint = self.peer.endpoint();
        self.keeps_source =
            reason != CallReason::Remembered && endpoint.is_some_and(|it| it.src.is_some());
        let spent = REKEY_ATTEMPT_TIME.saturating_sub(patience).as_nanos();
        self.attempts_since = Time(now.0.saturating_sub(u64::try_from(spent).unwrap_or(0)));
    }

    /// Asks for a new session, also where there is one, and returns when the initiation is due.
    pub(super) fn probe(&mut self, now: Time) -> Time {
        self.handshake_wanted(now, false);
        self.timers.deadline(Timer::Retransmit).unwrap_or(now)
    }

    /// The handshake that is under way, if one is, begins anew: its initiation went nowhere, or is
    /// not right any more.
    pub(super) fn restart_handshake(&mut self, now: Time) {
        if self.timers.is_armed(Timer::Retransmit) {
            self.timers.arm(Timer::Retransmit, now);
        }
    }

    /// Sends a new initiation in place of the last one, if there is anything to send it with and
    /// to.
    pub(super) fn send_initiation(&mut self, core: &mut Core, now: Time, wall: Tai64N) {
        self.forget_initiation(core);
        self.last_sent_handshake = Some(now);
        // "Rekey-Timeout … plus some jitter" (6.1).
        self.jitter = core.new_jitter();
        let retry = now + REKEY_TIMEOUT + self.jitter;
        self.timers.arm(Timer::Retransmit, retry);
        self.peer.set_handshaking(true);

        let Some(to) = self.peer.endpoint().filter(|_| core.up) else {
            return;
        };
        let index = self.new_index(core, now);
        let ephemeral = core.new_ephemeral();
        // Each timestamp is greater than the last one to this peer, also when the clock is set
        // back. Timestamps to other peers do not matter: a clock that was once wrong must not put
        // us ahead of it for all peers.
        let timestamp = wall.coarse().max(self.sent_timestamp.next_grain());
        (self.sent_timestamp, self.last_attempt) = (timestamp, Some(now));
        let created = core.identity.as_ref().and_then(|identity| {
            create_initiation(identity, &self.remote, index, timestamp, ephemeral)
        });
        let Some((initiation, mut message)) = created else {
            core.indices.remove(index);
            return;
        };
        self.initiation = Some(initiation);
        core.shared.admission().expect_response(index, true);
        self.stamper.stamp(now, &mut message);
        let to = self.begin_race(now, &message).map_or(to, Endpoint::from);
        self.send_handshake(core, now, to, &message, self.initiations_in_vain);
    }

    /// Queues an initiation or response.
    pub(super) fn send_handshake(
        &mut self,
        core: &mut Core,
        now: Time,
        to: Endpoint,
        message: &[u8],
        in_vain: u32,
    ) {
        // Device::handle_sent counts its bytes.
        self.peer.note_sent(now, 0);
        core.push(Output::Handshake {
            to,
            datagram: message.iter().copied().collect::<ArrayVec<u8, _>>(),
            peer: Some(Arc::clone(&self.peer)),
            in_vain,
        });
    }

    pub(super) fn came_up(&mut self, core: &mut Core, now: Time) {
        self.last_sent_handshake = None;
        self.restart_handshake(now);
        if self.persistent_keepalive != 0 {
            self.send_keepalive(core, now);
        }
    }

    /// Keeps the peer, and the path to it, alive: an empty packet, or a handshake where no session
    /// can send it.
    pub(super) fn send_keepalive(&mut self, core: &mut Core, now: Time) {
        if !core.up {
            return;
        }
        if self.can_send(now) {
            core.push(Output::Keepalive {
                peer: Arc::clone(&self.peer),
            });
        } else {
            self.handshake_wanted(now, false);
        }
    }
}

impl Core {
    fn new_jitter(&mut self) -> Duration {
        let mut bytes = [0; 4];
        (self.random)(&mut bytes);
        let millis = u128::from(u32::from_le_bytes(bytes)) % (REKEY_JITTER.as_millis() + 1);
        Duration::from_millis(u64::try_from(millis).unwrap_or(0))
    }
}
