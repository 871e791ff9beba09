//! What the sockets of an interface answer.

use std::sync::{Arc, Weak, mpsc};

use adit_ctl::Serving;
use adit_ctl::uapi::{Changed, UapiError, UapiRequest, UapiResponse};
use adit_engine::{Engine, Interface, LinuxPlatform, Policy};
use adit_io::tun::Tun;
use rustix::io::Errno;

use super::{Bound, Given, Prepared, ServingProcess};
use crate::failure::{Context, Failure, Result};
use crate::run::{answer, control_events};

impl Bound {
    /// Answers until the result is dropped.
    pub(super) fn serve(
        self,
        process: &Arc<ServingProcess>,
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
        // In a directory of its own, as for the demo, only the program that started it can reach it.
        let is_private = process.control_dir.is_some();
        let on_event = control_events::listener(owner, level, told, events, !is_private);
        // The process has the service, and the service this.
        let (process_of, handle) = (Arc::downgrade(process), Arc::clone(interface));
        let given_names = Arc::clone(names);
        let (resolver, owner) = (Arc::clone(&process.resolver), name.to_owned());
        let answer = move |request| match request {
            UapiRequest::Get => answer::get(&handle),
            UapiRequest::Set(change) => {
                resolver.configured(&owner, &change);
                answer::set(&handle, change, &given_names)
            }
            UapiRequest::Alive => answer::alive(&handle),
            UapiRequest::Down => UapiResponse::Changed(Changed::of_end()),
            UapiRequest::Add(name) => add_for_client(&process_of, &name),
            UapiRequest::Threads { shards, policy } => {
                set_threads(&process_of, shards, policy.as_deref())
            }
            UapiRequest::Names { named, replace } => {
                answer::names(&handle, &given_names, named, replace)
            }
            UapiRequest::Allow { given, replace } => {
                answer::allow(&handle, &given_names, given, replace)
            }
            UapiRequest::Call { from, peers } => answer::call(&handle, peers, from),
            UapiRequest::Endpoints { named, replace } => {
                resolver.name(&owner, &handle, named, replace)
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
                let settings = process.upgrade();
                let settings = settings.map(|it| (it.engine.threads(), it.gateway_id));
                let settings = settings.unwrap_or_default();
                answer::status(&handle, &name, (&device, tun), started, &names, settings)
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
fn add_for_client(process: &Weak<ServingProcess>, name: &str) -> UapiResponse {
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
        Ok(()) => UapiResponse::Changed(Changed::of_interface(name)),
        Err(failure) => {
            let errno = Errno::INVAL.raw_os_error();
            UapiResponse::Explained(UapiError::new(errno, failure.to_string()))
        }
    }
}

/// Changes which threads process packets because a client asks for it.
fn set_threads(
    process: &Weak<ServingProcess>,
    shards: Option<u16>,
    policy: Option<&str>,
) -> UapiResponse {
    let set = |engine: &Engine<Arc<Tun>, LinuxPlatform>| {
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
        Some(Err(error)) => UapiResponse::Explained(error),
        None => UapiResponse::Explained(UapiError::invalid("the process ends")),
    }
}
