//! Which GSO packets a TUN device takes: frames to try that with.

use adit_offload::{GSO_TCPV4, GSO_TUNNEL_V4, GSO_UDP_L4, NEEDS_CSUM, TUNNEL_CSUM, VnetHdr};

/// Linux before 6.8.5 loses VXLAN and Geneve packets that come out of a merged UDP frame (tailscale
/// issue 11026).
///
/// The release decides, though a distribution may have mended its kernel. To try it takes a VXLAN
/// device in a namespace to hide it, which loads a module that the host may not want, with rights
/// that a tunnel otherwise does without; and a tunnel may be made long after.
pub(super) fn loses_merged_datagrams(release: (u32, u32, u32)) -> bool {
    release < (6, 8, 5)
}

/// A GSO packet of two segments of 4 bytes, from and to 0.0.0.0.
pub(super) fn probe_frame(protocol: u8) -> Vec<u8> {
    // 1. virtio header
    let tcp = protocol == 6;
    let (gso_type, transport, csum_offset) = if tcp {
        (GSO_TCPV4, 20, 16)
    } else {
        (GSO_UDP_L4, 8, 6)
    };
    let vnet = VnetHdr {
        flags: NEEDS_CSUM,
        gso_type,
        hdr_len: 20 + transport,
        gso_size: 4,
        csum_start: 20,
        csum_offset,
        ..VnetHdr::default()
    };
    let mut frame = vnet.write().to_vec();
    // 2. IPv4 header
    let len = 20 + transport + 8;
    frame.extend([0x45, 0]);
    frame.extend(len.to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, protocol]);
    frame.extend([0; 10]);
    // 3. transport header: ports, then sequence numbers, data offset and ACK, or the length
    frame.extend([0, 9, 0, 9]);
    if tcp {
        frame.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    } else {
        frame.extend(16_u16.to_be_bytes());
        frame.extend([0, 0]);
    }
    // 4. payload
    frame.extend([0; 8]);
    frame
}

/// The same of two TCP segments in VXLAN. Of the packet, nothing but length and version are looked
/// at.
pub(super) fn probe_tunnel() -> Vec<u8> {
    let vnet = VnetHdr {
        flags: NEEDS_CSUM | TUNNEL_CSUM,
        gso_type: GSO_TCPV4 | GSO_TUNNEL_V4,
        hdr_len: 90,
        gso_size: 4,
        csum_start: 70,
        csum_offset: 16,
        outer_transport: 34,
        inner_network: 50,
    };
    [&vnet.write()[..], &[0x45], &[0; 97]].concat()
}
