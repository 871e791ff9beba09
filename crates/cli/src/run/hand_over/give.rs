//! The old process.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use adit_engine::{Interface, Resume};
use adit_io::helper::raise_priority;

use super::super::background::Notifier;
use super::super::process::{Running, ServingProcess};
use super::messages::{
    Description, Hello, MessageKind, Offer, Offered, Refused, SocketRecord, StateMessage, Switches,
};
use super::{Channel, common_format, own_namespace};
use crate::cli::RunArgs;
use crate::failure::{Context, Failure, Result, bail};

/// How long a new process may prepare itself, while all goes on.
const TO_PREPARE: Duration = Duration::from_secs(15);
/// How long it may take over each message while packets wait: long enough for a million peers.
const TO_ANSWER: Duration = Duration::from_secs(5);
/// How long what was read may take to leave.
const TO_DRAIN: Duration = Duration::from_secs(1);

/// This process as its successor sees it.
pub(crate) struct Me {
    /// Device and inode of its program, from when it began.
    program: (u64, u64),
    supervisor: Option<i32>,
    /// Towards systemd, if it is the main process of a unit.
    notifier: Notifier,
    refuses: Option<String>,
    namespace: Option<u64>,
}

impl Me {
    pub(crate) fn new(args: &RunArgs, notifier: Notifier) -> Self {
        let program = std::fs::metadata("/proc/self/exe");
        let stays = !args.background && args.die_with.is_none() && !notifier.is_asked_for();
        Self {
            program: program.map_or((0, 0), |found| (found.dev(), found.ino())),
            supervisor: args.die_with,
            notifier,
            namespace: own_namespace(),
            refuses: stays.then(|| {
                "it runs in the foreground, and whoever started it would take it for ended: start it anew instead".into()
            }),
        }
    }

    pub(crate) fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    /// Something restarts the process when it fails.
    pub(crate) fn is_supervised(&self) -> bool {
        self.supervisor.is_some() || self.notifier.is_asked_for()
    }

    fn describe(&self, process: &ServingProcess) -> Description {
        Description {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: rustix::process::getpid().as_raw_pid(),
            program: self.program,
            supervisor: self.supervisor,
            interfaces: process.interfaces().running.keys().cloned().collect(),
            environment: Description::own_environment(),
            refuses: self.refuses.clone(),
            namespace: self.namespace,
        }
    }
}

/// Answers a process that connected. If that goes on with the interfaces, this one has to end with
/// the status that is returned, and to leave everything as it is. It is 1 if that process may not go on.
pub(in crate::run) fn give(
    process: &ServingProcess,
    me: &Me,
    channel: &mut Channel,
) -> Result<Option<i32>> {
    channel.set_patience(TO_ANSWER)?;
    // Some look only whether anybody listens.
    let Ok(hello) = channel.hear::<Hello>(MessageKind::Hello) else {
        return Ok(None);
    };
    if !hello.takes {
        let description = me.describe(process);
        channel.tell(MessageKind::Description, &description)?;
        return Ok(None);
    }
    let given = common_format(&hello).and_then(|_| match &me.refuses {
        Some(why) => Err(Failure::State(why.clone())),
        None => give_all(process, channel),
    });
    let status = given.inspect_err(|failure| {
        let why = failure.to_string();
        // It may be gone.
        let _ = channel.tell(MessageKind::Refused, &Refused { why });
    })?;
    // systemd takes it from the main process alone.
    let _ = me.notifier.tell(&format!("MAINPID={}", channel.peer().pid));
    Ok(Some(status))
}

/// Returns the status that this process has to end with.
fn give_all(process: &ServingProcess, channel: &mut Channel) -> Result<i32> {
    // It has to be ended if it does not say that it goes on.
    if channel.peer().process.is_none() {
        bail!(
            State,
            "the kernel gives no handle of the new process (pidfd_open(2), Linux 5.3): the old process goes on; to change to \
             the other program, restart it, and handshakes follow"
        );
    }
    // None comes or goes meanwhile.
    let interfaces = process.interfaces();
    if interfaces.ending {
        bail!(State, "the process ends");
    }
    let offer = Offer {
        interfaces: interfaces.running.len(),
        ..process.offer()
    };
    let stderr = std::io::stderr();
    channel.tell_with(MessageKind::Offer, &offer, &[stderr.as_fd()])?;
    for (name, running) in &interfaces.running {
        offer_one(channel, name, running)?;
    }
    channel.set_patience(TO_PREPARE)?;
    let () = channel.hear(MessageKind::Ready)?;
    let _raised = raise_priority();
    channel.set_patience(TO_ANSWER)?;

    let all: Vec<&Interface> = interfaces
        .running
        .values()
        .map(|running| &*running.interface)
        .collect();
    let mut paused = Paused {
        interfaces: Vec::new(),
        how: Resume::AsItWas,
    };
    for interface in all {
        interface
            .pause(TO_DRAIN)
            .context(|| "cannot hand over".into())?;
        paused.interfaces.push(interface);
    }
    for (name, running) in &interfaces.running {
        give_state(process, channel, name, &running.interface)?;
    }
    let () = channel.hear(MessageKind::Complete)?;
    // From here on the sessions are not this process's.
    paused.how = Resume::WithoutSessions;
    let runs = channel
        .tell(MessageKind::Go, &())
        .and_then(|()| channel.hear::<()>(MessageKind::Running));
    let status = match runs {
        Ok(()) => 0,
        // Two processes must not read from the same queues.
        Err(failure) if channel.peer().end_after(Duration::ZERO) => return Err(failure),
        Err(failure) => {
            process.level().error(format_args!(
                "{failure}; process {} was to go on, and does not end: it has the interfaces, and this process ends",
                channel.peer().pid
            ));
            1
        }
    };
    paused.interfaces.clear();
    Ok(status)
}

/// Interfaces that go on when this is dropped.
struct Paused<'a> {
    interfaces: Vec<&'a Interface>,
    how: Resume,
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        for interface in &self.interfaces {
            interface.resume(self.how);
        }
    }
}

fn offer_one(channel: &mut Channel, name: &str, running: &Running) -> Result<()> {
    let (tun, mut fds) = running.tun.state();
    let listeners = || running.serving.iter().rev().filter_map(|it| it.listener());
    fds.extend(listeners());
    let offered = Offered {
        name: name.to_owned(),
        offloads: Switches::new(tun.offloads),
        fair: tun.fair,
        queues: tun.queues,
        limit: tun.limit,
        has_other_queues: tun.has_other_queues,
        has_status: listeners().count() > 1,
        names: running.names.all(),
        started: running.started,
    };
    channel.tell_with(MessageKind::Interface, &offered, &fds)
}

fn give_state(
    process: &ServingProcess,
    channel: &mut Channel,
    name: &str,
    interface: &Interface,
) -> Result<()> {
    let failed = || "cannot hand over".to_owned();
    let state = interface.export(|record| {
        let sent = channel.send_record(&record);
        sent.map_err(|failure| std::io::Error::other(failure.to_string()))
    });
    let state = state.context(failed)?;
    let sockets = interface.sockets().context(failed)?;
    let known = sockets.iter().map(|it| SocketRecord::new(it.v6, it.state));
    let state = StateMessage::new(state, process.resolver.export(name), known.collect());
    let fds: Vec<BorrowedFd<'_>> = sockets.iter().map(|it| it.fd.as_fd()).collect();
    channel.tell_with(MessageKind::State, &state, &fds)
}
