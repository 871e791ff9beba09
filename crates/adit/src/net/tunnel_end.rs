//! The tunnel's end of the queues between it and the stack.

use std::sync::Arc;

use super::shared::Shared;
use crate::frame::Frame;
use crate::packet_io::{Doorbell, Full, PacketIo, Room};

/// The tunnel's end of both queues. When the tunnel ends it is dropped, and so does the stack end.
pub(super) struct TunnelEnd(pub(super) Arc<Shared>);

impl PacketIo for TunnelEnd {
    fn attach(&self, bell: Doorbell) {
        self.0.link.attach(bell);
    }

    fn pull(&self, room: &mut Room<'_>) {
        self.0.link.pull(room);
    }

    fn push(&self, frame: &Frame<'_>) -> Result<(), Full> {
        self.0.link.push(frame)
    }

    fn flush(&self) {
        self.0.link.wake.wake();
    }
}

impl Drop for TunnelEnd {
    fn drop(&mut self) {
        self.0.end();
    }
}
