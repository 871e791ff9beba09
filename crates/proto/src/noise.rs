//! The handshake: Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s (whitepaper 5.4).
//!
//! Two messages, four verbs, and [`Handshake::begin_session`]. The tokens of the Noise pattern
//! stand as comments above the lines that obey them:
//!
//! ```text
//! <- s
//! ...
//! -> e, es, s, ss, {t}
//! <- e, ee, se, psk, {}
//! ```
//!
//! Each verb works in [`zeroizing_stack`]: what is left of it is what it returns, whose secrets
//! stand on the heap.

use std::cell::RefCell;
use std::sync::Arc;

use adit_aead::Key;

use crate::crypto::{Zeroized32, dh, hash, kdf, open, public_key, seal, zeroizing_stack};
use crate::secret::{PublicKey, Secret};
use crate::session::{Session, SessionEnds};
use crate::wire::{INITIATION_LEN, Initiation, ParsedMessage, RESPONSE_LEN, Response};
use crate::{Tai64N, Time};

const CONSTRUCTION: &[u8] = b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
const IDENTIFIER: &[u8] = b"WireGuard v1 zx2c4 Jason@zx2c4.com";

/// Our static key pair.
pub(crate) struct Identity {
    pub(crate) secret: Secret,
    pub(crate) public: PublicKey,
    /// Another one for each identity that the device ever had.
    number: u32,
}

impl Identity {
    pub(crate) fn new(secret: Secret, number: u32) -> Self {
        let public = secret.public_key();
        Self {
            secret,
            public,
            number,
        }
    }
}

/// The keys of a peer that the handshake has to know.
pub(crate) struct Remote {
    pub(crate) public: PublicKey,
    /// DH of both static keys, made for the first handshake and kept for all others: a change of
    /// configuration with a million peers would take a minute with it. With it stands the number of
    /// the identity that it was made with. Its secret is `None` for a public key of low order.
    static_static: RefCell<Option<(u32, Option<Secret>)>>,
    /// Zero if there is none.
    pub(crate) preshared_key: Secret,
}

impl Remote {
    pub(crate) fn new(public: PublicKey) -> Self {
        Self {
            public,
            static_static: RefCell::default(),
            preshared_key: Secret::zero(),
        }
    }

    /// What was made with an identity that was replaced meanwhile is made again.
    fn static_static(&self, local: &Identity) -> Option<Secret> {
        let mut kept = self.static_static.borrow_mut();
        if kept
            .as_ref()
            .is_none_or(|(number, _)| *number != local.number)
        {
            let shared = dh(&local.secret, &self.public.0).map(|shared| Secret::new(&shared));
            *kept = Some((local.number, shared));
        }
        kept.as_ref().and_then(|(_, shared)| shared.clone())
    }

    /// Our own key is another now.
    pub(crate) fn forget_static_static(&mut self) {
        *self.static_static.get_mut() = None;
    }
}

/// The chaining key and hash of a handshake under way.
#[derive(Clone)]
pub(crate) struct Handshake {
    chaining_key: Secret,
    hash: [u8; 32],
}

/// An initiation that was sent and may be answered once.
pub(crate) struct CreatedInitiation {
    pub(crate) index: u32,
    ephemeral: Secret,
    handshake: Handshake,
}

impl CreatedInitiation {
    /// The chaining key, the hash and the ephemeral key.
    pub(crate) fn parts(&self) -> (&Secret, &[u8; 32], &Secret) {
        let Handshake { chaining_key, hash } = &self.handshake;
        (chaining_key, hash, &self.ephemeral)
    }

    /// Of an initiation that another process sent.
    pub(crate) fn from_parts(
        index: u32,
        (chaining_key, hash, ephemeral): (Secret, [u8; 32], Secret),
    ) -> Self {
        let handshake = Handshake { chaining_key, hash };
        Self {
            index,
            ephemeral,
            handshake,
        }
    }
}

/// An authentic initiation of a peer.
pub(crate) struct ConsumedInitiation {
    pub(crate) timestamp: Tai64N,
    sender: u32,
    ephemeral: [u8; 32],
    handshake: Handshake,
}

/// Why an initiation was not consumed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reject {
    NotAuthentic,
    /// No peer has the static key that the sender shows.
    UnknownPeer(PublicKey),
}

/// `None` if a public key of low order makes the secret no secret: then nothing may be sent.
pub(crate) fn create_initiation(
    local: &Identity,
    remote: &Remote,
    index: u32,
    timestamp: Tai64N,
    ephemeral: Secret,
) -> Option<(CreatedInitiation, [u8; INITIATION_LEN])> {
    zeroizing_stack(|| {
        let mut handshake = Handshake::with_responder(&remote.public);

        // e
        let public = public_key(ephemeral.bytes());
        handshake.mix_ephemeral(&public);
        // es
        let key = handshake.mix_key(&*dh(&ephemeral, &remote.public.0)?);
        // s
        let static_key: [u8; 48] = handshake.seal(&key, &local.public.0);
        // ss
        let key = handshake.mix_key(remote.static_static(local)?.bytes());
        // {t}
        let timestamp: [u8; 28] = handshake.seal(&key, &timestamp.0);

        let message = Initiation::write(index, &public, &static_key, &timestamp);
        let created = CreatedInitiation {
            index,
            ephemeral,
            handshake,
        };
        Some((created, message))
    })
}

/// `find` looks up the peer that the message claims to come from; the claim is proven when this
/// returns `Ok`.
pub(crate) fn consume_initiation<'a>(
    local: &Identity,
    message: Initiation<'_>,
    find: impl FnOnce(&PublicKey) -> Option<&'a Remote>,
) -> Result<(PublicKey, ConsumedInitiation), Reject> {
    zeroizing_stack(|| {
        let mut handshake = Handshake::with_responder(&local.public);
        let ephemeral = *message.ephemeral();

        // e
        handshake.mix_ephemeral(&ephemeral);
        // es
        let shared = dh(&local.secret, &ephemeral).ok_or(Reject::NotAuthentic)?;
        let key = handshake.mix_key(&*shared);
        // s
        let public = handshake
            .open(&key, message.static_key())
            .ok_or(Reject::NotAuthentic)?;
        let public = PublicKey(public);
        let remote = find(&public).ok_or(Reject::UnknownPeer(public))?;
        // ss
        let shared = remote.static_static(local).ok_or(Reject::NotAuthentic)?;
        let key = handshake.mix_key(shared.bytes());
        // {t}
        let timestamp = handshake
            .open(&key, message.timestamp())
            .ok_or(Reject::NotAuthentic)?;

        let consumed = ConsumedInitiation {
            timestamp: Tai64N(timestamp),
            sender: message.sender(),
            ephemeral,
            handshake,
        };
        Ok((public, consumed))
    })
}

/// The static key that an initiation to us shows; `None` if it is no initiation to us. For a program with a device
/// for each peer, which looks for the one that the message is for: nothing proves yet that it is of that peer.
pub fn shown_key(ours: (&Secret, &PublicKey), datagram: &[u8]) -> Option<PublicKey> {
    let Some(ParsedMessage::Initiation(message)) = ParsedMessage::parse(datagram) else {
        return None;
    };
    let local = Identity {
        secret: ours.0.clone(),
        public: *ours.1,
        number: 0,
    };
    match consume_initiation(&local, message, |_| None) {
        Err(Reject::UnknownPeer(shown)) => Some(shown),
        _ => None,
    }
}

/// The response, and the session that the initiator has yet to confirm; `None` for a public key of
/// low order.
pub(crate) fn create_response(
    consumed: ConsumedInitiation,
    remote: &Remote,
    index: u32,
    ephemeral: &Secret,
    now: Time,
) -> Option<(Arc<Session>, [u8; RESPONSE_LEN])> {
    zeroizing_stack(|| {
        let mut handshake = consumed.handshake;

        // e
        let public = public_key(ephemeral.bytes());
        handshake.mix_ephemeral(&public);
        // ee
        handshake.mix(&*dh(ephemeral, &consumed.ephemeral)?);
        // se
        handshake.mix(&*dh(ephemeral, &remote.public.0)?);
        // psk
        let key = handshake.mix_psk(&remote.preshared_key);
        // {}
        let empty: [u8; 16] = handshake.seal(&key, &[]);

        let message = Response::write(index, consumed.sender, &public, &empty);
        let session = handshake.begin_session(index, consumed.sender, false, now);
        Some((session, message))
    })
}

/// The session, if the response answers this initiation. The initiation stays as it was: the caller
/// drops it, so that a response is consumed at most once.
pub(crate) fn consume_response(
    local: &Identity,
    remote: &Remote,
    created: &CreatedInitiation,
    message: Response<'_>,
    now: Time,
) -> Option<Arc<Session>> {
    zeroizing_stack(|| {
        let mut handshake = created.handshake.clone();

        // e
        handshake.mix_ephemeral(message.ephemeral());
        // ee
        handshake.mix(&*dh(&created.ephemeral, message.ephemeral())?);
        // se
        handshake.mix(&*dh(&local.secret, message.ephemeral())?);
        // psk
        let key = handshake.mix_psk(&remote.preshared_key);
        // {}
        let _: [u8; 0] = handshake.open(&key, message.empty())?;

        Some(handshake.begin_session(created.index, message.sender(), true, now))
    })
}

impl Handshake {
    /// The state after "<- s": both sides know the responder's static key.
    fn with_responder(public: &PublicKey) -> Self {
        let chaining_key = hash(&[CONSTRUCTION]);
        let identified = hash(&[&chaining_key, IDENTIFIER]);
        Self {
            chaining_key: Secret::new(&chaining_key),
            hash: hash(&[&identified, &public.0]),
        }
    }

    fn mix_ephemeral(&mut self, public: &[u8; 32]) {
        self.mix(public);
        self.mix_hash(public);
    }

    fn mix_hash(&mut self, data: &[u8]) {
        self.hash = hash(&[&self.hash, data]);
    }

    /// C := KDF1(C, input).
    fn mix(&mut self, input: &[u8]) {
        let [chaining_key] = kdf(self.chaining_key.bytes(), input);
        self.chaining_key
            .bytes_mut()
            .copy_from_slice(&*chaining_key);
    }

    /// (C, κ) := KDF2(C, input).
    fn mix_key(&mut self, input: &[u8]) -> Zeroized32 {
        let [chaining_key, key] = kdf(self.chaining_key.bytes(), input);
        self.chaining_key
            .bytes_mut()
            .copy_from_slice(&*chaining_key);
        key
    }

    /// (C, τ, κ) := KDF3(C, Q); H := HASH(H ‖ τ). The preshared key itself is no AEAD key.
    fn mix_psk(&mut self, preshared_key: &Secret) -> Zeroized32 {
        let [chaining_key, hashed, key] = kdf(self.chaining_key.bytes(), preshared_key.bytes());
        self.chaining_key
            .bytes_mut()
            .copy_from_slice(&*chaining_key);
        self.mix_hash(&*hashed);
        key
    }

    /// Seals `text` (`SEALED` less a tag) bound to the handshake so far, then binds the handshake
    /// to it.
    fn seal<const SEALED: usize>(&mut self, key: &Zeroized32, text: &[u8]) -> [u8; SEALED] {
        let mut sealed = [0; SEALED];
        sealed[..text.len()].copy_from_slice(text);
        seal(key, &mut sealed, &self.hash);
        self.mix_hash(&sealed);
        sealed
    }

    /// The reverse of `seal`; `None` if the tag is wrong.
    fn open<const SEALED: usize, const TEXT: usize>(
        &mut self,
        key: &Zeroized32,
        sealed: &[u8; SEALED],
    ) -> Option<[u8; TEXT]> {
        let text = open(key, &mut sealed.clone(), &self.hash)?
            .try_into()
            .ok()?;
        self.mix_hash(sealed);
        Some(text)
    }

    /// (T_initiator, T_responder) := KDF2(C, ε) (5.4.5).
    fn begin_session(self, local: u32, remote: u32, initiator: bool, now: Time) -> Arc<Session> {
        let [of_initiator, of_responder] = kdf(self.chaining_key.bytes(), &[]);
        let (send, receive) = if initiator {
            (of_initiator, of_responder)
        } else {
            (of_responder, of_initiator)
        };
        let (send, receive) = (Key::new(&send), Key::new(&receive));
        let ends = SessionEnds {
            local_index: local,
            remote_index: remote,
            initiator,
            born: now,
        };
        Arc::new(Session::new(ends, send, receive))
    }
}

#[cfg(test)]
#[path = "noise_tests.rs"]
mod tests;
