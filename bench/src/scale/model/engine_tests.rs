use super::*;

const COSTS: BatchCosts = BatchCosts {
    take: 20_000.0,
    work: 60_000.0,
    put: 20_000.0,
    poll: 0.0,
    fetch_work: 0.0,
    fetch_put: 0.0,
    wake: 0.0,
    wake_call: 0.0,
};

/// Batches for each that one thread commits.
fn speed_up(policy: Policy, shards: usize, queues: usize, costs: BatchCosts) -> f64 {
    let one = 1e9 / (costs.take + costs.work + costs.put + costs.poll);
    let setup = Setup {
        policy,
        shards,
        queues,
        split: Split::Not,
        costs,
    };
    run(setup).rate / one
}

fn is_about(value: f64, expected: f64, share: f64) {
    assert!(
        (value / expected - 1.0).abs() < share,
        "{value} instead of {expected}"
    );
}

#[test]
fn one_shard_needs_the_sum_of_the_stages() {
    for policy in [Policy::Inline, Policy::Auto, Policy::Pipeline] {
        is_about(speed_up(policy, 1, 1, COSTS), 1.0, 0.01);
        is_about(speed_up(policy, 1, 5, COSTS), 1.0, 0.01);
    }
}

#[test]
fn inline_leaves_one_queue_on_one_thread_and_spreads_several() {
    is_about(speed_up(Policy::Inline, 8, 1, COSTS), 1.0, 0.01);
    is_about(speed_up(Policy::Inline, 4, 4, COSTS), 4.0, 0.01);
    is_about(speed_up(Policy::Inline, 2, 4, COSTS), 2.0, 0.01);
}

#[test]
fn a_queue_that_is_all_work_grows_with_threads_up_to_its_depth() {
    let costs = BatchCosts {
        take: 10.0,
        work: 100_000.0,
        put: 10.0,
        ..COSTS
    };
    for shards in [1, 2, 3, 8] {
        let expected = adit_testbed::stats::to_f64(shards);
        is_about(speed_up(Policy::Auto, shards, 1, costs), expected, 0.12);
    }
    let many = speed_up(Policy::Auto, 32, 1, costs);
    assert!(
        many < 16.01,
        "no more than {DEPTH} batches are taken: {many}"
    );
}

#[test]
fn a_queue_is_never_faster_than_its_slower_lock() {
    let costs = BatchCosts {
        put: 50_000.0,
        ..COSTS
    };
    let most = (costs.take + costs.work + costs.put) / costs.put;
    let many = speed_up(Policy::Auto, 16, 1, costs);
    assert!(many <= most * 1.02, "{many} > {most}");
}

#[test]
fn several_commit_locks_leave_the_take_lock_as_the_limit() {
    let costs = BatchCosts {
        put: 50_000.0,
        ..COSTS
    };
    let one = 1e9 / (costs.take + costs.work + costs.put);
    let of = |shards| {
        let setup = Setup {
            policy: Policy::Auto,
            shards,
            queues: 1,
            split: Split::Outbound,
            costs,
        };
        run(setup).rate / one
    };
    is_about(of(2), 2.0, 0.15);
    is_about(of(4), 4.0, 0.15);
    // The take lock is held for 20 of 130 µs.
    assert!(of(16) < 6.6, "{}", of(16));
    let slow = BatchCosts {
        take: 100_000.0,
        ..costs
    };
    let limit = (slow.take + slow.work + slow.put) / slow.take;
    let setup = Setup {
        policy: Policy::Auto,
        shards: 8,
        queues: 1,
        split: Split::Outbound,
        costs: slow,
    };
    let rate = run(setup).rate * (slow.take + slow.work + slow.put) / 1e9;
    assert!(rate <= limit * 1.02, "{rate} > {limit}");
}

#[test]
fn what_arrives_is_committed_by_one_thread_and_delivered_by_several() {
    let costs = BatchCosts {
        take: 10_000.0,
        put: 100_000.0,
        ..COSTS
    };
    let all = costs.take + costs.work + costs.put;
    let of = |shards, split| {
        let setup = Setup {
            policy: Policy::Auto,
            shards,
            queues: 1,
            split,
            costs,
        };
        run(setup).rate * all / 1e9
    };
    is_about(of(8, Split::Not), all / costs.put, 0.05);
    is_about(of(2, Split::Inbound), of(2, Split::Not), 0.01);
    is_about(of(4, Split::Inbound), 4.0, 0.2);
    // Four deliver a flow shard of 90 µs each.
    let limit = all / ((1.0 - COMMIT) * costs.put / 4.0);
    let many = of(16, Split::Inbound);
    assert!(many > 5.0 && many < limit * 1.02, "{many} of {limit}");
    // Committing is in order, by one.
    let slow = all / (COMMIT * costs.put);
    assert!(many < slow);
}

#[test]
fn the_owner_of_a_pipeline_works_too_unless_taking_and_putting_is_all_it_can_do() {
    // It takes and commits in 40 µs, the other one works for 60 µs.
    is_about(speed_up(Policy::Pipeline, 2, 1, COSTS), 2.0, 0.06);
    let costs = BatchCosts {
        take: 50_000.0,
        ..COSTS
    };
    is_about(speed_up(Policy::Pipeline, 4, 1, costs), 130.0 / 70.0, 0.06);
}

#[test]
fn threads_that_only_look_have_a_core_and_sleepers_have_none() {
    let setup = Setup {
        policy: Policy::Inline,
        shards: 4,
        queues: 1,
        split: Split::Not,
        costs: COSTS,
    };
    let busy = run(setup).busy;
    is_about(busy[0], 1.0, 0.001);
    assert!(busy[1..].iter().all(|share| *share == 0.0), "{busy:?}");
    let auto = Setup {
        policy: Policy::Auto,
        ..setup
    };
    assert!(run(auto).busy.iter().all(|share| *share > 0.9));
}

#[test]
fn the_same_setup_has_the_same_outcome() {
    let setup = Setup {
        policy: Policy::Auto,
        shards: 8,
        queues: 3,
        split: Split::Outbound,
        costs: COSTS,
    };
    let (one, other) = (run(setup), run(setup));
    assert_eq!(one.rate.to_bits(), other.rate.to_bits());
    assert_eq!(one.busy, other.busy);
}
