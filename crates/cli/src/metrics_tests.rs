use std::collections::BTreeMap;

use adit_ctl::status::{
    BatchesJson, EngineJson, FailureJson, InterfaceJson, PeerJson, TrainsJson, WaitingJson,
};

use adit_fleet::{AgentStatus, SourceState};

use super::page::push_number;
use super::{Collected, Look};

fn interface() -> InterfaceJson {
    let mut peer = PeerJson::default();
    "KEY=".clone_into(&mut peer.public_key);
    peer.name = Some("a \"b\" \\ c\nd".into());
    peer.allowed_ips = vec!["10.0.0.1/32".into(), "fd00::/64".into()];
    peer.latest_handshake = Some(1000);
    peer.handshake_microseconds = Some(1_002_003);
    peer.path_mtu = Some(1280);
    peer.transfer_rx = 7;
    peer.transfer_tx = 8;
    peer.state = Some("up".into());
    peer.last_failure = Some(FailureJson {
        at: 900,
        reason: "no_answer".into(),
    });
    peer.drops = BTreeMap::from([("replayed".into(), 3)]);
    let mut interface = InterfaceJson::default();
    "wg0".clone_into(&mut interface.name);
    interface.peers.push(peer);
    interface.engine = Some(EngineJson {
        version: "1".into(),
        aead: "ring".into(),
        pid: 17,
        started: 500,
        drops: BTreeMap::from([("no_route".into(), 4)]),
        offloads: BTreeMap::from([("udp-gso".into(), false)]),
        cpu_milliseconds: BTreeMap::from([("adit-ctl".into(), 1_050)]),
        sent_trains: Some(TrainsJson {
            counts: vec![5, 0, 1],
            datagrams: 12,
        }),
        inbound: Some(BatchesJson {
            batches: 3,
            contents: 30,
            helped: 1,
        }),
        waiting: Some(WaitingJson {
            staged_frames: 2,
            staged_packets: 3,
            ..WaitingJson::default()
        }),
        ..EngineJson::default()
    });
    interface
}

#[test]
fn metrics_have_the_exporters_names_and_labels_and_more() {
    let mut collected = Collected::default();
    let interface = interface();
    collected.add(Look {
        interface,
        peers: None,
    });
    collected.silent.push("wg1".into());
    collected.agents.push(AgentStatus {
        interface: "wg2".into(),
        is_running: true,
        state: SourceState::Listed,
        records: 9,
        refused: 2,
        applied: 7,
        ..AgentStatus::default()
    });
    let mut text = Vec::new();
    let put = &mut |piece: &[u8]| {
        text.extend_from_slice(piece);
        Ok(())
    };
    collected.render(put).expect("a document");
    let text = String::from_utf8(text).expect("text");
    let peer = r#"interface="wg0",public_key="KEY=",allowed_ips="10.0.0.1/32,fd00::/64",friendly_name="a \"b\" \\ c\nd""#;
    for line in [
        format!("wireguard_sent_bytes_total{{{peer}}} 8"),
        format!("wireguard_received_bytes_total{{{peer}}} 7"),
        format!("wireguard_latest_handshake_seconds{{{peer}}} 1000"),
        format!("adit_peer_up{{{peer}}} 1"),
        format!("adit_peer_path_mtu_bytes{{{peer}}} 1280"),
        "adit_dropped_packets_total{interface=\"wg0\",reason=\"no_route\"} 4".into(),
        "adit_offload_enabled{interface=\"wg0\",offload=\"udp-gso\"} 0".into(),
        "adit_thread_cpu_seconds_total{pid=\"17\",thread=\"adit-ctl\"} 1.050".into(),
        "adit_sent_train_datagrams_bucket{interface=\"wg0\",le=\"1\"} 5".into(),
        "adit_sent_train_datagrams_bucket{interface=\"wg0\",le=\"2\"} 5".into(),
        "adit_sent_train_datagrams_bucket{interface=\"wg0\",le=\"+Inf\"} 6".into(),
        "adit_sent_train_datagrams_sum{interface=\"wg0\"} 12".into(),
        "adit_sent_train_datagrams_count{interface=\"wg0\"} 6".into(),
        "adit_helped_batches_total{interface=\"wg0\",direction=\"inbound\"} 1".into(),
        "adit_waiting{interface=\"wg0\",what=\"staged_frames\"} 2".into(),
        "adit_interface_answers{interface=\"wg0\"} 1".into(),
        "adit_interface_answers{interface=\"wg1\"} 0".into(),
        "adit_agent_up{interface=\"wg2\"} 1".into(),
        "adit_agent_works{interface=\"wg2\"} 1".into(),
        "adit_agent_records{interface=\"wg2\"} 9".into(),
        "adit_agent_refused_records{interface=\"wg2\"} 2".into(),
        "adit_agent_peers{interface=\"wg2\"} 7".into(),
    ] {
        assert!(text.lines().any(|other| other == line), "{line} in\n{text}");
    }
    let latency = "adit_peer_handshake_latency_seconds{interface=\"wg0\"";
    let latency = text
        .lines()
        .find(|line| line.starts_with(latency))
        .expect("a line");
    assert!(latency.ends_with(" 1.002003"), "{latency}");
    // What a peer has not is left out, and what an agent has not.
    assert!(!text.contains("adit_agent_last_list_timestamp_seconds{"));
    assert!(!text.contains("last_attempt_timestamp_seconds{"));
    for reason in ["reason=\"replayed\"} 3", "reason=\"no_answer\"} 1"] {
        assert!(text.contains(reason), "{reason}");
    }
}

/// The process of an interface may be in the hands of an intruder; the others are still to be seen.
#[test]
fn counts_that_no_process_can_have_are_told() {
    let mut interface = interface();
    for lengths in [2, 64, 65, 1000] {
        let counts = vec![u64::MAX; lengths];
        interface.engine.as_mut().expect("one").sent_trains = Some(TrainsJson {
            counts,
            datagrams: u64::MAX,
        });
        let mut collected = Collected::default();
        collected.add(Look {
            interface: interface.clone(),
            peers: None,
        });
        let mut told = 0;
        let put = &mut |piece: &[u8]| {
            told += piece.len();
            Ok(())
        };
        collected.render(put).expect("a document");
        assert!(told > 0);
    }
}

#[test]
fn numbers_are_those_of_format() {
    for number in [0, 7, 10, 1_234_567_890, u64::MAX] {
        let mut text = "x".to_owned();
        push_number(&mut text, number);
        assert_eq!(text, format!("x{number}"));
    }
}
