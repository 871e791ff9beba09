use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{ChaCha20Poly1305, XChaCha20Poly1305, XNonce};
use proptest::prelude::*;

use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .filter_map(|digit| char::from(digit).to_digit(16))
        .map(|digit| u8::try_from(digit).unwrap())
        .collect();
    digits
        .chunks(2)
        .map(|byte| byte[0] << 4 | byte[1])
        .collect()
}

fn array<const N: usize>(text: &str) -> [u8; N] {
    hex(text).try_into().unwrap()
}

#[test]
fn hchacha20_gives_the_key_of_the_draft() {
    // draft-irtf-cfrg-xchacha-03, section 2.2.1.
    let key = core::array::from_fn(|i| u8::try_from(i).unwrap());
    let nonce = array("00000009 0000004a 00000000 31415927 0000000000000000");
    let (key, nonce) = of_extended_nonce(&key, &nonce);
    assert_eq!(
        key.bytes()[..],
        hex("82413b42 27b27bfe d30e4250 8a877d73 a0f9e4d5 8a74a853 c12ec413 26d3ecdc")
    );
    assert_eq!(nonce, [0; 12]);
}

/// Of the draft's appendix A.3.1.
#[test]
fn the_example_of_the_draft_comes_out() {
    let key = array("808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f");
    let nonce = array("404142434445464748494a4b4c4d4e4f5051525354555657");
    let aad = hex("50515253c0c1c2c3c4c5c6c7");
    let text = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for \
        the future, sunscreen would be it.";
    let sealed = hex(
        "bd6d179d3e83d43b9576579493c0e939572a1700252bfaccbed2902c21396cbb\
         731c7f1b0b4aa6440bf3a82f4eda7e39ae64c6708c54c216cb96b72e1213b452\
         2f8c9ba40db5d945b11b69b982c1bb9e3f3fac2bc369488f76b2383565d3fff9\
         21f9664c97637da9768812f615c68b13b52e\
         c0875924c1c7987947deafd8780acf49",
    );
    let mut out = [&text[..], &[0; TAG_LEN]].concat();
    seal_message_extended(&key, &nonce, &aad, &mut out);
    assert_eq!(out, sealed);
    assert!(open_message_extended(&key, &nonce, &aad, &mut out));
    assert_eq!(out[..text.len()], text[..]);
}

proptest! {
    #[test]
    fn another_implementation_agrees(
        key: [u8; 32],
        nonce: [u8; 24],
        text in proptest::collection::vec(any::<u8>(), 0..200),
        aad in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        let payload = || Payload { msg: &text, aad: &aad };
        let mut out = [&text[..], &[0; TAG_LEN]].concat();
        seal_message_extended(&key, &nonce, &aad, &mut out);
        let other = XChaCha20Poly1305::new(&key.into());
        prop_assert_eq!(&out, &other.encrypt(&XNonce::from(nonce), payload()).unwrap());
        prop_assert!(open_message_extended(&key, &nonce, &aad, &mut out));
        prop_assert_eq!(&out[..text.len()], &text[..]);

        let short: [u8; 12] = *nonce.first_chunk().unwrap();
        seal_message(&key, &short, &aad, &mut out);
        let other = ChaCha20Poly1305::new(&key.into());
        prop_assert_eq!(&out, &other.encrypt(&short.into(), payload()).unwrap());
        prop_assert!(open_message(&key, &short, &aad, &mut out));
        prop_assert_eq!(&out[..text.len()], &text[..]);
    }

    #[test]
    fn a_changed_bit_is_found_and_nothing_is_written(
        text in proptest::collection::vec(any::<u8>(), 0..80),
        at: prop::sample::Index,
        bit in 0..8_u32,
    ) {
        let (key, nonce) = ([1; 32], [2; 24]);
        // The text, its tag and additional data in a row, of which one bit is changed.
        let mut out = [&text[..], &[0; TAG_LEN]].concat();
        seal_message_extended(&key, &nonce, &[3; 8], &mut out);
        out.extend([3; 8]);
        out[at.index(text.len() + TAG_LEN + 8)] ^= 1_u8 << bit;
        let before = out.clone();
        let (sealed, aad) = out.split_at_mut(text.len() + TAG_LEN);
        prop_assert!(!open_message_extended(&key, &nonce, aad, sealed));
        prop_assert_eq!(out, before);
    }
}

#[test]
fn what_is_shorter_than_a_tag_is_not_authentic() {
    for len in 0..TAG_LEN {
        assert!(!open_message(
            &[1; 32],
            &[2; 12],
            &[],
            &mut [0; TAG_LEN][..len]
        ));
    }
}
