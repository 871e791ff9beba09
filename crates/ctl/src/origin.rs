//! The process at the other end of a connection.

use std::os::fd::{AsFd, OwnedFd};

use crate::text::is_printable;

/// The process at the other end of a connection, as the kernel names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// 0 for a process of a namespace that this one does not see.
    pub pid: i32,
    /// The user that it ran as when it connected.
    pub uid: u32,
}

impl Origin {
    pub(crate) fn of(stream: &OwnedFd) -> Self {
        // Without rights if the kernel does not say.
        let (pid, uid) = adit_io::peer(stream.as_fd()).unwrap_or((0, u32::MAX));
        Self { pid, uid }
    }

    /// Whether it is root's, or of the user that this process runs as.
    pub(crate) fn is_trusted(&self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }

    /// What can be found out about it, if it is still there.
    pub fn caller(self) -> Caller {
        let found = adit_io::helper::files::caller(self.pid).ok();
        let (name, login) = found.unzip();
        let name = name.and_then(|name| String::from_utf8(name).ok());
        // Parentheses tell what is not the name in a line.
        let is_good = |c: &char| is_printable(*c) && !matches!(c, '(' | ')');
        let printable = |name: String| name.trim().chars().filter(is_good).collect();
        Caller {
            origin: self,
            login: login.flatten(),
            command: name.map(printable),
        }
    }
}

/// Who asked for a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The process.
    pub origin: Origin,
    /// The user behind a process of root: who logged in, as the kernel keeps it, or else whose process
    /// started sudo(8) or its like.
    pub login: Option<u32>,
    /// The name of its program.
    pub command: Option<String>,
}

impl Caller {
    /// What a line begins with that [`Display`](std::fmt::Display) has written, and the rest of it.
    pub fn parse(line: &str) -> Option<(Self, &str)> {
        let (command, rest) = line.split_once(" (pid ")?;
        let (inner, rest) = rest.split_once(')')?;
        let (pid, inner) = inner.split_once(", uid ")?;
        let (uid, login) = match inner.split_once(", for uid ") {
            Some((uid, login)) => (uid, Some(login.parse().ok()?)),
            None => (inner, None),
        };
        let origin = Origin {
            pid: pid.parse().ok()?,
            uid: uid.parse().ok()?,
        };
        let command = Some(command.to_owned()).filter(|command| command != NAMELESS);
        let caller = Self {
            origin,
            login,
            command,
        };
        Some((caller, rest.trim_start()))
    }
}

const NAMELESS: &str = "a process";

/// `wg (pid 17, uid 0, for uid 1000)`.
impl std::fmt::Display for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let command = self.command.as_deref().unwrap_or(NAMELESS);
        let Origin { pid, uid } = self.origin;
        write!(f, "{command} (pid {pid}, uid {uid}")?;
        if let Some(login) = self.login {
            write!(f, ", for uid {login}")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
#[path = "origin_tests.rs"]
mod tests;
