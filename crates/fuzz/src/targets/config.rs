//! Configuration files of wg-quick, and the files that are made of them.

use std::collections::BTreeSet;

use adit_ctl::config::{Config, Table, locate, save, strip, with_section, without_peer};
use adit_proto::config::{AllowedIpChange, Cidr, DeviceStatus, PeerStatus};

pub(crate) fn run(input: &[u8]) {
    let text: String = match std::str::from_utf8(input) {
        Ok(text) => text.to_owned(),
        // As files that are not UTF-8 are read.
        Err(_) => input.iter().copied().map(char::from).collect(),
    };
    _ = locate(text.lines().next().unwrap_or_default());
    let stripped = strip(&text);
    // A carriage return at the end of the text belongs to a line, and then to its end.
    assert!(
        text.contains('\r') || *strip(&stripped) == *stripped,
        "stripped twice"
    );
    let config = match Config::parse(&text, "wg0.conf") {
        Ok(config) => config,
        Err(errors) => {
            assert!(!errors.0.is_empty());
            assert!(
                errors
                    .0
                    .iter()
                    .all(|error| error.line <= text.lines().count() + 1)
            );
            return;
        }
    };
    // 1. wg's part of it says the same of what concerns wg.
    let short = Config::parse(&stripped, "wg0.conf").expect("a part of what was right");
    assert_eq!(short.peers, config.peers);
    assert_eq!(short.interface.private_key, config.interface.private_key);
    assert_eq!(short.interface.listen_port, config.interface.listen_port);
    assert_eq!(short.interface.table, Table::Auto);
    // 2. A transaction names each peer in order.
    let endpoints: Vec<_> = config
        .peers
        .iter()
        .map(|p| p.endpoint.as_ref()?.numeric())
        .collect();
    let change = config.to_change(&endpoints);
    assert_eq!(change.peers.len(), config.peers.len());
    // 3. A peer goes, and comes, without a change of any other. A text without line ends but
    //    carriage returns is none.
    for peer in config.peers.iter().filter(|_| !text.contains('\r')) {
        let left = without_peer(&text, peer.public_key).expect("a peer of the file");
        let left = Config::parse(&left, "wg0.conf").expect("a part of what was right");
        let mut others = config.peers.clone();
        others.retain(|other| other.public_key != peer.public_key);
        assert_eq!(left.peers, others);
    }
    let longer = with_section(
        &text,
        "[Peer]\nPublicKey = AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n",
    );
    assert!(longer.starts_with(&text));
    // 4. What is saved of an interface that runs like that is what runs.
    let mut device = DeviceStatus {
        private_key: config.interface.private_key.clone(),
        listen_port: config.interface.listen_port.unwrap_or(0),
        fwmark: config.interface.fwmark.unwrap_or(0),
        ..DeviceStatus::default()
    };
    for section in &change.peers {
        let mut peer = PeerStatus::new(section.public_key);
        peer.preshared_key = section.preshared_key.clone().filter(|key| !key.is_zero());
        peer.endpoint = section.endpoint;
        peer.persistent_keepalive = section.persistent_keepalive.unwrap_or(0);
        peer.allowed_ips = blocks(&section.allowed_ips);
        device
            .peers
            .retain(|other| other.public_key != peer.public_key);
        device.peers.push(peer);
    }
    let saved = save(
        &text,
        &device,
        &config.interface.addresses,
        config.interface.mtu,
    );
    let again = Config::parse(&saved, "wg0.conf").expect("what was saved can be read");
    assert_eq!(again.interface.private_key, device.private_key);
    assert_eq!(again.interface.listen_port.unwrap_or(0), device.listen_port);
    assert_eq!(again.interface.fwmark.unwrap_or(0), device.fwmark);
    assert_eq!(
        again.interface.mtu.is_some(),
        config.interface.mtu.is_some()
    );
    assert_eq!(again.interface.post_up, config.interface.post_up);
    let mut found: Vec<_> = again.peers.iter().map(|peer| peer.public_key).collect();
    let mut expected: Vec<_> = device.peers.iter().map(|peer| peer.public_key).collect();
    found.sort_unstable();
    found.dedup();
    expected.sort_unstable();
    assert_eq!(found, expected);
    for peer in &device.peers {
        let saved = again
            .peers
            .iter()
            .rfind(|saved| saved.public_key == peer.public_key);
        let saved = saved.expect("named");
        assert_eq!(blocks(&saved.allowed_ips), peer.allowed_ips);
        let key = saved.preshared_key.clone().filter(|key| !key.is_zero());
        assert_eq!(key, peer.preshared_key);
        assert_eq!(
            saved.persistent_keepalive.unwrap_or(0),
            peer.persistent_keepalive
        );
        if let Some(endpoint) = peer.endpoint {
            assert_eq!(
                saved.endpoint.as_ref().and_then(|saved| saved.numeric()),
                Some(endpoint)
            );
        }
    }
}

/// The blocks that a peer has after these changes.
fn blocks(changes: &[AllowedIpChange]) -> Vec<Cidr> {
    let mut blocks = BTreeSet::new();
    for change in changes {
        match change {
            AllowedIpChange::Add(block) => blocks.insert(*block),
            AllowedIpChange::Remove(block) => blocks.remove(block),
        };
    }
    blocks.into_iter().collect()
}
