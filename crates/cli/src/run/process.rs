//! A process and the interfaces that it serves.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adit_ctl::{BindError, Caller, Service, Serving, status, uapi};
use adit_engine::{
    Engine, Interface, LinuxPlatform, Settings, StopReason, ThreadSettings, VerboseLog, Watches,
};
use adit_io::Offloads;
use adit_io::helper;
use adit_io::tun::Tun;
use adit_netlink::netns::Netns;
use adit_proto::config::PublicKey;
use rustix::process::{Resource, getrlimit};

use super::child::Guard;
use super::events::{EventSender, MainEvent};
use super::hand_over::{Offer, Switches};
use super::names::Names;
use super::resolve::Resolver;
use super::watch::{self, Looks};
use super::{LogLevel, answer};
use crate::cli::RunArgs;
use crate::failure::{Context, Failure, Result, bail};
pub(crate) use helping::join_group;
use helping::{Helping, folders, status_dir};

/// The MTU of an interface that this process makes, as of wireguard-go's: what fits 1500 bytes
/// behind IPv6, UDP and WireGuard's own header and tag. The TUN driver's 1500 would make two
/// fragments of each full packet.
const MTU: u32 = 1420;

mod helping;
mod serve;

/// The process: what all of its interfaces share.
pub(super) struct ServingProcess {
    pub(super) engine: Engine<Arc<Tun>, LinuxPlatform>,
    watches: Watches,
    events: EventSender,
    level: LogLevel,
    allowed: Offloads,
    threads: ThreadSettings,
    gateway_id: Option<u8>,
    /// Where the sockets stand, if not below /var/run.
    pub(super) control_dir: Option<PathBuf>,
    /// The group that may read the status.
    status_group: Option<u32>,
    pub(super) resolver: Arc<Resolver>,
    looks: Arc<Looks>,
    interfaces: Mutex<Interfaces>,
    /// Threads that close what interfaces had which have ended.
    closing: Mutex<Vec<JoinHandle<()>>>,
    /// Dropped after the sockets that it serves: its thread could not remove their files.
    service: Service,
}

/// Processes that go with this one: the main thread ends them after all else.
pub(super) struct Children {
    _resolving: Option<Guard>,
    _helping: Option<Helping>,
}

#[derive(Default)]
pub(super) struct Interfaces {
    pub(super) running: BTreeMap<String, Running>,
    /// The process ends: it takes no further interface.
    pub(super) ending: bool,
}

/// An interface, and its sockets.
pub(super) struct Running {
    pub(super) interface: Arc<Interface>,
    /// Closed last: that takes the kernel some 30 ms, which no thread that has work can spare.
    pub(super) tun: Arc<Tun>,
    /// Threads that serve sockets: that of the control socket is last.
    pub(super) serving: Vec<Serving>,
    pub(super) names: Arc<Names>,
    events: Arc<status::Events>,
    /// Since when it is served: seconds since the Unix epoch.
    pub(super) started: u64,
}

/// The parts of an interface that come from another process.
pub(super) struct Prepared {
    pub(super) name: String,
    pub(super) tun: Arc<Tun>,
    pub(super) kernel: Option<LinuxPlatform>,
    names: Arc<Names>,
    events: Arc<status::Events>,
    started: u64,
}

/// Descriptors that another process opened for an interface.
#[derive(Default)]
pub(super) struct Given {
    pub(super) tun: Option<OwnedFd>,
    pub(super) control: Option<OwnedFd>,
}

impl ServingProcess {
    pub(super) fn new(
        events: EventSender,
        level: LogLevel,
        (allowed, threads): (Offloads, ThreadSettings),
        args: &RunArgs,
        (status_group, names): (Option<u32>, bool),
    ) -> Result<(Children, Arc<Self>)> {
        let (control_dir, sandbox) = (args.control_dir.clone(), !args.no_sandbox);
        // A process with a sandbox can start no program, nor begin one once it has threads.
        let (resolver, resolving) = Resolver::start(level, sandbox, names)?;
        let mut helping = None;
        if sandbox {
            // The helper has the group, too.
            join_group(status_group);
            let folders = folders(control_dir.as_deref(), status_group);
            helping = Some(Helping::start(folders, devices_of_user(args))?);
            adit_engine::open_host_files();
            Netns::stay().context(|| "cannot begin the sandbox: is /proc there?".into())?;
            adit_sandbox::begin()
                .context(|| "cannot begin the sandbox (--no-sandbox does without)".into())?;
        }
        let failed = || "cannot start the threads".to_owned();
        let process = Arc::new(Self {
            engine: Engine::with(&threads).context(failed)?,
            threads,
            gateway_id: args.gateway.gateway_id,
            watches: Watches::default(),
            service: Service::start().context(failed)?,
            events,
            level,
            allowed,
            control_dir,
            status_group,
            resolver,
            looks: Arc::default(),
            interfaces: Mutex::default(),
            closing: Mutex::default(),
        });
        let children = Children {
            _resolving: resolving,
            _helping: helping,
        };
        Ok((children, process))
    }

    /// Serves one more interface:
    ///
    /// 1. binds its control socket, which is where a second process for the same interface is
    ///    refused;
    /// 2. opens the TUN device;
    /// 3. adds the interface to the engine and answers on the socket.
    ///
    /// The queue of the TUN is still to be limited.
    pub(super) fn add(self: &Arc<Self>, name: &str, given: Given) -> Result<Arc<Tun>> {
        let sockets = Bound::bind(name, given.control, self)?;
        let number = self.interfaces().running.len();
        let shares = number < MAX_FAIR && may_open(DESCRIPTORS_OF_FAIR * (number as u64 + 1));
        let tun = Arc::new(open_tun(name, given.tun, shares, self.allowed)?);
        let mut prepared = self.prepare(name, Arc::clone(&tun), Vec::new(), answer::now())?;
        let offloads = tun.offloads();
        let interface = match prepared.kernel.take() {
            Some(kernel) => self.engine.add(Arc::clone(&tun), kernel, offloads),
            None => unreachable!("it was just prepared"),
        };
        let interface = Arc::new(interface.context(|| format!("cannot start {name}"))?);
        self.install(interface, Arc::clone(&tun), prepared, sockets)?;
        Ok(tun)
    }

    /// What the engine and the sockets of an interface need besides the TUN.
    pub(super) fn prepare(
        &self,
        name: &str,
        tun: Arc<Tun>,
        known: Vec<(PublicKey, String)>,
        started: u64,
    ) -> Result<Prepared> {
        let names = Arc::new(Names::default());
        names.set(known);
        let events = status::Events::new(name);
        let settings = Settings {
            listener: Some(watch::listener(name, &events, &names, &self.resolver)),
            ..self.settings(name, tun.offloads(), &names)
        };
        let kernel = LinuxPlatform::new(Arc::clone(&tun), settings, &self.watches);
        Ok(Prepared {
            name: name.to_owned(),
            tun,
            kernel: Some(kernel.context(|| format!("cannot start {name}"))?),
            names,
            events,
            started,
        })
    }

    /// Answers for an interface that the engine has, until it ends.
    pub(super) fn install(
        self: &Arc<Self>,
        interface: Arc<Interface>,
        tun: Arc<Tun>,
        prepared: Prepared,
        sockets: Bound,
    ) -> Result<()> {
        self.looks.watch(&interface, &prepared.events, false);
        // Once they are served, they end only with the thread that serves them: it may be the one
        // that waits for this.
        let mut interfaces = self.interfaces();
        if interfaces.ending {
            bail!(State, "the process ends");
        }
        let serving = sockets.serve(self, &interface, &prepared)?;
        let name = prepared.name;
        let running = Running {
            interface: Arc::clone(&interface),
            tun,
            serving,
            names: prepared.names,
            events: prepared.events,
            started: prepared.started,
        };
        interfaces.running.insert(name.clone(), running);
        drop(interfaces);
        self.level.verbose(format_args!("{name} is ready"));
        let events = self.events.clone();
        interface.on_end(move || events.send(MainEvent::Ended(name)));
        Ok(())
    }

    /// A process that goes on with the settings of another one. Those that give rights are its own.
    pub(super) fn of(
        events: EventSender,
        offer: &Offer,
        args: &RunArgs,
        group: Option<u32>,
    ) -> Result<(Children, Arc<Self>)> {
        let settings = (offer.allowed.offloads(), offer.threads());
        let mut args = args.clone();
        args.gateway.gateway_id = offer.gateway_id;
        Self::new(
            events,
            offer.level,
            settings,
            &args,
            (group, !offer.without_names),
        )
    }

    /// These settings, for another process.
    pub(super) fn offer(&self) -> Offer {
        let (shards, policy) = self.engine.threads();
        Offer {
            level: self.level,
            allowed: Switches::new(self.allowed),
            shards,
            policy: policy.name().to_owned(),
            cpus: self.threads.cpus.clone(),
            status_group: self.status_group,
            without_names: !self.resolver.wanted,
            gateway_id: self.gateway_id,
            interfaces: 0,
        }
    }

    pub(super) fn level(&self) -> LogLevel {
        self.level
    }

    /// Where status sockets stand.
    pub(super) fn status_dir(&self) -> PathBuf {
        status_dir(self.control_dir.as_deref())
    }

    fn settings(&self, name: &str, offloads: Offloads, names: &Arc<Names>) -> Settings {
        let (level, owner) = (self.level, name.to_owned());
        let log = move |message: &str| level.error(format_args!("{owner}: {message}"));
        let (owner, names) = (name.to_owned(), Arc::clone(names));
        let log_verbose: VerboseLog = Arc::new(move |line| {
            let line = names.annotate(&line.to_string());
            level.verbose(format_args!("{owner}: {line}"));
        });
        Settings {
            offloads,
            log: Arc::new(log),
            log_verbose: (level == LogLevel::Verbose).then_some(log_verbose),
            listener: None,
            peers_file: Some(self.status_dir().join(format!("{name}.peers"))),
            gateway_id: self.gateway_id,
        }
    }

    /// Tells that this process goes on in place of another one, because a process, the parent, asked
    /// for it.
    pub(super) fn say_upgraded(&self, old: i32, by: &Caller) {
        let own = rustix::process::getpid().as_raw_pid();
        for (name, running) in &self.interfaces().running {
            let text = format!(
                "{by} had process {own} (Adit {}) go on in place of process {old}",
                env!("CARGO_PKG_VERSION")
            );
            self.level.change(format_args!("{name}: upgraded: {text}"));
            watch::upgraded(&running.events, by, text);
        }
    }

    /// Asks one interface to end, and says why.
    pub(super) fn stop(&self, name: &str, why: &str) {
        if let Some(running) = self.interfaces().running.get(name) {
            self.level.verbose(format_args!("{name} ends: {why}"));
            running.interface.stop();
        }
    }

    /// Asks all to end.
    pub(super) fn stop_all(&self, why: &str) {
        let mut interfaces = self.interfaces();
        interfaces.ending = true;
        for (name, running) in &interfaces.running {
            self.level.verbose(format_args!("{name} ends: {why}"));
            running.interface.stop();
        }
    }

    /// An interface has ended: its sockets go. They go last: when they are gone, so is everything,
    /// and the name is free. Returns whether the process goes on, and an error if the interface
    /// failed.
    pub(super) fn bury(&self, name: &str) -> (bool, Result<()>) {
        let mut interfaces = self.interfaces();
        let running = interfaces.running.remove(name);
        interfaces.ending |= interfaces.running.is_empty();
        let goes_on = !interfaces.running.is_empty();
        drop(interfaces);
        let Some(Running {
            interface,
            tun,
            serving,
            ..
        }) = running
        else {
            return (goes_on, Ok(()));
        };
        let reason = interface.wait();
        self.close(goes_on, move || {
            drop(tun);
            drop(serving);
        });
        let result = match reason {
            StopReason::Asked => Ok(()),
            StopReason::InterfaceGone => {
                let level = self.level;
                level.verbose(format_args!("{name} ends: the interface was deleted"));
                Ok(())
            }
            StopReason::Failed(error) => Err(error).context(|| format!("{name} failed")),
        };
        (goes_on, result)
    }

    /// Closes something beside what is being closed: the kernel waits for some 30 ms to close a TUN,
    /// and many such waits pass at the same time. When the process ends, waits for all.
    fn close(&self, goes_on: bool, close: impl FnOnce() + Send + 'static) {
        let mut closing = self.closing.lock().unwrap_or_else(PoisonError::into_inner);
        if closing.len() == MAX_CLOSING {
            let _ = closing.remove(0).join();
        }
        let thread = std::thread::Builder::new().name("adit-closing".into());
        // Without a thread, all is closed here.
        closing.extend(thread.spawn(close));
        if !goes_on {
            closing.drain(..).for_each(|thread| drop(thread.join()));
        }
    }

    pub(super) fn interfaces(&self) -> MutexGuard<'_, Interfaces> {
        let interfaces = self.interfaces.lock();
        interfaces.unwrap_or_else(PoisonError::into_inner)
    }
}

/// Interfaces whose devices the helper opens if they exist already: those that the user named, who may
/// have made them. Names that another process gave may be of other programs' devices, and that process
/// gives the descriptors of its own.
pub(super) fn devices_of_user(args: &RunArgs) -> &[String] {
    match args.take_over {
        Some(_) => &[],
        None => &args.interfaces,
    }
}

/// Binds a socket once its path is free. A process that was killed loses its interface first, and
/// answers at its socket until the kernel has closed that, too.
pub(super) fn once_free<T>(
    bind: impl Fn() -> std::result::Result<T, BindError>,
    is_here: impl Fn() -> bool,
) -> std::result::Result<T, BindError> {
    let deadline = Instant::now() + DYING;
    loop {
        match bind() {
            Err(BindError::AlreadyRunning(_)) if !is_here() && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}

/// How long a process that was killed may take to end, on a busy machine.
const DYING: Duration = Duration::from_secs(3);

/// The control socket of an interface and, unless it cannot be had, its status socket.
pub(super) struct Bound {
    /// Only that of another process may be lost, and why.
    pub(super) control: std::result::Result<uapi::UapiServer, String>,
    pub(super) status: Option<status::StatusServer>,
}

impl Bound {
    fn bind(name: &str, given: Option<OwnedFd>, process: &ServingProcess) -> Result<Self> {
        let bind = || match &process.control_dir {
            Some(dir) => uapi::UapiServer::bind_in(dir, name),
            None => uapi::UapiServer::bind(name),
        };
        let control = match given {
            Some(fd) => uapi::UapiServer::adopt(name, fd),
            None => once_free(bind, || is_here(name)),
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
        let status =
            status::StatusServer::bind_in(&process.status_dir(), name, process.status_group);
        // The tunnel works without it.
        let status = status.inspect_err(|error| {
            let level = process.level;
            level.error(format_args!("{name}: no status for `adit show`: {error}"));
        });
        Ok(Self {
            control: Ok(control),
            status: status.ok(),
        })
    }
}

/// Threads that close what interfaces had, at the same time at most.
const MAX_CLOSING: usize = 8;

/// Interfaces of a process that have queues which their peers share fairly. Each costs the kernel
/// 3.5 MiB and this process 65 descriptors.
const MAX_FAIR: usize = 8;

/// With what else such an interface has open.
const DESCRIPTORS_OF_FAIR: u64 = 96;

/// Whether the process may have so many descriptors.
fn may_open(descriptors: u64) -> bool {
    let limit = getrlimit(Resource::Nofile).current;
    limit.is_none_or(|limit| descriptors <= limit)
}

/// Whether this network namespace has an interface of that name.
fn is_here(name: &str) -> bool {
    helper::files::index(name).is_ok()
}

fn open_tun(name: &str, given: Option<OwnedFd>, fair: bool, offloads: Offloads) -> Result<Tun> {
    if let Some(fd) = given {
        return Tun::from_fd(fd, offloads).context(|| "cannot use WG_TUN_FD".into());
    }
    let existed = is_here(name);
    let tun = match fair {
        true => Tun::open_fair(name, offloads),
        false => Tun::open(name, 1, offloads).map(|mut tuns| tuns.remove(0)),
    };
    let tun = tun.context(|| format!("cannot create {name}"))?;
    // As in the kernel's own WireGuard, the interface sends nothing of its own accord. There may be
    // no IPv6.
    let _ = tun.set_quiet();
    if !existed {
        let set = tun.set_mtu(MTU);
        set.context(|| format!("cannot create {name}"))?;
    }
    Ok(tun)
}
