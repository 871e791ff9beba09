//! Packets in and out of a tunnel: what an embedder implements, and what it is given for it.

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use adit_engine::Bell;
use adit_io::{FrameBatch, TunQueue};
use adit_offload::VNET_HDR_LEN;

use crate::frame::{Frame, Gso};

/// A source of packets for a tunnel, and where those go that come out of it: what a TUN device is for
/// a tunnel of the system.
///
/// All methods are called on threads of the tunnel, which carry its packets: none may block. One that
/// panics ends its tunnel, and no other.
pub trait PacketIo: Send + Sync + 'static {
    /// Called once, before anything else. A thread that has packets for the tunnel rings the bell: then
    /// [`Self::pull`] is called.
    fn attach(&self, bell: Doorbell);

    /// Puts the packets that wait into the room: all, or as many as fit. It is called again without a ring
    /// once those are on their way, if the room was [full](Room::is_full). Several threads may call it, one
    /// at a time.
    fn pull(&self, room: &mut Room<'_>);

    /// Takes a packet that came out of the tunnel. It is borrowed from the buffer into which it was
    /// received: what is to outlive the call is copied here, by [`Frame::gather`] for one. Threads may call it
    /// at the same time, with packets of different flows.
    ///
    /// # Errors
    ///
    /// [`Full`]: it is lost, and counts as dropped.
    fn push(&self, frame: &Frame<'_>) -> Result<(), Full>;

    /// What was received at once has all been [pushed](Self::push): the time to wake its reader.
    fn flush(&self);
}

/// There is no room for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is no room for the packet")
    }
}

impl std::error::Error for Full {}

impl<P: PacketIo + ?Sized> PacketIo for Arc<P> {
    fn attach(&self, bell: Doorbell) {
        (**self).attach(bell);
    }

    fn pull(&self, room: &mut Room<'_>) {
        (**self).pull(room);
    }

    fn push(&self, frame: &Frame<'_>) -> Result<(), Full> {
        (**self).push(frame)
    }

    fn flush(&self) {
        (**self).flush();
    }
}

/// Rings for a tunnel that packets wait for it. Clones ring the same bell. Rings that come before the
/// tunnel has looked are one: they cost next to nothing. It keeps nothing of a tunnel that has ended.
#[derive(Clone)]
pub struct Doorbell(Weak<Rung>);

struct Rung {
    bell: Bell,
    is_rung: AtomicBool,
}

impl Rung {
    fn new() -> io::Result<Self> {
        Ok(Self {
            bell: Bell::new()?,
            is_rung: AtomicBool::new(false),
        })
    }

    fn ring(&self) {
        if !self.is_rung.swap(true, Ordering::AcqRel) {
            self.bell.ring();
        }
    }

    /// The tunnel looks now: a ring from here on is another one.
    fn answer(&self) {
        self.bell.clear();
        self.is_rung.swap(false, Ordering::AcqRel);
    }
}

impl Doorbell {
    /// Packets wait: [`PacketIo::pull`] is called soon. To be called after they are where `pull` finds
    /// them.
    pub fn ring(&self) {
        if let Some(rung) = self.0.upgrade() {
            rung.ring();
        }
    }
}

impl fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Doorbell")
    }
}

/// Room for packets that a tunnel takes at once.
pub struct Room<'a> {
    batch: &'a mut FrameBatch,
}

/// Why a packet was not put into a [`Room`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotPut {
    /// There is no more room: keep it, and put it the next time.
    Full,
    /// No packet is as long as it says: it is lost.
    TooLong,
}

impl fmt::Display for NotPut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "there is no more room",
            Self::TooLong => {
                "the packet is longer than 65,535 bytes, or than the room that was asked for"
            }
        })
    }
}

impl std::error::Error for NotPut {}

impl Room<'_> {
    /// The longest packet.
    pub const MAX_PACKET: usize = 65_535;

    /// Whether a packet of the greatest length does not fit any more: then nothing does.
    pub fn is_full(&self) -> bool {
        !self.batch.has_room()
    }

    /// Puts a packet that `write` writes into a buffer of `max` bytes; `write` returns its length, and how it
    /// is to be cut if it is a train of packets of one flow. 0 puts nothing.
    ///
    /// # Errors
    ///
    /// [`NotPut`]: it is not sent.
    pub fn put_with(
        &mut self,
        max: usize,
        write: impl FnOnce(&mut [u8]) -> (usize, Option<Gso>),
    ) -> Result<(), NotPut> {
        if max > Self::MAX_PACKET {
            return Err(NotPut::TooLong);
        }
        if self.is_full() {
            return Err(NotPut::Full);
        }
        let mut result = Ok(());
        let put = |buffer: &mut [u8]| {
            let Some((header, packet)) = buffer.split_first_chunk_mut::<VNET_HDR_LEN>() else {
                return 0;
            };
            let packet = packet.get_mut(..max).unwrap_or_default();
            let room = packet.len();
            let (len, gso) = write(packet);
            if len > room {
                result = Err(NotPut::TooLong);
                return 0;
            }
            *header = Gso::header(gso);
            match len {
                0 => 0,
                len => VNET_HDR_LEN + len,
            }
        };
        self.batch.put(put);
        result
    }

    /// Puts a copy of a packet.
    ///
    /// # Errors
    ///
    /// [`NotPut`]: it is not sent.
    pub fn put(&mut self, packet: &[u8], gso: Option<Gso>) -> Result<(), NotPut> {
        self.put_with(packet.len(), |buffer| {
            buffer.copy_from_slice(packet);
            (packet.len(), gso)
        })
    }
}

/// A [`PacketIo`] as the engine has it.
pub(crate) struct Packets<P> {
    io: P,
    rung: Arc<Rung>,
}

impl<P: PacketIo> Packets<P> {
    pub(crate) fn new(io: P) -> io::Result<Self> {
        let rung = Arc::new(Rung::new()?);
        io.attach(Doorbell(Arc::downgrade(&rung)));
        Ok(Self { io, rung })
    }
}

impl<P: PacketIo> TunQueue for Packets<P> {
    fn read_batch(&self, batch: &mut FrameBatch) -> io::Result<bool> {
        // Before the look: what comes after it rings again.
        self.rung.answer();
        batch.clear();
        self.io.pull(&mut Room { batch });
        let is_full = !batch.has_room();
        if is_full {
            self.rung.ring();
        }
        Ok(!is_full)
    }

    fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        let frame = Frame::of_pieces(pieces).ok_or(io::ErrorKind::InvalidInput)?;
        let pushed = self.io.push(&frame);
        pushed.map_err(|Full| io::ErrorKind::OutOfMemory.into())
    }

    fn flush(&self) {
        self.io.flush();
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.rung.bell.as_fd()
    }
}
