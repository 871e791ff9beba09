//! Which handshake messages are worth the computation that follows.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use adit_proto::config::{PublicKey, Secret};
use adit_proto::{Admission, Refusal, Room, Screened, Time};

use crate::log::log;
use crate::noise::clock::Clock;
use crate::noise::errors::WireGuardError;
use crate::noise::packet::Packet;
use crate::noise::result::TunnResult;
use crate::x25519;

/// How often the count begins anew.
const PERIOD: Duration = Duration::from_secs(1);

/// Looks at handshake messages for one or several tunnels with the same private key. While more of them come than
/// the limit, senders have to prove that they receive at their address, by a cookie.
pub struct RateLimiter {
    admission: Admission,
    clock: Clock,
    limit: u64,
    count: AtomicU64,
    last_reset: Mutex<Time>,
}

impl RateLimiter {
    /// For tunnels with this public key of ours, and so many messages a second.
    ///
    /// # Panics
    ///
    /// The system has no random bytes.
    pub fn new(public_key: &x25519::PublicKey, limit: u64) -> Self {
        let mut seed = Secret::zero();
        getrandom::fill(seed.bytes_mut()).expect("the system has random bytes");
        let clock = Clock::new();
        Self {
            admission: Admission::of(&PublicKey(public_key.to_bytes()), &seed),
            limit,
            count: AtomicU64::new(0),
            last_reset: Mutex::new(clock.now()),
            clock,
        }
    }

    /// Counts anew, if the last time was a second ago. To be called once a second.
    pub fn reset_count(&self) {
        self.reset_at(self.clock.now());
    }

    fn reset_at(&self, now: Time) {
        let last = self.last_reset.lock();
        let mut last = last.unwrap_or_else(PoisonError::into_inner);
        if now.since(*last) >= PERIOD {
            self.count.store(0, Ordering::Relaxed);
            *last = now;
        }
    }

    /// Parses a datagram, and looks at it if it is a message of a handshake.
    ///
    /// # Errors
    ///
    /// [`TunnResult::WriteToNetwork`]: a cookie reply is to be sent. [`TunnResult::Err`]: nothing is to be done.
    pub fn verify_packet<'a, 'b>(
        &self,
        src_addr: Option<IpAddr>,
        src: &'a [u8],
        dst: &'b mut [u8],
    ) -> Result<Packet<'a>, TunnResult<'b>> {
        let packet = Packet::parse(src)?;
        if let Some((_, Some(_))) = packet.handshake() {
            self.screen(self.clock.now(), src_addr, src, dst)?;
        }
        Ok(packet)
    }

    /// Whether an initiation or a response may be computed.
    fn screen<'b>(
        &self,
        now: Time,
        src_addr: Option<IpAddr>,
        message: &[u8],
        dst: &'b mut [u8],
    ) -> Result<(), TunnResult<'b>> {
        if self.count.fetch_add(1, Ordering::Relaxed) >= self.limit {
            self.admission.load(now);
        }
        // A cookie is of an address, of which the port is not known here.
        let from = src_addr.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let from = SocketAddr::new(from, 0);
        let screened = self.admission.screen(now, from, message, Room::Ample);
        let reply = match (screened, src_addr) {
            (Screened::Passed, _) | (Screened::Proven, Some(_)) => return Ok(()),
            (Screened::Reply(reply, _), Some(_)) => reply,
            (Screened::Refused(outcome), _) if outcome.refusal == Some(Refusal::BadMac1) => {
                log(format_args!("{outcome}"));
                return Err(WireGuardError::InvalidMac.into());
            }
            _ => return Err(WireGuardError::UnderLoad.into()),
        };
        let Some(to) = dst.get_mut(..reply.len()) else {
            return Err(WireGuardError::DestinationBufferTooSmall.into());
        };
        to.copy_from_slice(&reply);
        log(format_args!("sending a cookie reply to {}", from.ip()));
        Err(TunnResult::WriteToNetwork(to))
    }
}

#[cfg(test)]
#[path = "rate_limiter_tests.rs"]
mod tests;
