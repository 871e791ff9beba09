//! Where connections are: each has a place, and an id by which a place that another one has now is told
//! apart.

use super::connection::TcpConnection;
use crate::net::shared::ConnectionId;

#[derive(Default)]
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<usize>,
}

#[derive(Default)]
struct Slot {
    /// How many connections had this place.
    serial: u32,
    connection: Option<Box<TcpConnection>>,
}

impl Table {
    /// Places that are, or were, in use.
    pub(super) fn places(&self) -> std::ops::Range<usize> {
        0..self.slots.len()
    }

    pub(super) fn at(&mut self, index: usize) -> Option<&mut TcpConnection> {
        self.slots.get_mut(index)?.connection.as_deref_mut()
    }

    pub(super) fn id(&self, index: usize) -> ConnectionId {
        let serial = self.slots.get(index).map_or(0, |slot| slot.serial);
        ConnectionId(u64::from(serial) << 32 | index as u64)
    }

    pub(super) fn find(&self, id: ConnectionId) -> Option<usize> {
        let index = usize::try_from(id.0 & 0xffff_ffff).ok()?;
        let slot = self.slots.get(index)?;
        let is_it = slot.connection.is_some() && u64::from(slot.serial) == id.0 >> 32;
        is_it.then_some(index)
    }

    pub(super) fn add(&mut self, connection: TcpConnection) -> usize {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        self.slots[index].connection = Some(Box::new(connection));
        index
    }

    pub(super) fn remove(&mut self, index: usize) -> Option<Box<TcpConnection>> {
        let slot = self.slots.get_mut(index)?;
        let connection = slot.connection.take()?;
        // Ids of 63 bits: the highest one is for those of UDP.
        slot.serial = (slot.serial + 1) & 0x7fff_ffff;
        self.free.push(index);
        Some(connection)
    }
}
