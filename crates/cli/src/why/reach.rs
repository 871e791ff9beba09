//! Whether a host answers datagrams of some length.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::Duration;

use crate::why::beyond::UNUSED_PORT;

/// How often to ask, and how long to wait each time.
const ASKED: u32 = 4;
const PATIENCE: Duration = Duration::from_millis(300);

/// What came back for UDP to a port that nothing listens at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PortReply {
    /// The host says that nothing listens there: it is up, and datagrams reach it.
    Answers,
    /// Nothing.
    Silent,
    /// An error, of this host or of a router.
    Failed(String),
}

/// Sends UDP to an unused port and waits for the host to say so.
pub(super) fn reach(to: IpAddr, bytes: usize) -> PortReply {
    let from: IpAddr = match to {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let ask = || {
        let socket = UdpSocket::bind((from, 0))?;
        socket.connect((to, UNUSED_PORT))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        for _ in 0..ASKED {
            socket.send(&vec![0; bytes])?;
            match socket.recv(&mut [0; 1]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
        Err(ErrorKind::TimedOut.into())
    };
    match ask() {
        Ok(_) => PortReply::Answers,
        Err(error) => match error.kind() {
            ErrorKind::ConnectionRefused => PortReply::Answers,
            ErrorKind::TimedOut => PortReply::Silent,
            _ => PortReply::Failed(error.to_string()),
        },
    }
}
