//! Threads that confined threads start: the main thread does it for them.
//!
//! A thread has the limits of the one that starts it. So the main thread, which has those of the process
//! alone, starts all of them; what runs on them confines itself. It gets a name and what the new
//! thread is to do, and does nothing of that itself.

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

type ThreadWork = Box<dyn FnOnce() + Send>;
type Started = io::Result<JoinHandle<()>>;

/// An order to the main thread.
enum Order {
    /// A thread of this name.
    Start(String, ThreadWork, mpsc::SyncSender<Started>),
    /// The thread of [`Starter::beside`] has ended.
    Ended,
}

/// How to ask for a thread.
struct Desk {
    orders: mpsc::Sender<Order>,
    /// Has the main thread look, whatever it waits for.
    wake: Box<dyn Fn() + Send + Sync>,
}

static DESK: OnceLock<Desk> = OnceLock::new();

/// How long to wait before another attempt to start a thread.
const PAUSE: Duration = Duration::from_millis(100);

thread_local! {
    /// The calling thread has given up system calls.
    static IS_CONFINED: Cell<bool> = const { Cell::new(false) };
}

pub(crate) fn set_confined() {
    IS_CONFINED.set(true);
}

impl Desk {
    fn send(&self, order: Order) {
        let _ = self.orders.send(order);
        (self.wake)();
    }
}

/// Starts a thread of this name. A confined thread waits until the main thread has done it, which must
/// not wait for that one: it has [`Starter::beside`] for what may.
///
/// # Errors
///
/// There is no memory for it, or the process ends.
pub fn start(name: impl Into<String>, work: impl FnOnce() + Send + 'static) -> Started {
    let Some(desk) = DESK.get().filter(|_| IS_CONFINED.get()) else {
        return spawn(name.into(), work);
    };
    let (answer, started) = mpsc::sync_channel(1);
    desk.send(Order::Start(name.into(), Box::new(work), answer));
    // The main thread drops what it does not do any more.
    let ends = |_| Err(io::Error::other("the process ends"));
    started.recv().unwrap_or_else(ends)
}

fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> Started {
    Builder::new().name(name).spawn(work)
}

impl Order {
    /// Starts the thread; false if it says that one has ended.
    fn fulfil(self) -> bool {
        match self {
            Self::Start(name, work, answer) => {
                let _ = answer.send(spawn(name, work));
                true
            }
            Self::Ended => false,
        }
    }
}

/// The main thread as the one that starts threads, until this is dropped.
#[derive(Debug)]
pub struct Starter {
    orders: mpsc::Receiver<Order>,
}

impl Starter {
    /// Makes the calling thread, which is not confined, the one that starts threads; a process has one.
    /// `wake` is called when there is something for [`Self::work`] to do, on the thread that asks.
    pub fn here(wake: impl Fn() + Send + Sync + 'static) -> Self {
        let (sender, orders) = mpsc::channel();
        let _ = DESK.set(Desk {
            orders: sender,
            wake: Box::new(wake),
        });
        Self { orders }
    }

    /// Starts the threads that others have asked for.
    pub fn work(&self) {
        while self.orders.try_recv().is_ok_and(Order::fulfil) {}
    }

    /// Runs `work`, which may wait for other threads, on a thread of its own, and meanwhile starts those
    /// that are asked for. Where no thread can be started for it, waits until one can.
    pub fn beside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let work = &Mutex::new(Some(work));
        std::thread::scope(|scope| {
            let thread = loop {
                let run = || {
                    let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
                    let result = work.map(|work| catch_unwind(AssertUnwindSafe(work)));
                    DESK.get()
                        .into_iter()
                        .for_each(|desk| desk.send(Order::Ended));
                    result
                };
                let thread = Builder::new().name("adit-work".into());
                match thread.spawn_scoped(scope, run) {
                    Ok(thread) => break thread,
                    Err(_) => {
                        self.work();
                        std::thread::sleep(PAUSE);
                    }
                }
            };
            while self.orders.recv().is_ok_and(Order::fulfil) {}
            match thread.join() {
                Ok(Some(Ok(result))) => result,
                Ok(Some(Err(panic))) | Err(panic) => resume_unwind(panic),
                Ok(None) => unreachable!("the work is taken once, by the thread that starts"),
            }
        })
    }
}
