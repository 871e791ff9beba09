//! Changes of links, routes and addresses, and clones of this machine, as many interfaces of one
//! process hear of them: one netlink monitor for each network namespace, and one for clones. Each
//! interface is woken for what concerns it, by a descriptor of its own.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, Weak};

use adit_netlink::{CloneMonitor, Link, Monitor, NetlinkEvent};

use crate::host::platform::EventSource;
use crate::thread::lock::lock;
use crate::thread::wake::Waker;

/// The monitors that interfaces of one process share. Each is closed with the last interface that
/// needs it.
#[derive(Clone, Default)]
pub struct Watches(Arc<Mutex<Registry>>);

#[derive(Default)]
struct Registry {
    /// By [`Netns::id`](adit_netlink::netns::Netns::id). A monitor keeps its namespace alive, so that no other one gets its
    /// identity.
    namespaces: HashMap<(u64, u64), Weak<Watch<Monitor>>>,
    clones: Weak<Watch<CloneMonitor>>,
}

impl Watches {
    /// Adds the changes of what `topic` names in `netns`, whose monitor `open` brings, to `changes`, as
    /// long as the result lives.
    pub(crate) fn subscribe_with(
        &self,
        netns: (u64, u64),
        topic: Topic,
        changes: &Arc<Changes>,
        open: impl FnOnce() -> io::Result<Monitor>,
    ) -> io::Result<Subscription> {
        let known = &mut lock(&self.0).namespaces;
        known.retain(|_, watch| watch.strong_count() > 0);
        let watch = find_or_make(known.entry(netns).or_default(), open)?;
        Ok(watch.subscribe(topic, changes))
    }

    /// Adds clones of this machine to `changes`, as long as the result lives.
    pub(crate) fn subscribe_to_clones(&self, changes: &Arc<Changes>) -> io::Result<Subscription> {
        let watch = find_or_make(&mut lock(&self.0).clones, adit_io::helper::clones)?;
        Ok(watch.subscribe(Topic::Clones, changes))
    }
}

fn find_or_make<M>(
    known: &mut Weak<Watch<M>>,
    open: impl FnOnce() -> io::Result<M>,
) -> io::Result<Arc<Watch<M>>> {
    if let Some(watch) = known.upgrade() {
        return Ok(watch);
    }
    let watch = Arc::new(Watch {
        monitor: open()?,
        links: Mutex::default(),
        subscribers: Mutex::default(),
    });
    *known = Arc::downgrade(&watch);
    Ok(watch)
}

/// The changes that a subscriber wants to hear of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topic {
    /// The interface with this index in the namespace.
    Link(u32),
    /// Whatever decides on the route and source of a packet in the namespace.
    Routes,
    /// Clones of this machine.
    Clones,
}

impl Topic {
    fn flag(self) -> u8 {
        match self {
            Self::Link(_) => Changes::LINK,
            Self::Routes => Changes::ROUTES,
            Self::Clones => Changes::CLONES,
        }
    }
}

/// Changes for one interface since it was last asked. Its descriptor is readable while there
/// is something.
pub(crate) struct Changes {
    waker: Waker,
    flags: AtomicU8,
}

impl Changes {
    pub(crate) const LINK: u8 = 1;
    pub(crate) const ROUTES: u8 = 2;
    pub(crate) const CLONES: u8 = 4;

    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            waker: Waker::new()?,
            flags: AtomicU8::new(0),
        })
    }

    /// Adds these flags, and wakes.
    pub(crate) fn add(&self, flags: u8) {
        self.flags.fetch_or(flags, Ordering::Relaxed);
        self.waker.wake();
    }

    /// Takes those of these flags that are set, and leaves the others.
    pub(crate) fn take(&self, flags: u8) -> u8 {
        // First, so that flags that are set meanwhile wake again.
        self.waker.clear();
        let before = self.flags.fetch_and(!flags, Ordering::Relaxed);
        if before & !flags != 0 {
            self.waker.wake();
        }
        before & flags
    }
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

/// Holds a watch open and a subscriber subscribed.
pub(crate) struct Subscription {
    source: Arc<dyn EventSource>,
    _subscriber: Arc<Subscriber>,
}

impl Subscription {
    pub(crate) fn source(&self) -> Arc<dyn EventSource> {
        Arc::clone(&self.source)
    }
}

struct Subscriber {
    topic: Topic,
    changes: Arc<Changes>,
}

/// A monitor and those that it wakes; their subscriptions hold them.
struct Watch<M> {
    monitor: M,
    /// The state of each interface that decides on routes, as it was last told.
    links: Mutex<HashMap<u32, Carrier>>,
    subscribers: Mutex<Vec<Weak<Subscriber>>>,
}

impl<M> Watch<M> {
    fn subscribe(self: Arc<Self>, topic: Topic, changes: &Arc<Changes>) -> Subscription
    where
        Self: EventSource + 'static,
    {
        let changes = Arc::clone(changes);
        let subscriber = Arc::new(Subscriber { topic, changes });
        let mut subscribers = lock(&self.subscribers);
        subscribers.retain(|subscriber| subscriber.strong_count() > 0);
        subscribers.push(Arc::downgrade(&subscriber));
        drop(subscribers);
        Subscription {
            source: self,
            _subscriber: subscriber,
        }
    }

    /// Wakes those whose topic changed.
    fn wake(&self, is_changed: impl Fn(Topic) -> bool) {
        let subscribers = lock(&self.subscribers);
        for subscriber in subscribers.iter().filter_map(Weak::upgrade) {
            if is_changed(subscriber.topic) {
                subscriber.changes.add(subscriber.topic.flag());
            }
        }
    }
}

/// The state of an interface that decides on the routes through it: whether it is up, whether it has a carrier,
/// and its VRF. Of the routes that come and go with these the kernel tells little.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Carrier {
    up: bool,
    running: bool,
    controller: u32,
}

impl Carrier {
    fn of(link: &Link) -> Self {
        Self {
            up: link.up,
            running: link.running,
            controller: link.controller,
        }
    }
}

/// Links, routes and addresses of one network namespace.
impl EventSource for Watch<Monitor> {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.monitor.fd()]
    }

    fn take(&self) {
        let (mut links, mut routes, mut lost) = (HashSet::new(), false, false);
        let mut known = lock(&self.links);
        let drained = self.monitor.drain(|event| match event {
            NetlinkEvent::Link(link) => {
                let now = Carrier::of(&link);
                // One that is down has no routes.
                let before = known.insert(link.index, now).unwrap_or_default();
                routes |= before != now;
                links.insert(link.index);
            }
            NetlinkEvent::LinkGone { index } => {
                routes |= known.remove(&index).is_none_or(|before| before.up);
                links.insert(index);
            }
            NetlinkEvent::Address(_) | NetlinkEvent::AddressGone(_) | NetlinkEvent::Routing => {
                routes = true
            }
            NetlinkEvent::Lost => lost = true,
        });
        lost |= drained.is_err();
        drop(known);
        // A burst wakes each subscriber once.
        self.wake(|topic| match topic {
            Topic::Link(index) => lost || links.contains(&index),
            Topic::Routes => lost || routes,
            Topic::Clones => false,
        });
    }
}

/// Clones of this machine.
impl EventSource for Watch<CloneMonitor> {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.monitor.fds().collect()
    }

    fn take(&self) {
        if self.monitor.was_cloned() {
            self.wake(|_| true);
        }
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
