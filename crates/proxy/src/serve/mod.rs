//! The clients of a proxy.
