//! Every constant of the protocol, with the section of the whitepaper that sets it.

use std::time::Duration;

/// After this many messages a session's user starts a new handshake (6.1, 6.2).
pub const REKEY_AFTER_MESSAGES: u64 = 1 << 60;
/// No message is sent or accepted at or beyond this counter (6.1, 6.2): 2^64 - 2^13 - 1.
pub const REJECT_AFTER_MESSAGES: u64 = u64::MAX - (1 << 13);
/// The initiator of a session of this age starts a new handshake when it sends (6.1, 6.2).
pub const REKEY_AFTER_TIME: Duration = Duration::from_secs(120);
/// A session of this age neither sends nor receives (6.1, 6.2).
pub const REJECT_AFTER_TIME: Duration = Duration::from_secs(180);
/// Handshake attempts cease this long after the last packet that asked for a session (6.1, 6.4).
pub const REKEY_ATTEMPT_TIME: Duration = Duration::from_secs(90);
/// The pause between two initiations to one peer (6.1, 6.4).
pub const REKEY_TIMEOUT: Duration = Duration::from_secs(5);
/// Up to this much is added at random to every pause, so that two peers do not stay in phase (6.1).
pub const REKEY_JITTER: Duration = Duration::from_millis(333);
/// A peer that received data and had nothing to send for this long answers with a keepalive (6.1,
/// 6.5).
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// A peer that sent data and received nothing for this long starts a new handshake (6.5).
pub const NO_ANSWER_TIMEOUT: Duration =
    Duration::from_secs(KEEPALIVE_TIMEOUT.as_secs() + REKEY_TIMEOUT.as_secs());
/// The initiator of a session of this age starts a new handshake when it receives (6.2).
pub const REKEY_ON_RECEIVE_TIME: Duration = Duration::from_secs(
    REJECT_AFTER_TIME.as_secs() - KEEPALIVE_TIMEOUT.as_secs() - REKEY_TIMEOUT.as_secs(),
);
/// Keys are zeroized when no new session replaced them for this long (6.3).
pub const ZERO_KEYS_AFTER_TIME: Duration = Duration::from_secs(3 * REJECT_AFTER_TIME.as_secs());
/// The secret behind the cookies changes this often, and a received cookie is used for this long
/// (5.4.7, 6.6).
pub const COOKIE_REFRESH_TIME: Duration = Duration::from_secs(120);

/// Initiations of one peer are consumed at least this far apart (5.1 leaves the figure to
/// implementations; 50 per second is the one in use everywhere).
pub const INITIATION_INTERVAL: Duration = Duration::from_millis(20);
/// Timestamps are rounded down to this many nanoseconds, a power of two below
/// [`INITIATION_INTERVAL`], so that they do not reveal the exact time.
pub const TIMESTAMP_GRAIN: u32 = 1 << 24;
/// Proven handshake messages per second that a source may send under load while there is little room
/// for them (5.3 leaves the figure to implementations).
pub const LIMITER_RATE: u32 = 20;
/// Messages that it may send at once.
pub const LIMITER_BURST: u32 = 5;
/// Sources that the limiter remembers for a second; where there are more, it forgets earlier
/// (invariant 5).
pub const LIMITER_SOURCES: usize = 16_384;
/// Proven handshake messages per second beyond that, of all sources: about as many as one CPU computes,
/// and a quarter of one where all are forged.
pub const PROVEN_RATE_OF_ALL: u32 = 4000;
/// The device stays under load for this long after the engine last said so.
pub const UNDER_LOAD_TIME: Duration = Duration::from_secs(1);
/// A source that gets more cookie replies per second shares them with others that do, while more are
/// asked for than there are. It needs one in two minutes (5.4.7).
pub const COOKIE_RATE: u32 = 2;
/// Cookie replies that a source may get at once before that.
pub const COOKIE_BURST: u32 = 10;
/// Cookie replies per second to all sources together: some 3 µs of a CPU each.
pub const COOKIE_RATE_OF_ALL: u32 = 50_000;
/// Responses to one initiation of ours that are looked at under load without a cookie.
pub const RESPONSES_EXPECTED: u8 = 3;
/// Initiations per second from the address and port of a peer with a session that are.
pub const KNOWN_RATE: u32 = 1;
/// Messages of all of them together: some 150 µs of a CPU each.
pub const KNOWN_RATE_OF_ALL: u32 = 1000;
/// Peers that are called in a second, because another process had sessions with them: some 140 µs of a CPU
/// each, before their responses.
pub const CALLS_PER_SECOND: u32 = 5000;
/// Peers of which it is kept how much of their quotas they have used (invariant 5).
pub const MAX_QUOTAS_REMEMBERED: usize = 65_536;
/// The replay window in packets (5.4.6 leaves the figure to implementations).
pub const WINDOW_PACKETS: u64 = 8192;
/// Addresses of a peer's name that handshakes try.
pub const MAX_CANDIDATES: usize = 8;
/// Between two of them, as of "Happy Eyeballs" (RFC 8305, 5: "Connection Attempt Delay").
pub const STAGGER: Duration = Duration::from_millis(250);
/// Peers of one device (invariant 5).
pub const MAX_PEERS: usize = 1 << 20;

#[cfg(test)]
#[path = "limits_tests.rs"]
mod tests;
