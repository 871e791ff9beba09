//! The timers of a peer (whitepaper 6), and the action of each.
//!
//! Retransmit, NoAnswer, Keepalive and ZeroKeys are the whitepaper's; PersistentKeepalive is the
//! configuration's. Timers that depend on traffic are lazy: shards only note times. When such a
//! timer runs out, it reads these times, and is armed again if the traffic has pushed it back.

use std::sync::Arc;
use std::time::Duration;

use super::peer_state::PeerState;
use super::timer_table::Timer;
use super::{FailureReason, Liveness};
use crate::device::common::Core;
use crate::device::output::Output;
use crate::limits::*;
use crate::peer::event;
use crate::{Tai64N, Time};

impl PeerState {
    pub(super) fn time_passed(&mut self, core: &mut Core, now: Time, wall: Tai64N) {
        self.race_due(core, now);
        self.search_due(core, now);
        for timer in Timer::ALL {
            if !self.timers.take_due(timer, now) {
                continue;
            }
            match timer {
                Timer::Retransmit => self.initiation_due(core, now, wall),
                Timer::NoAnswer => self.data_unanswered(core, now),
                Timer::Keepalive => self.keepalive_due(core, now),
                Timer::PersistentKeepalive => self.persistent_keepalive_due(core, now),
                Timer::ZeroKeys => {
                    self.drop_sessions(core);
                    self.tell_liveness(core, Liveness::Gone);
                }
                Timer::Access => self.access_due(core, now, wall),
            }
        }
    }

    /// A shard sent or received while the timer that looks at it did not run, by the bits of
    /// [`event`].
    ///
    /// Even if that is answered by now, the timer runs: a busy peer then costs one event per
    /// timeout, not one per packet that is answered before its event arrives.
    pub(super) fn arm_for_activity(&mut self, now: Time, events: u8) {
        if events & event::NO_ANSWER != 0 {
            let since = self.peer.unanswered().unwrap_or(now);
            self.arm_activity(Timer::NoAnswer, self.answer_due(since));
        }
        if events & event::KEEPALIVE != 0 {
            let since = self.peer.owed().unwrap_or(now);
            self.arm_activity(Timer::Keepalive, since + KEEPALIVE_TIMEOUT);
        }
    }

    fn arm_activity(&mut self, timer: Timer, at: Time) {
        if !self.timers.is_armed(timer) {
            self.peer.set_armed(activity_bit(timer), true);
            self.timers.arm(timer, at);
        }
    }

    fn answer_due(&self, since: Time) -> Time {
        since + NO_ANSWER_TIMEOUT + self.jitter
    }

    /// "…retries … for … Rekey-Attempt-Time before giving up. If a packet is explicitly queued up
    /// to be sent, then this timer is reset" (6.4).
    fn initiation_due(&mut self, core: &mut Core, now: Time, wall: Tai64N) {
        self.frames_wait = false;
        if self.peer.take_wanted() {
            self.attempts_since = now;
        }
        if now.since(self.attempts_since) < REKEY_ATTEMPT_TIME {
            if self.initiation.is_some() && !self.keeps_source {
                // The path may be what broke: let the kernel choose the source anew.
                self.peer.clear_source();
                self.ask_for_candidates(core);
                let heard = self.peer.last_received();
                if heard.is_none_or(|at| now.since(at) >= KEEPALIVE_TIMEOUT) {
                    self.tell_liveness(core, Liveness::Silent);
                }
            }
            return self.send_initiation(core, now, wall);
        }
        core.stats.given_up += 1;
        let given_up_after = Some(self.initiations_in_vain);
        self.failed(FailureReason::NoAnswer, now);
        self.tell_liveness(core, Liveness::Gone);
        self.end_handshake(core);
        self.peer.clear_owed();
        if !self.timers.is_armed(Timer::ZeroKeys) {
            self.timers.arm(Timer::ZeroKeys, now + ZERO_KEYS_AFTER_TIME);
        }
        core.push(Output::DropStaged {
            peer: Arc::clone(&self.peer),
            given_up_after,
        });
    }

    /// "If … no packets have been received for Keepalive-Timeout + Rekey-Timeout" after data was
    /// sent, "a handshake initiation is sent" (6.5).
    fn data_unanswered(&mut self, core: &mut Core, now: Time) {
        self.peer.set_armed(event::NO_ANSWER, false);
        let Some(since) = self.peer.unanswered() else {
            return;
        };
        if self.answer_due(since) > now {
            return self.arm_activity(Timer::NoAnswer, self.answer_due(since));
        }
        self.tell_liveness(core, Liveness::Silent);
        self.peer.clear_unanswered();
        self.peer.clear_source();
        self.handshake_wanted(now, false);
    }

    /// "If a peer has received a validly-authenticated transport data message …, but does not have
    /// any packets itself to send back for Keepalive-Timeout seconds, it sends a keepalive message"
    /// (6.5).
    fn keepalive_due(&mut self, core: &mut Core, now: Time) {
        self.peer.set_armed(event::KEEPALIVE, false);
        let Some(since) = self.peer.owed() else {
            return;
        };
        if since + KEEPALIVE_TIMEOUT > now {
            return self.arm_activity(Timer::Keepalive, since + KEEPALIVE_TIMEOUT);
        }
        self.peer.clear_owed();
        self.send_keepalive(core, now);
    }

    fn persistent_keepalive_due(&mut self, core: &mut Core, now: Time) {
        let interval = Duration::from_secs(self.persistent_keepalive.into());
        if interval.is_zero() {
            return;
        }
        let due = self.peer.last_traversal().map_or(now, |at| at + interval);
        if due > now {
            return self.timers.arm(Timer::PersistentKeepalive, due);
        }
        self.timers.arm(Timer::PersistentKeepalive, now + interval);
        self.send_keepalive(core, now);
    }
}

fn activity_bit(timer: Timer) -> u8 {
    match timer {
        Timer::NoAnswer => event::NO_ANSWER,
        _ => event::KEEPALIVE,
    }
}
