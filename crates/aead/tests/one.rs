//! One packet at a time, by every kernel, against an independent library.

use adit_aead::{Kernel, Key, TAG_LEN};
use chacha20poly1305::aead::{Aead, KeyInit};
use chacha20poly1305::{ChaCha20Poly1305, Nonce};

const KEY: [u8; 32] = *b"the key of these tests, 32 bytes";

fn text(counter: u64, len: usize) -> Vec<u8> {
    let bytes = (counter.to_le_bytes()[0]..=255).cycle();
    bytes.step_by(3).take(len).collect()
}

/// Text and tag, as the library makes them.
fn sealed(counter: u64, len: usize) -> Vec<u8> {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&counter.to_le_bytes());
    let library = ChaCha20Poly1305::new(&KEY.into());
    let sealed = library.encrypt(&Nonce::from(nonce), &text(counter, len)[..]);
    sealed.expect("a short text")
}

/// The kernels that can be chosen, and every kernel without the library's help.
fn kernels() -> impl Iterator<Item = Kernel> {
    Kernel::available().flat_map(|kernel| [kernel, kernel.unmixed()])
}

/// Lengths around what decides between ways, and 64 and 1420 bytes.
fn lens() -> impl Iterator<Item = usize> {
    let some = [
        128, 447, 448, 449, 512, 513, 960, 961, 1420, 1472, 1983, 1984, 1985, 4000,
    ];
    (0..70).chain(some)
}

/// In order, then ahead, late, and at the end of all numbers.
fn counters() -> impl Iterator<Item = u64> {
    let jumps = [
        12,
        10,
        11,
        40,
        39,
        (1 << 32) - 1,
        1 << 32,
        u64::MAX - 2,
        u64::MAX,
        20,
    ];
    (0..9).chain(jumps)
}

#[test]
fn packets_are_sealed_as_the_library_seals_them_whatever_their_order() {
    for kernel in kernels() {
        for len in lens() {
            let key = Key::new(&KEY);
            for counter in counters() {
                let mut out = [&text(counter, len)[..], &[0; TAG_LEN]].concat();
                kernel.seal_one(&key, counter, &mut out);
                let name = kernel.name();
                assert!(
                    out == sealed(counter, len),
                    "{name}: {len} bytes, {counter}"
                );
            }
        }
    }
}

#[test]
fn packets_open_in_any_order_and_forgeries_do_not() {
    for kernel in kernels() {
        for len in lens() {
            let key = Key::new(&KEY);
            for counter in counters() {
                let (name, sealed) = (kernel.name(), sealed(counter, len));
                for at in [0, len / 2, len, len + TAG_LEN - 1] {
                    let mut forged = sealed.clone();
                    forged[at] ^= 1;
                    let before = forged.clone();
                    assert!(!kernel.open_one(&key, counter, &mut forged));
                    // Nothing of the plaintext: what was there before, or zeros.
                    let mut bytes = forged.iter().zip(&before);
                    let is_left = bytes.all(|(is, was)| is == was || *is == 0);
                    assert!(is_left, "{name}: {len} bytes, {counter}");
                }
                let mut opened = sealed;
                assert!(
                    kernel.open_one(&key, counter, &mut opened),
                    "{name}: {len} bytes"
                );
                assert!(opened[..len] == text(counter, len), "{name}: {len} bytes");
            }
        }
    }
}

#[test]
fn a_text_that_is_shorter_than_a_tag_is_not_authentic() {
    for kernel in kernels() {
        for len in 0..TAG_LEN {
            assert!(!kernel.open_one(&Key::new(&KEY), 0, &mut vec![0; len]));
        }
    }
}

#[test]
fn threads_that_share_a_key_seal_and_open_alike() {
    let key = Key::new(&KEY);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let key = &key;
            scope.spawn(move || {
                for counter in (thread..4000).step_by(4) {
                    let mut out = [&text(counter, 64)[..], &[0; TAG_LEN]].concat();
                    adit_aead::seal_one(key, counter, &mut out);
                    assert!(out == sealed(counter, 64), "{counter}");
                    assert!(adit_aead::open_one(key, counter, &mut out), "{counter}");
                }
            });
        }
    });
}
