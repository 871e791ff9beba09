//! How much of a connection may be on its way: CUBIC (RFC 9438).
//!
//! smoltcp's own reduces its window for each segment that it repeats, so that one overflow of a queue leaves
//! nothing of it. Here a loss reduces it once, whatever is repeated until all of what was sent before has
//! arrived. smoltcp is told the smaller of this window and the other end's.

use super::clock::{Micros, SECOND};

/// What may be on its way at the beginning, and after a rest (RFC 6928).
const INITIAL: u32 = 14_000;
/// More than the longest ring is of no use.
pub(super) const MOST: u32 = 4 << 20;
/// What a loss leaves, and how steep the curve is, in segments and seconds (RFC 9438 §4).
const BETA: f64 = 0.7;
const C: f64 = 0.4;
/// How many segments a window as of Reno grows in a round trip (RFC 9438 §4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

#[derive(Clone, Copy, Debug)]
pub(super) struct Congestion {
    window: u32,
    /// Below it the window doubles in a round trip.
    threshold: u32,
    /// The window when something was lost, which the curve comes back to, and when that was.
    before: f64,
    since: Option<Micros>,
    /// What Reno would have.
    reno: f64,
}

impl Default for Congestion {
    fn default() -> Self {
        Self {
            window: INITIAL,
            threshold: u32::MAX,
            before: 0.0,
            since: None,
            reno: 0.0,
        }
    }
}

impl Congestion {
    pub(super) fn window(&self) -> u32 {
        self.window
    }

    /// So many bytes were acknowledged of so many that were on their way.
    pub(super) fn acknowledged(&mut self, now: Micros, bytes: u32, flight: u32, mss: u16) {
        // What the window did not hold up does not show that more fits.
        if flight < self.window / 2 {
            return;
        }
        if self.window < self.threshold {
            self.window = (self.window + bytes.min(self.window)).min(MOST);
            return;
        }
        let (mss, window) = (f64::from(mss), f64::from(self.window));
        let since = *self.since.get_or_insert_with(|| {
            (self.before, self.reno) = (window, window);
            now
        });
        #[expect(clippy::cast_precision_loss, reason = "times are much shorter")]
        let time = (now - since) as f64 / SECOND as f64;
        let back = (self.before * (1.0 - BETA) / (C * mss)).max(0.0).cbrt();
        let back = if self.before > window { back } else { 0.0 };
        let cubic = self.before + C * mss * (time - back).powi(3);
        self.reno += ALPHA * mss * f64::from(bytes) / window;
        // Not by more than slow start.
        let next = cubic
            .max(self.reno)
            .clamp(window, window + f64::from(bytes));
        self.window = whole(next).min(MOST);
    }

    /// Something was lost of so many bytes that were on their way.
    pub(super) fn lost(&mut self, now: Micros, flight: u32, mss: u16) {
        self.before = f64::from(self.window.min(flight.max(2 * u32::from(mss))));
        self.since = Some(now);
        self.threshold = whole(self.before * BETA).max(2 * u32::from(mss));
        self.window = self.threshold;
        self.reno = f64::from(self.window);
    }

    /// All that is not acknowledged is sent again.
    pub(super) fn sent_again(&mut self) {
        self.window = self.window.min(INITIAL);
    }

    /// Nothing was sent for long: the path may be another.
    pub(super) fn rested(&mut self) {
        if self.window > INITIAL {
            self.threshold = self.threshold.min(MOST).max(self.window / 4 * 3);
            self.window = INITIAL;
        }
    }
}

/// The nearest whole number of bytes below.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is in the range"
)]
fn whole(bytes: f64) -> u32 {
    bytes.clamp(0.0, f64::from(MOST)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u16 = 1000;

    #[test]
    fn a_window_doubles_until_a_loss_which_reduces_it_once() {
        let mut congestion = Congestion::default();
        for _ in 0..4 {
            let window = congestion.window();
            congestion.acknowledged(0, window, window, MSS);
            assert_eq!(congestion.window(), 2 * window);
        }
        let window = congestion.window();
        congestion.lost(0, window, MSS);
        assert_eq!(congestion.window(), window / 10 * 7);
        // It comes back to what it had, and then finds more.
        let mut now = 0;
        while congestion.window() < window * 2 {
            now += 20_000;
            let own = congestion.window();
            congestion.acknowledged(now, own, own, MSS);
            assert!(congestion.window() >= own);
            assert!(now < 60 * SECOND, "{own}");
        }
    }

    #[test]
    fn what_the_window_does_not_hold_up_does_not_make_it_grow() {
        let mut congestion = Congestion::default();
        congestion.acknowledged(0, 1000, 1000, MSS);
        assert_eq!(congestion.window(), INITIAL);
        congestion.lost(0, 0, MSS);
        assert_eq!(congestion.window(), 2000);
    }
}
