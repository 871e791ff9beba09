//! What a client has to give, compared in time that does not depend on where it differs.

use std::hint::black_box;

use zeroize::Zeroizing;

use super::http;
use crate::config::Credentials;

/// A name and a password, as clients of SOCKS and of HTTP say them.
pub(crate) struct LoginCheck {
    credentials: Credentials,
    basic: Zeroizing<String>,
}

impl LoginCheck {
    pub(crate) fn new(credentials: &Credentials) -> Self {
        Self {
            credentials: credentials.clone(),
            basic: Zeroizing::new(http::basic(credentials)),
        }
    }

    pub(crate) fn user(&self) -> &[u8] {
        self.credentials.user.as_bytes()
    }

    pub(crate) fn password(&self) -> &[u8] {
        self.credentials.password.as_bytes()
    }

    /// Whether this is the value of Proxy-Authorization. The name of the scheme may have capitals.
    pub(crate) fn is_basic(&self, value: &[u8]) -> bool {
        let (Some(scheme), Some(said)) = (value.get(..6), value.get(6..)) else {
            return false;
        };
        let right = &self.basic.as_bytes()[6..];
        scheme.eq_ignore_ascii_case(b"basic ") && is_same(said.trim_ascii_start(), right)
    }
}

/// Whether bytes are the right ones. Only their length shows in the time that it takes.
pub(crate) fn is_same(said: &[u8], right: &[u8]) -> bool {
    if said.len() != right.len() {
        return false;
    }
    let differences = said
        .iter()
        .zip(right)
        .fold(0, |all, (a, b)| all | black_box(a ^ b));
    black_box(differences) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_gives_is_right_as_a_whole_only() {
        assert!(is_same(b"", b"") && is_same(b"secret", b"secret"));
        for wrong in [&b"secreT"[..], b"Secret", b"secre", b"secret1", b""] {
            assert!(!is_same(wrong, b"secret"));
        }
        let credentials = Credentials {
            user: "Aladdin".into(),
            password: Zeroizing::new("open sesame".into()),
        };
        // The example of RFC 7617 §2.
        let check = LoginCheck::new(&credentials);
        assert!(check.is_basic(b"Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="));
        assert!(check.is_basic(b"bAsIc  QWxhZGRpbjpvcGVuIHNlc2FtZQ=="));
        for wrong in [
            "Basic",
            "Basic ",
            "Digest QWxhZGRpbjpvcGVuIHNlc2FtZQ==",
            "Basic QWxhZGRpbjpvcGVuIHNlc2FtZR==",
        ] {
            assert!(!check.is_basic(wrong.as_bytes()), "{wrong}");
        }
    }
}
