//! boringtun's API, as of its version 0.7.1, over Adit's protocol.
//!
//! A program that uses [`noise::Tunn`] builds with this crate in boringtun's place:
//!
//! ```toml
//! [dependencies]
//! boringtun = { package = "boringtun-compat", version = "0.1" }
//! ```
//!
//! What is the same and what differs is in the README. A program that is written anew has more of the crate
//! `adit`, which works on batches.
//!
//! Two tunnels joined by function calls:
//!
//! ```
//! use boringtun_compat::noise::{Tunn, TunnResult};
//! use boringtun_compat::x25519::{PublicKey, StaticSecret};
//!
//! // Real keys are of random bytes.
//! let keys = [1, 2].map(|n| StaticSecret::from([n; 32]));
//! let publics = [PublicKey::from(&keys[0]), PublicKey::from(&keys[1])];
//! let [mine, theirs] = keys;
//! let mut here = Tunn::new(mine, publics[1], None, None, 1, None);
//! let mut there = Tunn::new(theirs, publics[0], None, None, 2, None);
//! let (mut sent, mut came) = ([0; 2048], [0; 2048]);
//!
//! // An IPv4 packet from 10.0.0.1 to 10.0.0.2. It waits, and a handshake begins.
//! let packet = b"\x45\0\0\x18\0\0\0\0\x40\xfd\0\0\x0a\0\0\x01\x0a\0\0\x02ping";
//! let TunnResult::WriteToNetwork(initiation) = here.encapsulate(packet, &mut sent) else { panic!() };
//! let TunnResult::WriteToNetwork(response) = there.decapsulate(None, initiation, &mut came) else { panic!() };
//! // The packet confirms the session. Until there is nothing more, this is called again without a datagram.
//! let TunnResult::WriteToNetwork(data) = here.decapsulate(None, response, &mut sent) else { panic!() };
//! let TunnResult::WriteToTunnelV4(opened, source) = there.decapsulate(None, data, &mut came) else { panic!() };
//! assert_eq!(opened, packet);
//! assert_eq!(source.octets(), [10, 0, 0, 1]);
//! assert!(matches!(here.decapsulate(None, &[], &mut sent), TunnResult::Done));
//! ```

#![deny(missing_docs)]

#[cfg(feature = "ffi-bindings")]
pub mod ffi;
pub mod noise;

/// The types of keys.
pub mod x25519 {
    pub use x25519_dalek::{
        EphemeralSecret, PublicKey, ReusableSecret, SharedSecret, StaticSecret,
    };
}

#[cfg(feature = "ffi-bindings")]
mod key_text;
mod log;
