//! What must hold of all files of the corpus: each peer has its own name, and whatever changes one
//! leaves every byte of the others.

use adit_proto::config::{AllowedIpChange, DeviceStatus, PeerStatus, Secret};
use proptest::prelude::*;

use super::corpus::{FileLayout, LAYOUTS, NAMES, head, key, public, settings};
use super::{save, strip, with_section, without_peer};
use crate::config::model::Config;

fn file((_, head, peer): &FileLayout, peers: &[u8]) -> String {
    let peers = peers.iter().map(|n| peer(*n, NAMES[usize::from(*n) - 1]));
    head() + &peers.collect::<String>()
}

fn names(text: &str) -> Vec<Option<String>> {
    let config =
        Config::parse(text, "wg0.conf").unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    config.peers.into_iter().map(|peer| peer.name).collect()
}

fn given(peers: &[u8]) -> Vec<Option<String>> {
    let name = |n: &u8| Some(NAMES[usize::from(*n) - 1].to_owned());
    peers.iter().map(name).collect()
}

/// What runs after `adit up` of this file.
fn device(text: &str) -> DeviceStatus {
    let config = Config::parse(text, "wg0.conf").expect("a configuration");
    let peer = |peer: &super::PeerSection| {
        let blocks = peer.allowed_ips.iter().map(|change| match change {
            AllowedIpChange::Add(block) | AllowedIpChange::Remove(block) => *block,
        });
        PeerStatus {
            preshared_key: peer.preshared_key.clone(),
            allowed_ips: blocks.collect(),
            ..PeerStatus::new(peer.public_key)
        }
    };
    DeviceStatus {
        private_key: config.interface.private_key,
        listen_port: 51820,
        peers: config.peers.iter().map(peer).collect(),
        ..DeviceStatus::default()
    }
}

fn saved(text: &str, device: &DeviceStatus) -> String {
    let addresses = [super::InterfaceAddress {
        ip: [10, 8, 0, 1].into(),
        prefix_len: 24,
    }];
    save(text, device, &addresses, None).to_string()
}

fn solid(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .collect()
}

/// As it is, without a final line end, and with those of Windows.
fn variants(text: &str) -> [String; 4] {
    let dos = text.replace('\n', "\r\n");
    [
        text.to_owned(),
        text.trim_end_matches('\n').to_owned(),
        dos.trim_end_matches("\r\n").to_owned(),
        format!("\u{feff}{dos}"),
    ]
}

#[test]
fn each_peer_has_its_own_name_in_every_layout() {
    for layout in &LAYOUTS {
        for text in variants(&file(layout, &[1, 2, 3])) {
            assert_eq!(names(&text), given(&[1, 2, 3]), "{}:\n{text}", layout.0);
            assert_eq!(names(&strip(&text)), given(&[1, 2, 3]), "{}", layout.0);
        }
    }
}

#[test]
fn a_removal_takes_one_peer_out_of_every_layout() {
    for layout in &LAYOUTS {
        for gone in 1..=3_u8 {
            let rest: Vec<u8> = (1..=3).filter(|n| *n != gone).collect();
            let wholes = variants(&file(layout, &[1, 2, 3]));
            for (text, expected) in wholes.iter().zip(variants(&file(layout, &rest))) {
                let left = without_peer(text, public(gone)).expect("it is there");
                assert_eq!(solid(&left), solid(&expected), "{}", layout.0);
                assert_eq!(names(&left), given(&rest), "{}:\n{}", layout.0, *left);
                let mut device = device(text);
                device.peers.retain(|peer| peer.public_key != public(gone));
                assert_eq!(saved(text, &device), *left, "{}", layout.0);
            }
        }
    }
}

#[test]
fn what_is_added_to_any_layout_is_named_and_goes_without_a_trace() {
    for layout in &LAYOUTS {
        for text in variants(&file(layout, &[1, 2])) {
            let section = format!("[Peer]\n# friendly_name = {}\n{}", NAMES[2], settings(3));
            let longer = with_section(&text, &section);
            assert!(longer.starts_with(&text));
            assert_eq!(
                names(&longer),
                given(&[1, 2, 3]),
                "{}:\n{}",
                layout.0,
                *longer
            );
            let is_dos = text.contains("\r\n");
            assert_eq!(
                longer.matches('\n').count() == longer.matches("\r\n").count(),
                is_dos
            );
            let left = without_peer(&longer, public(3)).expect("it is there");
            assert_eq!(left.trim_end(), text.trim_end(), "{}", layout.0);
            let is_whole = text.ends_with('\n');
            assert!(!is_whole || *left == text, "{}", layout.0);
        }
    }
}

#[test]
fn saving_what_runs_as_its_file_says_changes_no_byte() {
    for layout in &LAYOUTS {
        for text in variants(&file(layout, &[1, 2, 3])) {
            assert_eq!(saved(&text, &device(&text)), text, "{}", layout.0);
        }
    }
}

#[test]
fn saving_another_value_changes_that_value_only() {
    for layout in &LAYOUTS {
        for text in variants(&file(layout, &[1, 2, 3])) {
            let text = text.replace("10.8.0.2/32", "10.8.0.2/32\t# its LAN later");
            let mut device = device(&text);
            let new = adit_proto::config::Cidr::new([10, 9, 0, 0].into(), 16).expect("a block");
            device.peers[1].allowed_ips = vec![new];
            device.peers[1].preshared_key = Some(Secret::new(&[77; 32]));
            let expected = text
                .replace("10.8.0.2/32", "10.9.0.0/16")
                .replace(&key(102), &key(77));
            assert_eq!(saved(&text, &device), expected, "{}", layout.0);
        }
    }
}

/// Peers that are switched off by hand or by a script, and what stands above groups.
const BYSTANDERS: [&str; 10] = [
    "#[Peer]\n#PublicKey = x\n#AllowedIPs = 10.8.0.90/32\n",
    "# carol\n#[Peer]\n#PublicKey = x\n#AllowedIPs = 10.8.0.90/32\n",
    "### begin carol ###\n#[Peer]\n#PublicKey = x\n### end carol ###\n",
    "#[disabled] ### begin carol ###\n#[disabled] [Peer]\n#[disabled] PublicKey = x\n#[disabled] ### end carol ###\n",
    "# friendly_name = carol\n# [Peer]\n# PublicKey = x\n# # in May\n# AllowedIPs = 10.8.0.90/32\n",
    "# BEGIN_PEER carol\n# END_PEER carol\n",
    "# Endpoint = 192.0.2.1:1\n# PublicKey = x\n",
    "# phones\n",
    "##############\n# The office #\n##############\n",
    "# Name = nobody's\n#[Peer]\n#PublicKey = x\n# friendly_name = carol\n",
];

#[test]
fn commented_out_peers_and_headings_stay() {
    for layout in &LAYOUTS {
        for bystander in BYSTANDERS {
            let (_, head, peer) = layout;
            let (one, two) = (peer(1, NAMES[0]), peer(2, NAMES[1]));
            let by = format!("\n{bystander}\n");
            for [a, b, c] in [[&by, "", ""], ["", &by, ""], ["", "", &by], [&by, &by, &by]] {
                let text = format!("{}{a}{one}{b}{two}{c}", head());
                assert_eq!(names(&text), given(&[1, 2]), "{}:\n{text}", layout.0);
                for (gone, rest) in [(1, &two), (2, &one)] {
                    let left = without_peer(&text, public(gone)).expect("it is there");
                    let expected = match gone {
                        1 => format!("{}{a}{b}{rest}{c}", head()),
                        _ => format!("{}{a}{rest}{b}{c}", head()),
                    };
                    assert_eq!(solid(&left), solid(&expected), "{}:\n{text}", layout.0);
                    assert_eq!(names(&left), given(&[3 - gone]), "{}:\n{text}", layout.0);
                }
            }
        }
    }
}

#[test]
fn commented_out_peers_stay_where_no_blank_line_parts_them() {
    let off = "# carol\n#[Peer]\n#PublicKey = x\n#AllowedIPs = 10.8.0.90/32\n";
    for (a, b) in [(off, ""), ("", off), (off, off)] {
        let (one, two) = (settings(1), settings(2));
        let text = format!(
            "{}{a}# phone\n[Peer]\n{one}{b}# laptop 2\n[Peer]\n{two}",
            head()
        );
        assert_eq!(names(&text), given(&[1, 2]), "{text}");
        let left = without_peer(&text, public(1)).expect("it is there");
        assert_eq!(*left, format!("{}{a}{b}# laptop 2\n[Peer]\n{two}", head()));
    }
}

#[test]
fn settings_around_a_commented_out_peer_are_its_neighbours() {
    let text = format!(
        "{}\n[Peer]\n# phone\nPublicKey = {}\n#[Peer]\n#PublicKey = x\nAllowedIPs = 10.8.0.1/32\n# last\n",
        head(),
        key(1)
    );
    assert_eq!(names(&text), given(&[1]));
    let left = without_peer(&text, public(1)).expect("it is there");
    assert_eq!(solid(&left[head().len()..]), ["#[Peer]", "#PublicKey = x"]);
}

#[test]
fn comments_that_give_no_name() {
    for comment in [
        "# phones\n\n",
        "#\n",
        "# ---------\n",
        "# Peers\n",
        "# Created at: 2024-01-01\n",
        "# ID: 7\n# Name:   \n# Email: a@example.com\n",
        "# [disabled]\n",
        "# Endpoint = 192.0.2.1:1\n",
        "# friendly_json={\"id\":7}\n",
        "# friendly_json={broken\n",
        "### end carol ###\n",
    ] {
        let text = format!("{}\n{comment}[Peer]\n{}", head(), settings(1));
        assert_eq!(names(&text), [None], "{text}");
    }
    let secret = format!("{}\n# {}\n[Peer]\n{}", head(), key(9), settings(1));
    assert_eq!(names(&secret), [None]);
}

/// A pair around several peers is a group, and one that is torn names the next peer at most.
#[test]
fn pairs_around_no_peer_or_several_are_nobodys() {
    let two = format!(
        "[Peer]\n{}\n[Peer]\n# laptop 2\n{}",
        settings(1),
        settings(2)
    );
    let text = format!("{}\n# begin phones\n\n{two}# end phones\n", head());
    assert_eq!(names(&text)[1..], given(&[2]));
    let left = without_peer(&text, public(1)).expect("it is there");
    assert!(left.contains("# begin phones") && left.contains("# end phones"));
    let left = without_peer(&left, public(2)).expect("it is there");
    assert_eq!(
        solid(&left),
        solid(&format!("{}# begin phones\n# end phones\n", head()))
    );
}

/// A peer's part in some layout that a blank line parts from its neighbours.
fn part() -> impl Strategy<Value = (usize, usize, bool, bool)> {
    (
        0..LAYOUTS.len(),
        0..=BYSTANDERS.len(),
        any::<bool>(),
        any::<bool>(),
    )
}

proptest! {
    /// Files that several programs and people wrote.
    #[test]
    fn a_removal_leaves_every_other_line_and_name(parts in proptest::collection::vec(part(), 1..8), dos in any::<bool>(), cut in any::<bool>()) {
        let mut pieces = vec![(None, head())];
        let mut expected = Vec::new();
        for (n, (layout, bystander, below, tabs)) in (1_u8..).zip(parts) {
            let name = format!("peer-{n}");
            let mut piece = LAYOUTS[layout].2(n, &name);
            if tabs {
                piece = piece.replace(" = ", "\t=\t").replace("friendly_name\t=\t", "friendly_name = ");
            }
            let by = BYSTANDERS.get(bystander).copied().unwrap_or_default();
            let by = (None, format!("\n{by}\n"));
            let piece = (Some(n), format!("\n{piece}\n"));
            // Names behind the last setting are for files that have all of them there.
            expected.push((n, Some(name)));
            pieces.extend(if below { [piece, by] } else { [by, piece] });
        }
        let make = |without: Option<u8>| {
            let pieces = pieces.iter().filter(|(n, _)| n.is_none() || *n != without);
            let text: String = pieces.map(|(_, text)| text.as_str()).collect();
            let text = if dos { text.replace('\n', "\r\n") } else { text };
            if cut { text.trim_end().to_owned() } else { text }
        };
        let whole = make(None);
        let all: Vec<Option<String>> = expected.iter().map(|(_, name)| name.clone()).collect();
        prop_assert_eq!(&names(&whole), &all, "{}", whole);
        for (gone, _) in &expected {
            let left = without_peer(&whole, public(*gone)).expect("it is there");
            let others = make(Some(*gone));
            prop_assert_eq!(solid(&left), solid(&others));
            let rest = expected.iter().filter(|(n, _)| n != gone);
            let rest: Vec<Option<String>> = rest.map(|(_, name)| name.clone()).collect();
            prop_assert_eq!(names(&left), rest, "{}", *left);
        }
    }

    /// Whatever the lines are: nothing but the peer's lines goes, and no other peer's name changes.
    #[test]
    fn a_removal_from_any_lines_renames_no_other_peer(lines in proptest::collection::vec(0..14_usize, 0..40)) {
        removals_rename_no_other_peer(&lines)?;
    }
}

/// What random lines found.
#[test]
fn a_removal_leaves_a_name_between_settings_that_are_off() {
    removals_rename_no_other_peer(&[0, 7, 0, 11, 13, 6, 12, 6, 0]).expect("the names stay");
}

fn removals_rename_no_other_peer(lines: &[usize]) -> Result<(), TestCaseError> {
    let mut text = head();
    let mut n = 0_u8;
    for line in lines {
        let header = "[Peer]\n".to_owned();
        text += &match *line {
            0..3 => {
                n += 1;
                header + &format!("PublicKey = {}\n", key(n))
            }
            3 => {
                n += 1;
                format!("[Peer] # {n}\n# Name = {n}\nPublicKey = {}\n", key(n))
            }
            4 | 5 => "\n".into(),
            6 => "# friendly_name = f\n".into(),
            7 => "# Name: n\n".into(),
            8 => "# plain\n".into(),
            // Right above a header, it would be a pair as soon as one peer is left in it.
            9 => "# BEGIN_PEER b\n\n".into(),
            10 => "# END_PEER b\n".into(),
            11 => "#[Peer]\n".into(),
            12 => "#PublicKey = x\n".into(),
            _ => "PersistentKeepalive = 0\n"
                .replace(
                    "PersistentKeepalive",
                    if n == 0 { "MTU" } else { "PersistentKeepalive" },
                )
                .replace("MTU = 0", "MTU = 1400"),
        };
    }
    let before = names(&text);
    for gone in 1..=n {
        let left = without_peer(&text, public(gone)).expect("it is there");
        let mut rest = before.clone();
        rest.remove(usize::from(gone) - 1);
        prop_assert_eq!(names(&left), rest, "{}\n-----\n{}", text, *left);
        // The lines that are left stand in the same order.
        let mut lines = text.lines();
        for line in solid(&left) {
            prop_assert!(lines.any(|old| old == line), "{}\n-----\n{}", text, *left);
        }
        let count = |text: &str| text.matches("\nPublicKey").count();
        prop_assert_eq!(count(&left) + 1, count(&text));
    }
    Ok(())
}

/// Labels of a file that has them below each peer, and of one that has them within.
#[test]
fn a_label_between_two_peers_is_whose_the_file_says() {
    let peer = |n| format!("[Peer]\nPublicKey = {}\n", key(n));
    let below = format!("{}{}# Name = a\n{}# Name = b\n", head(), peer(1), peer(2));
    let within = format!(
        "{}[Peer]\n# Name = a\nPublicKey = {}\n# friendly_name = b\n{}",
        head(),
        key(1),
        peer(2)
    );
    for text in [below, within] {
        let both = [Some("a".to_owned()), Some("b".to_owned())];
        assert_eq!(names(&text), both, "{text}");
        for (gone, left) in [(1, 1), (2, 0)] {
            let text = without_peer(&text, public(gone)).expect("it is there");
            assert_eq!(names(&text), [both[left].clone()], "{}", *text);
        }
    }
}

#[test]
fn a_pair_around_several_peers_outlives_them() {
    let peer = |n| format!("[Peer]\nPublicKey = {}\n", key(n));
    let pair = ["### begin staff ###\n", "### end staff ###\n"];
    let text = head() + pair[0] + &peer(1) + &peer(2) + pair[1] + &peer(3);
    let one = without_peer(&text, public(1)).expect("it is there");
    let none = without_peer(&one, public(2)).expect("it is there");
    for text in [&*one, &*none] {
        assert!(pair.iter().all(|line| text.contains(line)), "{text}");
        assert!(names(text).iter().all(Option::is_none), "{text}");
    }
}
