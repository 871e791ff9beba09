use super::*;

#[test]
fn goals_are_ratios_to_ring_of_what_was_measured() {
    let cell = |implementation: &str, op, len, batch, ns_per_packet| Cell {
        implementation: implementation.to_owned(),
        op,
        len,
        batch,
        gbytes_per_s: 0.0,
        ns_per_packet,
        cycles_per_byte: None,
    };
    let table = Table {
        schema: 1,
        command: "aead",
        cpu: String::new(),
        adit: "avx2",
        results: vec![
            cell("adit-avx2", Op::Seal, 1420, 45, 100.0),
            cell("ring", Op::Seal, 1420, 45, 140.0),
            cell("adit-avx2", Op::Open, 64, 1, 100.0),
            cell("ring", Op::Open, 64, 1, 90.0),
        ],
        goals: Vec::new(),
    };
    let goals = goals(&table);
    let judged: Vec<_> = goals
        .iter()
        .map(|goal| (goal.name.as_str(), goal.met))
        .collect();
    let expected = [
        ("seal 1420 bytes, batch 45, adit-avx2 of ring", true),
        ("open 64 bytes, batch 1, adit-avx2 of ring", false),
    ];
    assert_eq!(judged, expected);
    assert!((goals[0].value.unwrap() - 1.4).abs() < 1e-9);
}
