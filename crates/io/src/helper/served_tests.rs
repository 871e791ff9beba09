//! A helper for tests.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;

use adit_netlink::netns::Netns;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};

use super::file_server::Folders;
use super::messages::{HelperAnswer, exchange, send};
use super::name::InterfaceName;
use super::request::{HelperRequest, QueueChoice};
use super::server::HelperServer;

/// A helper in a network namespace, and the other end of its socket.
pub(super) struct Served {
    pub(super) netns: Netns,
    socket: Option<OwnedFd>,
    thread: Option<JoinHandle<io::Result<()>>>,
    pub(super) dir: PathBuf,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Served {
    pub(super) fn new() -> Self {
        Self::for_interfaces(&[])
    }

    /// A helper that was started for these.
    pub(super) fn for_interfaces(named: &[&str]) -> Self {
        let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
        let netns = Netns::new().expect("a namespace");
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (ours, theirs) =
            socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("a pair of sockets");
        let there = netns.as_fd().try_clone_to_owned().map(Netns::from);
        let there = there.expect("a descriptor");
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let dir = std::env::temp_dir().join(format!("adit-helper-{}-{number}", std::process::id()));
        let folders = Folders {
            control: dir.join("control"),
            status: dir.join("status"),
            are_removed: true,
            group: None,
        };
        let server = HelperServer::new(named, folders);
        let serve = move || {
            there
                .run(|| server.serve(&theirs))
                .expect("the right to enter")
        };
        Self {
            netns,
            socket: Some(ours),
            thread: Some(std::thread::spawn(serve)),
            dir,
        }
    }

    pub(super) fn exchange(
        &self,
        request: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<HelperAnswer> {
        exchange(self.socket.as_ref().expect("it is open"), request, fds)
    }

    pub(super) fn tell(&self, request: &[u8], fds: &[BorrowedFd<'_>]) {
        let socket = self.socket.as_ref().expect("it is open");
        let parts = [IoSlice::new(request)];
        send(socket, &parts, fds, SendFlags::empty()).expect("it listens");
    }

    pub(super) fn ask(
        &self,
        request: &HelperRequest,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<HelperAnswer> {
        self.exchange(&request.to_bytes(), fds)
    }

    pub(super) fn open(&self, name: &str) -> OwnedFd {
        let opened = self.ask(&named(name, QueueChoice::One), &[]);
        opened.and_then(HelperAnswer::one).expect("a device")
    }

    /// Closes this end, and waits for the other one.
    pub(super) fn end(&mut self) -> io::Result<()> {
        drop(self.socket.take());
        let thread = self.thread.take().expect("it runs");
        thread.join().expect("no panic")
    }
}

fn named(name: &str, queues: QueueChoice) -> HelperRequest {
    let name = InterfaceName::try_from(name.as_bytes()).expect("short");
    HelperRequest::Open(name, queues)
}
