//! A machine that was cloned has sessions that another copy has as well.

use std::collections::BTreeSet;

use super::Device;
use crate::Time;
use crate::device::common::Core;

impl Device {
    /// The machine is a clone, or was reset to a snapshot: another copy of it, or this one before
    /// the reset, has these sessions, too. Both would seal different packets with the same counters
    /// (invariant 1), and the response to a handshake that is under way would give both the same
    /// session.
    ///
    /// So no session sends any more, on no thread, and handshakes under way are forgotten. The next
    /// packet to a peer starts a new one; until then what the peer sends is received.
    pub fn was_cloned(&mut self, now: Time) {
        let Core {
            shared,
            random,
            identity,
            ..
        } = &mut self.core;
        if let Some(own) = identity {
            // The other copy knows the secret behind the cookies.
            shared.admission().set_key(&own.public, random);
        }
        // The others have neither.
        let indices = self.core.indices.peers_from(0);
        let ids: BTreeSet<u32> = indices.map(|(_, id)| id).collect();
        for id in ids {
            if let Some(state) = self.peers.get_mut(&id) {
                state.start_anew(&mut self.core, now);
                self.reschedule(id);
            }
        }
    }
}
