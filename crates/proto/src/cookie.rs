//! mac1, mac2 and the cookies that keep a responder under load from computing for sources that do
//! not exist (whitepaper 5.3, 5.4.4, 5.4.7).

use std::net::{IpAddr, SocketAddr};

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::Time;
use crate::crypto::{hash, mac, xopen, xseal};
use crate::limits::COOKIE_REFRESH_TIME;
use crate::secret::PublicKey;
use crate::wire::{COOKIE_REPLY_LEN, CookieReply, MACS_LEN};

const LABEL_MAC1: &[u8] = b"mac1----";
const LABEL_COOKIE: &[u8] = b"cookie--";
const LABEL_RANDOM: &[u8] = b"random--";
const MAC_LEN: usize = MACS_LEN / 2;

/// The side that receives handshake messages: checks both macs, hands out cookies.
pub(crate) struct Checker {
    mac1_key: [u8; 32],
    cookie_key: [u8; 32],
    /// The seed of secrets and nonces, and how many were made: the threads that make them may ask
    /// the kernel for no random numbers.
    seed: Zeroizing<[u8; 32]>,
    drawn: u64,
    secret: Zeroizing<[u8; 32]>,
    secret_since: Option<Time>,
}

impl Checker {
    pub(crate) fn new(ours: &PublicKey, random: &[u8; 32]) -> Self {
        Self {
            mac1_key: hash(&[LABEL_MAC1, &ours.0]),
            cookie_key: hash(&[LABEL_COOKIE, &ours.0]),
            seed: Zeroizing::new(hash(&[LABEL_RANDOM, random])),
            drawn: 0,
            secret: Zeroizing::default(),
            secret_since: None,
        }
    }

    /// Whether the sender knows our public key. `message` is an initiation or response.
    pub(crate) fn mac1_is_valid(&self, message: &[u8]) -> bool {
        let (signed, mac1, _) = split(message);
        mac(&self.mac1_key, &[signed]).ct_eq(mac1).into()
    }

    /// Whether the sender has the cookie that we gave to its address and port.
    pub(crate) fn mac2_is_valid(&mut self, now: Time, from: SocketAddr, message: &[u8]) -> bool {
        let cookie = self.cookie(now, from);
        let (signed, mac1, mac2) = split(message);
        mac(&*cookie, &[signed, mac1]).ct_eq(mac2).into()
    }

    /// The answer to a message without a valid mac2; `sender` is the index in it.
    pub(crate) fn create_reply(
        &mut self,
        now: Time,
        from: SocketAddr,
        message: &[u8],
        sender: u32,
    ) -> [u8; COOKIE_REPLY_LEN] {
        let cookie = self.cookie(now, from);
        let (_, mac1, _) = split(message);
        let random = self.random();
        let mut nonce = [0; 24];
        nonce.copy_from_slice(&random[..24]);
        let mut sealed = [0; 32];
        sealed[..MAC_LEN].copy_from_slice(&*cookie);
        xseal(&self.cookie_key, &nonce, &mut sealed, mac1);
        CookieReply::write(sender, &nonce, &sealed)
    }

    /// MAC(R, address ‖ port): "a secret value R … changes every two minutes" (5.4.7).
    fn cookie(&mut self, now: Time, from: SocketAddr) -> Zeroizing<[u8; MAC_LEN]> {
        let fresh = |since| now.since(since) < COOKIE_REFRESH_TIME;
        if !self.secret_since.is_some_and(fresh) {
            self.secret = self.random();
            self.secret_since = Some(now);
        }
        let port = from.port().to_be_bytes();
        Zeroizing::new(match from.ip() {
            IpAddr::V4(ip) => mac(&*self.secret, &[&ip.octets(), &port]),
            IpAddr::V6(ip) => mac(&*self.secret, &[&ip.octets(), &port]),
        })
    }

    /// 32 bytes that nobody knows without the seed, other ones each time.
    fn random(&mut self) -> Zeroizing<[u8; 32]> {
        self.drawn += 1;
        let drawn = self.drawn.to_le_bytes();
        Zeroizing::new(hash(&[LABEL_RANDOM, &*self.seed, &drawn]))
    }
}

/// The side that sends handshake messages to one peer: adds both macs, keeps the cookie.
pub(crate) struct Stamper {
    mac1_key: [u8; 32],
    cookie_key: [u8; 32],
    cookie: Option<(Zeroizing<[u8; MAC_LEN]>, Time)>,
    /// Of the last initiation and the last response. A cookie reply must answer one of them: both may
    /// be under way at a time.
    last_mac1: [Option<[u8; MAC_LEN]>; 2],
}

impl Stamper {
    pub(crate) fn new(theirs: &PublicKey) -> Self {
        Self {
            mac1_key: hash(&[LABEL_MAC1, &theirs.0]),
            cookie_key: hash(&[LABEL_COOKIE, &theirs.0]),
            cookie: None,
            last_mac1: [None; 2],
        }
    }

    /// Fills in mac1, and mac2 if a cookie "received … less than 120 seconds ago" is at hand
    /// (5.4.4).
    pub(crate) fn stamp(&mut self, now: Time, message: &mut [u8]) {
        let (signed, macs) = message.split_at_mut(message.len() - MACS_LEN);
        let (mac1, mac2) = macs.split_at_mut(MAC_LEN);
        let signature = mac(&self.mac1_key, &[signed]);
        mac1.copy_from_slice(&signature);
        self.last_mac1[usize::from(is_response(signed))] = Some(signature);
        match &self.cookie {
            Some((cookie, since)) if now.since(*since) < COOKIE_REFRESH_TIME => {
                mac2.copy_from_slice(&mac(&**cookie, &[signed, mac1]));
            }
            _ => self.cookie = None,
        }
    }

    /// Keeps the cookie if the reply is authentic and answers our last message of a kind.
    pub(crate) fn consume_reply(&mut self, now: Time, reply: CookieReply<'_>) -> bool {
        let answered = self.last_mac1.iter_mut().find_map(|last| {
            let mut sealed = Zeroizing::new(*reply.cookie());
            let mac1 = last.as_ref()?;
            let opened = xopen(&self.cookie_key, reply.nonce(), &mut *sealed, mac1)?;
            let mut cookie = Zeroizing::new([0; MAC_LEN]);
            cookie.copy_from_slice(opened);
            *last = None;
            Some(cookie)
        });
        let is_answer = answered.is_some();
        if let Some(cookie) = answered {
            self.cookie = Some((cookie, now));
        }
        is_answer
    }
}

fn is_response(message: &[u8]) -> bool {
    message.first() == Some(&2)
}

/// Whether a sender says that it has a cookie: mac2 is zero without one (5.4.4).
pub(crate) fn has_mac2(message: &[u8]) -> bool {
    split(message).2 != [0; MAC_LEN]
}

/// Splits a message into what mac1 signs, mac1, and mac2.
fn split(message: &[u8]) -> (&[u8], &[u8], &[u8]) {
    let (signed, macs) = message.split_at(message.len() - MACS_LEN);
    let (mac1, mac2) = macs.split_at(MAC_LEN);
    (signed, mac1, mac2)
}

#[cfg(test)]
#[path = "cookie_tests.rs"]
mod tests;
