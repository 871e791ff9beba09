//! A process and the interfaces that it serves.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use adit_ctl::uapi::{Request, Response, UapiError};
use adit_ctl::{BindError, ServerEvent, Service, Serving, status, uapi};
use adit_engine::{Engine, Interface, Kernel, Settings, StopReason, VerboseLog, Watches};
use adit_io::Offloads;
use adit_io::tun::Tun;
use adit_netlink::{LinkChange, Netlink};
use rustix::io::Errno;

use super::events::{Event, Sender};
use super::{LogLevel, answer};
use crate::demo::status_directory;
use crate::failure::{Context, Failure, Result, bail};

/// The MTU of an interface that this process makes, as of wireguard-go's: what fits 1500 bytes
/// behind IPv6, UDP and WireGuard's own header and tag. The TUN driver's 1500 would make two
/// fragments of each full packet.
const MTU: u32 = 1420;

/// What all interfaces of the process share.
pub(super) struct Process {
    engine: Engine<Arc<Tun>, Kernel>,
    watches: Watches,
    service: Service,
    events: Sender,
    level: LogLevel,
    allowed: Offloads,
    /// Where the sockets stand, if not below /var/run.
    control_dir: Option<PathBuf>,
    interfaces: Mutex<Interfaces>,
}

#[derive(Default)]
struct Interfaces {
    running: BTreeMap<String, Running>,
    /// The process ends: it takes no further interface.
    ending: bool,
}

/// An interface, and its sockets.
struct Running {
    interface: Arc<Interface>,
    /// Closed here: that takes the kernel some 30 ms, which no other thread can spare.
    tun: Arc<Tun>,
    serving: Vec<Serving>,
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
        allowed: Offloads,
        control_dir: Option<PathBuf>,
    ) -> Result<Arc<Self>> {
        let failed = || "cannot start the threads".to_owned();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Arc::new(Self {
            engine: Engine::start(cpus).context(failed)?,
            watches: Watches::default(),
            service: Service::start().context(failed)?,
            events,
            level,
            allowed,
            control_dir,
            interfaces: Mutex::default(),
        }))
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
        let sockets = Sockets::bind(name, given.control, self)?;
        let shares = self.interfaces().running.len() < MAX_FAIR;
        let tun = Arc::new(open_tun(name, given.tun, shares, self.allowed)?);
        let offloads = tun.offloads();
        let settings = self.settings(name, offloads);
        let kernel = Kernel::new(Arc::clone(&tun), settings, &self.watches);
        let tuns = vec![Arc::clone(&tun)];
        let interface = kernel.and_then(|kernel| self.engine.add(tuns, kernel, offloads));
        let interface = Arc::new(interface.context(|| format!("cannot start {name}"))?);
        let serving = sockets.serve(self, &interface, name, offloads)?;
        let mut interfaces = self.interfaces();
        if interfaces.ending {
            bail!(State, "the process ends");
        }
        let running = Running {
            interface: Arc::clone(&interface),
            tun: Arc::clone(&tun),
            serving,
        };
        interfaces.running.insert(name.to_owned(), running);
        drop(interfaces);
        let (events, ended) = (self.events.clone(), name.to_owned());
        interface.on_end(move || events.send(Event::Ended(ended)));
        self.level.verbose(format_args!("{name} is ready"));
        Ok(tun)
    }

    fn settings(&self, name: &str, offloads: Offloads) -> Settings {
        let (level, owner) = (self.level, name.to_owned());
        let log = move |message: &str| level.error(format_args!("{owner}: {message}"));
        let owner = name.to_owned();
        let log_verbose: VerboseLog =
            Arc::new(move |line| level.verbose(format_args!("{owner}: {line}")));
        Settings {
            offloads,
            log: Arc::new(log),
            log_verbose: (level == LogLevel::Verbose).then_some(log_verbose),
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
        }) = running
        else {
            return (goes_on, Ok(()));
        };
        let reason = interface.wait();
        drop(tun);
        drop(serving);
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

    fn interfaces(&self) -> MutexGuard<'_, Interfaces> {
        let interfaces = self.interfaces.lock();
        interfaces.unwrap_or_else(PoisonError::into_inner)
    }
}

/// The control socket of an interface and, unless it cannot be had, its status socket.
struct Sockets {
    control: uapi::Server,
    status: Option<status::Server>,
}

impl Sockets {
    fn bind(name: &str, given: Option<OwnedFd>, process: &Process) -> Result<Self> {
        let control = match (given, &process.control_dir) {
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
        let status = match &process.control_dir {
            Some(dir) => status::Server::bind_in(&status_directory(dir), name),
            None => status::Server::bind(name),
        };
        // The tunnel works without it.
        let status = status.inspect_err(|error| {
            let level = process.level;
            level.error(format_args!("{name}: no status for `adit show`: {error}"));
        });
        Ok(Self {
            control,
            status: status.ok(),
        })
    }

    /// Answers until the result is dropped.
    fn serve(
        self,
        process: &Arc<Process>,
        interface: &Arc<Interface>,
        name: &str,
        tun: Offloads,
    ) -> Result<Vec<Serving>> {
        let failed = || "cannot serve a socket".to_owned();
        let (level, events, owner) = (process.level, process.events.clone(), name.to_owned());
        let on_event = move |event: ServerEvent<'_>| match event {
            ServerEvent::Refused(error) => {
                level.error(format_args!("{owner}: refused a request: {error}"));
            }
            ServerEvent::Failed(error) => {
                level.error(format_args!("{owner}: cannot accept clients: {error}"));
            }
            ServerEvent::Removed => events.send(Event::SocketRemoved(owner.clone())),
        };
        // The process has the service, and the service this.
        let (process_of, handle) = (Arc::downgrade(process), Arc::clone(interface));
        let answer = move |request| match request {
            Request::Get => answer::get(&handle),
            Request::Set(change) => answer::set(&handle, change),
            Request::Add(name) => add_for_client(&process_of, &name),
        };
        let service = &process.service;
        let control = self.control.serve(service, answer, on_event);
        let mut serving = vec![control.context(failed)?];
        if let Some(status) = self.status {
            let (handle, name) = (Arc::clone(interface), name.to_owned());
            let report = move || answer::status(&handle, &name, tun);
            // Nothing depends on the status socket: its loss ends nothing. It is removed first, so
            // that a program that waits for the control socket to be gone finds this one gone, too.
            serving.insert(0, status.serve(service, report, |_| {}).context(failed)?);
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
                process.add(name, Given::default())?.limit_queue();
                Ok(())
            }
            None => Err(Failure::State("the process ends".into())),
        });
    match added {
        Ok(()) => Response::Done,
        Err(failure) => {
            let errno = Errno::INVAL.raw_os_error();
            Response::Explained(UapiError::new(errno, failure.to_string()))
        }
    }
}

/// So many interfaces of a process have queues that their peers share fairly. Each costs the kernel
/// 3.5 MiB and this process 65 descriptors.
const MAX_FAIR: usize = 8;

/// Whether this network namespace has an interface of that name.
fn is_here(name: &str) -> bool {
    Netlink::open().is_ok_and(|netlink| netlink.link(name).is_ok())
}

fn open_tun(name: &str, given: Option<OwnedFd>, fair: bool, offloads: Offloads) -> Result<Tun> {
    if let Some(fd) = given {
        return Tun::from_fd(fd, offloads).context(|| "cannot use WG_TUN_FD".into());
    }
    let netlink = Netlink::open();
    let existed = (netlink.as_ref()).is_ok_and(|netlink| netlink.link(name).is_ok());
    let tun = match fair {
        true => Tun::open_fair(name, offloads),
        false => Tun::open(name, 1, offloads).map(|mut tuns| tuns.remove(0)),
    };
    let tun = tun.context(|| format!("cannot create {name}"))?;
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
