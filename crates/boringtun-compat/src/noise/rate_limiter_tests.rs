use super::*;
use crate::noise::Tunn;
use crate::x25519::{PublicKey, StaticSecret};

fn at(seconds: u64) -> Time {
    Time::default() + Duration::from_secs(1000 + seconds)
}

#[test]
fn a_limit_is_of_messages_in_a_second() {
    let keys = [1, 2].map(|n| StaticSecret::from([n; 32]));
    let public = PublicKey::from(&keys[0]);
    let [_, other] = keys;
    let mut sender = Tunn::new(other, public, None, None, 1, None);
    let mut buffer = [0; 148];
    sender.format_handshake_initiation(&mut buffer, false);
    let limiter = RateLimiter::new(&public, 2);
    limiter.reset_at(at(0));
    let address = Some([192, 0, 2, 1].into());
    let passes = |now| match limiter.screen(now, address, &buffer, &mut [0; 64]) {
        Ok(()) => true,
        Err(TunnResult::WriteToNetwork(reply)) => reply.len() != 64,
        Err(other) => panic!("{other:?}"),
    };
    assert!(passes(at(0)) && passes(at(0)));
    assert!(!passes(at(0)));
    // Too early to count anew.
    limiter.reset_at(at(0));
    assert!(!passes(at(0)));
    limiter.reset_at(at(2));
    assert!(passes(at(2)) && passes(at(2)));
    assert!(!passes(at(2)));
}
