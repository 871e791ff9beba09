//! boringtun 0.6: as 0.7.1, but that `Tunn::new` returned a `Result`, which was never an error.

pub use boringtun_compat::x25519;

/// The tunnel.
pub mod noise {
    use std::ops::{Deref, DerefMut};
    use std::sync::Arc;

    pub use boringtun_compat::noise::{Packet, TunnResult, errors, handshake, rate_limiter};

    use crate::x25519::{PublicKey, StaticSecret};

    /// The tunnel of `boringtun_compat`.
    pub struct Tunn(boringtun_compat::noise::Tunn);

    impl Tunn {
        /// A tunnel.
        ///
        /// # Errors
        ///
        /// None.
        pub fn new(
            static_private: StaticSecret,
            peer_static_public: PublicKey,
            preshared_key: Option<[u8; 32]>,
            persistent_keepalive: Option<u16>,
            index: u32,
            rate_limiter: Option<Arc<rate_limiter::RateLimiter>>,
        ) -> Result<Self, &'static str> {
            Ok(Self(boringtun_compat::noise::Tunn::new(
                static_private,
                peer_static_public,
                preshared_key,
                persistent_keepalive,
                index,
                rate_limiter,
            )))
        }
    }

    impl Deref for Tunn {
        type Target = boringtun_compat::noise::Tunn;

        fn deref(&self) -> &Self::Target {
            &self.0
        }
    }

    impl DerefMut for Tunn {
        fn deref_mut(&mut self) -> &mut Self::Target {
            &mut self.0
        }
    }
}
