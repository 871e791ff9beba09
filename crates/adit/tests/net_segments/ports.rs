//! UDP ports that are bound again.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

use crate::{LARGE, stack};

/// A socket of a program, and its other end.
fn pair() -> [OwnedFd; 2] {
    let (unix, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (fd, theirs) = socketpair(unix, kind, SocketFlags::CLOEXEC, None).expect("two sockets");
    [fd, theirs]
}

/// Sends datagrams of so many bytes until no more fit: how many that are.
fn fill(program: &OwnedFd, len: usize) -> usize {
    let mut message = vec![0; 19 + len];
    message[1..3].copy_from_slice(&7_u16.to_be_bytes());
    message[3..19].copy_from_slice(&Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped().octets());
    let sends = || send(program, &message, SendFlags::DONTWAIT).is_ok();
    std::iter::repeat_with(sends)
        .take_while(|sent| *sent)
        .count()
}

#[test]
fn a_port_whose_program_is_there_is_refused_without_a_look_at_what_it_sends() {
    let mut stack = stack(LARGE);
    let [program, theirs] = pair();
    let bound = stack.bind(5, theirs);
    stack.poll(1, |_| {});
    assert_eq!(bound.try_recv(), Ok(true));
    let sent = fill(&program, 1);
    let [_program, theirs] = pair();
    let bound = stack.bind(5, theirs);
    let mut came = 0;
    stack.poll(2, |_| came += 1);
    assert_eq!(bound.try_recv(), Ok(false));
    // One turn.
    assert!(came < sent, "{came} {sent}");
}

#[test]
fn ports_of_programs_that_are_gone_are_free_however_much_these_have_sent() {
    let mut stack = stack(LARGE);
    let mut sent = 0;
    let mut bytes = 0;
    let mut programs = Vec::new();
    // More than the queue to the tunnel takes at once.
    while bytes < 2 << 20 {
        let [program, theirs] = pair();
        stack.bind(100 + u16::try_from(programs.len()).expect("few"), theirs);
        let count = fill(&program, 1300);
        sent += count;
        bytes += count * 1300;
        programs.push(program);
    }
    let count = programs.len();
    // The stack has seen none of it.
    let mut came = 0;
    drop(programs);
    let mut kept = Vec::new();
    let mut bound = Vec::new();
    for n in 0..count {
        let [program, theirs] = pair();
        bound.push(stack.bind(100 + u16::try_from(n).expect("few"), theirs));
        kept.push(program);
    }
    stack.poll(1, |_| came += 1);
    let is_free = |bound: &std::sync::mpsc::Receiver<bool>| bound.try_recv() == Ok(true);
    assert!(bound.iter().all(is_free));
    assert_eq!(came, sent);
}

#[test]
fn what_a_program_sent_leaves_though_it_ended_before_it_had_read_all() {
    let mut stack = stack(LARGE);
    let [program, theirs] = pair();
    send(&theirs, b"unread", SendFlags::DONTWAIT).expect("room");
    stack.bind(5, theirs);
    let sent = fill(&program, 1);
    drop(program);
    let mut came = 0;
    for turn in 1..20 {
        stack.poll(turn, |_| came += 1);
    }
    assert_eq!(came, sent);
}
