//! Messages of handshakes: screen → queue → compute, a bounded number at a time.
//!
//! To compute one takes some 150 µs. While more come than are computed, a device is under load:
//! messages are then screened by `adit_proto::Admission`, which answers with cookies or refuses, in
//! a few µs each (whitepaper 5.3).

use std::time::Duration;

use adit_proto::{Endpoint, Room, Screened};
use arrayvec::ArrayVec;

use super::clock::Now;
use super::device::Device;
use super::outbox::Outbox;
use super::scratch::{Handshakes, Message};

/// Messages that wait.
const MAX_WAITING: usize = 256;
/// With so many waiting the device is under load.
const LOADED: usize = 64;
/// Messages that one call computes.
const AT_ONCE: usize = 32;
/// The device is under load where more are computed for longer than 64 of these: 1000 a second.
const INTERVAL: Duration = Duration::from_millis(1);
/// An answer fits.
const ROOM_FOR_ANSWER: usize = 512;

impl Handshakes {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Room for another message whose sender has shown a cookie.
    fn room(&self) -> Room {
        match self.waiting.len() * 4 / MAX_WAITING {
            0 => Room::Ample,
            1 => Room::Some,
            _ => Room::Little,
        }
    }
}

impl Device {
    /// A message of a handshake came.
    pub(super) fn take_handshake(
        &mut self,
        now: Now,
        from: Endpoint,
        datagram: &[u8],
        outbox: &mut Outbox,
    ) {
        let admission = self.shared.admission();
        if self.handshakes.waiting.len() >= LOADED {
            admission.load(now.time);
        }
        let mut is_proven = false;
        if admission.is_loaded(now.time) {
            let room = self.handshakes.room();
            match self.shared.screen(now.time, from.addr, datagram, room) {
                Screened::Proven => is_proven = true,
                Screened::Passed => {}
                Screened::Reply(reply, _) => {
                    let left = u64::from(outbox.put(from, &reply));
                    admission.replied(left, 1 - left);
                    self.stats.handshake_messages += 1;
                    return;
                }
                Screened::Refused(_) | Screened::Exhausted(_) => {
                    self.stats.handshake_messages += 1;
                    return;
                }
            }
        }
        match ArrayVec::try_from(datagram) {
            Ok(datagram) if self.handshakes.waiting.len() < MAX_WAITING => {
                self.stats.handshake_messages += 1;
                self.handshakes.waiting.push_back(Message {
                    from,
                    datagram,
                    is_proven,
                });
            }
            _ => self.stats.unopened.handshakes += 1,
        }
    }

    /// Computes messages that wait, a bounded number.
    pub(super) fn handle_handshakes(&mut self, now: Now, outbox: &mut Outbox) {
        for _ in 0..AT_ONCE {
            if outbox.room() < ROOM_FOR_ANSWER {
                break;
            }
            let Some(message) = self.handshakes.waiting.pop_front() else {
                break;
            };
            let used_until = &mut self.handshakes.used_until;
            *used_until = now.time.max(*used_until) + INTERVAL;
            if used_until.since(now.time) > INTERVAL * 64 {
                self.shared.admission().load(now.time);
            }
            let Message {
                from,
                datagram,
                is_proven,
            } = &message;
            let (time, wall) = (now.time, now.wall);
            match is_proven {
                true => self.proto.handle_proven(time, wall, *from, datagram),
                false => (self.proto).handle_handshake(time, wall, *from, datagram, false),
            };
            self.handle_outputs(now, outbox);
        }
    }
}
