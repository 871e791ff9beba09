//! What stays of connections that this end closed first: their last acknowledgement, for the time in which
//! the other end may repeat its FIN (RFC 9293 §3.6.1).

use std::collections::{HashMap, VecDeque};

use super::clock::{Micros, SECOND};
use crate::net::wire::Flow;

/// How long: that of smoltcp.
const LASTS: Micros = 10 * SECOND;
/// How many, at most: the oldest goes first.
const MAX: usize = 4096;

#[derive(Default)]
pub(super) struct TimeWait {
    /// Until when, and what is repeated.
    flows: HashMap<Flow, (Micros, LastSegment)>,
    /// In the order in which they end. One that was forgotten stays here.
    order: VecDeque<(Micros, Flow)>,
}

/// What is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LastSegment {
    pub(super) seq: u32,
    pub(super) ack: u32,
}

impl TimeWait {
    pub(super) fn add(&mut self, now: Micros, flow: Flow, last: LastSegment) {
        self.expire(now);
        if self.order.len() >= MAX
            && let Some((ends, oldest)) = self.order.pop_front()
        {
            self.end(ends, &oldest);
        }
        let ends = now + LASTS;
        self.flows.insert(flow, (ends, last));
        self.order.push_back((ends, flow));
    }

    /// The time of a flow has passed, unless it was closed again since.
    fn end(&mut self, ends: Micros, flow: &Flow) {
        if self
            .flows
            .get(flow)
            .is_some_and(|(until, _)| *until == ends)
        {
            self.flows.remove(flow);
        }
    }

    /// The last segment of this flow, if it is remembered.
    pub(super) fn find(&mut self, now: Micros, flow: &Flow) -> Option<LastSegment> {
        self.expire(now);
        self.flows.get(flow).map(|(_, last)| *last)
    }

    pub(super) fn contains(&self, flow: &Flow) -> bool {
        self.flows.contains_key(flow)
    }

    /// The flow begins anew.
    pub(super) fn forget(&mut self, flow: &Flow) {
        self.flows.remove(flow);
    }

    fn expire(&mut self, now: Micros) {
        while let Some(&(ends, flow)) = self.order.front()
            && ends <= now
        {
            self.order.pop_front();
            self.end(ends, &flow);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;

    fn flow(port: u16) -> Flow {
        let address = |host| SocketAddr::from((Ipv4Addr::new(10, 0, 0, host), port));
        Flow {
            local: address(1),
            remote: address(2),
        }
    }

    #[test]
    fn a_closed_connection_is_remembered_for_a_while_and_so_are_not_too_many() {
        let mut closed = TimeWait::default();
        let last = LastSegment { seq: 1, ack: 2 };
        closed.add(0, flow(1), last);
        assert_eq!(closed.find(LASTS - 1, &flow(1)), Some(last));
        assert_eq!(closed.find(LASTS, &flow(1)), None);
        for port in 0..=u16::try_from(MAX).expect("a port") {
            closed.add(SECOND, flow(port), last);
        }
        assert_eq!(closed.find(SECOND, &flow(0)), None);
        assert_eq!(closed.find(SECOND, &flow(1)), Some(last));
        closed.forget(&flow(1));
        assert!(!closed.contains(&flow(1)));
    }

    #[test]
    fn a_flow_that_was_forgotten_and_closed_again_is_remembered_as_long_as_others() {
        let mut closed = TimeWait::default();
        let [before, last] = [1, 2].map(|seq| LastSegment { seq, ack: 2 });
        closed.add(0, flow(1), before);
        closed.forget(&flow(1));
        closed.add(9 * SECOND, flow(1), last);
        assert_eq!(closed.find(LASTS, &flow(1)), Some(last));
        assert_eq!(closed.find(9 * SECOND + LASTS - 1, &flow(1)), Some(last));
        assert_eq!(closed.find(9 * SECOND + LASTS, &flow(1)), None);
        // Nor does the oldest take it along when there are too many.
        closed.add(19 * SECOND, flow(1), before);
        closed.forget(&flow(1));
        closed.add(20 * SECOND, flow(1), last);
        for port in 2..=u16::try_from(MAX).expect("a port") {
            closed.add(20 * SECOND, flow(port), last);
        }
        assert_eq!(closed.find(20 * SECOND, &flow(1)), Some(last));
    }
}
