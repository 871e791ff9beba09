//! The parts of a sandbox, and what a call does that is not allowed.

/// The effect of a call that a thread may not make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Otherwise {
    /// The call fails with EPERM.
    Refuse,
    /// The call ends the process, so that a test finds what is missing in a list.
    Kill,
}

impl Otherwise {
    /// The effect in this build.
    pub const HERE: Self = match cfg!(debug_assertions) {
        true => Self::Kill,
        false => Self::Refuse,
    };
}

/// Which parts of the sandbox are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Threads have lists of system calls (seccomp).
    pub system_calls: bool,
    /// Only some files can be opened (Landlock).
    pub files: bool,
    /// All capabilities are dropped.
    pub capabilities: bool,
    /// There are no dumps of the memory, and nobody but root can trace the process.
    pub no_dumps: bool,
    /// The memory is not swapped out.
    pub locked_memory: bool,
}

impl Parts {
    /// The name of each, and what it does.
    pub const EXPLAINED: [(&str, &str); 5] = [
        (
            "system-calls",
            "Each thread can make the system calls that it needs, and no others (seccomp).",
        ),
        (
            "files",
            "No file can be opened or changed; a process of its own has the sockets and devices (Landlock, Linux 5.13).",
        ),
        (
            "capabilities",
            "The process has no capability. A small process of its own does what takes one.",
        ),
        (
            "no-dumps",
            "No dump is made of its memory, and nobody but root can trace it.",
        ),
        (
            "locked-memory",
            "Its memory is not swapped out. It takes RLIMIT_MEMLOCK without a limit, or CAP_SYS_RESOURCE.",
        ),
    ];

    /// Each with its name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let on = [
            self.system_calls,
            self.files,
            self.capabilities,
            self.no_dumps,
            self.locked_memory,
        ];
        Self::EXPLAINED.iter().map(|(name, _)| *name).zip(on)
    }
}
