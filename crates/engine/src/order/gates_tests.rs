use std::convert::Infallible;
use std::sync::atomic::AtomicUsize;

use super::*;

/// Takes the numbers from 0 on, and puts them into a list.
type Numbers = Gates<u32, u32, Vec<u32>>;

type Change = fn(&mut [&mut Vec<u32>]) -> bool;

/// One second gate is in use.
const ONE: (usize, Change) = (1, |_| true);

fn numbers() -> Numbers {
    Gates::new(0, [Vec::new()])
}

fn take(gates: &Numbers, awaits: bool) -> Taken<u32> {
    let next = |next: &mut u32| {
        *next += 1;
        Ok::<_, Infallible>(Some(*next - 1))
    };
    gates
        .take((awaits, 1), ONE, next)
        .expect("numbers do not end")
}

fn batch(taken: Taken<u32>) -> (SequenceNumber, u32) {
    match taken {
        Taken::Batch(sequence, number) => (sequence, number),
        other => panic!("{other:?}"),
    }
}

fn put(list: &mut Vec<u32>, number: &mut u32) -> Put {
    list.push(*number);
    Put::Done
}

fn file(gates: &Numbers, (sequence, number): (SequenceNumber, u32)) {
    gates.file(sequence, number);
    gates.proceed(0, put, drop);
}

fn have(gates: &Numbers) -> Vec<u32> {
    gates.with(0, |list| list.clone())
}

#[test]
fn batches_are_put_in_the_order_in_which_they_were_taken() {
    let gates = numbers();
    let [first, second, third] = [(); 3].map(|()| batch(take(&gates, false)));
    assert!(gates.is_head(&first.0) && !gates.is_head(&second.0));
    file(&gates, third);
    file(&gates, second);
    assert_eq!(have(&gates), [], "the first is not done");
    file(&gates, first);
    assert_eq!(have(&gates), [0, 1, 2]);
}

#[test]
fn a_batch_that_is_blocked_is_the_next_when_it_can_go_on() {
    let gates = numbers();
    let [first, second] = [(); 2].map(|()| batch(take(&gates, false)));
    gates.file(first.0, first.1);
    gates.proceed(0, |_, _| Put::Blocked, drop);
    gates.file(second.0, second.1);
    gates.proceed(0, |_, _| Put::Blocked, drop);
    assert_eq!(have(&gates), []);
    let mut done = Vec::new();
    gates.proceed(0, put, |number| done.push(number));
    assert_eq!(have(&gates), [0, 1]);
    assert_eq!(done, [0, 1]);
}

#[test]
fn no_more_are_taken_than_may_be_and_who_asked_is_told() {
    let gates = numbers();
    let sequences: Vec<_> = (0..depth(1, 1))
        .map(|_| batch(take(&gates, true)))
        .collect();
    assert!(!gates.was_awaited(), "nobody had to wait");
    assert!(matches!(take(&gates, false), Taken::Full));
    assert!(!gates.was_awaited(), "nobody asked to be told");
    assert!(matches!(take(&gates, true), Taken::Full));
    let mut told = Vec::new();
    for (sequence, number) in sequences {
        gates.file(sequence, number);
        gates.proceed(0, put, |_| told.push(gates.was_awaited()));
    }
    assert_eq!(told, [true, false, false, false]);
    assert_eq!(batch(take(&gates, true)).1, 4);
}

#[test]
fn each_thread_has_a_batch_to_work_on_and_another_that_waits() {
    assert_eq!([1, 2, 3, 5].map(|threads| depth(threads, 1)), [4, 4, 6, 10]);
    assert_eq!([depth(64, 1), depth(64, 2)], [DEPTH, 8]);
    let gates = numbers();
    let mut taken = 0;
    let next = |next: &mut u32| {
        *next += 1;
        Ok::<_, Infallible>(Some(*next - 1))
    };
    while let Ok(Taken::Batch(sequence, number)) = gates.take((false, 64), ONE, next) {
        // The other batches wait for the first one.
        if number > 0 {
            file(&gates, (sequence, number));
        }
        taken += 1;
    }
    assert_eq!(taken, DEPTH, "each has a slot of its own");
}

#[test]
fn what_is_being_taken_is_not_waited_for() {
    let gates = numbers();
    let within = |_: &mut u32| {
        assert!(matches!(take(&gates, true), Taken::Busy));
        Ok::<_, Infallible>(None::<u32>)
    };
    assert!(matches!(
        gates.take((true, 1), ONE, within),
        Ok(Taken::Nothing)
    ));
    assert_eq!(batch(take(&gates, true)).1, 0);
}

/// Threads that take, work for random times and file, as long as there is something.
#[test]
fn several_threads_keep_the_order_and_leave_nothing_behind() {
    const LAST: u32 = 20_000;
    let gates: Gates<u32, u32, Vec<u32>> = Gates::new(0, [Vec::new()]);
    let taken = AtomicUsize::new(0);
    let run = |seed: u32| {
        let mut dice = seed;
        loop {
            let next = |next: &mut u32| {
                let number = (*next < LAST).then_some(*next);
                *next += u32::from(number.is_some());
                Ok::<_, Infallible>(number)
            };
            match gates.take((false, 1), ONE, next).expect("numbers") {
                Taken::Batch(sequence, number) => {
                    taken.fetch_add(1, Ordering::Relaxed);
                    dice = dice.wrapping_mul(0x9E37_79B1).wrapping_add(1);
                    if dice >> 24 == 0 {
                        std::thread::yield_now();
                    }
                    file(&gates, (sequence, number));
                }
                Taken::Nothing => return,
                Taken::Busy | Taken::Full => std::thread::yield_now(),
            }
        }
    };
    std::thread::scope(|scope| {
        let run = &run;
        for seed in 1..=4 {
            scope.spawn(move || run(seed));
        }
    });
    assert!(have(&gates).into_iter().eq(0..LAST));
    assert_eq!(taken.into_inner(), LAST as usize);
}

#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "goes to sleep with sequence number [0]")]
fn a_thread_that_sleeps_with_a_sequence_number_panics() {
    let gates = numbers();
    let first = batch(take(&gates, false));
    let second = batch(take(&gates, false));
    file(&gates, second);
    crate::thread::progress::sleeps();
    file(&gates, first);
}

#[cfg(debug_assertions)]
#[test]
fn a_thread_that_left_its_sequence_number_to_another_may_sleep() {
    let gates = numbers();
    let (sequence, number) = batch(take(&gates, false));
    let sequence = sequence.leave();
    crate::thread::progress::sleeps();
    file(&gates, (sequence.take_over(), number));
    crate::thread::progress::sleeps();
    assert_eq!(have(&gates), [0]);
}

/// The stall of CVE-2026-52945: the head is not done yet, what is behind it is, and nothing further
/// arrives. Whoever did the work goes away; there, no thread came back for it.
#[test]
fn what_waits_behind_a_head_goes_with_it_without_a_further_arrival() {
    let gates = numbers();
    let mut taken: Vec<_> = (0..depth(1, 1))
        .map(|_| batch(take(&gates, true)))
        .collect();
    let head = taken.remove(0);
    for behind in taken.into_iter().rev() {
        file(&gates, behind);
    }
    assert_eq!(have(&gates), []);
    assert!(matches!(take(&gates, true), Taken::Full));
    gates.file(head.0, head.1);
    let mut woken = 0;
    gates.proceed(0, put, |_| woken += u32::from(gates.was_awaited()));
    assert_eq!(have(&gates), [0, 1, 2, 3]);
    assert_eq!(woken, 1, "the owner, which found too much taken, is told");
}

/// Passes both gates with the next number, which is put or left.
fn pass(gates: &Numbers, puts: bool) -> bool {
    let passed = gates.pass(|next, list| {
        *next += 1;
        let mut number = *next - 1;
        let left = (!puts || put(list, &mut number) == Put::Blocked).then_some(number);
        ((), left)
    });
    passed.is_some()
}

#[test]
fn a_batch_passes_both_gates_where_none_is_on_its_way() {
    let gates = numbers();
    assert!(pass(&gates, true) && pass(&gates, true));
    assert_eq!(have(&gates), [0, 1]);
    let third = batch(take(&gates, false));
    assert!(!pass(&gates, true), "the third is not put");
    file(&gates, third);
    assert!(pass(&gates, true));
    assert_eq!(have(&gates), [0, 1, 2, 3]);
    gates.set_closed(true);
    assert!(!pass(&gates, true));
    gates.set_closed(false);
    let inner = gates.pass(|_, _| (matches!(take(&gates, true), Taken::Busy), None));
    assert_eq!(inner, Some(true), "nothing else is taken meanwhile");
}

#[test]
fn a_batch_that_cannot_pass_is_the_next_when_it_can_go_on() {
    let gates = numbers();
    assert!(pass(&gates, false));
    assert!(!gates.is_drained() && !pass(&gates, true));
    let second = batch(take(&gates, false));
    gates.file(second.0, second.1);
    assert_eq!(have(&gates), []);
    gates.proceed(0, put, drop);
    assert_eq!(have(&gates), [0, 1]);
    assert!(gates.is_drained() && pass(&gates, true));
}

/// The same with two second gates.
type Two = Gates<u32, u32, Vec<u32>, 2>;

fn take_for_both(gates: &Two, number: usize, change: bool) -> Taken<u32> {
    let next = |next: &mut u32| {
        *next += 1;
        Ok::<_, Infallible>(Some(*next - 1))
    };
    let taken = gates.take((true, 1), (number, |_: &mut [&mut Vec<u32>]| change), next);
    taken.expect("numbers do not end")
}

fn parts_of((sequence, number): (SequenceNumber, u32), gates: &Two) {
    gates.file_parts(sequence, [number; 2]);
}

#[test]
fn each_second_gate_has_a_part_of_every_batch_in_order() {
    let gates = Two::new(0, [Vec::new(), Vec::new()]);
    let first = batch(take_for_both(&gates, 2, true));
    let second = batch(take_for_both(&gates, 2, true));
    parts_of(second, &gates);
    parts_of(first, &gates);
    gates.proceed(1, put, drop);
    assert_eq!(gates.with(1, |list| list.clone()), [0, 1]);
    assert!(!gates.is_drained(), "the other gate has its parts");
    gates.proceed(0, put, drop);
    assert_eq!(gates.with(0, |list| list.clone()), [0, 1]);
    assert!(gates.is_drained());
}

#[test]
fn the_number_of_second_gates_changes_when_all_is_put_and_may_be_refused() {
    let gates = Two::new(0, [Vec::new(), Vec::new()]);
    let (sequence, number) = batch(take_for_both(&gates, 1, true));
    assert!(matches!(take_for_both(&gates, 2, true), Taken::Full));
    gates.file(sequence, number);
    gates.proceed(0, put, drop);
    assert!(gates.was_awaited(), "it can go on now");
    let refused = batch(take_for_both(&gates, 2, false));
    assert_eq!(gates.in_use(), 1);
    gates.file(refused.0, refused.1);
    gates.proceed(0, put, drop);
    let third = batch(take_for_both(&gates, 2, true));
    assert_eq!(gates.in_use(), 2);
    parts_of(third, &gates);
    gates.proceed(0, put, drop);
    gates.proceed(1, put, drop);
    assert_eq!(gates.with(0, |list| list.clone()), [0, 1, 2]);
    assert_eq!(gates.with(1, |list| list.clone()), [2]);
}
