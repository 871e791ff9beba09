//! How many threads process packets, which, and where.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::thread::placement;

/// Which threads process a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// One thread for each interface, from the TUN to the socket and back.
    Inline,
    /// One thread takes packets and commits them; others encrypt and decrypt, and it too while these have
    /// more than they can do.
    Pipeline,
    /// Like inline, but idle threads join where one is not enough and CPUs are idle.
    #[default]
    Auto,
}

impl Policy {
    /// All, each with its name.
    pub const ALL: [(&str, Self); 3] = [
        ("inline", Self::Inline),
        ("pipeline", Self::Pipeline),
        ("auto", Self::Auto),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// Called by each thread of an engine when it begins.
pub type OnStart = Arc<dyn Fn() + Send + Sync>;

/// The liberties that threads take with the process and its host, where nothing but an engine is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Liberties {
    /// They ask for a higher priority than that of the process.
    pub priority: bool,
    /// They choose their CPUs by where packets come from. One more thread has the sockets while flows are
    /// sparse.
    pub placement: bool,
    /// They give memory that is not needed back to the system (malloc_trim(3)).
    pub memory: bool,
    /// They give up what they do not need, where the process has a sandbox.
    pub sandbox: bool,
}

impl Liberties {
    /// Those of a process that is nothing but a tunnel.
    pub const ALL: Self = Self {
        priority: true,
        placement: true,
        memory: true,
        sandbox: true,
    };
    /// Those of a guest.
    pub const NONE: Self = Self {
        priority: false,
        placement: false,
        memory: false,
        sandbox: false,
    };
}

/// How many threads an engine has, and where they run.
#[derive(Clone)]
pub struct ThreadSettings {
    /// Shards, at most.
    pub shards: usize,
    /// Which of them process an interface.
    pub policy: Policy,
    /// The CPUs of its threads, unless they may use all that the process may.
    pub cpus: Option<Vec<usize>>,
    /// What they may do besides.
    pub liberties: Liberties,
    /// Called by each of them when it begins.
    pub on_start: Option<OnStart>,
}

impl fmt::Debug for ThreadSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadSettings")
            .field("shards", &self.shards)
            .field("policy", &self.policy)
            .field("cpus", &self.cpus)
            .field("liberties", &self.liberties)
            .finish_non_exhaustive()
    }
}

impl Default for ThreadSettings {
    fn default() -> Self {
        Self {
            shards: std::thread::available_parallelism().map_or(1, usize::from),
            policy: Policy::default(),
            cpus: None,
            liberties: Liberties::ALL,
            on_start: None,
        }
    }
}

impl From<usize> for ThreadSettings {
    fn from(shards: usize) -> Self {
        Self {
            shards,
            ..Self::default()
        }
    }
}

impl ThreadSettings {
    /// How many CPUs the threads may use.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if this process may use none of those that are named.
    pub fn count_cpus(&self) -> io::Result<usize> {
        match &self.cpus {
            None => Ok(std::thread::available_parallelism().map_or(1, usize::from)),
            Some(cpus) => match placement::usable(cpus) {
                0 => Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "this process may use none of them (`taskset -p` and the cpuset of its control group say which)",
                )),
                count => Ok(count),
            },
        }
    }
}
