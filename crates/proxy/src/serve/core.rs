//! What all clients share: the descriptors that are waited for, the stack, names that are looked up.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit::net::NetError;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::held::HeldBytes;
use super::news::{ClientToken, FoundNames, NameKey, News, NewsQueue, Side, Told};
use super::options::{InfoPage, ServeLimits};
use super::pool::WaitingPool;
use super::report::{RefusalReason, ServeReport};
use crate::config::Resolve;
use crate::stack::Stack;

/// Bytes that are looked at in one go; the longest datagram, too.
pub(crate) const SCRATCH: usize = 64 << 10;
/// Bytes that a client moves before others have their turn.
pub(crate) const TURN: usize = 256 << 10;
/// Datagrams that a client moves before others have their turn.
pub(crate) const DATAGRAMS: usize = 64;

/// Clients of the info page at a time.
const INFO_CLIENTS: usize = 64;
/// Clients of HTTP at a time whose heads have more than a few kilobytes: at most 64 KB each, before it is known
/// who they are.
const LONG_HEADS: usize = 256;

/// What is to become of a client after its turn.
pub(crate) enum Step {
    /// It waits until something happens.
    Wait,
    /// It has more to do at once.
    Again,
    /// It goes on as another one, which begins.
    Become(Box<dyn ProxyClient>),
    /// It is over.
    Done,
}

/// A client, or something that brings clients. Calls must not wait.
pub(crate) trait ProxyClient: Send {
    /// It has a place: descriptors can be watched.
    fn begin(&mut self, core: &mut ServeCore, token: ClientToken) -> Step;

    /// Something happened to a descriptor, or it has more to do (then without flags).
    fn event(&mut self, core: &mut ServeCore, token: ClientToken, flags: EventFlags) -> Step;

    /// What it asked for came.
    fn told(&mut self, _core: &mut ServeCore, _token: ClientToken, _news: News) -> Step {
        Step::Wait
    }

    /// When it is to be called, if nothing happens before.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Its deadline has passed.
    fn expired(&mut self, _core: &mut ServeCore, _token: ClientToken) -> Step {
        Step::Done
    }

    /// Whether it counts as a client.
    fn counts(&self) -> bool {
        true
    }

    /// It was given up because of a defect.
    fn failed(&mut self, core: &mut ServeCore);
}

/// What all clients share.
pub(crate) struct ServeCore {
    epoll: OwnedFd,
    pub(crate) stack: Arc<dyn Stack>,
    pub(crate) resolve: Resolve,
    pub(crate) limits: ServeLimits,
    pub(crate) report: Arc<ServeReport>,
    pub(crate) news: Arc<NewsQueue>,
    pools: WaitingPools,
    waiting_for: HashMap<NameKey, Vec<ClientToken>>,
    /// For what is looked at; of its full length at the begin of each call.
    pub(crate) scratch: Vec<u8>,
    pub(crate) now: Instant,
    /// Clients that came in this turn.
    pub(crate) arrivals: Vec<Box<dyn ProxyClient>>,
    /// Clients that there are.
    pub(crate) clients: usize,
    /// Those of the info page, in the order in which they came.
    info: VecDeque<ClientToken>,
    /// Datagrams of all clients that wait for names.
    pub(crate) held: HeldBytes,
    /// Of clients of HTTP whose heads are long.
    pub(crate) long_heads: Tickets,
}

/// Threads for what waits.
pub(crate) struct WaitingPools {
    /// For names inside the tunnel.
    pub(crate) inside: WaitingPool,
    /// For names outside, if something is forwarded to one.
    pub(crate) outside: Option<WaitingPool>,
    /// For pages, if there are any.
    pub(crate) pages: Option<WaitingPool>,
}

/// A number of tickets, each of which is had until it is dropped.
pub(crate) struct Tickets {
    all: Arc<()>,
    most: usize,
}

/// One of them.
pub(crate) struct Ticket(#[expect(dead_code, reason = "it is counted while it is there")] Arc<()>);

impl Tickets {
    fn new(most: usize) -> Self {
        Self {
            all: Arc::new(()),
            most,
        }
    }

    /// One, if one is left.
    pub(crate) fn take(&self) -> Option<Ticket> {
        let is_left = Arc::strong_count(&self.all) <= self.most;
        is_left.then(|| Ticket(Arc::clone(&self.all)))
    }
}

impl ServeCore {
    pub(crate) fn new(
        stack: Arc<dyn Stack>,
        resolve: Resolve,
        limits: ServeLimits,
        report: Arc<ServeReport>,
        pools: WaitingPools,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self {
            epoll,
            stack,
            resolve,
            limits,
            report,
            news: Arc::new(NewsQueue::new()?),
            pools,
            waiting_for: HashMap::new(),
            scratch: Vec::new(),
            now: Instant::now(),
            arrivals: Vec::new(),
            clients: 0,
            info: VecDeque::new(),
            held: HeldBytes::default(),
            long_heads: Tickets::new(LONG_HEADS),
        })
    }

    pub(crate) fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    // Descriptors.

    /// Waits for a descriptor of a client. False if the system refuses it.
    pub(crate) fn watch(&self, fd: impl AsFd, token: ClientToken, flags: EventFlags) -> bool {
        epoll::add(&self.epoll, fd, EventData::new_u64(token.0), flags).is_ok()
    }

    /// Waits for something else of it.
    pub(crate) fn rewatch(&self, fd: impl AsFd, token: ClientToken, flags: EventFlags) -> bool {
        epoll::modify(&self.epoll, fd, EventData::new_u64(token.0), flags).is_ok()
    }

    /// Waits for it no longer: it becomes the stack's.
    pub(crate) fn unwatch(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    // What waits, on other threads.

    /// Has a name looked up for a host; a client is told. Equal names are looked up once at a time.
    pub(crate) fn look_up(
        &mut self,
        (token, asker): (ClientToken, Option<IpAddr>),
        side: Side,
        name: &str,
    ) -> Result<(), RefusalReason> {
        let key: NameKey = (side, Arc::from(name));
        let waiting = match self.waiting_for.entry(key.clone()) {
            Entry::Occupied(waiting) => {
                let waiting = waiting.into_mut();
                if waiting.last() != Some(&token) {
                    waiting.push(token);
                }
                return Ok(());
            }
            Entry::Vacant(none) => none,
        };
        let news = Arc::clone(&self.news);
        let (until, resolve) = (self.now + self.limits.connect, self.resolve);
        let name = Arc::clone(&key.1);
        let is_asked = match side {
            Side::Inside => {
                let stack = Arc::clone(&self.stack);
                let ask = move |left| inside(&*stack, &name, left, resolve);
                let job = move || tell_names(&news, key, until, ask);
                self.pools.inside.run(asker, job)
            }
            Side::Outside => {
                let job = move || tell_names(&news, key, until, |_| outside(&name));
                let pool = self.pools.outside.as_ref();
                pool.is_some_and(|pool| pool.run(asker, job))
            }
        };
        if !is_asked {
            return Err(RefusalReason::Busy);
        }
        waiting.insert(vec![token]);
        Ok(())
    }

    /// Those that wait for a name, which wait no longer.
    pub(crate) fn waiting_for(&mut self, key: &NameKey) -> Vec<ClientToken> {
        self.waiting_for.remove(key).unwrap_or_default()
    }

    /// Has a page made; a client is told.
    pub(crate) fn make_page(
        &self,
        token: ClientToken,
        make: impl FnOnce() -> Option<InfoPage> + Send + 'static,
    ) -> bool {
        let news = Arc::clone(&self.news);
        let job = move || {
            let page = catch_unwind(AssertUnwindSafe(make)).unwrap_or(None);
            news.tell(Told::Client(token, News::Page(page)));
        };
        let pool = self.pools.pages.as_ref();
        pool.is_some_and(|pool| pool.run(None, job))
    }

    /// A client of the info page has begun: the last ones stay.
    pub(crate) fn info_client(&mut self, token: ClientToken) {
        self.info.push_back(token);
        if self.info.len() > INFO_CLIENTS
            && let Some(oldest) = self.info.pop_front()
        {
            self.news.tell(Told::Client(oldest, News::Displaced));
        }
    }

    /// A client has ended.
    pub(crate) fn ended(&mut self, token: ClientToken) {
        self.info.retain(|it| *it != token);
    }

    /// Connects inside the tunnel; a client is told.
    pub(crate) fn open(
        &self,
        token: ClientToken,
        remote: SocketAddr,
        timeout: Duration,
    ) -> Result<(), RefusalReason> {
        let news = Arc::clone(&self.news);
        let then = move |opened: Result<_, NetError>| {
            let opened = opened.map_err(|error| RefusalReason::of(&error));
            news.tell(Told::Client(token, News::Opened(opened)));
        };
        let asked = self.stack.open_tcp(remote, timeout, Box::new(then));
        asked.map_err(|error| RefusalReason::of(&error))
    }
}

/// Tells what came of a look-up that has this much time, also of one that panicked: others wait for it.
fn tell_names(
    news: &NewsQueue,
    key: NameKey,
    until: Instant,
    look_up: impl FnOnce(Duration) -> FoundNames,
) {
    let left = until.saturating_duration_since(Instant::now());
    let names = match left.is_zero() {
        // It has waited for a thread all the time.
        true => Err(RefusalReason::TimedOut),
        false => {
            catch_unwind(AssertUnwindSafe(|| look_up(left))).unwrap_or(Err(RefusalReason::Defect))
        }
    };
    news.tell(Told::Names(key, names));
}

fn inside(stack: &dyn Stack, name: &str, timeout: Duration, resolve: Resolve) -> FoundNames {
    let found = stack.look_up(name, timeout);
    let found = found.map_err(|error| RefusalReason::of(&error))?;
    some(found.into_iter().filter(|ip| is_wanted(resolve, ip)))
}

/// Whether an address of a name is to be tried.
pub(crate) fn is_wanted(resolve: Resolve, ip: &IpAddr) -> bool {
    match resolve {
        Resolve::Auto => true,
        Resolve::Ipv4 => ip.is_ipv4(),
        Resolve::Ipv6 => ip.is_ipv6(),
    }
}

fn outside(name: &str) -> FoundNames {
    let found = (name, 0).to_socket_addrs();
    let found = found.map_err(|_| RefusalReason::UnknownName)?;
    some(found.map(|address| address.ip()))
}

fn some(found: impl Iterator<Item = IpAddr>) -> FoundNames {
    let found: Arc<[IpAddr]> = found.collect();
    match found.is_empty() {
        true => Err(RefusalReason::UnknownName),
        false => Ok(found),
    }
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
