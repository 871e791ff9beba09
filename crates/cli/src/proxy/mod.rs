//! `adit proxy`: what is inside a tunnel, for programs that speak SOCKS or HTTP or come to a forwarded port.
//!
//! 1. reads the file and the command line (`load`), and looks up where peers are;
//! 2. opens all that it listens on, and the sockets at which it is asked (`control`);
//! 3. begins the sandbox;
//! 4. begins the tunnel with a stack in it (`tunnel`), and serves clients and those who ask (`pages`, `alive`,
//!    `silence`), all on threads that give up what they do not need;
//! 5. waits for a signal.

mod alive;
mod control;
mod lines;
mod load;
mod pages;
mod silence;
pub(crate) mod tunnel;

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use adit::Threads;
use adit_ctl::{Service, Serving, status};
use adit_proxy::config::{Bind, EndpointHost, ProxyConfig, ServiceKind};
use adit_proxy::kernel::ChosenStack;
use adit_proxy::serve::{
    self, InfoOptions, Level, LogSink, Proxy, ProxyListeners, ServeError, ServeOptions, StdioHook,
};
use adit_sandbox::{Role, SandboxFolders, Starter};

use self::alive::AliveChecks;
use self::control::{ControlSockets, TunnelFacts};
use self::load::LoadedProxy;
use self::pages::ProxyPages;
use self::tunnel::{RunningStack, TunnelHooks, begin_stack, choose_stack};
use crate::cli::{self, ProxyArgs};
use crate::failure::{Context, Failure, Result, say};
use crate::run::background::{self, Notifier};
use crate::run::events::{EventSender, MainEvent, MainEvents};
use crate::run::level::LogLevel;
use crate::run::names::Names;
use crate::run::resolve::Resolver;
use crate::run::watch::{self, Looks};
use crate::run::{allow_descriptors, answer};

pub(crate) fn proxy(args: &ProxyArgs) -> Result<ExitCode> {
    let done = |()| ExitCode::SUCCESS;
    if args.version {
        let text = concat!("adit proxy, version ", env!("CARGO_PKG_VERSION"), "\n");
        return cli::print(text.as_bytes()).map(done);
    }
    let loaded = load::load(args)?;
    if !args.silent {
        (loaded.warnings.iter()).for_each(|warning| say!("Warning: {warning}"));
        (loaded.passed_over.iter()).for_each(|line| say!("Note: {line}"));
    }
    if args.configtest {
        return cli::print(b"Config OK\n").map(done);
    }
    if args.daemon && !args.background {
        return in_background(args).map(done);
    }
    run(args, loaded).map(done)
}

/// Starts the process that stays, and returns when it is ready.
fn in_background(args: &ProxyArgs) -> Result<()> {
    // Not the path of the binary, which may have been replaced since.
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("adit")
        .args(std::env::args_os().skip(1))
        .arg("--background")
        .stdin(Stdio::null());
    let child = background::until_ready(command)?;
    if !args.silent {
        say!(
            "adit: process {} goes on in the background: `kill {0}` ends it",
            child.id()
        );
    }
    Ok(())
}

/// What is open before the sandbox begins.
struct OpenedSockets {
    listeners: ProxyListeners,
    info: Option<OwnedFd>,
    control: ControlSockets,
    level: LogLevel,
    notifier: Notifier,
    stack: ChosenStack,
    why: String,
}

fn run(args: &ProxyArgs, loaded: LoadedProxy) -> Result<()> {
    let level = match args.silent {
        true => LogLevel::Silent,
        false => LogLevel::from_env(),
    };
    allow_descriptors();
    let _ = rustix::thread::set_name(c"adit");
    adit_sandbox::register("adit");
    if args.background {
        background::leave_session();
    }
    let LoadedProxy {
        name, file, config, ..
    } = loaded;
    let (stack, why) = choose_stack(args.stack, &config.tunnel)?;
    // Before there is anything to remove: that may take long, and a signal ends it.
    let endpoints = tunnel::endpoints(&name, &config.tunnel.peers);
    // Signals are caught from here on, so that an early one still removes the sockets' files.
    let (mut events, sender) = MainEvents::new()?;
    let failed = |error| refused(&file, &error);
    let mut listeners = serve::bind(&config.services).map_err(failed)?;
    let info = args
        .info
        .as_ref()
        .map(|bind| listeners.listen_for_pages(bind).map_err(failed))
        .transpose()?;
    let opened = OpenedSockets {
        listeners,
        info,
        control: ControlSockets::bind(&name, level),
        level,
        notifier: Notifier::new(),
        stack,
        why,
    };
    let named = tunnel::names(&config.tunnel.peers);
    let (resolver, _resolving) = Resolver::start(level, !args.no_sandbox, !named.is_empty())?;
    let null = background::null(args.background)?;
    let starter = {
        let sender = sender.clone();
        Starter::here(move || sender.wake())
    };
    if !args.no_sandbox {
        begin_sandbox(&config, args.info.as_ref(), &opened.control)?;
    }
    let mut running = RunningProxy::begin(
        (&name, &config),
        opened,
        &endpoints,
        (&resolver, sender),
        failed,
    )?;
    resolver.name(&name, &running.facts.interface, named, true);
    if !args.silent {
        lines::say_all(
            &name,
            &config,
            args.info.as_ref(),
            &running.why,
            running.is_known,
        );
    }
    background::report_ready(true, null.as_ref(), &running.notifier, level)?;
    running.wait(&mut events, &starter)
}

/// What could not be had, with the line that asks for it.
fn refused(file: &str, error: &ServeError) -> Failure {
    Failure::State(match error.line() {
        0 => error.to_string(),
        line => format!("{file}:{line}: {error}"),
    })
}

/// Leaves to this process what a proxy needs.
fn begin_sandbox(
    config: &ProxyConfig,
    info: Option<&Bind>,
    control: &ControlSockets,
) -> Result<()> {
    let mut folders = SandboxFolders {
        own: control.folders.clone(),
        ..SandboxFolders::default()
    };
    folders.own.extend(info.and_then(folder_of));
    let mut names = false;
    for service in &config.services {
        match &service.kind {
            ServiceKind::TcpServer { target, .. } | ServiceKind::UdpServer { target, .. } => {
                names |= matches!(target.host, EndpointHost::Name(_));
            }
            ServiceKind::Socks5 { bind, .. }
            | ServiceKind::Http { bind, .. }
            | ServiceKind::Sni { bind }
            | ServiceKind::TcpClient { bind, .. } => folders.own.extend(folder_of(bind)),
            ServiceKind::UdpClient { .. } | ServiceKind::Stdio { .. } => {}
        }
    }
    let begun = adit_sandbox::begin_proxy(&folders, names);
    begun.context(|| "cannot begin the sandbox (--no-sandbox does without)".into())
}

/// The folder of a UNIX socket, which is removed from there.
fn folder_of(bind: &Bind) -> Option<PathBuf> {
    match bind {
        Bind::Port(_) => None,
        Bind::Unix(path) => {
            let folder = path
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty());
            Some(folder.unwrap_or(".".as_ref()).to_owned())
        }
    }
}

/// A proxy that runs. What is dropped first needs what follows.
struct RunningProxy {
    _proxy: Arc<Proxy>,
    _serving: Vec<Serving>,
    _service: Service,
    _alive: Arc<AliveChecks>,
    facts: Arc<TunnelFacts>,
    stack: RunningStack,
    /// Why it is to end: standard input and output did, where there is nothing else, or the kernel's stack.
    ended: Arc<Mutex<Option<Result<()>>>>,
    _looks: Arc<Looks>,
    why: String,
    is_known: bool,
    notifier: Notifier,
}

impl RunningProxy {
    fn begin(
        (name, config): (&str, &ProxyConfig),
        opened: OpenedSockets,
        endpoints: &[Option<std::net::SocketAddr>],
        (resolver, sender): (&Arc<Resolver>, EventSender),
        failed: impl Fn(ServeError) -> Failure,
    ) -> Result<Self> {
        let OpenedSockets {
            listeners,
            info,
            control,
            level,
            notifier,
            stack,
            why,
        } = opened;
        let names = Arc::new(Names::default());
        let peers = config.tunnel.peers.iter();
        names.set(
            peers
                .filter_map(|peer| Some((tunnel::key_of(peer), peer.name.clone()?)))
                .collect(),
        );
        let told = status::Events::new(name);
        let clients = watch::listener(name, &told, &names, resolver);
        let (listener, log) = silence::listener(name, clients, &names, level);
        let ended: Arc<Mutex<Option<Result<()>>>> = Arc::default();
        let end = {
            let (ended, sender, name) = (Arc::clone(&ended), sender.clone(), name.to_owned());
            move |result: Result<()>| {
                *ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                sender.send(MainEvent::Ended(name.clone()));
            }
        };
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        let hooks = TunnelHooks {
            threads: Threads::new(count).on_start(confine),
            on_start: Arc::new(confine),
            on_end: {
                let (end, name) = (end.clone(), name.to_owned());
                Box::new(move || {
                    let why = "the process that has the kernel's stack ended: start the proxy again, or with --stack smoltcp";
                    end(Err(Failure::State(format!("{name}: {why}"))));
                })
            },
            listener,
        };
        let stack = begin_stack(stack, &config.tunnel, endpoints, hooks)?;
        let interface = Arc::clone(stack.stack.tunnel().interface());
        let facts = Arc::new(TunnelFacts {
            name: name.to_owned(),
            interface: Arc::clone(&interface),
            names,
            stack: stack.stack.name(),
            started: answer::now(),
            threads: count,
        });
        let looks = Arc::new(Looks::default());
        looks.watch(&interface, &told, true);
        let is_known = control.is_known();
        log.begin(&facts, is_known)?;
        on_end(&stack, (name, sender.clone()));
        let part = &config.tunnel;
        let alive = AliveChecks::new(&part.check_alive, part.check_alive_interval);
        let log = log_of(name, level);
        alive.begin(&stack.ping, &log)?;
        let of_pages = Arc::new(OnceLock::new());
        let pages = ProxyPages {
            facts: Arc::clone(&facts),
            alive: Arc::clone(&alive),
            connections: stack.connections.clone(),
            proxy: Arc::clone(&of_pages),
        };
        let mut options = ServeOptions::default();
        options.on_start = Some(Arc::new(confine));
        options.info = info.map(|listener| InfoOptions {
            listener,
            pages: Arc::new(move |path| pages.page(path)),
        });
        options.log = Some(Arc::clone(&log));
        options.on_stdio_end = Some(stdio_hook(name, is_stdio_alone(config), log, end));
        let proxy = Proxy::start(Arc::clone(&stack.stack), listeners, config.resolve, options);
        let proxy = Arc::new(proxy.map_err(failed)?);
        let _ = of_pages.set(Arc::downgrade(&proxy));
        let service = Service::start().context(|| "cannot start the threads".into())?;
        let serving = control.serve(&service, &facts, &told, resolver, (level, sender))?;
        Ok(Self {
            _proxy: proxy,
            _serving: serving,
            _service: service,
            _alive: alive,
            facts,
            why,
            stack,
            ended,
            _looks: looks,
            is_known,
            notifier,
        })
    }

    /// Waits until it is asked to end, or there is nothing left to do.
    fn wait(&mut self, events: &mut MainEvents, starter: &Starter) -> Result<()> {
        match events.next(starter, None)? {
            MainEvent::Ended(name) => {
                let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
                ended.take().unwrap_or_else(|| {
                    let why = self.stack.stack.tunnel().wait();
                    Err(Failure::State(format!(
                        "{name}: the tunnel has ended: {why}"
                    )))
                })
            }
            // By a signal, or because its control socket was removed.
            _ => Ok(()),
        }
    }
}

/// What every thread but the main one does first. One that could not must not go on.
fn confine() {
    if adit_sandbox::confine(Role::Proxy).is_err() {
        let _ = std::io::stderr().write_all(b"adit: cannot confine a thread\n");
        std::process::abort();
    }
}

/// Has the main thread learn that the tunnel ended by itself.
fn on_end(stack: &RunningStack, (name, sender): (&str, EventSender)) {
    let events = stack.stack.tunnel().events();
    let (name, of_tunnel) = (name.to_owned(), events.clone());
    events.set_waker(move || match of_tunnel.has_ended() {
        true => sender.send(MainEvent::Ended(name.clone())),
        // Those of the engine are told to others: what waits here is for nobody.
        false => while of_tunnel.try_next().is_some() {},
    });
}

/// Whether there is nothing left to do once standard input and output have ended.
fn is_stdio_alone(config: &ProxyConfig) -> bool {
    let mut services = config.services.iter();
    services.all(|service| matches!(service.kind, ServiceKind::Stdio { .. }))
}

/// Told that standard input and output have ended: if there is nothing else, the proxy ends, too.
fn stdio_hook(
    name: &str,
    is_alone: bool,
    log: LogSink,
    end: impl Fn(Result<()>) + Send + Sync + 'static,
) -> StdioHook {
    let name = name.to_owned();
    Arc::new(move |result| match (is_alone, result) {
        (true, result) => end(result.map_err(|error| Failure::State(format!("{name}: {error}")))),
        (false, Ok(())) => {}
        (false, Err(error)) => {
            log(
                Level::Error,
                format_args!("standard input and output: {error}"),
            );
        }
    })
}

/// What of the clients comes into the log: errors always, refused clients and details where all is logged.
fn log_of(name: &str, level: LogLevel) -> LogSink {
    let name = name.to_owned();
    Arc::new(move |kind, line| match kind {
        Level::Error => level.error(format_args!("{name}: {line}")),
        Level::Warn => level.verbose(format_args!("{name}: {line}")),
    })
}

#[cfg(test)]
mod tests {
    use adit::net::NetError;

    use super::*;

    #[test]
    fn what_cannot_be_had_is_told_by_file_and_line() {
        let bind = "unix:/nowhere/at/all".parse().expect("a path");
        for (line, begin) in [(9, "x.conf:9: cannot listen"), (0, "cannot listen")] {
            let kind = ServiceKind::Sni {
                bind: Bind::clone(&bind),
            };
            let services = [adit_proxy::config::ProxyService { line, kind }];
            let error = serve::bind(&services).err().expect("there is no folder");
            let text = refused("x.conf", &error).to_string();
            assert!(text.starts_with(begin), "{text}");
        }
    }

    #[test]
    fn what_fails_of_standard_input_and_output_is_told() {
        for is_alone in [true, false] {
            let told: Arc<Mutex<Vec<String>>> = Arc::default();
            let (logged, ended) = (Arc::clone(&told), Arc::clone(&told));
            let log: LogSink = Arc::new(move |level, line| {
                assert_eq!(level, Level::Error);
                logged.lock().expect("a log").push(format!("log: {line}"));
            });
            let hook = stdio_hook("wg0", is_alone, log, move |result| {
                let what = result.map_err(|failure| failure.to_string());
                ended.lock().expect("a log").push(format!("end: {what:?}"));
            });
            hook(Ok(()));
            hook(Err(NetError::NoMemory));
            let told = told.lock().expect("a log");
            let error = NetError::NoMemory;
            let expected = match is_alone {
                true => vec![
                    "end: Ok(())".to_owned(),
                    format!("end: {:?}", Err::<(), _>(format!("wg0: {error}"))),
                ],
                false => vec![format!("log: standard input and output: {error}")],
            };
            assert_eq!(*told, expected);
        }
    }
}
