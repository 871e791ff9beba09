use super::*;
use crate::wire::{INITIATION_LEN, ParsedMessage};
use std::time::Duration;

const KEY: PublicKey = PublicKey([9; 32]);

fn at(seconds: u64) -> Time {
    Time(5) + Duration::from_secs(seconds)
}

fn from(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn checker() -> Checker {
    Checker::new(&KEY, &[0x42; 32])
}

fn message() -> [u8; INITIATION_LEN] {
    let mut message = [3; INITIATION_LEN];
    message[..4].copy_from_slice(&[1, 0, 0, 0]);
    message[INITIATION_LEN - 16..].fill(0);
    message
}

fn consume(stamper: &mut Stamper, now: Time, reply: &[u8]) -> bool {
    let Some(ParsedMessage::CookieReply(reply)) = ParsedMessage::parse(reply) else {
        panic!("a cookie reply");
    };
    stamper.consume_reply(now, reply)
}

#[test]
fn mac1_proves_that_the_sender_knows_our_key() {
    let (checker, mut stamper) = (checker(), Stamper::new(&KEY));
    let mut message = message();
    stamper.stamp(at(0), &mut message);
    assert!(checker.mac1_is_valid(&message));
    assert!(!Checker::new(&PublicKey([8; 32]), &[0x42; 32]).mac1_is_valid(&message));
    for byte in 0..INITIATION_LEN - 16 {
        message[byte] ^= 1;
        assert!(!checker.mac1_is_valid(&message));
        message[byte] ^= 1;
    }
}

/// A checker, a stamper that got a cookie at 0 s, and the address that it is for.
fn with_cookie() -> (Checker, Stamper, SocketAddr) {
    let (mut checker, mut stamper) = (checker(), Stamper::new(&KEY));
    let source = from("192.0.2.1:1000");
    let mut message = message();
    stamper.stamp(at(0), &mut message);
    assert!(!checker.mac2_is_valid(at(0), source, &message));
    let reply = checker.create_reply(at(0), source, &message, 77);
    assert!(consume(&mut stamper, at(0), &reply));
    (checker, stamper, source)
}

#[test]
fn a_cookie_makes_mac2_valid_for_its_address_and_port_only() {
    let (mut checker, mut stamper, source) = with_cookie();
    let mut message = message();
    stamper.stamp(at(1), &mut message);
    assert!(checker.mac2_is_valid(at(1), source, &message));
    for other in ["192.0.2.2:1000", "192.0.2.1:1001", "[2001:db8::1]:1000"] {
        assert!(!checker.mac2_is_valid(at(1), from(other), &message));
    }
}

#[test]
fn the_secret_behind_cookies_changes_after_120_seconds() {
    let (mut checker, mut stamper, source) = with_cookie();
    let mut message = message();
    stamper.stamp(at(119), &mut message);
    assert!(checker.mac2_is_valid(at(119), source, &message));
    assert!(!checker.mac2_is_valid(at(120), source, &message));
}

#[test]
fn a_cookie_is_used_for_120_seconds() {
    let (_, mut stamper, _) = with_cookie();
    let mut message = message();
    stamper.stamp(at(119), &mut message);
    assert_ne!(message[INITIATION_LEN - 16..], [0; 16]);
    message[INITIATION_LEN - 16..].fill(0);
    stamper.stamp(at(120), &mut message);
    assert_eq!(message[INITIATION_LEN - 16..], [0; 16]);
}

#[test]
fn a_cookie_reply_must_answer_our_last_message_and_does_so_once() {
    let (mut checker, mut stamper) = (checker(), Stamper::new(&KEY));
    let source = from("192.0.2.1:1000");
    let (mut first, mut second) = (message(), message());
    second[50] = 1;
    stamper.stamp(at(0), &mut first);
    let stale = checker.create_reply(at(0), source, &first, 77);
    stamper.stamp(at(1), &mut second);
    assert!(!consume(&mut stamper, at(1), &stale));
    let good = checker.create_reply(at(1), source, &second, 77);
    for byte in 8..good.len() {
        let mut bad = good;
        bad[byte] ^= 1;
        assert!(!consume(&mut stamper, at(1), &bad));
    }
    assert!(consume(&mut stamper, at(1), &good));
    assert!(!consume(&mut stamper, at(1), &good));
}
