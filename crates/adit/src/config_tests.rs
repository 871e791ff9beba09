use super::*;

fn key(n: u8) -> PublicKey {
    PublicKey::from_bytes([n; 32])
}

fn config(peers: impl IntoIterator<Item = Peer>) -> Config {
    let private_key = PrivateKey::from_bytes(&[9; 32]).expect("a key");
    let config = Config::new(private_key);
    peers.into_iter().fold(config, Config::peer)
}

#[test]
fn what_no_tunnel_can_be_is_refused() {
    let block = |text: &str| text.parse::<IpBlock>().expect("a block");
    let one = Peer::new(key(1)).allowed_ip(block("10.0.0.0/24"));
    assert_eq!(config([one.clone()]).check(), Ok(()));
    let twice = config([one.clone(), Peer::new(key(1))]);
    assert_eq!(twice.check(), Err(ConfigError::PeerTwice(key(1))));
    let both = config([
        one.clone(),
        Peer::new(key(2)).allowed_ip(block("10.0.0.9/24")),
    ]);
    let peers = [key(1), key(2)];
    let block = block("10.0.0.0/24");
    assert_eq!(both.check(), Err(ConfigError::BlockTwice { block, peers }));
    let mut own = config([one]);
    own.peers.push(Peer::new(own.private_key.public_key()));
    assert_eq!(own.check(), Err(ConfigError::OwnKey));
    assert!(Change::to(&own).is_err());
    let many = config((0..=u32::try_from(MAX_PEERS).expect("few")).map(|n| {
        let mut bytes = [1; 32];
        bytes[..4].copy_from_slice(&n.to_le_bytes());
        Peer::new(PublicKey::from_bytes(bytes))
    }));
    assert_eq!(many.check(), Err(ConfigError::TooManyPeers));
}

#[test]
fn blocks_are_read_as_wg_reads_them() {
    for (text, expected) in [
        ("10.1.2.3/8", Ok("10.0.0.0/8")),
        ("10.1.2.3", Ok("10.1.2.3/32")),
        ("::/0", Ok("::/0")),
        ("2001:db8::1/64", Ok("2001:db8::/64")),
        ("10.0.0.0/33", Err(BlockError::Length)),
        ("::/129", Err(BlockError::Length)),
        ("10.0.0.0/+8", Err(BlockError::Length)),
        ("10.0.0.0/", Err(BlockError::Length)),
        ("10.0.0/8", Err(BlockError::Address)),
        ("", Err(BlockError::Address)),
    ] {
        let block = text.parse::<IpBlock>().map(|block| block.to_string());
        assert_eq!(block.as_deref(), expected.as_ref().copied(), "{text}");
    }
}
