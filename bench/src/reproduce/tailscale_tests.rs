use super::super::articles::{FIRST, RELEASED, SECOND, UDP_GSO};
use super::*;
use adit_io::Offloads;

#[test]
fn each_step_does_without_less_than_the_one_before() {
    for article in [&FIRST, &SECOND] {
        let steps = article.steps.iter().filter(|step| step.tx_udp_segmentation);
        let lacks: Vec<usize> = steps
            .map(|step| step.disabled.len() + step.without.len() + usize::from(step.library))
            .collect();
        assert!(lacks.is_sorted_by(|a, b| a > b), "{lacks:?}");
    }
}

#[test]
fn steps_turn_off_only_offloads_that_there_are() {
    let mut offloads = Offloads::ALL;
    for name in PLAIN.disabled {
        offloads.disable(name).unwrap();
    }
    assert_eq!(offloads, Offloads::NONE);
    let environment = UDP_GSO.environment();
    assert_eq!(environment[0].1, "tun-tunnel,tun-gro-tunnel");
    assert_eq!(
        environment[1],
        (VARIABLE, "vector-checksum,sized-frames".to_owned())
    );
    assert_eq!(environment[2], ("ADIT_AEAD", "ring".to_owned()));
    assert_eq!(
        RELEASED.environment(),
        [
            ("ADIT_DISABLE_OFFLOADS", String::new()),
            (VARIABLE, String::new())
        ]
    );
}

#[test]
fn every_published_figure_has_a_measure_and_a_subject() {
    let measures = measures(&["cubic".to_owned()]);
    for article in [&FIRST, &SECOND] {
        for of in article.published {
            assert!(
                measures.iter().any(|measure| measure.id == of.measure),
                "{}",
                of.what
            );
            let reference = ["direct", "kernel", "wireguard-go", "tailscale"].contains(&of.subject);
            let step = article.steps.iter().any(|step| step.name == of.subject);
            assert!(reference || step, "{}", of.what);
        }
    }
}
