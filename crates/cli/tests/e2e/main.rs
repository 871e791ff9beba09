//! End-to-end tests: real hosts in namespaces, real traffic, every byte checked.
//!
//! They need root and what `make setup peers guest` makes; `make test` does all of it.
//!
//! `ADIT_TEST_SUBJECT=wireguard-go` puts another implementation in Adit's place, which tells a
//! fault of Adit from one of a test. wireguard-go fails where it is known to fall short: ECN,
//! sources that stick while the kernel merges datagrams, routing loops, a path that shrinks below
//! the segment size, `set` as one transaction, requests sent ahead on one connection, names and
//! rights that it explains less, memory.

#![allow(unreachable_pub, reason = "a test program exports nothing")]

mod harness;

mod agent;
mod agent_and_file;
mod allowances;
mod audit;
mod carries;
mod causes;
mod chaos;
mod chaos_gateways;
mod checks;
mod cores;
mod daemon;
mod deploy;
mod embedders;
mod endpoints;
mod etcd;
mod everyday;
mod failover;
mod fails;
mod false_upgrade;
mod fleet;
mod flows;
mod forwards;
mod gateways;
mod handshakes;
mod held;
mod hubs;
mod init;
mod installed;
mod interface;
mod interop;
mod just_in_time;
mod kernel;
mod killed;
mod many;
mod mistakes;
mod offloads;
mod order;
mod pages;
mod paths;
mod peers;
mod policies;
mod proxy;
mod quick;
mod records;
mod refusals;
mod routers;
mod rules;
mod sandbox;
mod says;
mod service;
mod sessions;
mod steer;
mod survives;
mod uapi;
mod upgrade;
mod watch;
mod why;
