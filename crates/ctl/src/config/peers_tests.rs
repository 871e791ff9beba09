use super::super::corpus::{LAYOUTS, NAMES};
use super::*;
use crate::config::model::Config;
use crate::keys;

fn public(n: u8) -> PublicKey {
    PublicKey([n; 32])
}

/// The files of three peers that programs write.
fn files() -> impl Iterator<Item = (&'static str, String)> {
    LAYOUTS.iter().map(|(program, head, peer)| {
        let peers = (1..).zip(NAMES).map(|(n, name)| peer(n, name));
        (*program, head() + &peers.collect::<String>())
    })
}

fn parse(text: &str) -> Config {
    Config::parse(text, "wg0.conf").expect("a configuration")
}

/// The keys and names of peers.
fn listed(peers: &[crate::config::PeerSection]) -> Vec<(PublicKey, Option<&str>)> {
    let pair = |peer: &'_ crate::config::PeerSection| peer.public_key;
    (peers.iter())
        .map(|peer| (pair(peer), peer.name.as_deref()))
        .collect()
}

fn without_warnings(text: &str) -> Config {
    Config {
        warnings: Vec::new(),
        ..parse(text)
    }
}

#[test]
fn peers_come_back_as_they_were_in_whatever_order() {
    for (program, text) in files() {
        for order in [[1, 2, 3], [3, 2, 1], [2, 3, 1], [2, 1, 3]] {
            for back in [[1, 2, 3], [3, 1, 2]] {
                let all = Zeroizing::new(text.clone());
                let off = order.iter().fold(all, |text, n| {
                    disable(&text, public(*n)).expect("it is enabled")
                });
                assert!(parse(&off).peers.is_empty(), "{program}: {}", *off);
                let on = back.iter().fold(off, |text, n| {
                    enable(&text, public(*n)).expect("it is disabled")
                });
                assert_eq!(*on, text, "{program}");
            }
        }
    }
}

#[test]
fn a_disabled_peer_keeps_its_name_and_gives_it_to_nobody() {
    for (program, text) in files() {
        let before = parse(&text);
        for n in 1..=3 {
            let off = disable(&text, public(n)).expect("it is enabled");
            let now = parse(&off);
            let mut rest = before.peers.clone();
            let gone = rest.remove(usize::from(n) - 1);
            assert_eq!(now.peers, rest, "{program}: {}", *off);
            assert_eq!(now.disabled, [gone], "{program}: {}", *off);
            assert_eq!(now.interface, before.interface, "{program}");
            // wg and wg-quick see nothing of it.
            let key = keys::to_base64(&public(n).0);
            let seen = off.lines().map(|line| line.split('#').next().unwrap_or(""));
            assert!(!seen.into_iter().any(|line| line.contains(key.as_str())));
        }
    }
}

#[test]
fn lines_of_a_disabled_peer_go_with_nobody_else() {
    for (program, text) in files() {
        for (off, gone) in [(1, 2), (2, 1), (2, 3), (3, 2)] {
            let removed = without_peer(&text, public(gone)).expect("it is there");
            let both = disable(&text, public(off)).expect("it is enabled");
            let both = without_peer(&both, public(gone)).expect("it is there");
            let now = enable(&both, public(off)).expect("it is disabled");
            assert_eq!(*now, *removed, "{program}");
        }
        let off = disable(&text, public(2)).expect("it is enabled");
        let now = without_peer(&off, public(2)).expect("it is disabled");
        assert_eq!(
            *now,
            *without_peer(&text, public(2)).expect("it is there"),
            "{program}"
        );
    }
}

#[test]
fn a_file_of_another_line_end_or_none_comes_back() {
    let text = "\u{feff}[Peer]\r\n# alice\r\n\r\nPublicKey = AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\r\n \r\n\
                AllowedIPs = 10.0.0.2/32";
    let off = disable(text, public(1)).expect("it is enabled");
    assert!(
        off.starts_with("\u{feff}# disabled: [Peer]\r\n# disabled: # alice\r\n# disabled:\r\n"),
        "{}",
        *off
    );
    assert_eq!(listed(&parse(&off).disabled), [(public(1), Some("alice"))]);
    assert_eq!(*enable(&off, public(1)).expect("it is disabled"), text);
    // An editor cut the spaces at the ends.
    let cut = off.replace("# disabled: \r\n", "# disabled:\r\n");
    assert_eq!(parse(&cut).disabled.len(), 1);
}

#[test]
fn a_comment_that_begins_like_a_disabled_peer_is_a_comment() {
    let peer = |n: u8| format!("[Peer]\nPublicKey = {}\n", *keys::to_base64(&[n; 32]));
    for comment in [
        "# disabled: because he left\n",
        "# disabled:\n",
        "# disabled: phone = x\n",
        "# disabled: [Interface]\n# disabled: MTU = 1400\n",
    ] {
        for text in [
            format!("{}\n{comment}\n{}", peer(1), peer(2)),
            format!("{comment}\n{}{}", peer(1), peer(2)),
            format!("{}{comment}{}", peer(1), peer(2)),
        ] {
            assert_eq!(parse(&text).disabled, [], "{text}");
            assert_eq!(parse(&text).peers.len(), 2, "{text}");
            // Right below the peer, some would become a part of it.
            if let Some(off) = disable(&text, public(1)) {
                assert_eq!(parse(&off).disabled.len(), 1, "{}", *off);
                assert_eq!(*enable(&off, public(1)).expect("it is disabled"), text);
            } else {
                assert!(text.contains(&format!("=\n{comment}[Peer]")), "{text}");
            }
        }
    }
}

/// Enabled by hand, and one line forgotten.
#[test]
fn a_setting_is_never_two_peers() {
    let peer = |n: u8| format!("[Peer]\nPublicKey = {}\n", *keys::to_base64(&[n; 32]));
    let text = format!("{}\n{}AllowedIPs = 10.0.0.2/32\n", peer(1), peer(2));
    let off = disable(&text, public(2)).expect("it is enabled");
    let torn = off.replace("# disabled: AllowedIPs", "AllowedIPs");
    let now = parse(&torn);
    assert_eq!(now.disabled, []);
    assert_eq!(now.peers[0].allowed_ips.len(), 1, "{torn}");
    assert_eq!(enable(&torn, public(2)), None);
}

#[test]
fn a_name_is_changed_where_it_stands() {
    for (program, text) in files() {
        for n in 1..=3_u8 {
            let new = rename(&text, public(n), "Ärztin 7").expect("it has a name");
            let mut wanted = without_warnings(&text);
            wanted.peers[usize::from(n) - 1].name = Some("Ärztin 7".into());
            assert_eq!(without_warnings(&new), wanted, "{program}: {}", *new);
            // What any tool obeys stays, and no line more is there.
            assert_eq!(new.lines().count(), text.lines().count(), "{program}");
            let old = NAMES[usize::from(n) - 1];
            let back = rename(&new, public(n), old).expect("it has a name");
            assert_eq!(*back, text, "{program}");
            // The same while it is disabled.
            let off = disable(&text, public(n)).expect("it is enabled");
            let off = rename(&off, public(n), "Ärztin 7").expect("it has a name");
            assert_eq!(*enable(&off, public(n)).expect("it is disabled"), *new);
        }
    }
}

#[test]
fn a_peer_without_a_name_gets_a_comment() {
    let peer = |n: u8| format!("[Peer]\nPublicKey = {}\n", *keys::to_base64(&[n; 32]));
    let text = peer(1) + &peer(2);
    let new = rename(&text, public(2), "bob").expect("there is room");
    let line = "[Peer]\n# friendly_name = bob\n";
    assert_eq!(*new, peer(1) + &peer(2).replace("[Peer]\n", line));
    let off = disable(&text, public(1)).expect("it is enabled");
    let off = rename(&off, public(1), "al").expect("there is room");
    assert!(off.starts_with("# disabled: [Peer]\n# disabled: # friendly_name = al\n"));
    assert_eq!(rename(&text, public(3), "carol"), None);
    // A program could not tell it from a key.
    assert_eq!(rename(&text, public(1), &"a".repeat(40)), None);
}

#[test]
fn a_name_that_its_comment_cannot_hold_goes_into_another() {
    let key = keys::to_base64(&[1; 32]);
    for text in [
        format!(
            "[Peer]\n# friendly_json={{\"name\":\"bob\"}}\nPublicKey = {}\n",
            *key
        ),
        format!("# Peers: bob\n[Peer]\nPublicKey = {}\n", *key),
    ] {
        let new = rename(&text, public(1), "the \"new\" one").expect("there is room");
        assert_eq!(
            listed(&parse(&new).peers),
            [(public(1), Some("the \"new\" one"))]
        );
    }
}
