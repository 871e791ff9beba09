//! The host of an interface: Linux, or one in memory.

pub(crate) mod embedded;
#[cfg(feature = "host")]
pub(crate) mod kernel;
pub(crate) mod mem;
pub(crate) mod platform;
#[cfg(feature = "host")]
pub(crate) mod remembered;
#[cfg(feature = "host")]
pub(crate) mod watch;
