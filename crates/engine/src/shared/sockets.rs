//! The sockets of an interface.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use adit_io::{Grace, UdpSocket};

use crate::order::lanes::LANES;
use crate::thread::poll::Descriptor;

/// The sockets, each with what it is.
pub(crate) fn each<U>(sockets: &Sockets<U>) -> impl Iterator<Item = (&U, Descriptor)> {
    sockets.all().filter_map(|LaneSocket { lane, v6, socket }| {
        let lane = u8::try_from(lane).ok()?;
        Some((socket, Descriptor::Socket { lane, v6 }))
    })
}

/// The sockets of an interface, all on one port: one per address family that the host has, or
/// several ([`UdpSocket::further`]).
///
/// A lane (`order/lanes.rs`) is a socket of each family. What leaves leaves through the first. A lane
/// that is given up keeps its sockets, because the kernel counts them.
#[derive(Debug)]
pub struct Sockets<U> {
    /// For IPv4; none where the host has no IPv4.
    pub v4: Option<U>,
    /// For IPv6; none where the host has no IPv6.
    pub v6: Option<U>,
    /// 0 while none is bound.
    pub port: u16,
    /// The further lanes: IPv4 and IPv6.
    further: Vec<OnceLock<Box<Lane<U>>>>,
    /// How many lanes are polled. The others are empty.
    in_use: AtomicUsize,
}

/// For IPv4 and IPv6.
type Lane<U> = [Option<U>; 2];

/// A socket that receives, and which one it is.
pub(crate) struct LaneSocket<'a, U> {
    pub(crate) lane: usize,
    pub(crate) v6: bool,
    pub(crate) socket: &'a U,
}

impl<U> Sockets<U> {
    /// One lane.
    pub fn new(v4: Option<U>, v6: Option<U>, port: u16) -> Self {
        Self {
            v4,
            v6,
            port,
            further: (1..LANES).map(|_| OnceLock::new()).collect(),
            in_use: AtomicUsize::new(1),
        }
    }

    /// No socket: nothing arrives and nothing leaves.
    pub(crate) fn unbound() -> Self {
        Self::new(None, None, 0)
    }

    /// Adds a socket of another process. Those of one family come in the order of their lanes.
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
        let lacks = |lane: &OnceLock<Box<Lane<U>>>| {
            lane.get()
                .is_none_or(|lane| lane[usize::from(v6)].is_none())
        };
        let at = self.further.iter().position(lacks).unwrap_or_else(|| {
            self.further.push(OnceLock::new());
            self.further.len() - 1
        });
        let mut lane = self.further[at].take().unwrap_or_default();
        lane[usize::from(v6)] = Some(socket);
        self.further[at] = lane.into();
    }

    /// How many lanes have sockets.
    pub(crate) fn lanes(&self) -> usize {
        let further = self.further.iter();
        1 + further.take_while(|lane| lane.get().is_some()).count()
    }

    /// How many lanes are polled.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Acquire)
    }

    /// So many lanes are polled from now on.
    pub(crate) fn use_lanes(&self, lanes: usize) {
        self.in_use.store(lanes, Ordering::Release);
    }

    pub(crate) fn of_lane(&self, lane: usize, v6: bool) -> Option<&U> {
        match lane.checked_sub(1) {
            None => self.family(v6),
            Some(further) => self.further.get(further)?.get()?[usize::from(v6)].as_ref(),
        }
    }

    /// The one that a descriptor is.
    pub(crate) fn of(&self, descriptor: Descriptor) -> Option<LaneSocket<'_, U>> {
        let Descriptor::Socket { lane, v6 } = descriptor else {
            return None;
        };
        let lane = usize::from(lane);
        let socket = self.of_lane(lane, v6)?;
        Some(LaneSocket { lane, v6, socket })
    }

    /// All, the first lane first.
    pub(crate) fn all(&self) -> impl Iterator<Item = LaneSocket<'_, U>> {
        (0..self.lanes()).flat_map(move |lane| {
            [false, true].into_iter().filter_map(move |v6| {
                let socket = self.of_lane(lane, v6)?;
                Some(LaneSocket { lane, v6, socket })
            })
        })
    }

    /// Those that are polled.
    pub(crate) fn all_in_use(&self) -> impl Iterator<Item = LaneSocket<'_, U>> {
        let lanes = self.in_use();
        self.all().take_while(move |it| it.lane < lanes)
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
    /// Has the kernel spread data over so many lanes, whose sockets are opened if there are none yet.
    /// Returns when it does for all that arrives, by family, and whether it refused any.
    pub(crate) fn spread(&self, lanes: usize) -> (Vec<Grace>, bool) {
        let opened = self.lanes();
        let mut refused = false;
        let mut more = [false, true].map(|v6| {
            let first = self.family(v6).filter(|_| opened < lanes);
            let sockets = first.map(|first| first.further(lanes - opened));
            let sockets = sockets.unwrap_or_else(|| Ok(Vec::new()));
            refused |= sockets.is_err();
            sockets.unwrap_or_default().into_iter()
        });
        for lane in self.further.iter().take(lanes - 1).skip(opened - 1) {
            let [v4, v6] = &mut more;
            let pair = [v4.next(), v6.next()];
            if pair.iter().any(Option::is_some) {
                let _ = lane.set(Box::new(pair));
            }
        }
        let mut graces = Vec::new();
        for v6 in [false, true] {
            // One that the kernel refused further sockets keeps its data in the first.
            let has_all = self.of_lane(lanes - 1, v6).is_some();
            if let Some(first) = self.family(v6).filter(|_| has_all) {
                match first.spread(lanes) {
                    Ok(grace) => graces.push(grace),
                    Err(_) => refused = true,
                }
            }
        }
        (graces, refused)
    }
}
