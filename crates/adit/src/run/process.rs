//! A process and the interfaces that it serves.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::thread;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adit_ctl::uapi::{Changed, Request, Response, UapiError};
use adit_ctl::{BindError, Caller, ServerEvent, Service, Serving, status, uapi};
use adit_engine::{
    Engine, Interface, Kernel, Policy, Settings, StopReason, ThreadSettings, VerboseLog, Watches,
};
use adit_io::Offloads;
use adit_io::helper::{self, Folders};
use adit_io::tun::Tun;
use adit_netlink::netns::Netns;
use adit_proto::config::PublicKey;
use rustix::io::Errno;
use rustix::process::{Gid, Resource, getgroups, getrlimit};
use rustix::thread::set_thread_groups;

use super::child::{self, Guard};
use super::events::{Event, Sender};
use super::hand_over::{Offer, Switches};
use super::names::Names;
use super::resolve::Resolver;
use super::watch::{self, Looks};
use super::{LogLevel, answer};
use crate::cli::RunArgs;
use crate::demo::status_directory;
use crate::failure::{Context, Failure, Result, bail};

/// The MTU of an interface that this process makes, as of wireguard-go's: what fits 1500 bytes
/// behind IPv6, UDP and WireGuard's own header and tag. The TUN driver's 1500 would make two
/// fragments of each full packet.
const MTU: u32 = 1420;

/// The process: what all of its interfaces share.
pub(super) struct Process {
    pub(super) engine: Engine<Arc<Tun>, Kernel>,
    watches: Watches,
    events: Sender,
    level: LogLevel,
    allowed: Offloads,
    threads: ThreadSettings,
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
    pub(super) kernel: Option<Kernel>,
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

impl Process {
    pub(super) fn new(
        events: Sender,
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
        let kernel = Kernel::new(Arc::clone(&tun), settings, &self.watches);
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
        self.looks.watch(&interface, &prepared.events);
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
        interface.on_end(move || events.send(Event::Ended(name)));
        Ok(())
    }

    /// A process that goes on with the settings of another one. Those that give rights are its own.
    pub(super) fn of(
        events: Sender,
        offer: &Offer,
        args: &RunArgs,
        group: Option<u32>,
    ) -> Result<(Children, Arc<Self>)> {
        let settings = (offer.allowed.offloads(), offer.threads());
        Self::new(
            events,
            offer.level,
            settings,
            args,
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

/// The process that has the capabilities and the files. It removes the folders at the end, if they
/// are this process's own.
struct Helping {
    folders: Folders,
    _guard: Guard,
}

impl Helping {
    /// Starts it for these interfaces.
    fn start(folders: Folders, interfaces: &[String]) -> Result<Self> {
        let failed =
            || "cannot start a process that keeps the rights (--no-sandbox does without)".into();
        let arguments = crate::helper::arguments(&folders, interfaces).context(failed)?;
        let (guard, socket) = child::start(&arguments).context(failed)?;
        helper::connect(socket, [folders.control.clone(), folders.status.clone()]);
        Ok(Self {
            folders,
            _guard: guard,
        })
    }
}

impl Drop for Helping {
    fn drop(&mut self) {
        if self.folders.are_removed {
            helper::files::leave(&self.folders.control, &self.folders.status);
        }
    }
}

/// A member of the group of the status sockets may give them to it without a capability.
fn join_group(group: Option<u32>) {
    if let (Some(group), Ok(mut groups)) = (group.map(Gid::from_raw), getgroups())
        && !groups.contains(&group)
    {
        groups.push(group);
        // Without the right to it, the group has to be one of the process's.
        let _ = set_thread_groups(&groups);
    }
}

fn status_dir(control_dir: Option<&Path>) -> PathBuf {
    let dir = control_dir.map(status_directory);
    dir.unwrap_or_else(|| status::DIR.into())
}

/// Where the process has its sockets and files. A directory that is named is removed at the end.
fn folders(control_dir: Option<&Path>, group: Option<u32>) -> Folders {
    Folders {
        control: control_dir.unwrap_or(Path::new(uapi::DIR)).to_owned(),
        status: status_dir(control_dir),
        are_removed: control_dir.is_some(),
        group,
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
    pub(super) control: std::result::Result<uapi::Server, String>,
    pub(super) status: Option<status::Server>,
}

impl Bound {
    fn bind(name: &str, given: Option<OwnedFd>, process: &Process) -> Result<Self> {
        let bind = || match &process.control_dir {
            Some(dir) => uapi::Server::bind_in(dir, name),
            None => uapi::Server::bind(name),
        };
        let control = match given {
            Some(fd) => uapi::Server::adopt(name, fd),
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
        let status = status::Server::bind_in(&process.status_dir(), name, process.status_group);
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

    /// Answers until the result is dropped.
    fn serve(
        self,
        process: &Arc<Process>,
        interface: &Arc<Interface>,
        prepared: &Prepared,
    ) -> Result<Vec<Serving>> {
        let Prepared {
            name,
            names,
            events: watchers,
            started,
            ..
        } = prepared;
        let (tun, started) = (prepared.tun.offloads(), *started);
        let device = Arc::downgrade(&prepared.tun);
        let failed = || "cannot serve a socket".to_owned();
        let (level, events, owner) = (process.level, process.events.clone(), name.clone());
        let told = Arc::clone(watchers);
        let on_event = move |event: ServerEvent<'_>| {
            match event {
            ServerEvent::Configured(change) => {
                level.change(format_args!("{owner}: configuration changed: {change}"));
                watch::configured(&told, change);
            }
            ServerEvent::Refused(error) => {
                level.error(format_args!("{owner}: refused a request: {error}"));
            }
            ServerEvent::Failed(error) => {
                level.error(format_args!("{owner}: cannot accept clients: {error}"));
            }
            ServerEvent::Panicked(text) => level.error(format_args!(
                "{owner}: a client was hung up, because its request met a defect of this program: {text}"
            )),
            ServerEvent::Removed => events.send(Event::SocketRemoved(owner.clone())),
        }
        };
        // The process has the service, and the service this.
        let (process_of, handle) = (Arc::downgrade(process), Arc::clone(interface));
        let given_names = Arc::clone(names);
        let (resolver, owner) = (Arc::clone(&process.resolver), name.to_owned());
        let answer = move |request| match request {
            Request::Get => answer::get(&handle),
            Request::Set(change) => {
                resolver.configured(&owner, &change);
                answer::set(&handle, change, &given_names)
            }
            Request::Alive => answer::alive(&handle),
            Request::Down => Response::Changed(Changed::of_end()),
            Request::Add(name) => add_for_client(&process_of, &name),
            Request::Threads { shards, policy } => {
                set_threads(&process_of, shards, policy.as_deref())
            }
            Request::Names { named, replace } => {
                answer::names(&handle, &given_names, named, replace)
            }
            Request::Allow { given, replace } => {
                answer::allow(&handle, &given_names, given, replace)
            }
            Request::Endpoints { named, replace } => {
                resolver.name(&owner, &handle, named, replace);
                Response::Done
            }
        };
        let service = &process.service;
        let mut serving = Vec::new();
        match self.control {
            Ok(control) => {
                let control = control.serve(service, answer, on_event);
                serving.push(control.context(failed)?);
            }
            Err(why) => level.error(format_args!("{name}: no control socket: {why}")),
        }
        if let Some(status) = self.status {
            let (handle, name) = (Arc::clone(interface), name.clone());
            let (names, process) = (Arc::clone(names), Arc::downgrade(process));
            let probed = Arc::clone(interface);
            let report = move || {
                let threads = process.upgrade().map(|process| process.engine.threads());
                let threads = threads.unwrap_or_default();
                answer::status(&handle, &name, (&device, tun), started, &names, threads)
            };
            // Nothing depends on the status socket: its loss ends nothing. It is removed first, so
            // that a program that waits for the control socket to be gone finds this one gone, too.
            serving.insert(
                0,
                status
                    .serve(
                        service,
                        watchers,
                        report,
                        move |peer| probed.probe(peer),
                        |_| {},
                    )
                    .context(failed)?,
            );
        }
        Ok(serving)
    }
}

/// Serves one more interface because a client asks for it.
fn add_for_client(process: &Weak<Process>, name: &str) -> Response {
    let added = adit_ctl::config::check_name(name)
        .map_err(Failure::Mistake)
        .and_then(|()| match process.upgrade() {
            Some(process) => {
                let name = name.to_owned();
                let (tell, added) = mpsc::sync_channel(1);
                let add = move || {
                    let added = process.add(&name, Given::default());
                    let _ = tell.send(added.map(|tun| tun.limit_queue()));
                };
                let failed = || "cannot serve one more".to_owned();
                adit_sandbox::start("adit-adding", add).context(failed)?;
                added.recv().context(failed)?
            }
            None => Err(Failure::State("the process ends".into())),
        });
    match added {
        Ok(()) => Response::Changed(Changed::of_interface(name)),
        Err(failure) => {
            let errno = Errno::INVAL.raw_os_error();
            Response::Explained(UapiError::new(errno, failure.to_string()))
        }
    }
}

/// Changes which threads process packets because a client asks for it.
fn set_threads(process: &Weak<Process>, shards: Option<u16>, policy: Option<&str>) -> Response {
    let set = |engine: &Engine<Arc<Tun>, Kernel>| {
        let (before, policy_before) = engine.threads();
        let policy = match policy {
            None => policy_before,
            Some(name) => Policy::ALL
                .iter()
                .find_map(|(known, policy)| (*known == name).then_some(*policy))
                .ok_or_else(|| UapiError::invalid(format!("there is no policy {name}")))?,
        };
        engine.set_threads(shards.map_or(before, usize::from), policy)?;
        let (after, policy) = engine.threads();
        let values = [
            ("shards", before.to_string(), after.to_string()),
            ("policy", policy_before.name().into(), policy.name().into()),
        ];
        let values = values.into_iter().filter(|(_, from, to)| from != to);
        Ok::<_, UapiError>(Changed::of_settings(values.collect()))
    };
    match process.upgrade().map(|process| set(&process.engine)) {
        Some(Ok(changed)) => answer::told(changed),
        Some(Err(error)) => Response::Explained(error),
        None => Response::Explained(UapiError::invalid("the process ends")),
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
