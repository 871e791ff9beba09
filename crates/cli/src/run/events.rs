//! What the main thread waits for: signals, word from other threads, and threads that they want
//! started. It takes no further thread.

use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, mpsc};

use adit_sandbox::Starter;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level::pipe};

use super::hand_over::{Channel, HandOverListener};
use crate::failure::{Context, Result};

/// Something that the main thread acts on.
pub(crate) enum MainEvent {
    /// SIGINT or SIGTERM.
    Signal(usize),
    /// The interface of this name has ended.
    Ended(String),
    /// The control socket of the interface of this name was removed.
    SocketRemoved(String),
    /// The process that has the capabilities has ended.
    HelperEnded,
    /// Another process asks for the interfaces.
    HandOver(Channel),
}

/// The receiving end. Signals are caught as long as it exists.
pub(crate) struct MainEvents {
    queue: mpsc::Receiver<MainEvent>,
    /// A byte arrives after each event, each signal and each thread that is asked for.
    wake: PipeReader,
    /// The last signal, or 0.
    caught: Arc<AtomicUsize>,
    /// The end of the helper has been told.
    is_alone: bool,
}

/// A sending end.
#[derive(Clone)]
pub(crate) struct EventSender {
    queue: mpsc::Sender<MainEvent>,
    wake: Arc<PipeWriter>,
}

impl MainEvents {
    /// Catches signals from now on.
    pub(crate) fn new() -> Result<(Self, EventSender)> {
        let failed = || "cannot catch signals".to_owned();
        // Not a socket: any thread may have to handle a signal, and all of them may write(2).
        let (wake, waker) = std::io::pipe().context(failed)?;
        // When it is full, a wake-up is already due.
        rustix::io::ioctl_fionbio(&waker, true).context(failed)?;
        let caught = Arc::new(AtomicUsize::new(0));
        for (signal, number) in [(SIGTERM, SIGTERM as usize), (SIGINT, SIGINT as usize)] {
            flag::register_usize(signal, Arc::clone(&caught), number).context(failed)?;
            let waker = waker.try_clone().context(failed)?;
            pipe::register(signal, waker).context(failed)?;
        }
        let (sender, queue) = mpsc::channel();
        let sender = EventSender {
            queue: sender,
            wake: Arc::new(waker),
        };
        let events = Self {
            queue,
            wake,
            caught,
            is_alone: false,
        };
        Ok((events, sender))
    }

    /// Waits for the next event, and meanwhile starts threads; signals come first. Without a `listener`
    /// no other process can ask.
    pub(crate) fn next(
        &mut self,
        starter: &Starter,
        listener: Option<&HandOverListener>,
    ) -> Result<MainEvent> {
        loop {
            starter.work();
            match self.caught.swap(0, Relaxed) {
                0 => {}
                signal => return Ok(MainEvent::Signal(signal)),
            }
            if let Ok(event) = self.queue.try_recv() {
                return Ok(event);
            }
            if let Some(channel) = listener.and_then(HandOverListener::accept) {
                return Ok(MainEvent::HandOver(channel));
            }
            let failed = || "cannot wait for signals".to_owned();
            let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
            fds.extend(listener.map(|listener| PollFd::new(listener, PollFlags::IN)));
            // It says that it hung up, and nothing else.
            let helper = adit_io::helper::connection().filter(|_| !self.is_alone);
            fds.extend(helper.map(|it| PollFd::from_borrowed_fd(it, PollFlags::empty())));
            match poll(&mut fds, None) {
                Err(Errno::INTR) => {}
                polled => drop(polled.map_err(std::io::Error::from).context(failed)?),
            }
            let hung_up = |fd: &PollFd<'_>| fd.revents().contains(PollFlags::HUP);
            if helper.is_some() && fds.last().is_some_and(hung_up) {
                self.is_alone = true;
                return Ok(MainEvent::HelperEnded);
            }
            if fds[0].revents().is_empty() {
                continue;
            }
            match self.wake.read(&mut [0; 64]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => drop(read.context(failed)?),
            }
        }
    }
}

impl EventSender {
    pub(crate) fn send(&self, event: MainEvent) {
        // Without a receiver the process is about to end.
        if self.queue.send(event).is_ok() {
            self.wake();
        }
    }

    /// Has the receiving end look for what else there is.
    pub(crate) fn wake(&self) {
        let _ = (&*self.wake).write(&[0]);
    }
}
