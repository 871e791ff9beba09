//! Super-frames inside UDP tunnels.
#![allow(
    clippy::cast_possible_truncation,
    reason = "the numbers here are known"
)]

use proptest::prelude::*;

use super::frame_tests::exercise;
use super::tests::*;
use super::*;

/// A packet with a tunnel around it.
#[derive(Clone, Debug)]
struct Tunnelled {
    outer: Packet,
    /// What the tunnel puts behind its UDP header: VXLAN's and Ethernet's headers.
    between: Vec<u8>,
    inner: Packet,
}

impl Tunnelled {
    fn new(v6: bool, inner: Packet) -> Self {
        let mut between = vec![8, 0, 0, 0, 0, 0, 7, 0];
        between.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
        between.extend(if inner.v6 { [0x86, 0xdd] } else { [8, 0] });
        Self {
            outer: Packet::udp(v6, 0).with(|p| (p.ports[1], p.df) = (4789, false)),
            between,
            inner,
        }
    }

    /// The tunnel around these bytes of an inner packet.
    fn around(&self, inner: &[u8]) -> Packet {
        let payload = [&self.between, inner].concat();
        self.outer.with(|p| p.payload = payload)
    }

    fn inner_at(&self) -> usize {
        self.outer.headers() + self.between.len()
    }

    /// A virtio header that tells the truth, but for `hdr_len` and `outer_transport`.
    fn vnet(&self, size: u16) -> VnetHdr {
        let inner = self.inner.vnet(size);
        let (kind, summed) = (
            if self.outer.v6 {
                GSO_TUNNEL_V6
            } else {
                GSO_TUNNEL_V4
            },
            if self.outer.unsummed { 0 } else { TUNNEL_CSUM },
        );
        VnetHdr {
            flags: NEEDS_CSUM | summed,
            gso_type: inner.gso_type | kind,
            csum_start: inner.csum_start + self.inner_at() as u16,
            outer_transport: 9999,
            inner_network: self.inner_at() as u16,
            ..inner
        }
    }

    /// The packet as the kernel hands it over.
    fn partial(&self) -> Vec<u8> {
        let whole = self.around(&self.inner.partial());
        if self.outer.unsummed {
            whole.wire()
        } else {
            whole.partial()
        }
    }

    fn frame(&self, size: u16) -> Vec<u8> {
        [&self.vnet(size).write()[..], &self.partial()].concat()
    }

    /// What the kernel's GSO would make of the super-frame.
    fn split(&self, size: u16) -> Vec<Vec<u8>> {
        let inner = self.inner.split(size.into());
        let packets = inner.iter().zip(self.outer.id..).map(|(inner, id)| {
            let packet = self.around(&inner.wire()).with(|p| p.id = id);
            packet.wire()
        });
        packets.collect()
    }
}

fn tunnelled() -> impl Strategy<Value = Tunnelled> {
    let kind: (_, _, _, _) = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let numbers = (0u16..60_000, any::<u16>(), any::<u32>(), any::<u8>());
    (kind, numbers, 0usize..20_000, 0usize..20).prop_map(
        |((v6, inner_v6, tcp, unsummed), (outer_id, id, sequence, byte), payload, options)| {
            let inner = Packet::tcp(inner_v6, payload).with(|p| {
                (p.tcp, p.id, p.sequence, p.flags, p.tos) = (tcp, id, sequence, byte, byte);
            });
            let mut tunnelled = Tunnelled::new(v6, inner);
            let outer = &mut tunnelled.outer;
            (outer.id, outer.unsummed, outer.tos) = (outer_id, unsummed, byte);
            // Geneve's options, or a VLAN tag.
            tunnelled.between.extend(vec![byte; options * 2]);
            tunnelled
        },
    )
}

proptest! {
    #[test]
    fn segments_are_those_of_the_reference(whole in tunnelled(), size in 1u16..2000) {
        let size = size.max(1 + (whole.inner.payload.len() / 300) as u16);
        let bytes = whole.frame(size);
        let frame = Frame::parse(&bytes).unwrap();
        prop_assert_eq!(lay(&frame), whole.split(size));
        prop_assert_eq!(frame.ecn(), whole.outer.tos & 3);
        prop_assert_eq!(frame.udp_ports(), Some((40_000, 4789)));
    }

    #[test]
    fn damaged_frames_never_panic(
        whole in tunnelled(), size: u16,
        damage in proptest::collection::vec((0usize..200, any::<u8>()), 0..6), cut in 60usize..20_000,
    ) {
        let mut bytes = whole.frame(size);
        for (at, value) in damage {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes.truncate(cut);
        exercise(&bytes);
    }
}

#[test]
fn hostile_tunnels_are_malformed() {
    let whole = Tunnelled::new(false, Packet::tcp(false, 3000));
    let good = whole.vnet(1000);
    let table = [
        (
            Malformed::Segmentation,
            good.gso_type ^ 0x60,
            good.inner_network,
            NEEDS_CSUM,
        ),
        (
            Malformed::Segmentation,
            good.gso_type | 0x60,
            good.inner_network,
            NEEDS_CSUM,
        ),
        (
            Malformed::Segmentation,
            GSO_TUNNEL_V4,
            good.inner_network,
            NEEDS_CSUM,
        ),
        (
            Malformed::Segmentation,
            GSO_TUNNEL_V4 | GSO_TCPV6,
            good.inner_network,
            NEEDS_CSUM,
        ),
        (
            Malformed::Segmentation,
            GSO_TUNNEL_V4 | GSO_UDP_L4,
            good.inner_network,
            NEEDS_CSUM,
        ),
        // no room for the outer headers, an odd place, not where the packet is, at the end, and beyond it
        (Malformed::Segmentation, good.gso_type, 0, NEEDS_CSUM),
        (Malformed::Segmentation, good.gso_type, 26, NEEDS_CSUM),
        (Malformed::Segmentation, good.gso_type, 51, NEEDS_CSUM),
        (Malformed::Ip, good.gso_type, 52, NEEDS_CSUM),
        (
            Malformed::Ip,
            good.gso_type,
            whole.partial().len() as u16,
            NEEDS_CSUM,
        ),
        (Malformed::Ip, good.gso_type, 65_534, NEEDS_CSUM),
        // The sum inside is none.
        (Malformed::Checksum, good.gso_type, good.inner_network, 0),
        (
            Malformed::Checksum,
            good.gso_type,
            good.inner_network,
            TUNNEL_CSUM,
        ),
    ];
    for (error, gso_type, inner_network, flags) in table {
        let vnet = VnetHdr {
            flags,
            gso_type,
            inner_network,
            ..good
        };
        let bytes = [&vnet.write()[..], &whole.partial()].concat();
        assert_eq!(Frame::parse(&bytes).unwrap_err(), error, "{vnet:?}");
    }
    let vnet = VnetHdr {
        csum_start: 20,
        ..good
    };
    let bytes = [&vnet.write()[..], &whole.partial()].concat();
    assert_eq!(Frame::parse(&bytes).unwrap_err(), Malformed::Checksum);
    // The inner packet ends before the outer one.
    let mut packet = whole.partial();
    packet[53] -= 1;
    let bytes = [&good.write()[..], &packet].concat();
    assert_eq!(Frame::parse(&bytes).unwrap_err(), Malformed::Ip);
}
