//! The process that does the work of an agent.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use adit_ctl::uapi::{MAX_CALLED, UapiClient};
use adit_fleet::{AgentStatus, HeldPeers, Reconciler, RecordChange, RecordId, SCHEMA, SourceState};
use adit_proto::LastSeen;
use adit_proto::config::PublicKey;
use rustix::process::Signal;

use super::apply::{Applier, ApplyError};
use super::brought::{BroughtFile, SourceMark, lock_of};
use super::etcd_client::EtcdClient;
use super::evict::{self, Eviction};
use super::exec;
use super::failures::{AgentFailures, AgentTask};
use super::folder::{FolderIdentity, WatchedFolder};
use super::held::{self, FollowedPeers, HeldFile, WriteBack};
use super::news::{AgentNews, BEGIN_ANEW, InterfaceNews, NewsSender, PAUSE, SourceNews};
use super::preshared::PresharedKeys;
use super::report;
use super::rules::{ENDED, PeerRules};
use super::sources::OpenSource;
use super::wanted::WantedRecords;
use crate::cli::{AgentSource, ServeAgentArgs};
use crate::failure::{Context, Result, bail, say};
use crate::run::{join_group, status_group};
use crate::show::now;

/// Messages that wait: threads that tell of more wait themselves.
const QUEUE: usize = 16;
/// Messages that are taken together: what happens at the same time is one change.
const TOGETHER: usize = 64;
/// When to try again what the interface refused: it may take it then, as one that was full.
const REFUSED: Duration = Duration::from_secs(30);
/// How long another agent, which was asked to end, may take for that.
const TO_END: Duration = Duration::from_secs(2);

pub(super) fn work(args: &ServeAgentArgs) -> Result<ExitCode> {
    let name = &args.interface;
    // It goes with the process that starts it again.
    let with_parent = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
    with_parent.context(|| "cannot be told of the parent's end".into())?;
    let _ = rustix::thread::set_name(c"adit-agent");
    adit_sandbox::register("adit-agent");
    let group = status_group(args.status_group.as_deref())?;
    args.check()?;
    let lock = lock_of(&args.state, name, group);
    let lock = lock.context(|| format!("cannot write to {}", args.state.display()))?;
    let until = Instant::now() + TO_END;
    while lock.try_lock().is_err() {
        if Instant::now() >= until {
            bail!(
                State,
                "another agent serves {name} already: `adit agent status {name}` says what it does"
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let failed = || {
        let state = args.state.display();
        format!("cannot read and rewrite what agents brought to {name}, {state}/{name}.peers")
    };
    let (file, brought) = BroughtFile::open(&args.state, name).context(failed)?;
    let status = AgentStatus {
        schema: SCHEMA,
        interface: name.clone(),
        pid: std::process::id(),
        source: args.source.to_string(),
        gateway: args.write_back.as_ref().map(|_| args.gateway_name()),
        ..AgentStatus::default()
    };
    let has_brought = !brought.is_empty();
    let mark = file.mark().cloned();
    let applier = Applier::new(name, file);
    // What is there now is kept apart from what other records claim.
    let there = applier.look().ok();
    let wanted = args.just_in_time.then(|| {
        let ids = brought.values().map(RecordId::clone);
        Arc::new(WantedRecords::new(ids))
    });
    let followed = Arc::<Mutex<FollowedPeers>>::default();
    let mut worker = AgentWorker {
        wanted,
        eviction: Eviction::default(),
        calls: Vec::new(),
        reconciler: Reconciler::new(brought, there.as_ref()),
        applier,
        status,
        state_dir: args.state.clone(),
        group,
        keys: PresharedKeys::new(args.psk_dir.clone()),
        told: HashMap::new(),
        failures: AgentFailures::default(),
        held: (args.write_back.is_some())
            .then(|| HeldFile::new(&followed, held::path(&args.state, name), group)),
        is_look_due: false,
        written: None,
        rules: PeerRules::start(args)?,
    };
    worker.status.is_up = there.is_some();
    let (sender, receiver) = sync_channel(QUEUE);
    let news = NewsSender(sender);
    // The sandbox is about the folders that are watched; nothing is watched once it has begun.
    let keys = args.psk_dir.as_deref().map(|path| worker.watch(path));
    let source = match &args.source {
        AgentSource::Dir(path) => {
            let before = match mark {
                Some(SourceMark::Folder(before)) => Some(before),
                _ => has_brought.then_some(FolderIdentity::UNKNOWN),
            };
            OpenSource::Dir(worker.watch(path), before)
        }
        AgentSource::Exec(program) => {
            let program = [std::slice::from_ref(program), &args.arguments].concat();
            let started = exec::start(name, &program);
            OpenSource::Exec(started.context(|| "cannot start a process".into())?)
        }
        AgentSource::Etcd(address) => {
            let before = (mark.as_ref(), has_brought);
            let wanted = worker.wanted.clone();
            let client = Arc::new(EtcdClient::new(&args.tls, address)?);
            let write_back = args.write_back.as_ref();
            let write_back = write_back.map(|prefix| WriteBack {
                interface: name.clone(),
                address: address.clone(),
                prefix: prefix.clone(),
                gateway: args.gateway_name(),
                client: Arc::clone(&client),
                news: news.clone(),
                state: Arc::clone(&followed),
                wanted: None,
            });
            OpenSource::of_etcd(address, client, &news, wanted, before, write_back)
        }
    };
    // Not before: a program gets no further group.
    join_group(group);
    // From now on its events tell.
    worker.status.is_up = false;
    if args.has_sandbox() {
        let mut folders = Vec::from_iter(args.psk_dir.clone());
        let mut ports: &[u16] = &[];
        match &args.source {
            AgentSource::Dir(path) => folders.push(path.clone()),
            AgentSource::Etcd(address) => ports = &address.ports,
            AgentSource::Exec(_) => {}
        }
        let begun = adit_sandbox::begin_agent(&folders, &args.state, ports);
        begun.context(|| "cannot begin the sandbox (--no-sandbox does without)".into())?;
    }
    let _program = source.start(name, keys, &news)?;
    worker.rules.watch(&news)?;
    // The threads have theirs: without them there is no news.
    drop(news);
    worker.run(&receiver)
}

/// What became of the changes that were due.
enum Brought {
    All,
    /// The interface refuses some of them.
    NotAll,
    /// They are to be tried again.
    Nothing,
}

/// An agent at work.
struct AgentWorker {
    /// The records that are followed; `None` for all.
    wanted: Option<Arc<WantedRecords>>,
    eviction: Eviction,
    /// Peers that are to be called as soon as they are brought, and where they are.
    calls: Vec<(PublicKey, LastSeen)>,
    reconciler: Reconciler,
    applier: Applier,
    status: AgentStatus,
    state_dir: PathBuf,
    /// Who may read the status.
    group: Option<u32>,
    keys: PresharedKeys,
    /// The refusals that were told.
    told: HashMap<RecordId, String>,
    failures: AgentFailures,
    /// Which gateway has which peer.
    held: Option<HeldFile>,
    is_look_due: bool,
    /// The status that the file has.
    written: Option<AgentStatus>,
    rules: PeerRules,
}

impl AgentWorker {
    /// Watches a folder as soon as it is there.
    fn watch(&mut self, path: &Path) -> WatchedFolder {
        loop {
            let why = match WatchedFolder::new(path) {
                Ok(watched) => {
                    self.status.state = SourceState::Listing;
                    self.fail(AgentTask::ReadSource, None);
                    return watched;
                }
                Err(error) => format!("waiting for {}: {error}", path.display()),
            };
            self.status.state = SourceState::Failing;
            self.fail(AgentTask::ReadSource, Some(why));
            self.report();
            std::thread::sleep(PAUSE);
        }
    }

    fn run(&mut self, news: &Receiver<AgentNews>) -> Result<ExitCode> {
        self.report();
        let mut retry: Option<Instant> = None;
        let mut evict = self.wanted.is_some().then(|| Instant::now() + evict::EVERY);
        loop {
            let held = self.held.as_ref().and_then(HeldFile::deadline);
            let next = retry.into_iter().chain(evict).chain(held).min();
            let wait = next.map(|at| at.saturating_duration_since(Instant::now()));
            let first = match wait {
                None => news.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(wait) => news.recv_timeout(wait),
            };
            let first = match first {
                Ok(first) => Some(first),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    bail!(State, "{}: the threads have ended", self.status.interface)
                }
            };
            let more = std::iter::from_fn(|| news.try_recv().ok());
            for one in first.into_iter().chain(more.take(TOGETHER)) {
                match one {
                    AgentNews::RulesEnded => bail!(State, "{}: {ENDED}", self.status.interface),
                    AgentNews::Source(SourceNews::Replaced) => {
                        say!(
                            "adit: {}: another folder or file has the path of one that was there: beginning anew",
                            self.status.interface
                        );
                        return Ok(ExitCode::from(BEGIN_ANEW));
                    }
                    AgentNews::Source(SourceNews::Ended(why)) => {
                        bail!(
                            State,
                            "{}: {}: {why}",
                            self.status.interface,
                            self.status.source
                        );
                    }
                    AgentNews::Source(news) => self.take(news)?,
                    AgentNews::Interface(news) => self.interface(news),
                }
            }
            let now = Instant::now();
            if retry.is_some_and(|at| at <= now) {
                // What it refused is due again after a look.
                self.is_look_due |= self.status.is_up;
            }
            if evict.is_some_and(|at| at <= now) {
                evict = Some(now + evict::EVERY);
                self.evict(now);
            }
            retry = match self.bring()? {
                Brought::All => None,
                Brought::Nothing => Some(now + PAUSE),
                // Other news does not put it off.
                Brought::NotAll => Some(retry.filter(|at| *at > now).unwrap_or(now + REFUSED)),
            };
            self.call();
            self.keep_held(now);
            report::tell_refusals(&self.status.interface, &mut self.reconciler, &mut self.told);
            self.report();
        }
    }

    /// Lets go of the peers that came just in time and are gone.
    fn evict(&mut self, now: Instant) {
        let (Some(wanted), true) = (&self.wanted, self.reconciler.is_listed()) else {
            return;
        };
        let Ok(status) = self.applier.look() else {
            return;
        };
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let times = (now, wall.unwrap_or_default());
        let list = self.reconciler.list();
        let none = HeldPeers::default();
        let state = self.held.as_ref().map(HeldFile::state);
        let held = state.as_ref().map_or(&none, |state| &state.peers);
        let gone = self.eviction.gone(times, wanted.ids(), list, &status, held);
        wanted.evict(&gone);
        self.keys.forget(&gone);
        self.rules.forget(&gone);
        let gone = gone.into_iter().map(|id| (id, RecordChange::Delete));
        self.reconciler.change(gone);
    }

    /// Begins handshakes with the peers that were looked up: theirs were refused.
    fn call(&mut self) {
        for calls in std::mem::take(&mut self.calls).chunks(MAX_CALLED) {
            // A peer that is not called tries again by itself.
            if let Ok(mut client) = UapiClient::connect(&self.status.interface) {
                let _ = client.call_peers(calls, None);
            }
        }
    }

    /// Writes down which gateway has which peer, if it is time.
    fn keep_held(&mut self, now: Instant) {
        let Some(file) = &mut self.held else { return };
        let Some(written) = file.write(now) else {
            return;
        };
        let why = written.err();
        let why = why.map(|error| format!("cannot write where peers are: {error}"));
        self.fail(AgentTask::WriteHeldFile, why);
    }

    fn take(&mut self, news: SourceNews) -> Result<()> {
        match news {
            SourceNews::Found(changes, calls) => {
                self.calls.extend(calls);
                return self.take(SourceNews::Changes(changes));
            }
            SourceNews::Changes(changes) => {
                let wanted = self.wanted.clone();
                let is_wanted = |(id, change): &(RecordId, RecordChange)| {
                    // It may have been let go of meanwhile.
                    *change == RecordChange::Delete || wanted.as_ref().is_none_or(|it| it.has(id))
                };
                let mut changes: Vec<_> = changes
                    .into_iter()
                    .filter(is_wanted)
                    .map(|(id, change)| {
                        let change = self.keys.read(&id, change);
                        (id, change)
                    })
                    .collect();
                self.rules.admit(&mut changes, &mut self.reconciler);
                self.reconciler.change(changes);
            }
            SourceNews::Listed(ids, mark) => {
                self.keys.retain(&ids);
                self.rules.retain(&ids);
                self.reconciler.listed(&ids);
                self.fail(AgentTask::ReadSource, None);
                self.status.state = SourceState::Listed;
                self.status.last_list = Some(now());
                if let Some(mark) = mark {
                    let written = self.applier.brought.set_mark(mark);
                    written.context(|| "cannot write what was brought".into())?;
                }
            }
            SourceNews::Failing(why) => {
                self.status.state = SourceState::Failing;
                self.fail(AgentTask::ReadSource, Some(why));
            }
            SourceNews::KeyFiles(names) => {
                let changes = self.keys.of_files(names.as_ref());
                return self.take(SourceNews::Changes(changes));
            }
            SourceNews::Back => {
                self.fail(AgentTask::ReadSource, None);
                if self.reconciler.is_listed() {
                    self.status.state = SourceState::Listed;
                }
            }
            SourceNews::Held => {
                if let Some(file) = &mut self.held {
                    file.changed();
                }
            }
            SourceNews::NotWritten(why) => self.fail(AgentTask::WriteHeld, why),
            SourceNews::NotRead(why) => self.fail(AgentTask::ReadHeld, why),
            // The caller's.
            SourceNews::Replaced | SourceNews::Ended(_) => {}
        }
        Ok(())
    }

    fn interface(&mut self, news: InterfaceNews) {
        match news {
            InterfaceNews::Gone => {
                self.reconciler.gone();
                self.status.is_up = false;
                self.is_look_due = false;
            }
            // Another process may have lost what the last one was told.
            InterfaceNews::There | InterfaceNews::Changed => {
                self.reconciler.forget_told();
                self.is_look_due = true;
            }
        }
    }

    /// Has the interface be what the records say.
    fn bring(&mut self) -> Result<Brought> {
        if self.is_look_due {
            match self.applier.look() {
                Ok(status) => {
                    self.reconciler.look(&status);
                    self.is_look_due = false;
                    self.status.is_up = true;
                }
                Err(error) => {
                    self.reconciler.gone();
                    self.status.is_up = false;
                    self.fail(
                        AgentTask::ChangeInterface,
                        Some(format!("cannot ask the interface: {error}")),
                    );
                    return Ok(Brought::Nothing);
                }
            }
        }
        let is_up = self.status.is_up;
        self.rules.prepare(&mut self.reconciler, is_up)?;
        let applied = self.applier.apply(&mut self.reconciler);
        self.rules.finish(&mut self.reconciler, is_up)?;
        match applied {
            Ok(()) => {
                let refusal = self.applier.refusal();
                let is_all = refusal.is_none() && self.rules.failure().is_none();
                self.fail(AgentTask::ChangeInterface, refusal);
                self.fail(
                    AgentTask::NameEndpoints,
                    self.applier.missing_names().map(str::to_owned),
                );
                Ok(if is_all {
                    Brought::All
                } else {
                    Brought::NotAll
                })
            }
            Err(ApplyError::Interface(error)) => {
                // What it has now is not known.
                self.is_look_due = self.status.is_up;
                self.fail(
                    AgentTask::ChangeInterface,
                    Some(format!("cannot change the interface: {error}")),
                );
                Ok(Brought::Nothing)
            }
            Err(ApplyError::File(error)) => {
                Err(error).context(|| "cannot write what was brought".into())
            }
        }
    }

    fn fail(&mut self, task: AgentTask, why: Option<String>) {
        let AgentStatus {
            interface, source, ..
        } = &self.status;
        self.failures.set((interface, source), task, why);
    }

    /// Replaces the status, if it is another one.
    fn report(&mut self) {
        let list = self.reconciler.list();
        let failure = self.failures.first(AgentTask::OF_SOURCE);
        let new = AgentStatus {
            failure: failure.or(self.rules.failure()).cloned(),
            records: list.known(),
            applied: self.reconciler.applied(),
            refused: list.refused().len(),
            refusals: report::first_refusals(list),
            write_back_failure: self.failures.first(AgentTask::OF_HELD).cloned(),
            held: self.held.as_ref().map(|file| file.state().peers.len()),
            just_in_time: self.wanted.as_ref().map(|wanted| wanted.counts()),
            ..self.status.clone()
        };
        let is_new = self.written.as_ref() != Some(&new);
        if is_new {
            let written = report::write(&self.state_dir, &new, self.group);
            let error = written
                .err()
                .map(|error| format!("cannot write the status: {error}"));
            self.written = Some(new).filter(|_| error.is_none());
            self.fail(AgentTask::WriteStatus, error);
        }
    }
}
