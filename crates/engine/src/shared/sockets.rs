//! The sockets of an interface.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use adit_io::{Grace, UdpSocket};

use crate::order::rx_queues::RX_QUEUES;
use crate::thread::poll::Descriptor;

/// The sockets, each with what it is.
pub(crate) fn each<U>(sockets: &Sockets<U>) -> impl Iterator<Item = (&U, Descriptor)> {
    sockets.all().filter_map(
        |RxQueueSocket {
             rx_queue,
             v6,
             socket,
         }| {
            let rx_queue = u8::try_from(rx_queue).ok()?;
            Some((socket, Descriptor::Socket { rx_queue, v6 }))
        },
    )
}

/// The sockets of an interface, all on one port: one per address family that the host has, or
/// several ([`UdpSocket::further`]).
///
/// A receive queue (`order/rx_queues.rs`) is a socket of each family. What leaves leaves through the
/// first. A receive queue that is given up keeps its sockets, because the kernel counts them.
#[derive(Debug)]
pub struct Sockets<U> {
    /// For IPv4; none where the host has no IPv4.
    pub v4: Option<U>,
    /// For IPv6; none where the host has no IPv6.
    pub v6: Option<U>,
    /// 0 while none is bound.
    pub port: u16,
    /// The further receive queues: IPv4 and IPv6.
    further: Vec<OnceLock<Box<FamilySockets<U>>>>,
    /// How many receive queues are polled. The others are empty.
    in_use: AtomicUsize,
}

/// For IPv4 and IPv6.
type FamilySockets<U> = [Option<U>; 2];

/// A socket that receives, and which one it is.
pub(crate) struct RxQueueSocket<'a, U> {
    pub(crate) rx_queue: usize,
    pub(crate) v6: bool,
    pub(crate) socket: &'a U,
}

impl<U> Sockets<U> {
    /// One receive queue.
    pub fn new(v4: Option<U>, v6: Option<U>, port: u16) -> Self {
        Self {
            v4,
            v6,
            port,
            further: (1..RX_QUEUES).map(|_| OnceLock::new()).collect(),
            in_use: AtomicUsize::new(1),
        }
    }

    /// No socket: nothing arrives and nothing leaves.
    pub(crate) fn unbound() -> Self {
        Self::new(None, None, 0)
    }

    /// Adds a socket of another process. Those of one family come in the order of their receive queues.
    pub fn add(&mut self, v6: bool, socket: U)
    where
        U: UdpSocket,
    {
        let first = if v6 { &mut self.v6 } else { &mut self.v4 };
        if first.is_none() {
            let group = usize::try_from(socket.state().group).unwrap_or_default();
            let in_use = self.in_use.get_mut();
            *in_use = group.max(*in_use);
            *first = Some(socket);
            return;
        }
        let lacks = |rx_queue: &OnceLock<Box<FamilySockets<U>>>| {
            rx_queue
                .get()
                .is_none_or(|rx_queue| rx_queue[usize::from(v6)].is_none())
        };
        let at = self.further.iter().position(lacks).unwrap_or_else(|| {
            self.further.push(OnceLock::new());
            self.further.len() - 1
        });
        let mut rx_queue = self.further[at].take().unwrap_or_default();
        rx_queue[usize::from(v6)] = Some(socket);
        self.further[at] = rx_queue.into();
    }

    /// How many receive queues have sockets.
    pub(crate) fn rx_queues(&self) -> usize {
        let further = self.further.iter();
        1 + further
            .take_while(|rx_queue| rx_queue.get().is_some())
            .count()
    }

    /// How many receive queues are polled.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Acquire)
    }

    /// Sets how many receive queues are polled from now on.
    pub(crate) fn use_rx_queues(&self, rx_queues: usize) {
        self.in_use.store(rx_queues, Ordering::Release);
    }

    pub(crate) fn of_rx_queue(&self, rx_queue: usize, v6: bool) -> Option<&U> {
        match rx_queue.checked_sub(1) {
            None => self.family(v6),
            Some(further) => self.further.get(further)?.get()?[usize::from(v6)].as_ref(),
        }
    }

    /// The one that a descriptor is.
    pub(crate) fn of(&self, descriptor: Descriptor) -> Option<RxQueueSocket<'_, U>> {
        let Descriptor::Socket { rx_queue, v6 } = descriptor else {
            return None;
        };
        let rx_queue = usize::from(rx_queue);
        let socket = self.of_rx_queue(rx_queue, v6)?;
        Some(RxQueueSocket {
            rx_queue,
            v6,
            socket,
        })
    }

    /// All, the first receive queue first.
    pub(crate) fn all(&self) -> impl Iterator<Item = RxQueueSocket<'_, U>> {
        (0..self.rx_queues()).flat_map(move |rx_queue| {
            [false, true].into_iter().filter_map(move |v6| {
                let socket = self.of_rx_queue(rx_queue, v6)?;
                Some(RxQueueSocket {
                    rx_queue,
                    v6,
                    socket,
                })
            })
        })
    }

    /// Sockets that are polled.
    pub(crate) fn all_in_use(&self) -> impl Iterator<Item = RxQueueSocket<'_, U>> {
        let rx_queues = self.in_use();
        self.all().take_while(move |it| it.rx_queue < rx_queues)
    }

    pub(crate) fn family(&self, v6: bool) -> Option<&U> {
        if v6 {
            self.v6.as_ref()
        } else {
            self.v4.as_ref()
        }
    }
}

impl<U: UdpSocket> Sockets<U> {
    /// Has the kernel spread data over so many receive queues, whose sockets are opened if there are none yet.
    /// Returns when it does for all that arrives, by family, and whether it refused any.
    pub(crate) fn spread(&self, rx_queues: usize) -> (Vec<Grace>, bool) {
        let opened = self.rx_queues();
        let mut refused = false;
        let mut more = [false, true].map(|v6| {
            let first = self.family(v6).filter(|_| opened < rx_queues);
            let sockets = first.map(|first| first.further(rx_queues - opened));
            let sockets = sockets.unwrap_or_else(|| Ok(Vec::new()));
            refused |= sockets.is_err();
            sockets.unwrap_or_default().into_iter()
        });
        for rx_queue in self.further.iter().take(rx_queues - 1).skip(opened - 1) {
            let [v4, v6] = &mut more;
            let pair = [v4.next(), v6.next()];
            if pair.iter().any(Option::is_some) {
                let _ = rx_queue.set(Box::new(pair));
            }
        }
        let mut graces = Vec::new();
        for v6 in [false, true] {
            // One that the kernel refused further sockets keeps its data in the first.
            let has_all = self.of_rx_queue(rx_queues - 1, v6).is_some();
            if let Some(first) = self.family(v6).filter(|_| has_all) {
                match first.spread(rx_queues) {
                    Ok(grace) => graces.push(grace),
                    Err(_) => refused = true,
                }
            }
        }
        (graces, refused)
    }
}
