//! Receive-buffer autotuning: a socket may hold what it receives in a fixed time.
//!
//! A fast receiver then survives a moment without a core, and at a slow one packets wait no longer
//! than before.

use std::time::{Duration, Instant};

/// The receive buffer holds what is received in this time. At 14 Gb/s a receiver that shares two
/// cores with the senders of 128 streams lost hundreds of trains with a buffer for 4 ms or, while
/// their windows still opened, for 10; none with 20.
const SPAN: Duration = Duration::from_millis(20);
/// wireguard-go asks for as much: it raised one TCP stream from 4.08 to 5.27 Gb/s at 125 µs (its
/// commit f26efb6).
pub(super) const SOCKET_BUFFER: usize = 7 << 20;
/// The most that a receive buffer grows to: what 13 Gb/s bring in a span.
pub const MAX_RECEIVE_BUFFER: usize = 32 << 20;

/// Follows the rate at which a socket is read.
pub(super) struct BufferAutotuning {
    /// Start of the present span: the first message, then the end of the span before.
    since: Option<Instant>,
    /// Received in it.
    bytes: usize,
    room: usize,
}

impl Default for BufferAutotuning {
    fn default() -> Self {
        Self {
            since: None,
            bytes: 0,
            room: SOCKET_BUFFER,
        }
    }
}

impl BufferAutotuning {
    /// Counts `bytes` that were received at `now`. Once a span it returns how large the receive
    /// buffer should be from now on, unless that is and was the least.
    ///
    /// It grows at once and shrinks by an eighth a span.
    pub(super) fn received(&mut self, now: Instant, bytes: usize) -> Option<usize> {
        let Some(since) = self.since else {
            self.since = Some(now);
            return None;
        };
        self.bytes = self.bytes.saturating_add(bytes);
        let passed = now.saturating_duration_since(since);
        if passed < SPAN {
            return None;
        }
        let in_a_span = self.bytes as u128 * SPAN.as_nanos() / passed.as_nanos();
        let before = self.room;
        self.room = usize::try_from(in_a_span)
            .unwrap_or(usize::MAX)
            .max(before - before / 8)
            .clamp(SOCKET_BUFFER, MAX_RECEIVE_BUFFER);
        self.since = Some(now);
        self.bytes = 0;
        (before.max(self.room) > SOCKET_BUFFER).then_some(self.room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives `per_ms` bytes each millisecond for `ms`, and returns what was asked for.
    fn receive(
        room: &mut BufferAutotuning,
        clock: &mut Instant,
        per_ms: usize,
        ms: u32,
    ) -> Vec<usize> {
        (0..ms)
            .filter_map(|_| {
                *clock += Duration::from_millis(1);
                room.received(*clock, per_ms)
            })
            .collect()
    }

    #[test]
    fn slow_receiver_keeps_the_least() {
        let (mut room, mut clock) = (BufferAutotuning::default(), Instant::now());
        assert_eq!(receive(&mut room, &mut clock, 350_000, 1000), []);
    }

    #[test]
    fn room_is_what_a_span_brings_up_to_the_most() {
        let (mut room, mut clock) = (BufferAutotuning::default(), Instant::now());
        let asked = receive(&mut room, &mut clock, 500_000, 200);
        assert!(asked.len() <= 10, "{} times in 10 spans", asked.len());
        assert!(
            asked
                .iter()
                .all(|room| (10_000_000..=11_000_000).contains(room))
        );
        let asked = receive(&mut room, &mut clock, 100_000_000, 40);
        assert_eq!(asked.last(), Some(&MAX_RECEIVE_BUFFER));
    }

    #[test]
    fn room_shrinks_to_the_least_and_is_then_left_alone() {
        let (mut room, mut clock) = (BufferAutotuning::default(), Instant::now());
        receive(&mut room, &mut clock, 2_000_000, 40);
        let asked = receive(&mut room, &mut clock, 100, 400);
        assert!(asked.is_sorted_by(|a, b| a > b), "{asked:?}");
        assert_eq!(asked.last(), Some(&SOCKET_BUFFER));
    }

    #[test]
    fn time_without_traffic_counts() {
        let (mut room, mut clock) = (BufferAutotuning::default(), Instant::now());
        receive(&mut room, &mut clock, 100, 5);
        clock += Duration::from_secs(3600);
        assert_eq!(room.received(clock, 12 << 20), None);
    }
}
