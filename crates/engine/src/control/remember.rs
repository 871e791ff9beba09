//! What is kept for the next process: where peers are, and what they have used of their quotas.

use std::time::Duration;

use adit_proto::config::PublicKey;
use adit_proto::{ActiveEndpoints, Device, Time};

use crate::host::platform::RememberedPeers;

/// How often endpoints are kept, at most: who came since is not called by the next process, and waits for 15 s. And
/// for each line, which takes 1.5 µs, so that this is some 1 % of a CPU.
const REMEMBER: Duration = Duration::from_millis(100);
const REMEMBER_LINE: Duration = Duration::from_micros(150);
/// How soon that is tried again.
const REMEMBER_AGAIN: Duration = Duration::from_secs(60);
/// Between two looks at what is used, at least; and for each line that is kept: one takes up to 1 µs, so that this is
/// at most 0.1 % of a CPU.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_LINE: Duration = Duration::from_millis(1);

/// Lines that are written at a time, because handshakes wait meanwhile.
const WRITTEN_AT_ONCE: usize = 1024;

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
    /// What is being kept, and whether all of it is listed.
    under_way: Option<(ActiveEndpoints, bool)>,
}

impl Remember {
    pub(super) fn deadline(&self) -> Option<Time> {
        let due = self.at.into_iter().chain(self.look_at).min();
        due.filter(|_| self.under_way.is_none())
    }

    /// Whether there is more to do at once.
    pub(super) fn is_busy(&self) -> bool {
        self.under_way.is_some()
    }

    /// This was used when the process before this one ended, and is kept, beside so many endpoints.
    pub(super) fn found(&mut self, endpoints: usize, used: Vec<(PublicKey, u64)>) {
        self.lines = u32::try_from(endpoints + used.len()).unwrap_or(u32::MAX);
        self.used = used;
    }

    /// Peers have other quotas, or may have.
    pub(super) fn quotas_changed(&mut self) {
        self.look_at = Some(self.last + LOOK);
    }

    /// Has `store` keep what has changed, if it is time: a part of it, and whether that is the last one.
    pub(super) fn keep(
        &mut self,
        now: Time,
        device: &mut Device,
        store: impl FnOnce(&RememberedPeers, bool) -> bool,
    ) {
        if device.poll_endpoints_changed() {
            let pause = REMEMBER.max(REMEMBER_LINE * self.lines);
            self.at.get_or_insert(self.last + pause);
        }
        if self.deadline().is_some_and(|at| at <= now) {
            let used = device.used();
            self.look_at = None;
            if self.at.is_some_and(|at| at <= now) || used != self.used {
                self.used = used;
                self.lines = u32::try_from(self.used.len()).unwrap_or(u32::MAX);
                (self.at, self.last) = (None, now);
                self.under_way = Some(Default::default());
            } else {
                self.look_again(now);
            }
        }
        if let Some((mut list, mut is_whole)) = self.under_way.take() {
            is_whole = is_whole || device.list_active(&mut list);
            match is_whole {
                true => self.write(now, list, store),
                false => self.under_way = Some((list, false)),
            }
        }
    }

    /// Writes some of the lines.
    fn write(
        &mut self,
        now: Time,
        mut list: ActiveEndpoints,
        store: impl FnOnce(&RememberedPeers, bool) -> bool,
    ) {
        let mut some = RememberedPeers {
            endpoints: list.by_ref().take(WRITTEN_AT_ONCE).collect(),
            used: Vec::new(),
        };
        let is_last = list.len() == 0;
        if is_last {
            some.used.clone_from(&self.used);
        }
        self.lines += u32::try_from(some.endpoints.len()).unwrap_or(u32::MAX);
        match (store(&some, is_last), is_last) {
            (false, _) => self.at = Some(now + REMEMBER_AGAIN),
            (true, true) => self.look_again(now),
            (true, false) => self.under_way = Some((list, true)),
        }
    }

    fn look_again(&mut self, now: Time) {
        if !self.used.is_empty() {
            self.look_at = Some(now + LOOK.max(LOOK_LINE * self.lines));
        }
    }
}

#[cfg(test)]
#[path = "remember_tests.rs"]
mod tests;
