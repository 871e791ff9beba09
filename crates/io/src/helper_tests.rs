use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsFd;

use adit_netlink::netns::Netns;
use adit_netlink::{LinkChange, Netlink};
use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, socketpair, sockopt};

use super::messages::{HelperAnswer, exchange};
use super::name::is_name;
use super::request::UNANSWERED;
use super::served_tests::Served;
use super::server::MAX_BYTES;
use super::*;
use crate::Offloads;
use crate::sys::bpf::{self};
use crate::sys::os::local_addr;
use crate::sys::tun::{attach, attached};
use crate::transmit::Cut;
use crate::tun::Tun;
use crate::tun::egress::Egress;
use crate::udp::open::{Gear, SocketPurpose};

fn named(name: &str, queues: QueueChoice) -> HelperRequest {
    let name = InterfaceName::try_from(name.as_bytes()).expect("short");
    HelperRequest::Open(name, queues)
}

const FRAMES: HelperRequest = HelperRequest::Link(TunChange::FrameSize(30_000));
const BUFFERS: Options = Options {
    receive: 9 << 20,
    send: 8 << 20,
    mark: Some(7),
};
const FILTER: HelperRequest = HelperRequest::Filter([3, 5]);
const LIMIT: HelperRequest = HelperRequest::Limit {
    least: 40_000,
    several: false,
};

const PAIR: HelperRequest = HelperRequest::Pair {
    port: 443,
    mark: 7,
    wants: Gear {
        gso: true,
        gro: true,
    },
};
const JOIN: HelperRequest = HelperRequest::Join {
    group: 2,
    more: 7,
    way: SocketPurpose::RxQueue(Gear {
        gso: true,
        gro: false,
    }),
};

/// One of each kind, and more where their forms differ.
fn all() -> Vec<HelperRequest> {
    vec![
        named("wg0", QueueChoice::One),
        named("a-long-name.123", QueueChoice::First),
        named("x", QueueChoice::Several),
        HelperRequest::Queue,
        HelperRequest::Look,
        FRAMES,
        HelperRequest::Link(TunChange::Mtu(1420)),
        HelperRequest::Link(TunChange::Quiet),
        HelperRequest::Link(TunChange::NoQueue),
        HelperRequest::Arrivals,
        LIMIT,
        HelperRequest::Options(BUFFERS),
        HelperRequest::Options(Options::default()),
        PAIR,
        JOIN,
        HelperRequest::Join {
            group: 1,
            more: 1,
            way: SocketPurpose::Beside {
                gso: true,
                cut: Cut::RefusedPastIcmp,
            },
        },
        HelperRequest::Spread(4),
        HelperRequest::Ignore(true),
        HelperRequest::Apart,
        HelperRequest::Marked(7),
        HelperRequest::Home(NetlinkPurpose::Monitor),
        HelperRequest::Home(NetlinkPurpose::Netlink),
        HelperRequest::Segments(1),
        HelperRequest::Table,
        FILTER,
        HelperRequest::Clones,
        priority(PRIORITY),
        HelperRequest::Waits(rustix::thread::gettid()),
    ]
}

fn priority(nice: i8) -> HelperRequest {
    let thread = rustix::thread::gettid();
    HelperRequest::Priority { thread, nice }
}

fn is_refused(answer: &io::Result<HelperAnswer>) -> bool {
    let errno = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    answer.as_ref().is_err_and(errno)
}

#[test]
fn a_request_is_the_same_at_the_other_end() {
    for request in all() {
        assert_eq!(HelperRequest::parse(&request.to_bytes()), Some(request));
    }
}

proptest! {
    #[test]
    fn any_bytes_are_one_request_at_most(kind in 0..23_u8, rest in prop::collection::vec(0..4_u8, 0..20)) {
        let bytes = [&[kind], &rest[..]].concat();
        if let Some(request) = HelperRequest::parse(&bytes) {
            prop_assert_eq!(&request.to_bytes()[..], &bytes[..]);
        }
    }
}

#[test]
fn bytes_that_are_no_request_are_refused() {
    let helper = Served::new();
    let tun = helper.open("wg0");
    for request in all() {
        let bytes = request.to_bytes();
        let cut = &bytes[..bytes.len() - 1];
        let longer = [&bytes, &[0; 32][..]].concat();
        for other in [cut, &longer[..bytes.len() + 1], &longer] {
            // A name may be of any length up to 15 bytes; nothing at all is the end.
            if other.is_empty() || HelperRequest::parse(other).is_some_and(|it| is_named(&it)) {
                continue;
            }
            for fds in [&[][..], &[tun.as_fd()], &[tun.as_fd(), tun.as_fd()]] {
                let answer = helper.exchange(other, fds);
                assert!(is_refused(&answer), "{other:?}: {answer:?}");
            }
        }
    }
    for kind in 22..UNANSWERED {
        let answer = helper.exchange(&[kind], &[]);
        assert!(is_refused(&answer), "{kind}: {answer:?}");
    }
    // It answers the next one.
    helper
        .ask(&HelperRequest::Look, &[tun.as_fd()])
        .expect("a place");
}

fn is_named(request: &HelperRequest) -> bool {
    matches!(request, HelperRequest::Open(name, _) if is_name(name))
}

#[test]
fn values_that_cannot_be_are_refused() {
    let helper = Served::new();
    let tun = helper.open("wg0");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for name in ["", "a/b", "tun%d", "a b", "a:b", "a\n", "a\0"] {
        let answer = helper.ask(&named(name, QueueChoice::One), &[]);
        assert!(is_refused(&answer), "{name:?}: {answer:?}");
    }
    for change in [
        TunChange::FrameSize(0),
        TunChange::FrameSize(65_537),
        TunChange::Mtu(67),
        TunChange::Mtu(65_536),
    ] {
        let answer = helper.ask(&HelperRequest::Link(change), &[tun.as_fd()]);
        assert!(is_refused(&answer), "{change:?}: {answer:?}");
    }
    for least in [0, MAX_BYTES + 1] {
        let several = false;
        let answer = helper.ask(&HelperRequest::Limit { least, several }, &[tun.as_fd()]);
        assert!(is_refused(&answer), "{least}: {answer:?}");
    }
    for (receive, send) in [(MAX_BYTES + 1, 0), (0, u32::MAX)] {
        let mark = None;
        let options = Options {
            receive,
            send,
            mark,
        };
        let answer = helper.ask(&HelperRequest::Options(options), &[socket.as_fd()]);
        assert!(is_refused(&answer), "{options:?}: {answer:?}");
    }
    let beside = SocketPurpose::Beside {
        gso: true,
        cut: Cut::Allowed,
    };
    let rx_queue = SocketPurpose::RxQueue(Gear::default());
    for (group, more, way) in [
        (0, 1, rx_queue),
        (9, 1, rx_queue),
        (1, 0, rx_queue),
        (1, 9, rx_queue),
        (1, 2, beside),
    ] {
        let join = HelperRequest::Join { group, more, way };
        let answer = helper.ask(&join, &[socket.as_fd()]);
        assert!(is_refused(&answer), "{join:?}: {answer:?}");
    }
    for over in [0, 9] {
        let answer = helper.ask(&HelperRequest::Spread(over), &[socket.as_fd()]);
        assert!(is_refused(&answer), "{over}: {answer:?}");
    }
    // Threads of others than the process that started the helper: this one, and none.
    for thread in [rustix::thread::gettid(), Pid::INIT] {
        let nice = PRIORITY;
        for request in [
            HelperRequest::Priority { thread, nice },
            HelperRequest::Waits(thread),
        ] {
            let answer = helper.ask(&request, &[]);
            assert!(is_refused(&answer), "{request:?}: {answer:?}");
        }
    }
    for thread in [0, -1_i32] {
        for kind in [&[12, 0][..], &[14]] {
            let bytes = [kind, &thread.to_le_bytes()].concat();
            let answer = helper.exchange(&bytes, &[]);
            assert!(is_refused(&answer), "{thread}: {answer:?}");
        }
    }
    let thread = rustix::process::getppid().expect("this one was started");
    for nice in [-20, -11, -9, -1, 20] {
        let answer = helper.ask(&HelperRequest::Priority { thread, nice }, &[]);
        assert!(is_refused(&answer), "{nice}: {answer:?}");
    }
}

#[test]
fn what_is_only_told_has_no_answer() {
    let helper = Served::new();
    let tun = helper.open("wg0");
    let told = |request: &HelperRequest| {
        let mut bytes = request.to_bytes();
        bytes[0] |= UNANSWERED;
        bytes
    };
    for mtu in 1300..1400 {
        helper.tell(
            &told(&HelperRequest::Link(TunChange::Mtu(mtu))),
            &[tun.as_fd()],
        );
        // Refused, malformed, and with an answer otherwise.
        helper.tell(&told(&HelperRequest::Spread(0)), &[tun.as_fd()]);
        helper.tell(&[UNANSWERED | 99], &[tun.as_fd()]);
        helper.tell(&told(&HelperRequest::Table), &[]);
        let [_, _, _, now, _, _] = (helper.ask(&HelperRequest::Look, &[tun.as_fd()]))
            .expect("a place")
            .numbers;
        assert_eq!(now, u64::from(mtu));
    }
}

/// Of another process, open there or not, with one queue or several; and an interface that is no TUN.
#[test]
fn a_device_that_exists_is_opened_only_if_it_was_named() {
    let helper = Served::for_interfaces(&["wg0", "wg1"]);
    let all = [QueueChoice::One, QueueChoice::Several, QueueChoice::First];
    for (theirs, ours) in [("other0", "wg0"), ("other1", "wg1")] {
        let which = if ours == "wg0" {
            QueueChoice::One
        } else {
            QueueChoice::Several
        };
        for name in [theirs, ours] {
            let open = || attach(name, which, true).map(|fd| (os::persist(fd.as_fd()), fd));
            let (persists, open) = helper.netns.run(open).expect("entered").expect("made");
            persists.expect("it stays");
            for queues in all {
                let answer = helper.ask(&named(name, queues), &[]);
                let may = name == ours && which == QueueChoice::Several && queues == which;
                assert_eq!(answer.is_ok(), may, "open: {name} {queues:?}: {answer:?}");
            }
            drop(open);
            for queues in all {
                let answer = helper.ask(&named(name, queues), &[]);
                let may = name == ours && queues == which;
                assert_eq!(answer.is_ok(), may, "closed: {name} {queues:?}: {answer:?}");
            }
        }
    }
    for queues in all {
        let answer = helper.ask(&named("lo", queues), &[]);
        assert!(answer.is_err(), "lo: {queues:?}: {answer:?}");
    }
    // One that does not exist is made.
    helper.open("other2");
}

#[test]
fn sockets_join_others_on_a_port() {
    let helper = Served::new();
    let pair = helper.ask(&PAIR, &[]).expect("nobody has the port");
    assert_eq!(pair.numbers[1], 443);
    let [v4, v6] = pair.all().expect("both families");
    let shares = |socket: &OwnedFd| sockopt::socket_reuseport(socket).expect("an option");
    for socket in [&v4, &v6] {
        assert!(!shares(socket), "no other process may join");
        let joined = helper.ask(&JOIN, &[socket.as_fd()]).expect("joined");
        assert_eq!((joined.fds.len(), joined.numbers[1]), (7, 0));
        for rx_queue in &joined.fds {
            let mark = os::option(rx_queue.as_fd(), libc::SOL_SOCKET, libc::SO_MARK);
            let (at, first) = (
                local_addr(rx_queue).expect("bound"),
                local_addr(socket).expect("bound"),
            );
            assert_eq!((at, mark.expect("a mark")), (first, 7));
        }
        assert!(shares(socket));
        for request in [
            HelperRequest::Spread(8),
            HelperRequest::Ignore(true),
            HelperRequest::Apart,
        ] {
            helper.ask(&request, &[socket.as_fd()]).expect("done");
        }
        assert!(!shares(socket));
        // One to send, which is of IPv6 in any case.
        let join = HelperRequest::Join {
            group: 1,
            more: 1,
            way: SocketPurpose::Beside {
                gso: false,
                cut: Cut::Refused,
            },
        };
        let beside = helper.ask(&join, &[socket.as_fd()]);
        let beside = beside.and_then(HelperAnswer::one).expect("joined");
        assert_eq!(sockopt::socket_domain(&beside), Ok(AddressFamily::INET6));
        assert_eq!(local_addr(&beside).expect("bound").port(), 443);
    }
    let marked = helper.ask(&HelperRequest::Marked(9), &[]).expect("marked");
    assert_eq!(marked.fds.len(), 2);
}

#[test]
fn the_helper_keeps_no_descriptor_after_its_answer() {
    let helper = Served::new();
    let mut addr = "127.0.0.1:0".parse().expect("an address");
    for _ in 0..500 {
        let socket = UdpSocket::bind::<std::net::SocketAddr>(addr).expect("nobody has the port");
        addr = socket.local_addr().expect("an address");
        let options = HelperRequest::Options(Options::default());
        helper.ask(&options, &[socket.as_fd()]).expect("done");
    }
    for _ in 0..50 {
        helper
            .ask(&PAIR, &[])
            .expect("the last one has left the port");
    }
}

#[test]
fn descriptors_of_another_kind_are_refused() {
    let helper = Served::new();
    let tun = helper.open("wg0");
    let udp = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let others: Vec<OwnedFd> = vec![
        TcpListener::bind("127.0.0.1:0").expect("a socket").into(),
        std::os::unix::net::UnixDatagram::unbound()
            .expect("a socket")
            .into(),
        Netlink::open().expect("a socket").into(),
        std::fs::File::open("/dev/null").expect("a device").into(),
        // Attached to nothing.
        std::fs::File::open("/dev/net/tun")
            .expect("a device")
            .into(),
        std::io::pipe().expect("a pipe").0.into(),
        tap(&helper.netns),
    ];
    for request in all() {
        let wanted: &[BorrowedFd<'_>] = match request {
            HelperRequest::Open(..)
            | HelperRequest::Table
            | HelperRequest::Clones
            | HelperRequest::Priority { .. }
            | HelperRequest::Waits(_)
            | HelperRequest::Pair { .. }
            | HelperRequest::Marked(_)
            | HelperRequest::Home(_)
            | HelperRequest::Segments(_) => &[],
            HelperRequest::Options(_)
            | HelperRequest::Join { .. }
            | HelperRequest::Spread(_)
            | HelperRequest::Ignore(_)
            | HelperRequest::Apart => &[udp.as_fd()],
            HelperRequest::Filter(_) => &[udp.as_fd(), tun.as_fd()],
            _ => &[tun.as_fd()],
        };
        // One more, one less, others.
        let more = [wanted, &[udp.as_fd()]].concat();
        let mut wrong = vec![more];
        if let [first, rest @ ..] = wanted {
            wrong.push(rest.to_vec());
            let others = others.iter().map(AsFd::as_fd);
            let others = others.chain([udp.as_fd(), tun.as_fd()]);
            for other in others.filter(|other| !is_same(*other, *first)) {
                wrong.push([&[other], rest].concat());
            }
        }
        for fds in wrong {
            // What comes in place of a table is the kernel's to refuse.
            let answer = helper.ask(&request, &fds);
            assert!(is_refused(&answer), "{request:?} with {fds:?}: {answer:?}");
        }
    }
    // The kernel refuses a program whose map is none.
    let answer = helper.ask(&FILTER, &[udp.as_fd(), tun.as_fd()]);
    assert!(answer.is_err(), "{answer:?}");
}

fn is_same(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    use std::os::fd::AsRawFd;
    one.as_raw_fd() == other.as_raw_fd()
}

/// A device of the same driver that is no TUN.
fn tap(netns: &Netns) -> OwnedFd {
    let open = || {
        let device = std::fs::File::options();
        let device = device.clone().read(true).write(true).open("/dev/net/tun");
        let mut request = os::IfReq::new("tap0").expect("a name");
        request.set_flags(u16::try_from(libc::IFF_TAP | libc::IFF_NO_PI).expect("small"));
        let device = OwnedFd::from(device.expect("a device"));
        os::ioctl_ifreq(device.as_fd(), libc::TUNSETIFF, &mut request).expect("a device");
        device
    };
    netns.run(open).expect("the right to enter")
}

#[test]
fn the_helper_opens_and_changes_a_device_that_moves() {
    let helper = Served::new();
    let tun = helper.open("wg0");
    let other = Netns::new().expect("a namespace");
    let at_home = Netlink::open_in(&helper.netns).expect("a socket");
    let index = at_home.link("wg0").expect("it is there").index;
    let change = LinkChange {
        netns: Some(&other),
        name: Some("elsewhere"),
        ..LinkChange::default()
    };
    at_home.set_link(index, &change).expect("moved");
    let ask = |request| helper.ask(&request, &[tun.as_fd()]).expect("done");
    let there = other.id().expect("found out");
    let [device, inode, ..] = ask(HelperRequest::Look).numbers;
    assert_eq!((device, inode), there);
    ask(HelperRequest::Link(TunChange::Mtu(1300)));
    ask(FRAMES);
    let there = Netlink::open_in(&other).expect("a socket");
    let link = there.link("elsewhere").expect("it is there");
    assert_eq!((link.mtu, link.gso_max_size), (1300, 30_000));
    // Its qdisc, which it has while it is up, was chosen by nobody.
    let up = LinkChange {
        up: Some(true),
        ..LinkChange::default()
    };
    there.set_link(link.index, &up).expect("up");
    assert!(ask(HelperRequest::Link(TunChange::NoQueue)).numbers[0] == 1);
    assert_eq!(ask(HelperRequest::Link(TunChange::NoQueue)).numbers[0], 0);
    ask(HelperRequest::Link(TunChange::Mtu(1310)));
    let [_, _, found @ ..] = ask(HelperRequest::Look).numbers;
    let link = there.link("elsewhere").expect("it is there");
    let expected = [link.index, 1310, link.txqueuelen, 0].map(u64::from);
    assert_eq!(found, expected);
}

#[test]
fn the_helper_opens_queues_and_limits_them() {
    let helper = Served::new();
    let first = helper.ask(&named("wg0", QueueChoice::First), &[]);
    let first = first.and_then(HelperAnswer::one).expect("a device");
    let again = helper.ask(&named("wg0", QueueChoice::First), &[]);
    assert_eq!(
        again.err().and_then(|error| error.raw_os_error()),
        Some(libc::EBUSY)
    );
    let ask = |request: HelperRequest| helper.ask(&request, &[first.as_fd()]).expect("done");
    let second = ask(HelperRequest::Queue).one().expect("a queue");
    assert_eq!(attached(second.as_fd()).expect("attached").name(), "wg0");
    if !adit_has_bpf() {
        return;
    }
    let arrivals = ask(HelperRequest::Arrivals).one().expect("a map");
    bpf::LastArrival::of(&arrivals).expect("its numbers");
    let limit = HelperRequest::Limit {
        least: 1 << 20,
        several: true,
    };
    let program = ask(limit).all().expect("two descriptors");
    Egress::take_over(program, 1 << 20, true).expect("its numbers");
    let tun = Tun::from_fd(first, Offloads::ALL).expect("a TUN");
    assert_eq!(tun.name().expect("it is there"), "wg0");
    assert!(tun.read(&mut [0; 64]).is_err());
}

/// Whether this process may load programs, of which the newest needs Linux 6.6.
fn adit_has_bpf() -> bool {
    os::kernel_release() >= (6, 6, 0) && bpf::new_map(1).is_ok()
}

#[test]
fn the_helper_sets_options_of_a_socket() {
    let helper = Served::new();
    let open = || {
        let socket = |family| socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        [AddressFamily::INET, AddressFamily::INET6].map(|family| socket(family).expect("a socket"))
    };
    let sockets = helper.netns.run(open).expect("the right to enter");
    for socket in &sockets {
        let ask = |request: HelperRequest| helper.ask(&request, &[socket.as_fd()]).expect("done");
        ask(HelperRequest::Options(BUFFERS));
        let mark = os::option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_MARK);
        assert_eq!(mark.expect("a mark"), 7);
        let [receive, send] = [
            sockopt::socket_recv_buffer_size(socket),
            sockopt::socket_send_buffer_size(socket),
        ];
        // The kernel doubles them.
        assert_eq!(receive.expect("a length"), 18 << 20);
        assert_eq!(send.expect("a length"), 16 << 20);
        if adit_has_bpf() {
            let table = helper
                .ask(&HelperRequest::Table, &[])
                .and_then(HelperAnswer::one);
            let table = table.expect("a map");
            let own = helper.ask(&FILTER, &[socket.as_fd(), table.as_fd()]);
            own.and_then(HelperAnswer::one).expect("a map");
            // One that is too short.
            let small = bpf::new_map(1).expect("a map");
            let refused = helper.ask(&FILTER, &[socket.as_fd(), small.as_fd()]);
            assert!(refused.is_err(), "{refused:?}");
        }
    }
    let clones = helper.ask(&HelperRequest::Clones, &[]).expect("what tells");
    assert!(!clones.fds.is_empty());
}

#[test]
fn what_the_kernel_says_of_an_error_arrives() {
    let helper = Served::for_interfaces(&["wg0"]);
    let tun = helper.open("wg0");
    let again = helper.ask(&named("wg0", QueueChoice::One), &[]);
    let number = again.err().and_then(|error| error.raw_os_error());
    assert_eq!(number, Some(libc::EBUSY));
    // A qdisc cannot be changed of what is gone.
    let netlink = Netlink::open_in(&helper.netns).expect("a socket");
    let index = netlink.link("wg0").expect("it is there").index;
    netlink.delete_link(index).expect("deleted");
    let gone = helper.ask(&FRAMES, &[tun.as_fd()]);
    assert!(is_refused(&gone), "{gone:?}");
}

#[test]
fn the_helper_ends_when_the_other_end_is_closed() {
    let mut helper = Served::new();
    helper.open("wg0");
    helper.end().expect("it ends without an error");
}

#[test]
fn a_helper_that_has_ended_is_told_of() {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (ours, theirs) =
        socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("a pair of sockets");
    drop(theirs);
    let error = exchange(&ours, &[9], &[]).expect_err("nobody answers");
    assert!(error.to_string().contains("has ended"), "{error}");
}
