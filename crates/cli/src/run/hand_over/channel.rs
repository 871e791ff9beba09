//! The socket of a hand-over: where it stands, who may connect, and how messages cross it.
//!
//! Either process may be in the hands of an intruder. So each learns from the kernel which process
//! the other one is, and waits for a message only so long.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use adit_io::helper::files;
use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Signal, pidfd_send_signal};
use serde::{Serialize, de::DeserializeOwned};
use zeroize::Zeroizing;

use super::messages::{MessageKind, Refused, printable};
use super::terms::out_of_turn;
use crate::failure::{Context, Failure, Result, bail};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;
/// Longest message: a peer with a million allowed IPs.
const MAX_MESSAGE: usize = 32 << 20;
/// Descriptors that one message may bring: those of an interface are some 70. The kernel allows 253.
const MAX_FDS: usize = 128;
/// Kind and length.
const HEADER: usize = 5;
/// Records that cross in one system call, in bytes.
const TOGETHER: usize = 64 << 10;
/// How long there may be no room for a connection, which is not accepted yet then. No process that
/// can be asked has so many, and a directory may be full of sockets that have.
const TO_CONNECT: Duration = Duration::from_millis(1);
/// How long a process may take over each message, unless something else is set.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a process that was killed may take to end.
const TO_DIE: Duration = Duration::from_secs(2);

/// Where a new process asks for a hand-over. Its file goes when this is dropped.
pub(crate) struct HandOverListener {
    socket: UnixListener,
    dir: PathBuf,
}

impl HandOverListener {
    /// Binds `dir/upgrade/PID.sock`. What killed processes left there goes.
    pub(crate) fn bind(dir: &Path) -> Result<Self> {
        let mut attempts = 100;
        let laid = loop {
            match files::lay_for_upgrade(dir) {
                // Another process has just ended, and taken the directory along. A pause lets any
                // others that are at it finish, rather than meet them again in step.
                Err(error) if error.kind() == ErrorKind::NotFound && attempts > 1 => {
                    attempts -= 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
                laid => break laid,
            }
        };
        let failed = || format!("cannot listen below {}", dir.display());
        let laid = laid.context(failed)?;
        let listens = rustix::net::listen(&laid, BACKLOG);
        listens.map_err(std::io::Error::from).context(failed)?;
        let (socket, _) = laid.show().context(failed)?;
        let listener = Self {
            socket: socket.into(),
            dir: dir.to_owned(),
        };
        listener.socket.set_nonblocking(true).context(failed)?;
        Ok(listener)
    }

    /// The next client that may ask: root, or the user that this process runs as.
    pub(crate) fn accept(&self) -> Option<Channel> {
        let (stream, _) = self.socket.accept().ok()?;
        let channel = Channel::new(stream).ok()?;
        let user = channel.peer.user;
        (user == 0 || user == own_user()).then_some(channel)
    }
}

impl AsFd for HandOverListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for HandOverListener {
    fn drop(&mut self) {
        files::remove_for_upgrade(&self.dir);
    }
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A number of this process's network namespace, where the kernel tells. A connection is of the
/// namespace of the process that made it, at both ends.
pub(crate) fn own_namespace() -> Option<u64> {
    let socket = UnixDatagram::unbound().ok()?;
    adit_io::namespace_cookie(socket.as_fd()).ok()
}

/// The process at the other end, as the kernel knows it.
pub(crate) struct OtherProcess {
    /// 0 if it is in a namespace that this process does not see.
    pub(crate) pid: i32,
    user: u32,
    /// A handle of it, whatever becomes of its number.
    pub(crate) process: Option<OwnedFd>,
}

impl OtherProcess {
    fn of(stream: &UnixStream) -> std::io::Result<Self> {
        let (pid, user) = adit_io::peer(stream.as_fd())?;
        // Before Linux 6.5, by its number: at once, while it waits for an answer.
        let process = adit_io::peer_process(stream.as_fd());
        let process = process.or_else(|_| files::process_of(stream.as_fd())).ok();
        Ok(Self { pid, user, process })
    }

    /// Ends the process, unless it ends by itself within this time. False if it cannot be shown to
    /// have ended.
    pub(super) fn end_after(&self, patience: Duration) -> bool {
        let Some(process) = &self.process else {
            return false;
        };
        let ends_within = |time: Duration| {
            let time = Timespec::try_from(time).unwrap_or_default();
            let wait = || poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&time));
            matches!(retry_on_intr(wait), Ok(1..))
        };
        ends_within(patience) || {
            // Whether it ends counts, not what becomes of the signal.
            let _ = pidfd_send_signal(process, Signal::KILL);
            ends_within(TO_DIE)
        }
    }
}

/// One end of a hand-over.
pub(crate) struct Channel {
    stream: UnixStream,
    peer: OtherProcess,
    /// For one message.
    patience: Duration,
    /// Records that are to be sent with the next ones.
    queued: Zeroizing<Vec<u8>>,
    /// Bytes that were read, of which `ahead[taken..]` are of messages to come.
    ahead: Zeroizing<Vec<u8>>,
    taken: usize,
    /// Descriptors that came with what was read.
    fds: Vec<OwnedFd>,
}

impl Channel {
    fn new(stream: UnixStream) -> std::io::Result<Self> {
        Ok(Self {
            peer: OtherProcess::of(&stream)?,
            patience: PATIENCE,
            stream,
            // Neither grows, so that no copy of a key is left behind.
            queued: Zeroizing::new(Vec::with_capacity(TOGETHER)),
            ahead: Zeroizing::new(Vec::with_capacity(TOGETHER)),
            taken: 0,
            fds: Vec::new(),
        })
    }

    /// Connects to the process `pid` of this user, which has its socket in `dir`.
    pub(crate) fn connect(dir: &Path, pid: i32) -> Result<Self> {
        let path = dir.join(format!("{pid}.sock"));
        let stream = adit_ctl::connect(&path, TO_CONNECT).and_then(Self::new);
        let mut channel =
            stream.context(|| format!("cannot ask process {pid} ({})", path.display()))?;
        channel.set_patience(PATIENCE)?;
        let OtherProcess {
            pid: found, user, ..
        } = channel.peer;
        if user != own_user() {
            bail!(
                State,
                "process {pid} runs as the user {user}, and this one as {}: run this command as that user",
                own_user()
            );
        }
        if found != pid {
            bail!(
                State,
                "another process than {pid} answers at {}",
                path.display()
            );
        }
        Ok(channel)
    }

    /// The process at the other end.
    pub(crate) fn peer(&self) -> &OtherProcess {
        &self.peer
    }

    /// The same, when all is said.
    pub(super) fn into_peer(self) -> OtherProcess {
        self.peer
    }

    /// How long the other process may take over each message that is sent or heard from now on.
    pub(super) fn set_patience(&mut self, patience: Duration) -> Result<()> {
        self.patience = patience;
        let set = (self.stream.set_read_timeout(Some(patience)))
            .and_then(|()| self.stream.set_write_timeout(Some(patience)));
        set.context(|| "cannot limit the time of a hand-over".into())
    }

    /// Sends a message without descriptors.
    pub(super) fn tell(&mut self, kind: MessageKind, message: &impl Serialize) -> Result<()> {
        self.tell_with(kind, message, &[])
    }

    pub(super) fn tell_with(
        &mut self,
        kind: MessageKind,
        message: &impl Serialize,
        fds: &[BorrowedFd<'_>],
    ) -> Result<()> {
        let text = serde_json::to_vec(message).context(|| "cannot hand over".into())?;
        self.send(kind, &text, fds)
    }

    /// Sends a record, at the latest before the next message that is none.
    pub(super) fn send_record(&mut self, record: &[u8]) -> Result<()> {
        if self.queued.len() + HEADER + record.len() > TOGETHER {
            self.send_queued()?;
        }
        if HEADER + record.len() > TOGETHER {
            return self.send(MessageKind::Record, record, &[]);
        }
        self.queued.extend(header(MessageKind::Record, record)?);
        self.queued.extend_from_slice(record);
        Ok(())
    }

    fn send_queued(&mut self) -> Result<()> {
        let sent = self.stream.write_all(&self.queued);
        self.queued.clear();
        sent.context(|| CANNOT_TELL.to_owned())
    }

    fn send(&mut self, kind: MessageKind, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        self.send_queued()?;
        let header = header(kind, body)?;
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if fds.len() > MAX_FDS {
            bail!(State, "there is more to hand over than fits a message");
        }
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        // Most messages are short: one system call.
        let parts = [IoSlice::new(&header), IoSlice::new(body)];
        let sent = sendmsg(&self.stream, &parts, &mut control, SendFlags::NOSIGNAL);
        let failed = || CANNOT_TELL.to_owned();
        let sent = sent.map_err(std::io::Error::from).context(failed)?;
        if sent < HEADER {
            bail!(State, "a message was cut");
        }
        (self.stream.write_all(&body[sent - HEADER..])).context(failed)
    }

    /// The next message, which has to be of this kind.
    pub(super) fn hear<T: DeserializeOwned>(&mut self, kind: MessageKind) -> Result<T> {
        self.hear_with(kind).map(|(message, _)| message)
    }

    /// The same, and the descriptors that come with it.
    pub(super) fn hear_with<T: DeserializeOwned>(
        &mut self,
        kind: MessageKind,
    ) -> Result<(T, Vec<OwnedFd>)> {
        let (found, body, fds) = self.receive()?;
        if found != kind {
            return Err(out_of_turn());
        }
        let message = parse(&body)?;
        Ok((message, fds))
    }

    /// The next message as it is. `Refused` is an error that says why.
    pub(super) fn receive(&mut self) -> Result<(MessageKind, Zeroizing<Vec<u8>>, Vec<OwnedFd>)> {
        let mut header = [0; HEADER];
        self.fill(&mut header, true)?;
        let [kind, len @ ..] = header;
        let kind = *MessageKind::ALL
            .get(usize::from(kind))
            .ok_or_else(out_of_turn)?;
        let len = u32::from_le_bytes(len) as usize;
        if len > MAX_MESSAGE {
            return Err(out_of_turn());
        }
        let mut body = Zeroizing::new(vec![0; len]);
        // A read ends with the first bytes that bring descriptors. So those that came are of the first
        // message here that is no record, and none of another can come if its end is read alone.
        let is_record = kind == MessageKind::Record;
        self.fill(&mut body, is_record)?;
        let fds = match is_record {
            true => Vec::new(),
            false => std::mem::take(&mut self.fds),
        };
        if kind == MessageKind::Refused {
            let refused: Refused = parse(&body)?;
            return Err(Failure::State(printable(&refused.why)));
        }
        Ok((kind, body, fds))
    }

    /// Fills `to` with what comes next, and may read more along.
    fn fill(&mut self, mut to: &mut [u8], may_read_more: bool) -> Result<()> {
        let until = Instant::now() + self.patience;
        while !to.is_empty() {
            if self.taken == self.ahead.len() {
                // The timeout of the socket is for each read.
                if Instant::now() > until {
                    bail!(State, "the other process takes too long over a message");
                }
                self.taken = 0;
                let room = if may_read_more {
                    TOGETHER
                } else {
                    to.len().min(TOGETHER)
                };
                self.ahead.resize(room, 0);
                let got = read(&self.stream, &mut self.ahead, &mut self.fds);
                self.ahead.truncate(got.as_ref().map_or(0, |got| *got));
                if self.fds.len() > MAX_FDS {
                    return Err(out_of_turn());
                }
                if got? == 0 {
                    bail!(State, "the other process has ended");
                }
            }
            let ahead = &self.ahead[self.taken..];
            let n = ahead.len().min(to.len());
            let (now, rest) = to.split_at_mut(n);
            now.copy_from_slice(&ahead[..n]);
            self.taken += n;
            to = rest;
        }
        Ok(())
    }
}

const CANNOT_TELL: &str = "cannot tell the other process";

fn header(kind: MessageKind, body: &[u8]) -> Result<[u8; HEADER]> {
    if body.len() > MAX_MESSAGE {
        bail!(State, "there is more to hand over than fits a message");
    }
    let mut header = [kind as u8; HEADER];
    let len = u32::try_from(body.len()).unwrap_or(u32::MAX);
    header[1..].copy_from_slice(&len.to_le_bytes());
    Ok(header)
}

fn read(stream: &UnixStream, to: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<usize> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(to)];
    let received = recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC);
    let received = received.map_err(std::io::Error::from);
    let got = received.context(|| "cannot hear from the other process".into())?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok(got.bytes)
}

pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    serde_json::from_slice(body).context(|| "cannot read what was handed over".into())
}

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
