//! What each of several busy peers of a gateway gets.

use super::Values;
use super::measures::{JAIN, JAIN_BACK, SHARES, SHARES_BACK, TOTAL, TOTAL_BACK};
use super::peers::{Peers, address};
use crate::implementation::Entry;
use crate::sandbox::Failure;
use crate::tools::{Iperf, Running};

/// Seconds of all streams.
const SECONDS: u32 = 5;
/// Streams to the peer that has more of them than the other.
const MANY: u32 = 64;

/// Bulk TCP from a gateway to so many peers, and from them to it.
pub(super) fn fairness(entry: &Entry, peers: u8, congestion: &str) -> Result<Values, Failure> {
    let hosts = Peers::new(entry, peers, congestion)?;
    let mut values = Values::new();
    for (reverse, index, total, ratio) in [
        (false, JAIN, TOTAL, SHARES),
        (true, JAIN_BACK, TOTAL_BACK, SHARES_BACK),
    ] {
        let shares = hosts.streams(|_| 1, reverse)?;
        values.extend([(index, jain(&shares)), (total, shares.iter().sum())]);
        if peers == 2 {
            let shares = hosts.streams(|peer| if peer == 0 { MANY } else { 1 }, reverse)?;
            let most = shares.iter().copied().fold(0.0, f64::max);
            let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
            values.push((ratio, most / least));
        }
    }
    Ok(values)
}

impl Peers {
    /// TCP to all peers at once, or from them, so many streams each: Gb/s of each peer.
    fn streams(&self, streams: impl Fn(u8) -> u32, reverse: bool) -> Result<Vec<f64>, Failure> {
        let running = (0..self.count).map(|peer| {
            let iperf = Iperf {
                reverse,
                ..Iperf::tcp(streams(peer), SECONDS)
            };
            iperf.start_between(&self.gateway, &self.host, address(peer))
        });
        let running = running.collect::<Result<Vec<Running>, _>>()?;
        let flows = running.into_iter().map(Running::finish);
        let flows = flows.collect::<Result<Vec<_>, _>>()?;
        Ok(flows.iter().map(|flow| flow.gbps()).collect())
    }
}

/// Jain's index of fairness: 1 where all shares are equal, 1/n where one of n has all.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (adit_testbed::stats::to_f64(shares.len()) * squares)
}

#[cfg(test)]
mod tests {
    use super::jain;

    #[test]
    fn equal_shares_are_fair_and_one_for_all_is_not() {
        assert!((jain(&[2.0; 8]) - 1.0).abs() < 1e-9);
        assert!((jain(&[3.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-9);
        assert!((jain(&[2.0, 1.0]) - 0.9).abs() < 1e-9);
    }
}
