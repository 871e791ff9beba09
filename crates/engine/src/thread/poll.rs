//! How the threads that process packets sleep, and what wakes them.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData};

/// Events that are taken at once: as many queues have their turn before any has its next one.
pub(crate) const MAX_EVENTS: usize = 16;

/// The token of a descriptor in an epoll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// The waker of the thread.
    Waker,
    /// One of the queues with this number.
    Queue(u32, Descriptor),
}

/// A descriptor of an interface's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Descriptor {
    Tun,
    /// The peers' own sockets.
    Paths,
    /// A socket that receives.
    Socket {
        rx_queue: u8,
        v6: bool,
    },
}

/// The result of a poll of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polled {
    /// Packets were processed, so many.
    Packets {
        count: usize,
        /// The batch was full: more may wait.
        more: bool,
    },
    /// Another thread is taking what waits.
    Busy,
    /// No more batches may be taken now. The thread that commits the next one wakes the owner.
    Full,
    /// The socket is full, and sealed trains wait for it: call again when it is writable.
    Blocked,
}

impl Polled {
    pub(crate) fn packets(count: usize, more: bool) -> Self {
        Self::Packets { count, more }
    }

    /// Whether any were processed.
    pub(crate) fn has_packets(self) -> bool {
        matches!(self, Self::Packets { count: 1.., .. })
    }

    pub(crate) fn leaves_some(self) -> bool {
        matches!(self, Self::Packets { more: true, .. })
    }
}

impl Token {
    const WAKER: u64 = u64::MAX;

    pub(crate) fn data(self) -> EventData {
        EventData::new_u64(match self {
            Self::Waker => Self::WAKER,
            Self::Queue(number, descriptor) => u64::from(number) << 16 | descriptor.code(),
        })
    }

    pub(crate) fn of(event: &Event) -> Self {
        let data = event.data.u64();
        let Ok(number) = u32::try_from(data >> 16) else {
            return Self::Waker;
        };
        let [code, rx_queue, ..] = data.to_le_bytes();
        let descriptor = match code {
            0 => Descriptor::Tun,
            1 => Descriptor::Paths,
            family => Descriptor::Socket {
                rx_queue,
                v6: family == 3,
            },
        };
        Self::Queue(number, descriptor)
    }
}

impl Descriptor {
    fn code(self) -> u64 {
        match self {
            Self::Tun => 0,
            Self::Paths => 1,
            Self::Socket { rx_queue, v6 } => u64::from(rx_queue) << 8 | 2 | u64::from(v6),
        }
    }
}

/// Overwrites what sealing and opening left of keys on the stack of a thread, below its loop. A
/// thread that has packets does that by itself; one that has none is woken for it when keys are
/// dropped.
#[inline]
pub(crate) fn overwrite_stack() {
    adit_aead::zeroizing_stack::<{ 64 << 10 }, _>(|| ());
}

/// Sleeps until something happens, and tells what; not longer than `timeout`.
pub(crate) fn wait(
    epoll: &OwnedFd,
    events: &mut Vec<Event>,
    timeout: Option<Duration>,
) -> io::Result<()> {
    #[cfg(debug_assertions)]
    if timeout != Some(Duration::ZERO) {
        crate::thread::progress::sleeps();
    }
    events.clear();
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    let spare = rustix::buffer::spare_capacity(events);
    match epoll::wait(epoll, spare, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// The role of a thread towards the queues that it polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollRole {
    /// It waits for their events, and [`QueuesHandle::wake`](crate::shared::handles::QueuesHandle::wake) wakes it.
    Owner,
    /// An owner that leaves the work to others as long as these can do it.
    OwnerOfPipeline,
    /// Any other.
    Worker,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_itself_again_after_epoll() {
        let descriptors = [
            Descriptor::Tun,
            Descriptor::Paths,
            Descriptor::Socket {
                rx_queue: 0,
                v6: false,
            },
            Descriptor::Socket {
                rx_queue: 0,
                v6: true,
            },
            Descriptor::Socket {
                rx_queue: 7,
                v6: false,
            },
            Descriptor::Socket {
                rx_queue: u8::MAX,
                v6: true,
            },
        ];
        let queues = |number| descriptors.map(|descriptor| Token::Queue(number, descriptor));
        let tokens = [0, 1, u32::MAX].into_iter().flat_map(queues);
        for token in tokens.chain([Token::Waker]) {
            let event = Event {
                flags: epoll::EventFlags::IN,
                data: token.data(),
            };
            assert_eq!(Token::of(&event), token);
        }
    }
}
