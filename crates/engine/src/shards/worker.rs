//! A worker: a shard's thread that helps with the queues of another one.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use adit_io::{TunQueue, UdpSocket};
use adit_proto::Time;
use arrayvec::ArrayVec;
use rustix::event::epoll::EventFlags;

use crate::shards::help::{CpuLoad, LOOK, Reason, reason};
use crate::shards::queues::Queues;
use crate::shards::settings::Policy;
use crate::shards::thread_state::ThreadState;
use crate::thread::lock::lock;
use crate::thread::poll::{PollRole, Polled};

/// Looks of a worker that decide together whether it stays.
const LOOKS: usize = 8;
/// After a worker found no CPU, so long no other is asked; twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_millis(16);
const MAX_DOUBLINGS: u32 = 7;
/// A worker that had a CPU for so long helped.
const HELPED: Duration = Duration::from_millis(100);
/// How long a worker looks for work before it leaves.
const LINGER: Duration = Duration::from_micros(200);

/// Since when a worker has looked in vain.
#[derive(Default)]
struct Linger(Option<Time>);

impl Linger {
    /// A look that began at this time ended with or without a batch. What it took to process one does
    /// not count.
    fn is_over(&mut self, found: bool, now: Time) -> bool {
        if found {
            self.0 = None;
            return false;
        }
        now.since(*self.0.get_or_insert(now)) >= LINGER
    }
}

/// A shard's thread that helps with the queues of another one.
pub(crate) struct Worker<T, U> {
    queues: Arc<Queues<T, U>>,
    /// Whether it is not counted any more.
    has_left: bool,
    joined: Time,
    linger: Linger,
    look_at: Time,
    /// Results of looks at the CPUs so far.
    looks: ArrayVec<Option<Reason>, LOOKS>,
    /// Whether something was left of what waited since the last look.
    left_some: bool,
}

impl<T, U> Worker<T, U> {
    pub(crate) fn new(queues: Arc<Queues<T, U>>, now: Time) -> Self {
        Self {
            queues,
            has_left: false,
            joined: now,
            linger: Linger::default(),
            look_at: now + LOOK,
            looks: ArrayVec::new(),
            left_some: false,
        }
    }

    /// The interface cannot go on.
    pub(crate) fn fail(&self, error: io::Error) {
        self.queues.common.fail(error);
    }

    /// Why the CPU is needed for other things, if it is.
    fn look(&mut self, load: &CpuLoad, now: Time) -> Option<Reason> {
        if now < self.look_at {
            return None;
        }
        self.look_at = now + LOOK;
        let left_some = std::mem::take(&mut self.left_some);
        self.looks.push(Reason::of(load.idle_cpus(), left_some));
        if !self.looks.is_full() {
            return None;
        }
        reason(&self.looks.take())
    }

    /// Leaves, unless a batch waits for it.
    fn leaves(&mut self, reason: Reason, now: Time) -> bool {
        let mut need = lock(&self.queues.need);
        if self.queues.jobs() > 0 {
            return false;
        }
        need.workers -= 1;
        self.queues.set_workers(need.workers);
        self.has_left = true;
        if now.since(self.joined) >= HELPED {
            need.in_vain = 0;
        }
        match reason {
            Reason::Idle => {}
            // It may be wanted again soon: what arrives may be more than one thread processes.
            Reason::Spare => need.look_at = now + FIRST_PAUSE,
            Reason::Crowded => {
                need.in_vain += 1;
                let doublings = (need.in_vain - 1).min(MAX_DOUBLINGS);
                need.look_at = now + FIRST_PAUSE * 2_u32.pow(doublings);
            }
        }
        true
    }
}

impl<T: TunQueue + 'static, U: UdpSocket + 'static> Worker<T, U> {
    /// Polls all queues of the interface once. False if it has left.
    pub(crate) fn poll(
        &mut self,
        (policy, load): (Policy, &CpuLoad),
        thread: &mut ThreadState,
        now: Time,
    ) -> bool {
        let queues = &self.queues;
        if queues.common.is_stopping() {
            return false;
        }
        let sockets = queues.handle().sockets.load();
        let mut found = queues.do_job(thread, &sockets, now);
        self.left_some |= found;
        if policy == Policy::Auto {
            for socket in sockets.all_in_use() {
                match queues.poll_socket(thread, socket, EventFlags::IN, now, PollRole::Worker) {
                    Ok(polled) => {
                        found |= polled.has_packets();
                        self.left_some |= polled.leaves_some();
                    }
                    Err(error) => self.fail(error),
                }
            }
            match queues.poll_tun(thread, &sockets, now, PollRole::Worker) {
                Ok(Polled::Blocked) => queues.handle().wake(),
                Ok(polled) => {
                    found |= polled.has_packets();
                    self.left_some |= polled.leaves_some();
                }
                // The owner meets it, too, and knows whether it is final.
                Err(_) => {}
            }
            if queues.tun.has_begun_to_rest() {
                queues.handle().wake();
            }
        }
        if self.linger.is_over(found, now) && self.leaves(Reason::Idle, now) {
            return false;
        }
        if !found {
            std::thread::yield_now();
        }
        let reason = self.look(load, now);
        !reason.is_some_and(|reason| self.leaves(reason, now))
    }
}

impl<T, U> Drop for Worker<T, U> {
    fn drop(&mut self) {
        if !self.has_left {
            let mut need = lock(&self.queues.need);
            need.workers -= 1;
            self.queues.set_workers(need.workers);
            if self.queues.jobs() > 0 {
                // It does what nobody else does.
                self.queues.handle().wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_lingers_after_a_batch_however_long_that_took() {
        let begun = Time::default();
        let mut linger = Linger::default();
        assert!(!linger.is_over(true, begun));
        let after = begun + 2 * LINGER;
        assert!(!linger.is_over(false, after), "another thread is taking");
        assert!(!linger.is_over(false, after + LINGER / 2));
        assert!(linger.is_over(false, after + LINGER));
        assert!(!linger.is_over(true, after + 2 * LINGER));
        assert!(!linger.is_over(false, after + 3 * LINGER));
    }
}
