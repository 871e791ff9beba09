//! The Internet checksum.
