//! The helper's work on files, in the folders that it was started with.
//!
//! It knows which sockets it has put into their places, and which it was shown to stand there; it
//! removes no other, and reads and writes nothing of other interfaces.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use adit_netlink::Netlink;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{getppid, umask};

use crate::files::private::{self, lay_private, remove_private};
use crate::files::{
    self, Egg, Failed, FileIdentity, FileRefusal, FileStep, Peers, SocketLocation, make_dir,
    remove_empty,
};
use crate::helper::file_request::{FileRequest, Folder, Spot, told};
use crate::helper::messages::HelperAnswer;
use crate::helper::name::{InterfaceName, is_file_name};

/// Sockets of the process: two for each of 4,096 interfaces, and that of a hand-over.
const MAX_SOCKETS: usize = 2 * 4096 + 1;

/// The folders of a process that serves interfaces.
#[derive(Clone, Debug)]
pub struct Folders {
    /// Of control sockets.
    pub control: PathBuf,
    /// Of status sockets.
    pub status: PathBuf,
    /// They go with the process.
    pub are_removed: bool,
    /// The group that may use status sockets.
    pub group: Option<u32>,
}

/// The files of the process.
pub(super) struct ProcessFiles {
    folders: Folders,
    /// Why a folder could not be made.
    missing: [Option<i32>; 2],
    /// A socket that does not listen yet.
    egg: Option<(Spot, Egg)>,
    /// Sockets in their places.
    shown: HashMap<Spot, FileIdentity>,
}

impl ProcessFiles {
    /// Makes the folders, while this process may. From now on modes of files are as they are stated.
    pub(super) fn new(folders: Folders) -> Self {
        umask(Mode::empty());
        let made = [&folders.control, &folders.status].map(|dir| make_dir(dir));
        let missing = made.map(|made| {
            let error = made.err()?;
            Some(error.raw_os_error().unwrap_or(libc::EIO))
        });
        Self {
            folders,
            missing,
            egg: None,
            shown: HashMap::new(),
        }
    }

    /// Does it, if the values are possible and the descriptors what they have to be.
    pub(super) fn perform(
        &mut self,
        request: &FileRequest,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<HelperAnswer> {
        let done = HelperAnswer::default();
        match (request, fds) {
            (FileRequest::Lay { at, insists }, []) => self.lay(at, *insists),
            (FileRequest::Show, []) => self.show(),
            (FileRequest::Adopt(at), [listener]) => self.adopt(at, *listener),
            (FileRequest::Watch(name), [inotify]) => self.watch(name, *inotify),
            (FileRequest::Remove { at, insists }, []) => self.remove(at, *insists),
            (FileRequest::Recall(name), []) => self.peers(name)?.recall().map(HelperAnswer::from),
            (FileRequest::Remember(name), []) => self.peers(name)?.begin().map(HelperAnswer::from),
            (FileRequest::Keep(name), []) => self.peers(name)?.keep().map(|()| done),
            (FileRequest::Forget(name), []) => self.peers(name)?.forget().map(|()| done),
            (FileRequest::Leave, []) if self.folders.are_removed => {
                let Folders {
                    control, status, ..
                } = &self.folders;
                remove_empty([status.as_path(), control.as_path()]);
                Ok(done)
            }
            (FileRequest::Caller(pid), []) if *pid > 0 => {
                let mut name = [[0; 8]; 2];
                let (command, user) = files::caller(*pid)?;
                let bytes = name.as_flattened_mut();
                let len = command.len().min(bytes.len());
                bytes[..len].copy_from_slice(&command[..len]);
                let [one, two] = name.map(u64::from_le_bytes);
                // Root is behind nothing.
                Ok(HelperAnswer::say(&[one, two, user.unwrap_or(0).into()]))
            }
            (FileRequest::Index(name), []) => {
                let index = Netlink::open()?.link(text(name)?)?.index;
                Ok(HelperAnswer::say(&[index.into()]))
            }
            (FileRequest::Peer, [stream]) => files::process_of(*stream).map(HelperAnswer::from),
            _ => Err(Errno::INVAL.into()),
        }
    }

    fn lay(&mut self, at: &Spot, insists: bool) -> io::Result<HelperAnswer> {
        // One that was never shown goes.
        self.egg = None;
        if self.shown.len() >= MAX_SOCKETS {
            return Err(Errno::NOSPC.into());
        }
        let laid = match at.folder {
            Folder::Upgrade => lay_private(&self.upgrade(), parent()?)?,
            folder => {
                let place = self.place(at)?;
                let missing = self.missing[folder as usize].filter(|_| !place.dir.is_dir());
                let laid = match missing {
                    Some(number) => {
                        let error = io::Error::from_raw_os_error(number);
                        Err(FileRefusal::Failed(Failed::At(FileStep::Make, error)))
                    }
                    None => files::lay(&place, self.group_of(folder), insists),
                };
                match laid {
                    Ok(laid) => laid,
                    Err(refused) => return Ok(HelperAnswer::say(&told(&refused))),
                }
            }
        };
        let (socket, egg) = laid;
        self.egg = Some((at.clone(), egg));
        Ok(HelperAnswer::from(socket))
    }

    fn show(&mut self) -> io::Result<HelperAnswer> {
        let (at, egg) = self.egg.take().ok_or(Errno::INVAL)?;
        let file = egg.hatch()?;
        if at.folder != Folder::Upgrade {
            self.place(&at)?.accompany();
        }
        self.shown.insert(at, file);
        Ok(HelperAnswer::say(&[file.0, file.1]))
    }

    fn adopt(&mut self, at: &Spot, listener: BorrowedFd<'_>) -> io::Result<HelperAnswer> {
        let place = self.place(at)?;
        if self.shown.len() >= MAX_SOCKETS || !place.is_of(listener) {
            return Err(Errno::INVAL.into());
        }
        let file = files::identity(&place.path())?;
        place.accompany();
        self.shown.insert(at.clone(), file);
        Ok(HelperAnswer::say(&[file.0, file.1]))
    }

    fn watch(&self, name: &InterfaceName, inotify: BorrowedFd<'_>) -> io::Result<HelperAnswer> {
        let at = Spot {
            folder: Folder::Control,
            name: name.clone(),
        };
        if !self.shown.contains_key(&at) {
            return Err(Errno::INVAL.into());
        }
        let watch = files::watch(inotify, &self.place(&at)?.path())?;
        Ok(HelperAnswer::say(&[watch.unsigned_abs().into()]))
    }

    fn remove(&mut self, at: &Spot, insists: bool) -> io::Result<HelperAnswer> {
        let file = *self.shown.get(at).ok_or(Errno::INVAL)?;
        match at.folder {
            Folder::Upgrade => remove_private(&self.upgrade(), parent()?),
            _ => {
                if let Err(refused) = self.place(at)?.remove(file, insists) {
                    return Ok(HelperAnswer::say(&told(&refused)));
                }
            }
        }
        self.shown.remove(at);
        Ok(HelperAnswer::default())
    }

    /// Where a socket stands, but for that of a hand-over.
    fn place(&self, at: &Spot) -> io::Result<SocketLocation> {
        let (dir, has_companion) = match at.folder {
            Folder::Control => (&self.folders.control, true),
            Folder::Status => (&self.folders.status, false),
            Folder::Upgrade => return Err(Errno::INVAL.into()),
        };
        Ok(SocketLocation {
            dir: dir.clone(),
            name: text(&at.name)?.to_owned(),
            has_companion,
        })
    }

    fn group_of(&self, folder: Folder) -> Option<u32> {
        self.folders.group.filter(|_| folder == Folder::Status)
    }

    fn upgrade(&self) -> PathBuf {
        self.folders.status.join(private::DIR)
    }

    /// The file of an interface that has a socket.
    fn peers(&self, name: &InterfaceName) -> io::Result<Peers> {
        let has = |folder| {
            let name = name.clone();
            self.shown.contains_key(&Spot { folder, name })
        };
        match has(Folder::Control) || has(Folder::Status) {
            true => Ok(Peers::of(&self.folders.status, text(name)?)),
            false => Err(Errno::INVAL.into()),
        }
    }
}

/// The process that is served.
fn parent() -> io::Result<i32> {
    Ok(getppid().ok_or(Errno::SRCH)?.as_raw_pid())
}

fn text(name: &InterfaceName) -> io::Result<&str> {
    let good = is_file_name(name).then(|| std::str::from_utf8(name).ok());
    good.flatten().ok_or_else(|| Errno::INVAL.into())
}
