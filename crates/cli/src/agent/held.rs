//! `--write-back`: gateways write to keys of etcd which peers they have.
//!
//! 1. The writer thread gets events of the interface (new sessions, other endpoints), and writes the keys.
//! 2. The reader thread lists and watches the keys of all gateways.
//! 3. The main thread writes what was read to a file for `adit call`, since etcd may be away at a fail-over.
//!
//! The writer waits while the reader is not up to date: the keys of other gateways may be newer.

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

/// Events within this time are written in one transaction.
const GATHER: Duration = Duration::from_millis(50);
/// Shortest time between two writes of peers that have moved, since a peer may move with each packet.
const MOVES_EACH: Duration = Duration::from_secs(1);
/// Longest pause after a failure. Each failure doubles the pause.
const LONG_PAUSE: Duration = Duration::from_secs(30);
/// How long the writer uses a lease: half of its life.
const LEASE_FOR: Duration = Duration::from_secs(adit_fleet::LEASE / 2);
/// Shortest time between two writes of the file, and the same for each line, which takes 3 µs.
const FILE_EACH: Duration = Duration::from_secs(1);
const FILE_LINE: Duration = Duration::from_micros(100);

/// News for the writer.
pub(super) enum HeldNews {
    Peer(PublicKey, PeerNews),
    /// Events were missed: the whole status is needed.
    Look,
}

impl HeldNews {
    /// The news in an event, if there is any.
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

/// The time since the Unix epoch.
fn now() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

/// The keys of all gateways, as the reader has them.
#[derive(Default)]
pub(super) struct FollowedPeers {
    pub(super) peers: HeldPeers,
    /// The reader has a whole list, and watches.
    is_current: bool,
    /// The last revision of the store that was read.
    revision: i64,
}

/// News that is not written yet.
#[derive(Default)]
struct UnwrittenPeers {
    news: HashMap<PublicKey, PeerNews>,
    /// Peers that have moved, until [`MOVES_EACH`] is over.
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

    /// Adds the peers that have moved to the news.
    fn add_moves(&mut self) {
        for (key, to) in std::mem::take(&mut self.moves) {
            self.news.entry(key).or_insert(PeerNews::Moved(to));
        }
    }
}

/// What the writer and the reader share.
#[derive(Clone)]
pub(super) struct WriteBack {
    pub(super) interface: String,
    pub(super) address: EtcdAddress,
    pub(super) prefix: String,
    pub(super) gateway: String,
    pub(super) client: Arc<EtcdClient>,
    pub(super) news: NewsSender,
    pub(super) state: Arc<Mutex<FollowedPeers>>,
    /// With `--just-in-time`: the thread that brings the peers of other gateways.
    pub(super) wanted: Option<(Arc<WantedRecords>, SyncSender<Stranger>)>,
}

impl WriteBack {
    fn state(&self) -> MutexGuard<'_, FollowedPeers> {
        lock(&self.state)
    }

    /// The writer thread.
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
            if !self.state().is_current {
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
                // After a failure, the next member is asked, with a new token.
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
            // One failure is normal: a token expires when it is not used.
            if failures > all {
                let why = format!("cannot write which peers are here: {}", words(why));
                self.news.send(SourceNews::NotWritten(Some(why)));
            }
            let pause = PAUSE * 2_u32.saturating_pow(failures.saturating_sub(all).min(8));
            next = Some(now + pause.min(LONG_PAUSE));
        }
    }

    /// Writes up to [`HELD_AT_ONCE`] peers.
    fn put(
        &self,
        member: &EtcdMember<'_>,
        lease: &mut Option<(String, Instant)>,
        pending: &mut HashMap<PublicKey, PeerNews>,
    ) -> Result<(), EtcdRefusal> {
        let (mut some, mut done) = (HashMap::new(), Vec::new());
        let state = self.state();
        for (key, news) in pending.iter() {
            if some.len() == HELD_AT_ONCE {
                break;
            }
            // A peer that another gateway has since needs no key.
            some.extend(
                state
                    .peers
                    .claim(&self.gateway, key, *news)
                    .map(|it| (*key, it)),
            );
            done.push(*key);
        }
        drop(state);
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
            let mut state = self.state();
            for (key, peer) in some {
                state.peers.change(key, Some(peer));
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

    /// The reader thread.
    pub(super) fn read(self, writer: &SyncSender<HeldNews>) {
        let all = self.address.endpoints.len();
        let mut failures = 0;
        for endpoint in self.address.endpoints.iter().cycle() {
            let member = self.client.member(endpoint);
            let ended = member.and_then(|member| self.follow(&member, writer));
            if std::mem::take(&mut self.state().is_current) {
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
        let mut state = self.state();
        let mut lost = Vec::new();
        match revision < state.revision {
            // It is another store, or was restored.
            true => lost = state.peers.went_back(&listed, &self.gateway),
            false => state.peers = listed,
        }
        (state.is_current, state.revision) = (true, revision);
        drop(state);
        self.news.send(SourceNews::NotRead(None));
        self.news.send(SourceNews::Held);
        for (key, peer) in lost {
            let news = PeerNews::Session(peer.last, peer.session);
            self.state().peers.change(key, None);
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
                    self.state().peers.change(key, peer);
                    self.news.send(SourceNews::Held);
                }
                let mut state = self.state();
                state.revision = state.revision.max(next - 1);
                drop(state);
                self.look_up(elsewhere);
                Ok(())
            })?;
        }
    }

    /// With `--just-in-time`: a peer of another gateway that this interface does not have.
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

fn lock(state: &Mutex<FollowedPeers>) -> MutexGuard<'_, FollowedPeers> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn words(why: EtcdRefusal) -> String {
    match why {
        EtcdRefusal::Failed(why) => why,
        EtcdRefusal::Token => "it refuses its own token".into(),
        EtcdRefusal::Gap | EtcdRefusal::TooLong => "its answer cannot be used".into(),
    }
}

/// The file with endpoints, for `adit call`.
pub(super) struct HeldFile {
    state: Arc<Mutex<FollowedPeers>>,
    path: PathBuf,
    group: Option<u32>,
    due: Option<Instant>,
    next: Instant,
}

/// The path of that file.
pub(crate) fn path(dir: &Path, interface: &str) -> PathBuf {
    dir.join(format!("{interface}.endpoints"))
}

impl HeldFile {
    pub(super) fn new(
        state: &Arc<Mutex<FollowedPeers>>,
        path: PathBuf,
        group: Option<u32>,
    ) -> Self {
        Self {
            state: Arc::clone(state),
            path,
            group,
            due: None,
            next: Instant::now(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, FollowedPeers> {
        lock(&self.state)
    }

    /// The reader has read something new.
    pub(super) fn changed(&mut self) {
        self.due = Some(self.next);
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// Writes it, if it is time: `None` if it is not.
    pub(super) fn write(&mut self, now: Instant) -> Option<std::io::Result<()>> {
        self.due.filter(|at| *at <= now)?;
        let state = lock(&self.state);
        let lines = u32::try_from(state.peers.len()).unwrap_or(u32::MAX);
        let text = state.peers.list();
        drop(state);
        (self.due, self.next) = (None, now + FILE_EACH.max(FILE_LINE * lines));
        let written = replace(&self.path, text.as_bytes(), self.group).map(drop);
        if written.is_err() {
            self.changed();
        }
        Some(written)
    }
}

#[cfg(test)]
#[path = "held_tests.rs"]
mod tests;
