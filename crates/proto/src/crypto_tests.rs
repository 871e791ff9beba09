use super::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_kdf_is_hkdf_with_hmac_of_blake2s() {
    // Computed with Python's hmac and hashlib.
    let mut key = [0; 32];
    key[..8].copy_from_slice(b"test-key"); // HMAC pads keys with zeros anyway
    let outputs: [Zeroized; 3] = kdf(&key, b"test-input");
    assert_eq!(
        outputs.each_ref().map(|output| hex(&**output)),
        [
            "6f0e5ad38daba1bea8a0d213688736f19763239305e0f58aba697f9ffc41c633",
            "df1194df20802a4fe594cde27e92991c8cae66c366e8106aaa937a55fa371e8a",
            "fac6e2745a325f5dc5d11a5b165aad08b0ada28e7b4e666b7c077934a4d76c24",
        ]
    );
    let key = std::array::from_fn(|i| u8::try_from(i).unwrap());
    let outputs: [Zeroized; 3] = kdf(&key, b"");
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
