//! Counters of handshakes.

macro_rules! handshake_counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// How handshakes went, counted since the device was made.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct HandshakeStats {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl HandshakeStats {
            /// Every counter: its name, its value and what it counts, which is its documentation.
            pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64, &'static str)> {
                [$((stringify!($name), self.$name, concat!($($doc),+).trim_ascii()),)+].into_iter()
            }

            /// Sets the counter of this name, if there is one.
            pub(crate) fn set(&mut self, name: &str, value: u64) {
                match name {
                    $(stringify!($name) => self.$name = value,)+
                    _ => {}
                }
            }
        }
    };
}

handshake_counters! {
    /// Initiations that left, retries included.
    initiations_sent,
    /// Initiations received, good or bad.
    initiations_received,
    /// Initiations that were accepted and answered.
    initiations_accepted,
    /// Responses that left.
    responses_sent,
    /// Responses received, good or bad.
    responses_received,
    /// Responses that completed a handshake.
    responses_accepted,
    /// Responder's sessions that the peer confirmed.
    confirmed,
    /// Cookie replies that left, under load.
    cookies_sent,
    /// Cookie replies received, good or bad.
    cookies_received,
    /// Cookie replies that were authentic.
    cookies_accepted,
    /// Messages of all three kinds that could not leave: no socket, no route, or a firewall on this
    /// host.
    send_failed,
    /// Handshakes given up after 90 seconds without an answer (REKEY_ATTEMPT_TIME).
    given_up,
    /// Dropped: neither type nor length of a handshake message, or the interface has no private
    /// key.
    invalid,
    /// Dropped: mac1 does not show that the sender knows our public key. It has another one for
    /// this interface.
    bad_mac1,
    /// Dropped: we are under load, more ask for a cookie than can be answered, or a source that has one
    /// sends too much.
    rate_limited,
    /// Dropped: the initiation decrypts, but its static key is no peer's.
    unknown_peer,
    /// Dropped: the timestamp is not greater than the greatest one received from the peer. The
    /// sender's clock was set back, another host has the same private key, or the message is a
    /// replay.
    replayed_timestamp,
    /// Dropped: the peer's access has expired, or its quota is used up.
    no_access,
    /// Dropped: too soon after the peer's last initiation.
    flooded,
    /// Dropped: a tag or Diffie-Hellman result is wrong. Of a response: the preshared keys differ.
    not_authentic,
    /// Dropped: a response or cookie reply for no handshake that is under way. It comes too late or
    /// twice.
    unexpected,
}
