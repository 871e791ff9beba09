use super::*;

const KEY: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
const PEER: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";

fn parse(text: &str) -> Config {
    Config::parse(text, "file").expect("a configuration")
}

#[test]
fn a_file_of_keys_completes_the_configuration_and_is_not_written_back() {
    let mut config = parse(&format!(
        "[Interface]\nListenPort = 1\n[Peer]\nPublicKey = {PEER}\nAllowedIPs = 10.0.0.0/8"
    ));
    let keys = parse(&format!(
        "[Interface]\nPrivateKey = {KEY}\n[Peer]\nPublicKey = {PEER}\nPresharedKey = {KEY}"
    ));
    let (kept, mistakes) = merge(&mut config, keys);
    assert_eq!(mistakes, [""; 0]);
    assert!(config.interface.private_key.is_some());
    assert!(config.peers[0].preshared_key.is_some());
    assert_eq!(config.peers[0].allowed_ips.len(), 1);

    let mut peer = adit_proto::config::PeerStatus::new(config.peers[0].public_key);
    peer.preshared_key = config.peers[0].preshared_key.clone();
    let status = kept.strip(DeviceStatus {
        private_key: config.interface.private_key,
        peers: vec![peer],
        ..DeviceStatus::default()
    });
    assert!(status.private_key.is_none() && status.peers[0].preshared_key.is_none());
}

#[test]
fn what_is_no_key_or_stands_twice_is_refused_without_a_key_in_the_message() {
    let file = format!(
        "[Interface]\nPrivateKey = {KEY}\n[Peer]\nPublicKey = {PEER}\nPresharedKey = {KEY}\n"
    );
    let other = "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=";
    for (keys, expected) in [
        (file.clone(), vec!["PrivateKey stands", "PresharedKey of"]),
        (
            "[Interface]\nMTU = 1400\n".into(),
            vec!["nothing but PrivateKey"],
        ),
        (
            format!("[Peer]\nPublicKey = {PEER}\n"),
            vec!["has no PresharedKey"],
        ),
        (
            format!("[Peer]\nPublicKey = {other}\nPresharedKey = {KEY}\n"),
            vec!["has no peer"],
        ),
    ] {
        let (_, mistakes) = merge(&mut parse(&file), parse(&keys));
        assert_eq!(mistakes.len(), expected.len(), "{mistakes:?}");
        for (mistake, expected) in mistakes.iter().zip(expected) {
            assert!(
                mistake.contains(expected) && !mistake.contains(KEY),
                "{mistake}"
            );
        }
    }
}

/// It would keep the tunnel from coming up, otherwise.
#[test]
fn a_key_of_a_disabled_peer_waits_for_it() {
    let text = format!("[Interface]\n[Peer]\nPublicKey = {PEER}\n");
    let peer = parse(&text).peers[0].public_key;
    let off = adit_ctl::config::disable(&text, peer).expect("it is enabled");
    let mut config = parse(&off);
    let keys = parse(&format!(
        "[Peer]\nPublicKey = {PEER}\nPresharedKey = {KEY}\n"
    ));
    let (_, mistakes) = merge(&mut config, keys);
    assert_eq!(mistakes, [""; 0]);
    assert!(config.disabled[0].preshared_key.is_some());
}
