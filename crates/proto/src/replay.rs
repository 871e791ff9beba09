use crate::limits::{REJECT_AFTER_MESSAGES, WINDOW_PACKETS};

/// One word more than the window holds: the word of the greatest counter is only partly in use (RFC
/// 6479).
pub(crate) const WORDS: usize = 129;
const _: () = assert!(WINDOW_PACKETS == 64 * (WORDS as u64 - 1));

/// Which counters a session has received (whitepaper 5.4.6, RFC 6479).
///
/// "The nonce counter … is used to avoid replay attacks, using a sliding window to keep track of
/// received message counters … after verification of the authentication tag": callers commit
/// authenticated packets only (invariant 3).
pub struct ReplayWindow {
    greatest: u64,
    ring: [u64; WORDS],
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self::new()
    }
}

impl ReplayWindow {
    /// Nothing received yet.
    pub fn new() -> Self {
        Self {
            greatest: 0,
            ring: [0; WORDS],
        }
    }

    /// The greatest counter so far, and which of those before it came.
    pub(crate) fn parts(&self) -> (u64, &[u64; WORDS]) {
        (self.greatest, &self.ring)
    }

    /// A window that another process moved so far; `None` if no window gets there.
    pub(crate) fn from_parts(greatest: u64, ring: [u64; WORDS]) -> Option<Self> {
        (greatest < REJECT_AFTER_MESSAGES).then_some(Self { greatest, ring })
    }

    /// Whether [`Self::commit`] would take this counter now. It may be asked before a packet is
    /// authenticated, because it changes nothing: a replay is then refused without its decryption.
    pub fn may_accept(&self, counter: u64) -> bool {
        if counter > self.greatest {
            return counter < REJECT_AFTER_MESSAGES;
        }
        self.greatest - counter < WINDOW_PACKETS
            && self.ring[slot(counter / 64)] & (1 << (counter % 64)) == 0
    }

    /// Marks the counter of an authenticated packet as received.
    ///
    /// False if the packet must be dropped: received before, older than the window, or beyond
    /// REJECT_AFTER_MESSAGES.
    pub fn commit(&mut self, counter: u64) -> bool {
        if !self.may_accept(counter) {
            return false;
        }
        if counter > self.greatest {
            self.advance(counter);
        }
        self.ring[slot(counter / 64)] |= 1 << (counter % 64);
        true
    }

    /// Clears the words between the greatest counter so far and the new one.
    fn advance(&mut self, counter: u64) {
        let (from, to) = (self.greatest / 64, counter / 64);
        if to - from >= WORDS as u64 {
            self.ring = [0; WORDS];
        } else {
            for word in from + 1..=to {
                self.ring[slot(word)] = 0;
            }
        }
        self.greatest = counter;
    }
}

#[expect(clippy::cast_possible_truncation, reason = "less than WORDS")]
fn slot(word: u64) -> usize {
    (word % WORDS as u64) as usize
}
