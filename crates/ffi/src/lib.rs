//! Adit's library for C, and for all languages that can call it: `include/adit.h`, which is made from
//! what stands here. [`device`] is the device without I/O, [`tunnel`] has threads of its own.
//!
//! Every entry reads its arguments by `abi`, which looks at NULL, sizes and text before it trusts them,
//! and returns panics as errors. What the caller has to keep to stands at each function, and so in the
//! header.

#![deny(missing_docs)]
#![allow(
    non_camel_case_types,
    clippy::missing_safety_doc,
    reason = "names and documentation are those of the header"
)]

pub mod abi;
pub mod change;
pub mod config;
pub mod device;
pub mod event;
pub mod keys;
pub mod packets;
pub mod status;

#[cfg(feature = "engine")]
pub mod callbacks;
#[cfg(feature = "net")]
pub mod net;
#[cfg(feature = "engine")]
pub mod options;
#[cfg(feature = "engine")]
pub mod tunnel;
