//! Test doubles behind the traits of this crate: a network in memory ([`mem`]), a wrapper that
//! injects faults ([`fault`]) and one that records what passes ([`pcap`]).

pub mod fault;
pub mod mem;
pub mod pcap;

#[cfg(test)]
mod forwarding_tests;
#[cfg(test)]
mod tests;
