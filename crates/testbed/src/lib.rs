//! The test bed: what the demo, the lab and the tests measure Adit on, and how they count.
//!
//! - [`host`]: hosts in network namespaces, and the links between them;
//! - [`process`]: processes that are stopped when their owner goes, and waits that end;
//! - [`proc`]: what the kernel counts, from /proc;
//! - [`stats`]: percentiles, in their one definition;
//! - [`framing`]: what headers leave of a link for the application;
//! - [`interrupt`]: Ctrl-C ends every wait.
//!
//! Hosts have no names, and nothing here outlives the process that made it.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod framing;
pub mod host;
pub mod interrupt;
pub mod proc;
pub mod process;
pub mod stats;

pub use host::{Host, link};
pub use process::Process;
