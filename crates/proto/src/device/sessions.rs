//! How sessions of a peer begin, follow each other and end.

use std::sync::Arc;

use super::Liveness;
use super::peer_state::{PeerState, Sessions};
use super::timer_table::Timer;
use crate::Time;
use crate::device::common::{Core, Queued};
use crate::device::last_seen::LastSeen;
use crate::device::output::{Output, PeerEvent};
use crate::limits::*;
use crate::session::Session;

impl PeerState {
    /// A response completed our handshake: its session is used from now on.
    pub(super) fn session_initiated(&mut self, core: &mut Core, now: Time, session: Arc<Session>) {
        // The index lives on in the session.
        self.initiation = None;
        core.shared
            .admission()
            .expect_response(session.local_index(), false);
        self.publish(core, now, &session);
        self.forget_expired(core, now);
        // A session that the peer initiated meanwhile may be the one that it uses, or the one before.
        for before in [self.sessions.current.take(), self.sessions.next.take()] {
            self.keep_to_receive(core, before);
        }
        self.make_current(core, now, Arc::clone(&session));
        let confirm = Queued::Confirm(Arc::clone(&self.peer), session);
        core.outputs.push_back(confirm);
    }

    /// We answered an initiation: its session is used when the peer has used it.
    pub(super) fn session_responded(&mut self, core: &mut Core, now: Time, session: Arc<Session>) {
        self.publish(core, now, &session);
        self.forget_expired(core, now);
        // The peer may have got our response to the initiation before this one.
        let before = self.sessions.next.replace(session);
        self.keep_to_receive(core, before);
    }

    /// The first authentic packet came in on a session that we answered.
    pub(super) fn session_confirmed(&mut self, core: &mut Core, now: Time) {
        let Some(session) = self.take_confirmed(now) else {
            // The shard made a session current that was replaced or retired meanwhile.
            self.peer.set_current(self.sessions.current.clone());
            return;
        };
        core.stats.confirmed += 1;
        if self.answers_there {
            // It arrived, whatever routing says of its source.
            self.peer.source_fits();
        }
        self.forget_expired(core, now);
        let before = self.sessions.current.take();
        self.keep_to_receive(core, before);
        self.make_current(core, now, session);
    }

    /// The session that the peer has confirmed: the next one, or one that was, if it is younger than
    /// the one that we use.
    pub(super) fn take_confirmed(&mut self, now: Time) -> Option<Arc<Session>> {
        let Sessions {
            older,
            current,
            next,
        } = &mut self.sessions;
        if let Some(next) = next.take_if(|next| next.is_confirmed()) {
            return Some(next);
        }
        let since = current.as_ref().map(|current| current.born());
        let is_younger =
            |it: &Arc<Session>| it.is_confirmed() && it.may_send(now) && Some(it.born()) > since;
        let place = older.iter().rposition(is_younger)?;
        Some(older.remove(place))
    }

    pub(super) fn keep_to_receive(&mut self, core: &mut Core, session: Option<Arc<Session>>) {
        core.drop_session(session.and_then(|session| self.sessions.keep(session)));
    }

    /// Nothing is received on these any more.
    pub(super) fn forget_expired(&mut self, core: &mut Core, now: Time) {
        for session in std::mem::take(&mut self.sessions.older) {
            match session.may_receive(now) {
                true => self.sessions.older.push(session),
                false => core.drop_session(Some(session)),
            }
        }
    }

    pub(super) fn publish(&mut self, core: &mut Core, now: Time, session: &Arc<Session>) {
        core.shared.insert(&self.peer, session);
        // "…zeros out … all keys after … Reject-After-Time × 3 … if no new keys have been
        // exchanged" (6.3).
        self.timers.arm(Timer::ZeroKeys, now + ZERO_KEYS_AFTER_TIME);
    }

    pub(super) fn make_current(&mut self, core: &mut Core, now: Time, session: Arc<Session>) {
        self.sessions.current = Some(Arc::clone(&session));
        self.peer.set_current(Some(session));
        self.expect_initiations(core);
        self.look_at_path(core, now);
        self.last_handshake = Some(now);
        self.responses_in_vain = 0;
        self.end_handshake(core);
        self.tell_liveness(core, Liveness::Up);
        let peer = Arc::clone(&self.peer);
        let last = LastSeen {
            at: peer.endpoint().map(|to| to.addr),
            sent: self.sent_timestamp,
            received: self.greatest_timestamp,
        };
        core.push(Output::Event(PeerEvent::Session { peer, last }));
        core.push(self.session_ready());
    }

    /// No handshake is under way any more, for good or ill.
    pub(super) fn end_handshake(&mut self, core: &mut Core) {
        self.forget_initiation(core);
        self.end_race();
        self.initiations_in_vain = 0;
        self.frames_wait = false;
        self.keeps_source = false;
        self.timers.disarm(Timer::Retransmit);
        self.peer.set_handshaking(false);
        self.peer.take_wanted();
    }

    /// Its response will not be accepted any more.
    pub(super) fn forget_initiation(&mut self, core: &mut Core) {
        if let Some(initiation) = self.initiation.take() {
            core.shared
                .admission()
                .expect_response(initiation.index, false);
            core.indices.remove(initiation.index);
        }
    }

    pub(super) fn retire_sessions(&self) {
        self.peer.set_current(None);
        // A shard may be about to make one current that the peer has just confirmed: the next, or
        // one that was next when our own handshake ended.
        for session in self.sessions.all() {
            session.retire();
        }
    }

    /// Drops every session; the keys are zeroized when the last shard drops its reference.
    pub(super) fn drop_sessions(&mut self, core: &mut Core) {
        self.retire_sessions();
        // Changes of routes are not looked at for a peer without a session.
        self.peer.clear_source();
        self.peer.source_fits();
        core.keys_dropped = true;
        let sessions = std::mem::take(&mut self.sessions);
        for session in sessions.all() {
            core.drop_session(Some(Arc::clone(session)));
        }
        self.expect_initiations(core);
    }

    /// Our own key is another now, or may be used twice: only a new handshake leads to a session to
    /// send with.
    pub(super) fn start_anew(&mut self, core: &mut Core, now: Time) {
        self.expire_sessions(core);
        self.forget_initiation(core);
        self.last_sent_handshake = None;
        self.restart_handshake(now);
    }

    /// Sends nothing more on the present sessions. Packets that the peer has already sent on them
    /// are still received.
    pub(super) fn expire_sessions(&mut self, core: &mut Core) {
        self.retire_sessions();
        // The peer may have got our response.
        let next = self.sessions.next.take();
        self.keep_to_receive(core, next);
    }
}

impl Core {
    /// Nothing that carries the session's index is received any more.
    fn drop_session(&mut self, session: Option<Arc<Session>>) {
        if let Some(session) = session {
            self.shared.remove(session.local_index());
            self.indices.remove(session.local_index());
        }
    }
}
