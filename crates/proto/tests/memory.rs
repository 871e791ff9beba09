//! What the process's memory holds of keys that are gone: nothing. Each test runs in a process of
//! its own.

mod common;
#[path = "common/memory.rs"]
mod search;

use adit_proto::config::{DeviceChange, PeerChange, Secret};
use adit_proto::{Device, Session};
use common::*;
use curve25519_dalek::MontgomeryPoint;
use search::{Needles, alone, fill, wipe_own_stack};

/// Two hosts, and the secrets that they have.
struct Hosts {
    net: Net,
    /// Private keys.
    own: Needles,
    /// Secrets of a peer: the preshared key and the static-static secret.
    of_peer: Needles,
    /// Secrets of one handshake or session.
    of_handshakes: Needles,
}

impl Hosts {
    fn new() -> Self {
        let (own, of_peer, of_handshakes) = Default::default();
        let mut hosts = Self {
            net: Net::of(2, 1),
            own,
            of_peer,
            of_handshakes,
        };
        hosts.configure();
        wipe_own_stack();
        hosts
    }

    fn configure(&mut self) {
        let mut seed = 1;
        let mut draw = |needles: &Needles, name: &str| {
            let mut secret = Secret::zero();
            fill(secret.bytes_mut(), &mut seed);
            needles.add(name, secret.bytes());
            secret
        };
        let keys = ["private key of A", "private key of B"].map(|name| draw(&self.own, name));
        let preshared_key = draw(&self.of_peer, "preshared key");
        let publics = keys.each_ref().map(Secret::public_key);
        let shared = MontgomeryPoint(publics[B].0).mul_clamped(*keys[A].bytes());
        self.of_peer.add("static-static secret", shared.as_bytes());
        for (host, key) in keys.into_iter().enumerate() {
            let needles = self.of_handshakes.clone();
            let mut seed = 100 + host as u64;
            self.net.hosts[host].device = Device::new(Box::new(move |bytes| {
                fill(bytes, &mut seed);
                if bytes.len() == 32 {
                    needles.add(&format!("ephemeral key of {host}"), bytes);
                }
            }));
            let mut section = PeerChange::new(publics[1 - host]);
            section.preshared_key = Some(preshared_key.clone());
            section.endpoint = Some(self.net.hosts[1 - host].addr);
            self.net.publics[host] = publics[host];
            self.net.apply(
                host,
                &DeviceChange {
                    private_key: Some(key),
                    peers: vec![section],
                    ..DeviceChange::default()
                },
            );
        }
    }

    fn note_session(&self, session: &Session) {
        for (name, key) in [
            ("sending key", session.send_key()),
            ("receiving key", session.receive_key()),
        ] {
            let at = std::ptr::from_ref(key).addr();
            // The bytes of a key come first.
            self.of_handshakes.add_at(name, at as u64);
        }
    }

    fn connect(&mut self) {
        self.net.connect();
        for (host, peer) in [(A, B), (B, A)] {
            self.note_session(&self.net.session(host, peer));
        }
        self.of_handshakes.expect("sending key");
        self.of_handshakes.expect("receiving key");
    }

    /// As an engine does when keys were dropped.
    fn overwrite_stack(&mut self) {
        for host in &mut self.net.hosts {
            assert!(host.device.poll_keys_dropped());
        }
        wipe_own_stack();
    }

    fn remove_peers(&mut self) {
        for host in [A, B] {
            let mut section = PeerChange::new(self.net.publics[1 - host]);
            section.remove = true;
            self.net.apply(
                host,
                &DeviceChange {
                    peers: vec![section],
                    ..DeviceChange::default()
                },
            );
        }
    }
}

#[test]
fn no_key_of_a_session_is_left_after_541_seconds() {
    alone("no_key_of_a_session_is_left_after_541_seconds", || {
        let mut hosts = Hosts::new();
        hosts.connect();
        hosts.net.run_for(secs(541));
        hosts.overwrite_stack();
        hosts.of_handshakes.expect_none("after 541 s");
    });
}

/// A suspended machine runs no timers: all that fell due is done when it wakes.
#[test]
fn no_key_of_a_session_is_left_on_waking_after_541_seconds() {
    let name = "no_key_of_a_session_is_left_on_waking_after_541_seconds";
    alone(name, || {
        let mut hosts = Hosts::new();
        hosts.connect();
        let session = hosts.net.session(A, B);
        hosts.net.now = hosts.net.now + secs(541);
        assert!(!session.may_send(hosts.net.now) && !session.may_receive(hosts.net.now));
        drop(session);
        // A new handshake may begin, whose keys are there.
        let needles = hosts.of_handshakes.so_far();
        hosts.net.run_for(secs(0));
        hosts.overwrite_stack();
        needles.expect_none("on waking");
    });
}

#[test]
fn no_key_of_a_peer_is_left_after_its_removal() {
    alone("no_key_of_a_peer_is_left_after_its_removal", || {
        let mut hosts = Hosts::new();
        hosts.connect();
        hosts.of_peer.expect("preshared key");
        hosts.of_peer.expect("static-static secret");
        hosts.remove_peers();
        hosts.overwrite_stack();
        hosts.of_handshakes.expect_none("after the removal");
        hosts.of_peer.expect_none("after the removal");

        hosts.own.expect("private key of A");
        for host in [A, B] {
            hosts.net.apply(
                host,
                &DeviceChange {
                    private_key: Some(Secret::zero()),
                    ..DeviceChange::default()
                },
            );
        }
        hosts
            .own
            .expect_none("after the removal of the private keys");
    });
}

#[test]
fn no_key_of_a_handshake_is_left_that_came_to_nothing() {
    alone("no_key_of_a_handshake_is_left_that_came_to_nothing", || {
        let mut hosts = Hosts::new();
        let net = &mut hosts.net;
        net.weather.loss = 100;
        net.send(A, B, b"in vain");
        hosts.of_handshakes.expect("ephemeral key of 0");
        // Initiations arrive, and no response does.
        for _ in 0..20 {
            let initiations = net.sent(A, "initiation", net.now);
            for initiation in initiations {
                net.deliver(B, initiation.from, &initiation.bytes);
            }
            net.run_for(secs(5));
        }
        assert_eq!(net.stats(A).given_up, 1);
        assert!(net.stats(B).initiations_accepted > 0);
        net.run_for(secs(541));
        hosts.overwrite_stack();
        hosts
            .of_handshakes
            .expect_none("after the handshake was given up");
    });
}
