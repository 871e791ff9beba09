//! System calls that no safe wrapper covers. Unsafe code of this crate stands in this directory
//! only.

pub(crate) mod bpf;
pub(crate) mod error_queue;
pub(crate) mod mmsg;
pub(crate) mod os;
pub(crate) mod packet;
pub(crate) mod rights;
#[cfg(test)]
mod sandbox_tests;
pub(crate) mod tun;
