use std::collections::HashMap;
use std::net::UdpSocket as StdUdp;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use adit_netlink::netns::Netns;

use super::super::Tun;
use super::super::schedule::QUANTUM;
use super::super::tests::{bring_up, segmenting};
use super::*;
use crate::{Offloads, TunQueue};

/// Reads `frames` frames from queues that always have one of this length; bytes of each queue.
fn read(schedule: &mut Schedule, lens: &[(usize, usize)], frames: usize) -> Vec<usize> {
    let mut bytes = vec![0; QUEUES];
    for _ in 0..frames {
        let queue = schedule.next().expect("something waits");
        let (_, len) = lens
            .iter()
            .find(|(of, _)| *of == queue)
            .expect("its length");
        schedule.took(queue, *len);
        bytes[queue] += len;
    }
    bytes
}

fn ready(queues: &[(usize, usize)]) -> Schedule {
    let mut schedule = Schedule::new();
    queues.iter().for_each(|(queue, _)| schedule.has(*queue));
    schedule
}

#[test]
fn queues_with_long_and_short_frames_share_bytes() {
    let lens = [(0, 65_000), (7, 100), (63, 1500)];
    let mut schedule = ready(&lens);
    let bytes = read(&mut schedule, &lens, 100_000);
    for (queue, _) in lens {
        let share = bytes[queue] as f64 / bytes[0] as f64;
        assert!((0.95..1.05).contains(&share), "{queue}: {share}");
    }
}

#[test]
fn a_peer_with_many_queues_gets_what_others_get() {
    let lens = [
        (1, 60_000),
        (2, 60_000),
        (3, 60_000),
        (4, 60_000),
        (9, 1500),
    ];
    let mut schedule = ready(&lens);
    for (queue, _) in lens {
        schedule.peers[queue] = Some(if queue == 9 { 1 } else { 0 });
    }
    let bytes = read(&mut schedule, &lens, 50_000);
    let share = bytes[1..5].iter().sum::<usize>() as f64 / bytes[9] as f64;
    assert!((0.95..1.05).contains(&share), "{share}");
}

#[test]
fn a_further_queue_of_a_peer_brings_it_nothing() {
    let lens = [(1, 60_000), (9, 1500)];
    let mut schedule = ready(&lens);
    for queue in 1..9 {
        schedule.peers[queue] = Some(0);
    }
    let mut bytes = vec![0; QUEUES];
    // Another destination of the first peer in turn.
    for round in 0..20_000 {
        let next = 1 + round % 8;
        schedule.has(next);
        let queue = schedule.next().expect("something waits");
        let len = if queue == 9 { 1500 } else { 60_000 };
        schedule.took(queue, len);
        bytes[queue] += len;
        if queue != 9 {
            schedule.was_empty(queue);
        }
    }
    let share = bytes[1..9].iter().sum::<usize>() as f64 / bytes[9] as f64;
    assert!((0.5..1.1).contains(&share), "{share}");
}

#[test]
fn what_the_first_queue_had_for_a_peer_counts_in_its_turn() {
    let lens = [(1, 1500), (9, 1500)];
    let mut schedule = ready(&lens);
    let (mut bytes, mut sparse) = ([0; QUEUES], 0);
    for _ in 0..20_000 {
        schedule.took_sparse(1, 700);
        sparse += 700;
        let queue = schedule.next().expect("something waits");
        schedule.took(queue, 1500);
        bytes[queue] += 1500;
    }
    let share = f64::from(bytes[1] + sparse) / f64::from(bytes[9]);
    assert!((0.95..1.05).contains(&share), "{share}");
    // Nobody pays later for what came while nothing waited.
    let mut schedule = Schedule::new();
    (0..1_000_000).for_each(|_| schedule.took_sparse(1, 1500));
    assert!(schedule.debts() == 1 << 1 && schedule.deficits[1] == -QUANTUM);
    schedule.end_round();
    assert_eq!(schedule.debts(), 0);
}

#[test]
fn a_queue_alone_is_read_to_its_end() {
    let lens = [(5, 65_000)];
    let mut schedule = ready(&lens);
    assert_eq!(read(&mut schedule, &lens, 1000)[5], 65_000_000);
    schedule.was_empty(5);
    assert_eq!(schedule.next(), None);
}

/// A device with all its queues, 10.8.0.1/24.
pub(in crate::tun) fn fair_device() -> (Netns, Tun) {
    let net = Netns::new().unwrap();
    let open = || Tun::open_fair("tun", Offloads::ALL);
    let tun = net.run(open).unwrap().unwrap();
    bring_up(&net, "tun", &["10.8.0.1"]);
    net.run(|| tun.limit_queue()).unwrap();
    assert!(tun.fair.as_ref().is_some_and(FairQueues::are_open));
    // At first it is not known what was in the first queue before.
    let start = Instant::now();
    let sender = net.run(|| StdUdp::bind("10.8.0.1:0")).unwrap().unwrap();
    while start.elapsed() < Duration::from_millis(300) {
        sender.send_to(&[7; 100], "10.8.0.9:9").unwrap();
        batch(&tun);
        std::thread::sleep(Duration::from_millis(5));
    }
    (net, tun)
}

/// Reads a batch: for each IPv4 packet the last byte of its destination, and its length. Each
/// destination is a peer.
fn batch(tun: &Tun) -> Vec<(u8, usize)> {
    batch_for(tun, u32::from)
}

/// The same where `peer` says which peer a destination is behind.
fn batch_for(tun: &Tun, peer: fn(u8) -> u32) -> Vec<(u8, usize)> {
    let mut batch = FrameBatch::default();
    tun.read_batch(&mut batch).unwrap();
    let mut packets = Vec::new();
    while let Some(frame) = batch.next_frame() {
        let packet = &frame.bytes[VNET_HDR_LEN..];
        if packet[0] == 0x45 {
            frame.peer.set(Some(peer(packet[19])));
            packets.push((packet[19], packet.len()));
        }
    }
    tun.processed(&batch);
    packets
}

#[test]
fn destinations_have_turns_however_much_waits_for_each() {
    let (net, tun) = fair_device();
    let sender = net.run(|| segmenting("10.8.0.1:0")).unwrap();
    let send = |to: u8, times: usize| {
        for _ in 0..times {
            sender
                .send_to(&[7; 50_000], (format!("10.8.0.{to}"), 9))
                .unwrap();
        }
    };
    // More waits for the first than is read at once, and it came first.
    send(2, 40);
    send(3, 10);
    send(4, 10);
    let mut sent = HashMap::<u8, usize>::new();
    for _ in 0..9 {
        for (to, _) in batch(&tun) {
            *sent.entry(to).or_default() += 1;
        }
    }
    let [first, second, third] = [2, 3, 4].map(|to| sent.get(&to).copied().unwrap_or_default());
    assert_eq!([second, third], [10, 10], "{first} to the first meanwhile");
    assert!(first <= 16, "{first}");
}

#[test]
fn the_bytes_that_wait_are_limited_however_many_queues_there_are() {
    let (net, tun) = fair_device();
    let sender = net.run(|| segmenting("10.8.0.1:0")).unwrap();
    let fill = |destinations: std::ops::Range<u8>| {
        for to in destinations {
            for _ in 0..200 {
                // What finds no room is an error for some senders.
                let _ = sender.send_to(&[7; 60_000], (format!("10.8.0.{to}"), 9));
            }
        }
    };
    let waiting = || {
        let packets = std::iter::repeat_with(|| batch(&tun));
        let packets = packets.take_while(|packets| !packets.is_empty()).flatten();
        packets.fold(HashMap::<u8, usize>::new(), |mut bytes, (to, len)| {
            *bytes.entry(to).or_default() += len;
            bytes
        })
    };
    let limit = 4 << 20;
    // 1. One queue alone has the limit.
    fill(2..3);
    let alone = waiting()[&2];
    assert!((limit..limit + 70_000).contains(&alone), "{alone}");
    // 2. All together have twice as much at most.
    fill(2..66);
    let all: usize = waiting().values().sum();
    assert!((limit..2 * limit + 70_000).contains(&all), "{all}");
}

#[test]
fn the_limit_is_higher_where_short_gso_packets_are_all_for_one_peer() {
    let (net, tun) = fair_device();
    let sender = net.run(|| segmenting("10.8.0.1:0")).unwrap();
    let send = |to: u8, len: usize| {
        let _ = sender.send_to(&vec![7; len], (format!("10.8.0.{to}"), 9));
    };
    // The bytes that one queue takes when short ones to two destinations have passed for a while.
    let room = |peer: fn(u8) -> u32| {
        let read = || {
            let packets = std::iter::repeat_with(|| batch_for(&tun, peer));
            packets.take_while(|packets| !packets.is_empty()).flatten()
        };
        let mut carried = 0;
        while carried < 20_000 {
            (0..40).for_each(|time| send(2 + time % 2, 20_000));
            carried += read().count();
        }
        (0..400).for_each(|_| send(2, 60_000));
        read().map(|(_, len)| len).sum::<usize>()
    };
    let least = 4 << 20;
    for _ in 0..2 {
        let of_one_peer = room(|_| 1);
        assert!(of_one_peer > 3 * least, "{of_one_peer}");
        let of_two_peers = room(u32::from);
        assert!(of_two_peers < least + 70_000, "{of_two_peers}");
    }
}

#[test]
fn packets_of_sparse_flows_are_read_before_others_that_came_first() {
    let (net, tun) = fair_device();
    let bulk = net.run(|| segmenting("10.8.0.1:0")).unwrap();
    let read = |sparse: &StdUdp| -> Vec<_> {
        for _ in 0..10 {
            bulk.send_to(&[7; 50_000], "10.8.0.2:9").unwrap();
        }
        // The second packet is not sparse: the first is there still.
        sparse.send(&[7; 100]).unwrap();
        sparse.send(&[7; 200]).unwrap();
        let packets: Vec<_> = std::iter::repeat_with(|| batch(&tun))
            .take_while(|packets| !packets.is_empty())
            .flatten()
            .collect();
        assert_eq!(packets.len(), 12);
        packets
    };
    let is_told_apart = |packets: &[(u8, usize)]| packets[0] == (2, 128);
    // The hash of one port in 64 is that of the bulk flow, among flows to one destination: then it is
    // another port.
    let mut ports = (10..14).map(|port| {
        let socket = net.run(|| StdUdp::bind("10.8.0.1:0")).unwrap().unwrap();
        socket.connect(("10.8.0.2", port)).unwrap();
        socket
    });
    let sparse = ports.find(|port| is_told_apart(&read(port)));
    let sparse = sparse.expect("a port of four whose packets are read first");
    for _ in 0..3 {
        let packets = read(&sparse);
        assert!(is_told_apart(&packets), "{packets:?}");
        assert_eq!(packets[11], (2, 228));
    }
}

#[test]
fn a_peer_with_many_sparse_flows_gets_what_others_get() {
    let (net, tun) = fair_device();
    let bulk = net.run(|| segmenting("10.8.0.1:0")).unwrap();
    let sparse = net.run(|| StdUdp::bind("10.8.0.1:0")).unwrap().unwrap();
    // One peer is behind many addresses, the other one behind the last.
    let peer = |to: u8| u32::from(to == 200);
    let mut bytes = [0, 0];
    for round in 0..60 {
        for flow in 0..400_u16 {
            let to = u8::try_from(2 + flow % 40).unwrap();
            let _ = sparse.send_to(&[7; 1400], (format!("10.8.0.{to}"), 1000 + flow));
        }
        for _ in 0..40 {
            let _ = bulk.send_to(&[7; 50_000], "10.8.0.200:9");
        }
        for (to, len) in batch_for(&tun, peer) {
            // At first nobody knows whom the addresses are for.
            bytes[usize::from(to == 200)] += if round < 5 { 0 } else { len };
        }
    }
    let share = bytes[0] as f64 / bytes[1] as f64;
    assert!((0.5..1.6).contains(&share), "{share}: {bytes:?}");
}

#[test]
fn what_never_came_to_a_queue_does_not_fill_it_for_ever() {
    let (net, tun) = fair_device();
    let sender = net.run(|| segmenting("10.8.0.1:0")).unwrap();
    let send = |len: usize, times: usize| {
        for _ in 0..times {
            // What finds no room is an error for some senders.
            let _ = sender.send_to(&vec![7; len], "10.8.0.2:9");
        }
    };
    let received = || {
        let packets = std::iter::repeat_with(|| batch(&tun));
        let packets = packets.take_while(|packets| !packets.is_empty());
        packets.map(|packets| packets.len()).sum::<usize>()
    };
    let tc = |arguments: &'static str| {
        let run = || Command::new("tc").args(arguments.split(' ')).status();
        assert!(net.run(run).unwrap().unwrap().success(), "tc {arguments}");
    };
    // GSO packets, whose number is limited, or their bytes; none of them is of a sparse flow.
    for len in [2_000, 60_000] {
        send(len, 10);
        assert_eq!(received(), 10);
        tc("qdisc add dev tun root blackhole");
        send(len, 1000);
        tc("qdisc del dev tun root");
        assert_eq!(received(), 0);
        send(len, 600);
        assert_eq!(
            received(),
            1,
            "one of {len} bytes passes, and tells that the queue is empty"
        );
        send(len, 10);
        assert_eq!(received(), 10);
    }
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn flows_keep_their_order_across_queues() {
    let (net, tun) = fair_device();
    let stop = AtomicBool::new(false);
    // Where each flow, told by its ports, stands.
    let mut last = HashMap::<(u8, u16), u64>::new();
    // Packets of sparse flows, and others.
    let mut read = [0_u64; 2];
    std::thread::scope(|scope| {
        for to in [2, 3] {
            for (port, pause) in [(9, 0), (10, 20), (11, 300)] {
                let (net, stop) = (&net, &stop);
                scope.spawn(move || {
                    let sender = net.run(|| segmenting("10.8.0.1:0")).unwrap();
                    let mut number = 0_u64;
                    while !stop.load(Ordering::Relaxed) {
                        // Every third one is a GSO packet of two segments.
                        let mut text = vec![0; if number.is_multiple_of(3) { 2000 } else { 64 }];
                        text[..8].copy_from_slice(&number.to_be_bytes());
                        let to = (format!("10.8.0.{to}"), port);
                        let _ = sender.send_to(&text, to);
                        number += 1;
                        if pause > 0 && number.is_multiple_of(5) {
                            std::thread::sleep(Duration::from_micros(pause));
                        }
                    }
                });
            }
        }
        // Also if this thread panics.
        let _stop = Stop(&stop);
        let mut batch = FrameBatch::default();
        let start = Instant::now();
        for round in 0.. {
            let is_enough = read[0] > 2000 && read[1] > 200_000;
            if is_enough || start.elapsed() > Duration::from_secs(60) {
                break;
            }
            tun.read_batch(&mut batch).unwrap();
            // Packets that were read wait for a while now and then, as behind a full socket.
            if round % 7 == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
            for (queue, ..) in batch.queues() {
                read[usize::from(queue > 0)] += 1;
            }
            while let Some(frame) = batch.next_frame() {
                let packet = &frame.bytes[VNET_HDR_LEN..];
                if packet[0] != 0x45 {
                    continue;
                }
                let port = u16::from_be_bytes([packet[20], packet[21]]);
                let number = u64::from_be_bytes(packet[28..36].try_into().unwrap());
                if let Some(before) = last.insert((packet[19], port), number) {
                    assert!(before < number, "{number} after {before} from port {port}");
                }
            }
            tun.processed(&batch);
        }
    });
    assert_eq!(last.len(), 6);
    let [sparse, bulk] = read;
    assert!(sparse > 1000 && bulk > 1000, "{sparse} sparse, {bulk} not");
}

#[test]
fn a_device_that_exists_is_not_shared_with_its_owner() {
    let (net, tun) = fair_device();
    let open = || Tun::open_fair("tun", Offloads::ALL).err();
    let error = net.run(open).unwrap().expect("the device has an owner");
    assert!(error.to_string().contains("in use"), "{error}");
    drop(tun);
    // A process that another test starts has a copy of every descriptor, until it runs a program.
    let start = Instant::now();
    while let Some(error) = net.run(open).unwrap() {
        assert!(start.elapsed() < Duration::from_secs(10), "{error}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Reads batches until nothing is left to read now: the destinations of all packets. Each destination is
/// a peer, and each packet to the limited one has it wait for so long.
fn batches(tun: &Tun, limited: u8, rest: Duration) -> (Vec<u8>, Vec<bool>) {
    let (mut to, mut waits) = (Vec::new(), Vec::new());
    loop {
        let mut batch = FrameBatch::default();
        tun.read_batch(&mut batch).unwrap();
        let before = to.len();
        while let Some(frame) = batch.next_frame() {
            let packet = &frame.bytes[VNET_HDR_LEN..];
            if packet[0] != 0x45 {
                continue;
            }
            frame.peer.set(Some(packet[19].into()));
            to.push(packet[19]);
            if packet[19] == limited {
                frame.rest.set(Some(rest));
                waits.push(frame.can_wait);
            }
        }
        tun.processed(&batch);
        if to.len() == before {
            return (to, waits);
        }
    }
}

#[test]
fn the_queue_of_a_peer_in_advance_of_its_limit_rests_and_goes_on() {
    let (net, tun) = fair_device();
    let sender = net.run(|| segmenting("10.8.0.1:0")).unwrap();
    let rest = Duration::from_millis(200);
    assert_eq!(tun.rests_for(), None);
    for to in [2, 3, 2, 3, 2, 3] {
        sender
            .send_to(&[7; 50_000], (format!("10.8.0.{to}"), 9))
            .unwrap();
    }
    let (read, waits) = batches(&tun, 2, rest);
    // A turn of the limited one, which learns of its limit then, and all of the other.
    assert_eq!(read.iter().filter(|to| **to == 3).count(), 3);
    assert!(read.len() < 6 || waits.len() == 3, "{read:?}");
    assert!(waits.iter().all(|it| *it));
    assert!(tun.has_begun_to_rest() && !tun.has_begun_to_rest());
    // It rests, whatever comes, and the others go on. Nothing wakes a thread meanwhile.
    for to in [2, 3, 2, 3] {
        sender
            .send_to(&[7; 50_000], (format!("10.8.0.{to}"), 9))
            .unwrap();
    }
    let (read, _) = batches(&tun, 2, rest);
    assert_eq!(read, [3, 3]);
    let mut polled = [rustix::event::PollFd::from_borrowed_fd(
        TunQueue::fd(&tun),
        rustix::event::PollFlags::IN,
    )];
    let is_readable = |polled: &mut [rustix::event::PollFd<'_>]| {
        rustix::event::poll(polled, Some(&Timespec::default())).unwrap() == 1
    };
    assert!(!is_readable(&mut polled));
    let left = tun.rests_for().expect("it rests");
    assert!(left <= rest);
    std::thread::sleep(left + Duration::from_millis(1));
    // It goes on, one turn at a time.
    assert_eq!(tun.rests_for(), None);
    assert!(is_readable(&mut polled));
    let (read, _) = batches(&tun, 2, rest);
    assert!(
        read.iter().all(|to| *to == 2) && !read.is_empty(),
        "{read:?}"
    );
}

#[test]
fn a_process_that_goes_on_with_a_queue_in_debt_ends_the_debt() {
    let (net, tun) = fair_device();
    let sender = net.run(|| segmenting("10.8.0.1:0")).unwrap();
    let in_debt = |tun: &Tun| tun.egress.get().expect("a program").reading().in_debt();
    assert_eq!(in_debt(&tun), 0);
    sender.send_to(&[7; 50_000], "10.8.0.2:9").unwrap();
    // Its queue rests for so long that sparse flows wait, too.
    batches(&tun, 2, Duration::from_secs(100));
    let mut packet = [0x45; 20];
    packet[16..].copy_from_slice(&[10, 8, 0, 2]);
    assert_eq!(in_debt(&tun), 1 << queue_of(&packet));

    let (state, fds) = tun.state();
    let fds = fds.iter().map(|fd| fd.try_clone_to_owned().unwrap());
    let taken = Tun::take_over(state, fds.collect()).unwrap();
    drop(tun);
    assert_eq!(taken.rests_for(), None);
    batches(&taken, 0, Duration::ZERO);
    assert_eq!(in_debt(&taken), 0);
}

#[test]
fn a_queue_of_several_peers_does_not_rest() {
    let mut schedule = Schedule::new();
    let note = |schedule: &mut Schedule, peers: &[(usize, u32)], mixed: u64, rests: &[usize]| {
        let mut processed = Processed::NONE;
        for (queue, peer) in peers {
            processed.peers[*queue] = Some(*peer);
        }
        processed.mixed = mixed;
        for queue in rests {
            processed.limited |= 1 << queue;
            processed.rest[*queue] = Some(Instant::now() + Duration::from_secs(5));
        }
        schedule.note(&processed)
    };
    // All queues of a peer rest with one of them, but for one that had packets of two peers in a batch.
    note(&mut schedule, &[(1, 7), (2, 7), (3, 7), (4, 8)], 0, &[]);
    assert_eq!(note(&mut schedule, &[(1, 7), (3, 7)], 1 << 3, &[1]), 0b110);
    assert!(schedule.can_wait(1) && !schedule.can_wait(3));
    assert_eq!(note(&mut schedule, &[(3, 7)], 0, &[3]), 0);
    // Nor does one that had another peer's in the batch before.
    assert_eq!(note(&mut schedule, &[(4, 7)], 0, &[4]), 0);
    assert!(!schedule.can_wait(4));
}

#[test]
fn a_batch_has_one_turn_of_a_peer_with_a_limit() {
    let lens = [(1, 30_000), (9, 1500)];
    let mut schedule = ready(&lens);
    schedule.limited = 1 << 1;
    schedule.batch_begins();
    let mut bytes = [0, 0];
    for _ in 0..1000 {
        let queue = schedule.next().expect("something waits");
        let (_, len) = lens
            .iter()
            .find(|(of, _)| *of == queue)
            .expect("its length");
        schedule.took(queue, *len);
        bytes[usize::from(queue == 9)] += len;
    }
    assert_eq!(bytes[0], 90_000);
    assert!(bytes[1] > 1_000_000);
}
