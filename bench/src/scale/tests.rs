use super::*;

#[test]
fn two_threads_are_judged_by_what_one_moves() {
    let row = |load, policy: Policy, gbps| Row {
        load,
        policy: policy.name(),
        threads: 2,
        gbps: summary(&[gbps]).unwrap(),
        gbps_alone: summary(&[gbps]).unwrap(),
        cpu_s_per_gb: summary(&[1.0]).unwrap(),
    };
    let rows = [
        row("to one peer", Policy::Inline, 10.0),
        row("to one peer", Policy::Auto, 18.0),
        row("from one peer", Policy::Inline, 10.0),
        row("from one peer", Policy::Auto, 15.0),
    ];
    let met: Vec<bool> = judge(&rows).iter().map(|goal| goal.met).collect();
    assert_eq!(
        met,
        [true, false, false, false],
        "what is missing is missed"
    );
}

#[test]
fn the_engine_in_memory_moves_packets_by_each_policy() {
    for (_, policy) in Policy::ALL {
        let settings = ThreadSettings {
            policy,
            ..ThreadSettings::from(2)
        };
        for direction in [Direction::Outbound, Direction::Inbound] {
            let rate = memory::measure(&settings, 2, direction, 64 << 20).unwrap();
            assert!(rate.gbps > 0.0 && rate.cpu > 0.0);
        }
    }
}
