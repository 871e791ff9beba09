//! A host: a network namespace of its own, and a thread that lives in it.
//!
//! The namespace has no name, so nothing can be left behind: it exists as long as the host, or a
//! process, thread or socket in it.

use std::io;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use adit_netlink::netns::{self, Netns};
use adit_netlink::{LinkChange, Netlink};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::process::{self, Process};

type HostJob = Box<dyn FnOnce() + Send>;

/// A network namespace and the thread that lives in it.
///
/// The thread lasts as long as the host. A child of it that asked for a signal when its parent dies
/// (PR_SET_PDEATHSIG) gets it then.
#[derive(Debug)]
pub struct Host {
    netns: Netns,
    jobs: Option<mpsc::Sender<HostJob>>,
    thread: Option<JoinHandle<()>>,
}

impl Host {
    /// A host without links. Its loopback interface is down.
    ///
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`] without CAP_SYS_ADMIN (no thread has been left then; see
    /// [`netns::become_root_in_user_namespace`]), and those of clone(2).
    pub fn new() -> io::Result<Self> {
        let netns = Netns::new()?;
        let (jobs, todo) = mpsc::channel::<HostJob>();
        let (entered, result) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("host".to_owned())
            .spawn(move || {
                let enter = netns.enter().map(|()| netns);
                let failed = enter.is_err();
                let _ = entered.send(enter);
                if !failed {
                    todo.into_iter().for_each(|job| job());
                }
            })?;
        let ended = |_| io::Error::other("its thread ended");
        Ok(Self {
            netns: result.recv().map_err(ended).flatten()?,
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// Does `work` on the host's thread and waits for it. A change of that thread, as the following
    /// two methods make, holds for every thread and process that the host starts later.
    ///
    /// # Panics
    /// If `work` does.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        let job = Box::new(move || drop(done.send(catch_unwind(AssertUnwindSafe(work)))));
        let sent = self
            .jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send(job).is_ok());
        match result.recv() {
            Ok(Ok(value)) => value,
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_) => panic!("the thread of a host ended before the host (sent: {sent})"),
        }
    }

    /// Gives the host its own `/run`, where the control sockets are, and a `/sys` with its own
    /// interfaces: two hosts can then have interfaces of the same name.
    ///
    /// # Errors
    /// Those of unshare(2) and mount(2): it takes CAP_SYS_ADMIN.
    pub fn own_run(&self) -> io::Result<()> {
        self.run(|| {
            netns::unshare_mounts()?;
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            mount_change("/", private)?;
            // The same directory as /run on most systems.
            let run = std::fs::canonicalize("/var/run")?;
            mount("testbed", run, "tmpfs", MountFlags::empty(), None)?;
            mount("testbed", "/sys", "sysfs", MountFlags::empty(), None)?;
            Ok(())
        })
    }

    /// Keeps everything that the host starts on CPU `core`.
    ///
    /// # Errors
    /// Those of sched_setaffinity(2), as where there is no such CPU.
    pub fn pin(&self, core: usize) -> io::Result<()> {
        self.run(move || {
            let mut cores = CpuSet::new();
            cores.set(core);
            Ok(sched_setaffinity(None, &cores)?)
        })
    }

    /// Starts a thread inside the host.
    ///
    /// # Errors
    /// Those of clone(2).
    pub fn thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        self.run(move || std::thread::Builder::new().spawn(work))
    }

    /// Starts a process inside the host.
    ///
    /// # Errors
    /// Those of [`Process::spawn`].
    pub fn spawn(&self, command: Command) -> io::Result<Process> {
        self.run(move || Process::spawn(command))
    }

    /// Runs a command inside the host and returns what it printed.
    ///
    /// # Errors
    /// Those of [`Process::spawn`] and [`Process::output`].
    pub fn output(&self, program: &str, args: &[&str], limit: Duration) -> io::Result<String> {
        self.spawn(process::command(program, args))?.output(limit)
    }

    /// Runs ip(8) with arguments between blanks, for what [`adit_netlink`] does not do.
    ///
    /// # Errors
    /// Those of [`Host::output`], with the arguments.
    pub fn ip(&self, args: &str) -> io::Result<()> {
        let words: Vec<&str> = args.split_whitespace().collect();
        match self.output("ip", &words, Duration::from_secs(5)) {
            Ok(_) => Ok(()),
            Err(e) => Err(io::Error::new(e.kind(), format!("ip {args}: {e}"))),
        }
    }

    /// Gives an interface addresses with their prefix lengths, and an MTU in octets (or leaves it
    /// as it is), and sets it up. IPv6 addresses can be used at once.
    ///
    /// # Errors
    /// Those of the kernel, as where there is no such interface.
    pub fn bring_up(
        &self,
        interface: &str,
        addresses: &[(IpAddr, u8)],
        mtu: Option<u32>,
    ) -> io::Result<()> {
        self.netns.run(|| {
            let netlink = Netlink::open()?;
            let index = netlink.link(interface)?.index;
            for &(ip, prefix) in addresses {
                netlink.add_address(index, ip, prefix, true)?;
            }
            let change = LinkChange {
                mtu,
                up: Some(true),
                ..LinkChange::default()
            };
            Ok(netlink.set_link(index, &change)?)
        })?
    }

    /// Moves one of its interfaces to another host, where it is down and has no address.
    ///
    /// # Errors
    /// Those of the kernel, as where there is no such interface.
    pub fn move_link(&self, interface: &str, to: &Self) -> io::Result<()> {
        self.netns.run(|| {
            let netlink = Netlink::open()?;
            let change = LinkChange {
                netns: Some(&to.netns),
                ..LinkChange::default()
            };
            Ok(netlink.set_link(netlink.link(interface)?.index, &change)?)
        })?
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Joins two hosts with a veth pair, whose ends have these names. They have the kernel's MTU of
/// 1500 octets and no address, and are down.
///
/// # Errors
/// Those of the kernel, as where a host has such an interface already.
pub fn link(one: (&Host, &str), other: (&Host, &str)) -> io::Result<()> {
    let netns = &other.0.netns;
    let add = || Ok(Netlink::open()?.add_veth(one.1, other.1, Some(netns))?);
    one.0.netns.run(add)?
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
