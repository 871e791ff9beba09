//! The new process.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_ctl::{status, uapi};
use adit_engine::{Interface, Resume, Sockets, importer};
use adit_io::helper::raise_priority;
use adit_io::tun::Tun;
use adit_io::udp::Udp;
use adit_sandbox::Starter;
use rustix::net::{AddressFamily, sockopt};

use super::super::LogLevel;
use super::super::events::EventSender;
use super::super::process::{Bound, Children, Prepared, ServingProcess};
use super::super::resolve::HandedNames;
use super::Channel;
use super::channel::{OtherProcess, parse};
use super::messages::{
    Hello, MAX_INTERFACES, MessageKind, Offer, Offered, StateMessage, check_names,
};
use super::terms::out_of_turn;
use crate::cli::RunArgs;
use crate::failure::{Context, Result, bail};

/// How long the old process may take over each message: what it read may have to leave first.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long all of them may take together: far longer than those of a million peers.
const TO_TAKE: Duration = Duration::from_secs(120);
/// How long the old process may take to end, of itself.
const TO_END: Duration = Duration::from_secs(5);

/// Goes on with all interfaces of the process `pid`, among which have to be those of the command
/// line. If that fails, this process has to end at once (exit(3)): nothing is taken down, because it
/// all belongs to the old process still.
pub(in crate::run) fn take(
    pid: i32,
    dir: &Path,
    args: &RunArgs,
    group: Option<u32>,
    (events, starter): (EventSender, &Starter),
) -> Result<(Children, Arc<ServingProcess>, Finish)> {
    let until = Instant::now() + TO_TAKE;
    let mut channel = Channel::connect(&dir.join(adit_io::UPGRADE_DIR), pid)?;
    channel.set_patience(PATIENCE)?;
    channel.tell(MessageKind::Hello, &Hello::new(true))?;
    let (offer, stderr): (Offer, _) = channel.hear_with(MessageKind::Offer)?;
    if offer.interfaces > MAX_INTERFACES {
        return Err(out_of_turn());
    }
    let group = group.or_else(|| offer.status_group.filter(|group| is_member(pid, *group)));
    let (children, process) = ServingProcess::of(events, &offer, args, group)?;
    if group.is_none() && offer.status_group.is_some() {
        let level = process.level();
        level.error(
            "the group of the status sockets is none of the old process, and is left out for further interfaces: state              it with ADIT_STATUS_GROUP",
        );
    }
    let count = offer.interfaces;
    let taken = starter.beside(|| take_all(&process, channel, args, count, until));
    let (tuns, old) = taken?;
    Ok((children, process, Finish { stderr, tuns, old }))
}

/// Their TUNs, and the old process.
type TakenOver = (Vec<std::sync::Weak<Tun>>, OtherProcess);

/// Takes all interfaces, as many as were offered.
fn take_all(
    process: &Arc<ServingProcess>,
    mut channel: Channel,
    args: &RunArgs,
    count: usize,
    until: Instant,
) -> Result<TakenOver> {
    let mut prepared: Vec<Ready> = Vec::new();
    for _ in 0..count {
        check_time(until)?;
        let (offered, fds) = channel.hear_with(MessageKind::Interface)?;
        prepared.push(prepare(process, &offered, fds)?);
    }
    let names: Vec<String> = (prepared.iter())
        .map(|(prepared, _)| prepared.name.clone())
        .collect();
    check_names(&names)?;
    if let Some(missing) = args.interfaces.iter().find(|name| !names.contains(name)) {
        let pid = channel.peer().pid;
        bail!(State, "process {pid} hands over no interface {missing}");
    }
    let raised = raise_priority();
    channel.tell(MessageKind::Ready, &())?;

    let mut taken = Vec::new();
    for one in prepared {
        taken.push(take_state(process, &mut channel, one, until)?);
    }
    channel.tell(MessageKind::Complete, &())?;
    let () = channel.hear(MessageKind::Go)?;
    for TakenInterface { interface, .. } in &taken {
        interface.resume(Resume::AsItWas);
    }
    // Whether the old process is still there or not: it will not go on.
    let _ = channel.tell(MessageKind::Running, &());
    drop(raised);
    let mut tuns = Vec::new();
    for one in taken {
        let TakenInterface {
            interface,
            tun,
            prepared,
            listeners,
            endpoints,
        } = one;
        tuns.push(Arc::downgrade(&tun));
        let served = listeners.bind(process, &prepared.name);
        process
            .resolver
            .import(&prepared.name, &interface, endpoints);
        process.install(interface, tun, prepared, served)?;
    }
    Ok((tuns, channel.into_peer()))
}

/// Each message may take its time, but not all of them.
fn check_time(until: Instant) -> Result<()> {
    if Instant::now() > until {
        bail!(State, "the other process takes too long");
    }
    Ok(())
}

/// Whether a process is a member of a group, as the kernel says. The new process, which may join any,
/// gets what the old one has.
fn is_member(pid: i32, group: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let fields = status.lines().filter_map(|line| {
        line.strip_prefix("Groups:")
            .or_else(|| line.strip_prefix("Gid:"))
    });
    let mut groups = fields.flat_map(str::split_whitespace);
    groups.any(|known| known.parse() == Ok(group))
}

/// The steps that are left when the new process runs.
pub(crate) struct Finish {
    /// The old process's standard error.
    stderr: Vec<OwnedFd>,
    tuns: Vec<std::sync::Weak<Tun>>,
    old: OtherProcess,
}

impl Finish {
    /// The log goes where that of the old process went, what `say` says first, queues are limited where the old process's
    /// limit is of another version, and the old process ends.
    pub(in crate::run) fn finish(self, level: LogLevel, say: impl FnOnce()) {
        if let Some(stderr) = self.stderr.first() {
            let _ = rustix::stdio::dup2_stderr(stderr);
        }
        say();
        for tun in self.tuns.iter().filter_map(std::sync::Weak::upgrade) {
            tun.limit_queue();
        }
        // It has the same queues and sockets, and would keep them if an intruder had it stay.
        // Without a handle (before Linux 5.3), that cannot be seen.
        if self.old.process.is_some() && !self.old.end_after(TO_END) {
            level.error(format_args!(
                "the old process, {}, does not end, and has the queues and sockets still: kill it",
                self.old.pid
            ));
        }
    }
}

/// Listening sockets that the old process bound.
struct Listeners {
    control: OwnedFd,
    status: Option<OwnedFd>,
}

impl Listeners {
    fn new(mut fds: Vec<OwnedFd>, has_status: bool) -> Result<Self> {
        let status = match has_status {
            true => fds.pop(),
            false => None,
        };
        let (Some(control), true) = (fds.pop(), fds.is_empty()) else {
            return Err(out_of_turn());
        };
        for fd in status.iter().chain([&control]) {
            if sockopt::socket_acceptconn(fd) != Ok(true) {
                bail!(
                    State,
                    "a control socket that was handed over does not listen"
                );
            }
        }
        Ok(Self { control, status })
    }

    /// The sockets as this process's. Clients learn from the kernel that it is.
    fn bind(self, process: &ServingProcess, name: &str) -> Bound {
        let control = match &process.control_dir {
            Some(dir) => uapi::UapiServer::adopt_in(dir, name, self.control),
            None => uapi::UapiServer::adopt(name, self.control),
        };
        let dir = process.status_dir();
        let status = self.status;
        let status = status.map(|fd| status::StatusServer::adopt_in(&dir, name, fd));
        Bound {
            control: control.map_err(|error| error.to_string()),
            status: status.and_then(std::result::Result::ok),
        }
    }
}

type Ready = (Prepared, Listeners);

fn prepare(process: &ServingProcess, offered: &Offered, mut fds: Vec<OwnedFd>) -> Result<Ready> {
    let name = &offered.name;
    // Before it becomes a part of a path.
    check_names(std::slice::from_ref(name))?;
    let listeners = 1 + usize::from(offered.has_status);
    let Some(at) = fds.len().checked_sub(listeners) else {
        return Err(out_of_turn());
    };
    let listeners = Listeners::new(fds.split_off(at), offered.has_status)?;
    let tun = Tun::take_over(offered.tun(), fds).context(|| format!("cannot go on with {name}"))?;
    let names = offered
        .names
        .iter()
        .filter_map(|(key, name)| Some((adit_ctl::keys::public_from_base64(key)?, name.clone())));
    let prepared = process.prepare(name, Arc::new(tun), names.collect(), offered.started)?;
    Ok((prepared, listeners))
}

/// An interface that is to resume.
struct TakenInterface {
    interface: Arc<Interface>,
    tun: Arc<Tun>,
    prepared: Prepared,
    listeners: Listeners,
    endpoints: HandedNames,
}

fn take_state(
    process: &ServingProcess,
    channel: &mut Channel,
    (mut prepared, listeners): Ready,
    until: Instant,
) -> Result<TakenInterface> {
    let failed = {
        let name = prepared.name.clone();
        move || format!("cannot go on with {name}")
    };
    let mut import = importer();
    let (mut state, fds) = loop {
        check_time(until)?;
        match channel.receive()? {
            (MessageKind::Record, record, _) => import.take(&record).context(&failed)?,
            (MessageKind::State, body, fds) => break (parse::<StateMessage>(&body)?, fds),
            _ => return Err(out_of_turn()),
        }
    };
    let device = import
        .finish(adit_proto::Time::default())
        .context(&failed)?;
    let mut sockets = Sockets::new(None, None, state.port);
    for (known, fd) in state.sockets.iter().chain(&state.further).zip(fds) {
        let is_v6 = sockopt::socket_domain(&fd) == Ok(AddressFamily::INET6);
        let socket = Udp::take_over(fd, known.state()).context(&failed)?;
        if is_v6 != known.v6 {
            return Err(out_of_turn());
        }
        sockets.add(known.v6, socket);
    }
    let endpoints = std::mem::take(&mut state.endpoints);
    let tun = Arc::clone(&prepared.tun);
    let kernel = prepared.kernel.take().ok_or_else(out_of_turn)?;
    let taken = process.engine.take_over(
        Arc::clone(&tun),
        kernel,
        tun.offloads(),
        device,
        &state.interface(),
        sockets,
    );
    Ok(TakenInterface {
        interface: Arc::new(taken.context(&failed)?),
        tun,
        prepared,
        listeners,
        endpoints,
    })
}
