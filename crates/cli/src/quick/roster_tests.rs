use adit_ctl::config::disable;

use super::*;

fn public(n: u8) -> PublicKey {
    Secret::new(&[n; 32]).public_key()
}

fn key(n: u8) -> String {
    public(n).to_string()
}

fn peer(n: u8, name: &str, allowed: &str) -> String {
    let key = key(n);
    format!("[Peer]\n# Name = {name}\nPublicKey = {key}\nAllowedIPs = {allowed}\n\n")
}

fn running(n: u8, allowed: &[&str], handshake: Option<u64>) -> PeerJson {
    let mut peer = PeerJson::default();
    peer.public_key = key(n);
    peer.allowed_ips = allowed.iter().map(|it| (*it).to_owned()).collect();
    peer.latest_handshake = handshake;
    peer
}

fn roster(text: &str, peers: Option<Vec<PeerJson>>) -> Roster {
    let config = Config::parse(text, "wg0.conf").expect("a configuration");
    let running = peers.map(|peers| {
        let mut interface = InterfaceJson::default();
        interface.peers = peers;
        interface
    });
    Roster::new(("wg0", "wg0".into()), Some(&config), running.as_ref())
}

fn found(roster: &Roster, words: &str) -> std::result::Result<PublicKey, String> {
    let found = roster.find(words).map(|entry| entry.key);
    found.map_err(|failure| failure.to_string())
}

#[test]
fn a_peer_is_found_by_name_key_and_address() {
    let text = peer(1, "phone", "10.0.0.2/32, fd00::2/128") + &peer(9, "site", "10.9.0.0/16");
    let off = disable(&text, public(9)).expect("it is enabled");
    let all = roster(&off, Some(vec![running(5, &["10.0.0.7/32"], None)]));
    for (words, n) in [
        ("phone", 1),
        (key(1).as_str(), 1),
        (&key(1)[..4], 1),
        (&format!("{}…", &key(1)[..8]), 1),
        ("10.0.0.2", 1),
        ("10.0.0.2/32", 1),
        ("fd00::2", 1),
        // Disabled, and only running.
        ("site", 9),
        ("10.9.1.2", 9),
        ("10.9.0.0/16", 9),
        ("10.0.0.7", 5),
        (&key(5)[..7], 5),
    ] {
        assert_eq!(found(&all, words), Ok(public(n)), "{words}");
    }
}

#[test]
fn an_unknown_peer_is_answered_with_those_that_there_are() {
    let text = peer(1, "phone", "10.0.0.2/32") + &peer(2, "gateway", "0.0.0.0/0");
    let all = roster(&text, Some(vec![running(5, &[], None)]));
    for words in [
        "Phone",
        "10.0.0.9",
        "10.0.0.0/24",
        &key(1)[..3],
        &key(7),
        "",
    ] {
        let said = found(&all, words).expect_err(words);
        assert!(said.contains("no such peer"), "{said}");
        let peers = format!("its peers are {}…, gateway, phone", &key(5)[..8]);
        assert!(said.contains(&peers), "{said}");
        assert_eq!(said.lines().count(), 1);
    }
    let none = found(&roster("[Interface]\n", None), "phone");
    assert!(none.expect_err("there is none").ends_with("it has none"));
    // A secret that was typed is not repeated.
    let secret = format!("{}A", key(3));
    assert!(
        !found(&all, &secret)
            .expect_err("none")
            .contains(&key(3)[..20])
    );
}

#[test]
fn where_several_are_meant_none_is_chosen() {
    let text = peer(1, "phone", "10.0.0.2/32") + &peer(2, "phone", "10.0.0.2/32");
    let mut twin = public(8);
    twin.0[31] ^= 1;
    let mut two = running(8, &[], None);
    two.public_key = twin.to_string();
    let all = roster(&text, Some(vec![running(8, &[], None), two]));
    for (words, how) in [
        ("phone", "with the name phone"),
        ("10.0.0.2", "with the address 10.0.0.2"),
        (&key(8)[..6], "whose keys begin with"),
    ] {
        let said = found(&all, words).expect_err(words);
        assert!(said.contains(&format!("wg0 has 2 peers {how}")), "{said}");
    }
    // The longest that has an address owns it, as of packets.
    let text = peer(1, "site", "10.0.0.0/16") + &peer(2, "host", "10.0.0.2/32");
    assert_eq!(found(&roster(&text, None), "10.0.0.2"), Ok(public(2)));
    // A name is what it says, whatever it looks like.
    let text = peer(1, "10.0.0.9", "10.0.0.2/32") + &peer(2, "host", "10.0.0.9/32");
    assert_eq!(found(&roster(&text, None), "10.0.0.9"), Ok(public(1)));
}

#[test]
fn a_state_says_whether_a_peer_has_a_session() {
    let text: String = (1..=5).map(|n| peer(n, &n.to_string(), "")).collect();
    let off = disable(&text, public(5)).expect("it is enabled");
    let mut gone = running(3, &[], Some(990));
    gone.state = Some("gone".into());
    let peers = vec![
        running(1, &[], Some(900)),
        running(2, &[], Some(800)),
        gone,
        running(4, &[], None),
    ];
    let all = roster(&off, Some(peers));
    let states: Vec<Option<PeerActivity>> = all.peers.iter().map(|it| it.state(1000)).collect();
    let [connected, idle, never] = [
        PeerActivity::Connected,
        PeerActivity::Idle,
        PeerActivity::Never,
    ]
    .map(Some);
    assert_eq!(
        states,
        [connected, idle, idle, never, Some(PeerActivity::Disabled)]
    );
    let stopped = roster(&off, None);
    let states: Vec<Option<PeerActivity>> = stopped.peers.iter().map(|it| it.state(1000)).collect();
    assert_eq!(
        states,
        [None, None, None, None, Some(PeerActivity::Disabled)]
    );
}

#[test]
fn what_is_in_one_place_only_is_said() {
    let text = peer(1, "a", "") + &peer(2, "b", "") + &peer(3, "c", "");
    let off = disable(&text, public(3)).expect("it is enabled");
    let peers = vec![1, 3, 4].into_iter().map(|n| running(n, &[], None));
    let all = roster(&off, Some(peers.collect()));
    let notes: Vec<String> = (all.peers.iter())
        .map(|it| it.note(&all).unwrap_or_default())
        .collect();
    let begins = [
        "",
        "only in the file",
        "disabled in the file, and still",
        "only running",
    ];
    assert_eq!(notes.len(), begins.len());
    for (note, begin) in notes.iter().zip(begins) {
        assert!(
            note.starts_with(begin) && note.is_empty() == begin.is_empty(),
            "{note}"
        );
    }
    let all = all.with_agent(HashMap::from([(public(4), "d.conf".into())]));
    let note = all.peers[3].note(&all);
    assert_eq!(note.as_deref(), Some("of the agent's record d.conf"));
    let stopped = roster(&off, None);
    assert!(stopped.peers.iter().all(|it| it.note(&stopped).is_none()));
}

#[test]
fn a_word_for_a_shell_is_quoted() {
    for (word, shown) in [
        ("phone", "phone"),
        ("my phone", "'my phone'"),
        ("it's $HOME", r"'it'\''s $HOME'"),
        ("-x", "'-x'"),
    ] {
        assert_eq!(quoted(word), shown);
    }
}

#[test]
fn what_was_used_of_a_quota_is_known_of_a_stopped_interface() {
    let limited = |n, quota: &str| peer(n, "a", "").trim_end().to_owned() + quota;
    let text =
        limited(1, "\n# Quota = 1k\n\n") + &limited(2, "\n# Quota = 2k\n\n") + &peer(3, "c", "");
    let used = [1, 2, 3, 4].map(|n| (public(n), 1_500));
    let all = roster(&text, None).with_used(used);
    let known: Vec<_> = (all.peers.iter())
        .map(|it| {
            it.allowance
                .as_ref()
                .map(|of| (of.used_bytes, of.access.as_str()))
        })
        .collect();
    assert_eq!(
        known,
        [Some((1_500, "over_quota")), Some((1_500, "open")), None]
    );
}
