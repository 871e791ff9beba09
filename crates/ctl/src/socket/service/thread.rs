//! The thread that serves all sockets.

use std::any::Any;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use adit_sandbox::Role;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fs::inotify::{self, ReadFlags};
use rustix::io::Errno;
use rustix::net;

use crate::origin::Origin;
use crate::socket::client::Client;
use crate::socket::contain::contain;
use crate::socket::service::shared::{
    ACCEPT_PAUSE, COMMANDS, EVENTS, FILES, MAX_ALL_CLIENTS, MAX_CLIENTS, PACE, PACE_TIME, SHARED,
    ServerEvent, ServiceCommand, ServiceState, Socket, is_scarce,
};
use crate::zeroized::Zeroized;

/// State of the thread.
pub(super) struct Thread {
    shared: Arc<ServiceState>,
    commands: mpsc::Receiver<ServiceCommand>,
    epoll: OwnedFd,
    clients: HashMap<u64, Client>,
    sockets: HashMap<u64, Socket>,
    /// Bytes that all clients together hold.
    held: usize,
    /// Clients that are not heard until there is memory.
    waiting: BTreeSet<u64>,
    /// When to look which clients keep them waiting.
    pace_at: Option<Instant>,
    /// Clients with work that can be done without waiting.
    ready: BTreeSet<u64>,
    /// No client counts as stalled before this.
    sweep_at: Option<Instant>,
    /// Sockets at which accept(2) failed, and when to try again.
    paused: VecDeque<(Instant, u64)>,
    /// What is kept for a while, and until when.
    kept: VecDeque<(Instant, Box<dyn Any + Send>)>,
}

impl Thread {
    pub(super) fn new(
        shared: Arc<ServiceState>,
        commands: mpsc::Receiver<ServiceCommand>,
    ) -> std::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (fd, id) in [(&shared.wake, COMMANDS), (&shared.inotify, FILES)] {
            epoll::add(&epoll, fd, EventData::new_u64(id), EventFlags::IN)?;
        }
        Ok(Self {
            shared,
            commands,
            epoll,
            clients: HashMap::new(),
            sockets: HashMap::new(),
            held: 0,
            waiting: BTreeSet::new(),
            pace_at: None,
            ready: BTreeSet::new(),
            sweep_at: None,
            paused: VecDeque::new(),
            kept: VecDeque::new(),
        })
    }

    pub(super) fn run(mut self) {
        if adit_sandbox::confine(Role::Sockets).is_err() {
            return;
        }
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            let timeout = self.timeout(Instant::now());
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, spare, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => std::thread::sleep(ACCEPT_PAUSE),
            }
            let now = Instant::now();
            let mut woken = std::mem::take(&mut self.ready);
            woken.extend(events.iter().map(|event| event.data.u64()));
            for id in woken {
                self.handle(id);
                // After each, because a callback may have dropped a `Serving`.
                if !self.take_commands() {
                    return;
                }
            }
            self.sweep(now);
            self.keep_pace(now);
            self.resume(now);
            while self.kept.front().is_some_and(|(until, _)| *until <= now) {
                self.kept.pop_front();
            }
        }
    }

    /// How long to wait for events.
    fn timeout(&self, now: Instant) -> Option<Timespec> {
        let paused = self.paused.front().map(|&(until, _)| until);
        let kept = self.kept.front().map(|&(until, _)| until);
        let times = self.sweep_at.into_iter().chain(self.pace_at);
        let times = times.chain(paused).chain(kept);
        let wait = match times.min() {
            _ if !self.ready.is_empty() => Duration::ZERO,
            // A millisecond late rather than a moment early.
            Some(at) => at.saturating_duration_since(now) + Duration::from_millis(1),
            None => return None,
        };
        Timespec::try_from(wait).ok()
    }

    /// Does what can be done for one id without waiting. The id of a client or a socket that was
    /// removed in the meantime belongs to nothing.
    fn handle(&mut self, id: u64) {
        let now = Instant::now();
        match id {
            COMMANDS => _ = rustix::io::read(&self.shared.wake, &mut [0; 8]),
            FILES => self.check_files(),
            _ => {
                let is_full = self.is_full_for(Some(id));
                match self.clients.get_mut(&id) {
                    Some(client) if is_full && client.is_to_be_heard() => self.wait(id, now),
                    Some(_) => self.go_on(id, |client| client.step(now)),
                    None => self.accept(id, now),
                }
            }
        }
    }

    /// False: the thread has to end.
    fn take_commands(&mut self) -> bool {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                ServiceCommand::Add(id, mut socket) => {
                    // Nobody handled what happened to the file before.
                    socket.check_file();
                    self.sockets.insert(id, socket);
                    self.listen(id, Instant::now());
                }
                ServiceCommand::Remove(id) => self.remove(id),
                ServiceCommand::Poke(id) => self.poke(id),
                ServiceCommand::Keep(thing, time) => {
                    self.kept.push_back((Instant::now() + time, thing));
                }
                ServiceCommand::Stop => return false,
            }
        }
        true
    }

    fn poke(&mut self, of: u64) {
        let Some(socket) = self.sockets.get(&of) else {
            return;
        };
        // From now on it has to be asked again.
        socket.is_due.store(false, Ordering::Release);
        let now = Instant::now();
        let clients = self.clients.iter();
        let clients = clients.filter(|(_, client)| client.socket == of);
        for id in clients.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.go_on(id, |client| client.poke(now));
        }
    }

    fn remove(&mut self, id: u64) {
        let clients = self.clients.iter();
        let clients = clients.filter(|(_, client)| client.socket == id);
        for client in clients.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.hang_up(client);
        }
        let Some(socket) = self.sockets.remove(&id) else {
            return;
        };
        // Closing it does not suffice where another process has the socket, too.
        _ = epoll::delete(&self.epoll, socket.bound.listener());
        if let Some(watch) = socket.watch {
            _ = inotify::remove_watch(&self.shared.inotify, watch);
        }
        drop((socket.open, socket.notify));
        _ = socket.done.send(socket.bound);
    }

    /// Handles changes of the files of sockets.
    fn check_files(&mut self) {
        let mut changed = BTreeSet::new();
        let mut all = false;
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.shared.inotify, &mut buffer);
        while let Ok(event) = reader.next() {
            changed.insert(Some(event.wd()));
            // There were more events than the kernel queues.
            all |= event.events().contains(ReadFlags::QUEUE_OVERFLOW);
        }
        let changed =
            (self.sockets.values_mut()).filter(|socket| all || changed.contains(&socket.watch));
        changed.for_each(Socket::check_file);
    }

    /// Waits for a socket's clients.
    fn listen(&mut self, id: u64, now: Instant) {
        let Some(socket) = self.sockets.get(&id) else {
            return;
        };
        let listener = socket.bound.listener();
        if let Err(error) = epoll::add(
            &self.epoll,
            listener,
            EventData::new_u64(id),
            EventFlags::IN,
        ) {
            socket.tell(ServerEvent::Failed(&error.into()));
            self.paused.push_back((now + ACCEPT_PAUSE, id));
        }
    }

    /// Waits again for clients of sockets that were paused for long enough.
    fn resume(&mut self, now: Instant) {
        while let Some(&(until, id)) = self.paused.front()
            && until <= now
        {
            self.paused.pop_front();
            self.listen(id, now);
        }
    }

    fn accept(&mut self, of: u64, now: Instant) {
        let Some(socket) = self.sockets.get_mut(&of) else {
            return;
        };
        let flags = net::SocketFlags::CLOEXEC | net::SocketFlags::NONBLOCK;
        match net::accept_with(socket.bound.listener(), flags) {
            Ok(stream) => {
                let is_scarce = is_scarce(&stream);
                let mut greeting = Zeroized::default();
                let origin = Origin::of(&stream);
                let talk = match contain(|| (socket.open)(&mut greeting, origin)) {
                    Ok(talk) => talk,
                    Err(panic) => return socket.tell(ServerEvent::Panicked(&panic)),
                };
                let id = self.shared.new_id();
                socket.clients += 1;
                let client = Client::new(stream, (of, origin.uid), now, talk, greeting);
                self.clients.insert(id, client);
                self.make_room(Some(id), of, is_scarce);
                if self.clients.contains_key(&id) {
                    self.handle(id);
                }
            }
            Err(Errno::WOULDBLOCK | Errno::CONNABORTED | Errno::INTR) => {}
            // Without a free descriptor a client makes room for the one that waits.
            Err(Errno::MFILE | Errno::NFILE) if !self.clients.is_empty() => {
                self.make_room(None, of, true);
            }
            Err(error) => {
                socket.tell(ServerEvent::Failed(&error.into()));
                _ = epoll::delete(&self.epoll, socket.bound.listener());
                self.paused.push_back((now + ACCEPT_PAUSE, of));
            }
        }
    }

    /// Drops a client if there are too many with the newcomer, or if descriptors are `scarce`: of
    /// the user that has most the one that has been silent for longest. Where all are root's, a
    /// newcomer of another user goes.
    fn make_room(&mut self, newcomer: Option<u64>, of: u64, scarce: bool) {
        let clients_of = |id| self.sockets.get(&id).map_or(0, |socket| socket.clients);
        let crowded = clients_of(of) > MAX_CLIENTS;
        if !crowded && !scarce && self.clients.len() <= MAX_ALL_CLIENTS {
            return;
        }
        let candidates =
            || (self.clients.iter()).filter(|(_, client)| !crowded || client.socket == of);
        let mut of_users = HashMap::<u32, usize>::new();
        for (_, client) in candidates() {
            *of_users.entry(client.uid).or_default() += 1;
        }
        let is_new = |id: u64| Some(id) == newcomer;
        let rank = |&(&id, client): &(&u64, &Client)| {
            let of_user = of_users.get(&client.uid).copied();
            let of_socket = clients_of(client.socket);
            let silent = Reverse(client.seen);
            (client.uid != 0, of_user, !is_new(id), of_socket, silent)
        };
        // Root's newcomer stays, with any others there.
        let candidates = candidates().filter(|&(&id, client)| !is_new(id) || client.uid != 0);
        if let Some(id) = candidates.max_by_key(rank).map(|(&id, _)| id) {
            self.hang_up(id);
        }
    }

    /// Whether there is no memory for one more step of this client, or of any.
    fn is_full_for(&self, id: Option<u64>) -> bool {
        if self.held <= SHARED {
            return false;
        }
        let holders = self
            .clients
            .iter()
            .map(|(&id, client)| (client.counted, id));
        let (most, largest) = holders.max().unwrap_or_default();
        self.held - most > SHARED && id != Some(largest)
    }

    /// A client is not heard until there is memory.
    fn wait(&mut self, id: u64, now: Instant) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.deregister(&self.epoll);
            self.waiting.insert(id);
            if self.pace_at.is_none() {
                self.clients
                    .values_mut()
                    .for_each(|client| client.moved = 0);
                self.pace_at = Some(now + PACE_TIME);
            }
        }
    }

    /// Gives up clients that keep others waiting for memory.
    fn keep_pace(&mut self, now: Instant) {
        if self.pace_at.is_none_or(|at| at > now) {
            return;
        }
        let waiting = self.waiting.clone();
        self.pace_at = (!waiting.is_empty()).then(|| now + PACE_TIME);
        for id in self.clients.keys().copied().collect::<Vec<_>>() {
            let is_awaited = !waiting.is_empty() && !waiting.contains(&id);
            if let Some(client) = self.clients.get_mut(&id) {
                let moved = std::mem::take(&mut client.moved);
                if is_awaited && client.counted > 0 && moved < PACE {
                    self.go_on(id, |client| client.give_up(now));
                }
            }
        }
    }

    /// Has clients that waited for memory be heard again, if there is some.
    fn end_waiting(&mut self) {
        if self.waiting.is_empty() || self.is_full_for(None) {
            return;
        }
        let now = Instant::now();
        for id in std::mem::take(&mut self.waiting) {
            if let Some(client) = self.clients.get_mut(&id) {
                // Until now it could move nothing.
                (client.seen, client.moved) = (now, PACE);
                self.ready.insert(id);
            }
        }
    }

    /// Has a client go on, and drops it if that says that the conversation is over. If it panics,
    /// this client is dropped, the owner of its socket is told, and all others go on.
    fn go_on(&mut self, id: u64, step: impl FnOnce(&mut Client) -> bool) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let stays = contain(|| step(client));
        if let (Err(panic), Some(socket)) = (&stays, self.sockets.get(&client.socket)) {
            socket.tell(ServerEvent::Panicked(panic));
        }
        self.update(id, stays.unwrap_or(false));
    }

    /// Has the rest of the thread know what a client waits for now; drops it unless it `stays`.
    fn update(&mut self, id: u64, stays: bool) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        self.held = self.held - client.counted + client.held();
        client.counted = client.held();
        if !stays || client.register(&self.epoll, id).is_err() {
            self.hang_up(id);
            return;
        }
        if client.is_ready() {
            self.ready.insert(id);
        }
        self.sweep_at = self.sweep_at.into_iter().chain(client.deadline()).min();
        self.end_waiting();
    }

    fn hang_up(&mut self, id: u64) {
        if let Some(client) = self.clients.remove(&id) {
            self.held -= client.counted;
            self.waiting.remove(&id);
            self.end_waiting();
            if let Some(socket) = self.sockets.get_mut(&client.socket) {
                socket.clients -= 1;
            }
        }
    }

    /// Gives up stalled clients. A deadline only ever moves away, so that this looks at all clients
    /// seldom.
    fn sweep(&mut self, now: Instant) {
        if self.sweep_at.is_none_or(|at| at > now) {
            return;
        }
        self.sweep_at = None;
        for id in self.clients.keys().copied().collect::<Vec<_>>() {
            // Those wait for others.
            if let Some(client) = self.clients.get_mut(&id)
                && !self.waiting.contains(&id)
            {
                let is_early = client.deadline().is_none_or(|at| at > now);
                self.go_on(id, |client| is_early || client.give_up(now));
            }
        }
    }
}
