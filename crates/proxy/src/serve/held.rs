//! Datagrams that wait for the address of a name, within a budget of bytes that all clients share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of all of them.
const MOST: usize = 8 << 20;

/// Counts the bytes of datagrams that are held.
#[derive(Default)]
pub(crate) struct HeldBytes(Arc<AtomicUsize>);

/// A datagram; dropping it makes room.
pub(crate) struct HeldDatagram {
    pub(crate) payload: Vec<u8>,
    held: Arc<AtomicUsize>,
}

impl HeldBytes {
    /// Holds a datagram, if there is room.
    pub(crate) fn hold(&self, payload: &[u8]) -> Option<HeldDatagram> {
        let held = self.0.load(Ordering::Relaxed);
        if held + payload.len() > MOST {
            return None;
        }
        self.0.fetch_add(payload.len(), Ordering::Relaxed);
        Some(HeldDatagram {
            payload: payload.to_vec(),
            held: Arc::clone(&self.0),
        })
    }
}

impl Drop for HeldDatagram {
    fn drop(&mut self) {
        self.held.fetch_sub(self.payload.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_makes_room() {
        let held = HeldBytes::default();
        let payload = [0; 65_507];
        let all: Vec<_> = std::iter::from_fn(|| held.hold(&payload)).collect();
        assert_eq!(all.len(), MOST / payload.len());
        drop(all);
        assert!(held.hold(&payload).is_some());
    }
}
