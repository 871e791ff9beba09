//! A driver's descriptor in the loop of a program.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use adit::{Driver, Packet, Tunnel, channel};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::{PATIENCE, config};

/// Whether the descriptor in this epoll instance becomes readable in time.
fn is_readable(outer: &OwnedFd, time: Duration) -> bool {
    let time = Timespec::try_from(time).expect("short");
    let mut events = [MaybeUninit::<Event>::uninit(); 1];
    let (events, _) = epoll::wait(outer, &mut events, Some(&time)).expect("it waits");
    !events.is_empty()
}

/// Polls until nothing is left to do.
fn settle(driver: &mut Driver, outer: &OwnedFd) {
    let until = Instant::now() + PATIENCE;
    while driver.poll().expect("it runs") == Some(Duration::ZERO)
        || is_readable(outer, Duration::ZERO)
    {
        assert!(Instant::now() < until, "it always has something to do");
    }
}

#[test]
fn its_descriptor_is_readable_in_another_epoll_until_it_was_polled() {
    let (io, far) = channel(1 << 20);
    let tunnel = Tunnel::builder(config(2, 1, None)).packets(io).drive();
    let mut driver = tunnel.expect("a driver");
    let port = driver.status().expect("a status").listen_port;
    let outer = epoll::create(CreateFlags::CLOEXEC).expect("a descriptor");
    epoll::add(&outer, &driver, EventData::new_u64(0), EventFlags::IN).expect("it is watched");
    settle(&mut driver, &outer);
    let (io, near) = channel(1 << 20);
    let endpoint = ([127, 0, 0, 1], port).into();
    let first = Tunnel::builder(config(1, 2, Some(endpoint))).packets(io);
    let _first = first.start().expect("a tunnel");
    let packet = vec![
        0x45, 0, 0, 20, 0, 0, 0x40, 0, 64, 59, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ];
    near.send(Packet::new(packet)).expect("room");
    // What comes makes it readable, as long as it was not polled.
    for _ in 0..2 {
        assert!(is_readable(&outer, PATIENCE));
    }
    let until = Instant::now() + PATIENCE;
    while far.try_recv().is_none() {
        assert!(Instant::now() < until, "nothing arrives");
        driver.poll().expect("it runs");
        is_readable(&outer, Duration::from_millis(100));
    }
    settle(&mut driver, &outer);
}
