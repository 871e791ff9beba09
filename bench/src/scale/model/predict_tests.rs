use super::*;
use crate::stats::summary;

const CORES: Cores = Cores {
    wake_ns: 0.0,
    wake_call_ns: 0.0,
    fetch_ns_per_byte: 0.0,
    side_by_side: 1.0,
};
const COSTS: StageCosts = StageCosts {
    take_ns: 100.0,
    work_ns: 300.0,
    put_ns: 100.0,
    poll_ns: 0.0,
    packet_bytes: 1452.0,
    batch_packets: 180.0,
};

fn is_about(value: f64, expected: f64) {
    assert!(
        (value / expected - 1.0).abs() < 0.03,
        "{value} instead of {expected}"
    );
}

#[test]
fn one_thread_moves_what_its_stages_allow() {
    let gbps = of_memory(&COSTS, &CORES, Policy::Inline, 1, Split::Not);
    is_about(gbps, COSTS.packet_bytes * 8.0 / COSTS.total_ns());
}

#[test]
fn cores_that_disturb_each_other_are_slower_together_only() {
    let slow = Cores {
        side_by_side: 0.8,
        ..CORES
    };
    let of = |cores, policy| of_memory(&COSTS, cores, policy, 2, Split::Not);
    is_about(of(&slow, Policy::Inline), of(&CORES, Policy::Inline));
    is_about(of(&slow, Policy::Auto), 0.8 * of(&CORES, Policy::Auto));
}

#[test]
fn tunnels_that_share_two_cores_have_what_all_programs_leave() {
    let shared = Shared {
        sender: 1.0,
        receiver: 1.0,
        programs: 1.0,
        interrupts: 1.0,
    };
    let both = [&COSTS, &COSTS];
    let of = |cores, way| of_tunnels(&shared, both, (&CORES, cores), way);
    // Two cores have two seconds a second, and a GB takes four.
    is_about(of(2, (Policy::Inline, 2, 1)), 4.0);
    // With many cores the slowest thread counts: a second a GB.
    is_about(of(16, (Policy::Inline, 2, 1)), 8.0);
    // Three fifths of it are work, which others do.
    is_about(of(16, (Policy::Pipeline, 4, 1)), 16.0);
}

#[test]
fn the_kernel_and_wireguard_go_are_as_they_were_published() {
    for point in published() {
        let far = if point.what == "wireguard-go, 2 cores" {
            0.5
        } else {
            0.12
        };
        let (what, model) = (point.what, point.model_gbps);
        assert!(point.error.abs() < far, "{what}: {model}");
    }
}

#[test]
fn more_cores_or_tunnels_are_never_slower_inline_and_no_line_passes_the_link() {
    let curves = curves([Some(COSTS), Some(COSTS)], &CORES);
    assert_eq!(curves.len(), 6);
    for line in curves.iter().flat_map(|curve| &curve.lines) {
        assert_eq!(line.points.len(), STEPS.len());
        assert!(line.points.iter().all(|point| point.gbps < LINK));
        if line.name == "inline" {
            let rising = line
                .points
                .windows(2)
                .all(|two| two[1].gbps > two[0].gbps * 0.98);
            assert!(
                rising,
                "{:?}",
                line.points.iter().map(|of| of.gbps).collect::<Vec<_>>()
            );
        }
    }
}

#[test]
fn errors_count_in_both_directions() {
    let point = |median: f64, model| {
        let [measured, alone] = [median, median * 1.25].map(|of| summary(&[of]).unwrap());
        let both = [&measured, &alone];
        Validated::new("memory", String::new(), "auto", both, model)
    };
    let points = [point(10.0, 11.0), point(10.0, 8.0), point(10.0, 10.0)];
    let [middle, greatest] = errors(&points, "memory", |point| point.error).unwrap();
    is_about(middle, 0.1);
    is_about(greatest, 0.2);
    is_about(points[1].error_alone, -0.36);
    assert_eq!(errors(&points, "tunnels", |point| point.error), None);
    let goals = goals(&points, [None, None], &CORES);
    assert!(goals.len() == 1 && !goals[0].met);
}
