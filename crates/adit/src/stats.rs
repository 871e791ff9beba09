//! Counters of a tunnel.

use adit_engine::{EngineReport, PassedKind};

/// Counters of a tunnel since it began. Packets that stand for several count as these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Packets that its source had for it.
    pub pulled: u64,
    /// Of these, packets that were sent to peers.
    pub sent: u64,
    /// Datagrams that came to its sockets, of all kinds.
    pub received: u64,
    /// Packets that it delivered.
    pub pushed: u64,
    /// Packets and datagrams that were dropped, by reason: those that occurred.
    pub drops: Vec<(&'static str, u64)>,
    /// Trains of packets that the kernel refused to send at once.
    pub refused_trains: u64,
}

impl Stats {
    pub(crate) fn of(report: &EngineReport) -> Self {
        let passed = |kind: PassedKind| {
            let mut all = report.passed.iter();
            let found = all.find(|(name, _)| *name == kind.name());
            found.map_or(0, |(_, count)| *count)
        };
        let drops = report.drops.iter().filter(|(_, count)| *count > 0);
        Self {
            pulled: passed(PassedKind::FromTun),
            sent: passed(PassedKind::Sent),
            received: passed(PassedKind::Received),
            pushed: passed(PassedKind::ToTun),
            drops: drops.copied().collect(),
            refused_trains: report.refused_trains,
        }
    }
}
