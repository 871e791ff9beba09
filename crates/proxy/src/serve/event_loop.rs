//! The thread that has the clients: each has its turn when something happened.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::core::{ProxyClient, SCRATCH, ServeCore, Step};
use super::news::{ClientToken, News, Told};

/// The longest wait: more than some 24 days would take a system call that a sandbox does not allow.
const LONGEST: Duration = Duration::from_secs(86_400);
/// Events that are taken at a time.
const EVENTS: usize = 128;
/// Clients that have more to do and have their turn before events are looked at again.
const TURNS: usize = 64;
/// The token of the queue of news: that of no client, since their serials begin at 1.
const NEWS: u64 = 0;

/// A place for a client.
struct ClientPlace {
    serial: u64,
    /// `None` while it is free, or its client has its turn.
    client: Option<Box<dyn ProxyClient>>,
    /// The earliest timer that is set for it.
    timer: Option<Instant>,
    is_ready: bool,
}

/// The clients and their events.
pub(crate) struct ClientLoop {
    core: ServeCore,
    places: Vec<ClientPlace>,
    free: Vec<usize>,
    timers: BinaryHeap<Reverse<(Instant, ClientToken)>>,
    ready: VecDeque<ClientToken>,
}

impl ClientLoop {
    pub(crate) fn new(core: ServeCore) -> rustix::io::Result<Self> {
        let flags = EventFlags::IN;
        epoll::add(core.epoll(), &*core.news, EventData::new_u64(NEWS), flags)?;
        Ok(Self {
            core,
            places: Vec::new(),
            free: Vec::new(),
            timers: BinaryHeap::new(),
            ready: VecDeque::new(),
        })
    }

    /// Runs until the proxy is to end.
    pub(crate) fn run(&mut self) {
        loop {
            self.wait();
            let Some(told) = self.core.news.take() else {
                return;
            };
            for told in told {
                match told {
                    Told::Client(token, news) => self.tell(token, news),
                    Told::Names(key, names) => {
                        for token in self.core.waiting_for(&key) {
                            self.tell(token, News::Names(key.clone(), names.clone()));
                        }
                    }
                }
            }
            self.expire();
            for _ in 0..TURNS.min(self.ready.len()) {
                if let Some(token) = self.ready.pop_front() {
                    if let Some(place) = self.places.get_mut(token.place()) {
                        place.is_ready = false;
                    }
                    self.turn(token, |it, core, token| {
                        it.event(core, token, EventFlags::empty())
                    });
                }
            }
            self.welcome();
        }
    }

    /// Adds what brings clients, or those that came.
    pub(crate) fn welcome(&mut self) {
        for client in std::mem::take(&mut self.core.arrivals) {
            let place = match self.free.pop() {
                Some(place) => place,
                None if self.places.len() < ClientToken::MOST => {
                    self.places.push(ClientPlace {
                        serial: 0,
                        client: None,
                        timer: None,
                        is_ready: false,
                    });
                    self.places.len() - 1
                }
                None => continue,
            };
            self.core.clients += usize::from(client.counts());
            let at = &mut self.places[place];
            // Serials have what the place and the part leave of 64 bits.
            at.serial = (at.serial + 1) & 0xff_ffff;
            at.serial = at.serial.max(1);
            at.client = Some(client);
            at.timer = None;
            at.is_ready = false;
            let token = ClientToken::new(at.serial, place);
            self.turn(token, |it, core, token| it.begin(core, token));
        }
        let clients = self.core.clients as u64;
        self.core.report.clients.store(clients, Ordering::Relaxed);
    }

    /// Waits for events, and gives clients their turns.
    fn wait(&mut self) {
        let now = Instant::now();
        let time = match self.timers.peek() {
            _ if !self.ready.is_empty() => Some(Duration::ZERO),
            Some(Reverse((at, _))) => Some(at.saturating_duration_since(now)),
            None => None,
        };
        let time = time.map(|time| time.min(LONGEST)).map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        let mut events = [const { MaybeUninit::<Event>::uninit() }; EVENTS];
        let waited = epoll::wait(self.core.epoll(), &mut events, time.as_ref());
        self.core.now = Instant::now();
        let Ok((events, _)) = waited else {
            // A signal; anything else would be a defect, in which it does not spin.
            if waited.is_err_and(|error| error != Errno::INTR) {
                std::thread::sleep(Duration::from_millis(100));
            }
            return;
        };
        for event in events {
            let (token, flags) = (event.data.u64(), event.flags);
            if token != NEWS {
                self.turn(ClientToken(token), |it, core, token| {
                    it.event(core, token, flags)
                });
            }
        }
    }

    fn tell(&mut self, token: ClientToken, news: News) {
        self.turn(token, |it, core, token| match news {
            News::Displaced => Step::Done,
            news => it.told(core, token, news),
        });
    }

    fn expire(&mut self) {
        while let Some(Reverse((at, token))) = self.timers.peek().copied() {
            if at > self.core.now {
                return;
            }
            self.timers.pop();
            let Some(place) = self.find(token) else {
                continue;
            };
            if place.timer != Some(at) {
                continue;
            }
            place.timer = None;
            let deadline = place.client.as_ref().and_then(|client| client.deadline());
            match deadline {
                Some(deadline) if deadline <= self.core.now => {
                    self.turn(token, |it, core, token| it.expired(core, token));
                }
                Some(deadline) => self.set_timer(token, deadline),
                None => {}
            }
        }
    }

    fn find(&mut self, token: ClientToken) -> Option<&mut ClientPlace> {
        let place = self.places.get_mut(token.place())?;
        let is_its = ClientToken::new(place.serial, token.place()) == token.with_part(0);
        is_its.then_some(place)
    }

    fn set_timer(&mut self, token: ClientToken, at: Instant) {
        let token = token.with_part(0);
        if let Some(place) = self.find(token)
            && place.timer.is_none_or(|timer| at < timer)
        {
            place.timer = Some(at);
            self.timers.push(Reverse((at, token)));
        }
    }

    /// Gives a client its turn. A panic there ends that client, and no other.
    fn turn(
        &mut self,
        token: ClientToken,
        act: impl FnOnce(&mut dyn ProxyClient, &mut ServeCore, ClientToken) -> Step,
    ) {
        let Some(mut client) = self.find(token).and_then(|place| place.client.take()) else {
            return;
        };
        self.core.scratch.resize(SCRATCH, 0);
        let core = &mut self.core;
        let mut step = contained(&mut *client, core, |it, core| act(it, core, token));
        while let Step::Become(next) = step {
            self.core.clients -= usize::from(client.counts());
            self.core.clients += usize::from(next.counts());
            client = next;
            self.core.scratch.resize(SCRATCH, 0);
            let token = token.with_part(0);
            let core = &mut self.core;
            step = contained(&mut *client, core, |it, core| it.begin(core, token));
        }
        if matches!(step, Step::Done) {
            self.core.clients -= usize::from(client.counts());
            // Its descriptors are closed, and with that waited for no longer.
            drop(client);
            self.core.ended(token.with_part(0));
            self.free.push(token.place());
            if let Some(place) = self.places.get_mut(token.place()) {
                // What comes for it finds nobody.
                place.serial = (place.serial + 1) & 0xff_ffff;
            }
            return;
        }
        let deadline = client.deadline();
        let again = matches!(step, Step::Again);
        if let Some(place) = self.find(token) {
            place.client = Some(client);
            if again && !place.is_ready {
                place.is_ready = true;
                self.ready.push_back(token.with_part(0));
            }
        }
        if let Some(deadline) = deadline {
            self.set_timer(token, deadline);
        }
    }
}

fn contained(
    client: &mut dyn ProxyClient,
    core: &mut ServeCore,
    act: impl FnOnce(&mut dyn ProxyClient, &mut ServeCore) -> Step,
) -> Step {
    let acted = catch_unwind(AssertUnwindSafe(|| act(client, core)));
    acted.unwrap_or_else(|_| {
        let _ = catch_unwind(AssertUnwindSafe(|| client.failed(core)));
        Step::Done
    })
}

#[cfg(test)]
#[path = "event_loop_tests.rs"]
mod tests;
