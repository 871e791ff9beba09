//! Keys as text, as boringtun reads them: 64 hexadecimal digits, or base64 with or without its last character.

use base64ct::{Base64, Base64Unpadded, Encoding};
use zeroize::Zeroizing;

/// A key of any kind; `None` if the text is none.
pub(crate) fn parse(text: &str) -> Option<Zeroizing<[u8; 32]>> {
    let mut key = Zeroizing::new([0; 32]);
    let len = match text.len() {
        64 => base16ct::mixed::decode(text, &mut *key).ok()?.len(),
        44 => Base64::decode(text, &mut *key).ok()?.len(),
        43 => Base64Unpadded::decode(text, &mut *key).ok()?.len(),
        _ => return None,
    };
    (len == key.len()).then_some(key)
}

pub(crate) fn to_base64(key: &[u8; 32]) -> String {
    Base64::encode_string(key)
}

pub(crate) fn to_hex(key: &[u8; 32]) -> String {
    base16ct::lower::encode_string(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_in_each_form_and_nothing_else_is_one() {
        let key = [0xa7; 32];
        let base64 = to_base64(&key);
        for text in [
            &*to_hex(&key),
            &to_hex(&key).to_uppercase(),
            &base64,
            &base64[..43],
        ] {
            assert_eq!(parse(text).as_deref(), Some(&key), "{text}");
        }
        for text in [
            "",
            "a7",
            &base64[..42],
            &format!("{base64}="),
            &"g".repeat(64),
            &"=".repeat(44),
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
