//! The thread pool: the shards of a process, and how one that has too much to do gets help.
//!
//! A shard whose queue never becomes empty asks an idle shard to join: that one polls the same queue
//! through its locks, for as long as it finds something there. More threads help only while there
//! are CPUs that nothing else needs; otherwise a worker takes time from the processes whose packets
//! it forwards. So a shard asks when several polls in a row saw an idle CPU, a worker leaves when
//! there is none, and it takes longer each time until the next one is asked. It also leaves, for a short
//! while, where it has the last CPU and the two of them empty the queue.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread::JoinHandle;

use adit_io::{TunQueue, UdpSocket};
use adit_proto::Time;

use crate::order::rx_queues::RX_QUEUES;
use crate::shards::help::CpuLoad;
use crate::shards::inbound_thread::InboundThread;
use crate::shards::mailbox::ShardMailbox;
use crate::shards::queues::Queues;
use crate::shards::settings::{Liberties, OnStart, Policy, ThreadSettings};
use crate::shards::thread_state::SharedBuffers;
use crate::shards::worker::Worker;
use crate::shared::handles::{Served, ShardHandle};
use crate::thread::lock::lock;
use crate::thread::placement;
use crate::thread::poll::{Descriptor, PollRole, Polled};
use crate::thread::start;

/// One for each shard.
type Shards<T, U> = Vec<Arc<ShardMailbox<T, U>>>;

/// The function that the thread of a shard runs.
pub(crate) type ShardRun = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// Makes a shard.
pub(crate) type NewShard<T, U> =
    fn(Arc<ShardMailbox<T, U>>, Arc<ThreadPool<T, U>>) -> io::Result<ShardRun>;

/// A shard, and that it serves one interface more.
type Assigned<T, U> = (Arc<ShardMailbox<T, U>>, Served);

/// The threads that process packets: the shards of a process.
pub(crate) struct ThreadPool<T, U> {
    /// Shards at most, times four, and the policy.
    in_force: AtomicU64,
    new_shard: NewShard<T, U>,
    shards: Mutex<Shards<T, U>>,
    /// Shards that end, or have ended.
    retired: Mutex<Shards<T, U>>,
    pub(crate) inbound: Arc<InboundThread<T, U>>,
    pub(crate) buffers: Arc<SharedBuffers>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    cpus: Option<Vec<usize>>,
    pub(crate) liberties: Liberties,
    on_start: Option<OnStart>,
    pub(crate) load: Arc<CpuLoad>,
}

impl<T: TunQueue + 'static, U: UdpSocket + 'static> ThreadPool<T, U> {
    pub(crate) fn new(settings: &ThreadSettings, new_shard: NewShard<T, U>) -> io::Result<Self> {
        let buffers = Arc::<SharedBuffers>::default();
        Ok(Self {
            in_force: AtomicU64::new(encode(settings.shards, settings.policy)),
            cpus: settings.cpus.clone(),
            liberties: settings.liberties,
            on_start: settings.on_start.clone(),
            new_shard,
            shards: Mutex::default(),
            retired: Mutex::default(),
            inbound: Arc::new(InboundThread::new(Arc::clone(&buffers))?),
            buffers,
            threads: Mutex::default(),
            load: match (settings.liberties.sandbox, settings.shards) {
                (true, _) => CpuLoad::open(),
                // No thread can help.
                (false, ..=1) => Arc::new(CpuLoad::unknown()),
                (false, _) => Arc::new(CpuLoad::new()),
            },
        })
    }

    /// Starts a thread that ends with the pool, on these CPUs.
    pub(crate) fn spawn(
        &self,
        name: String,
        cpus: Option<&[usize]>,
        run: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let cpus = cpus.map(<[usize]>::to_vec);
        let on_start = self.on_start.clone();
        let begin = move || {
            if let Some(cpus) = cpus {
                placement::restrict(&cpus);
            }
            if let Some(on_start) = on_start {
                on_start();
            }
            // What goes wrong in it, its interfaces report.
            let _ = run();
        };
        let thread = start::start(name, begin)?;
        let mut threads = lock(&self.threads);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// Starts the thread for sparse flows, if threads choose their CPUs.
    pub(crate) fn start_inbound_thread(&self) -> io::Result<()> {
        let (inbound, liberties) = (Arc::clone(&self.inbound), self.liberties);
        if !liberties.placement {
            return Ok(());
        }
        self.spawn("adit-inbound".into(), self.cpus.as_deref(), move || {
            inbound.run(liberties)
        })
    }

    /// The handle of a new shard.
    fn new_handle(&self) -> io::Result<ShardHandle> {
        let inbound = self
            .liberties
            .placement
            .then(|| Arc::clone(&self.inbound.waker));
        ShardHandle::new(inbound)
    }

    /// Adds a shard whose thread is the caller's.
    pub(crate) fn add(&self) -> io::Result<Arc<ShardMailbox<T, U>>> {
        let shard = Arc::new(ShardMailbox::new(self.new_handle()?));
        lock(&self.shards).push(Arc::clone(&shard));
        Ok(shard)
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

    /// Shards whose threads run: one that panicked gets no more interfaces.
    fn shards(&self) -> MutexGuard<'_, Shards<T, U>> {
        let mut shards = lock(&self.shards);
        shards.retain(|shard| !shard.has_ended());
        shards
    }

    /// The shard that has least to serve.
    pub(crate) fn shard_for_one_more(self: &Arc<Self>) -> io::Result<Assigned<T, U>> {
        let mut shards = self.shards();
        let is_busy = |shard: &Arc<ShardMailbox<T, U>>| shard.handle.load() > 0;
        if shards.iter().all(is_busy) && shards.len() < self.in_force().0 {
            self.start(&mut shards)?;
        }
        least(shards.iter()).ok_or(io::ErrorKind::InvalidInput.into())
    }

    /// The shard that has least to serve, of those that this one can give an interface to.
    pub(crate) fn other_shard(&self, this: &Arc<ShardMailbox<T, U>>) -> Option<Assigned<T, U>> {
        let shards = self.shards();
        least(shards.iter().filter(|shard| !Arc::ptr_eq(shard, this)))
    }

    fn start(self: &Arc<Self>, shards: &mut Shards<T, U>) -> io::Result<()> {
        let pool = Arc::clone(self);
        let (tell, made) = mpsc::sync_channel(1);
        // The new thread makes its descriptors: this one may be confined.
        let run = move || {
            let make = || -> io::Result<_> {
                let handle = pool.new_handle()?;
                let mailbox = Arc::new(ShardMailbox::new(handle));
                let run = (pool.new_shard)(Arc::clone(&mailbox), pool)?;
                Ok((mailbox, run))
            };
            let (mailbox, run) = match make() {
                Ok((mailbox, run)) => (Ok(mailbox), run),
                Err(error) => (Err(error), Box::new(|| Ok(())) as ShardRun),
            };
            // The other thread waits.
            let _ = tell.send(mailbox);
            run()
        };
        let name = format!("adit-shard-{}", shards.len());
        self.spawn(name, self.cpus.as_deref(), run)?;
        let made: io::Result<_> = made.recv().map_err(io::Error::other)?;
        shards.push(made?);
        Ok(())
    }

    /// How many interfaces each shard serves.
    #[cfg(test)]
    pub(crate) fn loads(&self) -> Vec<usize> {
        let shards = lock(&self.shards);
        shards.iter().map(|shard| shard.handle.load()).collect()
    }

    /// The owner of these queues polled one of them: gets help if they need some. How many of the
    /// batches that wait for a worker it works on itself, before it polls again.
    pub(crate) fn polled(
        self: &Arc<Self>,
        queues: &Arc<Queues<T, U>>,
        (queue, polled): (Descriptor, Polled),
        (now, role): (Time, PollRole),
    ) -> usize {
        let (max_shards, policy) = self.in_force();
        let spare = max_shards.saturating_sub(1);
        // The policy may have changed since the poll began.
        if role == PollRole::OwnerOfPipeline {
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

    /// How many receive queues these queues, which have `rx_queues`, should have instead: as many as there may be
    /// shards, if threads help and still more waits, of several peers; fewer, if there are more
    /// than that and nothing waits.
    pub(crate) fn wanted_rx_queues(
        &self,
        queues: &Queues<T, U>,
        rx_queues: usize,
        polled: Polled,
    ) -> Option<usize> {
        let most = match self.in_force() {
            (max_shards, Policy::Auto) => max_shards.min(RX_QUEUES).next_power_of_two(),
            _ => 1,
        };
        let is_wanted = match polled {
            Polled::Packets { more: true, .. } => {
                rx_queues < most && queues.common.proto.peer_count() > 1 && queues.workers() > 0
            }
            Polled::Packets { more: false, .. } => rx_queues > most,
            _ => false,
        };
        is_wanted.then_some(most)
    }

    /// Has an idle shard, if there is one, be a worker that is counted already.
    fn ask(self: &Arc<Self>, queues: &Arc<Queues<T, U>>, now: Time) {
        match self.idle_shard() {
            Some(shard) => {
                shard.help.post(Worker::new(Arc::clone(queues), now));
                shard.handle.waker().wake();
            }
            None => lock(&queues.need).workers -= 1,
        }
        let need = lock(&queues.need);
        queues.set_workers(need.workers);
    }

    /// The role of owners: what they do with what they take.
    pub(crate) fn role_of_owners(&self) -> PollRole {
        match self.in_force() {
            (2.., Policy::Pipeline) => PollRole::OwnerOfPipeline,
            _ => PollRole::Owner,
        }
    }

    /// A shard that sleeps, or a new one.
    fn idle_shard(self: &Arc<Self>) -> Option<Arc<ShardMailbox<T, U>>> {
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
        let this = std::thread::current().id();
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            // What it calls may let go of the last handle: it ends on its own.
            if thread.thread().id() != this {
                let _ = thread.join();
            }
        }
    }
}

/// The shard that has least to serve, of these.
fn least<'a, T: 'a, U: 'a>(
    shards: impl Iterator<Item = &'a Arc<ShardMailbox<T, U>>>,
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
