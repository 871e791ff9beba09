//! The host of an interface: Linux, or one in memory.

pub(crate) mod embedded;
pub(crate) mod kernel;
pub(crate) mod mem;
pub(crate) mod platform;
pub(crate) mod remembered;
pub(crate) mod watch;
