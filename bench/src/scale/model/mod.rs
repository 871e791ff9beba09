//! Models of engines on machines with other cores than those at hand.

pub(super) mod engine;
pub(super) mod network;
pub(super) mod predict;

/// xorshift64*: the same model always has the same outcome.
struct Random(u64);

impl Random {
    fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    /// From 0 to 1.
    fn share(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
        #[expect(clippy::cast_precision_loss, reason = "53 bits")]
        let share = bits as f64 / (1_u64 << 53) as f64;
        share
    }
}
