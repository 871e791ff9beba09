//! What a network device does in hardware, over generic netlink
//! (Documentation/networking/ethtool-netlink.rst; Linux 5.8).

use std::io;

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NLMSG_ERROR};
use netlink_sys::Socket;

use crate::attribute::{Attributes, attribute, nested, string, u16_at};
use crate::{HEADER, Raw, open_socket, receive};

/// `GENL_ID_CTRL`: the family that knows the others' numbers.
const CONTROLLER: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_A_HEADER_DEV_NAME: u16 = 2;
const ETHTOOL_A_FEATURES_HEADER: u16 = 1;
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;

/// Whether the interface's device segments UDP itself (`tx-udp-segmentation`), so that a train
/// costs the CPU one packet down to the wire. `None` if it cannot be found out.
///
/// `interface` is looked up in the calling thread's namespace.
pub fn tx_udp_segmentation(interface: &str) -> Option<bool> {
    is_active(interface, "tx-udp-segmentation").ok()
}

/// Whether a feature is active.
fn is_active(interface: &str, feature: &str) -> io::Result<bool> {
    let socket = open_socket(netlink_sys::protocols::NETLINK_GENERIC, 0)?;
    let missing = || io::Error::from(io::ErrorKind::InvalidData);

    // 1. The number of the family ethtool.
    let name = attribute(CTRL_ATTR_FAMILY_NAME, &string("ethtool"));
    let answer = ask(&socket, CONTROLLER, CTRL_CMD_GETFAMILY, &name)?;
    let id = Attributes(&answer).find(CTRL_ATTR_FAMILY_ID);
    let family = id.and_then(|id| u16_at(id, 0)).ok_or_else(missing)?;

    // 2. The device's features. The set of those that are active lists them by name.
    let device = attribute(ETHTOOL_A_HEADER_DEV_NAME, &string(interface));
    let header = nested(ETHTOOL_A_FEATURES_HEADER, &device);
    let answer = ask(&socket, family, ETHTOOL_MSG_FEATURES_GET, &header)?;
    let active = Attributes(&answer).find(ETHTOOL_A_FEATURES_ACTIVE);
    let bits = active.and_then(|set| Attributes(set).find(ETHTOOL_A_BITSET_BITS));
    let wanted = string(feature);
    Ok(Attributes(bits.ok_or_else(missing)?)
        .any(|(_, bit)| Attributes(bit).find(ETHTOOL_A_BITSET_BIT_NAME) == Some(wanted.as_slice())))
}

/// Sends a request of generic netlink and returns the attributes of the answer.
fn ask(socket: &Socket, family: u16, command: u8, attributes: &[u8]) -> io::Result<Vec<u8>> {
    /// `struct genlmsghdr`: command (1), version (1), reserved (2).
    const GENERIC_HEADER: usize = 4;
    let len = HEADER + GENERIC_HEADER + attributes.len();
    let mut request = Vec::with_capacity(len);
    request.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_ne_bytes());
    request.extend_from_slice(&family.to_ne_bytes());
    request.extend_from_slice(&(NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    // Sequence and port: the socket has one request under way.
    request.extend_from_slice(&[0; 8]);
    request.extend_from_slice(&[command, 1, 0, 0]);
    request.extend_from_slice(attributes);
    socket.send(&request, 0)?;

    let mut found = Vec::new();
    let mut buffer = Vec::new();
    loop {
        receive(socket, &mut buffer)?;
        for raw in Raw::split(&buffer) {
            if raw.kind == NLMSG_ERROR {
                return raw
                    .outcome()
                    .map(|()| found)
                    .map_err(|failure| failure.source);
            }
            let body = raw.bytes.get(HEADER + GENERIC_HEADER..);
            found = body.unwrap_or_default().to_vec();
        }
    }
}
