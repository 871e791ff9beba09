//! The threads of a process, and how interfaces come to them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use adit_io::{Offloads, TunQueue};
use adit_proto::Device;

use crate::control::thread::{ControlMailbox, ControlThread};
use crate::control::{InterfaceControl, memory};
use crate::driver::Driver;
use crate::host::platform::Platform;
use crate::interface::Interface;
use crate::shards::help::CpuLoad;
use crate::shards::mailbox::ShardMailbox;
use crate::shards::owner::OwnedQueues;
use crate::shards::queues::Queues;
use crate::shards::settings::{Liberties, Policy, ThreadSettings};
use crate::shards::shard::Shard;
use crate::shards::thread_pool::ThreadPool;
use crate::shared::common::Common;
use crate::shared::handles::{QueuesHandle, Served};
use crate::shared::sockets::Sockets;
use crate::shared::state::InterfaceState;
use crate::thread::random::random;

/// Opens what the engine will read of the host, in a process that will not be able to open a file.
pub fn open_host_files() {
    memory::open();
    CpuLoad::open();
}

/// The threads that run interfaces: shards, a thread for sparse flows, and the control thread. They
/// end with the last handle of the engine or of an interface.
pub struct Engine<T: TunQueue + 'static, H: Platform>(Arc<Threads<T, H>>);

struct Threads<T: TunQueue + 'static, H: Platform> {
    pool: Arc<ThreadPool<T, H::Socket>>,
    control: Arc<ControlMailbox<H>>,
    /// The number that the next queues get.
    next_number: AtomicU32,
}

/// The shard of an interface, that it serves it, and what its threads share.
type Assignment<T, U> = (Arc<ShardMailbox<T, U>>, Served, Arc<Common<U>>);

impl<T: TunQueue + 'static, H: Platform> Engine<T, H> {
    /// Starts an engine without interfaces, with so many shards at most and otherwise the default
    /// settings.
    ///
    /// # Errors
    ///
    /// Those of [`Self::with`].
    pub fn start(max_shards: usize) -> io::Result<Self> {
        Self::with(&max_shards.into())
    }

    /// Starts an engine without interfaces. It starts its shards when interfaces need them, or when
    /// others are to help.
    ///
    /// # Errors
    ///
    /// Those of eventfd(2), epoll_create(2) and clone(2), as when there are no further descriptors
    /// or threads.
    pub fn with(settings: &ThreadSettings) -> io::Result<Self> {
        let threads = Threads {
            pool: Arc::new(ThreadPool::new(settings, Shard::prepare)?),
            control: Arc::new(ControlMailbox::new()?),
            next_number: AtomicU32::new(0),
        };
        let pool = &threads.pool;
        pool.start_inbound_thread()?;
        let control = ControlThread::new(Arc::clone(&threads.control))?;
        let (cpus, liberties) = (settings.cpus.as_deref(), settings.liberties);
        pool.spawn("adit-control".into(), cpus, move || control.run(liberties))?;
        Ok(Self(Arc::new(threads)))
    }

    /// Makes an engine that has no threads: all happens in the turns that its driver is given.
    ///
    /// # Errors
    ///
    /// Those of eventfd(2) and epoll_create(2), as when there are no further descriptors.
    pub fn driven() -> io::Result<(Self, Driver<T, H>)> {
        let settings = ThreadSettings {
            shards: 1,
            policy: Policy::Inline,
            cpus: None,
            liberties: Liberties::NONE,
            on_start: None,
        };
        let threads = Threads {
            pool: Arc::new(ThreadPool::new(&settings, Shard::prepare)?),
            control: Arc::new(ControlMailbox::new()?),
            next_number: AtomicU32::new(0),
        };
        let shard = Shard::new(threads.pool.add()?, Arc::clone(&threads.pool))?;
        let control = ControlThread::new(Arc::clone(&threads.control))?;
        Ok((Self(Arc::new(threads)), Driver::new(control, shard)?))
    }

    /// Runs one more interface. It gets the shard that has least to serve, or a new one.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if there may be no shard; those of eventfd(2), epoll_create(2),
    /// timerfd_create(2) and clone(2), as when there are no further descriptors or threads.
    ///
    /// # Panics
    ///
    /// If getrandom(2) fails, which it does not on Linux 3.17 and later.
    pub fn add(&self, tun: T, platform: H, offloads: Offloads) -> io::Result<Interface> {
        let device = Device::new(Box::new(random));
        let assignment = self.assign(&device, &platform, offloads)?;
        let control = InterfaceControl::new(device, platform, Arc::clone(&assignment.2))?;
        self.start_one(tun, assignment, control, offloads)
    }

    /// Goes on with an interface of another process, which pauses there. It pauses here, too, until
    /// [`Interface::resume`].
    ///
    /// # Errors
    ///
    /// Those of [`Self::add`].
    pub fn take_over(
        &self,
        tun: T,
        platform: H,
        offloads: Offloads,
        device: Device,
        state: &InterfaceState,
        sockets: Sockets<H::Socket>,
    ) -> io::Result<Interface> {
        let (shard, served, common) = self.assign(&device, &platform, offloads)?;
        common.set_counters(state);
        common.queues.sockets.store(Arc::new(sockets));
        common.queues.set_paused(true);
        let control = InterfaceControl::take_over(device, platform, Arc::clone(&common), state)?;
        self.start_one(tun, (shard, served, common), control, offloads)
    }

    /// Has so many shards at most process packets from now on, by this policy. Interfaces are spread
    /// over them; no packet is lost or overtaken.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for no shard; those of eventfd(2), epoll_create(2) and clone(2): then nothing
    /// has changed.
    pub fn set_threads(&self, shards: usize, policy: Policy) -> io::Result<()> {
        self.0.pool.change(shards, policy)
    }

    /// How many shards process packets at most, and by which policy.
    pub fn threads(&self) -> (usize, Policy) {
        self.0.pool.in_force()
    }

    fn assign(
        &self,
        device: &Device,
        platform: &H,
        offloads: Offloads,
    ) -> io::Result<Assignment<T, H::Socket>> {
        let (shard, served) = self.0.pool.shard_for_one_more()?;
        let number = self.0.next_number.fetch_add(1, Ordering::Relaxed);
        let handle = QueuesHandle::new(number, Arc::clone(&shard.handle));
        let common = Common::new(device.shared(), handle, offloads, platform.is_verbose())?;
        Ok((shard, served, Arc::new(common)))
    }

    fn start_one(
        &self,
        tun: T,
        (shard, served, common): Assignment<T, H::Socket>,
        control: InterfaceControl<H>,
        offloads: Offloads,
    ) -> io::Result<Interface> {
        let queues = Arc::new(Queues::new(tun, Arc::clone(&common), offloads)?);
        if common.queues.is_paused() {
            queues.pause(true);
        }
        let engine = Arc::clone(&self.0);
        let interface = Interface::new(&queues, offloads, engine);
        // The shard has the queues before the control thread wakes it.
        shard.arrivals.post(OwnedQueues::new(queues, served));
        shard.handle.waker().wake();
        self.0.control.post(control);
        Ok(interface)
    }
}

impl<T: TunQueue + 'static, H: Platform> Drop for Threads<T, H> {
    fn drop(&mut self) {
        self.control.stop();
        self.pool.stop();
    }
}

#[cfg(test)]
mod tests {
    use adit_io::testing::mem::{self, MemNetwork};

    use super::*;
    use crate::MemPlatform;

    #[test]
    fn an_interface_gets_the_shard_that_has_least_to_serve() {
        let network = MemNetwork::new();
        let engine = Engine::start(2).expect("an engine");
        let add = |engine: &Engine<_, _>, last: u8| {
            let host = MemPlatform::new(&network, ([192, 0, 2, last], 51820).into());
            let (tun, _) = mem::tun().expect("a TUN");
            engine.add(tun, host.expect("a host"), Offloads::ALL)
        };
        let loads = || engine.0.pool.loads();
        assert!(loads().is_empty());
        let first = add(&engine, 1).expect("an interface");
        assert_eq!(loads(), [1], "a shard is started when it is needed");
        let _second = add(&engine, 2).expect("an interface");
        assert_eq!(loads(), [1, 1]);
        let _third = add(&engine, 3).expect("an interface");
        drop(first);
        assert_eq!(loads(), [1, 1]);
        let _fourth = add(&engine, 4).expect("an interface");
        assert_eq!(loads().iter().sum::<usize>(), 3);
        let none = Engine::start(0).expect("an engine");
        let refused = add(&none, 5).err().expect("no such interface");
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }

    /// Invariant 6. The shard is busy with those that arrived before.
    #[test]
    fn an_interface_that_arrives_at_a_busy_shard_is_looked_at() {
        let network = MemNetwork::new();
        let engine = Engine::start(1).expect("an engine");
        let add = |last: u8| {
            let host = MemPlatform::new(&network, ([192, 0, 2, last], 51820).into());
            let (tun, _) = mem::tun().expect("a TUN");
            let added = engine.add(tun, host.expect("a host"), Offloads::ALL);
            added.expect("an interface")
        };
        for _ in 0..100 {
            let several: Vec<_> = (1..=100).map(add).collect();
            // Each ends only when its shard has let go of it.
            drop(several);
        }
    }
}
