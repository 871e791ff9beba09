use std::convert::Infallible;
use std::sync::atomic::AtomicUsize;

use super::*;

/// Takes the numbers from 0 on, and puts them into a list.
type Numbers = OrderedQueue<u32, u32, Vec<u32>>;

type Change = fn(&mut [&mut Vec<u32>]) -> bool;

/// One commit lock is in use.
const ONE: (usize, Change) = (1, |_| true);

fn numbers() -> Numbers {
    OrderedQueue::new(0, [Vec::new()])
}

fn take(queue: &Numbers, awaits: bool) -> Taken<u32> {
    let next = |next: &mut u32| {
        *next += 1;
        Ok::<_, Infallible>(Some(*next - 1))
    };
    queue
        .take((awaits, 1), ONE, next)
        .expect("numbers do not end")
}

fn batch(taken: Taken<u32>) -> (SequenceNumber, u32) {
    match taken {
        Taken::Batch(sequence, number) => (sequence, number),
        other => panic!("{other:?}"),
    }
}

fn commit(list: &mut Vec<u32>, number: &mut u32) -> Commit {
    list.push(*number);
    Commit::Done
}

fn file(queue: &Numbers, (sequence, number): (SequenceNumber, u32)) {
    queue.file(sequence, number);
    queue.proceed(0, commit, drop);
}

fn have(queue: &Numbers) -> Vec<u32> {
    queue.with(0, |list| list.clone())
}

#[test]
fn batches_are_committed_in_the_order_in_which_they_were_taken() {
    let queue = numbers();
    let [first, second, third] = [(); 3].map(|()| batch(take(&queue, false)));
    assert!(queue.is_head(&first.0) && !queue.is_head(&second.0));
    file(&queue, third);
    file(&queue, second);
    assert_eq!(have(&queue), [], "the first is not done");
    file(&queue, first);
    assert_eq!(have(&queue), [0, 1, 2]);
}

#[test]
fn a_batch_that_is_blocked_is_the_next_when_it_can_go_on() {
    let queue = numbers();
    let [first, second] = [(); 2].map(|()| batch(take(&queue, false)));
    queue.file(first.0, first.1);
    queue.proceed(0, |_, _| Commit::Blocked, drop);
    queue.file(second.0, second.1);
    queue.proceed(0, |_, _| Commit::Blocked, drop);
    assert_eq!(have(&queue), []);
    let mut done = Vec::new();
    queue.proceed(0, commit, |number| done.push(number));
    assert_eq!(have(&queue), [0, 1]);
    assert_eq!(done, [0, 1]);
}

#[test]
fn no_more_are_taken_than_may_be_and_who_asked_is_told() {
    let queue = numbers();
    let sequences: Vec<_> = (0..depth(1, 1))
        .map(|_| batch(take(&queue, true)))
        .collect();
    assert!(!queue.was_awaited(), "nobody had to wait");
    assert!(matches!(take(&queue, false), Taken::Full));
    assert!(!queue.was_awaited(), "nobody asked to be told");
    assert!(matches!(take(&queue, true), Taken::Full));
    let mut told = Vec::new();
    for (sequence, number) in sequences {
        queue.file(sequence, number);
        queue.proceed(0, commit, |_| told.push(queue.was_awaited()));
    }
    assert_eq!(told, [true, false, false, false]);
    assert_eq!(batch(take(&queue, true)).1, 4);
}

#[test]
fn each_thread_has_a_batch_to_work_on_and_another_that_waits() {
    assert_eq!([1, 2, 3, 5].map(|threads| depth(threads, 1)), [4, 4, 6, 10]);
    assert_eq!([depth(64, 1), depth(64, 2)], [DEPTH, 8]);
    let queue = numbers();
    let mut taken = 0;
    let next = |next: &mut u32| {
        *next += 1;
        Ok::<_, Infallible>(Some(*next - 1))
    };
    while let Ok(Taken::Batch(sequence, number)) = queue.take((false, 64), ONE, next) {
        // The other batches wait for the first one.
        if number > 0 {
            file(&queue, (sequence, number));
        }
        taken += 1;
    }
    assert_eq!(taken, DEPTH, "each has a slot of its own");
}

#[test]
fn what_is_being_taken_is_not_waited_for() {
    let queue = numbers();
    let within = |_: &mut u32| {
        assert!(matches!(take(&queue, true), Taken::Busy));
        Ok::<_, Infallible>(None::<u32>)
    };
    assert!(matches!(
        queue.take((true, 1), ONE, within),
        Ok(Taken::Nothing)
    ));
    assert_eq!(batch(take(&queue, true)).1, 0);
}

/// Threads that take, work for random times and file, as long as there is something.
#[test]
fn several_threads_keep_the_order_and_leave_nothing_behind() {
    const LAST: u32 = 20_000;
    let queue: OrderedQueue<u32, u32, Vec<u32>> = OrderedQueue::new(0, [Vec::new()]);
    let taken = AtomicUsize::new(0);
    let run = |seed: u32| {
        let mut dice = seed;
        loop {
            let next = |next: &mut u32| {
                let number = (*next < LAST).then_some(*next);
                *next += u32::from(number.is_some());
                Ok::<_, Infallible>(number)
            };
            match queue.take((false, 1), ONE, next).expect("numbers") {
                Taken::Batch(sequence, number) => {
                    taken.fetch_add(1, Ordering::Relaxed);
                    dice = dice.wrapping_mul(0x9E37_79B1).wrapping_add(1);
                    if dice >> 24 == 0 {
                        std::thread::yield_now();
                    }
                    file(&queue, (sequence, number));
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
    assert!(have(&queue).into_iter().eq(0..LAST));
    assert_eq!(taken.into_inner(), LAST as usize);
}

#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "goes to sleep with sequence number [0]")]
fn a_thread_that_sleeps_with_a_sequence_number_panics() {
    let queue = numbers();
    let first = batch(take(&queue, false));
    let second = batch(take(&queue, false));
    file(&queue, second);
    crate::thread::progress::sleeps();
    file(&queue, first);
}

#[cfg(debug_assertions)]
#[test]
fn a_thread_that_left_its_sequence_number_to_another_may_sleep() {
    let queue = numbers();
    let (sequence, number) = batch(take(&queue, false));
    let sequence = sequence.leave();
    crate::thread::progress::sleeps();
    file(&queue, (sequence.take_over(), number));
    crate::thread::progress::sleeps();
    assert_eq!(have(&queue), [0]);
}

/// The stall of CVE-2026-52945: the head is not done yet, what is behind it is, and nothing further
/// arrives. The thread that did the work goes away; there, no thread came back for it.
#[test]
fn what_waits_behind_a_head_goes_with_it_without_a_further_arrival() {
    let queue = numbers();
    let mut taken: Vec<_> = (0..depth(1, 1))
        .map(|_| batch(take(&queue, true)))
        .collect();
    let head = taken.remove(0);
    for behind in taken.into_iter().rev() {
        file(&queue, behind);
    }
    assert_eq!(have(&queue), []);
    assert!(matches!(take(&queue, true), Taken::Full));
    queue.file(head.0, head.1);
    let mut woken = 0;
    queue.proceed(0, commit, |_| woken += u32::from(queue.was_awaited()));
    assert_eq!(have(&queue), [0, 1, 2, 3]);
    assert_eq!(woken, 1, "the owner, which found too much taken, is told");
}

/// Passes both locks with the next number, which is committed or left.
fn pass(queue: &Numbers, commits: bool) -> bool {
    let passed = queue.pass(|next, list| {
        *next += 1;
        let mut number = *next - 1;
        let left = (!commits || commit(list, &mut number) == Commit::Blocked).then_some(number);
        ((), left)
    });
    passed.is_some()
}

#[test]
fn a_batch_passes_both_locks_where_none_is_on_its_way() {
    let queue = numbers();
    assert!(pass(&queue, true) && pass(&queue, true));
    assert_eq!(have(&queue), [0, 1]);
    let third = batch(take(&queue, false));
    assert!(!pass(&queue, true), "the third is not committed");
    file(&queue, third);
    assert!(pass(&queue, true));
    assert_eq!(have(&queue), [0, 1, 2, 3]);
    queue.set_closed(true);
    assert!(!pass(&queue, true));
    queue.set_closed(false);
    let inner = queue.pass(|_, _| (matches!(take(&queue, true), Taken::Busy), None));
    assert_eq!(inner, Some(true), "nothing else is taken meanwhile");
}

#[test]
fn a_batch_that_cannot_pass_is_the_next_when_it_can_go_on() {
    let queue = numbers();
    assert!(pass(&queue, false));
    assert!(!queue.is_drained() && !pass(&queue, true));
    let second = batch(take(&queue, false));
    queue.file(second.0, second.1);
    assert_eq!(have(&queue), []);
    queue.proceed(0, commit, drop);
    assert_eq!(have(&queue), [0, 1]);
    assert!(queue.is_drained() && pass(&queue, true));
}

/// The same with two commit locks.
type Two = OrderedQueue<u32, u32, Vec<u32>, 2>;

fn take_for_both(queue: &Two, number: usize, change: bool) -> Taken<u32> {
    let next = |next: &mut u32| {
        *next += 1;
        Ok::<_, Infallible>(Some(*next - 1))
    };
    let taken = queue.take((true, 1), (number, |_: &mut [&mut Vec<u32>]| change), next);
    taken.expect("numbers do not end")
}

fn file_both((sequence, number): (SequenceNumber, u32), queue: &Two) {
    queue.file_split(sequence, [number; 2]);
}

#[test]
fn each_second_gate_has_a_flow_shard_of_every_batch_in_order() {
    let queue = Two::new(0, [Vec::new(), Vec::new()]);
    let first = batch(take_for_both(&queue, 2, true));
    let second = batch(take_for_both(&queue, 2, true));
    file_both(second, &queue);
    file_both(first, &queue);
    queue.proceed(1, commit, drop);
    assert_eq!(queue.with(1, |list| list.clone()), [0, 1]);
    assert!(
        !queue.is_drained(),
        "the other commit lock has its flow shard"
    );
    queue.proceed(0, commit, drop);
    assert_eq!(queue.with(0, |list| list.clone()), [0, 1]);
    assert!(queue.is_drained());
}

#[test]
fn the_number_of_commit_locks_changes_when_all_is_committed_and_may_be_refused() {
    let queue = Two::new(0, [Vec::new(), Vec::new()]);
    let (sequence, number) = batch(take_for_both(&queue, 1, true));
    assert!(matches!(take_for_both(&queue, 2, true), Taken::Full));
    queue.file(sequence, number);
    queue.proceed(0, commit, drop);
    assert!(queue.was_awaited(), "it can go on now");
    let refused = batch(take_for_both(&queue, 2, false));
    assert_eq!(queue.in_use(), 1);
    queue.file(refused.0, refused.1);
    queue.proceed(0, commit, drop);
    let third = batch(take_for_both(&queue, 2, true));
    assert_eq!(queue.in_use(), 2);
    file_both(third, &queue);
    queue.proceed(0, commit, drop);
    queue.proceed(1, commit, drop);
    assert_eq!(queue.with(0, |list| list.clone()), [0, 1, 2]);
    assert_eq!(queue.with(1, |list| list.clone()), [2]);
}
