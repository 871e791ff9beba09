//! `adit INTERFACE...`: the process behind one interface or several.
//!
//! 1. start the processes that look names up (`resolve`) and have the rights (`child`), give up
//!    rights, then add each interface (`process`);
//! 2. report readiness;
//! 3. wait until asked to end, or until every interface or its socket is gone.

pub(crate) mod answer;
pub(crate) mod background;
pub(crate) mod child;
pub(crate) mod control_events;
pub(crate) mod events;
pub(crate) mod hand_over;
pub(crate) mod level;
pub(crate) mod names;
mod process;
pub(crate) mod resolve;
pub(crate) mod watch;

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Weak};

use adit_ctl::uapi::{ClientError, UapiClient};
use adit_ctl::{Origin, config, status};
use adit_io::Offloads;
use adit_sandbox::Starter;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};

use self::background::Notifier;
pub(crate) use background::{notify_systemd, start as start_in_background, start_program};

use self::events::{MainEvent, MainEvents};
use self::hand_over::{HandOverListener, Me, give};
pub(crate) use self::process::join_group;
use self::process::{Children, Given, ServingProcess};
use crate::cli::RunArgs;
use crate::demo::status_directory;
use crate::failure::{Context, Failure, Result, bail, say};
use crate::run::background::inherited_number;
use crate::run::level::LogLevel;

/// Whether something besides its name says that an interface is meant: it exists, wg-quick has a
/// file for it, or the process is started as no person types it, such as by wg-quick, which takes it
/// for wireguard-go.
pub(crate) fn is_meant(args: &RunArgs) -> bool {
    let Some(name) = args.interfaces.first() else {
        return false;
    };
    let files = [
        format!("/sys/class/net/{name}"),
        format!("{}/{name}.conf", config::DIR),
    ];
    let variables = ["WG_TUN_FD", "WG_UAPI_FD", "WG_PROCESS_FOREGROUND"];
    let is_called = |program: &[u8], name: &str| {
        program.rsplit(|byte| *byte == b'/').next() == Some(name.as_bytes())
    };
    let own = std::env::args_os().next().unwrap_or_default();
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_pid());
    let parent = std::fs::read(format!("/proc/{parent}/cmdline")).unwrap_or_default();
    let mut words = parent.split(|byte| *byte == 0);
    !is_called(own.as_encoded_bytes(), "adit")
        || words.any(|word| is_called(word, "wg-quick"))
        || args.foreground
        || files.iter().any(|file| Path::new(file).exists())
        || (variables.iter()).any(|variable| std::env::var_os(variable).is_some())
}

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    if let Some(with) = &args.join {
        return args.interfaces.iter().try_for_each(|name| join(with, name));
    }
    let result = begin(args);
    if let Some(dir) = &args.control_dir {
        // The other process of a demo, or the demo itself, may need it still.
        // A helper has removed it already.
        adit_io::helper::files::leave(dir, &status_directory(dir));
    }
    result
}

fn begin(args: &RunArgs) -> Result<()> {
    if let Some(parent) = args.die_with {
        background::die_with(parent)?;
    }
    if !args.foreground && std::env::var("WG_PROCESS_FOREGROUND").as_deref() != Ok("1") {
        return start_in_background(args).map(drop);
    }
    // Started as /proc/self/exe, it would be `exe` for top, pgrep and killall.
    let _ = rustix::thread::set_name(c"adit");
    if args.background {
        background::leave_session();
        let given = [
            inherited_number("WG_TUN_FD")?,
            inherited_number("WG_UAPI_FD")?,
        ];
        let given: Vec<i32> = given.into_iter().flatten().collect();
        adit_io::close_inherited(&given).context(|| "cannot close what others have open".into())?;
    }
    serve(args)
}

fn serve(args: &RunArgs) -> Result<()> {
    allow_descriptors();
    adit_io::map_large_buffers();
    let (me, parent) = (Me::new(args, Notifier::new()), parent());
    let null = background::null(args.background)?;
    adit_sandbox::register("adit");
    // Signals are caught from here on, so that an early one still removes the sockets' files.
    let (events, sender) = MainEvents::new()?;
    let starter = {
        let sender = sender.clone();
        Starter::here(move || sender.wake())
    };
    let (_children, process, finish) = match args.take_over {
        Some(pid) => take_over(args, pid, sender, &starter)?,
        None => start(args, sender, &starter)?,
    };
    let level = process.level();
    // Without it the process cannot be replaced by another one without a handshake.
    let listener = HandOverListener::bind(&process.status_dir())
        .inspect_err(|failure| level.verbose(format_args!("no hand-over: {failure}")))
        .ok();
    // As long as the parent waits.
    let by = args.take_over.map(|old| (old, parent.caller()));
    let reported = background::report_ready(
        args.take_over.is_none(),
        null.as_ref(),
        me.notifier(),
        level,
    );
    match finish {
        None => reported?,
        // Nobody else has the interfaces any more.
        Some(finish) => {
            reported.unwrap_or_else(|failure| level.error(failure));
            let say = || {
                if let Some((old, by)) = &by {
                    process.say_upgraded(*old, by);
                }
            };
            starter.beside(|| finish.finish(level, say));
        }
    }
    wait(&process, &me, events, listener, starter)
}

/// A process that serves its interfaces, and what is left to be done of a hand-over.
type BegunProcess = (Children, Arc<ServingProcess>, Option<hand_over::Finish>);

/// The parent, which runs for the same user.
fn parent() -> Origin {
    let pid = rustix::process::getppid().map_or(0, Pid::as_raw_pid);
    let uid = rustix::process::getuid().as_raw();
    Origin { pid, uid }
}

/// Serves interfaces that no process serves yet.
fn start(args: &RunArgs, sender: events::EventSender, starter: &Starter) -> Result<BegunProcess> {
    let level = LogLevel::from_env();
    let allowed = allowed_offloads(&args.disable_offload)?;
    let threads = args.threads.settings()?;
    let given = Given {
        tun: inherited("WG_TUN_FD")?,
        control: inherited("WG_UAPI_FD")?,
    };
    if args.interfaces.len() > 1 && (given.tun.is_some() || given.control.is_some()) {
        bail!(
            Mistake,
            "WG_TUN_FD and WG_UAPI_FD are for one interface, and these are {}",
            args.interfaces.len()
        );
    }
    let group = status_group(args.status_group.as_deref())?;
    let settings = (allowed, threads);
    let (children, process) =
        ServingProcess::new(sender, level, settings, args, (group, args.names))?;
    starter.beside(|| add(&process, &args.interfaces, given))?;
    Ok((children, process, None))
}

/// Adds these interfaces; what others opened is for the first.
fn add(process: &Arc<ServingProcess>, interfaces: &[String], given: Given) -> Result<()> {
    let mut given = Some(given);
    let mut tuns = Vec::new();
    for name in interfaces {
        let tun = process.add(name, given.take().unwrap_or_default())?;
        tuns.push(Arc::downgrade(&tun));
    }
    let limit = move || {
        tuns.iter()
            .filter_map(Weak::upgrade)
            .for_each(|tun| tun.limit_queue())
    };
    match interfaces.len() {
        1 => limit(),
        // It would take longer than anybody waits.
        _ => drop(std::thread::spawn(limit)),
    }
    Ok(())
}

/// Goes on with the interfaces of the process `pid`.
fn take_over(
    args: &RunArgs,
    pid: i32,
    sender: events::EventSender,
    starter: &Starter,
) -> Result<BegunProcess> {
    let group = status_group(args.status_group.as_deref())?;
    // Until the other process has let go, what this one has is not its own: it must take nothing
    // down when it fails.
    std::panic::set_hook(Box::new(|panic| {
        say!("adit: {panic}");
        std::process::exit(1);
    }));
    let dir = args.control_dir.as_deref().map(status_directory);
    let dir = dir.unwrap_or_else(|| status::DIR.into());
    let taken = hand_over::take(pid, &dir, args, group, (sender, starter));
    let (children, process, finish) = taken.unwrap_or_else(|failure| {
        failure.report();
        std::process::exit(1);
    });
    drop(std::panic::take_hook());
    let level = process.level();
    level.verbose(format_args!("goes on in place of process {pid}"));
    Ok((children, process, Some(finish)))
}

const HELPER_ENDED: &str = "the process that has the rights has ended";

/// Waits until the process is to end, and meanwhile starts threads.
fn wait(
    process: &ServingProcess,
    me: &Me,
    mut events: MainEvents,
    listener: Option<HandOverListener>,
    starter: Starter,
) -> Result<()> {
    let level = process.level();
    let mut failed = Ok(());
    loop {
        match events.next(&starter, listener.as_ref())? {
            MainEvent::Signal(signal) => process.stop_all(&format!("signal {signal}")),
            MainEvent::SocketRemoved(name) => process.stop(&name, "the control socket was removed"),
            MainEvent::Ended(name) => match starter.beside(|| process.bury(&name)) {
                (false, result) => return failed.and(result),
                (true, Ok(())) => {}
                (true, Err(failure)) => level.error(failure),
            },
            // Who watches over this process starts it again, with another helper.
            MainEvent::HelperEnded if me.is_supervised() => {
                process.stop_all(HELPER_ENDED);
                failed = Err(Failure::State(HELPER_ENDED.into()));
            }
            MainEvent::HelperEnded => level.error(format_args!(
                "{HELPER_ENDED}: traffic goes on; further interfaces, ports, marks and devices in other namespaces fail \
                 until `adit upgrade` has a new process go on"
            )),
            MainEvent::HandOver(mut channel) => {
                match starter.beside(|| give(process, me, &mut channel)) {
                    Ok(None) => {}
                    Ok(Some(status)) => {
                        level.verbose("another process goes on");
                        drop(listener);
                        // Nothing is taken down.
                        std::process::exit(status);
                    }
                    Err(failure) => level.error(format_args!("not handed over: {failure}")),
                }
            }
        }
    }
}

/// The group whose members may read the status: of the command line or the environment, by name
/// or number.
pub(crate) fn status_group(given: Option<&str>) -> Result<Option<u32>> {
    let from_env = || std::env::var("ADIT_STATUS_GROUP").ok();
    let Some(group) = given.map(str::to_owned).or_else(from_env) else {
        return Ok(None);
    };
    if group.is_empty() {
        return Ok(None);
    }
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    match group.parse().ok().or_else(|| group_id(&groups, &group)) {
        Some(id) => Ok(Some(id)),
        None => bail!(
            Mistake,
            "there is no group {group} in /etc/group: make it with `groupadd --system {group}`, or state its number"
        ),
    }
}

/// The number of a group, from the text of group(5).
fn group_id(groups: &str, name: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let is_it = fields.next() == Some(name);
        fields.nth(1).filter(|_| is_it)?.parse().ok()
    })
}

/// An interface has some ten descriptors open. Nothing here uses select(2), for which the usual
/// limit is that low.
pub(crate) fn allow_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: maximum,
        maximum,
    };
    // Without it, fewer interfaces can be served.
    let _ = setrlimit(Resource::Nofile, all);
}

/// Has the process that serves the interface `with` serve `name`, too.
pub(crate) fn join(with: &str, name: &str) -> Result<()> {
    let added = UapiClient::connect(with)
        .map_err(ClientError::Io)
        .and_then(|mut client| client.add(name));
    added.map_err(|error| {
        Failure::State(match error {
            ClientError::Explained(why) => why,
            error if error.is_unserved() => {
                format!("no process serves {with}: start one with `adit run {with}`")
            }
            ClientError::Io(e) if e.kind() == ErrorKind::UnexpectedEof => {
                format!("the process of {with} is not Adit, and serves no further interface")
            }
            ClientError::Refused(_) => {
                format!("the process of {with} serves no further interface: it is no Adit, or an older one")
            }
            error => format!("cannot have the process of {with} serve {name}: {error}"),
        })
    })
}

/// The offloads that remain after `--disable-offload` and ADIT_DISABLE_OFFLOADS.
pub(crate) fn allowed_offloads(disabled: &[String]) -> Result<Offloads> {
    let from_env = std::env::var("ADIT_DISABLE_OFFLOADS").unwrap_or_default();
    let names = from_env
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty());
    let mut offloads = Offloads::default();
    for name in disabled.iter().map(String::as_str).chain(names) {
        offloads
            .disable(name)
            .context(|| "cannot disable an offload".into())?;
    }
    Ok(offloads)
}

/// The descriptor that the variable names, if it is set.
fn inherited(variable: &str) -> Result<Option<OwnedFd>> {
    let number = inherited_number(variable)?;
    let take =
        |number| adit_io::duplicate(number).context(|| format!("cannot use {variable}={number}"));
    number.map(take).transpose()
}

#[cfg(test)]
mod tests;
