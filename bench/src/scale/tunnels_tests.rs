use super::*;

#[test]
fn every_load_spreads_its_flows_evenly_over_its_tunnels() {
    let loads = loads();
    assert_eq!(loads.len(), FLOWS.len() + TUNNELS.len() + OFFERED.len());
    assert!(loads.is_sorted_by_key(|load| load.tunnels));
    assert!(
        loads
            .iter()
            .all(|load| load.flows % u32::from(load.tunnels) == 0)
    );
}

fn row(policy: &'static str, offered_gbps: Option<f64>, gbps: f64, cpu: f64) -> Row {
    let of = |value: f64| summary(&[value]).unwrap();
    Row {
        tunnels: 1,
        flows: 4,
        offered_gbps,
        policy,
        threads: 2,
        gbps: of(gbps),
        gbps_alone: of(gbps),
        sender_cpu_s_per_gb: of(cpu / 2.0),
        receiver_cpu_s_per_gb: of(cpu / 2.0),
        load_cpu_s_per_gb: of(1.0),
        machine_cpu_s_per_gb: of(1.0),
        thread_load: BTreeMap::new(),
        core_load: Vec::new(),
        retransmits: of(0.0),
    }
}

#[test]
fn auto_stands_beside_the_better_policy_of_each_load() {
    let rows = [
        // As fast as it goes: the faster one counts, and what it takes.
        row("inline", None, 8.0, 1.0),
        row("pipeline", None, 4.0, 0.5),
        row("auto", None, 7.2, 1.1),
        // At a rate: the cheaper one.
        row("pipeline", Some(1.0), 1.001, 2.0),
        row("inline", Some(1.0), 1.0, 1.5),
        row("auto", Some(1.0), 1.0, 1.8),
    ];
    let goals = goals(&rows.iter().collect::<Vec<_>>());
    let values: Vec<f64> = goals.iter().filter_map(|goal| goal.value).collect();
    assert!(
        (values[0] - 0.9).abs() < 1e-9 && (values[1] - 1.2).abs() < 1e-9,
        "{values:?}"
    );
    assert!(goals.iter().all(|goal| !goal.met));
    assert_eq!(super::goals(&[]), []);
}

#[test]
fn shares_are_those_of_the_time_between() {
    let thread = |id, name: &str, millis| ThreadTime {
        id,
        name: name.to_owned(),
        time: Duration::from_millis(millis),
    };
    let core = |user, interrupts| CoreTime {
        user: Duration::from_millis(user),
        system: Duration::ZERO,
        interrupts: Duration::from_millis(interrupts),
    };
    let at = Instant::now();
    let before = Usage {
        at,
        cores: vec![core(100, 0)],
        threads: [vec![thread(1, "shard", 1000)], vec![thread(9, "shard", 5)]],
        load: Duration::ZERO,
    };
    let after = Usage {
        at: at + Duration::from_secs(2),
        cores: vec![core(1100, 500)],
        // A worker that is new, and a thread that slept.
        threads: [
            vec![thread(1, "shard", 2000), thread(2, "shard", 400)],
            vec![thread(9, "shard", 5)],
        ],
        load: Duration::ZERO,
    };
    let (threads, cores, ends) = after.since(&before);
    assert_eq!(threads, BTreeMap::from([("sender shard".to_owned(), 0.7)]));
    assert_eq!(ends, [0.7, 0.0]);
    let load = CoreLoad {
        user: 0.5,
        system: 0.0,
        interrupts: 0.25,
    };
    assert_eq!(cores, [load]);
    assert!((load.busy() - 0.75).abs() < 1e-9);
}

#[test]
fn what_other_programs_took_is_given_back() {
    let sample = |machine| Sample {
        gbps: 4.0,
        ends: [1.0, 1.0],
        load: 1.0,
        machine,
        threads: BTreeMap::new(),
        cores: vec![CoreLoad::default(); 2],
        retransmits: 0.0,
    };
    assert!((sample(3.0).alone() - 4.0).abs() < 1e-9);
    // Half a GB a second, two seconds a GB more: one of two cores.
    assert!((sample(5.0).alone() - 8.0).abs() < 1e-9);
}
