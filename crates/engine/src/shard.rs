//! One thread that carries packets all the way, in both directions.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use adit_io::tun::Trouble;
use adit_io::{Offloads, TunQueue, UdpSocket};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::process::setpriority_process;

use crate::clock;
use crate::common::{Common, Message, ShardFace, Sockets};
use crate::inbound::Inbound;
use crate::outbound::{Outbound, Turn};

/// The nice value of a shard. The kernel forwards packets before any process runs; if the processes whose packets the
/// tunnel carries ran as readily as it, they would fill its queues faster than it empties them.
const PRIORITY: i32 = -10;

const WAKER: u64 = 0;
const TUN: u64 = 1;
const V4: u64 = 2;
const V6: u64 = 3;

/// A shard and what it alone owns.
pub(crate) struct Shard<T, U> {
    number: usize,
    tun: T,
    common: Arc<Common<U>>,
    sockets: Arc<Sockets<U>>,
    epoll: OwnedFd,
    outbound: Outbound,
    inbound: Inbound,
    /// The socket was full: the TUN waits until it is writable.
    blocked: bool,
}

impl<T: TunQueue, U: UdpSocket> Shard<T, U> {
    pub(crate) fn new(
        number: usize,
        tun: T,
        common: Arc<Common<U>>,
        offloads: Offloads,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let face = &common.shards[number];
        epoll::add(
            &epoll,
            &face.waker,
            EventData::new_u64(WAKER),
            EventFlags::IN,
        )?;
        epoll::add(&epoll, tun.fd(), EventData::new_u64(TUN), EventFlags::IN)?;
        let drops = Arc::clone(&face.drops);
        Ok(Self {
            number,
            tun,
            sockets: Arc::new(Sockets::unbound()),
            epoll,
            outbound: Outbound::new(Arc::clone(&drops)),
            inbound: Inbound::new(offloads, drops),
            common,
            blocked: false,
        })
    }

    /// Carries packets until the engine stops; an error is the TUN's and final.
    pub(crate) fn run(mut self) -> io::Result<()> {
        // Without the right to it the shard runs as everyone else does.
        let _ = setpriority_process(None, PRIORITY);
        let mut events = Vec::with_capacity(8);
        while !self.common.is_stopping() {
            events.clear();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                None,
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            let mut outbound = false;
            for event in &events {
                let flags = event.flags;
                match event.data.u64() {
                    WAKER => self.woken()?,
                    TUN => outbound = true,
                    socket => {
                        outbound |= flags.contains(EventFlags::OUT);
                        if flags.intersects(EventFlags::IN | EventFlags::ERR) {
                            self.receive(socket == V6)?;
                        }
                    }
                }
            }
            if outbound {
                self.send()?;
            }
        }
        Ok(())
    }

    fn receive(&mut self, v6: bool) -> io::Result<()> {
        match self.sockets.family(v6) {
            Some(socket) => self
                .inbound
                .turn(&self.common, socket, &self.tun, clock::now()),
            None => Ok(()),
        }
    }

    fn send(&mut self) -> io::Result<()> {
        match self
            .outbound
            .turn(&self.common, &self.sockets, &self.tun, clock::now())
        {
            Ok(turn) => self.set_blocked(turn == Turn::Blocked),
            Err(e) if Trouble::of(&e) == Trouble::Gone => Err(e),
            // Anything else concerns what was to be read and passes.
            Err(_) => Ok(()),
        }
    }

    /// While a socket is full the TUN is left alone: the kernel's queues fill, and their owners notice.
    fn set_blocked(&mut self, blocked: bool) -> io::Result<()> {
        if blocked != self.blocked {
            self.blocked = blocked;
            let tun = if blocked {
                EventFlags::empty()
            } else {
                EventFlags::IN
            };
            epoll::modify(&self.epoll, self.tun.fd(), EventData::new_u64(TUN), tun)?;
            for (socket, token) in tokens(&self.sockets) {
                epoll::modify(
                    &self.epoll,
                    socket.fd(),
                    EventData::new_u64(token),
                    self.socket_events(),
                )?;
            }
        }
        Ok(())
    }

    fn socket_events(&self) -> EventFlags {
        if self.blocked {
            EventFlags::IN | EventFlags::OUT
        } else {
            EventFlags::IN
        }
    }

    fn woken(&mut self) -> io::Result<()> {
        let common = Arc::clone(&self.common);
        let face: &ShardFace<U> = &common.shards[self.number];
        face.waker.clear();
        let sockets = face.sockets.load_full();
        if !Arc::ptr_eq(&sockets, &self.sockets) {
            for socket in self.sockets.both() {
                epoll::delete(&self.epoll, socket.fd())?;
            }
            self.sockets = sockets;
            for (socket, token) in tokens(&self.sockets) {
                epoll::add(
                    &self.epoll,
                    socket.fd().as_fd(),
                    EventData::new_u64(token),
                    self.socket_events(),
                )?;
            }
        }
        for message in face.take_messages() {
            match message {
                Message::SessionReady(tunnel) => {
                    let now = clock::now();
                    if self
                        .outbound
                        .send_staged(&common, &self.sockets, &tunnel, now)
                        == Turn::Blocked
                    {
                        self.set_blocked(true)?;
                    }
                }
                Message::DropStaged(tunnel) => self.outbound.drop_staged(tunnel),
            }
        }
        Ok(())
    }
}

fn tokens<U>(sockets: &Sockets<U>) -> impl Iterator<Item = (&U, u64)> {
    sockets
        .v4
        .iter()
        .map(|socket| (socket, V4))
        .chain(sockets.v6.iter().map(|socket| (socket, V6)))
}
