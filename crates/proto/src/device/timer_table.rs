//! Which timers a peer has, and when each runs out.

use crate::Time;

#[derive(Clone, Copy, Debug)]
pub(super) enum Timer {
    /// An initiation may be sent, or was not answered.
    Retransmit,
    /// We sent data and nothing came back.
    NoAnswer,
    /// We received data and sent nothing back.
    Keepalive,
    /// Nothing went either way for the configured interval.
    PersistentKeepalive,
    /// The sessions are long dead.
    ZeroKeys,
    /// The peer's time may be over, or its quota used up.
    Access,
}

impl Timer {
    pub(super) const ALL: [Timer; 6] = [
        Timer::Retransmit,
        Timer::NoAnswer,
        Timer::Keepalive,
        Timer::PersistentKeepalive,
        Timer::ZeroKeys,
        Timer::Access,
    ];
}

/// When each timer runs out.
#[derive(Default)]
pub(super) struct Timers([Option<Time>; Timer::ALL.len()]);

impl Timers {
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.0.iter().flatten().min().copied()
    }

    pub(super) fn deadline(&self, timer: Timer) -> Option<Time> {
        self.0[timer as usize]
    }

    pub(super) fn is_armed(&self, timer: Timer) -> bool {
        self.deadline(timer).is_some()
    }

    pub(super) fn arm(&mut self, timer: Timer, at: Time) {
        self.0[timer as usize] = Some(at);
    }

    pub(super) fn disarm(&mut self, timer: Timer) {
        self.0[timer as usize] = None;
    }

    /// Disarms the timer if it has run out.
    pub(super) fn take_due(&mut self, timer: Timer, now: Time) -> bool {
        self.0[timer as usize].take_if(|at| *at <= now).is_some()
    }
}
