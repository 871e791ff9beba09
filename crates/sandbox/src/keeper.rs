//! The thread that keeps the system calls which others have given up.
//!
//! It is the only thread that can open a file, make a socket or start a thread, within the limits
//! of the whole process. It has no capability, as no thread of the process has. What is asked of it
//! is a function of this program, not a message that could say anything.
//!
//! While a process starts, and while it ends, it is a thread of its own. In between it is the main
//! thread, which has little else to do ([`Keeper`]).

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;

type Job = Box<dyn FnOnce() + Send>;

/// What the keeper gets.
enum Order {
    Do(Job),
    /// Another thread goes on with the orders that come after this one.
    Leave(mpsc::Sender<mpsc::Receiver<Order>>),
    /// A thread of [`Keeper::beside`] has ended.
    Ended,
}

/// How to ask for something.
struct Desk {
    orders: mpsc::Sender<Order>,
    /// Wakes a keeper that waits for other things, too.
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
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
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }
}

/// Starts it.
pub(crate) fn start() -> io::Result<()> {
    let (orders, receiver) = mpsc::channel();
    spawn(receiver)?;
    let wake = OnceLock::new();
    let _ = DESK.set(Desk { orders, wake });
    Ok(())
}

fn spawn(orders: mpsc::Receiver<Order>) -> io::Result<()> {
    let work = move || {
        while let Ok(order) = orders.recv() {
            match order {
                Order::Do(job) => job(),
                Order::Leave(to) => {
                    let _ = to.send(orders);
                    return;
                }
                Order::Ended => {}
            }
        }
    };
    let thread = std::thread::Builder::new().name("adit-keeper".into());
    thread.spawn(work).map(drop)
}

/// The keeper, as a thread that waits for other things besides. Where nothing is confined, it has
/// nothing to do.
#[derive(Debug)]
pub struct Keeper {
    orders: Option<mpsc::Receiver<Order>>,
}

impl Keeper {
    /// Makes the calling thread, which is not confined, the keeper until this is dropped. `wake` is
    /// called when there is something for [`Self::work`] to do, on the thread that asks.
    pub fn here(wake: impl Fn() + Send + Sync + 'static) -> Self {
        let orders = DESK.get().and_then(|desk| {
            let _ = desk.wake.set(Box::new(wake));
            let (to, orders) = mpsc::channel();
            desk.send(Order::Leave(to));
            orders.recv().ok()
        });
        Self { orders }
    }

    /// Does what others have asked for.
    pub fn work(&self) {
        while let Some(Ok(order)) = self.orders.as_ref().map(mpsc::Receiver::try_recv) {
            if let Order::Do(job) = order {
                job();
            }
        }
    }

    /// Runs `work`, which may wait for other threads, and meanwhile does what these ask for. Where
    /// no thread can be started for it, waits until one can.
    pub fn beside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let Some((desk, orders)) = DESK.get().zip(self.orders.as_ref()) else {
            return work();
        };
        let work = Mutex::new(Some(work));
        let work = &work;
        std::thread::scope(|scope| {
            let thread = loop {
                let run = || {
                    let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
                    let result = work.map(|work| catch_unwind(AssertUnwindSafe(work)));
                    desk.send(Order::Ended);
                    result
                };
                match aside_named().spawn_scoped(scope, run) {
                    Ok(thread) => break thread,
                    Err(_) => {
                        self.work();
                        std::thread::sleep(PAUSE);
                    }
                }
            };
            while let Ok(order) = orders.recv() {
                match order {
                    Order::Do(job) => job(),
                    Order::Ended => break,
                    Order::Leave(_) => {}
                }
            }
            match thread.join() {
                Ok(Some(Ok(result))) => result,
                Ok(Some(Err(panic))) | Err(panic) => resume_unwind(panic),
                Ok(None) => unreachable!("the work is taken once, by the thread that starts"),
            }
        })
    }
}

impl Drop for Keeper {
    /// A thread of its own goes on: others may still need it in order to end.
    fn drop(&mut self) {
        if let Some(orders) = self.orders.take() {
            let _ = spawn(orders);
        }
    }
}

fn aside_named() -> std::thread::Builder {
    std::thread::Builder::new().name("adit-aside".into())
}

/// Where to ask the keeper, if the calling thread needs it.
fn desk() -> Option<&'static Desk> {
    DESK.get().filter(|_| IS_CONFINED.get())
}

/// Runs `job` where its system calls are allowed, and waits for its result: on this thread, unless it
/// is confined. A panic in `job` continues in the caller.
///
/// `job` must wait for no other thread, which might wait for the keeper. [`aside`] is for one that
/// does.
pub fn run<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> T {
    match desk() {
        Some(desk) => ask(desk, job, |job| job()),
        None => job(),
    }
}

/// Runs `job` as [`run`] does, but on a thread of its own, so that it may wait for others.
///
/// # Errors
///
/// No thread could be started.
pub fn aside<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let Some(desk) = desk() else {
        return Ok(job());
    };
    let spawned = |job: Job| {
        // Without a thread the job is dropped, and with it where its result would go.
        drop(aside_named().spawn(job));
    };
    let (answer, result) = mpsc::sync_channel(1);
    send(desk, answer, job, spawned);
    match result.recv() {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(panic)) => resume_unwind(panic),
        Err(_) => Err(io::Error::other("no thread could be started")),
    }
}

/// Has `job` run where its system calls are allowed, and does not wait.
pub fn post(job: impl FnOnce() + Send + 'static) {
    match desk() {
        Some(desk) => desk.send(Order::Do(Box::new(|| {
            // A panic has been reported, and nobody waits for anything.
            let _ = catch_unwind(AssertUnwindSafe(job));
        }))),
        None => job(),
    }
}

/// Has `job` run where the rights for it are, on a thread of its own, and does not wait. Without
/// memory for a thread `job` is dropped.
pub fn post_aside(job: impl FnOnce() + Send + 'static) {
    post(move || drop(aside_named().spawn(job)));
}

fn ask<T: Send + 'static>(
    desk: &Desk,
    job: impl FnOnce() -> T + Send + 'static,
    start: fn(Job),
) -> T {
    let (answer, result) = mpsc::sync_channel(1);
    send(desk, answer, job, start);
    match result.recv() {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => resume_unwind(panic),
        Err(_) => unreachable!("the keeper answers, and lives as long as the process"),
    }
}

fn send<T: Send + 'static>(
    desk: &Desk,
    answer: mpsc::SyncSender<std::thread::Result<T>>,
    job: impl FnOnce() -> T + Send + 'static,
    start: impl FnOnce(Job) + Send + 'static,
) {
    let job: Job = Box::new(move || {
        let result = catch_unwind(AssertUnwindSafe(job));
        let _ = answer.send(result);
    });
    desk.send(Order::Do(Box::new(move || start(job))));
}
