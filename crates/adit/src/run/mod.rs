//! `adit INTERFACE`: the process behind one interface.
//!
//! 1. bind the control socket, which is where a second process for the same interface is refused;
//! 2. open the TUN device;
//! 3. start the engine and answer on the socket;
//! 4. report readiness;
//! 5. wait until asked to end, or until the interface or the socket is gone.

mod answer;
mod background;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use adit_ctl::{BindError, ServerEvent, Serving, config, status, uapi};
use adit_engine::{Engine, Interface, Kernel, Settings, StopReason, VerboseLog};
use adit_io::Offloads;
use adit_io::tun::Tun;
use adit_netlink::{LinkChange, Netlink};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

pub(crate) use background::{notify_systemd, start as start_in_background};

use crate::cli::RunArgs;
use crate::demo::status_directory;
use crate::failure::{Context, Failure, Result, bail, say};

/// The MTU of an interface that this process makes, as of wireguard-go's: what fits 1500 bytes
/// behind IPv6, UDP and WireGuard's own header and tag. The TUN driver's 1500 would make two
/// fragments of each full packet.
const MTU: u32 = 1420;

/// `LOG_LEVEL`, as wireguard-go reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogLevel {
    /// Errors, and the terminal is left when running in the background.
    Unset,
    Silent,
    Error,
    Verbose,
}

impl LogLevel {
    fn from_env() -> Self {
        Self::parse(&std::env::var("LOG_LEVEL").unwrap_or_default())
    }

    fn parse(value: &str) -> Self {
        match value {
            "verbose" | "debug" => Self::Verbose,
            "error" => Self::Error,
            "silent" => Self::Silent,
            _ => Self::Unset,
        }
    }

    fn error(self, message: impl std::fmt::Display) {
        if self != Self::Silent {
            say!("adit: {message}");
        }
    }

    fn verbose(self, message: impl std::fmt::Display) {
        if self == Self::Verbose {
            say!("adit: {message}");
        }
    }
}

/// Why the process ends.
enum End {
    Signal(i32),
    Stopped(StopReason),
    SocketRemoved,
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Stopped(StopReason::InterfaceGone) => f.write_str("the interface was deleted"),
            Self::Stopped(reason) => write!(f, "{reason:?}"),
            Self::SocketRemoved => f.write_str("the control socket was removed"),
        }
    }
}

/// Whether something besides its name says that an interface is meant: it exists, wg-quick has a
/// file for it, or the process is started as no person types it.
pub(crate) fn is_meant(args: &RunArgs) -> bool {
    let name = &args.interface;
    let files = [
        format!("/sys/class/net/{name}"),
        format!("{}/{name}.conf", config::DIR),
    ];
    let variables = ["WG_TUN_FD", "WG_UAPI_FD", "WG_PROCESS_FOREGROUND"];
    args.foreground
        || files.iter().any(|file| Path::new(file).exists())
        || (variables.iter()).any(|variable| std::env::var_os(variable).is_some())
}

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let result = begin(args);
    if let Some(dir) = &args.control_dir {
        // The other process of a demo, or the demo itself, may need it still.
        let _ = std::fs::remove_dir(status_directory(dir));
        let _ = std::fs::remove_dir(dir);
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
    let name = args.interface.as_str();
    let level = LogLevel::from_env();
    let allowed = allowed_offloads(&args.disable_offload)?;
    // Caught from here on, so that an early one still removes the sockets' files.
    let signals = Signals::new([SIGTERM, SIGINT]).context(|| "cannot catch signals".into())?;

    let sockets = Sockets::bind(args, level)?;
    let tun = Arc::new(open_tun(name, allowed)?);
    let offloads = tun.offloads();
    let log: Arc<dyn Fn(&str) + Send + Sync> = Arc::new(move |message: &str| level.error(message));
    let log_verbose: VerboseLog = Arc::new(move |line| level.verbose(line));
    let settings = Settings {
        offloads,
        log,
        log_verbose: (level == LogLevel::Verbose).then_some(log_verbose),
    };
    let kernel = Kernel::new(Arc::clone(&tun), settings);
    let engine = Engine::start(1).and_then(|engine| engine.add(vec![tun], kernel, offloads));
    let engine = Arc::new(engine.context(|| format!("cannot start {name}"))?);

    let (end, ended) = mpsc::channel();
    let serving = sockets.serve(&engine, name, offloads, level, &end)?;
    let stopped = watch(&engine, signals, end);
    background::report_ready(args, level)?;
    level.verbose(format_args!("{name} is ready"));

    let result = match ended.recv() {
        Ok(End::Stopped(StopReason::Failed(error))) => {
            Err(error).context(|| format!("{name} failed"))
        }
        Ok(end) => {
            level.verbose(format_args!("{name} ends: {end}"));
            Ok(())
        }
        Err(_) => Err(Failure::State(format!(
            "{name} ends: nothing is left to wait for"
        ))),
    };
    // The interface goes first: when the sockets are gone, so is everything, and the name is free.
    engine.stop();
    let _ = stopped.join();
    drop(serving);
    result
}

/// The control socket and, unless it cannot be had, the status socket.
struct Sockets {
    control: uapi::Server,
    status: Option<status::Server>,
}

impl Sockets {
    fn bind(args: &RunArgs, level: LogLevel) -> Result<Self> {
        let name = args.interface.as_str();
        let control = match (inherited("WG_UAPI_FD")?, &args.control_dir) {
            (Some(fd), _) => uapi::Server::adopt(name, fd),
            (None, Some(dir)) => uapi::Server::bind_in(dir, name),
            (None, None) => uapi::Server::bind(name),
        };
        let control = control.map_err(|error| match &error {
            BindError::AlreadyRunning(_) if is_here(name) => Failure::State(format!(
                "{error}; end that one first (`adit down {name}`, or `ip link delete {name}`)"
            )),
            BindError::AlreadyRunning(path) => Failure::State(format!(
                "{error}, in another network namespace: end that one first (`pgrep -af adit` finds it, `nsenter -t PID -n \
                 adit down {name}` ends it), choose another name, or give this namespace a {} of its own",
                path.parent().unwrap_or(path).display()
            )),
            BindError::Io(_, _, cause) if cause.kind() == std::io::ErrorKind::PermissionDenied => {
                Failure::State(format!("{error}; run as root, or let this user write there"))
            }
            _ => Failure::State(error.to_string()),
        })?;
        let status = match &args.control_dir {
            Some(dir) => status::Server::bind_in(&status_directory(dir), name),
            None => status::Server::bind(name),
        };
        // The tunnel works without it.
        let status = status
            .inspect_err(|error| level.error(format_args!("no status for `adit show`: {error}")));
        Ok(Self {
            control,
            status: status.ok(),
        })
    }

    /// Answers until the result is dropped.
    fn serve(
        self,
        engine: &Arc<Interface>,
        name: &str,
        tun: Offloads,
        level: LogLevel,
        end: &mpsc::Sender<End>,
    ) -> Result<Vec<Serving>> {
        let failed = || "cannot serve a socket".to_owned();
        let (handle, removed) = (engine.clone(), end.clone());
        let on_event = move |event: ServerEvent<'_>| match event {
            ServerEvent::Refused(error) => level.error(format_args!("refused a request: {error}")),
            ServerEvent::Failed(error) => {
                level.error(format_args!("cannot accept clients: {error}"))
            }
            ServerEvent::Removed => drop(removed.send(End::SocketRemoved)),
        };
        let control = self
            .control
            .serve(move |request| answer::request(&handle, request), on_event);
        let mut serving = vec![control.context(failed)?];
        if let Some(status) = self.status {
            let (handle, name) = (engine.clone(), name.to_owned());
            // Nothing depends on the status socket: its loss ends nothing. It is removed first, so
            // that a program that waits for the control socket to be gone finds this one gone, too.
            serving.insert(
                0,
                status
                    .serve(move || answer::status(&handle, &name, tun), |_| {})
                    .context(failed)?,
            );
        }
        Ok(serving)
    }
}

/// Whether this network namespace has an interface of that name.
fn is_here(name: &str) -> bool {
    Netlink::open().is_ok_and(|netlink| netlink.link(name).is_ok())
}

/// Threads that sleep until something happens that ends the process. The result is the one that
/// waits for the engine: it ends when the interface is closed.
fn watch(engine: &Arc<Interface>, mut signals: Signals, end: mpsc::Sender<End>) -> JoinHandle<()> {
    let (engine, stopped) = (engine.clone(), end.clone());
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let _ = end.send(End::Signal(signal));
        }
    });
    std::thread::spawn(move || {
        let _ = stopped.send(End::Stopped(engine.wait()));
    })
}

fn open_tun(name: &str, offloads: Offloads) -> Result<Tun> {
    if let Some(fd) = inherited("WG_TUN_FD")? {
        return Tun::from_fd(fd, offloads).context(|| "cannot use WG_TUN_FD".into());
    }
    let netlink = Netlink::open();
    let existed = (netlink.as_ref()).is_ok_and(|netlink| netlink.link(name).is_ok());
    let tun = Tun::open(name, 1, offloads).context(|| format!("cannot create {name}"))?;
    let Some(tun) = tun.into_iter().next() else {
        bail!(State, "cannot create {name}: no TUN queue")
    };
    let (Ok(netlink), Ok(index)) = (netlink, tun.ifindex()) else {
        return Ok(tun);
    };
    // As in the kernel's own WireGuard, the interface sends nothing of its own accord. There may be
    // no IPv6.
    let quiet = LinkChange {
        no_link_local: true,
        ..LinkChange::default()
    };
    let _ = netlink.set_link(index, &quiet);
    if !existed {
        let mtu = LinkChange {
            mtu: Some(MTU),
            ..LinkChange::default()
        };
        let set = netlink.set_link(index, &mtu);
        set.context(|| format!("cannot create {name}"))?;
    }
    Ok(tun)
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

fn inherited_number(variable: &str) -> Result<Option<i32>> {
    match std::env::var(variable) {
        Err(_) => Ok(None),
        Ok(value) if value.is_empty() => Ok(None),
        Ok(value) => match value.parse() {
            Ok(number) if number >= 0 => Ok(Some(number)),
            _ => bail!(
                Mistake,
                "{variable} is `{value}`; expected the number of an open file descriptor"
            ),
        },
    }
}

#[cfg(test)]
mod tests;
