//! The shards of a process, and how one that has too much to do gets help.
//!
//! A shard whose queue never becomes empty asks an idle shard to join: that one polls the same queue
//! through its gates, for as long as it finds something there. More threads help only while there
//! are CPUs that nothing else needs; otherwise a helper takes time from the processes whose packets
//! it forwards. So a shard asks when several polls in a row saw an idle CPU, a helper leaves when
//! there is none, and it takes longer each time until the next one is asked. It also leaves, for a short
//! while, where it has the last CPU and the two of them empty the queue.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use adit_io::{TunQueue, UdpSocket};
use adit_proto::Time;
use arrayvec::ArrayVec;
use rustix::event::epoll::EventFlags;

use crate::order::lanes::LANES;
use crate::shards::inbound_thread::InboundThread;
use crate::shards::queues::{Queues, Role, SharedBuffers, Worker};
use crate::shards::shard::{Shard, ShardInbox};
use crate::shared::common::{Served, ShardHandle};
use crate::thread::lock::lock;
use crate::thread::placement;
use crate::thread::poll::{Descriptor, Polled};

/// Polls in a row that left something in a queue, before its owner looks for an idle CPU.
const BUSY_POLLS: u32 = 4;
/// How often it looks, and how often a helper does.
const LOOK: Duration = Duration::from_millis(1);
/// So many looks in a row have to see an idle CPU, before help is asked for.
const IDLE_LOOKS: u32 = 4;
/// So many looks of a helper decide together whether it stays.
const LOOKS: usize = 8;
/// After a helper found no CPU, so long no other is asked; twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_millis(16);
const MAX_DOUBLINGS: u32 = 7;
/// A helper that had a CPU for so long helped.
const HELPED: Duration = Duration::from_millis(100);
/// So long a helper looks for work before it leaves.
const LINGER: Duration = Duration::from_micros(200);

/// Which threads process a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// One thread for each interface, from the TUN to the socket and back.
    Inline,
    /// One thread takes packets and puts them; others encrypt and decrypt, and it too while these have
    /// more than they can do.
    Pipeline,
    /// As inline, but idle threads join where one is not enough and CPUs are idle.
    #[default]
    Auto,
}

impl Policy {
    /// All, each with its name.
    pub const ALL: [(&str, Self); 3] = [
        ("inline", Self::Inline),
        ("pipeline", Self::Pipeline),
        ("auto", Self::Auto),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// How many threads an engine has, and where they run.
#[derive(Clone, Debug)]
pub struct ThreadSettings {
    /// Shards, at most.
    pub shards: usize,
    /// Which of them process an interface.
    pub policy: Policy,
    /// The CPUs of shards and of the thread for sparse flows, unless they may use all that the
    /// process may.
    pub shard_cpus: Option<Vec<usize>>,
    /// The CPUs of the control thread, likewise.
    pub control_cpus: Option<Vec<usize>>,
}

impl Default for ThreadSettings {
    fn default() -> Self {
        Self {
            shards: std::thread::available_parallelism().map_or(1, usize::from),
            policy: Policy::default(),
            shard_cpus: None,
            control_cpus: None,
        }
    }
}

impl From<usize> for ThreadSettings {
    fn from(shards: usize) -> Self {
        Self {
            shards,
            ..Self::default()
        }
    }
}

impl ThreadSettings {
    /// How many CPUs the shards may use.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if this process may use none of those that are named for some thread.
    pub fn cpus(&self) -> io::Result<usize> {
        let usable = |cpus: &Option<Vec<usize>>| match cpus {
            None => Ok(std::thread::available_parallelism().map_or(1, usize::from)),
            Some(cpus) => match placement::usable(cpus) {
                0 => Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "this process may use none of them (`taskset -p` and the cpuset of its control group say which)",
                )),
                count => Ok(count),
            },
        };
        usable(&self.control_cpus)?;
        usable(&self.shard_cpus)
    }
}

/// One for each shard.
type Shards<T, U> = Vec<Arc<ShardInbox<T, U>>>;

/// A shard, and that it serves one interface more.
type Assigned<T, U> = (Arc<ShardInbox<T, U>>, Served);

/// The shards of a process.
pub(crate) struct Crew<T, U> {
    /// Shards at most, times four, and the policy.
    in_force: AtomicU64,
    shards: Mutex<Shards<T, U>>,
    /// Those that end, or have ended.
    retired: Mutex<Shards<T, U>>,
    pub(crate) inbound: Arc<InboundThread<T, U>>,
    pub(crate) buffers: Arc<SharedBuffers>,
    threads: Mutex<Vec<JoinHandle<io::Result<()>>>>,
    cpus: Option<Vec<usize>>,
    load: Load,
}

impl<T: TunQueue + 'static, U: UdpSocket + 'static> Crew<T, U> {
    pub(crate) fn new(settings: &ThreadSettings) -> io::Result<Self> {
        let buffers = Arc::<SharedBuffers>::default();
        Ok(Self {
            in_force: AtomicU64::new(encode(settings.shards, settings.policy)),
            cpus: settings.shard_cpus.clone(),
            shards: Mutex::default(),
            retired: Mutex::default(),
            inbound: Arc::new(InboundThread::new(Arc::clone(&buffers))?),
            buffers,
            threads: Mutex::default(),
            load: Load::open(),
        })
    }

    /// Starts a thread that ends with the crew, on these CPUs.
    pub(crate) fn spawn(
        &self,
        name: String,
        cpus: Option<&[usize]>,
        run: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let cpus = cpus.map(<[usize]>::to_vec);
        let begin = move || {
            if let Some(cpus) = cpus {
                placement::restrict(&cpus);
            }
            run()
        };
        let builder = std::thread::Builder::new().name(name);
        let thread = adit_sandbox::run(|| builder.spawn(begin))?;
        let mut threads = lock(&self.threads);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// Starts the thread for sparse flows.
    pub(crate) fn start_inbound_thread(&self) -> io::Result<()> {
        let inbound = Arc::clone(&self.inbound);
        self.spawn("adit-inbound".into(), self.cpus.as_deref(), move || {
            inbound.run()
        })
    }

    /// How many shards there are at most, and the policy.
    pub(crate) fn in_force(&self) -> (usize, Policy) {
        decode(self.in_force.load(Ordering::Relaxed))
    }

    /// Changes both. Interfaces move until each shard has as many as any other, or one less.
    pub(crate) fn change(self: &Arc<Self>, max_shards: usize, policy: Policy) -> io::Result<()> {
        if max_shards == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut shards = self.shards();
        let interfaces: usize = shards.iter().map(|shard| shard.handle.load()).sum();
        while shards.len() < max_shards.min(interfaces) {
            self.start(&mut shards)?;
        }
        self.in_force
            .store(encode(max_shards, policy), Ordering::Relaxed);
        let too_many = max_shards.min(shards.len());
        let mut retired = lock(&self.retired);
        retired.retain(|shard| !shard.has_ended());
        for shard in shards.drain(too_many..) {
            shard.handle.retire();
            retired.push(shard);
        }
        let most = interfaces.div_ceil(shards.len().max(1));
        for shard in shards.iter().filter(|shard| shard.handle.load() > most) {
            shard.keep(most);
        }
        Ok(())
    }

    /// Those whose threads run: one that panicked gets no more interfaces.
    fn shards(&self) -> MutexGuard<'_, Shards<T, U>> {
        let mut shards = lock(&self.shards);
        shards.retain(|shard| !shard.has_ended());
        shards
    }

    /// The shard that has least to serve.
    pub(crate) fn shard_for_one_more(self: &Arc<Self>) -> io::Result<Assigned<T, U>> {
        let mut shards = self.shards();
        let is_busy = |shard: &Arc<ShardInbox<T, U>>| shard.handle.load() > 0;
        if shards.iter().all(is_busy) && shards.len() < self.in_force().0 {
            self.start(&mut shards)?;
        }
        least(shards.iter()).ok_or(io::ErrorKind::InvalidInput.into())
    }

    /// The shard that has least to serve, of those that this one can give an interface to.
    pub(crate) fn other_shard(&self, this: &Arc<ShardInbox<T, U>>) -> Option<Assigned<T, U>> {
        let shards = self.shards();
        least(shards.iter().filter(|shard| !Arc::ptr_eq(shard, this)))
    }

    fn start(self: &Arc<Self>, shards: &mut Shards<T, U>) -> io::Result<()> {
        // Threads that are confined make no descriptors.
        let crew = Arc::clone(self);
        let (inbox, shard) = adit_sandbox::run(move || {
            let handle = ShardHandle::new(Arc::clone(&crew.inbound.waker))?;
            let inbox = Arc::new(ShardInbox::new(handle));
            let shard = Shard::new(Arc::clone(&inbox), crew)?;
            Ok::<_, io::Error>((inbox, shard))
        })?;
        let name = format!("adit-shard-{}", shards.len());
        self.spawn(name, self.cpus.as_deref(), move || shard.run())?;
        shards.push(inbox);
        Ok(())
    }

    /// How many interfaces each shard serves.
    #[cfg(test)]
    pub(crate) fn loads(&self) -> Vec<usize> {
        let shards = lock(&self.shards);
        shards.iter().map(|shard| shard.handle.load()).collect()
    }

    /// The owner of these queues polled one of them: gets help if they need some. How many of the
    /// batches that wait for a helper it works on itself, before it polls again.
    pub(crate) fn polled(
        self: &Arc<Self>,
        queues: &Arc<Queues<T, U>>,
        (queue, polled): (Descriptor, Polled),
        (now, role): (Time, Role),
    ) -> usize {
        let (max_shards, policy) = self.in_force();
        let spare = max_shards.saturating_sub(1);
        // The policy may have changed since the poll began.
        if role == Role::OwnerOfPipeline {
            let jobs = queues.jobs();
            if polled.has_packets() && lock(&queues.need).wants_worker(jobs, spare) {
                self.ask(queues, now);
            }
            return lock(&queues.need).left_to_owner(polled, jobs);
        }
        if let Polled::Packets { more, .. } = polled
            && policy == Policy::Auto
            && spare > 0
            && lock(&queues.need).polled((queue, more), now, spare, &self.load)
        {
            self.ask(queues, now);
        }
        0
    }

    /// How many lanes these queues, which have `lanes`, should have instead: as many as there may be
    /// shards, if threads help and still more waits, of several peers; fewer, if there are more
    /// than that and nothing waits.
    pub(crate) fn wanted_lanes(
        &self,
        queues: &Queues<T, U>,
        lanes: usize,
        polled: Polled,
    ) -> Option<usize> {
        let most = match self.in_force() {
            (max_shards, Policy::Auto) => max_shards.min(LANES).next_power_of_two(),
            _ => 1,
        };
        let is_wanted = match polled {
            Polled::Packets { more: true, .. } => {
                lanes < most && queues.common.proto.peer_count() > 1 && queues.helpers() > 0
            }
            Polled::Packets { more: false, .. } => lanes > most,
            _ => false,
        };
        is_wanted.then_some(most)
    }

    /// Has an idle shard, if there is one, be a helper that is counted already.
    fn ask(self: &Arc<Self>, queues: &Arc<Queues<T, U>>, now: Time) {
        match self.idle_shard() {
            Some(shard) => {
                shard.help.leave(Helper::new(Arc::clone(queues), now));
                shard.handle.waker().wake();
            }
            None => lock(&queues.need).helpers -= 1,
        }
        let need = lock(&queues.need);
        queues.set_helpers(need.helpers);
    }

    /// What an owner does with what it takes.
    pub(crate) fn role_of_owners(&self) -> Role {
        match self.in_force() {
            (2.., Policy::Pipeline) => Role::OwnerOfPipeline,
            _ => Role::Owner,
        }
    }

    /// A shard that sleeps, or a new one.
    fn idle_shard(self: &Arc<Self>) -> Option<Arc<ShardInbox<T, U>>> {
        let mut shards = self.shards();
        let idle = shards.iter().find(|shard| shard.handle.ends_idleness());
        if let Some(idle) = idle {
            return Some(Arc::clone(idle));
        }
        // Without memory for one more thread there is none.
        if shards.len() < self.in_force().0 && self.start(&mut shards).is_ok() {
            return shards.last().cloned();
        }
        None
    }

    /// Ends all threads.
    pub(crate) fn stop(&self) {
        self.inbound.stop();
        for shard in lock(&self.shards).iter().chain(&*lock(&self.retired)) {
            shard.stop();
        }
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            // What went wrong in it, its interfaces have reported.
            let _ = thread.join();
        }
    }
}

/// What is known of the need for help with the queues of an interface.
#[derive(Debug, Default)]
pub(crate) struct Need {
    /// Polls in a row that left something in a queue: the TUN, and each lane. A gateway that
    /// forwards empties the TUN each time that it has put a batch there.
    busy: [u32; 1 + LANES],
    /// When to look for an idle CPU.
    look_at: Time,
    /// Looks in a row that saw one.
    idle: u32,
    /// Threads that help.
    helpers: usize,
    /// Helpers in a row that found no CPU.
    in_vain: u32,
}

impl Need {
    /// One poll more of a queue. Whether one more helper is needed, which is then counted.
    fn polled(
        &mut self,
        (queue, more): (Descriptor, bool),
        now: Time,
        most: usize,
        load: &Load,
    ) -> bool {
        let busy = match queue {
            Descriptor::Socket { lane, .. } => &mut self.busy[1 + usize::from(lane) % LANES],
            Descriptor::Tun | Descriptor::Paths => &mut self.busy[0],
        };
        *busy = if more { *busy + 1 } else { 0 };
        if *busy < BUSY_POLLS || now < self.look_at || self.helpers >= most {
            return false;
        }
        *busy = 0;
        self.look_at = now + LOOK;
        self.idle = match load.idle_cpus() {
            Some(1..) => self.idle + 1,
            _ => 0,
        };
        if self.idle < IDLE_LOOKS {
            return false;
        }
        self.idle = 0;
        self.helpers += 1;
        true
    }

    /// Threads that help.
    pub(crate) fn helpers(&self) -> usize {
        self.helpers
    }

    /// Of so many batches that wait for a helper, these the owner of a pipeline works on itself: all, if
    /// nobody helps; one, if no more can be taken and each helper still has one to go on with. Otherwise it
    /// would sleep.
    fn left_to_owner(&self, polled: Polled, jobs: usize) -> usize {
        match polled {
            _ if self.helpers == 0 => jobs,
            Polled::Full if jobs > self.helpers => 1,
            _ => 0,
        }
    }

    /// So many batches wait for a thread that works on them. Whether one more helper is wanted,
    /// which is then counted.
    fn wants_worker(&mut self, jobs: usize, most: usize) -> bool {
        let wants = self.helpers < jobs.min(most);
        self.helpers += usize::from(wants);
        wants
    }
}

/// Why a helper leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// It finds nothing.
    Idle,
    /// There are as many threads as CPUs, and the queue is emptied even so: its owner alone may do, for
    /// less CPU time.
    Spare,
    /// There are more threads than CPUs.
    Crowded,
}

impl Reason {
    /// What one look at the CPUs says; `left_some`: of what waited, something was left.
    fn of(idle_cpus: Option<i64>, left_some: bool) -> Option<Self> {
        match idle_cpus {
            None | Some(..0) => Some(Self::Crowded),
            Some(0) if !left_some => Some(Self::Spare),
            Some(_) => None,
        }
    }
}

/// What most looks say.
fn reason(looks: &[Option<Reason>]) -> Option<Reason> {
    let count = |reason| looks.iter().filter(|look| **look == Some(reason)).count();
    let [crowded, spare] = [Reason::Crowded, Reason::Spare].map(count);
    let are_most = |some: usize| 2 * some > looks.len();
    if are_most(crowded) {
        return Some(Reason::Crowded);
    }
    are_most(crowded + spare).then_some(Reason::Spare)
}

/// Since when a helper has looked in vain.
#[derive(Default)]
struct Linger(Option<Time>);

impl Linger {
    /// A look that began at this time ended with or without a batch. What it took to process one does
    /// not count.
    fn is_over(&mut self, found: bool, now: Time) -> bool {
        if found {
            self.0 = None;
            return false;
        }
        now.since(*self.0.get_or_insert(now)) >= LINGER
    }
}

/// A shard's help with the queues of another one.
pub(crate) struct Helper<T, U> {
    queues: Arc<Queues<T, U>>,
    /// It is not counted any more.
    has_left: bool,
    joined: Time,
    linger: Linger,
    look_at: Time,
    /// What looks at the CPUs have said so far.
    looks: ArrayVec<Option<Reason>, LOOKS>,
    /// What it has taken since the last look was not all that waited.
    left_some: bool,
}

impl<T, U> Helper<T, U> {
    fn new(queues: Arc<Queues<T, U>>, now: Time) -> Self {
        Self {
            queues,
            has_left: false,
            joined: now,
            linger: Linger::default(),
            look_at: now + LOOK,
            looks: ArrayVec::new(),
            left_some: false,
        }
    }

    /// The interface cannot go on.
    pub(crate) fn fail(&self, error: io::Error) {
        self.queues.common.fail(error);
    }

    /// Why the CPU is needed for other things, if it is.
    fn look(&mut self, load: &Load, now: Time) -> Option<Reason> {
        if now < self.look_at {
            return None;
        }
        self.look_at = now + LOOK;
        let left_some = std::mem::take(&mut self.left_some);
        self.looks.push(Reason::of(load.idle_cpus(), left_some));
        if !self.looks.is_full() {
            return None;
        }
        reason(&self.looks.take())
    }

    /// Leaves, unless a batch waits for it.
    fn leaves(&mut self, reason: Reason, now: Time) -> bool {
        let mut need = lock(&self.queues.need);
        if self.queues.jobs() > 0 {
            return false;
        }
        need.helpers -= 1;
        self.queues.set_helpers(need.helpers);
        self.has_left = true;
        if now.since(self.joined) >= HELPED {
            need.in_vain = 0;
        }
        match reason {
            Reason::Idle => {}
            // It may be wanted again soon: what arrives may be more than one thread processes.
            Reason::Spare => need.look_at = now + FIRST_PAUSE,
            Reason::Crowded => {
                need.in_vain += 1;
                let doublings = (need.in_vain - 1).min(MAX_DOUBLINGS);
                need.look_at = now + FIRST_PAUSE * 2_u32.pow(doublings);
            }
        }
        true
    }
}

impl<T: TunQueue + 'static, U: UdpSocket + 'static> Helper<T, U> {
    /// Polls all queues of the interface once. False if it has left.
    pub(crate) fn poll(&mut self, crew: &Crew<T, U>, worker: &mut Worker, now: Time) -> bool {
        let queues = &self.queues;
        if queues.common.is_stopping() {
            return false;
        }
        let sockets = queues.handle().sockets.load();
        let mut found = queues.do_job(worker, &sockets, now);
        let policy = crew.in_force().1;
        self.left_some |= found;
        if policy == Policy::Auto {
            for socket in sockets.all_in_use() {
                match queues.poll_socket(worker, socket, EventFlags::IN, now, Role::Helper) {
                    Ok(polled) => {
                        found |= polled.has_packets();
                        self.left_some |= polled.leaves_some();
                    }
                    Err(error) => self.fail(error),
                }
            }
            match queues.poll_tun(worker, &sockets, now, Role::Helper) {
                Ok(Polled::Blocked) => queues.handle().wake(),
                Ok(polled) => {
                    found |= polled.has_packets();
                    self.left_some |= polled.leaves_some();
                }
                // The owner meets it, too, and knows whether it is final.
                Err(_) => {}
            }
        }
        if self.linger.is_over(found, now) && self.leaves(Reason::Idle, now) {
            return false;
        }
        if !found {
            std::thread::yield_now();
        }
        let reason = self.look(&crew.load, now);
        !reason.is_some_and(|reason| self.leaves(reason, now))
    }
}

impl<T, U> Drop for Helper<T, U> {
    fn drop(&mut self) {
        if !self.has_left {
            let mut need = lock(&self.queues.need);
            need.helpers -= 1;
            self.queues.set_helpers(need.helpers);
            if self.queues.jobs() > 0 {
                // It does what nobody else does.
                self.queues.handle().wake();
            }
        }
    }
}

/// The shard that has least to serve, of these.
fn least<'a, T: 'a, U: 'a>(
    shards: impl Iterator<Item = &'a Arc<ShardInbox<T, U>>>,
) -> Option<Assigned<T, U>> {
    let least = shards.min_by_key(|shard| shard.handle.load())?;
    Some((Arc::clone(least), Served::new(&least.handle)))
}

fn encode(shards: usize, policy: Policy) -> u64 {
    (shards as u64) << 2 | policy as u64
}

fn decode(in_force: u64) -> (usize, Policy) {
    let policy = usize::try_from(in_force & 3).ok();
    let known = policy.and_then(|index| Policy::ALL.get(index));
    let shards = usize::try_from(in_force >> 2).unwrap_or(usize::MAX);
    (
        shards,
        known.map_or_else(Policy::default, |(_, policy)| *policy),
    )
}

/// How busy the CPUs are.
#[derive(Debug)]
struct Load(Option<(File, i64)>);

impl Load {
    /// Before threads are confined, which cannot open a file.
    fn open() -> Self {
        let open = || {
            let cpus = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
            Some((File::open("/proc/loadavg").ok()?, count_cpus(cpus.trim())?))
        };
        Self(open())
    }

    /// CPUs without a thread; negative if there are more threads that are ready to run than CPUs.
    /// `None` where the kernel does not tell.
    fn idle_cpus(&self) -> Option<i64> {
        #[cfg(debug_assertions)]
        if crate::thread::progress::cpus_are_idle() {
            return Some(1);
        }
        let (file, cpus) = self.0.as_ref()?;
        let mut text = [0; 64];
        let len = file.read_at(&mut text, 0).ok()?;
        Some(cpus - ready_threads(&text[..len])?)
    }
}

/// The threads that run or are ready to, in the text of /proc/loadavg.
fn ready_threads(text: &[u8]) -> Option<i64> {
    let field = text.split(|byte| *byte == b' ').nth(3)?;
    let ready = field.split(|byte| *byte == b'/').next()?;
    str::from_utf8(ready).ok()?.parse().ok()
}

/// How many CPUs a list such as `0-3,8` has.
fn count_cpus(list: &str) -> Option<i64> {
    let of_range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.parse::<i64>().ok()? - first.parse::<i64>().ok()? + 1)
    };
    list.split(',').map(of_range).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_lingers_after_a_batch_however_long_that_took() {
        let begun = Time::default();
        let mut linger = Linger::default();
        assert!(!linger.is_over(true, begun));
        let after = begun + 2 * LINGER;
        assert!(!linger.is_over(false, after), "another thread is taking");
        assert!(!linger.is_over(false, after + LINGER / 2));
        assert!(linger.is_over(false, after + LINGER));
        assert!(!linger.is_over(true, after + 2 * LINGER));
        assert!(!linger.is_over(false, after + 3 * LINGER));
    }

    #[test]
    fn the_owner_of_a_pipeline_works_on_what_helpers_are_too_few_for() {
        let found = Polled::packets(8, true);
        let with = |helpers| Need {
            helpers,
            ..Need::default()
        };
        for polled in [found, Polled::Full] {
            assert_eq!(with(0).left_to_owner(polled, 3), 3, "nobody helps");
            assert_eq!(
                with(2).left_to_owner(polled, 2),
                0,
                "each has one to go on with"
            );
        }
        assert_eq!(with(2).left_to_owner(found, 3), 0, "more can be taken");
        assert_eq!(with(2).left_to_owner(Polled::Full, 3), 1);
    }

    #[test]
    fn a_helper_leaves_where_cpus_are_needed_or_one_thread_would_do() {
        for left_some in [false, true] {
            assert_eq!(Reason::of(None, left_some), Some(Reason::Crowded));
            assert_eq!(Reason::of(Some(-1), left_some), Some(Reason::Crowded));
            assert_eq!(Reason::of(Some(1), left_some), None);
        }
        let (stays, spare) = (Reason::of(Some(0), true), Reason::of(Some(0), false));
        assert_eq!((stays, spare), (None, Some(Reason::Spare)));
        let crowded = Some(Reason::Crowded);
        for (looks, says) in [
            ([None, spare, crowded, None], None),
            ([None, spare, crowded, spare], Some(Reason::Spare)),
            ([spare, crowded, crowded, None], Some(Reason::Spare)),
            ([None, crowded, crowded, crowded], Some(Reason::Crowded)),
        ] {
            assert_eq!(reason(&looks), says, "{looks:?}");
        }
    }

    #[test]
    fn cpus_and_ready_threads_are_counted() {
        for (list, cpus) in [("0", 1), ("0-1", 2), ("0-3,8,10-11", 7)] {
            assert_eq!(count_cpus(list), Some(cpus));
        }
        assert_eq!(count_cpus("none"), None);
        assert_eq!(ready_threads(b"0.20 0.18 0.12 3/412 1234\n"), Some(3));
        assert_eq!(ready_threads(b""), None);
        let load = Load::open();
        assert!(load.idle_cpus().is_some(), "this kernel tells");
    }
}
