//! What is kept for the next process: where peers are, and what they have used of their quotas.

use std::time::Duration;

use adit_proto::config::PublicKey;
use adit_proto::{Device, Time};

use crate::host::platform::{Platform, RememberedPeers};

/// How often it is kept, at most.
const REMEMBER: Duration = Duration::from_secs(1);
/// How soon that is tried again.
const REMEMBER_AGAIN: Duration = Duration::from_secs(60);
/// Between two looks at what is used, for each line that is kept: one takes up to 1 µs, so that this
/// is at most 0.1 % of a CPU.
const LOOK: Duration = Duration::from_millis(1);

/// When something is kept.
#[derive(Default)]
pub(super) struct Remember {
    /// Since endpoints changed.
    at: Option<Time>,
    /// To see what is used, while a peer has a quota.
    look_at: Option<Time>,
    /// When something was kept last, how many lines, and what was used then.
    last: Time,
    lines: u32,
    used: Vec<(PublicKey, u64)>,
}

impl Remember {
    pub(super) fn deadline(&self) -> Option<Time> {
        self.at.into_iter().chain(self.look_at).min()
    }

    /// This was used when the process before this one ended, and is kept.
    pub(super) fn found(&mut self, used: Vec<(PublicKey, u64)>) {
        self.used = used;
    }

    /// Peers have other quotas, or may have.
    pub(super) fn quotas_changed(&mut self) {
        self.look_at = Some(self.last + REMEMBER);
    }

    /// Keeps what has changed, if it is time.
    pub(super) fn keep(&mut self, now: Time, device: &mut Device, platform: &impl Platform) {
        if device.poll_endpoints_changed() {
            self.at.get_or_insert(self.last + REMEMBER);
        }
        if self.deadline().is_none_or(|at| at > now) {
            return;
        }
        let used = device.used();
        self.look_at = None;
        if self.at.is_some_and(|at| at <= now) || used != self.used {
            self.used.clone_from(&used);
            let endpoints = device.active_endpoints();
            self.lines = u32::try_from(endpoints.len() + used.len()).unwrap_or(u32::MAX);
            (self.at, self.last) = (None, now);
            if !platform.remember(&RememberedPeers { endpoints, used }) {
                self.at = Some(now + REMEMBER_AGAIN);
                return;
            }
        }
        if !self.used.is_empty() {
            self.look_at = Some(now + REMEMBER.max(LOOK * self.lines));
        }
    }
}
