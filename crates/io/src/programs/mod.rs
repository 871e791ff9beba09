//! The BPF programs, what they share with this process, and how they are attached.

pub(crate) mod egress;
pub(crate) mod filter;
