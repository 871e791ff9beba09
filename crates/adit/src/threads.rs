//! The threads of a tunnel.

use std::fmt;
use std::sync::Arc;

use crate::parts::set_own;
use adit_engine::{Liberties, OnStart, Policy, ThreadSettings};

/// The priority of a tunnel's threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Priority {
    /// That of the process.
    #[default]
    Never,
    /// A nice value of -10, if the process may (CAP_SYS_NICE, RLIMIT_NICE): packets wait less, and the
    /// programs whose packets they are wait instead.
    IfAllowed,
}

/// Where a tunnel's threads run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pin {
    /// Where the scheduler has them run.
    #[default]
    Never,
    /// On these CPUs.
    To(Vec<usize>),
    /// Each by turns where its packets come from, or where its caches are: as the `adit` command does it. It
    /// takes one more thread, and BPF where the process may.
    WherePacketsAre,
}

/// The threads of a tunnel: one for handshakes and timers, and those that carry packets.
///
/// By default there is one of the latter, and none of them asks for anything that the process does not have:
/// no priority, no CPU.
///
/// ```
/// let threads = adit::Threads::new(2).on_start(|| println!("a thread of the tunnel"));
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Threads {
    /// How many carry packets, at most. More than one are used only while packets wait and CPUs are idle.
    pub count: usize,
    /// Their priority.
    pub priority: Priority,
    /// Where they run.
    pub pin: Pin,
    on_start: Option<OnStart>,
}

impl Default for Threads {
    fn default() -> Self {
        Self::new(1)
    }
}

impl Threads {
    /// So many that carry packets, at least one.
    pub fn new(count: usize) -> Self {
        Self {
            count: count.max(1),
            priority: Priority::default(),
            pin: Pin::default(),
            on_start: None,
        }
    }

    /// Sets their priority.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Sets where they run.
    #[must_use]
    pub fn pin(mut self, pin: Pin) -> Self {
        self.pin = pin;
        self
    }

    /// Has each thread call this when it begins: to attach it to a virtual machine, to name it, or to give
    /// up rights. It must not wait for the tunnel.
    #[must_use]
    pub fn on_start(mut self, on_start: impl Fn() + Send + Sync + 'static) -> Self {
        self.on_start = Some(Arc::new(on_start));
        self
    }

    /// What the program has each thread call.
    #[cfg(feature = "net")]
    pub(crate) fn on_start_of_net(&self) -> Option<OnStart> {
        self.on_start.clone()
    }

    /// Called by each thread when it begins.
    fn begins(&self) -> OnStart {
        let on_start = self.on_start.clone();
        Arc::new(move || {
            set_own();
            if let Some(on_start) = &on_start {
                on_start();
            }
        })
    }

    pub(crate) fn settings(&self) -> ThreadSettings {
        let shards = self.count.max(1);
        ThreadSettings {
            shards,
            policy: match shards {
                1 => Policy::Inline,
                _ => Policy::Auto,
            },
            cpus: match &self.pin {
                Pin::To(cpus) => Some(cpus.clone()),
                Pin::Never | Pin::WherePacketsAre => None,
            },
            liberties: Liberties {
                priority: self.priority == Priority::IfAllowed,
                placement: self.pin == Pin::WherePacketsAre,
                ..Liberties::NONE
            },
            on_start: Some(self.begins()),
        }
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads")
            .field("count", &self.count)
            .field("priority", &self.priority)
            .field("pin", &self.pin)
            .finish_non_exhaustive()
    }
}
