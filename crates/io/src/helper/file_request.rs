//! Requests to the helper about files. Its folders are those that it was started with.

use std::io;

use arrayvec::ArrayVec;

use crate::files::{Failed, FileRefusal, FileStep};
use crate::helper::messages::NUMBERS;
use crate::helper::name::InterfaceName;

/// A request about a file. Interfaces are named; the helper makes paths of that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FileRequest {
    /// Binds a socket. It stands in its place once it is [shown](Self::Show).
    Lay {
        at: Spot,
        /// Even if another process has the folder locked.
        insists: bool,
    },
    /// Moves the socket that was bound last to its place, since it listens now.
    Show,
    /// Takes a socket that another process bound, and whose file stands in its place.
    Adopt(Spot),
    /// Has an inotify descriptor tell of changes of the control socket of this name.
    Watch(InterfaceName),
    /// Removes a socket that was shown or adopted, if it still is the one in its place.
    Remove { at: Spot, insists: bool },
    /// Opens the file that says where the peers of an interface were, to read.
    Recall(InterfaceName),
    /// A new file of that kind, to write.
    Remember(InterfaceName),
    /// Puts the new one in the place of the last one.
    Keep(InterfaceName),
    /// Removes it.
    Forget(InterfaceName),
    /// Removes the folders, if they are the process's own and empty.
    Leave,
    /// The name of the program that a process runs, and the user behind it.
    Caller(i32),
    /// The index of the interface of this name.
    Index(InterfaceName),
    /// A handle of the process at the other end of a UNIX socket.
    Peer,
}

/// Where a socket stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Spot {
    pub(super) folder: Folder,
    /// Nothing in [`Folder::Upgrade`].
    pub(super) name: InterfaceName,
}

/// A folder of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Folder {
    /// Of control sockets.
    Control,
    /// Of status sockets.
    Status,
    /// Of sockets where a new process asks for the interfaces.
    Upgrade,
}

impl Spot {
    fn add_to<const N: usize>(&self, bytes: &mut ArrayVec<u8, N>) {
        bytes.push(self.folder as u8);
        bytes.extend(self.name.iter().copied());
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (folder, name) = bytes.split_first()?;
        let all = [Folder::Control, Folder::Status, Folder::Upgrade];
        let folder = *all.get(usize::from(*folder))?;
        let name = InterfaceName::try_from(name).ok()?;
        let is_whole = name.is_empty() == (folder == Folder::Upgrade);
        is_whole.then_some(Self { folder, name })
    }
}

impl FileRequest {
    pub(super) fn add_to<const N: usize>(&self, bytes: &mut ArrayVec<u8, N>) {
        let (number, name) = match self {
            Self::Lay { at, insists } => {
                bytes.extend([0, u8::from(*insists)]);
                return at.add_to(bytes);
            }
            Self::Show => return bytes.push(1),
            Self::Adopt(at) => {
                bytes.push(2);
                return at.add_to(bytes);
            }
            Self::Watch(name) => (3, name),
            Self::Remove { at, insists } => {
                bytes.extend([4, u8::from(*insists)]);
                return at.add_to(bytes);
            }
            Self::Recall(name) => (5, name),
            Self::Remember(name) => (6, name),
            Self::Keep(name) => (7, name),
            Self::Forget(name) => (8, name),
            Self::Leave => return bytes.push(9),
            Self::Caller(pid) => {
                bytes.push(10);
                return bytes.extend(pid.to_le_bytes());
            }
            Self::Index(name) => (11, name),
            Self::Peer => return bytes.push(12),
        };
        bytes.push(number);
        bytes.extend(name.iter().copied());
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (number, rest) = bytes.split_first()?;
        let flagged = || {
            let (insists, at) = rest.split_first()?;
            let insists = [false, true].get(usize::from(*insists)).copied()?;
            Some((Spot::parse(at)?, insists))
        };
        let name = || InterfaceName::try_from(rest).ok();
        Some(match (number, rest) {
            (0, _) => {
                let (at, insists) = flagged()?;
                Self::Lay { at, insists }
            }
            (1, []) => Self::Show,
            (2, at) => Self::Adopt(Spot::parse(at)?),
            (3, _) => Self::Watch(name()?),
            (4, _) => {
                let (at, insists) = flagged()?;
                Self::Remove { at, insists }
            }
            (5, _) => Self::Recall(name()?),
            (6, _) => Self::Remember(name()?),
            (7, _) => Self::Keep(name()?),
            (8, _) => Self::Forget(name()?),
            (9, []) => Self::Leave,
            (10, pid) => Self::Caller(i32::from_le_bytes(pid.try_into().ok()?)),
            (11, _) => Self::Index(name()?),
            (12, []) => Self::Peer,
            _ => return None,
        })
    }
}

/// What became of a request for a socket, as numbers of an answer. The first is 0 where it is there.
pub(super) fn told(refused: &FileRefusal) -> [u64; 2] {
    match refused {
        FileRefusal::Failed(Failed::Running) => [1, 0],
        FileRefusal::Failed(Failed::Occupied) => [2, 0],
        FileRefusal::Locked => [3, 0],
        FileRefusal::Failed(Failed::At(step, error)) => {
            let number = error.raw_os_error().unwrap_or(libc::EIO);
            [4 + *step as u64, u64::from(number.unsigned_abs())]
        }
    }
}

/// The same, at the other end.
pub(super) fn heard(numbers: [u64; NUMBERS]) -> Result<(), FileRefusal> {
    let [what, number, ..] = numbers;
    let failed = match what {
        0 => return Ok(()),
        1 => Failed::Running,
        2 => Failed::Occupied,
        3 => return Err(FileRefusal::Locked),
        step => {
            let step = usize::try_from(step - 4).unwrap_or(usize::MAX);
            let step = FileStep::ALL.get(step).copied().unwrap_or(FileStep::Bind);
            let number = i32::try_from(number).unwrap_or(libc::EIO);
            Failed::At(step, io::Error::from_raw_os_error(number))
        }
    };
    Err(failed.into())
}
