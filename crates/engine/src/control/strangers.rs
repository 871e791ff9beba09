//! Initiations of unknown peers, as events: a listener may know these peers and bring them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use adit_proto::Time;

/// Events in [`WINDOW`] at most: several times what an agent brings of new peers.
const MOST: u32 = 512;
/// Those of them that come from addresses that may be forged: a flood leaves the rest.
const MOST_UNPROVEN: u32 = 256;
/// Those of them from one address, or from the network of an IPv6 address.
const MOST_OF_SOURCE: u32 = 64;
const WINDOW: Duration = Duration::from_secs(1);

/// How many events there were of unknown peers.
#[derive(Default)]
pub(super) struct StrangerLimit {
    /// When the next window begins.
    until: Time,
    told: u32,
    unproven: u32,
    of_source: HashMap<IpAddr, u32>,
    /// Initiations without an event.
    untold: u64,
}

/// What is to be told of an initiation.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StrangerNews {
    /// It has an event.
    pub(super) is_told: bool,
    /// How many had none in the last window that had any.
    pub(super) untold: u64,
}

impl StrangerLimit {
    /// An initiation came from this source.
    pub(super) fn count(&mut self, now: Time, source: IpAddr, is_proven: bool) -> StrangerNews {
        let mut untold = 0;
        if now >= self.until {
            self.until = now + WINDOW;
            (self.told, self.unproven) = (0, 0);
            self.of_source.clear();
            untold = std::mem::take(&mut self.untold);
        }
        let mut is_told = self.told < MOST && (is_proven || self.unproven < MOST_UNPROVEN);
        if is_told {
            let of_source = self.of_source.entry(source).or_default();
            is_told = *of_source < MOST_OF_SOURCE;
            *of_source += u32::from(is_told);
        }
        self.told += u32::from(is_told);
        self.unproven += u32::from(is_told && !is_proven);
        self.untold += u64::from(!is_told);
        StrangerNews { is_told, untold }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(number: u32) -> IpAddr {
        IpAddr::V4(number.into())
    }

    #[test]
    fn one_source_leaves_events_to_the_others() {
        let mut limit = StrangerLimit::default();
        let now = Time(1);
        let told = (0..1_000).filter(|_| limit.count(now, source(1), false).is_told);
        assert_eq!(told.count(), 64);
        assert!(limit.count(now, source(2), false).is_told);
        // What had no event is told with the first one of the next window.
        let next = now + WINDOW;
        let news = StrangerNews {
            is_told: true,
            untold: 936,
        };
        assert_eq!(limit.count(next, source(1), false), news);
        assert_eq!(limit.count(next, source(1), false).untold, 0);
    }

    #[test]
    fn events_of_all_sources_and_their_memory_are_bounded() {
        let mut limit = StrangerLimit::default();
        let mut told = |is_proven| {
            let all = 0..100_000;
            let told = all.filter(|it| limit.count(Time(1), source(*it), is_proven).is_told);
            told.count()
        };
        // What may be forged leaves room for what is not.
        assert_eq!((told(false), told(true)), (256, 256));
        assert_eq!(limit.of_source.len(), 256);
    }
}
