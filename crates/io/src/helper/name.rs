//! The name of an interface in a request.

use arrayvec::ArrayVec;

pub(super) type InterfaceName = ArrayVec<u8, 15>;

/// Whether it may be the name of an interface; a `%` would have the kernel choose one.
pub(super) fn is_name(name: &[u8]) -> bool {
    let is_good = |byte: &u8| byte.is_ascii_graphic() && !b"/%:".contains(byte);
    !name.is_empty() && name.iter().all(is_good)
}

/// Whether it may be the name of an interface, and a part of the name of a file.
pub(super) fn is_file_name(name: &[u8]) -> bool {
    let is_good = |byte: &u8| byte.is_ascii_alphanumeric() || b"_=+.-".contains(byte);
    !name.is_empty() && name.iter().all(is_good) && name != b"." && name != b".."
}
