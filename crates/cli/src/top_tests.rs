use std::collections::BTreeMap;

use adit_ctl::status::{EngineJson, InterfaceJson, PeerJson};

use super::*;

fn peer(key: &str, name: &str, rx: u64) -> PeerJson {
    let mut peer = PeerJson::default();
    key.clone_into(&mut peer.public_key);
    peer.name = Some(name.to_owned());
    peer.state = Some("up".into());
    peer.endpoint = Some("192.0.2.1:51820".into());
    peer.transfer_rx = rx;
    peer
}

/// `known` is what a watcher keeps of the peers; without it they are told whole.
fn look(
    looker: &mut Looker,
    known: Option<&mut Vec<Arc<Known>>>,
    at: Instant,
    rx: u64,
    drops: u64,
) -> Shot {
    let mut interface = InterfaceJson::default();
    "wg0".clone_into(&mut interface.name);
    interface.peers = vec![peer("AAAA", "alice", rx), peer("BBBB", "bob", 2 * rx)];
    interface.engine = Some(EngineJson {
        drops: BTreeMap::from([("no_route".into(), drops), ("replayed".into(), 0)]),
        cpu_milliseconds: BTreeMap::from([("adit-shard-0".into(), rx / 1000)]),
        ..EngineJson::default()
    });
    let mut make = looker.next(at);
    let peers = known.map(|known| {
        for (at, peer) in std::mem::take(&mut interface.peers).iter().enumerate() {
            match known.get_mut(at) {
                Some(before) if before.rx == peer.transfer_rx => {}
                Some(before) => *before = make("wg0", &peer.into(), Some(before)).into(),
                None => known.push(make("wg0", &peer.into(), None).into()),
            }
        }
        known.clone()
    });
    let mut shot = looker.shot(at, vec![Look { interface, peers }], Vec::new());
    shot.interfaces[0].packets = Some([rx / 100, 0]);
    shot
}

#[test]
fn more_bytes_than_can_be_are_shown() {
    let most = u64::MAX / 2;
    let shot = look(&mut Looker::new(None), None, Instant::now(), most, u64::MAX);
    assert_eq!(shot.interfaces[0].bytes[0], u64::MAX);
}

fn top_of(mut known: Option<Vec<Arc<Known>>>) -> Top {
    let mut top = Top::new(&TopArgs {
        interface: None,
        sort: Sort::Rx,
        peer: None,
        interval: 1.0,
    });
    top.colour = false;
    let (start, mut looker) = (Instant::now(), Looker::new(None));
    top.take(look(&mut looker, known.as_mut(), start, 0, 0));
    assert!(top.rows().all(|row| row.rates.is_none()));
    for (second, rx, drops) in [(1, 7000, 0), (2, 7000, 0), (3, 132_000, 40)] {
        let at = start + Duration::from_secs(second);
        top.take(look(&mut looker, known.as_mut(), at, rx, drops));
        if second == 2 {
            // Nobody is told of a peer that rests.
            assert!(top.rows().all(|row| row.rates == Some([0.0; 3])));
        }
    }
    top
}

fn top() -> Top {
    top_of(Some(Vec::new()))
}

/// The screen's lines.
fn screen(top: &Top, width: usize, height: usize) -> Vec<String> {
    let lines = top.screen([width, height]).into_iter();
    let lines: Vec<String> = lines.map(|(text, _)| text).collect();
    assert_eq!(lines.len(), height);
    assert!(lines.iter().all(|line| line.chars().count() <= width));
    (lines.iter().map(|line| line.trim_end().to_owned())).collect()
}

#[test]
fn rates_drops_and_threads_are_those_of_the_last_interval() {
    for known in [None, Some(Vec::new())] {
        rates_are_shown(&top_of(known));
    }
}

fn rates_are_shown(top: &Top) {
    let lines = screen(top, 160, 12);
    let interface = lines
        .iter()
        .find(|line| line.starts_with("wg0 "))
        .expect("wg0");
    for part in ["2/2", "3.00M", "1.25K", "40 no route", "adit-shard-0 12%"] {
        assert!(interface.contains(part), "{part} in {interface}");
    }
    let bob = lines
        .iter()
        .position(|line| line.contains("bob"))
        .expect("bob");
    assert!(lines[bob].contains("2.00M"), "{lines:#?}");
    assert!(lines[bob + 1].contains("alice") && lines[bob + 1].contains("1.00M"));
}

#[test]
fn a_narrow_screen_keeps_names_and_rates() {
    let top = top();
    for (width, shown, left_out) in [
        (
            40,
            vec!["PEER", "RX bit/s", "TX bit/s"],
            vec!["ENDPOINT", "STATE"],
        ),
        (80, vec!["STATE", "HANDSHAKE", "DROP/s"], vec!["LATENCY"]),
        (160, vec!["IFACE", "ENDPOINT", "LATENCY", "PROBLEM"], vec![]),
    ] {
        let lines = screen(&top, width, 12);
        let heading = lines
            .iter()
            .find(|line| line.contains("PEER "))
            .expect("a heading");
        assert!(
            shown.iter().all(|title| heading.contains(title)),
            "{heading}"
        );
        assert!(
            !left_out.iter().any(|title| heading.contains(title)),
            "{heading}"
        );
        assert!(lines.iter().all(|line| line.chars().count() <= width));
    }
    // No size is too small.
    for (width, height) in [(1, 1), (3, 2), (10, 5), (200, 1)] {
        screen(&top, width, height);
    }
}

#[test]
fn keys_sort_filter_pause_and_end() {
    let mut top = top();
    assert!(top.key(KeyPress::Char('/')));
    for c in "ALIq".chars() {
        assert!(top.key(KeyPress::Char(c)));
    }
    assert!(top.order.is_empty());
    assert!(top.key(KeyPress::Backspace));
    assert_eq!(top.order.len(), 1);
    assert!(
        screen(&top, 80, 10)
            .iter()
            .any(|line| line.starts_with("filter: ALI_"))
    );
    assert!(top.key(KeyPress::Enter) && !top.is_typing);
    assert!(screen(&top, 80, 10)[0].contains("1 match \"ALI\""));
    assert!(top.key(KeyPress::Escape));
    assert_eq!(top.order.len(), 2);
    assert!(top.key(KeyPress::PageDown));
    assert_eq!(top.scroll, 1);
    assert!(top.key(KeyPress::Char('p')) && top.is_paused);
    assert_eq!(top.sort, Sort::Rx);
    assert!(top.key(KeyPress::Char('s')));
    assert_eq!(top.sort, Sort::Tx);
    assert!(!top.key(KeyPress::Char('q')));
    assert!(!top.key(KeyPress::ControlC));
}

#[test]
fn the_column_that_rows_are_sorted_by_is_marked_and_shown() {
    let mut top = top();
    for _ in 0..6 {
        let (column, arrow) = match top.sort {
            Sort::Handshake => ("HANDSHAKE", '↓'),
            Sort::Name => ("PEER", '↑'),
            Sort::Endpoint => ("ENDPOINT", '↑'),
            Sort::Rx => ("RX bit/s", '↓'),
            Sort::Tx => ("TX bit/s", '↓'),
            Sort::Drops => ("DROP/s", '↓'),
        };
        for width in [50, 60, 80, 132, 200] {
            let lines = screen(&top, width, 12);
            let heading = lines
                .iter()
                .find(|line| line.contains("PEER") && !line.contains("INTERFACE"))
                .expect("a heading");
            assert!(
                heading.contains(&format!("{column}{arrow}")),
                "{width}: {heading}"
            );
            assert_eq!(heading.matches(['↑', '↓']).count(), 1, "{heading}");
        }
        assert!(top.key(KeyPress::Char('s')));
    }
}

#[test]
fn no_line_of_a_narrow_screen_is_cut_within_a_word() {
    let mut top = top();
    // A long title, and an error.
    for c in "/some words".chars() {
        assert!(top.key(KeyPress::Char(c)));
    }
    assert!(top.key(KeyPress::Enter) && top.key(KeyPress::Char('p')));
    if let Some(last) = &mut top.last {
        last.errors
            .push("cannot ask wg1: its process is stopped or hangs, or has ended".into());
    }
    let words = |lines: &[String]| -> Vec<String> {
        let all = lines.iter().flat_map(|line| line.split([' ', '…', ',']));
        all.map(str::to_owned).collect()
    };
    let whole = words(&screen(&top, 250, 12));
    let help = top
        .key(KeyPress::Char('?'))
        .then(|| words(&screen(&top, 250, 12)));
    let help = help.expect("it goes on");
    for width in 40..=110 {
        for word in words(&screen(&top, width, 12)) {
            assert!(help.contains(&word), "{word:?} at {width}");
        }
    }
    assert!(top.key(KeyPress::Char('?')) && !top.is_helping);
    for width in 40..=110 {
        for word in words(&screen(&top, width, 12)) {
            assert!(whole.contains(&word), "{word:?} at {width}");
        }
    }
}

#[test]
fn a_question_mark_shows_the_keys_and_any_key_hides_them() {
    let mut top = top();
    assert!(screen(&top, 60, 12)[11].starts_with("? help  q quit"));
    assert!(top.key(KeyPress::Char('?')));
    let lines = screen(&top, 60, 12);
    for (at, key) in ["q, Ctrl-C", "s ", "/ "].into_iter().enumerate() {
        assert!(lines[at].starts_with(key), "{lines:#?}");
    }
    assert!(top.key(KeyPress::Char('x')) && !top.is_helping);
    assert!(screen(&top, 60, 12)[0].starts_with("adit: "));
}

#[test]
fn a_long_name_ends_behind_a_word() {
    let mut top = top();
    if let Some(last) = &mut top.last {
        let mut interface = InterfaceJson::default();
        "wg0".clone_into(&mut interface.name);
        interface.peers = vec![peer("AAAA", "Ann's very old telephone", 1)];
        last.rows = view::rows(&[interface], None, Instant::now());
    }
    top.arrange();
    let lines = screen(&top, 60, 12);
    let line = lines.iter().find(|line| line.contains("Ann"));
    let line = line.expect("her telephone");
    assert!(line.starts_with("Ann's very old…   "), "{line}");
}
