//! The ordered queue and its ownership in every interleaving of the threads that have to do with
//! them: `make loom`.

#![cfg(loom)]

#[path = "../src/order"]
mod order {
    #[allow(dead_code, reason = "the model uses a part")]
    pub(crate) mod ordered_queue;
    #[allow(dead_code, reason = "the model uses a part")]
    pub(crate) mod rx_queues;
}
#[path = "../src/thread"]
mod thread {
    #[allow(dead_code, reason = "the model uses a part")]
    pub(crate) mod ownership;
    #[cfg(debug_assertions)]
    #[allow(dead_code, reason = "the model uses a part")]
    pub(crate) mod progress;
    #[allow(unused_imports, reason = "the model uses a part")]
    pub(crate) mod sync;
}

use std::collections::VecDeque;
use std::convert::Infallible;

use adit_io::Grace;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread::{spawn, yield_now};
use order::ordered_queue::{Commit, OrderedQueue, Taken, depth};
use order::rx_queues::{ChangeProgress, RxQueues};
use thread::ownership::Ownership;

/// Takes numbers from 0 on, and puts them into a list.
type Numbers = OrderedQueue<u32, u32, Vec<u32>>;

fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 100_000;
    builder.preemption_bound = Some(3);
    builder.check(model);
}

fn take(queue: &Numbers, awaits: bool) -> Taken<u32> {
    let next = |next: &mut u32| {
        *next += 1;
        Ok::<_, Infallible>(Some(*next - 1))
    };
    let one = (1, |_: &mut [&mut Vec<u32>]| true);
    queue
        .take((awaits, 1), one, next)
        .expect("numbers do not end")
}

fn commit(list: &mut Vec<u32>, number: &mut u32) -> Commit {
    list.push(*number);
    Commit::Done
}

/// Takes and files one batch, if no other thread is taking. Whether it did.
fn one(queue: &Numbers) -> bool {
    let Taken::Batch(sequence, number) = take(queue, false) else {
        return false;
    };
    yield_now();
    queue.file(sequence, number);
    queue.proceed(0, commit, drop);
    true
}

/// Invariants 2 and 6: what is filed is committed, in order, without anybody who looks at it later.
#[test]
fn what_two_threads_file_is_committed_in_order() {
    explore(|| {
        let queue = Arc::new(Numbers::new(0, [Vec::new()]));
        let other = {
            let queue = Arc::clone(&queue);
            spawn(move || u32::from(one(&queue)) + u32::from(one(&queue)))
        };
        let taken = u32::from(one(&queue)) + other.join().unwrap();
        assert!(queue.with(0, |list| list.iter().copied().eq(0..taken)));
    });
}

/// The head was blocked. A thread goes on with it while another one files a batch behind it.
#[test]
fn a_head_that_was_blocked_takes_those_behind_it_along() {
    explore(|| {
        let queue = Arc::new(Numbers::new(0, [Vec::new()]));
        let Taken::Batch(sequence, number) = take(&queue, false) else {
            panic!("nobody else takes")
        };
        queue.file(sequence, number);
        queue.proceed(0, |_, _| Commit::Blocked, drop);
        let other = {
            let queue = Arc::clone(&queue);
            spawn(move || one(&queue))
        };
        queue.proceed(0, commit, drop);
        assert!(other.join().unwrap());
        assert!(queue.with(0, |list| *list == [0, 1]));
    });
}

/// Takes and commits one batch in a line, or leaves it to be committed. Whether it did.
fn pass(queue: &Numbers, commits: bool) -> bool {
    let passed = queue.pass(|next, list| {
        *next += 1;
        let number = *next - 1;
        if commits {
            list.push(number);
        }
        yield_now();
        ((), (!commits).then_some(number))
    });
    passed.is_some()
}

/// Invariants 2 and 6: one thread is alone, and another begins to help it.
#[test]
fn what_passes_and_what_is_filed_is_committed_in_order() {
    explore(|| {
        let queue = Arc::new(Numbers::new(0, [Vec::new()]));
        let other = {
            let queue = Arc::clone(&queue);
            spawn(move || u32::from(one(&queue)) + u32::from(one(&queue)))
        };
        let passed = u32::from(pass(&queue, true)) + u32::from(pass(&queue, true));
        let taken = passed + other.join().unwrap();
        assert!(queue.with(0, |list| list.iter().copied().eq(0..taken)));
    });
}

/// Invariant 6: what cannot pass is committed by the next that proceeds, whatever another thread does.
#[test]
fn what_cannot_pass_is_committed_before_what_follows() {
    explore(|| {
        let queue = Arc::new(Numbers::new(0, [Vec::new()]));
        let other = {
            let queue = Arc::clone(&queue);
            spawn(move || u32::from(one(&queue)))
        };
        let left = u32::from(pass(&queue, false));
        let taken = left + other.join().unwrap();
        queue.proceed(0, commit, drop);
        assert!(queue.with(0, |list| list.iter().copied().eq(0..taken)));
        assert!(queue.is_drained());
    });
}

/// Invariant 6: a thread that found too much taken, and asked, is told.
#[test]
fn a_thread_that_awaits_a_batch_is_told_of_it() {
    explore(|| {
        let queue = Arc::new(Numbers::new(0, [Vec::new()]));
        let mut sequences = Vec::new();
        for _ in 0..depth(1, 1) {
            let Taken::Batch(sequence, number) = take(&queue, true) else {
                panic!("nobody else takes")
            };
            sequences.push((sequence, number));
        }
        let owner = {
            let queue = Arc::clone(&queue);
            spawn(move || matches!(take(&queue, true), Taken::Full))
        };
        let mut told = false;
        let (sequence, number) = sequences.remove(0);
        queue.file(sequence, number);
        queue.proceed(0, commit, |_| told |= queue.was_awaited());
        let waits = owner.join().unwrap();
        assert!(told || !waits, "it sleeps and nobody wakes it");
    });
}

/// What is at two commit locks: the number of a batch, and how many commit locks have a flow shard of it.
type FlowShard = (u32, usize);

/// Puts flow shards into a list, and says where each was put, for both locks.
struct TwoLocks {
    queue: OrderedQueue<u32, FlowShard, (), 2>,
    committed: Mutex<Vec<(usize, FlowShard)>>,
}

impl TwoLocks {
    /// Takes and files one batch for so many commit locks, if that can be. Whether it was.
    fn one(&self, locks: usize) -> bool {
        let next = |next: &mut u32| {
            *next += 1;
            Ok::<_, Infallible>(Some(*next - 1))
        };
        let change = |_: &mut [&mut ()]| true;
        let taken = self.queue.take((false, 1), (locks, change), next);
        let Ok(Taken::Batch(sequence, number)) = taken else {
            return false;
        };
        yield_now();
        let shard = (number, self.queue.in_use());
        self.queue
            .file_split(sequence, std::iter::repeat_n(shard, shard.1));
        let commit = |at, (): &mut (), shard: &mut FlowShard| {
            self.committed.lock().unwrap().push((at, *shard));
            Commit::Done
        };
        self.queue.proceed_all(commit, drop);
        true
    }
}

/// Invariants 2 and 6: threads commit at two commit locks, then at one, or the other way round. The flow shards of
/// each commit lock are committed in order, and all before a batch that is split otherwise.
#[test]
fn flow_shards_keep_their_order_while_the_number_of_commit_locks_changes() {
    for (before, after) in [(2, 2), (1, 2), (2, 1)] {
        explore(move || {
            let two = Arc::new(TwoLocks {
                queue: OrderedQueue::new(0, [(), ()]),
                committed: Mutex::default(),
            });
            let other = {
                let two = Arc::clone(&two);
                spawn(move || usize::from(two.one(before)) + usize::from(two.one(after)))
            };
            let taken = usize::from(two.one(before)) + other.join().unwrap();
            let committed = two.committed.lock().unwrap();
            let mut next = [0; 2];
            for (at, (number, of)) in &*committed {
                assert!(next[*at] <= *number, "{committed:?}");
                next[*at] = *number + 1;
                let is_done = |lock, number| {
                    committed
                        .iter()
                        .any(|(at, shard)| (*at, shard.0) == (lock, number))
                };
                assert!((0..*of).all(|at| is_done(at, *number)), "{committed:?}");
            }
            let numbers = (0..).take(taken);
            let shards = numbers.map(|number| {
                let at = committed.iter().position(|(_, shard)| shard.0 == number);
                let last = committed.iter().rposition(|(_, shard)| shard.0 == number);
                let of = at.map(|at| committed[at].1.1);
                (at, last, of)
            });
            let shards: Vec<_> = shards.collect();
            for pair in shards.windows(2) {
                let [(_, last, before), (first, _, after)] = pair else {
                    continue;
                };
                assert!(before == after || last < first, "{committed:?}");
            }
        });
    }
}

/// Two commit locks, as inbound: at the first a batch is committed, and at the last one in use it is
/// delivered, if it is committed.
type Committed = OrderedQueue<(), Arc<AtomicBool>, usize, 2>;

/// Takes, files and commits one batch for so many commit locks, if that can be. How many that was.
fn commit_one(queue: &Committed, wanted: usize) -> usize {
    let change = |_: &mut [&mut usize]| true;
    let taken = queue.take((false, 1), (wanted, change), |()| {
        Ok::<_, Infallible>(Some(Arc::new(AtomicBool::new(false))))
    });
    let Ok(Taken::Batch(sequence, is_committed)) = taken else {
        return 0;
    };
    let shards = std::iter::repeat_n(is_committed, queue.in_use());
    queue.file_split(sequence, shards);
    let commit = |at, count: &mut usize, is_committed: &mut Arc<AtomicBool>| {
        if at == 0 {
            is_committed.store(true, Ordering::Relaxed);
        } else if !is_committed.load(Ordering::Relaxed) {
            return Commit::Blocked;
        }
        *count += 1;
        Commit::Done
    };
    queue.proceed_all(commit, drop);
    1
}

/// Invariant 6: all that is committed is delivered, though threads that come too early go away again, and
/// though the number of commit locks changes meanwhile.
#[test]
fn what_is_committed_is_delivered_while_the_number_of_commit_locks_changes() {
    for (one, others) in [(2, [2, 2]), (1, [2, 2]), (1, [2, 1]), (2, [1, 2])] {
        explore(move || {
            let queue = Arc::new(Committed::new((), [0, 0]));
            let other = {
                let queue = Arc::clone(&queue);
                spawn(move || others.map(|wanted| commit_one(&queue, wanted)))
            };
            let first = commit_one(&queue, one);
            let taken = first + other.join().unwrap().iter().sum::<usize>();
            assert_eq!(
                queue.with(0, |count| *count),
                taken,
                "at the first commit lock"
            );
            assert!(queue.is_drained(), "committed and not delivered");
        });
    }
}

/// Invariant 6: what waits at a commit lock moves with a change of their number, as frames do that wait for a
/// session. A thread that looks for it at each commit lock meanwhile finds it.
#[test]
fn what_moves_between_commit_locks_is_found_at_one_of_them() {
    type Waiting = OrderedQueue<(), (), usize, 2>;
    fn use_locks(queue: &Waiting, wanted: usize) {
        let change = |all: &mut [&mut usize]| {
            let waiting: usize = all.iter_mut().map(|it| std::mem::take(&mut **it)).sum();
            *all[wanted - 1] = waiting;
            true
        };
        let nothing = |(): &mut ()| Ok::<_, Infallible>(None::<()>);
        let _ = queue.take((false, 1), (wanted, change), nothing);
    }
    for (before, after) in [(1, 2), (2, 1)] {
        explore(move || {
            let queue = Arc::new(Waiting::new((), [0, 0]));
            use_locks(&queue, before);
            queue.with(before - 1, |waiting| *waiting = 1);
            let other = {
                let queue = Arc::clone(&queue);
                spawn(move || use_locks(&queue, after))
            };
            let found = queue.each(|_, waiting| std::mem::take(waiting));
            other.join().unwrap();
            assert_eq!(found.iter().sum::<usize>(), 1);
        });
    }
}

/// Invariant 6: two threads leave something while the queues change their owner. The new one sees it
/// when it first looks, or is woken.
#[test]
fn what_is_left_while_the_owner_changes_is_seen_or_wakes_the_new_one() {
    explore(|| {
        // Whether each was woken.
        let [old, new] = [(); 2].map(|()| std::sync::Arc::new(AtomicBool::new(false)));
        let ownership = Arc::new(Ownership::new(old));
        let left = Arc::new([(); 2].map(|()| AtomicBool::new(false)));
        let others = [0, 1].map(|number| {
            let (ownership, left) = (Arc::clone(&ownership), Arc::clone(&left));
            spawn(move || {
                left[number].store(true, Ordering::Relaxed);
                ownership.wake(|woken| woken.store(true, Ordering::Relaxed));
            })
        });
        // The old owner looks once more, and gives the queues away.
        ownership.looks();
        ownership.change(std::sync::Arc::clone(&new));
        ownership.looks();
        let seen = [0, 1].map(|number| left[number].load(Ordering::Relaxed));
        for other in others {
            other.join().unwrap();
        }
        assert!(seen == [true; 2] || new.load(Ordering::Relaxed), "{seen:?}");
    });
}

/// Two receive queues, the sockets of which the kernel fills, and what was delivered from them.
struct TwoRxQueues {
    rx_queues: RxQueues<(), u32>,
    sockets: [Mutex<VecDeque<u32>>; 2],
    /// Over how many sockets data is spread, and what senders have meanwhile.
    spread: Mutex<(usize, std::sync::Arc<()>)>,
    delivered: Mutex<Vec<u32>>,
}

impl TwoRxQueues {
    fn new(rx_queues: usize) -> Self {
        Self {
            rx_queues: RxQueues::new(|| ()),
            sockets: [(); 2].map(|()| Mutex::default()),
            spread: Mutex::new((rx_queues, std::sync::Arc::default())),
            delivered: Mutex::default(),
        }
    }

    /// The kernel chooses the socket of a peer whose receive queue is 1, and then queues the datagram there.
    fn send(&self, number: u32) {
        let (over, under_way) = self.spread.lock().unwrap().clone();
        self.sockets[1 % over].lock().unwrap().push_back(number);
        drop(under_way);
    }

    fn spread(&self, over: usize) -> Grace {
        let mut spread = self.spread.lock().unwrap();
        spread.0 = over;
        let before = std::mem::take(&mut spread.1);
        Grace::until_dropped(&before)
    }

    /// Takes one datagram and delivers it.
    fn poll(&self, rx_queue: usize) {
        let queue = self.rx_queues.queue(rx_queue);
        let one = (1, |_: &mut [&mut ()]| true);
        let taken = queue.take((false, 1), one, |taking| {
            let number = self.sockets[rx_queue].lock().unwrap().pop_front();
            taking.took(false, number.map(|_| std::iter::once(1)));
            Ok::<_, Infallible>(number)
        });
        if let Ok(Taken::Batch(sequence, number)) = taken {
            queue.file(sequence, number);
            let commit = |(): &mut (), number: &mut u32| {
                self.delivered.lock().unwrap().push(*number);
                Commit::Done
            };
            queue.proceed(0, commit, drop);
        }
    }
}

/// Invariant 2: two datagrams of a peer arrive while it moves to another receive queue, and another thread
/// polls both.
fn a_peer_moves(before: usize, after: usize) {
    explore(move || {
        let two = Arc::new(TwoRxQueues::new(before));
        let sender = {
            let two = Arc::clone(&two);
            spawn(move || (0..2).for_each(|number| two.send(number)))
        };
        let worker = {
            let two = Arc::clone(&two);
            spawn(move || [before - 1, after - 1].map(|rx_queue| two.poll(rx_queue)))
        };
        let spread = || Some((vec![two.spread(after)], after));
        assert!(two.rx_queues.change(before, after, spread));
        loop {
            match two.rx_queues.progress(|_| [true, false]) {
                Some(ChangeProgress::Waits(rx_queues)) => {
                    let rx_queues = (0..2).filter(|rx_queue| rx_queues[*rx_queue]);
                    rx_queues.for_each(|rx_queue| two.poll(rx_queue));
                }
                Some(ChangeProgress::Over(rx_queues)) => break assert_eq!(rx_queues, after),
                None => panic!("nobody else ends it"),
            }
            yield_now();
        }
        two.poll(after - 1);
        sender.join().unwrap();
        worker.join().unwrap();
        for rx_queue in [0, 1, 0, 1] {
            two.poll(rx_queue);
        }
        assert_eq!(*two.delivered.lock().unwrap(), [0, 1]);
    });
}

#[test]
fn a_peer_that_moves_to_a_new_rx_queue_keeps_its_order() {
    a_peer_moves(1, 2);
}

#[test]
fn a_peer_whose_rx_queue_is_given_up_keeps_its_order() {
    a_peer_moves(2, 1);
}
