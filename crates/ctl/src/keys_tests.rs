use super::*;

#[test]
fn keys_go_to_text_and_back() {
    let key = generate_preshared(|bytes| bytes.fill(0x77));
    let base64 = to_base64(key.bytes());
    assert_eq!(*base64, "d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3c=");
    assert_eq!(from_base64(&base64), Some(key.clone()));
    assert_eq!(*to_hex(key.bytes()), "77".repeat(32));
    assert_eq!(from_hex("77".repeat(32).as_bytes()), Some(key));
    assert_eq!(
        from_hex("AbcdeF01".repeat(8).as_bytes()),
        from_hex("aBCDEf01".repeat(8).as_bytes())
    );
}

#[test]
fn a_public_key_prints_itself_in_base64() {
    let mut dice = 1_u64;
    for _ in 0..1000 {
        let mut key = PublicKey([0; 32]);
        for byte in &mut key.0 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = dice.to_be_bytes()[0];
        }
        assert_eq!(key.to_string(), *to_base64(&key.0));
    }
}

#[test]
fn what_is_no_key_is_refused() {
    let base64 = to_base64(&[0x77; 32]);
    for wrong in [
        "",
        "=",
        &base64[..43],
        &base64[1..],
        &format!("{}=", *base64),
    ] {
        assert_eq!(from_base64(wrong), None, "{wrong}");
    }
    // 43 digits of which the last leaves bits over.
    assert_eq!(from_base64(&format!("{}B=", "A".repeat(42))), None);
    assert_eq!(from_base64(&"é".repeat(22)), None);
    for wrong in ["", "0", &"0".repeat(63), &"0".repeat(65), &"0g".repeat(32)] {
        assert_eq!(from_hex(wrong.as_bytes()), None, "{wrong}");
    }
}

/// `wg pubkey` says the same.
#[test]
fn public_keys_are_those_of_wg() {
    let private = generate_private(|bytes| bytes.fill(0x77));
    assert_eq!((private.bytes()[0], private.bytes()[31]), (0x70, 0x77));
    let expected = public_from_base64("HPV5q6RaELodHvBtkfyiqp7QoRUFFWUxVUBdCxjLmmc=");
    assert_eq!(Some(private.public_key()), expected);
    assert_eq!(Some(Secret::new(&[0x77; 32]).public_key()), expected);
}
