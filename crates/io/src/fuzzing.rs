//! What reads bytes from outside, for the fuzz targets: decoders of control messages, requests of a helper.

use std::net::SocketAddr;

use adit_proto::Source;

use crate::IcmpError;
use crate::sys::{error_queue, mmsg};

#[cfg(feature = "host")]
pub use crate::helper::fuzzing::Requests;

/// The content of a datagram's control messages.
#[derive(Clone, Copy, Debug)]
pub struct ControlContent {
    /// Our address that it was sent to.
    pub source: Option<Source>,
    /// The two ECN bits.
    pub ecn: u8,
    /// From UDP_GRO.
    pub stride: Option<usize>,
    /// From SO_RXQ_OVFL.
    pub dropped: Option<u32>,
}

/// Decodes the control messages of a datagram.
pub fn control(control: &[u8]) -> ControlContent {
    let arrived = mmsg::decode_control(control);
    let mmsg::MessageInfo {
        src: source,
        ecn,
        stride,
        dropped,
        ..
    } = arrived;
    ControlContent {
        source,
        ecn,
        stride,
        dropped,
    }
}

/// Decodes a socket address of which the kernel says that it has `len` bytes.
pub fn name(name: &[u8; 28], len: usize) -> Option<SocketAddr> {
    mmsg::decode_name(name, len)
}

/// Decodes an entry of an error queue.
pub fn icmp(control: &[u8], name: &[u8; 28], len: usize) -> Option<IcmpError> {
    let mut error = error_queue::decode_error(control);
    error.to = mmsg::decode_name(name, len);
    IcmpError::new(&error)
}
