//! The child process as the program sees it that started it.

use std::fmt;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketFlags,
    SocketType, recvmsg, send, socketpair,
};

use super::child_end::ChildEnd;
use super::setup::{InnerNetwork, KernelDevice, MAX_MESSAGE, NamespaceReply, NamespaceRequest};

/// How long the child may take to begin.
const PATIENCE: Duration = Duration::from_secs(10);

/// A network namespace with a device, and the process that makes sockets there. Dropping it ends all of them.
pub struct SocketNamespace {
    pub(super) end: ChildEnd,
    pub(super) descriptor: OwnedFd,
    pub(super) device: KernelDevice,
    pub(super) network: InnerNetwork,
}

/// Why the kernel's stack cannot be had here, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotHere(String);

impl fmt::Display for NotHere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotHere {}

impl SocketNamespace {
    /// Starts a program with one argument, with which it does nothing but [`serve_child`](super::serve_child): this
    /// same program, as `/proc/self/exe`. Returns as well why the device is not what would be first, if so.
    ///
    /// # Errors
    ///
    /// [`NotHere`]; nothing is left.
    pub fn make(
        program: &Path,
        argument: &str,
        network: &InnerNetwork,
        device: KernelDevice,
    ) -> Result<(Self, Option<String>), NotHere> {
        let flags = SocketFlags::CLOEXEC;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (ours, theirs) = pair.map_err(|error| cannot(&"a pair of sockets", &error))?;
        let network = network.clone();
        let request = NamespaceRequest { device, network };
        let text = request.write();
        if text.len() > MAX_MESSAGE {
            let count = request.network.addresses.len();
            return Err(NotHere(format!("{count} inner addresses are too many")));
        }
        set_socket_timeout(&ours, Timeout::Recv, Some(PATIENCE))
            .map_err(|error| cannot(&"a pair of sockets", &error))?;
        let child = Command::new(program)
            .arg(argument)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| cannot(&program.display(), &error))?;
        let mut end = ChildEnd::new(ours, child);
        let asked = send(&end.socket, text.as_bytes(), SendFlags::NOSIGNAL);
        let made = asked
            .map_err(|error| cannot(&"the child process", &error))
            .and_then(|_| receive(&end.socket));
        match made {
            Ok((descriptor, device, why)) => Ok((
                Self {
                    end,
                    descriptor,
                    device,
                    network: request.network,
                },
                Some(why).filter(|why| !why.is_empty()),
            )),
            Err(error) => {
                end.kill();
                Err(error)
            }
        }
    }

    /// What it has.
    pub fn device(&self) -> KernelDevice {
        self.device
    }

    /// The number of its process.
    pub fn process(&self) -> u32 {
        self.end.process()
    }
}

impl fmt::Debug for SocketNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SocketNamespace")
            .field("device", &self.device)
            .field("network", &self.network)
            .finish_non_exhaustive()
    }
}

fn cannot(what: &dyn fmt::Display, error: &dyn fmt::Display) -> NotHere {
    NotHere(format!("{what}: {error}"))
}

fn receive(socket: &OwnedFd) -> Result<(OwnedFd, KernelDevice, String), NotHere> {
    let mut message = vec![0; MAX_MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [IoSliceMut::new(&mut message)];
    let received = loop {
        match recvmsg(socket, &mut bytes, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                let seconds = PATIENCE.as_secs();
                return Err(NotHere(format!(
                    "the child process did not begin within {seconds} seconds"
                )));
            }
            received => {
                break received.map_err(|error| cannot(&"the child process", &error))?;
            }
        }
    };
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let text = String::from_utf8_lossy(message.get(..received.bytes).unwrap_or_default());
    let reply = NamespaceReply::parse(&text);
    let reply = reply.ok_or_else(|| NotHere("the child process ended at once".into()))?;
    match (reply.device, descriptor) {
        (Some(device), Some(descriptor)) => Ok((descriptor, device, reply.why)),
        _ => Err(NotHere(reply.why)),
    }
}
