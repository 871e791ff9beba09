//! The packet in an opened data message, and the ECN mark that the message brought.

use std::net::IpAddr;

use adit_offload::{decap_ecn, inner_packet};

use super::naive::{parts, sum};

pub(crate) fn run(input: &[u8]) {
    let Some((&outer, plaintext)) = input.split_first() else {
        return;
    };
    let inner = inner_packet(plaintext);
    let found = parts(plaintext);
    assert_eq!(inner.map(|inner| inner.len), found.map(|found| found.len));
    if let (Some(inner), Some(found)) = (inner, found) {
        let (source, destination): (IpAddr, IpAddr) = if found.v6 {
            let at = |at: usize| <[u8; 16]>::try_from(&plaintext[at..at + 16]).expect("16 bytes");
            (at(8).into(), at(24).into())
        } else {
            let at = |at: usize| <[u8; 4]>::try_from(&plaintext[at..at + 4]).expect("4 bytes");
            (at(12).into(), at(16).into())
        };
        assert_eq!((inner.source, inner.destination), (source, destination));
    }
    // RFC 6040, figure 4: rows are the inner mark, columns the outer one.
    const LOST: u8 = 9;
    const TABLE: [[u8; 4]; 4] = [[0, 0, 0, LOST], [1, 1, 1, 3], [2, 1, 2, 3], [3, 3, 3, 3]];
    let mut marked = plaintext.to_vec();
    let result = decap_ecn(outer, &mut marked);
    let Some(found) = found else { return };
    let ecn = |packet: &[u8]| {
        if found.v6 {
            packet[1] >> 4 & 3
        } else {
            packet[1] & 3
        }
    };
    let expected = TABLE[usize::from(ecn(plaintext))][usize::from(outer & 3)];
    assert_eq!(result.is_err(), expected == LOST);
    if result.is_ok() {
        assert_eq!(ecn(&marked), expected);
        assert_eq!(marked[2..10], plaintext[2..10]);
        assert_eq!(marked[12..], plaintext[12..]);
        if !found.v6 {
            // A right checksum stays right, a wrong one wrong.
            let header = usize::from(plaintext[0] & 15) * 4;
            let right = |packet: &[u8]| sum(&[&packet[..header]]) == 0xffff;
            assert_eq!(right(&marked), right(plaintext));
        }
    } else {
        assert_eq!(marked, plaintext);
    }
}
