//! The events of a tunnel, as its program takes them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use adit_engine as engine;
use adit_proto::Liveness;

use crate::event::Event;
use crate::keys::PublicKey;

/// Events that wait at most.
const MAX_EVENTS: usize = 1024;

/// Called when there are events.
type Waker = Arc<dyn Fn() + Send + Sync>;

/// The events of a tunnel, in the order in which they happened. At most 1,024 wait; what does not fit
/// is told as [`Event::Missed`].
///
/// As an iterator it waits for the next one, and ends with the tunnel. Clones take from the same events.
///
/// ```no_run
/// # fn f(tunnel: &adit::Tunnel) {
/// for event in tunnel.events() {
///     println!("{event}");
/// }
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Events(Arc<EventQueue>);

#[derive(Default)]
struct EventQueue {
    state: Mutex<QueuedEvents>,
    changed: Condvar,
}

#[derive(Default)]
struct QueuedEvents {
    events: VecDeque<Event>,
    missed: u64,
    has_ended: bool,
    waker: Option<Waker>,
}

impl Events {
    fn lock(&self) -> MutexGuard<'_, QueuedEvents> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next event that waits; `None` if none does.
    pub fn try_next(&self) -> Option<Event> {
        self.lock().take()
    }

    /// The next event, for which it waits for so long at most; `None` if there was none, or the tunnel has
    /// ended.
    pub fn next_timeout(&self, timeout: Duration) -> Option<Event> {
        let until = Instant::now().checked_add(timeout);
        self.wait(until)
    }

    /// Whether the tunnel has ended: no event follows those that wait.
    pub fn has_ended(&self) -> bool {
        self.lock().has_ended
    }

    /// Has `wake` called when there are events, from now on, and when the tunnel has ended; it replaces the
    /// one before. It is called on a thread of the tunnel, which it must not block.
    pub fn set_waker(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.lock().waker = Some(Arc::new(wake));
    }

    fn wait(&self, until: Option<Instant>) -> Option<Event> {
        let mut waiting = self.lock();
        loop {
            if let Some(event) = waiting.take() {
                return Some(event);
            }
            if waiting.has_ended {
                return None;
            }
            waiting = match until {
                None => {
                    let waited = self.0.changed.wait(waiting);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    let waited = self.0.changed.wait_timeout(waiting, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Tells an event of the engine, if it is one of a tunnel's.
    pub(crate) fn tell(&self, event: &engine::Event) {
        let Some(event) = of_engine(event) else {
            return;
        };
        let mut waiting = self.lock();
        match waiting.events.len() {
            MAX_EVENTS.. => waiting.missed += 1,
            _ => waiting.events.push_back(event),
        }
        self.wake(waiting);
    }

    /// No event follows.
    pub(crate) fn end(&self) {
        let mut waiting = self.lock();
        waiting.has_ended = true;
        self.wake(waiting);
    }

    fn wake(&self, waiting: MutexGuard<'_, QueuedEvents>) {
        let waker = waiting.waker.clone();
        drop(waiting);
        self.0.changed.notify_all();
        if let Some(waker) = waker {
            waker();
        }
    }
}

impl QueuedEvents {
    fn take(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        event.or_else(|| match std::mem::take(&mut self.missed) {
            0 => None,
            count => Some(Event::Missed { count }),
        })
    }
}

impl Iterator for Events {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.wait(None)
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events")
            .field("waiting", &self.lock().events.len())
            .finish_non_exhaustive()
    }
}

fn of_engine(event: &engine::Event) -> Option<Event> {
    Some(match *event {
        engine::Event::Session { peer, last } => Event::Session {
            peer: PublicKey::of(peer),
            endpoint: last.at,
        },
        engine::Event::Roamed { peer, from, to } => Event::Roamed {
            peer: PublicKey::of(peer),
            from,
            to,
        },
        engine::Event::GivenUp { peer, initiations } => Event::GivenUp {
            peer: PublicKey::of(peer),
            initiations,
        },
        engine::Event::Liveness { peer, state, .. } => match state {
            Liveness::Up => Event::Reachable {
                peer: PublicKey::of(peer),
            },
            Liveness::Silent | Liveness::Gone => Event::Unreachable {
                peer: PublicKey::of(peer),
            },
            Liveness::Unknown => return None,
        },
        engine::Event::Access { .. }
        | engine::Event::Unanswered { .. }
        | engine::Event::Stranger { .. }
        | engine::Event::Incident { .. }
        | engine::Event::Others { .. } => return None,
    })
}

#[cfg(test)]
mod tests {
    use adit_proto::config::PublicKey as ProtoKey;

    use super::*;

    fn given_up(initiations: u32) -> engine::Event {
        engine::Event::GivenUp {
            peer: ProtoKey([1; 32]),
            initiations,
        }
    }

    #[test]
    fn what_nobody_takes_is_bounded_and_counted() {
        let mut events = Events::default();
        (0..1500).for_each(|n| events.tell(&given_up(n)));
        let taken: Vec<Event> = std::iter::from_fn(|| events.try_next()).collect();
        assert_eq!(taken.len(), 1025);
        assert_eq!(taken[1024], Event::Missed { count: 476 });
        events.tell(&given_up(7));
        events.end();
        assert!(matches!(
            events.next(),
            Some(Event::GivenUp { initiations: 7, .. })
        ));
        assert_eq!(events.next(), None);
        assert_eq!(events.next_timeout(Duration::MAX), None);
    }

    #[test]
    fn a_waker_is_called_and_a_wait_ends_with_its_time() {
        let events = Events::default();
        assert_eq!(events.next_timeout(Duration::from_millis(1)), None);
        let (sender, woken) = std::sync::mpsc::channel();
        events.set_waker(move || sender.send(()).expect("the test waits"));
        events.tell(&given_up(1));
        assert_eq!(woken.try_iter().count(), 1);
        assert!(events.next_timeout(Duration::ZERO).is_some());
    }
}
