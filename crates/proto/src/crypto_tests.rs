use proptest::prelude::*;

use super::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_kdf_is_hkdf_with_hmac_of_blake2s() {
    // Computed with Python's hmac and hashlib.
    let mut key = [0; 32];
    key[..8].copy_from_slice(b"test-key"); // HMAC pads keys with zeros anyway
    let outputs: [Zeroized32; 3] = kdf(&key, b"test-input");
    assert_eq!(
        outputs.each_ref().map(|output| hex(&**output)),
        [
            "6f0e5ad38daba1bea8a0d213688736f19763239305e0f58aba697f9ffc41c633",
            "df1194df20802a4fe594cde27e92991c8cae66c366e8106aaa937a55fa371e8a",
            "fac6e2745a325f5dc5d11a5b165aad08b0ada28e7b4e666b7c077934a4d76c24",
        ]
    );
    let key = std::array::from_fn(|i| u8::try_from(i).unwrap());
    let outputs: [Zeroized32; 3] = kdf(&key, b"");
    assert_eq!(
        outputs.each_ref().map(|output| hex(&**output)),
        [
            "7a38c34bf2b8738d7374ca77c44ecb309a11d2b2528304fa86052c365e722624",
            "1a17621f346abdc520746a9fb64d8eb03231d674fc15687537b0780fd9c060fd",
            "4eaf02809ac4b930ef63479de62275f1c55656e61f78a3cc653c18a2223d6c5f",
        ]
    );
}

#[test]
fn a_mac_is_keyed_blake2s_and_no_hmac() {
    let data: Vec<u8> = (0..100).collect();
    let key: Vec<u8> = (0..32).collect();
    assert_eq!(
        hex(&mac(&key, &[&data])),
        "0b67d33f8b859c3157fbabd9e6e47ed0"
    );
    assert_eq!(
        hex(&mac(&key[..16], &[&data[..7], &data[7..]])),
        "56301549e674c3b72a0e1dafb7a2c620"
    );
}

/// Curve25519 as this CPU computes it and as every CPU can.
fn curve25519(secret: [u8; 32], public: [u8; 32]) -> [Option<[u8; 32]>; 2] {
    [
        dh(&Secret::new(&secret), &public).map(|shared| *shared),
        portable::dh(&secret, &public).map(|shared| *shared),
    ]
}

#[test]
fn curve25519_gives_the_results_of_rfc_7748() {
    // 5.2: the first vector, and the first iteration.
    let results = curve25519(
        *b"\xa5\x46\xe3\x6b\xf0\x52\x7c\x9d\x3b\x16\x15\x4b\x82\x46\x5e\xdd\
           \x62\x14\x4c\x0a\xc1\xfc\x5a\x18\x50\x6a\x22\x44\xba\x44\x9a\xc4",
        *b"\xe6\xdb\x68\x67\x58\x30\x30\xdb\x35\x94\xc1\xa4\x24\xb1\x5f\x7c\
           \x72\x66\x24\xec\x26\xb3\x35\x3b\x10\xa9\x03\xa6\xd0\xab\x1c\x4c",
    );
    let expected = "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552";
    assert_eq!(results.map(|it| hex(&it.unwrap())), [expected; 2]);

    let mut nine = [0; 32];
    nine[0] = 9;
    let expected = "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079";
    for public in [public_key(&nine), portable::public_key(&nine)] {
        assert_eq!(hex(&public), expected);
    }
    assert_eq!(
        curve25519(nine, nine).map(|it| hex(&it.unwrap())),
        [expected; 2]
    );
}

/// Any 32 bytes, and those around 0, the prime 2^255 - 19 and 2^255, of which some have low order.
fn point() -> impl Strategy<Value = [u8; 32]> {
    let near = |last: u8, fill: u8| {
        any::<u8>().prop_map(move |first| {
            let mut point = [fill; 32];
            (point[0], point[31]) = (first, last);
            point
        })
    };
    prop_oneof![
        any::<[u8; 32]>(),
        near(0, 0),
        near(0x80, 0),
        near(0x7f, 0xff),
        near(0xff, 0xff),
    ]
}

proptest! {
    #[test]
    fn curve25519_is_the_same_on_every_cpu(secret: [u8; 32], public in point()) {
        let [here, anywhere] = curve25519(secret, public);
        prop_assert_eq!(here, anywhere);
        prop_assert_eq!(public_key(&secret), portable::public_key(&secret));
    }
}

#[test]
fn a_public_key_of_low_order_gives_no_secret() {
    let prime = {
        let mut prime = [0xff; 32];
        (prime[0], prime[31]) = (0xed, 0x7f);
        prime
    };
    let add = |point: [u8; 32], number: i16| {
        let mut point = point;
        point[0] = u8::try_from(i16::from(point[0]) + number).unwrap();
        point
    };
    // 0, 1, -1, and the first two again, unreduced.
    for public in [
        [0; 32],
        add([0; 32], 1),
        add(prime, -1),
        prime,
        add(prime, 1),
    ] {
        assert_eq!(curve25519([0x55; 32], public), [None, None]);
    }
}
