//! End-to-end tests: real hosts in namespaces, real traffic, every byte checked.
//!
//! They need root, `make deps` and `make peers`; `make test` does all of it. `ADIT_TEST_SUBJECT=wireguard-go` puts
//! another implementation in Adit's place: what fails with it too is a fault of the test.

#![allow(unreachable_pub, reason = "a test program exports nothing")]

mod harness;

mod carries;
mod daemon;
mod handshakes;
mod interface;
mod interop;
mod kernel;
mod offloads;
mod paths;
mod quick;
mod sessions;
mod uapi;
