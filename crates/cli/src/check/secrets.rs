//! Secrets in the wrong places, and endpoints of examples.

use adit_ctl::config::{Config, PeerSection};
use adit_ctl::keys;
use adit_proto::config::Secret;

use super::parts::{CheckFinding, Severity, name};

/// A key of the interface in the wrong place.
pub(super) fn own_secrets(config: &Config, found: &mut Vec<CheckFinding>) {
    let Some(private) = config.interface.private_key.as_ref() else {
        return;
    };
    if !private.is_zero() && !keys::is_clamped(private.bytes()) {
        found.push((
            Severity::Hint,
            "PrivateKey has not the form that `adit genkey` gives it: it may be a public or a preshared key".into(),
        ));
    }
}

/// A secret of the peer with this number in the wrong place. It is never printed.
pub(super) fn secrets(
    config: &Config,
    n: usize,
    peer: &PeerSection,
    found: &mut Vec<CheckFinding>,
) {
    let mut warn = |text: &str| {
        let called = peer
            .name
            .as_ref()
            .map_or(String::new(), |name| format!(", {name}"));
        found.push((
            Severity::Warning,
            format!("[Peer] number {n}{called}: {text}"),
        ));
    };
    let same = |key: &Option<Secret>| {
        key.as_ref()
            .is_some_and(|key| *key == Secret::new(&peer.public_key.0))
    };
    if config.peers.iter().any(|other| same(&other.preshared_key)) {
        warn(
            "its PublicKey is a PresharedKey of this file, which is secret: put the peer's public key there",
        );
    } else if !keys::is_public(&peer.public_key) {
        warn(match keys::is_clamped(&peer.public_key.0) {
            true => {
                "its PublicKey is a private key, which is secret: `adit pubkey` makes the public key of it, and as others \
                 may have seen this one, a new one from `adit genkey` is better"
            }
            false => {
                "its PublicKey is no public key, so that no peer can answer: it is mistyped, or a preshared or private key"
            }
        });
    }
    let preshared = peer.preshared_key.as_ref().filter(|key| !key.is_zero());
    if preshared.is_some() && preshared == config.interface.private_key.as_ref() {
        warn(
            "its PresharedKey is the PrivateKey of this interface, which no peer should have: `adit genpsk` makes one",
        );
    }
}

/// An endpoint that an example has.
pub(super) fn placeholder(config: &Config, peer: &PeerSection, found: &mut Vec<CheckFinding>) {
    let Some(endpoint) = &peer.endpoint else {
        return;
    };
    let host = endpoint.host.to_ascii_lowercase();
    let words = [
        "your",
        "server_ip",
        "server-ip",
        "serverip",
        "public_ip",
        "public-ip",
        "x.x.x.x",
    ];
    if endpoint.numeric().is_none() && words.iter().any(|word| host.starts_with(word)) {
        found.push((
            Severity::Warning,
            format!("{}: its Endpoint {endpoint} looks like an example's: put the peer's host in its place", name(config, &peer.public_key)),
        ));
    }
}
