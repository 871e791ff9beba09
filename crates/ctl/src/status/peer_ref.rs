//! A peer whose texts stay where they were read: for programs that look often, at many.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer};

use super::{AllowanceJson, PeerJson};
use crate::text::printable;

/// The fields of a [`PeerJson`] that such programs show.
#[derive(Debug, Deserialize)]
pub struct PeerRef<'a> {
    /// See [`PeerJson::public_key`], and so on.
    #[serde(borrow)]
    pub public_key: PrintableText<'a>,
    /// What people call it.
    pub name: Option<PrintableText<'a>>,
    /// Where it is reached.
    pub endpoint: Option<PrintableText<'a>>,
    /// Its blocks of addresses.
    pub allowed_ips: Vec<PrintableText<'a>>,
    /// Seconds since the Unix epoch.
    pub latest_handshake: Option<u64>,
    /// Whether it is there.
    pub state: Option<PrintableText<'a>>,
    /// Seconds since the Unix epoch.
    pub last_attempt: Option<u64>,
    /// Initiations.
    pub unanswered: Option<u32>,
    /// The last handshake that failed.
    pub last_failure: Option<FailureRef<'a>>,
    /// From an initiation to its answer.
    pub handshake_microseconds: Option<u64>,
    /// Bytes.
    pub path_mtu: Option<u16>,
    /// What it may do.
    pub allowance: Option<AllowanceJson>,
    /// Bytes received.
    pub transfer_rx: u64,
    /// Bytes sent.
    pub transfer_tx: u64,
    /// Packets by reason.
    #[serde(default)]
    pub drops: BTreeMap<PrintableText<'a>, u64>,
}

/// A [`FailureJson`](super::FailureJson).
#[derive(Debug, Deserialize)]
pub struct FailureRef<'a> {
    /// Seconds since the Unix epoch.
    pub at: u64,
    /// Its name.
    #[serde(borrow)]
    pub reason: PrintableText<'a>,
}

/// A text that can be printed, whatever was read.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PrintableText<'a>(pub Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for PrintableText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;

        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Cow<'de, str>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(printable(text))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(printable(text).into_owned().into())
            }
        }

        deserializer.deserialize_str(TextVisitor).map(Self)
    }
}

impl std::ops::Deref for PrintableText<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'a> From<&'a String> for PrintableText<'a> {
    fn from(text: &'a String) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl<'a> From<&'a PeerJson> for PeerRef<'a> {
    fn from(peer: &'a PeerJson) -> Self {
        let failure = peer.last_failure.as_ref();
        let drops = peer.drops.iter();
        Self {
            public_key: (&peer.public_key).into(),
            name: peer.name.as_ref().map(PrintableText::from),
            endpoint: peer.endpoint.as_ref().map(PrintableText::from),
            allowed_ips: peer.allowed_ips.iter().map(PrintableText::from).collect(),
            latest_handshake: peer.latest_handshake,
            state: peer.state.as_ref().map(PrintableText::from),
            last_attempt: peer.last_attempt,
            unanswered: peer.unanswered,
            last_failure: failure.map(|failure| FailureRef {
                at: failure.at,
                reason: (&failure.reason).into(),
            }),
            handshake_microseconds: peer.handshake_microseconds,
            path_mtu: peer.path_mtu,
            allowance: peer.allowance.clone(),
            transfer_rx: peer.transfer_rx,
            transfer_tx: peer.transfer_tx,
            drops: drops
                .map(|(reason, count)| (reason.into(), *count))
                .collect(),
        }
    }
}
