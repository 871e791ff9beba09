//! The ports that listen, and what is answered where none does.

use std::collections::HashMap;
use std::sync::Arc;

use super::core::Core;
use crate::net::error::NetError;
use crate::net::shared::{Backlog, OpenConnection};
use crate::net::wire::{self, ACK, FIN, Flow, Headers, RST, SYN};

/// Connections of a listener that are not accepted yet.
const BACKLOG: usize = 1024;

struct Listener {
    backlog: Arc<Backlog>,
    half_open: usize,
}

#[derive(Default)]
pub(super) struct Listeners {
    by_port: HashMap<u16, Listener>,
}

impl Listeners {
    /// Begins to listen on a port; 0 for any.
    pub(super) fn add(&mut self, core: &mut Core, port: u16) -> Result<Arc<Backlog>, NetError> {
        let taken = NetError::PortTaken(port);
        let port = match port {
            0 => core.free_port(|port| self.by_port.contains_key(&port)),
            port => Some(port).filter(|port| !self.by_port.contains_key(port)),
        };
        let port = port.ok_or(taken)?;
        let backlog = Arc::new(Backlog::new(port).map_err(NetError::Host)?);
        let listener = Listener {
            backlog: Arc::clone(&backlog),
            half_open: 0,
        };
        self.by_port.insert(port, listener);
        Ok(backlog)
    }

    /// Ends to listen: the connections that wait to be accepted.
    pub(super) fn remove(&mut self, port: u16) -> Option<Arc<Backlog>> {
        self.by_port.remove(&port).map(|listener| listener.backlog)
    }

    /// A connection begins. False if as many wait as may; `None` if nothing listens there.
    pub(super) fn begin(&mut self, port: u16) -> Option<bool> {
        let listener = self.by_port.get_mut(&port)?;
        let has_room = listener.half_open + listener.backlog.len() < BACKLOG;
        listener.half_open += usize::from(has_room);
        Some(has_room)
    }

    /// A connection that began is open, or failed.
    pub(super) fn complete(&mut self, port: u16, opened: Option<OpenConnection>) {
        if let Some(listener) = self.by_port.get_mut(&port) {
            listener.half_open = listener.half_open.saturating_sub(1);
            if let Some(opened) = opened {
                listener.backlog.push(opened);
            }
        }
    }

    /// Nothing listens any more.
    pub(super) fn end(&self) {
        for listener in self.by_port.values() {
            listener.backlog.end();
        }
    }
}

/// Answers a segment of no connection with RST (RFC 9293 §3.10.7.1).
pub(super) fn refuse(core: &mut Core, flow: &Flow, packet: &[u8], headers: &Headers) {
    let segment = &packet[headers.start..headers.end];
    let flags = segment[13];
    if flags & ACK != 0 {
        return send_bare(core, flow, RST, wire::wide(segment, 8), 0);
    }
    let header = usize::from(segment[12] >> 4) * 4;
    let payload = u32::try_from(segment.len() - header).unwrap_or(0);
    let len = payload + u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
    let ack = wire::wide(segment, 4).wrapping_add(len);
    send_bare(core, flow, RST | ACK, 0, ack);
}

pub(super) fn send_bare(core: &mut Core, flow: &Flow, flags: u8, seq: u32, ack: u32) {
    core.egress.send(wire::bare_segment_len(flow), |packet| {
        let headers = wire::write_bare_segment(packet, flow, flags, [seq, ack], 0);
        wire::write_checksum(packet, &headers, 16);
        ((), None)
    });
}
