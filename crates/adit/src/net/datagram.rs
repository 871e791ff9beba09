//! Datagrams as they pass between a program and the stack: over a socket that keeps messages apart, each
//! with the remote address before it.

use std::net::{IpAddr, SocketAddr};

/// A kind, a port and an address.
pub(super) const HEADER: usize = 19;
/// The longest datagram, with its header.
pub(super) const MAX_MESSAGE: usize = HEADER + 65_507;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageKind {
    Datagram = 0,
    /// What was sent to this address did not get there.
    Unreachable = 1,
}

pub(super) fn header(kind: MessageKind, remote: SocketAddr) -> [u8; HEADER] {
    let address = match remote.ip() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let mut header = [0; HEADER];
    header[0] = kind as u8;
    header[1..3].copy_from_slice(&remote.port().to_be_bytes());
    header[3..].copy_from_slice(&address.octets());
    header
}

/// What a header says; `None` if there is none.
pub(super) fn parse(message: &[u8]) -> Option<(MessageKind, SocketAddr)> {
    let header = message.first_chunk::<HEADER>()?;
    let [kind, high, low, address @ ..] = header;
    let kind = match kind {
        0 => MessageKind::Datagram,
        1 => MessageKind::Unreachable,
        _ => return None,
    };
    let address = IpAddr::from(*address).to_canonical();
    Some((
        kind,
        SocketAddr::new(address, u16::from_be_bytes([*high, *low])),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_what_it_was_told() {
        for remote in ["10.0.0.1:53", "[fd00::1]:65535"] {
            let remote = remote.parse().expect("an address");
            for kind in [MessageKind::Datagram, MessageKind::Unreachable] {
                assert_eq!(parse(&header(kind, remote)), Some((kind, remote)));
            }
        }
        assert_eq!(parse(&[0; HEADER - 1]), None);
        assert_eq!(parse(&[2; HEADER]), None);
    }
}
