//! The handshake against `snow`, which knows Noise and nothing of WireGuard.

use adit_aead::{OpenJob, SealJob};
use snow::{Builder, HandshakeState, TransportState};

use super::*;
use crate::wire::ParsedMessage;

const PATTERN: &str = "Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
const PSK: [u8; 32] = [0x5a; 32];
const NOW: Time = Time(1);
const STAMP: Tai64N = Tai64N([1; 12]);

struct Side {
    identity: Identity,
    remote: Remote,
}

/// Initiator and responder.
fn sides() -> [Side; 2] {
    let secrets = [Secret::new(&[0x11; 32]), Secret::new(&[0x22; 32])];
    let [a, b] = secrets.map(|secret| Identity::new(secret, 1));
    let [to_b, to_a] = [b.public, a.public].map(|public| {
        let mut remote = Remote::new(public);
        remote.preshared_key = Secret::new(&PSK);
        remote
    });
    [(a, to_b), (b, to_a)].map(|(identity, remote)| Side { identity, remote })
}

fn snow(side: &Side, initiator: bool) -> HandshakeState {
    let secret = *side.identity.secret.bytes();
    let builder = Builder::new(PATTERN.parse().unwrap())
        .prologue(IDENTIFIER)
        .unwrap()
        .local_private_key(&secret)
        .unwrap()
        .psk(2, &PSK)
        .unwrap();
    if initiator {
        let builder = builder.remote_public_key(&side.remote.public.0).unwrap();
        builder.build_initiator().unwrap()
    } else {
        builder.build_responder().unwrap()
    }
}

fn initiation(bytes: &[u8]) -> Initiation<'_> {
    match ParsedMessage::parse(bytes) {
        Some(ParsedMessage::Initiation(message)) => message,
        _ => panic!("an initiation"),
    }
}

fn response(bytes: &[u8]) -> Response<'_> {
    match ParsedMessage::parse(bytes) {
        Some(ParsedMessage::Response(message)) => message,
        _ => panic!("a response"),
    }
}

/// Both directions of a session open what the other implementation sealed.
fn agree(session: &Session, other: &mut TransportState) {
    let mut sealed = [0; 21];
    other.write_message(b"hello", &mut sealed).unwrap();
    let mut job = [OpenJob::in_place(session.receive_key(), 0, &mut sealed)];
    adit_aead::open(&mut job);
    assert!(job[0].is_authentic());
    assert_eq!(sealed[..5], *b"hello");

    let mut sealed = *b"world0123456789abcdef";
    adit_aead::seal(&mut [SealJob::in_place(session.send_key(), 0, &mut sealed)]);
    let mut text = [0; 5];
    assert_eq!(other.read_message(&sealed, &mut text).unwrap(), 5);
    assert_eq!(text, *b"world");
}

#[test]
fn another_implementation_answers_our_initiation() {
    let [a, b] = sides();
    let ephemeral = Secret::new(&[0x33; 32]);
    let (created, message) =
        create_initiation(&a.identity, &a.remote, 7, STAMP, ephemeral).unwrap();

    let mut other = snow(&b, false);
    let mut payload = [0; 64];
    let len = other.read_message(&message[8..116], &mut payload).unwrap();
    assert_eq!(payload[..len], STAMP.0);
    assert_eq!(other.get_remote_static().unwrap(), a.identity.public.0);
    let mut bytes = [0; RESPONSE_LEN];
    bytes[0] = 2;
    bytes[4..8].copy_from_slice(&9_u32.to_le_bytes());
    bytes[8..12].copy_from_slice(&7_u32.to_le_bytes());
    assert_eq!(other.write_message(&[], &mut bytes[12..]).unwrap(), 48);

    let session =
        consume_response(&a.identity, &a.remote, &created, response(&bytes), NOW).unwrap();
    assert_eq!((session.local_index(), session.remote_index()), (7, 9));
    agree(&session, &mut other.into_transport_mode().unwrap());
}

#[test]
fn we_answer_the_initiation_of_another_implementation() {
    let [a, b] = sides();
    let mut other = snow(&a, true);
    let mut bytes = [0; INITIATION_LEN];
    bytes[0] = 1;
    bytes[4..8].copy_from_slice(&7_u32.to_le_bytes());
    assert_eq!(other.write_message(&STAMP.0, &mut bytes[8..]).unwrap(), 108);

    let (public, consumed) =
        consume_initiation(&b.identity, initiation(&bytes), |_| Some(&b.remote)).unwrap();
    assert_eq!(public, a.identity.public);
    assert_eq!(consumed.timestamp, STAMP);
    let ephemeral = Secret::new(&[0x44; 32]);
    let (session, message) = create_response(consumed, &b.remote, 9, &ephemeral, NOW).unwrap();
    assert_eq!((session.local_index(), session.remote_index()), (9, 7));

    assert_eq!(other.read_message(&message[12..60], &mut []).unwrap(), 0);
    agree(&session, &mut other.into_transport_mode().unwrap());
}

#[test]
fn the_static_static_secret_is_made_for_the_first_handshake() {
    let [a, b] = sides();
    assert!(a.remote.static_static.borrow().is_none());
    let ephemeral = Secret::new(&[0x33; 32]);
    let (_, message) = create_initiation(&a.identity, &a.remote, 7, STAMP, ephemeral).unwrap();
    assert!(b.remote.static_static.borrow().is_none());
    consume_initiation(&b.identity, initiation(&message), |_| Some(&b.remote)).unwrap();
    let [ours, theirs] = [&a, &b].map(|side| side.remote.static_static.borrow());
    assert!(ours.is_some() && *ours == *theirs);
}

#[test]
fn another_identity_makes_the_static_static_secret_anew() {
    let [a, b] = sides();
    let first = a.remote.static_static(&a.identity).unwrap();
    let other = Identity::new(Secret::new(&[0x55; 32]), 2);
    let second = a.remote.static_static(&other).unwrap();
    assert!(first != second);
    let to_other = Remote::new(other.public);
    assert!(second == to_other.static_static(&b.identity).unwrap());
}

#[test]
fn no_bit_of_a_message_may_change() {
    let [a, b] = sides();
    let ephemeral = Secret::new(&[0x33; 32]);
    let (created, message) =
        create_initiation(&a.identity, &a.remote, 7, STAMP, ephemeral).unwrap();
    let consume =
        |bytes: &[u8]| consume_initiation(&b.identity, initiation(bytes), |_| Some(&b.remote));
    for byte in 8..116 {
        let mut bad = message;
        bad[byte] ^= 1;
        assert!(consume(&bad).is_err());
    }
    let (_, consumed) = consume(&message).unwrap();
    let ephemeral = Secret::new(&[0x44; 32]);
    let (_, message) = create_response(consumed, &b.remote, 9, &ephemeral, NOW).unwrap();
    let consume = |bytes: &[u8]| {
        consume_response(&a.identity, &a.remote, &created, response(bytes), NOW).is_some()
    };
    for byte in 12..60 {
        let mut bad = message;
        bad[byte] ^= 1;
        assert!(!consume(&bad));
    }
    assert!(consume(&message));
}

#[test]
fn sides_with_different_preshared_keys_do_not_agree() {
    let [a, mut b] = sides();
    b.remote.preshared_key = Secret::zero();
    let ephemeral = Secret::new(&[0x33; 32]);
    let (created, message) =
        create_initiation(&a.identity, &a.remote, 7, STAMP, ephemeral).unwrap();
    let (_, consumed) =
        consume_initiation(&b.identity, initiation(&message), |_| Some(&b.remote)).unwrap();
    let ephemeral = Secret::new(&[0x44; 32]);
    let (_, message) = create_response(consumed, &b.remote, 9, &ephemeral, NOW).unwrap();
    assert!(consume_response(&a.identity, &a.remote, &created, response(&message), NOW).is_none());
}

/// The points of low order and some of their other encodings (as in the kernel's test, from
/// cr.yp.to/ecdh.html).
pub(crate) const LOW_ORDER: [[u8; 32]; 7] = {
    let mut one = [0; 32];
    one[0] = 1;
    let mut minus_one = [0xff; 32];
    minus_one[0] = 0xec;
    minus_one[31] = 0x7f;
    let mut p = minus_one;
    p[0] = 0xed;
    let mut p_plus_one = minus_one;
    p_plus_one[0] = 0xee;
    [
        [0; 32],
        one,
        [
            0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f,
            0xc4, 0x6a, 0xda, 0x09, 0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16,
            0x5f, 0x49, 0xb8, 0x00,
        ],
        [
            0x5f, 0x9c, 0x95, 0xbc, 0xa3, 0x50, 0x8c, 0x24, 0xb1, 0xd0, 0xb1, 0x55, 0x9c, 0x83,
            0xef, 0x5b, 0x04, 0x44, 0x5c, 0xc4, 0x58, 0x1c, 0x8e, 0x86, 0xd8, 0x22, 0x4e, 0xdd,
            0xd0, 0x9f, 0x11, 0x57,
        ],
        minus_one,
        p,
        p_plus_one,
    ]
};

#[test]
fn a_public_key_of_low_order_gets_nothing_on_any_path() {
    let [a, b] = sides();
    for point in LOW_ORDER {
        // As a peer's static key: no initiation, and no static-static secret.
        let remote = Remote::new(PublicKey(point));
        assert!(remote.static_static(&a.identity).is_none());
        let ephemeral = Secret::new(&[0x33; 32]);
        assert!(create_initiation(&a.identity, &remote, 7, STAMP, ephemeral).is_none());

        // As the ephemeral of an initiation.
        let bytes = Initiation::write(7, &point, &[0; 48], &[0; 28]);
        let consumed =
            consume_initiation(&b.identity, initiation(&bytes), |_| Some(&b.remote)).map(|_| ());
        assert_eq!(consumed, Err(Reject::NotAuthentic));

        // As the ephemeral that a response answers, and as the static key that it goes to.
        let ephemeral = Secret::new(&[0x33; 32]);
        let (created, message) =
            create_initiation(&a.identity, &a.remote, 7, STAMP, ephemeral).unwrap();
        let again =
            || consume_initiation(&b.identity, initiation(&message), |_| Some(&b.remote)).unwrap();
        let ephemeral = Secret::new(&[0x44; 32]);
        let mut consumed = again().1;
        consumed.ephemeral = point;
        assert!(create_response(consumed, &b.remote, 9, &ephemeral, NOW).is_none());
        let remote = Remote::new(PublicKey(point));
        assert!(create_response(again().1, &remote, 9, &ephemeral, NOW).is_none());

        // As the ephemeral of a response.
        let bytes = Response::write(9, 7, &point, &[0; 16]);
        let session = consume_response(&a.identity, &a.remote, &created, response(&bytes), NOW);
        assert!(session.is_none());
    }
}
