//! What a network device does in hardware.

use std::io;
use std::os::fd::AsFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::sys::os;

/// include/uapi/linux/ethtool.h
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETH_SS_FEATURES: u32 = 4;
const ETH_GSTRING_LEN: usize = 32;

/// More features than any kernel has: about 64.
const MAX_FEATURES: u32 = 1024;

/// Whether the interface's device segments UDP itself (`tx-udp-segmentation`), so that a train costs the CPU one
/// packet down to the wire. `None` if it cannot be found out.
///
/// `interface` is looked up in the calling thread's namespace.
pub fn tx_udp_segmentation(interface: &str) -> Option<bool> {
    feature(interface, "tx-udp-segmentation").ok().flatten()
}

/// Whether a feature is active; `None` if the kernel does not know it.
fn feature(interface: &str, name: &str) -> io::Result<Option<bool>> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
    let socket = socket.as_fd();

    // 1. struct ethtool_sset_info: how many features there are; the mask must name one set, whose length follows
    let mut info = [ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 0, 0];
    os::ethtool(socket, interface, &mut info)?;
    let count = info[4];
    if info[2] == 0 || count == 0 || count > MAX_FEATURES {
        return Ok(None);
    }
    let features = count as usize;

    // 2. struct ethtool_gstrings: command, set, number, names of 32 bytes
    let mut strings = vec![0; 3 + features * ETH_GSTRING_LEN / 4];
    strings[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count]);
    os::ethtool(socket, interface, &mut strings)?;
    let names: Vec<u8> = strings[3..]
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    let names = names.chunks_exact(ETH_GSTRING_LEN);
    let position = names.clone().position(|padded| {
        let len = padded.iter().position(|byte| *byte == 0);
        &padded[..len.unwrap_or(ETH_GSTRING_LEN)] == name.as_bytes()
    });
    let Some(index) = position else {
        return Ok(None);
    };

    // 3. struct ethtool_gfeatures: command, number of blocks of 32 features: available, requested, active, never
    let blocks = count.div_ceil(32);
    let mut states = vec![0; 2 + 4 * blocks as usize];
    states[..2].copy_from_slice(&[ETHTOOL_GFEATURES, blocks]);
    os::ethtool(socket, interface, &mut states)?;
    let active = states[2 + 4 * (index / 32) + 2];
    Ok(Some(active >> (index % 32) & 1 == 1))
}
