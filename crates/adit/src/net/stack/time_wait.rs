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
    flows: HashMap<Flow, LastSegment>,
    /// In the order in which they end.
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
            && let Some((_, oldest)) = self.order.pop_front()
        {
            self.flows.remove(&oldest);
        }
        if self.flows.insert(flow, last).is_none() {
            self.order.push_back((now + LASTS, flow));
        }
    }

    /// The last segment of this flow, if it is remembered.
    pub(super) fn find(&mut self, now: Micros, flow: &Flow) -> Option<LastSegment> {
        self.expire(now);
        self.flows.get(flow).copied()
    }

    pub(super) fn contains(&self, flow: &Flow) -> bool {
        self.flows.contains_key(flow)
    }

    /// The flow begins anew.
    pub(super) fn forget(&mut self, flow: &Flow) {
        self.flows.remove(flow);
    }

    fn expire(&mut self, now: Micros) {
        while let Some((ends, flow)) = self.order.front()
            && *ends <= now
        {
            self.flows.remove(flow);
            self.order.pop_front();
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
}
