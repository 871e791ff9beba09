//! Packets that come from callbacks, and go to them.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

use adit::sans_io::AsPacket;
use adit::{Doorbell, Frame, Full, Gso, NotPut, PacketIo, Room};

use crate::abi::{self, ADIT_OK, adit_error};
use crate::packets::{adit_packet, adit_piece, given, kind_of};

/// Room for packets that a tunnel takes at once. It is there while `pull` runs, and belongs to the thread
/// that has called it.
pub struct adit_room(());

/// Puts the packets that wait into the room, by adit_room_put: all, or as many as fit. It is called after
/// adit_tunnel_ring, and again without if the room was full; by several threads, one at a time.
pub type adit_pull = Option<unsafe extern "C-unwind" fn(user: *mut c_void, room: *mut adit_room)>;

/// Takes a packet that came out of the tunnel, in `count` pieces, which may be read until it returns. Other
/// than 0 is: no room, the packet is dropped. Called by several threads at the same time.
pub type adit_push = Option<
    unsafe extern "C-unwind" fn(
        user: *mut c_void,
        pieces: *const adit_piece,
        count: usize,
        gso_kind: u32,
        gso_segment: u32,
    ) -> i32,
>;

/// Called with `user`.
pub type adit_call = Option<unsafe extern "C-unwind" fn(user: *mut c_void)>;

/// Called with a UDP socket before it is bound; `is_ipv6` is 0 or 1. It returns 0, or an errno.
pub type adit_on_socket =
    Option<unsafe extern "C-unwind" fn(user: *mut c_void, fd: i32, is_ipv6: i32) -> i32>;

/// What the caller has for its callbacks.
#[derive(Clone, Copy)]
pub(crate) struct UserPointer(*mut c_void);

// SAFETY: the caller says that it is fit for several threads; it is passed on, and never looked at.
unsafe impl Send for UserPointer {}
// SAFETY: as above.
unsafe impl Sync for UserPointer {}

impl UserPointer {
    pub(crate) fn new(user: *mut c_void) -> Self {
        Self(user)
    }

    /// The pointer.
    pub(crate) fn get(self) -> *mut c_void {
        self.0
    }
}

/// Rings for a tunnel; set when it begins.
pub(crate) type BellSlot = OnceLock<Doorbell>;

pub(crate) struct PacketCallbacks {
    pub(crate) pull: unsafe extern "C-unwind" fn(*mut c_void, *mut adit_room),
    pub(crate) push:
        unsafe extern "C-unwind" fn(*mut c_void, *const adit_piece, usize, u32, u32) -> i32,
    pub(crate) flush: adit_call,
    pub(crate) user: UserPointer,
    pub(crate) bell: Arc<BellSlot>,
}

impl PacketIo for PacketCallbacks {
    fn attach(&self, bell: Doorbell) {
        // It is attached once.
        let _ = self.bell.set(bell);
    }

    fn pull(&self, room: &mut Room<'_>) {
        let room = std::ptr::from_mut(room).cast::<adit_room>();
        // SAFETY: the caller has given a function that takes these, and `room` outlives the call.
        unsafe { (self.pull)(self.user.get(), room) }
    }

    fn push(&self, frame: &Frame<'_>) -> Result<(), Full> {
        let pieces = frame.pieces().filter(|piece| !piece.is_empty());
        let pieces: Vec<adit_piece> = pieces
            .map(|piece| adit_piece {
                bytes: piece.as_ptr(),
                len: piece.len(),
            })
            .collect();
        let (kind, segment) = kind_of(frame.gso());
        // SAFETY: the caller has given a function that takes these, and they outlive the call.
        let pushed = unsafe {
            (self.push)(
                self.user.get(),
                pieces.as_ptr(),
                pieces.len(),
                kind,
                segment,
            )
        };
        if pushed == 0 { Ok(()) } else { Err(Full) }
    }

    fn flush(&self) {
        if let Some(flush) = self.flush {
            // SAFETY: the caller has given a function that takes it.
            unsafe { flush(self.user.get()) }
        }
    }
}

/// Copies packets into the room of a `pull`. `*taken` is how many fit: keep the others for the next call of
/// `pull`, which comes without a ring then. Only within `pull`, on its thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_room_put(
    room: *mut adit_room,
    packets: *const adit_packet,
    count: usize,
    taken: *mut usize,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a room that `pull` was given, so many packets and their bytes, or NULLs.
    unsafe {
        abi::enter(error, || {
            abi::put(taken, 0);
            abi::object(room, "room")?;
            let packets = given(packets, count)?;
            let room = &mut *room.cast::<Room<'_>>();
            let put = |bytes: &[u8], gso: Option<Gso>| room.put(bytes, gso) != Err(NotPut::Full);
            let mut put = put;
            let fit = packets.iter().map(AsPacket::as_packet);
            let fit = fit
                .take_while(|packet| put(packet.bytes, packet.gso))
                .count();
            abi::put(taken, fit);
            Ok(ADIT_OK)
        })
    }
}
