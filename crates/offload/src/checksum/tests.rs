#![allow(
    clippy::cast_possible_truncation,
    reason = "the numbers here are known"
)]

use proptest::prelude::*;

use super::*;

/// RFC 1071, one byte after the other.
fn naive(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    for (i, byte) in bytes.iter().enumerate() {
        sum += u64::from(*byte) << if i % 2 == 0 { 8 } else { 0 };
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[test]
fn the_example_of_rfc_1071_sums_as_it_says() {
    // RFC 1071 §3.
    let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(Sum::of(&bytes).fold(), 0xddf2);
    assert_eq!(Sum::of(&bytes).checksum(), !0xddf2);
}

#[test]
fn every_length_and_alignment_sums_as_the_byte_loop() {
    let bytes: Vec<u8> = (0..2100u32)
        .map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8)
        .collect();
    for start in 0..9 {
        for len in 0..2080 {
            assert_eq!(
                Sum::of(&bytes[start..start + len]).fold(),
                naive(&bytes[start..start + len]),
                "{start} {len}"
            );
        }
    }
}

#[test]
fn all_ones_do_not_overflow() {
    for len in [0, 1, 2, 64, 127, 128, 129, 9001, 65_534, 65_535, 65_536] {
        let bytes = vec![0xff; len];
        assert_eq!(Sum::of(&bytes).fold(), naive(&bytes), "{len}");
    }
    let mut sum = Sum::of(&[0xff; 65_534]);
    for _ in 0..200 {
        sum = sum + sum;
    }
    assert_eq!(sum.fold(), 0xffff);
}

#[test]
fn zero_and_all_ones_are_told_apart() {
    assert_eq!(Sum::of(&[0; 500]).fold(), 0);
    assert_eq!(Sum::of(&[0; 500]).checksum(), 0xffff);
    assert_eq!((Sum::word(0x1234) + Sum::word(!0x1234)).fold(), 0xffff);
    assert_eq!((Sum::word(0x1234) + Sum::word(!0x1234)).checksum(), 0);
}

#[test]
fn fields_count_as_their_bytes() {
    assert_eq!(Sum::word(0x0102).fold(), Sum::of(&[1, 2]).fold());
    assert_eq!(Sum::wide(0x0102_0304).fold(), Sum::of(&[1, 2, 3, 4]).fold());
}

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
#[test]
#[allow(
    unsafe_code,
    reason = "calls the function that this processor would not choose"
)]
fn every_width_gives_the_same() {
    let bytes: Vec<u8> = (0..9001u32)
        .map(|i| (i.wrapping_mul(0x85eb_ca6b) >> 11) as u8)
        .collect();
    for len in (0..600).chain([1368, 1420, 8941, 9001]) {
        let expected = naive(&bytes[..len]);
        assert_eq!(Sum(simd::sum(&bytes[..len])).fold(), expected);
        assert_eq!(Sum(lanes::<8>(&bytes[..len])).fold(), expected);
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the line above has found AVX2.
            assert_eq!(Sum(unsafe { simd::avx2(&bytes[..len]) }).fold(), expected);
        }
    }
}

proptest! {
    #[test]
    fn parts_add_up_at_even_offsets(bytes in proptest::collection::vec(any::<u8>(), 0..700), cut: prop::sample::Index) {
        let (left, right) = bytes.split_at(cut.index(bytes.len() / 2 + 1) * 2);
        prop_assert_eq!((Sum::of(left) + Sum::of(right)).fold(), naive(&bytes));
    }

    #[test]
    fn sums_of_random_bytes_are_right(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
        prop_assert_eq!(Sum::of(&bytes).fold(), naive(&bytes));
    }
}
