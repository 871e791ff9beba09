#![allow(
    clippy::cast_possible_truncation,
    reason = "the numbers here are known"
)]

use proptest::prelude::*;

use super::tests::*;
use super::*;

#[test]
fn padding_is_cut_off() {
    for v6 in [false, true] {
        let packet = Packet::udp(v6, 21).wire();
        let padded = [&packet[..], &[0; 15]].concat();
        let inner = inner_packet(&padded).unwrap();
        assert_eq!(inner.len, packet.len());
        assert_eq!(
            inner.source.to_string(),
            if v6 { "fd00:9::ffee:1" } else { "10.255.254.1" }
        );
        assert_eq!(
            inner.destination.to_string(),
            if v6 {
                "fd00:9::ffee:c8"
            } else {
                "192.168.77.200"
            }
        );
        for len in 0..packet.len() {
            assert_eq!(inner_packet(&packet[..len]), None);
        }
    }
}

#[test]
fn plaintexts_that_are_no_packets_are_refused() {
    assert_eq!(inner_packet(&[]), None);
    assert_eq!(inner_packet(&[0; 64]), None);
    assert_eq!(
        inner_packet(&[0x44; 64]),
        None,
        "IPv4 header shorter than 20"
    );
    assert_eq!(inner_packet(&[0x52; 64]), None);
    let mut packet = Packet::udp(false, 100).wire();
    write16(&mut packet, 2, 19);
    assert_eq!(
        inner_packet(&packet),
        None,
        "total length shorter than the header"
    );
    let mut packet = Packet::udp(true, 100).wire();
    write16(&mut packet, 4, 65_535);
    assert_eq!(inner_packet(&packet), None, "40 + 65,535 does not wrap");
}

/// RFC 6040 §4.2, figure 4: rows are the inner codepoint, columns the outer.
#[test]
fn ecn_is_decapsulated_by_the_table_of_rfc_6040() {
    const NOT: u8 = 0;
    const ECT1: u8 = 1;
    const ECT0: u8 = 2;
    const CE: u8 = 3;
    let table = [
        (
            NOT,
            [
                (NOT, Some(NOT)),
                (ECT0, Some(NOT)),
                (ECT1, Some(NOT)),
                (CE, None),
            ],
        ),
        (
            ECT0,
            [
                (NOT, Some(ECT0)),
                (ECT0, Some(ECT0)),
                (ECT1, Some(ECT1)),
                (CE, Some(CE)),
            ],
        ),
        (
            ECT1,
            [
                (NOT, Some(ECT1)),
                (ECT0, Some(ECT1)),
                (ECT1, Some(ECT1)),
                (CE, Some(CE)),
            ],
        ),
        (
            CE,
            [
                (NOT, Some(CE)),
                (ECT0, Some(CE)),
                (ECT1, Some(CE)),
                (CE, Some(CE)),
            ],
        ),
    ];
    for v6 in [false, true] {
        for dscp in [0, 0xb8, 0xfc] {
            for (inner, row) in table {
                for (outer, expected) in row {
                    let packet = Packet::tcp(v6, 100).with(|p| p.tos = dscp | inner);
                    let mut bytes = packet.wire();
                    let result = decap_ecn(outer | 0x54, &mut bytes);
                    let Some(expected) = expected else {
                        assert_eq!(result, Err(Dropped));
                        continue;
                    };
                    assert_eq!(result, Ok(()));
                    assert_eq!(
                        bytes,
                        packet.with(|p| p.tos = dscp | expected).wire(),
                        "{inner} in {outer}"
                    );
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn ecn_of_random_bytes_never_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..64), outer: u8) {
        let _ = decap_ecn(outer, &mut bytes);
        let _ = inner_packet(&bytes);
    }

    #[test]
    fn the_ipv4_checksum_stays_right(id: u16, ttl: u8, host: u8) {
        let packet = Packet::udp(false, 1).with(|p| (p.tos, p.id, p.ttl, p.host) = (2, id, ttl, host));
        let mut bytes = packet.wire();
        prop_assert_eq!(decap_ecn(3, &mut bytes), Ok(()));
        prop_assert_eq!(naive_sum(&[&bytes[..20]]), 0xffff);
    }
}
