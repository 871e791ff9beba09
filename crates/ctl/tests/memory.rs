//! What the process's memory holds of keys that came as text and are gone: nothing. Each test runs
//! in a process of its own.

#[path = "../../proto/tests/common/memory.rs"]
mod search;

use adit_ctl::config::Config;
use adit_ctl::keys;
use adit_ctl::uapi::{Heard, Parser, UapiRequest, format_status};
use adit_proto::config::{DeviceChange, PeerChange, Secret};
use adit_proto::{Device, Time};
use search::{Needles, alone, fill, wipe_own_stack};
use zeroize::Zeroizing;

/// A text with a private key and a preshared key in it, in the form that `write` gives them.
fn text(
    needles: &Needles,
    write: fn(&[u8; 32]) -> Zeroizing<String>,
    parts: [&str; 3],
) -> Zeroizing<String> {
    let mut seed = 1;
    let mut text = Zeroizing::new(String::with_capacity(4096));
    text.push_str(parts[0]);
    for (name, after) in [("private key", parts[1]), ("preshared key", parts[2])] {
        let mut secret = Secret::zero();
        fill(secret.bytes_mut(), &mut seed);
        needles.add(name, secret.bytes());
        let written = write(secret.bytes());
        needles.add(&format!("{name} as text"), written.as_bytes());
        text.push_str(&written);
        text.push_str(after);
    }
    text
}

/// Applies a change and then undoes it.
fn configure(needles: &Needles, change: DeviceChange) {
    let mut device = Device::new(Box::new(|_| {}));
    device.apply(Time(1), &change).unwrap();
    let removal = DeviceChange {
        private_key: Some(Secret::zero()),
        peers: (change.peers.iter())
            .map(|section| PeerChange {
                remove: true,
                ..PeerChange::new(section.public_key)
            })
            .collect(),
        ..DeviceChange::default()
    };
    drop(change);
    drop(format_status(&device.status()));
    needles.expect("private key");
    needles.expect("preshared key");
    device.apply(Time(2), &removal).unwrap();
    assert_eq!(device.status().peers, []);
}

#[test]
fn no_key_of_a_set_is_left_after_its_removal() {
    alone("no_key_of_a_set_is_left_after_its_removal", || {
        let needles = Needles::default();
        let public = "0a".repeat(32);
        let peer = format!("\nlisten_port=1\npublic_key={public}\npreshared_key=");
        let others: String = (0..100)
            .map(|n| format!("\npublic_key={n:064x}\nallowed_ip=10.0.0.{n}/32"))
            .collect();
        let parts = ["set=1\nprivate_key=", &peer, &format!("{others}\n\n")];
        let request = text(&needles, keys::to_hex, parts);
        wipe_own_stack();
        let mut parser = Parser::default();
        let mut change = None;
        // As it comes from a socket, in pieces.
        for piece in request.as_bytes().chunks(100) {
            let mut piece = piece;
            while let Some(heard) = parser.push(&mut piece, 1 << 20) {
                let Heard::Request(UapiRequest::Set(heard)) = heard else {
                    panic!("{heard:?}");
                };
                change = Some(heard);
            }
        }
        drop((request, parser));
        configure(&needles, change.unwrap());
        needles.expect_none("after the removal");
    });
}

#[test]
fn no_key_of_a_file_is_left_after_its_removal() {
    alone("no_key_of_a_file_is_left_after_its_removal", || {
        let needles = Needles::default();
        let parts = [
            "[Interface]\nPrivateKey = ",
            "\nListenPort = 1\n[Peer]\nPublicKey = TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=\nPresharedKey = ",
            "\nAllowedIPs = 10.0.0.0/8\n",
        ];
        let file = text(&needles, keys::to_base64, parts);
        wipe_own_stack();
        let config = Config::parse(&file, "wg0.conf").unwrap();
        let change = config.to_change(&[None]);
        drop((file, config));
        configure(&needles, change);
        needles.expect_none("after the removal");
    });
}
