//! How many packets were lost on their way to us, by the counters of those that came.

/// Sessions that are looked at.
const SESSIONS: usize = 4;
/// How much less a session says than the one after it.
const WEIGHT: f32 = 1.0 / 3.0;

/// What came on the last sessions, the latest first.
#[derive(Debug, Default)]
pub(crate) struct Loss([SessionLoss; SESSIONS]);

#[derive(Clone, Copy, Debug, Default)]
struct SessionLoss {
    session: u32,
    /// The greatest counter and one more.
    sent: u64,
    came: u64,
}

impl Loss {
    /// A packet of this session came.
    pub(crate) fn note(&mut self, session: u32, counter: u64) {
        let known = |it: &SessionLoss| it.came > 0 && it.session == session;
        let place = self.0.iter().position(known).unwrap_or_else(|| {
            self.0.rotate_right(1);
            self.0[0] = SessionLoss {
                session,
                ..SessionLoss::default()
            };
            0
        });
        let received = &mut self.0[place];
        received.sent = received.sent.max(counter.saturating_add(1));
        received.came += 1;
    }

    /// The part of all packets that did not come, from 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub(crate) fn estimate(&self) -> f32 {
        let (mut weight, mut weights, mut lost) = (1.0, 0.0, 0.0);
        for received in self.0.iter().filter(|it| it.came > 0) {
            lost += weight * (1.0 - received.came as f32 / received.sent as f32);
            weights += weight;
            weight *= WEIGHT;
        }
        if weights == 0.0 { 0.0 } else { lost / weights }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_packets_of_a_session_are_half_of_the_loss() {
        let mut loss = Loss::default();
        assert_eq!(loss.estimate(), 0.0);
        for counter in (1..100).step_by(2) {
            loss.note(7, counter);
        }
        assert_eq!(loss.estimate(), 0.5);
        // A new session without a loss says more.
        loss.note(8, 0);
        assert_eq!(loss.estimate(), 0.5 / 3.0 / (1.0 + 1.0 / 3.0));
        loss.note(7, 0);
        assert!(loss.estimate() < 0.125);
    }
}
