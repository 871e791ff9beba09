//! The threads of a process, and how interfaces come to them.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use adit_io::{Offloads, TunQueue};
use adit_proto::Device;

use crate::common::{Common, QueuesHandle, ShardHandle};
use crate::control::{Control, ControlInbox, ControlThread};
use crate::inbound_path::InboundThread;
use crate::interface::Interface;
use crate::lock::lock;
use crate::platform::Platform;
use crate::queues::Queues;
use crate::shard::{Shard, ShardInbox};

/// The threads that run interfaces: shards, a thread for sparse flows, and the control thread. They
/// end with the last handle of the engine or of an interface.
pub struct Engine<T: TunQueue + 'static, H: Platform>(Arc<Threads<T, H>>);

/// One for each shard.
type Shards<T, H> = Vec<Arc<ShardInbox<T, <H as Platform>::Socket>>>;

struct Threads<T: TunQueue + 'static, H: Platform> {
    max_shards: usize,
    shards: Mutex<Shards<T, H>>,
    inbound: Arc<InboundThread<T, H::Socket>>,
    control: Arc<ControlInbox<H>>,
    /// The number that the next queues get.
    next_number: AtomicU32,
    threads: Mutex<Vec<JoinHandle<io::Result<()>>>>,
}

impl<T: TunQueue + 'static, H: Platform> Engine<T, H> {
    /// Starts an engine without interfaces. It starts its shards when interfaces need them,
    /// `max_shards` at most.
    ///
    /// # Errors
    ///
    /// Those of eventfd(2), epoll_create(2) and clone(2), as when there are no further descriptors
    /// or threads.
    pub fn start(max_shards: usize) -> io::Result<Self> {
        let threads = Threads {
            max_shards,
            shards: Mutex::default(),
            inbound: Arc::new(InboundThread::new()?),
            control: Arc::new(ControlInbox::new()?),
            next_number: AtomicU32::new(0),
            threads: Mutex::default(),
        };
        let inbound = Arc::clone(&threads.inbound);
        threads.spawn("adit-inbound".into(), move || inbound.run())?;
        let control = ControlThread::new(Arc::clone(&threads.control))?;
        threads.spawn("adit-control".into(), move || control.run())?;
        Ok(Self(Arc::new(threads)))
    }

    /// Runs one more interface. Each of its TUN queues gets a shard: the one that has least to
    /// serve, or a new one.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if there are more TUN queues than shards, or none; those of eventfd(2),
    /// epoll_create(2), timerfd_create(2) and clone(2), as when there are no further descriptors or
    /// threads.
    ///
    /// # Panics
    ///
    /// If getrandom(2) fails, which it does not on Linux 3.17 and later.
    pub fn add(&self, tuns: Vec<T>, platform: H, offloads: Offloads) -> io::Result<Interface> {
        let device = Device::new(Box::new(|bytes| {
            rustix::rand::getrandom(bytes, rustix::rand::GetRandomFlags::empty())
                .expect("getrandom gives up to 256 bytes whole");
        }));
        let shards = self.0.shards_for(tuns.len())?;
        let handles = shards.iter().map(|shard| {
            let number = self.0.next_number.fetch_add(1, Ordering::Relaxed);
            QueuesHandle::new(number, Arc::clone(&shard.handle))
        });
        let is_verbose = platform.is_verbose();
        let common = Common::new(device.shared(), handles.collect(), offloads, is_verbose)?;
        let common = Arc::new(common);
        let queues = tuns.into_iter().enumerate().map(|(index, tun)| {
            let common = Arc::clone(&common);
            Queues::new(index, tun, common, offloads)
        });
        let queues = queues.collect::<io::Result<Vec<_>>>()?;
        let control = Control::new(device, platform, Arc::clone(&common))?;
        // The shards have the queues before the control thread wakes them.
        for (shard, queues) in shards.iter().zip(queues) {
            shard.arrivals.leave(queues);
            shard.handle.waker().wake();
        }
        self.0.control.leave(control);
        let engine = Arc::clone(&self.0);
        Ok(Interface::new(common, offloads, engine))
    }
}

impl<T: TunQueue + 'static, H: Platform> Threads<T, H> {
    fn spawn(
        &self,
        name: String,
        run: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let thread = std::thread::Builder::new().name(name).spawn(run)?;
        lock(&self.threads).push(thread);
        Ok(())
    }

    /// So many different shards, those that have least to serve.
    fn shards_for(&self, count: usize) -> io::Result<Shards<T, H>> {
        if count == 0 || count > self.max_shards {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut shards = lock(&self.shards);
        let idle = |shards: &Shards<T, H>| {
            let idle = shards.iter().filter(|shard| shard.handle.load() == 0);
            idle.count()
        };
        while idle(&shards) < count && shards.len() < self.max_shards {
            let handle = ShardHandle::new(Arc::clone(&self.inbound.waker))?;
            let inbox = Arc::new(ShardInbox::new(handle));
            let shard = Shard::new(Arc::clone(&inbox), Arc::clone(&self.inbound))?;
            self.spawn(format!("adit-shard-{}", shards.len()), move || shard.run())?;
            shards.push(inbox);
        }
        let mut chosen = shards.clone();
        chosen.sort_by_key(|shard| shard.handle.load());
        chosen.truncate(count);
        Ok(chosen)
    }
}

impl<T: TunQueue + 'static, H: Platform> Drop for Threads<T, H> {
    fn drop(&mut self) {
        self.control.stop();
        self.inbound.stop();
        for shard in &*lock(&self.shards) {
            shard.stop();
        }
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            // What went wrong in it, its interfaces have reported.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use adit_io::testing::mem::{self, Network};

    use super::*;
    use crate::MemPlatform;

    #[test]
    fn an_interface_gets_the_shard_that_has_least_to_serve() {
        let network = Network::new();
        let engine = Engine::start(2).expect("an engine");
        let add = |last: u8, queues: usize| {
            let host = MemPlatform::new(&network, ([192, 0, 2, last], 51820).into());
            let tuns = (0..queues).map(|_| mem::tun().expect("a TUN").0).collect();
            engine.add(tuns, host.expect("a host"), Offloads::ALL)
        };
        let loads = || {
            let shards = lock(&engine.0.shards);
            let loads = shards.iter().map(|shard| shard.handle.load());
            loads.collect::<Vec<_>>()
        };
        assert!(loads().is_empty());
        let first = add(1, 1).expect("an interface");
        assert_eq!(loads(), [1], "a shard is started when it is needed");
        let _second = add(2, 1).expect("an interface");
        assert_eq!(loads(), [1, 1]);
        let _both = add(3, 2).expect("an interface");
        assert_eq!(loads(), [2, 2]);
        drop(first);
        assert_eq!(loads(), [1, 2]);
        let _third = add(4, 1).expect("an interface");
        assert_eq!(loads(), [2, 2]);
        for queues in [0, 3] {
            let refused = add(5, queues).err().expect("no such interface");
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        }
        assert_eq!(loads(), [2, 2]);
    }
}
