//! A UDP GSO packet is cut into segments, and these are merged again.

use adit_offload::{Coalescer, Frame, GSO_UDP_L4, NEEDS_CSUM, Span, VNET_HDR_LEN, VnetHdr};

fn main() {
    // An IPv4 header (20 bytes), a UDP header (8) and twice 100 bytes of payload, as a TUN hands
    // them over: the checksum of UDP holds the sum of the pseudo-header only.
    let mut packet = vec![0; 228];
    packet[..20].copy_from_slice(&[
        0x45, 0, 0, 228, 0, 0, 0x40, 0, 64, 17, 0xb9, 0xfb, 192, 0, 2, 1, 192, 0, 2, 2,
    ]);
    packet[20..26].copy_from_slice(&[0, 7, 0, 9, 0, 208]);
    let header = VnetHdr {
        flags: NEEDS_CSUM,
        gso_type: GSO_UDP_L4,
        gso_size: 100,
        csum_start: 20,
        csum_offset: 6,
        ..VnetHdr::default()
    };
    let bytes = [&header.write()[..], &packet].concat();
    let frame = Frame::parse(&bytes).unwrap();
    assert_eq!(frame.segments(), 2);

    // 1. Segments: headers that are finished, and the payload where it is.
    let segments: Vec<Vec<u8>> = (0..2)
        .map(|i| {
            let mut segment = vec![0; frame.header_len()];
            frame.write_header(i, &mut segment);
            segment.extend(frame.payload(i));
            segment
        })
        .collect();
    assert_eq!(segments[0].len(), 128);

    // 2. Merged again, as packets of peer 1.
    let mut coalescer = Coalescer::new(true, true);
    for (i, segment) in (0..).zip(&segments) {
        let span = Span {
            buffer: i,
            start: 0,
            len: 128,
        };
        coalescer.push(1, segment, span, |_| false).unwrap();
    }
    let mut merged = Vec::new();
    coalescer.drain(|head, spans| merged.push((head.to_vec(), spans.len())));
    let (head, spans) = &merged[0];
    let header = VnetHdr::parse(head[..VNET_HDR_LEN].try_into().unwrap());
    assert_eq!(
        (header.gso_type, header.gso_size, *spans),
        (GSO_UDP_L4, 100, 2)
    );
    println!("two datagrams, cut apart and merged again");
}
