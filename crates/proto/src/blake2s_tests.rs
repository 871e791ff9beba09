use blake2::digest::consts::{U16, U32};
use blake2::digest::{FixedOutput, KeyInit, Update};
use blake2::{Blake2s256, Blake2sMac};
use proptest::prelude::*;

use super::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn blake2s<const OUT: usize>(key: &[u8], bytes: &[u8]) -> [u8; OUT] {
    let mut hash = Blake2s::with_key(key);
    hash.update(bytes);
    hash.finish()
}

#[test]
fn the_example_of_rfc_7693_comes_out() {
    // Appendix B.
    assert_eq!(
        hex(&blake2s::<32>(&[], b"abc")),
        "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982"
    );
}

/// Appendix E of RFC 7693: a hash over hashes of all kinds.
#[test]
fn the_self_test_of_rfc_7693_passes() {
    // A Fibonacci generator.
    fn sequence(len: u32) -> Vec<u8> {
        let (mut a, mut b) = (0xdead_4bad_u32.wrapping_mul(len), 1_u32);
        let each = |_| {
            let sum = a.wrapping_add(b);
            (a, b) = (b, sum);
            sum.to_be_bytes()[0]
        };
        (0..len).map(each).collect()
    }
    fn of_length<const OUT: usize>(all: &mut Blake2s<32>) {
        for len in [0, 3, 64, 65, 255, 1024] {
            let input = sequence(len);
            all.update(&blake2s::<OUT>(&[], &input));
            let key = sequence(u32::try_from(OUT).unwrap());
            all.update(&blake2s::<OUT>(&key, &input));
        }
    }
    let mut all = Blake2s::<32>::new();
    of_length::<16>(&mut all);
    of_length::<20>(&mut all);
    of_length::<28>(&mut all);
    of_length::<32>(&mut all);
    assert_eq!(
        hex(&all.finish()),
        "6a411f08ce25adcdfb02aba641451cec53c598b24f4fc787fbdc88797f4c1dfe"
    );
}

/// The first two and the last of BLAKE2's `blake2s-kat.txt`.
#[test]
fn published_vectors_with_a_key_come_out() {
    let key: Vec<u8> = (0..32).collect();
    let input: Vec<u8> = (0..255).collect();
    for (len, expected) in [
        (
            0,
            "48a8997da407876b3d79c0d92325ad3b89cbb754d86ab71aee047ad345fd2c49",
        ),
        (
            1,
            "40d15fee7c328830166ac3f918650f807e7e01e177258cdc0a39b11f598066f1",
        ),
        (
            255,
            "3fb735061abc519dfe979e54c1ee5bfad0a9d858b3315bad34bde999efd724dd",
        ),
    ] {
        assert_eq!(hex(&blake2s::<32>(&key, &input[..len])), expected);
    }
}

/// What the `blake2` crate makes of it.
fn other(key: &[u8], parts: &[&[u8]]) -> ([u8; 16], [u8; 32]) {
    let mut short = Blake2sMac::<U16>::new_from_slice(key).unwrap();
    let mut long = Blake2sMac::<U32>::new_from_slice(key).unwrap();
    for part in parts {
        Update::update(&mut short, part);
        Update::update(&mut long, part);
    }
    (short.finalize_fixed().into(), long.finalize_fixed().into())
}

proptest! {
    #[test]
    fn another_implementation_agrees(
        key in proptest::collection::vec(any::<u8>(), 1..33),
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        cuts in any::<[prop::sample::Index; 2]>(),
    ) {
        let mut cuts = cuts.map(|cut| cut.index(bytes.len() + 1));
        cuts.sort_unstable();
        let parts = [&bytes[..cuts[0]], &bytes[cuts[0]..cuts[1]], &bytes[cuts[1]..]];

        let (mut short, mut long) = (Blake2s::with_key(&key), Blake2s::with_key(&key));
        let (mut plain, mut other_plain) = (Blake2s::new(), Blake2s256::default());
        for part in parts {
            short.update(part);
            long.update(part);
            plain.update(part);
            other_plain.update(part);
        }
        prop_assert_eq!((short.finish(), long.finish()), other(&key, &parts));
        prop_assert_eq!(plain.finish(), <[u8; 32]>::from(other_plain.finalize_fixed()));
    }
}

#[test]
fn nothing_of_a_hash_is_left_when_it_is_dropped() {
    let mut hash = std::mem::ManuallyDrop::new(Blake2s::<32>::with_key(&[7; 32]));
    hash.update(&[9; 100]);
    assert!(hash.state != [0; 8] && hash.block != [0; BLOCK]);
    // What the destructor does.
    hash.zeroize();
    assert!(hash.state == [0; 8] && hash.block == [0; BLOCK]);
}
