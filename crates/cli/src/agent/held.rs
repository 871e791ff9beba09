//! `--write-back`: which gateway has which peer is written to keys of the store, and read from there.
//!
//! One thread writes what the interface's events tell: a new session, or another endpoint. Another one follows what
//! all gateways write, and the main thread keeps that in a file for `adit call`: the store may be away when a gateway
//! takes the place of another one. Nothing is written while that is not known: it may be newer.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use adit_ctl::keys::public_from_base64;
use adit_ctl::status::{EventJson, EventKind};
use adit_ctl::uapi::UapiClient;
use adit_fleet::{
    EtcdAddress, EtcdRefusal, HELD_AT_ONCE, HeldPeer, HeldPeers, PeerNews, etcd_lease, held_change,
    hold_request, is_changed, lease_request,
};
use adit_proto::config::PublicKey;
use adit_proto::limits::REJECT_AFTER_TIME;
use adit_proto::{LastSeen, Tai64N};

use super::brought::replace;
use super::etcd_client::{EtcdClient, EtcdMember};
use super::news::{NewsSender, PAUSE, SourceNews};
use super::wanted::{Stranger, WantedRecords};

/// What comes within this time is written together.
const GATHER: Duration = Duration::from_millis(50);
/// Between two writes of peers that have moved: one may do so with each packet.
const MOVES_EACH: Duration = Duration::from_secs(1);
/// Longest pause after failures, each of which doubles it.
const LONG_PAUSE: Duration = Duration::from_secs(30);
/// How long keys are written with one lease: half of what it lives.
const LEASE_FOR: Duration = Duration::from_secs(adit_fleet::LEASE / 2);
/// Between two writes of the file, at least; and for each line, which takes 3 µs.
const FILE_EACH: Duration = Duration::from_secs(1);
const FILE_LINE: Duration = Duration::from_micros(100);

/// What the interface tells of its peers.
pub(super) enum HeldNews {
    Peer(PublicKey, PeerNews),
    /// Events were missed.
    Look,
}

impl HeldNews {
    /// What an event tells, if anything.
    pub(super) fn of(event: &EventJson) -> Option<Self> {
        let is = |kind: EventKind| event.event == kind.name();
        if is(EventKind::Missed) {
            return Some(Self::Look);
        }
        if !is(EventKind::Session) && !is(EventKind::PeerRoamed) {
            return None;
        }
        let key = public_from_base64(event.peer.as_deref()?)?;
        let at = event.endpoint.as_deref()?.parse().ok()?;
        if is(EventKind::PeerRoamed) {
            return Some(Self::Peer(key, PeerNews::Moved(at)));
        }
        let timestamp = |text: &Option<String>| -> Option<Tai64N> { text.as_deref()?.parse().ok() };
        let last = LastSeen {
            at: Some(at),
            sent: timestamp(&event.sent).unwrap_or_default(),
            received: timestamp(&event.received).unwrap_or_default(),
        };
        let since = millis(Duration::try_from_secs_f64(event.time).ok()?);
        Some(Self::Peer(key, PeerNews::Session(last, since)))
    }
}

fn millis(since_epoch: Duration) -> u64 {
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

/// Since the Unix epoch.
fn now() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

/// What gateways have told.
#[derive(Default)]
pub(super) struct ToldPeers {
    pub(super) peers: HeldPeers,
    /// It is followed: nothing newer is in the store.
    is_current: bool,
    /// The store's, as far as it was followed.
    revision: i64,
}

/// What is to be written.
#[derive(Default)]
struct UnwrittenPeers {
    news: HashMap<PublicKey, PeerNews>,
    /// Peers that have moved since others were written.
    moves: HashMap<PublicKey, std::net::SocketAddr>,
}

impl UnwrittenPeers {
    fn take(&mut self, key: PublicKey, news: PeerNews) {
        match (self.news.get_mut(&key), news) {
            (_, PeerNews::Session(..)) => drop(self.news.insert(key, news)),
            (None, PeerNews::Since(..)) => drop(self.news.insert(key, news)),
            (Some(_), PeerNews::Since(..)) => {}
            (Some(PeerNews::Session(last, _)), PeerNews::Moved(to)) => last.at = Some(to),
            (_, PeerNews::Moved(to)) => drop(self.moves.insert(key, to)),
        }
    }

    /// Those that have moved are to be written, too.
    fn add_moves(&mut self) {
        for (key, to) in std::mem::take(&mut self.moves) {
            self.news.entry(key).or_insert(PeerNews::Moved(to));
        }
    }
}

/// Where and as what this gateway writes, and what was read.
#[derive(Clone)]
pub(super) struct WriteBack {
    pub(super) interface: String,
    pub(super) address: EtcdAddress,
    pub(super) prefix: String,
    pub(super) gateway: String,
    pub(super) client: Arc<EtcdClient>,
    pub(super) news: NewsSender,
    pub(super) told: Arc<Mutex<ToldPeers>>,
    /// To the thread that looks peers up: those of other gateways are brought here, too.
    pub(super) wanted: Option<(Arc<WantedRecords>, SyncSender<Stranger>)>,
}

impl WriteBack {
    fn told(&self) -> MutexGuard<'_, ToldPeers> {
        lock(&self.told)
    }

    /// Writes until nobody tells of any more.
    pub(super) fn write(self, news: &Receiver<HeldNews>) {
        let endpoints = self.address.endpoints.clone();
        let mut members = endpoints.iter().cycle();
        let mut member: Option<EtcdMember<'_>> = None;
        let mut lease: Option<(String, Instant)> = None;
        let mut pending = UnwrittenPeers::default();
        let (mut next, mut next_moves) = (None, Instant::now());
        let mut failures: u32 = 0;
        let all = u32::try_from(endpoints.len()).unwrap_or(u32::MAX);
        loop {
            let moves = (!pending.moves.is_empty()).then_some(next_moves);
            let wait = next.into_iter().chain(moves).min();
            let wait = wait.map(|at: Instant| at.saturating_duration_since(Instant::now()));
            let first = match wait {
                None => news.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(wait) => news.recv_timeout(wait),
            };
            match first {
                Ok(first) => self.take(first, &mut pending),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while let Ok(more) = news.try_recv() {
                self.take(more, &mut pending);
            }
            let now = Instant::now();
            if next_moves <= now && !pending.moves.is_empty() {
                pending.add_moves();
                next_moves = now + MOVES_EACH;
            }
            if pending.news.is_empty() {
                next = None;
                continue;
            }
            if *next.get_or_insert(now + GATHER) > now {
                continue;
            }
            if !self.told().is_current {
                next = Some(now + PAUSE);
                continue;
            }
            let here = match member.take() {
                Some(member) => Ok(member),
                None => match members.next() {
                    Some(endpoint) => self.client.member(endpoint),
                    None => return,
                },
            };
            let written = here.and_then(|here| {
                let written = self.put(&here, &mut lease, &mut pending.news);
                // Another token may do, or another member.
                member = written.is_ok().then_some(here);
                written
            });
            let Err(why) = written else {
                if std::mem::take(&mut failures) >= all {
                    self.news.send(SourceNews::NotWritten(None));
                }
                let is_full = pending.news.len() >= HELD_AT_ONCE;
                next = Some(if is_full { now } else { now + GATHER });
                continue;
            };
            failures += 1;
            // A token that was idle for long is one failure.
            if failures > all {
                let why = format!("cannot write which peers are here: {}", words(why));
                self.news.send(SourceNews::NotWritten(Some(why)));
            }
            let pause = PAUSE * 2_u32.saturating_pow(failures.saturating_sub(all).min(8));
            next = Some(now + pause.min(LONG_PAUSE));
        }
    }

    /// Writes some of those that are pending.
    fn put(
        &self,
        member: &EtcdMember<'_>,
        lease: &mut Option<(String, Instant)>,
        pending: &mut HashMap<PublicKey, PeerNews>,
    ) -> Result<(), EtcdRefusal> {
        let (mut some, mut done) = (HashMap::new(), Vec::new());
        let told = self.told();
        for (key, news) in pending.iter() {
            if some.len() == HELD_AT_ONCE {
                break;
            }
            // What is no news, or is elsewhere since, is done, too.
            some.extend(
                told.peers
                    .claim(&self.gateway, key, *news)
                    .map(|it| (*key, it)),
            );
            done.push(*key);
        }
        drop(told);
        if !some.is_empty() {
            lease.take_if(|(_, since)| since.elapsed() >= LEASE_FOR);
            if lease.is_none() {
                let answer = self.client.ask(member, "lease/grant", &lease_request())?;
                *lease = Some((etcd_lease(&answer)?, Instant::now()));
            }
            let id = lease.as_ref().map_or("", |(id, _)| id);
            let asked = hold_request(&self.prefix, id, some.iter());
            let answer = self.client.ask(member, "kv/txn", &asked);
            let is_written = answer.and_then(|answer| is_changed(&answer));
            if let Err(EtcdRefusal::Failed(why)) = &is_written
                && why.contains("lease not found")
            {
                *lease = None;
            }
            if !is_written? {
                return Err(EtcdRefusal::Failed(
                    "it has not written what was asked".into(),
                ));
            }
            let mut told = self.told();
            for (key, peer) in some {
                told.peers.change(key, Some(peer));
            }
        }
        for key in done {
            pending.remove(&key);
        }
        Ok(())
    }

    fn take(&self, news: HeldNews, pending: &mut UnwrittenPeers) {
        match news {
            HeldNews::Peer(key, news) => pending.take(key, news),
            HeldNews::Look => {
                let status = UapiClient::connect(&self.interface).map(|mut client| client.get());
                let Ok(Ok(status)) = status else { return };
                let now = now();
                for peer in status.peers {
                    let is_here = |at: &Duration| now.saturating_sub(*at) < REJECT_AFTER_TIME;
                    let since = peer.last_handshake.filter(is_here);
                    if let (Some(since), Some(at)) = (since, peer.endpoint) {
                        pending.take(peer.public_key, PeerNews::Since(at, millis(since)));
                    }
                }
            }
        }
    }

    /// Follows what all gateways write, for good.
    pub(super) fn read(self, writer: &SyncSender<HeldNews>) {
        let all = self.address.endpoints.len();
        let mut failures = 0;
        for endpoint in self.address.endpoints.iter().cycle() {
            let member = self.client.member(endpoint);
            let ended = member.and_then(|member| self.follow(&member, writer));
            if std::mem::take(&mut self.told().is_current) {
                failures = 0;
            }
            failures += 1;
            if let Err(why) = ended
                && failures > all
            {
                let why = format!("cannot read which peers gateways have: {}", words(why));
                self.news.send(SourceNews::NotRead(Some(why)));
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn follow(
        &self,
        member: &EtcdMember<'_>,
        writer: &SyncSender<HeldNews>,
    ) -> Result<(), EtcdRefusal> {
        let (client, prefix) = (&self.client, &self.prefix);
        let mut listed = HeldPeers::default();
        let mut elsewhere = Vec::new();
        let revision = client.list(member, prefix, |pairs| {
            let now = now();
            for (key, peer) in pairs
                .into_iter()
                .filter_map(|it| held_change(prefix, it, now))
            {
                elsewhere.extend(self.elsewhere(now, key, peer.as_ref()));
                listed.change(key, peer);
            }
            Ok(())
        })?;
        let mut told = self.told();
        let mut lost = Vec::new();
        match revision < told.revision {
            // Another store, or one that was restored.
            true => lost = told.peers.went_back(&listed, &self.gateway),
            false => told.peers = listed,
        }
        (told.is_current, told.revision) = (true, revision);
        drop(told);
        self.news.send(SourceNews::NotRead(None));
        self.news.send(SourceNews::Held);
        for (key, peer) in lost {
            let news = PeerNews::Session(peer.last, peer.session);
            self.told().peers.change(key, None);
            // Without a receiver the process ends.
            let _ = writer.send(HeldNews::Peer(key, news));
        }
        self.look_up(elsewhere);
        let mut next = revision + 1;
        loop {
            client.watch(member, prefix, next, |changes| {
                next = changes.next;
                let (mut elsewhere, now) = (Vec::new(), now());
                let pairs = changes.pairs.into_iter();
                for (key, peer) in pairs.filter_map(|it| held_change(prefix, it, now)) {
                    elsewhere.extend(self.elsewhere(now, key, peer.as_ref()));
                    self.told().peers.change(key, peer);
                    self.news.send(SourceNews::Held);
                }
                let mut told = self.told();
                told.revision = told.revision.max(next - 1);
                drop(told);
                self.look_up(elsewhere);
                Ok(())
            })?;
        }
    }

    /// A peer that another gateway has, and that this one does not know, if it brings peers just in time.
    fn elsewhere(
        &self,
        now: Duration,
        key: PublicKey,
        peer: Option<&HeldPeer>,
    ) -> Option<Stranger> {
        let (wanted, _) = self.wanted.as_ref()?;
        let peer = peer.filter(|peer| peer.gateway != self.gateway)?;
        let age = now.saturating_sub(Duration::from_millis(peer.session));
        let is_news = age < REJECT_AFTER_TIME && !wanted.has(&key.to_string().into());
        Some(Stranger {
            key,
            from: peer.last.at.filter(|_| is_news)?,
            is_proven: true,
            is_elsewhere: true,
        })
    }

    fn look_up(&self, strangers: Vec<Stranger>) {
        if let Some((_, sender)) = &self.wanted {
            // As above.
            strangers.into_iter().for_each(|it| _ = sender.send(it));
        }
    }
}

fn lock(told: &Mutex<ToldPeers>) -> MutexGuard<'_, ToldPeers> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

fn words(why: EtcdRefusal) -> String {
    match why {
        EtcdRefusal::Failed(why) => why,
        EtcdRefusal::Token => "it refuses its own token".into(),
        EtcdRefusal::Gap | EtcdRefusal::TooLong => "its answer cannot be used".into(),
    }
}

/// The file for `adit call`.
pub(super) struct HeldFile {
    told: Arc<Mutex<ToldPeers>>,
    path: PathBuf,
    group: Option<u32>,
    due: Option<Instant>,
    next: Instant,
}

/// Where it is.
pub(crate) fn path(dir: &Path, interface: &str) -> PathBuf {
    dir.join(format!("{interface}.endpoints"))
}

impl HeldFile {
    pub(super) fn new(told: &Arc<Mutex<ToldPeers>>, path: PathBuf, group: Option<u32>) -> Self {
        Self {
            told: Arc::clone(told),
            path,
            group,
            due: None,
            next: Instant::now(),
        }
    }

    pub(super) fn told(&self) -> MutexGuard<'_, ToldPeers> {
        lock(&self.told)
    }

    /// It is to be written anew.
    pub(super) fn changed(&mut self) {
        self.due = Some(self.next);
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// Writes it, if it is time.
    pub(super) fn write(&mut self, now: Instant) -> std::io::Result<()> {
        if self.due.is_none_or(|at| at > now) {
            return Ok(());
        }
        let told = lock(&self.told);
        let lines = u32::try_from(told.peers.len()).unwrap_or(u32::MAX);
        let text = told.peers.list();
        drop(told);
        (self.due, self.next) = (None, now + FILE_EACH.max(FILE_LINE * lines));
        let written = replace(&self.path, text.as_bytes(), self.group).map(drop);
        if written.is_err() {
            self.changed();
        }
        written
    }
}

#[cfg(test)]
#[path = "held_tests.rs"]
mod tests;
