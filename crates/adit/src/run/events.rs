//! What the main thread waits for: signals, and word from other threads. It takes no further
//! thread.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, mpsc};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level::pipe};

use crate::failure::{Context, Result};

/// Something that the main thread acts on.
pub(super) enum Event {
    /// SIGINT or SIGTERM.
    Signal(usize),
    /// The interface of this name has ended.
    Ended(String),
    /// The control socket of the interface of this name was removed.
    SocketRemoved(String),
}

/// The receiving end. Signals are caught as long as it exists.
pub(super) struct Events {
    queue: mpsc::Receiver<Event>,
    /// A byte arrives after each event and each signal.
    wake: UnixStream,
    /// The last signal, or 0.
    caught: Arc<AtomicUsize>,
}

/// A sending end.
#[derive(Clone)]
pub(super) struct Sender {
    queue: mpsc::Sender<Event>,
    wake: Arc<UnixStream>,
}

impl Events {
    /// Catches signals from now on.
    pub(super) fn new() -> Result<(Self, Sender)> {
        let failed = || "cannot catch signals".to_owned();
        let (wake, waker) = UnixStream::pair().context(failed)?;
        // When it is full, a wake-up is already due.
        waker.set_nonblocking(true).context(failed)?;
        let caught = Arc::new(AtomicUsize::new(0));
        for (signal, number) in [(SIGTERM, SIGTERM as usize), (SIGINT, SIGINT as usize)] {
            flag::register_usize(signal, Arc::clone(&caught), number).context(failed)?;
            let waker = waker.try_clone().context(failed)?;
            pipe::register(signal, waker).context(failed)?;
        }
        let (sender, queue) = mpsc::channel();
        let sender = Sender {
            queue: sender,
            wake: Arc::new(waker),
        };
        let events = Self {
            queue,
            wake,
            caught,
        };
        Ok((events, sender))
    }

    /// Waits for the next event; signals come first.
    pub(super) fn next(&mut self) -> Result<Event> {
        loop {
            match self.caught.swap(0, Relaxed) {
                0 => {}
                signal => return Ok(Event::Signal(signal)),
            }
            if let Ok(event) = self.queue.try_recv() {
                return Ok(event);
            }
            match self.wake.read(&mut [0; 64]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => drop(read.context(|| "cannot wait for signals".into())?),
            }
        }
    }
}

impl Sender {
    pub(super) fn send(&self, event: Event) {
        // Without a receiver the process is about to end.
        if self.queue.send(event).is_ok() {
            let _ = (&*self.wake).write(&[0]);
        }
    }
}
