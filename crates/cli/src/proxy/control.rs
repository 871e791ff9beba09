//! The sockets at which a proxy is asked, as the process of an interface is.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_ctl::status::{Events, StatusServer};
use adit_ctl::uapi::{Changed, UapiError, UapiRequest, UapiResponse, UapiServer};
use adit_ctl::{Service, Serving, status, uapi};
use adit_engine::{Interface, Policy};
use adit_io::Offloads;

use crate::failure::{Context, Result};
use crate::run::answer::{self, HostFacts};
use crate::run::control_events;
use crate::run::events::EventSender;
use crate::run::level::LogLevel;
use crate::run::names::Names;
use crate::run::resolve::Resolver;

/// What is known of a proxy's tunnel besides the engine.
pub(super) struct TunnelFacts {
    pub(super) name: String,
    pub(super) interface: Arc<Interface>,
    pub(super) names: Arc<Names>,
    pub(super) stack: &'static str,
    pub(super) started: u64,
    /// Threads that process packets, at most.
    pub(super) threads: usize,
}

/// The sockets, which are bound and not yet served. A proxy works without.
#[derive(Default)]
pub(super) struct ControlSockets {
    control: Option<UapiServer>,
    status: Option<StatusServer>,
    /// The folders that they stand in.
    pub(super) folders: Vec<PathBuf>,
}

impl TunnelFacts {
    fn host(&self) -> HostFacts {
        let policy = match self.threads {
            1 => Policy::Inline,
            _ => Policy::Auto,
        };
        HostFacts {
            device: None,
            stack: Some(self.stack),
            offloads: Offloads::ALL,
            egress: None,
            started: self.started,
            threads: (self.threads, policy),
            gateway_id: None,
        }
    }

    fn report(&self) -> Option<status::Report> {
        answer::report(&self.interface, &self.name, &self.names, |_| self.host())
    }

    /// All that the status tells, with the peers.
    pub(super) fn status(&self) -> Option<status::InterfaceJson> {
        let device = self.interface.get().ok()?;
        let mut status = status::InterfaceJson::new(&self.name, &device, false);
        for (peer, json) in device.peers.iter().zip(&mut status.peers) {
            json.name = self.names.of(&peer.public_key);
        }
        status.engine = Some(answer::engine(&self.interface, self.host()));
        Some(status)
    }
}

impl ControlSockets {
    /// Binds them where those of interfaces are, or else the status socket in a folder of this user's.
    pub(super) fn bind(name: &str, level: LogLevel) -> Self {
        let mut bound = Self::default();
        if let Err(why) = adit_ctl::config::check_name(name) {
            level.error(format_args!("{name}: `adit show` does not know it: {why}"));
            return bound;
        }
        if let Ok(control) = UapiServer::bind(name) {
            bound.control = Some(control);
            bound.folders.push(uapi::DIR.into());
        }
        let own = || {
            let dir = status::own_dir()?;
            make_own(&dir).ok()?;
            Some((StatusServer::bind_in(&dir, name, None), dir))
        };
        let shared = || (StatusServer::bind(name, None), PathBuf::from(status::DIR));
        let (status, dir) = match shared() {
            (Err(error), _) => own().unwrap_or((Err(error), PathBuf::new())),
            bound => bound,
        };
        match status {
            Ok(status) => {
                bound.status = Some(status);
                bound.folders.push(dir);
            }
            Err(error) => level.error(format_args!(
                "{name}: `adit show` does not know it: {error}"
            )),
        }
        bound
    }

    /// Whether `adit show` and its like can ask.
    pub(super) fn is_known(&self) -> bool {
        self.status.is_some()
    }

    /// Answers until the result is dropped.
    pub(super) fn serve(
        self,
        service: &Service,
        facts: &Arc<TunnelFacts>,
        told: &Arc<Events>,
        resolver: &Arc<Resolver>,
        (level, events): (LogLevel, EventSender),
    ) -> Result<Vec<Serving>> {
        let failed = || "cannot serve a socket".to_owned();
        let mut serving = Vec::new();
        if let Some(status) = self.status {
            let (of, probed) = (Arc::clone(facts), Arc::clone(&facts.interface));
            let report = move || of.report();
            let probe = move |peer| probed.probe(peer);
            let status = status.serve(service, told, report, probe, |_| {});
            serving.push(status.context(failed)?);
        }
        if let Some(control) = self.control {
            let (of, resolver) = (Arc::clone(facts), Arc::clone(resolver));
            let answer = move |request| respond(&of, &resolver, request);
            let told = Arc::clone(told);
            let on_event = control_events::listener(facts.name.clone(), level, told, events, true);
            let control = control.serve(service, answer, on_event);
            serving.push(control.context(failed)?);
        }
        Ok(serving)
    }
}

fn respond(of: &TunnelFacts, resolver: &Arc<Resolver>, request: UapiRequest) -> UapiResponse {
    let TunnelFacts {
        name,
        interface,
        names,
        ..
    } = of;
    let not_here = |text: &str| UapiResponse::Explained(UapiError::invalid(text));
    match request {
        UapiRequest::Get => answer::get(interface),
        UapiRequest::Set(change) => {
            resolver.configured(name, &change);
            answer::set(interface, change, names)
        }
        UapiRequest::Alive => answer::alive(interface),
        UapiRequest::Down => UapiResponse::Changed(Changed::of_end()),
        UapiRequest::Names { named, replace } => answer::names(interface, names, named, replace),
        UapiRequest::Allow { given, replace } => answer::allow(interface, names, given, replace),
        UapiRequest::Call { from, peers } => answer::call(interface, peers, from),
        UapiRequest::Endpoints { named, replace } => resolver.name(name, interface, named, replace),
        UapiRequest::Add(_) => not_here("a proxy has one tunnel, and serves no interface"),
        UapiRequest::Threads { .. } => not_here("a proxy keeps the threads that it began with"),
    }
}

/// Makes the folder of this user's sockets, which nobody else may enter.
fn make_own(dir: &Path) -> std::io::Result<()> {
    let made = std::fs::DirBuilder::new().mode(0o700).create(dir);
    match made {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}
