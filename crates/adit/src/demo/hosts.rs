//! Two hosts and the cable between them: network namespaces without names, joined by a veth pair.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::mpsc;
use std::thread;

use adit_io::netlink::{LinkChange, Netlink};
use adit_io::netns::{self, Netns};

use crate::failure::{Context, Failure, Result};

/// From the block for documentation: these hosts talk to nobody else.
pub(super) const LEFT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub(super) const RIGHT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const PREFIX: u8 = 24;
/// Both ends have the same name: they are in different namespaces.
const CABLE: &str = "cable";

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace and the thread that lives in it.
///
/// The thread lasts as long as the host: processes that it starts die with it (see `--die-with`).
pub(super) struct Host {
    jobs: mpsc::Sender<Job>,
}

impl Host {
    fn new(netns: Netns) -> Result<Self> {
        let (jobs, todo) = mpsc::channel::<Job>();
        let (entered, result) = mpsc::channel();
        thread::spawn(move || {
            let enter = netns.enter();
            let failed = enter.is_err();
            let _ = entered.send(enter);
            if !failed {
                todo.into_iter().for_each(|job| job());
            }
        });
        let ended = |_| io::Error::other("its thread ended");
        let entered = result.recv().map_err(ended).flatten();
        entered.context(|| "cannot enter a network namespace".into())?;
        Ok(Self { jobs })
    }

    /// Runs `work` on this host and waits for it.
    pub(super) fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        let job = Box::new(move || drop(done.send(work())));
        let sent = self.jobs.send(job).is_ok();
        match result.recv() {
            Ok(value) if sent => value,
            _ => panic!("a job on a demo host panicked"),
        }
    }
}

pub(super) struct Pair {
    pub(super) left: Host,
    pub(super) right: Host,
}

impl Pair {
    /// Must be called while the process has one thread: without privileges it becomes root in a user namespace.
    pub(super) fn new() -> Result<Self> {
        let (left, right) = namespaces()?;
        let cabling = || "cannot lay a cable between two network namespaces".to_owned();
        lay_cable(&left, &right).context(cabling)?;
        Ok(Self {
            left: Host::new(left)?,
            right: Host::new(right)?,
        })
    }
}

fn namespaces() -> Result<(Netns, Netns)> {
    let both = || -> io::Result<_> { Ok((Netns::new()?, Netns::new()?)) };
    let advice = |error: io::Error| {
        Failure::new(format!(
            "cannot make network namespaces for two hosts: {error}\nRun `sudo adit demo`; in a container, allow \
             CAP_SYS_ADMIN (docker run --privileged)."
        ))
    };
    match both() {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            netns::become_root_in_user_namespace().map_err(advice)?;
            both().map_err(advice)
        }
        result => result.map_err(advice),
    }
}

fn lay_cable(left: &Netns, right: &Netns) -> io::Result<()> {
    left.run(|| {
        Netlink::open()?.add_veth(CABLE, CABLE, Some(right))?;
        bring_up(CABLE, IpAddr::V4(LEFT), PREFIX, None)
    })??;
    right.run(|| bring_up(CABLE, IpAddr::V4(RIGHT), PREFIX, None))?
}

/// Gives an interface of the calling thread's namespace an address and sets it up.
pub(super) fn bring_up(name: &str, ip: IpAddr, prefix: u8, mtu: Option<u32>) -> io::Result<()> {
    let netlink = Netlink::open()?;
    let index = netlink.link(name)?.index;
    netlink.add_address(index, ip, prefix, true)?;
    netlink.set_link(
        index,
        &LinkChange {
            mtu,
            up: Some(true),
            ..LinkChange::default()
        },
    )?;
    Ok(())
}
