//! Whose an initiation is, for a program that has a tunnel for each peer.

use adit_proto::config::{PublicKey, Secret};
use zeroize::Zeroizing;

use crate::noise::errors::WireGuardError;
use crate::noise::packet::HandshakeInit;
use crate::x25519;

/// What an initiation shows of its sender. Nothing of it is proven.
pub struct HalfHandshake {
    /// The index that the sender chose.
    pub peer_index: u32,
    /// Its static public key.
    pub peer_static_public: [u8; 32],
}

/// Reads who an initiation says that it is of.
///
/// # Errors
///
/// [`WireGuardError::InvalidAeadTag`]: it is no initiation to us.
pub fn parse_handshake_anon(
    static_private: &x25519::StaticSecret,
    static_public: &x25519::PublicKey,
    packet: &HandshakeInit<'_>,
) -> Result<HalfHandshake, WireGuardError> {
    let secret = Secret::new(&Zeroizing::new(static_private.to_bytes()));
    let public = PublicKey(static_public.to_bytes());
    let shown = adit_proto::shown_key((&secret, &public), packet.message);
    let shown = shown.ok_or(WireGuardError::InvalidAeadTag)?;
    Ok(HalfHandshake {
        peer_index: packet.sender_idx,
        peer_static_public: shown.0,
    })
}
