use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use adit_proto::wire::{self, DataHeader};
use adit_proto::{Endpoint, Source, Time};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::open::{is_missing, mangles_trains};
use super::*;
use crate::Offloads;

use crate::sys::bpf;
use crate::sys::bpf::instructions::{Instruction, KTIME_GET_BOOT_NS, R0};
use crate::sys::os;
use adit_netlink::netns::Netns;
use adit_netlink::{Family, LinkChange, Netlink, Route, Rule};

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn train(to: SocketAddr, stride: usize, bytes: &[u8]) -> Transmit<'_> {
    Transmit {
        to: to.into(),
        ecn: 0,
        stride,
        bytes,
    }
}

fn numbered(len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i * 7 + i / 251).to_le_bytes()[0])
        .collect()
}

// A scripted kernel: its answer to each call, and the datagrams that it took.

#[derive(Debug, PartialEq, Eq)]
struct Taken {
    bytes: Vec<u8>,
    segmented: bool,
    from_source: bool,
}

struct Script {
    answers: VecDeque<Result<usize, Errno>>,
    taken: Vec<Taken>,
    calls: usize,
}

impl Script {
    fn new(answers: impl IntoIterator<Item = Result<usize, Errno>>) -> Self {
        Self {
            answers: answers.into_iter().collect(),
            taken: Vec::new(),
            calls: 0,
        }
    }

    /// Without an answer left, takes everything.
    fn send(&mut self, messages: &[OutgoingMessage<'_>]) -> Result<usize, Errno> {
        self.calls += 1;
        let count = self.answers.pop_front().unwrap_or(Ok(messages.len()))?;
        self.taken
            .extend(messages[..count].iter().map(|message| Taken {
                bytes: message.bytes.to_vec(),
                segmented: message.is_segmented(),
                from_source: message.from_source && message.train.to.src.is_some(),
            }));
        Ok(count)
    }

    fn bytes(&self) -> Vec<u8> {
        self.taken
            .iter()
            .flat_map(|taken| taken.bytes.clone())
            .collect()
    }
}

fn run(
    script: &mut Script,
    gso: Option<&GsoFallbacks>,
    trains: &[Transmit<'_>],
) -> (usize, SendReport) {
    let mut report = SendReport::default();
    let taken = send_trains(|messages| script.send(messages), gso, trains, &mut report);
    (taken, report)
}

#[test]
fn a_train_longer_than_one_send_is_split_between_datagrams() {
    let gso_fallbacks = GsoFallbacks::default();
    let cases = [
        // (destination, stride, datagrams, lengths of the sends in datagrams)
        ("192.0.2.1:1", 1452, 47, vec![45, 2]),
        ("[2001:db8::1]:1", 1452, 47, vec![45, 2]),
        ("192.0.2.1:1", 100, 130, vec![64, 64, 2]),
        ("192.0.2.1:1", 65_507, 2, vec![1, 1]),
        ("192.0.2.1:1", 32, 1, vec![1]),
    ];
    for (to, stride, datagrams, expected) in cases {
        let bytes = numbered(stride * datagrams - 1);
        let mut script = Script::new([]);
        let (taken, report) = run(
            &mut script,
            Some(&gso_fallbacks),
            &[train(addr(to), stride, &bytes)],
        );
        let sends: Vec<_> = script
            .taken
            .iter()
            .map(|sent| sent.bytes.len().div_ceil(stride))
            .collect();
        assert_eq!(sends, expected, "{to} {stride}");
        assert_eq!(script.bytes(), bytes);
        assert_eq!((taken, report), (1, SendReport::default()));
        assert_eq!(script.calls, 1, "all in one call");
    }
}

#[test]
fn an_empty_train_is_one_empty_datagram() {
    let mut script = Script::new([]);
    let (taken, _) = run(&mut script, None, &[train(addr("192.0.2.1:1"), 0, &[])]);
    assert_eq!((taken, script.taken.len()), (1, 1));
    assert_eq!(script.taken[0].bytes.len(), 0);
}

#[test]
fn after_a_partial_send_nothing_is_lost_and_nothing_sent_twice() {
    let gso_fallbacks = GsoFallbacks::default();
    let bytes = numbered(3000);
    let trains: Vec<_> = (0..200)
        .map(|i| train(addr("192.0.2.1:1"), 1000, &bytes[i..i + 2500]))
        .collect();
    let expected: Vec<u8> = trains
        .iter()
        .flat_map(|train| train.bytes.to_vec())
        .collect();
    for gso in [None, Some(&gso_fallbacks)] {
        let mut script =
            Script::new([Ok(1), Ok(5), Err(Errno::INTR), Ok(2), Ok(64), Ok(63), Ok(1)]);
        let (taken, report) = run(&mut script, gso, &trains);
        assert_eq!((taken, report), (200, SendReport::default()));
        assert!(script.bytes() == expected);
    }
}

#[test]
fn a_full_buffer_in_the_middle_of_a_train_says_where_to_go_on() {
    let bytes = numbered(4500);
    let trains = [train(addr("192.0.2.1:1"), 1000, &bytes); 2];
    let mut script = Script::new([Ok(7), Err(Errno::AGAIN)]);
    let (taken, report) = run(&mut script, None, &trains);
    assert_eq!(
        (taken, report.resume_at, report.datagrams_lost()),
        (1, 2000, 0)
    );
    let rest = train(
        addr("192.0.2.1:1"),
        1000,
        &trains[1].bytes[report.resume_at..],
    );
    let (taken, report) = run(&mut script, None, &[rest]);
    assert_eq!((taken, report), (1, SendReport::default()));
    assert_eq!(script.bytes(), [&bytes[..], &bytes[..]].concat());
}

#[test]
fn a_refused_train_goes_out_datagram_by_datagram() {
    for errno in [Errno::IO, Errno::INVAL, Errno::MSGSIZE] {
        let gso_fallbacks = GsoFallbacks::default();
        let bytes = numbered(2500);
        let (bad, good) = (addr("192.0.2.1:1"), addr("192.0.2.2:1"));
        let trains = [train(bad, 1000, &bytes), train(good, 1000, &bytes)];
        let mut script = Script::new([Err(errno)]);
        let (taken, report) = run(&mut script, Some(&gso_fallbacks), &trains);
        assert_eq!((taken, report.refused, report.datagrams_lost()), (2, 1, 0));
        let too_long = (errno != Errno::IO).then_some(0);
        assert_eq!(report.too_long, too_long);
        let shape = |script: &Script| -> Vec<_> {
            script
                .taken
                .iter()
                .map(|sent| (sent.bytes.len(), sent.segmented))
                .collect()
        };
        let expected = [(1000, false), (1000, false), (500, false), (2500, true)];
        assert_eq!(shape(&script), expected);

        let mut script = Script::new([]);
        let (_, report) = run(&mut script, Some(&gso_fallbacks), &trains);
        assert_eq!(
            (shape(&script), report.refused),
            (expected.to_vec(), 0),
            "remembered"
        );
        assert_eq!(report.too_long, None, "told once");

        // Where the segments were too long, shorter ones are tried.
        let short = [train(bad, 984, &bytes[..2460])];
        let mut script = Script::new([]);
        run(&mut script, Some(&gso_fallbacks), &short);
        assert_eq!(script.taken[0].segmented, errno != Errno::IO);

        gso_fallbacks.clear();
        let mut script = Script::new([]);
        run(&mut script, Some(&gso_fallbacks), &trains);
        assert_eq!(shape(&script), [(2500, true), (2500, true)], "forgotten");
    }
}

#[test]
fn a_refusal_in_the_middle_of_a_train_sends_only_the_rest_again() {
    let gso_fallbacks = GsoFallbacks::default();
    let bytes = numbered(100 * 100);
    let mut script = Script::new([Ok(1), Err(Errno::MSGSIZE)]);
    let (taken, report) = run(
        &mut script,
        Some(&gso_fallbacks),
        &[train(addr("192.0.2.1:1"), 100, &bytes)],
    );
    assert_eq!((taken, report.refused, report.datagrams_lost()), (1, 1, 0));
    assert_eq!(script.bytes(), bytes);
    assert_eq!(script.taken.len(), 1 + 36);
}

#[test]
fn a_source_address_that_is_gone_is_left_out_and_reported() {
    let gso_fallbacks = GsoFallbacks::default();
    let bytes = numbered(100 * 100);
    let mut to = Endpoint::from(addr("192.0.2.1:1"));
    to.src = Some(Source {
        ip: IpAddr::from([192, 0, 2, 99]),
        ifindex: 3,
    });
    let with_source = Transmit {
        to,
        ..train(to.addr, 100, &bytes)
    };
    let trains = [train(addr("192.0.2.1:1"), 100, &bytes), with_source];
    let mut script = Script::new([Ok(2), Err(Errno::INVAL)]);
    let (taken, report) = run(&mut script, Some(&gso_fallbacks), &trains);
    assert_eq!((taken, report.stale_source), (2, Some(1)));
    assert_eq!((report.refused, report.datagrams_lost()), (0, 0));
    assert_eq!(script.bytes(), [&bytes[..], &bytes[..]].concat());
    assert!(script.taken.iter().all(|sent| !sent.from_source));

    // It was not the source: the source stays, and segmentation is tried next.
    let mut script = Script::new([Err(Errno::INVAL), Err(Errno::INVAL)]);
    let (taken, report) = run(&mut script, Some(&gso_fallbacks), &[with_source]);
    assert_eq!(
        (
            taken,
            report.stale_source,
            report.refused,
            report.datagrams_lost()
        ),
        (1, None, 1, 0)
    );
    assert!(
        script
            .taken
            .iter()
            .all(|sent| sent.from_source && !sent.segmented)
    );
    assert_eq!(script.bytes(), bytes);
}

#[test]
fn datagrams_that_cannot_be_sent_are_counted_by_train() {
    let gso_fallbacks = GsoFallbacks::default();
    let bytes = numbered(2500);
    for errno in [
        Errno::PERM,
        Errno::NETUNREACH,
        Errno::CONNREFUSED,
        Errno::NOMEM,
    ] {
        let trains = [train(addr("192.0.2.1:1"), 1000, &bytes); 3];
        let mut script = Script::new([Ok(1), Err(errno)]);
        let (taken, report) = run(&mut script, Some(&gso_fallbacks), &trains);
        assert_eq!(
            (taken, report.lost),
            (
                3,
                vec![crate::Lost {
                    train: 1,
                    datagrams: 3
                }]
            )
        );
        assert_eq!(script.taken.len(), 2);
    }
}

/// As to port 0, which a peer may claim to send from.
#[test]
fn datagrams_refused_alone_do_not_blame_segmentation() {
    let gso_fallbacks = GsoFallbacks::default();
    let bytes = numbered(2500);
    for i in 0..1000_u32 {
        let to = SocketAddr::from((Ipv4Addr::from_bits(i), 0));
        let mut script = Script::new([Err(Errno::INVAL); 4]);
        let (taken, report) = run(
            &mut script,
            Some(&gso_fallbacks),
            &[train(to, 1000, &bytes)],
        );
        assert_eq!((taken, report.refused, report.datagrams_lost()), (1, 0, 3));
    }
    assert!(
        !gso_fallbacks.everywhere() && gso_fallbacks.allow(Ipv4Addr::from_bits(0).into(), 1000)
    );
}

#[test]
fn a_peer_with_many_addresses_is_one_path() {
    let gso_fallbacks = GsoFallbacks::default();
    for i in 0..1000_u128 {
        gso_fallbacks.insert(Ipv6Addr::from_bits(0xfd09 << 112 | i).into(), 0);
    }
    assert!(!gso_fallbacks.everywhere());
    assert!(!gso_fallbacks.allow(ip("fd09::ffff:1"), 32));
    assert!(
        gso_fallbacks.allow(ip("fd09:0:0:1::1"), 32) && gso_fallbacks.allow(ip("192.0.2.1"), 32)
    );
}

#[test]
fn the_table_of_refusals_stays_bounded() {
    let gso_fallbacks = GsoFallbacks::default();
    for i in 0..10_000_u32 {
        gso_fallbacks.insert(Ipv4Addr::from_bits(i).into(), 0);
    }
    assert!(gso_fallbacks.everywhere());
    assert!(!gso_fallbacks.allow(Ipv4Addr::from_bits(1 << 30).into(), 32));
    gso_fallbacks.clear();
    assert!(!gso_fallbacks.everywhere() && gso_fallbacks.allow(Ipv4Addr::from_bits(1).into(), 32));
}

// Real sockets:
//
//     a: 10.9.0.1/24, 10.9.0.11/24, fd09::1/64, fd09::11/64
//     |  veth "a" -- veth "b"
//     b: 10.9.0.2/24, fd09::2/64

struct Hosts {
    a: Netns,
    b: Netns,
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn up() -> LinkChange<'static> {
    LinkChange {
        up: Some(true),
        ..LinkChange::default()
    }
}

impl Hosts {
    fn set_mtu_of_a(&self, mtu: u32) {
        let netlink = Netlink::open_in(&self.a).unwrap();
        let change = LinkChange {
            mtu: Some(mtu),
            ..LinkChange::default()
        };
        netlink
            .set_link(netlink.link("a").unwrap().index, &change)
            .unwrap();
    }

    fn new() -> Self {
        let (a, b) = (Netns::new().unwrap(), Netns::new().unwrap());
        let (at_a, at_b) = (Netlink::open_in(&a).unwrap(), Netlink::open_in(&b).unwrap());
        at_a.add_veth("a", "b", Some(&b)).unwrap();
        let own = [
            (
                &at_a,
                "a",
                &["10.9.0.1", "10.9.0.11", "fd09::1", "fd09::11"][..],
            ),
            (&at_b, "b", &["10.9.0.2", "fd09::2"]),
        ];
        for (netlink, name, addresses) in own {
            let index = netlink.link(name).unwrap().index;
            for address in addresses {
                let prefix = if address.contains(':') { 64 } else { 24 };
                netlink
                    .add_address(index, ip(address), prefix, true)
                    .unwrap();
            }
            netlink.set_link(index, &up()).unwrap();
            netlink
                .set_link(netlink.link("lo").unwrap().index, &up())
                .unwrap();
        }
        // IPv6 needs a moment after the link came up.
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5)
            && at_a.route_get(ip("fd09::2"), None, 0, None).is_err()
        {
            std::thread::sleep(Duration::from_millis(2));
        }
        let hosts = Self { a, b };
        // Until the neighbours know each other, the kernel keeps a few datagrams and drops the
        // others.
        for (_, _, b) in FAMILIES {
            let (at_a, at_b, to) = hosts.sockets(b, Offloads::ALL);
            at_a.send(&[train(to, 5, b"hello")], &mut SendReport::default());
            assert_eq!(joined(&receive(&at_b, 5)), b"hello");
        }
        hosts
    }

    /// A socket of each host, of the family of `b`'s address, which comes with its port.
    fn sockets(&self, b: &str, offloads: Offloads) -> (Udp, Udp, SocketAddr) {
        let bind = |netns: &Netns| {
            let (v4, v6, port) = netns.run(|| bind_pair(0, 0, offloads)).unwrap().unwrap();
            let socket = if ip(b).is_ipv4() { v4 } else { v6 };
            (socket.unwrap(), port)
        };
        let (at_a, _) = bind(&self.a);
        let (at_b, port) = bind(&self.b);
        (at_a, at_b, SocketAddr::new(ip(b), port))
    }
}

const FAMILIES: [(&str, &str, &str); 2] = [
    ("10.9.0.1", "10.9.0.11", "10.9.0.2"),
    ("fd09::1", "fd09::11", "fd09::2"),
];

/// Messages until `bytes` bytes are there: each with its bytes.
fn receive(socket: &Udp, bytes: usize) -> Vec<(crate::Received, Vec<u8>)> {
    let mut batch = RecvBatch::new(16);
    let mut messages = Vec::new();
    let mut len = 0;
    let start = Instant::now();
    loop {
        match socket.recv(&mut batch) {
            Ok(()) => {
                for (received, bytes) in batch.iter_mut() {
                    len += bytes.len();
                    messages.push((*received, bytes.to_vec()));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
        if len >= bytes || start.elapsed() > Duration::from_secs(10) {
            return messages;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn joined(messages: &[(crate::Received, Vec<u8>)]) -> Vec<u8> {
    messages
        .iter()
        .flat_map(|(_, bytes)| bytes.clone())
        .collect()
}

#[test]
fn a_train_arrives_as_a_train_with_its_marks_and_addresses() {
    let hosts = Hosts::new();
    for (_, second, b) in FAMILIES {
        let (at_a, at_b, to) = hosts.sockets(b, Offloads::ALL);
        assert!(at_a.gso() && at_a.gro());
        let bytes = numbered(45 * 1440 - 7);
        for ecn in 0..4 {
            let mut transmit = Transmit {
                ecn,
                ..train(to, 1440, &bytes)
            };
            transmit.to.src = Some(Source {
                ip: ip(second),
                ifindex: 0,
            });
            let mut report = SendReport::default();
            assert_eq!(at_a.send(&[transmit], &mut report), 1);
            assert_eq!(report, SendReport::default());
            let messages = receive(&at_b, bytes.len());
            assert!(joined(&messages) == bytes);
            let (received, _) = &messages[0];
            assert_eq!((messages.len(), received.stride), (1, 1440), "one train");
            assert_eq!(received.ecn, ecn);
            assert_eq!(
                received.from.addr.ip(),
                ip(second),
                "the source that was asked for"
            );
            let src = received.from.src.unwrap();
            assert_eq!(src.ip, to.ip(), "the address that was written to");
            assert_ne!(src.ifindex, 0);

            // and back, to and from the addresses that arrived
            let back = Transmit {
                to: received.from,
                ..train(to, 32, &bytes[..100])
            };
            assert_eq!(at_b.send(&[back], &mut report), 1);
            assert_eq!(report, SendReport::default());
            let messages = receive(&at_a, 100);
            assert_eq!(joined(&messages), bytes[..100]);
            assert_eq!(messages[0].0.from.addr, to);
        }
    }
}

#[test]
fn without_offloads_the_same_bytes_arrive() {
    let hosts = Hosts::new();
    for (_, _, b) in FAMILIES {
        for (udp_gso, udp_gro) in [(false, true), (true, false), (false, false)] {
            let offloads = Offloads {
                udp_gso,
                udp_gro,
                ..Offloads::ALL
            };
            let (at_a, at_b, to) = hosts.sockets(b, offloads);
            assert_eq!((at_a.gso(), at_a.gro()), (udp_gso, udp_gro));
            let bytes = numbered(100 * 1000 - 7);
            let mut report = SendReport::default();
            assert_eq!(at_a.send(&[train(to, 1000, &bytes)], &mut report), 1);
            let messages = receive(&at_b, bytes.len());
            assert!(joined(&messages) == bytes);
            if !udp_gro {
                assert!(
                    messages
                        .iter()
                        .all(|(received, _)| received.len == received.stride)
                );
                assert_eq!(messages.len(), 100);
            }
        }
    }
}

#[test]
fn trains_of_every_length_arrive_in_order() {
    let hosts = Hosts::new();
    for (_, _, b) in FAMILIES {
        let (at_a, at_b, to) = hosts.sockets(b, Offloads::ALL);
        let max = if to.is_ipv4() {
            MAX_SEND_V4
        } else {
            MAX_SEND_V6
        };
        let bytes = numbered(max);
        let lens = [0, 1, 32, 148, 1500, max, 0];
        let trains: Vec<_> = lens
            .iter()
            .map(|len| train(to, *len, &bytes[..*len]))
            .collect();
        let mut report = SendReport::default();
        assert_eq!(at_a.send(&trains, &mut report), trains.len());
        assert_eq!(report, SendReport::default());
        let messages = receive(&at_b, lens.iter().sum());
        let arrived: Vec<_> = messages.iter().map(|(received, _)| received.len).collect();
        assert_eq!(arrived[..6], lens[..6]);

        let small = numbered(1000);
        let trains: Vec<_> = (0..200)
            .map(|i| train(to, 500, &small[..500 + i]))
            .collect();
        assert_eq!(at_a.send(&trains, &mut report), 200);
        let expected: Vec<u8> = trains
            .iter()
            .flat_map(|train| train.bytes.to_vec())
            .collect();
        assert!(joined(&receive(&at_b, expected.len())) == expected);
    }
}

#[test]
fn segments_beyond_the_mtu_are_sent_as_fragments_instead() {
    let hosts = Hosts::new();
    hosts.set_mtu_of_a(1280);
    for (_, _, b) in FAMILIES {
        let (at_a, at_b, to) = hosts.sockets(b, Offloads::ALL);
        let bytes = numbered(20 * 1440 - 7);
        let mut report = SendReport::default();
        for _ in 0..2 {
            assert_eq!(at_a.send(&[train(to, 1440, &bytes)], &mut report), 1);
            assert!(joined(&receive(&at_b, bytes.len())) == bytes);
        }
        assert_eq!(
            (report.refused, report.datagrams_lost()),
            (1, 0),
            "tried once, then remembered"
        );
        assert!(at_a.gso());
    }
}

/// Datagrams that nobody may fragment do not leave if they are too long, and others go on as before.
#[test]
fn what_is_sent_whole_leaves_whole_or_not_at_all() {
    let hosts = Hosts::new();
    hosts.set_mtu_of_a(1300);
    for (_, _, b) in FAMILIES {
        let (at_a, at_b, to) = hosts.sockets(b, Offloads::ALL);
        let fits = if to.is_ipv4() { 1300 - 28 } else { 1300 - 48 };
        let bytes = numbered(fits + 1);
        let trains = [fits + 1, fits, 100].map(|len| train(to, len, &bytes[..len]));
        let mut report = SendReport::default();
        let send = |cut, report: &mut SendReport| {
            let send = || at_a.send_beside(&trains, cut, report);
            assert_eq!(hosts.a.run(send).unwrap(), 3);
        };
        send(Cut::Allowed, &mut report);
        assert_eq!((report.datagrams_lost(), report.error), (0, None));
        assert_eq!(receive(&at_b, 2 * fits + 101).len(), 3);
        send(Cut::Refused, &mut report);
        let lost: Vec<usize> = report.lost.iter().map(|lost| lost.train).collect();
        assert_eq!((lost, report.error), (vec![0], Some(Errno::MSGSIZE)));
        let messages = receive(&at_b, fits + 100);
        let arrived = messages.iter().map(|(received, _)| received.len);
        assert_eq!(arrived.collect::<Vec<_>>(), [fits, 100]);
        let from = messages[0].0.from.addr;
        assert_eq!(from.port(), at_a.local_addr().unwrap().port());
        // Nobody else may join, and the shared socket goes on with fragments and receives.
        assert!(!sockopt::socket_reuseport(&at_a.fd).unwrap());
        at_a.send(&trains[..1], &mut SendReport::default());
        assert_eq!(receive(&at_b, fits + 1)[0].0.len, fits + 1);
        let back = train(from, 5, b"hello");
        at_b.send(&[back], &mut SendReport::default());
        assert_eq!(joined(&receive(&at_a, 5)), b"hello");
    }
}

/// For what is sent, a route that is narrower than the device is as what ICMP taught the kernel.
#[test]
fn sockets_that_ignore_icmp_send_what_the_device_takes_and_so_do_those_beside() {
    let hosts = Hosts::new();
    let netlink = Netlink::open_in(&hosts.a).unwrap();
    let index = netlink.link("a").unwrap().index;
    for (_, _, b) in FAMILIES {
        let (at_a, at_b, to) = hosts.sockets(b, Offloads::ALL);
        let mut narrow = Route::through(index, to.ip(), if to.is_ipv4() { 32 } else { 128 });
        narrow.mtu = Some(1300);
        netlink.add_route(&narrow).unwrap();
        let bytes = numbered(3 * 1400);
        let train = [train(to, 1400, &bytes)];
        let beside = |cut| {
            let mut report = SendReport::default();
            let send = || at_a.send_beside(&train, cut, &mut report);
            assert_eq!(hosts.a.run(send).unwrap(), 1);
            (report.refused, report.datagrams_lost())
        };
        let sends = |socket: &Udp| {
            let mut report = SendReport::default();
            assert_eq!(socket.send(&train, &mut report), 1);
            assert!(joined(&receive(&at_b, bytes.len())) == bytes, "{b}");
            report.refused
        };
        assert_eq!(beside(Cut::Refused), (0, 3));
        assert_eq!(beside(Cut::RefusedPastIcmp), (0, 0));
        assert!(joined(&receive(&at_b, bytes.len())) == bytes, "{b}");
        for (ignore, refused) in [(false, 1), (true, 0), (false, 1)] {
            at_a.ignore_icmp(ignore).unwrap();
            assert_eq!(sends(&at_a), refused, "{b}");
            let further = hosts.a.run(|| at_a.further(1)).unwrap().unwrap();
            assert_eq!(sends(&further[0]), refused, "{b}");
            drop(further);
            let own = hosts.a.run(|| at_a.send_socket()).unwrap().unwrap();
            assert_eq!(sends(&own), refused, "{b}");
            assert_eq!(beside(Cut::Allowed), (refused, 0));
            assert!(joined(&receive(&at_b, bytes.len())) == bytes, "{b}");
        }
        assert_eq!(beside(Cut::Refused).1, 3, "it asks all the same");
    }
}

#[test]
fn what_is_sent_beside_a_full_socket_leaves() {
    let hosts = Hosts::new();
    for (_, _, b) in FAMILIES {
        let (at_a, at_b, to) = hosts.sockets(b, Offloads::ALL);
        sockopt::set_socket_send_buffer_size(&at_a.fd, 1).unwrap();
        // Nobody has that address: what is sent there waits for one who has.
        let nobody = if to.is_ipv4() {
            "10.9.0.99"
        } else {
            "fd09::99"
        };
        let nobody = SocketAddr::new(ip(nobody), 9);
        let mut report = SendReport::default();
        let bytes = numbered(1000);
        let is_full =
            |report: &mut SendReport| at_a.send(&[train(nobody, 1000, &bytes)], report) == 0;
        assert!((0..100).any(|_| is_full(&mut report)));
        for cut in [Cut::Allowed, Cut::Refused, Cut::RefusedPastIcmp] {
            let hello = [train(to, 5, b"hello")];
            let send = || at_a.send_beside(&hello, cut, &mut report);
            assert_eq!(hosts.a.run(send).unwrap(), 1);
            assert_eq!(joined(&receive(&at_b, 5)), b"hello");
        }
        assert!(is_full(&mut report), "it was full all the time");
    }
}

#[test]
fn the_longest_and_the_shortest_datagram_are_received() {
    let hosts = Hosts::new();
    for (_, _, b) in FAMILIES {
        let (at_a, at_b, to) = hosts.sockets(b, Offloads::ALL);
        let longest = if to.is_ipv4() { 65_507 } else { 65_527 };
        let mut batch = RecvBatch::default();
        for len in [longest, 0, 1] {
            let bytes = numbered(len);
            let mut report = SendReport::default();
            assert_eq!(at_a.send(&[train(to, len, &bytes)], &mut report), 1);
            assert_eq!(report.datagrams_lost(), 0, "{len} bytes");
            let start = Instant::now();
            while at_b.recv(&mut batch).is_err() {
                assert!(start.elapsed() < Duration::from_secs(20), "{len} bytes");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(batch.len(), 1);
            assert!(batch.bytes(0) == bytes, "{len} bytes");
            assert_eq!(batch.received()[0].stride, len.max(1));
        }
    }
}

#[test]
fn sockets_and_devices_are_closed_on_exec() {
    let hosts = Hosts::new();
    let (at_a, _, _) = hosts.sockets(FAMILIES[0].2, Offloads::ALL);
    let flags = rustix::io::fcntl_getfd(at_a.fd()).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    let open = || crate::tun::Tun::open("adit0", 1, Offloads::ALL);
    for queue in hosts.a.run(open).unwrap().unwrap() {
        let flags = rustix::io::fcntl_getfd(crate::TunQueue::fd(&queue)).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
}

#[test]
fn a_source_address_that_goes_away_is_replaced_and_reported() {
    let hosts = Hosts::new();
    let netlink = Netlink::open_in(&hosts.a).unwrap();
    let index = netlink.link("a").unwrap().index;
    for (first, second, b) in FAMILIES {
        let (at_a, at_b, to) = hosts.sockets(b, Offloads::ALL);
        let bytes = numbered(5000);
        let mut transmit = train(to, 1000, &bytes);
        transmit.to.src = Some(Source {
            ip: ip(second),
            ifindex: index,
        });
        let prefix = if to.is_ipv4() { 24 } else { 64 };
        netlink.delete_address(index, ip(second), prefix).unwrap();
        let mut report = SendReport::default();
        assert_eq!(at_a.send(&[transmit], &mut report), 1);
        assert_eq!(
            (report.stale_source, report.datagrams_lost(), report.refused),
            (Some(0), 0, 0)
        );
        let messages = receive(&at_b, bytes.len());
        assert!(joined(&messages) == bytes);
        assert_eq!(messages[0].0.from.addr.ip(), ip(first));
    }
}

#[test]
fn a_pair_shares_one_port_which_nobody_else_gets() {
    let netns = Netns::new().unwrap();
    netns
        .run(|| {
            let (v4, v6, port) = bind_pair(0, 0, Offloads::ALL).unwrap();
            let (v4, v6) = (v4.unwrap(), v6.unwrap());
            assert_ne!(port, 0);
            assert_eq!(v4.local_addr().unwrap().port(), port);
            assert_eq!(v6.local_addr().unwrap().port(), port);
            let descriptors = || std::fs::read_dir("/proc/thread-self/fd").unwrap().count();
            let before = descriptors();
            for shared in [false, true] {
                for address in [v4.local_addr().unwrap(), v6.local_addr().unwrap()] {
                    let error = Udp::bind(address, 0, Offloads::ALL, shared).err().unwrap();
                    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
                }
            }
            drop(v4);
            let error = bind_pair(port, 0, Offloads::ALL).err().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "IPv6 alone has it");
            // Other tests of this process open and close files meanwhile: only a leak would add up.
            for _ in 0..200 {
                assert!(bind_pair(port, 0, Offloads::ALL).is_err());
            }
            assert!(descriptors() < before + 150, "no descriptor leaks");
            drop(v6);
            // Programs that other tests of this process start have its sockets, too, until they are
            // executed.
            let deadline = Instant::now() + Duration::from_secs(10);
            let again = loop {
                match bind_pair(port, 0, Offloads::ALL) {
                    Ok((_, _, again)) => break again,
                    Err(e) => assert!(Instant::now() < deadline, "{e}"),
                }
            };
            assert_eq!(again, port);
        })
        .unwrap();
}

/// A data message whose receiver index ends with this byte; the last byte says so, too.
fn data(rx_queue: u8, len: usize) -> Vec<u8> {
    let mut datagram = vec![rx_queue; len];
    datagram[..8].copy_from_slice(&[DataHeader::TYPE, 0, 0, 0, 0xa1, 0xa2, 0xa3, rx_queue]);
    datagram
}

#[test]
fn data_arrives_where_its_receiver_index_says() {
    let hosts = Hosts::new();
    for (_, _, b) in FAMILIES {
        let (at_a, first, to) = hosts.sockets(b, Offloads::ALL);
        first.set_mark(7).unwrap();
        let further = hosts.b.run(|| first.further(3)).unwrap().unwrap();
        let sockets: Vec<&Udp> = std::iter::once(&first).chain(&further).collect();
        let send = |bytes: &[u8]| {
            at_a.send(&[train(to, bytes.len(), bytes)], &mut SendReport::default());
        };
        // Its own sockets of slow peers come and go behind them.
        let send_socket = || hosts.b.run(|| first.send_socket()).unwrap().unwrap();
        let mut others: Vec<Udp> = (0..3).map(|_| send_socket()).collect();
        for (round, over) in [(0, 1), (1, 4), (2, 2), (3, 4), (4, 3)] {
            if over > 1 {
                first.spread(over).unwrap();
                assert_eq!(first.state().group, u32::try_from(over).unwrap());
            }
            for rx_queue in 0..=255 {
                send(&data(rx_queue, 32));
                // The receiver index decides, not what else there is.
                let socket = sockets[usize::from(rx_queue) % over];
                assert_eq!(joined(&receive(socket, 32)), data(rx_queue, 32), "{round}");
            }
            others.remove(round % others.len());
            others.push(send_socket());
        }
        // Trains arrive whole.
        let long = [data(4, 1000), data(4, 1000), data(4, 500)].concat();
        at_a.send(&[train(to, 1000, &long)], &mut SendReport::default());
        let came = receive(&further[0], 2500);
        assert_eq!((came[0].0.stride, came.len()), (1000, 1));
        assert_eq!(joined(&came), long);
        // Anything else arrives at the first: handshake messages, and garbage of any length.
        let mut sent = 0;
        for kind in [0, 1, 2, 3, 5, 255] {
            for len in [1, 7, 8, 148] {
                let mut datagram = vec![1; len];
                datagram[0] = kind;
                send(&datagram);
                sent += len;
            }
        }
        let cut = [DataHeader::TYPE, 0, 0, 0, 1, 1, 1];
        send(&cut);
        assert_eq!(joined(&receive(&first, sent + cut.len())).len(), sent + 7);
        for socket in sockets.into_iter().chain(&others) {
            let more = socket.recv(&mut RecvBatch::new(16)).err().unwrap();
            assert_eq!(more.kind(), io::ErrorKind::WouldBlock);
            let mark = os::option(socket.fd(), libc::SOL_SOCKET, libc::SO_MARK);
            assert_eq!(mark.unwrap(), 7);
        }
    }
}

/// The kernel merges what one sender sends at once, and hands it to one socket.
#[test]
fn data_behind_handshake_messages_arrives_with_other_data() {
    let hosts = Hosts::new();
    // What kernels before 6.7 allow a program; since then each namespace has its own limit.
    let limit = "/proc/sys/net/core/optmem_max";
    let lowered = hosts.b.run(|| std::fs::write(limit, "20480")).unwrap();
    assert!(lowered.is_ok() || !std::path::Path::new(limit).exists());
    for (_, _, b) in FAMILIES {
        let (at_a, first, to) = hosts.sockets(b, Offloads::ALL);
        let further = hosts.b.run(|| first.further(3)).unwrap().unwrap();
        first.spread(4).unwrap();
        for (kind, len) in wire::HANDSHAKE_LENGTHS {
            let mut message = vec![0; len];
            message[0] = kind;
            for messages in [1, 2, 5, 14, 15] {
                for len_of_data in [32, len - 1, len] {
                    let rx_queue = 1 + messages % 3;
                    let text = data(u8::try_from(rx_queue).unwrap(), len_of_data);
                    let train_of = [message.repeat(messages), text].concat();
                    at_a.send(&[train(to, len, &train_of)], &mut SendReport::default());
                    let came = receive(&further[rx_queue - 1], train_of.len());
                    assert_eq!(came.len(), 1, "{messages} of type {kind}, merged");
                    assert_eq!(joined(&came), train_of);
                }
            }
            // Handshake messages alone, and what is cut short behind them.
            let alone = [&message.repeat(3)[..], &[DataHeader::TYPE, 0, 0]].concat();
            at_a.send(&[train(to, len, &alone)], &mut SendReport::default());
            assert_eq!(joined(&receive(&first, alone.len())), alone);
        }
    }
}

/// While sockets join and leave, all that was sent meanwhile arrives at the first in its order.
#[test]
fn nothing_goes_astray_while_sockets_join_and_leave() {
    let hosts = Hosts::new();
    for (_, _, b) in FAMILIES {
        let (_, first, to) = hosts.sockets(b, Offloads::ALL);
        // The kernel would choose among the sockets by the sender's port.
        let senders: Vec<Udp> = (0..16).map(|_| hosts.sockets(b, Offloads::ALL).0).collect();
        let (ends, mut sockets) = (AtomicBool::new(false), Vec::new());
        let mut last = vec![0_u64; senders.len()];
        let (mut batch, mut astray) = (RecvBatch::new(16), false);
        // The socket has room for more than waits, however late it is read.
        let (most, arrived) = (2048, AtomicU64::new(0));
        std::thread::scope(|scope| {
            let send = || {
                for number in 1_u64.. {
                    let sent = number * senders.len() as u64;
                    while sent > arrived.load(Relaxed) + most && !ends.load(Relaxed) {
                        std::thread::yield_now();
                    }
                    for (sender, socket) in (0_u64..).zip(&senders) {
                        let mut datagram = data(8, 32);
                        datagram[16..24].copy_from_slice(&sender.to_le_bytes());
                        datagram[24..].copy_from_slice(&number.to_le_bytes());
                        let trains = [train(to, 32, &datagram)];
                        socket.send(&trains, &mut SendReport::default());
                    }
                    if ends.load(Relaxed) {
                        return number;
                    }
                }
                unreachable!("somebody ends it")
            };
            let sender = scope.spawn(send);
            let mut drain = || {
                while first.recv(&mut batch).is_ok() {
                    for (_, bytes) in batch.iter_mut() {
                        let number = |at| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
                        let last = &mut last[usize::try_from(number(16)).unwrap()];
                        astray |= number(24) != *last + 1;
                        *last = number(24);
                        arrived.fetch_add(1, Relaxed);
                    }
                }
            };
            for _ in 0..50 {
                sockets.push(hosts.b.run(|| first.send_socket()).unwrap().unwrap());
                drain();
            }
            sockets.clear();
            drain();
            for _ in 0..1000 {
                drop(hosts.b.run(|| first.send_socket()).unwrap().unwrap());
                drain();
            }
            // All has the receive queue of the first.
            sockets.extend(hosts.b.run(|| first.further(3)).unwrap().unwrap());
            drain();
            for over in [4, 2, 4, 1, 4] {
                first.spread(over).unwrap();
                drain();
            }
            ends.store(true, Relaxed);
            let number = sender.join().unwrap();
            drain();
            assert!(!astray);
            assert_eq!(last, vec![number; senders.len()]);
        });
        assert!(sockets.iter().all(|it| it.recv(&mut batch).is_err()));
    }
}

/// When the grace period is over, nothing arrives by the number before any more: a socket that is
/// empty then stays so.
#[test]
fn no_datagram_is_under_way_after_the_grace_period() {
    let hosts = Hosts::new();
    let (_, first, to) = hosts.sockets(FAMILIES[0].2, Offloads::ALL);
    let senders: Vec<Udp> = (0..4)
        .map(|_| hosts.sockets(FAMILIES[0].2, Offloads::ALL).0)
        .collect();
    let second = hosts.b.run(|| first.further(1)).unwrap().unwrap().remove(0);
    // A datagram takes some 100 µs from the choice of its socket to the queue of that. The receiver
    // is faster.
    let calls = (0..2000).map(|_| Instruction::call(KTIME_GET_BOOT_NS));
    let keeps = [Instruction::set(R0, -1), Instruction::exit()];
    let slow: Vec<_> = calls.chain(keeps).collect();
    for socket in [&first, &second] {
        bpf::attach_to_socket(socket.fd(), &slow).unwrap();
    }
    let ends = AtomicBool::new(false);
    let mut batch = RecvBatch::new(64);
    let mut late = Vec::new();
    std::thread::scope(|scope| {
        for sender in &senders {
            scope.spawn(|| {
                let datagram = data(1, 32);
                while !ends.load(Relaxed) {
                    sender.send(&[train(to, 32, &datagram)], &mut SendReport::default());
                }
            });
        }
        for round in 0..100 {
            let (left, over) = match round % 2 {
                0 => (&first, 2),
                _ => (&second, 1),
            };
            for _ in 0..1000 {
                if left.recv(&mut batch).is_err() {
                    break;
                }
            }
            let grace = first.spread(over).unwrap();
            while !grace.is_over() {
                std::thread::yield_now();
            }
            while left.recv(&mut batch).is_ok() {}
            let empty = Instant::now();
            while empty.elapsed() < Duration::from_millis(5) {
                let came = left.recv(&mut batch).err().map(|error| error.kind());
                if came != Some(io::ErrorKind::WouldBlock) {
                    late.push((round, came));
                }
            }
        }
        ends.store(true, Relaxed);
    });
    assert_eq!(late, []);
}

/// Sockets that only send come and go, and datagrams to the port still arrive at the first socket.
#[test]
fn a_send_socket_shares_the_port_and_receives_nothing() {
    let hosts = Hosts::new();
    for (_, _, b) in FAMILIES {
        let (at_a, at_b, to) = hosts.sockets(b, Offloads::ALL);
        at_b.set_mark(7).unwrap();
        let send_socket = || hosts.b.run(|| at_b.send_socket()).unwrap().unwrap();
        let mut others: Vec<Udp> = (0..4).map(|_| send_socket()).collect();
        for round in 0..4 {
            for other in &others {
                assert_eq!(other.local_addr().unwrap(), at_b.local_addr().unwrap());
                let mark = os::option(other.fd(), libc::SOL_SOCKET, libc::SO_MARK);
                assert_eq!(mark.unwrap(), 7);
            }
            for _ in 0..32 {
                let (at_a, _, _) = hosts.sockets(b, Offloads::ALL);
                at_a.send(&[train(to, 9, b"datagrams")], &mut SendReport::default());
            }
            assert_eq!(receive(&at_b, 32 * 9).len(), 32, "round {round}");
            others.remove(round % others.len());
            others.push(send_socket());
        }
        // Its datagrams come from the port that all share, and the answer arrives at another
        // socket.
        at_a.send(&[train(to, 5, b"hello")], &mut SendReport::default());
        let from = receive(&at_b, 5)[0].0.from;
        others[0].send(
            &[Transmit {
                to: from,
                ..train(to, 6, b"answer")
            }],
            &mut SendReport::default(),
        );
        assert_eq!(receive(&at_a, 6)[0].0.from.addr, to);
        for other in &others {
            assert!(
                other.recv(&mut RecvBatch::new(16)).is_err(),
                "nothing arrived"
            );
        }
    }
}

#[test]
fn the_mark_decides_on_the_route() {
    let hosts = Hosts::new();
    let netlink = Netlink::open_in(&hosts.a).unwrap();
    let index = netlink.link("a").unwrap().index;
    let far = SocketAddr::from(SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), 7));
    let route = Route {
        gateway: Some(ip("10.9.0.2")),
        table: 77,
        ..Route::through(index, far.ip(), 32)
    };
    netlink.add_route(&route).unwrap();
    let rule = Rule {
        family: Family::V4,
        priority: None,
        fwmark: Some(0x4d),
        not: false,
        table: 77,
        suppress_prefixlength: None,
    };
    netlink.add_rule(&rule).unwrap();
    let (at_a, _, _) = hosts.sockets("10.9.0.2", Offloads::ALL);
    let mut lost = Vec::new();
    for mark in [0, 0x4d, 0] {
        at_a.set_mark(mark).unwrap();
        let mut report = SendReport::default();
        at_a.send(&[train(far, 4, b"away")], &mut report);
        lost.push(report.datagrams_lost());
    }
    assert_eq!(lost, [1, 0, 1]);
}

#[test]
fn icmp_errors_and_an_empty_queue_do_not_stop_the_loop() {
    let hosts = Hosts::new();
    for (_, _, b) in FAMILIES {
        let (at_a, at_b, to) = hosts.sockets(b, Offloads::ALL);
        let closed = SocketAddr::new(to.ip(), 9);
        let mut report = SendReport::default();
        let mut batch = RecvBatch::new(4);
        for _ in 0..20 {
            at_a.send(&[train(closed, 4, b"lost")], &mut report);
            let error = at_a.recv(&mut batch).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            assert!(batch.is_empty());
        }
        at_a.send(&[train(to, 4, b"fine")], &mut report);
        assert_eq!(joined(&receive(&at_b, 4)), b"fine");
        assert_eq!(report.datagrams_lost(), 0);
    }
}

/// What a socket has heard of by ICMP, waiting for the first.
fn errors(socket: &Udp) -> Vec<(IcmpError, u64)> {
    let mut errors = Vec::new();
    let start = Instant::now();
    while errors.is_empty() && start.elapsed() < Duration::from_secs(20) {
        socket.take_errors(&mut |error, times| errors.push((error, times)));
        std::thread::sleep(Duration::from_millis(1));
    }
    errors
}

#[test]
fn an_icmp_error_says_who_refused_what() {
    let hosts = Hosts::new();
    for (_, _, b) in FAMILIES {
        let (at_a, _, to) = hosts.sockets(b, Offloads::ALL);
        let closed = SocketAddr::new(to.ip(), 9);
        at_a.send(&[train(closed, 4, b"lost")], &mut SendReport::default());
        let errors = errors(&at_a);
        let [(error, 1)] = &errors[..] else {
            panic!("{errors:?}")
        };
        assert_eq!((error.to, error.reporter), (closed, Some(ip(b))));
        assert_eq!(error.kind, IcmpKind::PortUnreachable);
        at_a.take_errors(&mut |error, _| panic!("{error:?} is taken twice"));
    }
}

/// Lets a host answer everything with ICMP, which is a few messages a second otherwise.
fn unlimited_icmp(netns: &Netns) {
    let set = || {
        for name in ["ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit"] {
            std::fs::write(format!("/proc/sys/net/{name}"), "0").unwrap();
        }
        for name in ["icmp_msgs_per_sec", "icmp_msgs_burst"] {
            // Before Linux 6.13 only the machine has these.
            let _ = std::fs::write(format!("/proc/sys/net/ipv4/{name}"), "1000000");
        }
    };
    netns.run(set).unwrap();
}

#[test]
fn an_icmp_error_costs_no_other_destination_a_train() {
    let hosts = Hosts::new();
    unlimited_icmp(&hosts.b);
    for (_, second, b) in FAMILIES {
        let (at_a, at_b, to) = hosts.sockets(b, Offloads::ALL);
        let mut good = Endpoint::from(to);
        good.src = Some(Source {
            ip: ip(second),
            ifindex: 0,
        });
        let closed = SocketAddr::new(to.ip(), 9);
        let mut report = SendReport::default();
        let (mut came, mut arrived) = (0, 0);
        for round in 0..200 {
            at_a.send(&[train(closed, 4, b"lost")], &mut report);
            let bytes = numbered(3000 + round);
            let transmit = Transmit {
                to: good,
                ..train(to, 1000, &bytes)
            };
            assert_eq!(at_a.send(&[transmit], &mut report), 1);
            let lost = report.datagrams_lost();
            assert_eq!((report.stale_source, lost, report.refused), (None, 0, 0));
            let messages = receive(&at_b, bytes.len());
            assert!(joined(&messages) == bytes, "round {round}");
            arrived += 1;
            if round % 7 == 0 {
                at_a.take_errors(&mut |_, times| came += times);
            }
        }
        at_a.take_errors(&mut |_, times| came += times);
        println!("{came} ICMP errors came while {arrived} trains arrived");
        assert!(came > 0 && report.icmp && at_a.gso());
    }
}

#[test]
fn an_icmp_error_hides_no_datagram_that_waits() {
    let hosts = Hosts::new();
    for (_, _, b) in FAMILIES {
        let (at_a, at_b, to) = hosts.sockets(b, Offloads::ALL);
        let from = SocketAddr::new(
            ip(if to.is_ipv4() { "10.9.0.1" } else { "fd09::1" }),
            at_a.local_addr().unwrap().port(),
        );
        at_b.send(&[train(from, 4, b"data")], &mut SendReport::default());
        let closed = SocketAddr::new(to.ip(), 9);
        at_a.send(&[train(closed, 4, b"lost")], &mut SendReport::default());
        let mut fds = [PollFd::new(&at_a.fd, PollFlags::empty())];
        let patience = Timespec {
            tv_sec: 3,
            tv_nsec: 0,
        };
        let ready = rustix::event::poll(&mut fds, Some(&patience)).unwrap();
        assert_eq!(ready, 1, "an error waits");
        let mut batch = RecvBatch::new(4);
        at_a.recv(&mut batch).unwrap();
        assert_eq!(batch.bytes(0), b"data");
        assert_eq!(errors(&at_a).len(), 1);
    }
}

/// Without IP_RECVERR udp_send_skb turns what a full queue says into success.
#[test]
fn what_a_full_queue_of_the_device_drops_is_reported_as_lost() {
    let hosts = Hosts::new();
    // A burst as long as a train: longer ones would be cut, and the queue would say nothing of the
    // parts it drops.
    let shape = "qdisc add dev a root tbf rate 50mbit burst 100kb limit 200kb";
    let shaped = hosts.a.run(|| {
        let mut tc = std::process::Command::new("tc");
        tc.args(shape.split(' ')).status()
    });
    assert!(shaped.unwrap().unwrap().success(), "tc {shape}");
    for (_, _, b) in FAMILIES {
        let (at_a, at_b, to) = hosts.sockets(b, Offloads::ALL);
        let reader = std::thread::spawn(move || receive_for(&at_b, Duration::from_secs(1)));
        let (mut sent, mut lost, mut report) = (0, 0, SendReport::default());
        for (stride, bytes) in [(1000, numbered(45_000)), (1000, numbered(1000))] {
            for _ in 0..100 {
                assert_eq!(at_a.send(&[train(to, stride, &bytes)], &mut report), 1);
                sent += (bytes.len() / stride) as u64;
                lost += report.datagrams_lost();
            }
        }
        let arrived = reader.join().unwrap() / 1000;
        println!("{sent} sent, {arrived} arrived, {lost} lost");
        assert!(lost > 0 && report.error == Some(Errno::NOBUFS));
        assert_eq!(arrived + lost, sent);
        assert_eq!(report.refused, 0, "segmentation is not to blame");
    }
}

/// How many bytes arrive until none have for a while.
fn receive_for(socket: &Udp, patience: Duration) -> u64 {
    let mut batch = RecvBatch::default();
    let (mut len, mut last) = (0, Instant::now());
    while last.elapsed() < patience {
        match socket.recv(&mut batch) {
            Ok(()) => {
                len += batch
                    .received()
                    .iter()
                    .map(|one| one.len as u64)
                    .sum::<u64>();
                last = Instant::now();
            }
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    len
}

#[test]
fn a_host_without_ipv6_gets_a_socket_for_ipv4() {
    // There is no such kernel here: what it would say is taken for that and nothing else.
    for (errno, missing) in [
        (Errno::AFNOSUPPORT, true),
        (Errno::ADDRNOTAVAIL, true),
        (Errno::ADDRINUSE, false),
        (Errno::PERM, false),
    ] {
        assert_eq!(is_missing(&errno.into()), missing);
    }
}

#[test]
fn kernels_that_mangle_trains_are_known_by_their_release() {
    for (release, bad) in [
        ("6.18.44-fc-v509", false),
        ("7.0.0-15-generic", true),
        ("7.0.12", true),
        ("7.1", true),
        ("7.1.4-arch1", true),
        ("7.1.5", false),
        ("7.2.0-rc1", false),
        ("5.15.0", false),
        ("", false),
        ("what?", false),
    ] {
        assert_eq!(mangles_trains(os::parse_release(release)), bad, "{release}");
    }
}

#[test]
fn buffers_are_short_where_no_right_makes_them_longer() {
    let bind = || Udp::bind(addr("127.0.0.1:0"), 0, Offloads::default(), false).unwrap();
    assert_eq!(bind().short_buffers(), ShortBuffers::default());
    let without_rights = std::thread::spawn(move || {
        // Of this thread only.
        let none = rustix::thread::CapabilitySets {
            effective: rustix::thread::CapabilitySet::empty(),
            permitted: rustix::thread::CapabilitySet::empty(),
            inheritable: rustix::thread::CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, none).unwrap();
        bind().short_buffers()
    });
    let is_short = |limit: &str| {
        let limit = std::fs::read_to_string(format!("/proc/sys/net/core/{limit}")).unwrap();
        limit.trim_end().parse::<usize>().unwrap() < SOCKET_BUFFER
    };
    let expected = ShortBuffers {
        receive: is_short("rmem_max"),
        send: is_short("wmem_max"),
    };
    assert_eq!(without_rights.join().unwrap(), expected);
}

#[test]
fn receive_buffer_grows_for_a_fast_receiver_only() {
    let bind = |ip: &str| Udp::bind(addr(ip), 0, Offloads::default(), false).unwrap();
    let (fast, slow) = (bind("127.0.0.1:0"), bind("[::1]:0"));
    let size = |socket: &Udp| sockopt::socket_recv_buffer_size(&socket.fd).unwrap();
    let before = [size(&fast), size(&slow)];
    // As if a terabyte had come in the 40 ms before.
    let earlier = Instant::now() - Duration::from_millis(40);
    for bytes in [0, 1 << 40] {
        assert_eq!(fast.room().received(earlier, bytes), None);
    }
    // A shard receives from both families with one batch.
    let mut batch = RecvBatch::default();
    for to in [&slow, &fast] {
        let payload = numbered(100);
        let trains = [train(to.local_addr().unwrap(), payload.len(), &payload)];
        assert_eq!(to.send(&trains, &mut SendReport::default()), 1);
        to.recv(&mut batch).unwrap();
    }
    assert!(size(&fast) > before[0], "{before:?}");
    assert_eq!(size(&slow), before[1]);
}

#[test]
fn a_full_receive_buffer_tells_how_many_datagrams_it_lost() {
    let bind = || Udp::bind(addr("127.0.0.1:0"), 0, Offloads::NONE, false).unwrap();
    let (from, to) = (bind(), bind());
    let payload = numbered(100);
    let datagram = train(to.local_addr().unwrap(), payload.len(), &payload);
    sockopt::set_socket_recv_buffer_size(&to.fd, 10_000).unwrap();
    let mut batch = RecvBatch::default();
    let (mut arrived, mut lost) = (0, 0);
    for round in 1..=3 {
        for _ in 0..1000 {
            assert_eq!(from.send(&[datagram], &mut SendReport::default()), 1);
        }
        while to.recv(&mut batch).is_ok() {
            arrived += batch.len() as u64;
            lost += batch.lost();
        }
        // The next one tells what was lost behind the last.
        assert_eq!(from.send(&[datagram], &mut SendReport::default()), 1);
        to.recv(&mut batch).unwrap();
        arrived += batch.len() as u64;
        lost += batch.lost();
        assert!(arrived < 500, "{arrived} arrived");
        assert_eq!(arrived + lost, round * 1001);
    }
    to.recv(&mut batch).unwrap_err();
    assert_eq!(batch.lost(), 0, "nothing more");
}

#[test]
fn a_counter_that_wraps_goes_on() {
    for (before, now, more) in [
        (0, 0, 0),
        (0, 7, 7),
        (u32::MAX, 2, 3),
        (7, 5, 0),
        (2, u32::MAX, 0),
    ] {
        assert_eq!(newer(before, now), more);
    }
}

pub(crate) fn boottime() -> Time {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Time::default() + Duration::try_from(now).unwrap()
}

/// Runs `work` on each CPU that this process may use.
pub(crate) fn on_each_cpu(mut work: impl FnMut(usize) + Send) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let allowed = sched_getaffinity(None).unwrap();
    // On a thread of its own, which ends with its affinity.
    let walk = || {
        for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)) {
            let mut only = CpuSet::new();
            only.set(cpu);
            sched_setaffinity(None, &only).unwrap();
            work(cpu);
        }
    };
    std::thread::scope(|scope| scope.spawn(walk).join()).unwrap();
}

#[test]
fn a_socket_knows_where_and_when_a_datagram_arrived() {
    let net = Netns::new().unwrap();
    let (socket, _, port) = net
        .run(|| {
            let netlink = Netlink::open().unwrap();
            let up = LinkChange {
                up: Some(true),
                ..LinkChange::default()
            };
            netlink.set_link(1, &up).unwrap();
            bind_pair(0, 0, Offloads::default())
        })
        .unwrap()
        .unwrap();
    let socket = socket.as_ref().unwrap();
    let sender = net
        .run(|| std::net::UdpSocket::bind("127.0.0.1:0"))
        .unwrap()
        .unwrap();
    on_each_cpu(|cpu| {
        // Datagrams of any length arrive whole.
        for len in [0, 1, 1400, 65_507] {
            let sent = numbered(len);
            let before = boottime();
            sender.send_to(&sent, ("127.0.0.1", port)).unwrap();
            let [(_, received)] = &receive(socket, len)[..] else {
                panic!("one datagram was sent")
            };
            assert!(*received == sent, "{len} bytes");
            let arrival = socket.last_arrival().unwrap();
            assert_eq!(arrival.cpu, cpu);
            assert!(before <= arrival.at && arrival.at <= boottime());
        }
    });
}

#[test]
fn a_buffer_is_asked_for_again_while_the_helper_is_busy_and_not_when_it_has_ended() {
    let failed = |errno: Errno| Err(errno.into());
    assert!(is_too_early(&failed(Errno::AGAIN)));
    for settled in [
        Ok(()),
        failed(Errno::PIPE),
        failed(Errno::CONNRESET),
        failed(Errno::PERM),
    ] {
        assert!(!is_too_early(&settled), "{settled:?}");
    }
}
