//! What the API of the library may not have: what could not change later.

use super::items::is_non_exhaustive;
use super::line::{ApiLine, Leak};
use super::rustdoc::{RustdocJson, inner, list};

/// What an item may be or have nevertheless.
pub(super) struct Exception {
    /// The path of the item.
    pub(super) at: &'static str,
    /// The type of another crate in it, or [`CLOSED`].
    pub(super) what: &'static str,
    #[expect(dead_code, reason = "for whoever reads the list")]
    pub(super) reason: &'static str,
}

/// An enum that gets no more variants, a struct that gets no more fields.
pub(super) const CLOSED: &str = "not #[non_exhaustive]";

const ZEROIZED: &str =
    "Text or bytes with keys, which are zeroized when dropped. Version 1 of zeroize is stable.";

const TOKIO: &str = "The feature `tokio` is for its traits. Version 1 of tokio is stable.";

/// Where the exceptions stand.
const LIST: &str = "crates/supply/src/api/rules.rs";

pub(super) const EXCEPTIONS: &[Exception] = &[
    Exception {
        at: "adit::HandOver::from_parts",
        what: "zeroize::Zeroizing",
        reason: ZEROIZED,
    },
    Exception {
        at: "adit::HandOver::into_parts",
        what: "zeroize::Zeroizing",
        reason: ZEROIZED,
    },
    Exception {
        at: "adit::PrivateKey::to_base64",
        what: "zeroize::Zeroizing",
        reason: ZEROIZED,
    },
    Exception {
        at: "adit::net::AsyncTcpStream",
        what: "tokio::io::async_read::AsyncRead",
        reason: TOKIO,
    },
    Exception {
        at: "adit::net::AsyncTcpStream",
        what: "tokio::io::async_write::AsyncWrite",
        reason: TOKIO,
    },
    Exception {
        at: "adit::Gso",
        what: CLOSED,
        reason: "Callers write it as a literal: how a packet is cut takes a kind and a length.",
    },
    Exception {
        at: "adit::sans_io::LocalAddr",
        what: CLOSED,
        reason: "Callers write it as a literal: what IP_PKTINFO says, an address and an interface.",
    },
    Exception {
        at: "adit::sans_io::PacketRef",
        what: CLOSED,
        reason: "Callers write it as a literal: the bytes of a packet and how it is cut.",
    },
];

/// Signatures with types that are not std's or the library's, and types that may not grow. An exception
/// that nothing needs is a mistake, too.
pub(super) fn mistakes(
    document: &RustdocJson<'_>,
    lines: &[ApiLine],
    exceptions: &[Exception],
) -> Vec<String> {
    let mut wrong: Vec<(&str, &str, String)> = Vec::new();
    for line in lines {
        for leak in &line.leaks {
            wrong.push((&line.path, &leak.name, leak.mistake(line)));
        }
    }
    for (id, paths) in document.visible() {
        let item = document.item(id);
        let (kind, inner) = inner(item);
        let what = match kind {
            "enum" => "an enum",
            "struct" if has_public_field(&inner["kind"]) => "a struct with public fields",
            _ => continue,
        };
        if let Some(path) = paths.first().filter(|_| !is_non_exhaustive(item)) {
            let mistake = format!(
                "{path}: {what} without #[non_exhaustive] can never get more: add the attribute, or an exception \
                 with its reason to {LIST}"
            );
            wrong.push((path, CLOSED, mistake));
        }
    }
    let matches = |exception: &Exception, (at, what, _): &(&str, &str, String)| {
        exception.at == *at && exception.what == *what
    };
    let stale = exceptions
        .iter()
        .filter(|exception| !wrong.iter().any(|mistake| matches(exception, mistake)));
    let stale = stale.map(|Exception { at, what, .. }| {
        format!("{at}: nothing needs its exception any more ({what}): remove it from {LIST}")
    });
    let refused = wrong
        .iter()
        .filter(|mistake| !exceptions.iter().any(|one| matches(one, mistake)));
    let refused = refused.map(|(_, _, mistake)| mistake.clone());
    refused.chain(stale).collect()
}

fn has_public_field(kind: &serde_json::Value) -> bool {
    let fields = kind.get("tuple").unwrap_or(&kind["plain"]["fields"]);
    list(fields).any(|field| !field.is_null())
}

impl Leak {
    fn mistake(&self, line: &ApiLine) -> String {
        let Self { name, of } = self;
        let why = match of {
            Some(of) => format!(
                "is of the crate {of}, and a new version of that would break users of adit: take a type of adit or std"
            ),
            None => {
                "is in a signature, but no user can name it: make it public or take another".into()
            }
        };
        format!("{}: {name} {why} ({})", line.path, line.text)
    }
}
