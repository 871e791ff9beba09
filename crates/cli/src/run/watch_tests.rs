use adit_engine::{BatchCounters, TrainCounters, WaitingCounters};
use adit_io::Offloads;
use adit_proto::HandshakeStats;

use super::*;

fn report(no_route: u64, offloads: Offloads) -> EngineReport {
    EngineReport {
        offloads,
        refused_trains: 0,
        aead: "ring",
        drops: vec![("no_route", no_route), ("replayed", 0)],
        ignored: Vec::new(),
        passed: Vec::new(),
        icmp_errors: Vec::new(),
        handshakes: HandshakeStats::default(),
        shards: 1,
        refused: Vec::new(),
        outbound: BatchCounters::default(),
        inbound: BatchCounters::default(),
        rx_queues: Vec::new(),
        rx_queue_loads: Vec::new(),
        sent_trains: TrainCounters::default(),
        received_trains: TrainCounters::default(),
        waiting: WaitingCounters::default(),
    }
}

#[test]
fn drops_start_and_end_and_offloads_are_lost_once() {
    let mut lost = Offloads::ALL;
    lost.udp_gso = false;
    let start = Instant::now();
    let mut seen = SeenReport::new(&report(5, Offloads::ALL));
    let mut look = |tenths: u32, dropped, offloads| {
        let mut told = Vec::new();
        let now = start + Duration::from_millis(100) * tenths;
        seen.look(&report(dropped, offloads), now, |kind, reason, count, _| {
            told.push((kind, reason.to_owned(), count));
        });
        told
    };
    let (started, ended) = (EventKind::DropsStarted, EventKind::DropsEnded);
    let no_route = || "no_route".to_owned();
    assert!(look(1, 5, Offloads::ALL).is_empty());
    assert_eq!(look(2, 7, Offloads::ALL), [(started, no_route(), Some(2))]);
    assert!(look(3, 9, Offloads::ALL).is_empty());
    assert!(
        look(12, 9, Offloads::ALL).is_empty(),
        "not quiet for long enough"
    );
    assert_eq!(look(13, 9, Offloads::ALL), [(ended, no_route(), Some(4))]);
    assert!(look(30, 9, Offloads::ALL).is_empty());
    let udp_gso = (EventKind::OffloadLost, "udp-gso".to_owned(), None);
    assert_eq!(look(31, 9, lost), [udp_gso]);
    assert!(look(32, 9, lost).is_empty());
}
