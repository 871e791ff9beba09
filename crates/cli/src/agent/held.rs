//! `--write-back`: which gateway has which peer is written to keys of the store, and read from there.
//!
//! One thread writes what the interface's events tell: a new session, or another endpoint. Another one follows what
//! all gateways write, and the main thread keeps that in a file for `adit call`: the store may be away when a gateway
//! takes the place of another one.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use adit_ctl::keys::public_from_base64;
use adit_ctl::status::{EventJson, EventKind};
use adit_ctl::uapi::UapiClient;
use adit_fleet::{
    EtcdAddress, EtcdRefusal, HELD_AT_ONCE, HeldPeer, HeldPeers, etcd_lease, held_change,
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
/// How long keys are written with one lease: half of what it lives.
const LEASE_FOR: Duration = Duration::from_secs(adit_fleet::LEASE / 2);
/// Between two writes of the file, at least; and for each line, which takes 3 µs.
const FILE_EACH: Duration = Duration::from_secs(1);
const FILE_LINE: Duration = Duration::from_micros(100);

/// What the interface tells of its peers.
pub(super) enum HeldNews {
    /// This peer is here, since the last session or at another endpoint.
    Here(PublicKey, LastSeen, u64),
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
        let timestamp = |text: &Option<String>| -> Option<Tai64N> { text.as_deref()?.parse().ok() };
        let last = LastSeen {
            at: event.endpoint.as_deref()?.parse().ok(),
            sent: timestamp(&event.sent).unwrap_or_default(),
            received: timestamp(&event.received).unwrap_or_default(),
        };
        let time = Duration::try_from_secs_f64(event.time).ok()?;
        let key = public_from_base64(event.peer.as_deref()?)?;
        Some(Self::Here(key, last, millis(time)))
    }
}

fn millis(since_epoch: Duration) -> u64 {
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
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
    pub(super) held: Arc<Mutex<HeldPeers>>,
    /// To the thread that looks peers up: those of other gateways are brought here, too.
    pub(super) wanted: Option<(Arc<WantedRecords>, SyncSender<Stranger>)>,
}

impl WriteBack {
    fn held(&self) -> MutexGuard<'_, HeldPeers> {
        lock(&self.held)
    }

    /// Writes until nobody tells of any more.
    pub(super) fn write(self, told: &Receiver<HeldNews>) {
        let endpoints = self.address.endpoints.clone();
        let mut members = endpoints.iter().cycle();
        let mut member: Option<EtcdMember<'_>> = None;
        let mut lease: Option<(String, Instant)> = None;
        let mut pending = HashMap::new();
        let mut failures = 0;
        while let Ok(first) = told.recv() {
            self.take(first, &mut pending);
            std::thread::sleep(GATHER);
            loop {
                while let Ok(more) = told.try_recv() {
                    self.take(more, &mut pending);
                }
                if pending.is_empty() {
                    break;
                }
                let here = match (member.take(), members.next()) {
                    (Some(member), _) => Ok(member),
                    (None, Some(endpoint)) => self.client.member(endpoint),
                    (None, None) => return,
                };
                let written = here.and_then(|here| {
                    self.put(&here, &mut lease, &mut pending)?;
                    member = Some(here);
                    Ok(())
                });
                let Err(why) = written else {
                    if std::mem::take(&mut failures) >= endpoints.len() {
                        self.news.send(SourceNews::NotHeld(None));
                    }
                    continue;
                };
                // It may be gone with what the store has lost.
                lease = None;
                failures += 1;
                if failures == endpoints.len() {
                    self.news.send(SourceNews::NotHeld(Some(words(why))));
                }
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Writes some of those that are pending.
    fn put(
        &self,
        member: &EtcdMember<'_>,
        lease: &mut Option<(String, Instant)>,
        pending: &mut HashMap<PublicKey, HeldPeer>,
    ) -> Result<(), EtcdRefusal> {
        let current = lease
            .take()
            .filter(|(_, since)| since.elapsed() < LEASE_FOR);
        let (id, since) = match current {
            Some(current) => current,
            None => {
                let answer = self.client.ask(member, "lease/grant", &lease_request())?;
                (etcd_lease(&answer)?, Instant::now())
            }
        };
        // The oldest first: those behind them are newer in the store, too.
        let order: BTreeSet<_> = (pending.iter())
            .map(|(key, peer)| (peer.session, key.0))
            .collect();
        let some: Vec<_> = (order.into_iter().take(HELD_AT_ONCE))
            .map(|(_, key)| PublicKey(key))
            .collect();
        let peers = some.iter().filter_map(|key| pending.get_key_value(key));
        let asked = hold_request(&self.prefix, &id, peers);
        if !is_changed(&self.client.ask(member, "kv/txn", &asked)?)? {
            return Err(EtcdRefusal::Failed(
                "it has not written what was asked".into(),
            ));
        }
        *lease = Some((id, since));
        some.iter().for_each(|key| drop(pending.remove(key)));
        Ok(())
    }

    fn take(&self, news: HeldNews, pending: &mut HashMap<PublicKey, HeldPeer>) {
        match news {
            HeldNews::Here(key, last, session) => self.here(key, last, session, pending),
            HeldNews::Look => {
                let status = UapiClient::connect(&self.interface).map(|mut client| client.get());
                let Ok(Ok(status)) = status else { return };
                let now = now();
                for peer in status.peers {
                    let since = peer
                        .last_handshake
                        .filter(|at| now.saturating_sub(*at) < REJECT_AFTER_TIME);
                    if let (Some(since), Some(at)) = (since, peer.endpoint) {
                        self.here(peer.public_key, LastSeen::at(at), millis(since), pending);
                    }
                }
            }
        }
    }

    fn here(
        &self,
        key: PublicKey,
        last: LastSeen,
        session: u64,
        pending: &mut HashMap<PublicKey, HeldPeer>,
    ) {
        let held = self.held();
        let before = pending.get(&key).or_else(|| held.get(&key));
        if let Some(peer) = here(&self.gateway, before, last, session) {
            pending.insert(key, peer);
        }
    }

    /// Follows what all gateways write, for good.
    pub(super) fn read(self) {
        for endpoint in self.address.endpoints.iter().cycle() {
            // Whatever it says: another member may be well, and a list has all.
            if let Ok(member) = self.client.member(endpoint) {
                let _ = self.follow(&member);
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn follow(&self, member: &EtcdMember<'_>) -> Result<(), EtcdRefusal> {
        let (client, prefix) = (&self.client, &self.prefix);
        let mut listed = HeldPeers::default();
        let mut elsewhere = Vec::new();
        let revision = client.list(member, prefix, |pairs| {
            for (key, peer) in pairs.into_iter().filter_map(|it| held_change(prefix, it)) {
                elsewhere.extend(self.elsewhere(key, peer.as_ref()));
                listed.change(key, peer);
            }
            Ok(())
        })?;
        *self.held() = listed;
        self.look_up(elsewhere);
        let mut next = revision + 1;
        loop {
            self.news.send(SourceNews::Held);
            client.watch(member, prefix, next, |changes| {
                next = changes.next;
                let mut elsewhere = Vec::new();
                for (key, peer) in
                    (changes.pairs.into_iter()).filter_map(|it| held_change(prefix, it))
                {
                    elsewhere.extend(self.elsewhere(key, peer.as_ref()));
                    self.held().change(key, peer);
                    self.news.send(SourceNews::Held);
                }
                self.look_up(elsewhere);
                Ok(())
            })?;
        }
    }

    /// A peer that another gateway has, and that this one does not know, if it brings peers just in time.
    fn elsewhere(&self, key: PublicKey, peer: Option<&HeldPeer>) -> Option<Stranger> {
        let (wanted, _) = self.wanted.as_ref()?;
        let peer = peer.filter(|peer| peer.gateway != self.gateway)?;
        let age = now().saturating_sub(Duration::from_millis(peer.session));
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
            // Without a receiver the process ends.
            strangers.into_iter().for_each(|it| _ = sender.send(it));
        }
    }
}

/// Since the Unix epoch.
fn now() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

/// A peer is here: what is to be written, if it is not elsewhere since, and that is news.
fn here(
    gateway: &str,
    before: Option<&HeldPeer>,
    last: LastSeen,
    session: u64,
) -> Option<HeldPeer> {
    // Not all news has timestamps; the greatest ones are what counts, whichever gateway they are of.
    let known = before.map_or_else(LastSeen::default, |it| it.last);
    let peer = HeldPeer {
        gateway: gateway.to_owned(),
        last: LastSeen {
            at: last.at,
            sent: last.sent.max(known.sent),
            received: last.received.max(known.received),
        },
        session,
    };
    let is_news = before.is_none_or(|it| it.session <= session && *it != peer);
    is_news.then_some(peer)
}

fn lock(held: &Mutex<HeldPeers>) -> MutexGuard<'_, HeldPeers> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

fn words(why: EtcdRefusal) -> String {
    let why = match why {
        EtcdRefusal::Failed(why) => why,
        EtcdRefusal::Token => "it refuses its own token".into(),
        EtcdRefusal::Gap | EtcdRefusal::TooLong => "its answer cannot be used".into(),
    };
    format!("cannot write which peers this gateway has: {why}")
}

/// The file for `adit call`.
pub(super) struct HeldFile {
    held: Arc<Mutex<HeldPeers>>,
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
    pub(super) fn new(held: &Arc<Mutex<HeldPeers>>, path: PathBuf, group: Option<u32>) -> Self {
        Self {
            held: Arc::clone(held),
            path,
            group,
            due: None,
            next: Instant::now(),
        }
    }

    pub(super) fn held(&self) -> MutexGuard<'_, HeldPeers> {
        lock(&self.held)
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
        let held = lock(&self.held);
        let lines = u32::try_from(held.len()).unwrap_or(u32::MAX);
        let text = held.list();
        drop(held);
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
