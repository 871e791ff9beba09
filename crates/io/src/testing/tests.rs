//! Tests of the fakes: in memory, with faults, recorded; and of batches and switches.

use std::io::{self, IoSlice, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use adit_offload::VNET_HDR_LEN;
use adit_proto::{Endpoint, Source};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::testing::fault::{Faults, Faulty};
use crate::testing::mem::{self, MemNetwork};
use crate::testing::pcap::{Recorded, Recorder};
use crate::tun::TunErrorKind;
use crate::{Offloads, RecvBatch, SendReport, Transmit, TunQueue, UdpSocket};

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn readable(fd: std::os::fd::BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
}

fn train(to: &str, stride: usize, bytes: &'static [u8]) -> Transmit<'static> {
    Transmit {
        to: addr(to).into(),
        ecn: 1,
        stride,
        bytes,
    }
}

fn drain(socket: &impl UdpSocket) -> Vec<Vec<u8>> {
    let mut batch = RecvBatch::new(3);
    let mut messages = Vec::new();
    loop {
        match socket.recv(&mut batch) {
            Ok(()) => messages.extend(batch.iter_mut().map(|(_, bytes)| bytes.to_vec())),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return messages,
            Err(_) => {}
        }
    }
}

#[test]
fn trains_cross_the_memory_network_as_trains_or_apart() {
    let network = MemNetwork::new();
    let a = network.bind(addr("192.0.2.1:1"), true).unwrap();
    let single = network.bind(addr("192.0.2.1:2"), false).unwrap();
    let b = network.bind(addr("192.0.2.2:2"), true).unwrap();
    let error = network.bind(addr("192.0.2.2:2"), true).err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert!(!readable(b.fd()));

    let mut report = SendReport::default();
    let trains = [
        train("192.0.2.2:2", 2, b"aabbc"),
        train("192.0.2.9:2", 2, b"aabbc"),
        train("192.0.2.2:2", 9, b""),
    ];
    assert_eq!(a.send(&trains, &mut report), 3);
    assert_eq!(report.datagrams_lost(), 3, "nobody is there");
    assert!(readable(b.fd()));
    let mut batch = RecvBatch::new(8);
    b.recv(&mut batch).unwrap();
    let [first, second] = batch.received() else {
        panic!("{:?}", batch.received());
    };
    assert_eq!((first.stride, first.len, first.ecn), (2, 5, 1));
    assert_eq!((second.stride, second.len), (1, 0));
    let expected = Endpoint {
        addr: addr("192.0.2.1:1"),
        src: Some(Source {
            ip: addr("192.0.2.2:2").ip(),
            ifindex: 1,
        }),
    };
    assert_eq!(first.from, expected);
    assert_eq!(batch.bytes(0), b"aabbc");
    assert!(!readable(b.fd()));
    assert_eq!(
        b.recv(&mut batch).unwrap_err().kind(),
        io::ErrorKind::WouldBlock
    );
    assert!(batch.is_empty());

    single.send(&[train("192.0.2.2:2", 2, b"aabbc")], &mut report);
    assert_eq!(drain(&b), [&b"aa"[..], b"bb", b"c"]);
    let apart = network.bind(addr("192.0.2.3:3"), false).unwrap();
    a.send(&[train("192.0.2.3:3", 2, b"aabbc")], &mut report);
    assert_eq!(
        drain(&apart).len(),
        3,
        "who cannot receive trains gets datagrams"
    );
    drop(b);
    network.bind(addr("192.0.2.2:2"), true).unwrap();
}

#[test]
fn frames_cross_the_memory_tun_and_its_queue_is_bounded() {
    let (tun, end) = mem::tun().unwrap();
    let mut buf = [0; 64];
    assert_eq!(
        tun.read(&mut buf).unwrap_err().kind(),
        io::ErrorKind::WouldBlock
    );
    assert!(!readable(tun.fd()));
    assert!(end.inject(b"in".to_vec()));
    assert!(readable(tun.fd()));
    assert_eq!(tun.read(&mut buf).unwrap(), 2);
    assert!(!readable(tun.fd()) && !readable(end.fd()));
    tun.write(&[IoSlice::new(b"o"), IoSlice::new(b"ut")])
        .unwrap();
    assert!(readable(end.fd()));
    assert_eq!(end.take().unwrap(), b"out");
    assert_eq!(end.take(), None);
    let accepted = (0..10_000).filter(|_| end.inject(vec![0])).count();
    assert_eq!(accepted, 1024);
}

#[test]
fn faults_come_as_often_as_asked_and_the_same_each_time() {
    let run = |faults: Faults| {
        let network = MemNetwork::new();
        let a = Faulty::new(network.bind(addr("192.0.2.1:1"), true).unwrap(), faults);
        let b = network.bind(addr("192.0.2.2:2"), true).unwrap();
        let mut datagrams: Vec<u8> = Vec::new();
        let (mut messages, mut taken) = (0, 0);
        for first in 0..100_u8 {
            let bytes: Vec<u8> = (0..10)
                .map(|i| first.wrapping_mul(10).wrapping_add(i))
                .collect();
            let transmit = Transmit {
                to: addr("192.0.2.2:2").into(),
                ecn: 0,
                stride: 1,
                bytes: &bytes,
            };
            taken += a.send(&[transmit], &mut SendReport::default());
            let arrived = drain(&b);
            messages += arrived.len();
            datagrams.extend(arrived.concat());
        }
        (datagrams, messages, taken)
    };
    let seed = 7;
    let (clean, messages, taken) = run(Faults {
        seed,
        ..Faults::default()
    });
    assert_eq!((clean.len(), messages, taken), (1000, 100, 100));

    let lossy = Faults {
        seed,
        loss: 0.1,
        ..Faults::default()
    };
    let (datagrams, ..) = run(lossy);
    assert!((850..950).contains(&datagrams.len()), "{}", datagrams.len());
    assert_eq!(run(lossy).0, datagrams);
    assert_ne!(run(Faults { seed: 8, ..lossy }).0, datagrams);

    let (datagrams, ..) = run(Faults {
        seed,
        duplication: 0.1,
        ..Faults::default()
    });
    assert!((1050..1150).contains(&datagrams.len()));

    let (mut datagrams, ..) = run(Faults {
        seed,
        reordering: 0.1,
        ..Faults::default()
    });
    assert_ne!(datagrams, clean);
    assert!(
        datagrams.len() > 980,
        "the last ones are still being overtaken"
    );
    datagrams.sort_unstable();
    datagrams.dedup();
    assert!(datagrams.len() > 250);

    let (datagrams, messages, _) = run(Faults {
        seed,
        split: 0.5,
        ..Faults::default()
    });
    assert_eq!(datagrams, clean);
    assert!((400..700).contains(&messages), "{messages}");

    let (datagrams, _, taken) = run(Faults {
        seed,
        full: 0.5,
        ..Faults::default()
    });
    assert!((35..65).contains(&taken));
    assert_eq!(datagrams.len(), taken * 10);
}

#[test]
fn a_faulty_tun_fails_in_the_ways_that_kernels_do() {
    let (tun, end) = mem::tun().unwrap();
    let tun = Faulty::new(
        tun,
        Faults {
            refusal: 1.0,
            ..Faults::default()
        },
    );
    let lone = [0_u8; 30];
    let mut coalesced = lone;
    coalesced[1] = 1;
    tun.write(&[IoSlice::new(&lone)]).unwrap();
    let error = tun.write(&[IoSlice::new(&coalesced)]).unwrap_err();
    assert_eq!(TunErrorKind::of(&error), TunErrorKind::Refused);
    assert_eq!(
        (end.take().map(|frame| frame.len()), end.take()),
        (Some(30), None)
    );

    let (inner, _end) = mem::tun().unwrap();
    let tun = Faulty::new(
        inner,
        Faults {
            error: 1.0,
            ..Faults::default()
        },
    );
    assert_eq!(
        TunErrorKind::of(
            &tun.read_batch(&mut crate::FrameBatch::default())
                .unwrap_err()
        ),
        TunErrorKind::Transient
    );
    assert_eq!(
        TunErrorKind::of(&tun.write(&[IoSlice::new(&lone)]).unwrap_err()),
        TunErrorKind::Down
    );
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_recording_holds_every_packet() {
    let file = Shared::default();
    let recorder = Recorder::new(file.clone()).unwrap();
    let (tun, end) = mem::tun().unwrap();
    let tun = Recorded::tun(tun, recorder.clone());
    end.inject([&[0; VNET_HDR_LEN][..], b"inner"].concat());
    tun.read_batch(&mut crate::FrameBatch::default()).unwrap();
    tun.write(&[IoSlice::new(&[0; VNET_HDR_LEN]), IoSlice::new(b"out")])
        .unwrap();

    let network = MemNetwork::new();
    let a = network.bind(addr("[fd00::1]:1"), true).unwrap();
    let a = Recorded::udp(a, recorder, addr("[fd00::1]:1"));
    let b = network.bind(addr("[fd00::2]:2"), true).unwrap();
    a.send(
        &[train("[fd00::2]:2", 2, b"aabbc")],
        &mut SendReport::default(),
    );
    b.send(
        &[train("[fd00::1]:1", 9, b"back")],
        &mut SendReport::default(),
    );
    assert_eq!(drain(&a), [b"back"]);

    let bytes = file.0.lock().unwrap().clone();
    assert_eq!(bytes[..4], 0xa1b2_3c4d_u32.to_ne_bytes());
    let mut rest = &bytes[24..];
    let mut packets = Vec::new();
    while !rest.is_empty() {
        let len = u32::from_ne_bytes(rest[8..12].try_into().unwrap()) as usize;
        packets.push(rest[16..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    assert_eq!(packets[..2], [&b"inner"[..], b"out"]);
    let lens: Vec<_> = packets[2..].iter().map(Vec::len).collect();
    assert_eq!(lens, [50, 50, 49, 52]);
    assert_eq!(packets[5][..8], [0x60, 0x10, 0, 0, 0, 12, 17, 64]);
    assert!(packets[5].ends_with(b"\x00\x02\x00\x01\x00\x0c\x00\x00back"));
}

#[test]
fn a_batch_never_holds_more_than_it_has_room_for() {
    let mut batch = RecvBatch::new(2);
    let from = Endpoint::from(addr("192.0.2.1:1"));
    assert!(
        !batch.push(from, 0, 1, &vec![0; 70_000]),
        "longer than a slot"
    );
    assert!(batch.push(from, 0, 0, &vec![1; 65_536]));
    assert!(batch.push(from, 0, 9999, b"two"));
    assert!(!batch.push(from, 0, 1, b"three"));
    assert_eq!(
        (batch.received()[0].stride, batch.received()[1].stride),
        (1, 3)
    );
    let all: Vec<_> = batch.iter_mut().collect();
    assert_eq!(
        (all.len(), all[0].1.len(), &*all[1].1),
        (2, 65_536, &b"two"[..])
    );
    assert_eq!(batch.bytes(2), b"");
    assert_eq!(batch.bytes_mut(usize::MAX), b"");
    batch.clear();
    assert!(batch.is_empty());
    assert_eq!(batch.bytes(0), b"");
}

#[test]
fn every_offload_has_a_switch() {
    let mut offloads = Offloads::default();
    assert_eq!(offloads, Offloads::ALL);
    for (i, name) in Offloads::NAMES.into_iter().enumerate() {
        offloads.disable(name).unwrap();
        let off: Vec<_> = offloads
            .iter()
            .filter(|(_, on)| !on)
            .map(|(name, _)| name)
            .collect();
        assert_eq!(off, Offloads::NAMES[..=i]);
    }
    assert_eq!(offloads, Offloads::NONE);
    let error = offloads.disable("tun_tso").unwrap_err();
    assert!(error.to_string().contains("tun-tso, tun-uso"));
    let mut some = Offloads::ALL;
    some.disable("udp-gro").unwrap();
    assert_eq!(Offloads::ALL.and(some), some);
}
