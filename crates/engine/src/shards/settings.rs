//! How many threads process packets, which, and where.

use std::io;

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

/// How many threads an engine has, and where they run.
#[derive(Clone, Debug)]
pub struct ThreadSettings {
    /// Shards, at most.
    pub shards: usize,
    /// Which of them process an interface.
    pub policy: Policy,
    /// The CPUs of its threads, unless they may use all that the process may.
    pub cpus: Option<Vec<usize>>,
}

impl Default for ThreadSettings {
    fn default() -> Self {
        Self {
            shards: std::thread::available_parallelism().map_or(1, usize::from),
            policy: Policy::default(),
            cpus: None,
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
