use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket as StdUdp};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::*;
use crate::udp::tests::{boottime, on_each_cpu};
use crate::udp::{self, Udp};
use crate::{MAX_FRAME, RecvBatch, SendReport, Transmit, UdpSocket};
use adit_netlink::{LinkChange, Netlink};
use adit_offload::{Coalescer, Frame, GSO_TCPV4, GSO_TCPV6, GSO_TUNNEL_V4, GSO_TUNNEL_V6, Span};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Makes a device in `netns`, up, with addresses.
fn device(netns: &Netns, name: &str, addresses: &[&str], offloads: Offloads) -> Tun {
    let mut tuns = netns.run(|| Tun::open(name, 1, offloads)).unwrap().unwrap();
    bring_up(netns, name, addresses);
    tuns.pop().unwrap()
}

pub(super) fn bring_up(netns: &Netns, name: &str, addresses: &[&str]) {
    let netlink = Netlink::open_in(netns).unwrap();
    let index = netlink.link(name).unwrap().index;
    let up = LinkChange {
        up: Some(true),
        ..LinkChange::default()
    };
    netlink.set_link(index, &up).unwrap();
    for address in addresses {
        let prefix = if address.contains(':') { 64 } else { 24 };
        netlink
            .add_address(index, ip(address), prefix, true)
            .unwrap();
    }
}

/// Two hosts whose TUN devices are joined by a thread that carries every frame over as it is, but
/// for GSO packets in tunnels, which it cuts, and merges again if asked to. Counts GSO packets.
///
///     a: 10.8.0.1/24, fd08::1/64  -- thread --  b: 10.8.0.2/24, fd08::2/64
struct Joined {
    a: Netns,
    b: Netns,
    stop: std::sync::Arc<AtomicBool>,
    gso_packets: std::sync::Arc<[AtomicUsize; 256]>,
    offloads: Offloads,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Joined {
    fn new(offloads: Offloads) -> Self {
        Self::merging(offloads, false)
    }

    fn merging(offloads: Offloads, merge: bool) -> Self {
        let (a, b) = (Netns::new().unwrap(), Netns::new().unwrap());
        let tuns = [
            device(&a, "tun", &["10.8.0.1", "fd08::1"], offloads),
            device(&b, "tun", &["10.8.0.2", "fd08::2"], offloads),
        ];
        let offloads = tuns[0].offloads();
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let gso_packets = std::sync::Arc::new([const { AtomicUsize::new(0) }; 256]);
        let thread = std::thread::spawn({
            let (stop, gso_packets) = (stop.clone(), gso_packets.clone());
            move || carry(&tuns, &stop, &gso_packets, merge)
        });
        Self {
            a,
            b,
            stop,
            gso_packets,
            offloads,
            thread: Some(thread),
        }
    }

    fn count(&self, gso_type: usize) -> usize {
        self.gso_packets[gso_type].load(Ordering::Relaxed)
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let result = self.thread.take().unwrap().join();
        assert!(result.is_ok() || std::thread::panicking());
    }
}

fn carry(tuns: &[Tun; 2], stop: &AtomicBool, gso_packets: &[AtomicUsize; 256], merge: bool) {
    let mut buffer = vec![0; MAX_FRAME];
    while !stop.load(Ordering::Relaxed) {
        let mut fds = [0, 1].map(|i| PollFd::from_borrowed_fd(tuns[i].fd(), PollFlags::IN));
        let timeout = Timespec::try_from(Duration::from_millis(20)).unwrap();
        let _ = rustix::event::poll(&mut fds, Some(&timeout));
        for (from, to) in [(0, 1), (1, 0)] {
            while let Ok(len) = tuns[from].read(&mut buffer) {
                gso_packets[usize::from(buffer[1])].fetch_add(1, Ordering::Relaxed);
                if buffer[1] & (GSO_TUNNEL_V4 | GSO_TUNNEL_V6) != 0 {
                    cut(&tuns[to], &Frame::parse(&buffer[..len]).unwrap(), merge);
                    continue;
                }
                let (header, packet) = buffer[..len].split_at(VNET_HDR_LEN);
                tuns[to]
                    .write(&[IoSlice::new(header), IoSlice::new(packet)])
                    .unwrap();
            }
        }
    }
}

/// Writes the packets of a frame one by one, with no word on their checksums, which the receiver
/// verifies then; or merged again.
fn cut(tun: &Tun, frame: &Frame<'_>, merge: bool) {
    let mut coalescer = Coalescer::new(merge, false);
    let mut packets = Vec::new();
    for i in 0..frame.segments() {
        let mut packet = vec![0; frame.header_len()];
        frame.write_header(i, &mut packet);
        packet.extend(frame.payload(i));
        let (buffer, len) = (i.try_into().unwrap(), packet.len().try_into().unwrap());
        let span = Span {
            buffer,
            start: 0,
            len,
        };
        coalescer.push(0, &packet, span, |_| true).unwrap();
        packets.push(packet);
    }
    coalescer.drain(|head, spans| {
        assert!(!merge || frame.segments() == 1 || spans.len() > 1);
        let mut pieces = vec![IoSlice::new(head)];
        pieces.extend(
            (spans.iter())
                .map(|span| IoSlice::new(&packets[span.buffer as usize][span.start as usize..])),
        );
        tun.write(&pieces).unwrap();
    });
}

/// Sends a few megabytes over TCP and compares what arrives.
fn stream(from: &Netns, to: &Netns, address: &str) {
    let data: Vec<u8> = (0..4_000_000_u32)
        .map(|i| (i >> 3).to_le_bytes()[0])
        .collect();
    let listen = || TcpListener::bind(SocketAddr::new(ip(address), 7)).unwrap();
    let listener = to.run(listen).unwrap();
    let connect = || {
        let address = SocketAddr::new(ip(address), 7);
        TcpStream::connect_timeout(&address, Duration::from_secs(10)).unwrap()
    };
    let mut client = from.run(connect).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let limit = Some(Duration::from_secs(10));
    client.set_write_timeout(limit).unwrap();
    server.set_read_timeout(limit).unwrap();
    let received = std::thread::scope(|scope| {
        scope.spawn(|| {
            client.write_all(&data).unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        server.read_to_end(&mut received).unwrap();
        received
    });
    assert!(received == data);
}

#[test]
fn gso_packets_in_udp_tunnels_become_valid_packets() {
    tcp_in_vxlan(&Joined::new(Offloads::ALL));
}

#[test]
fn gso_packets_in_udp_tunnels_are_merged_again_for_the_kernel() {
    tcp_in_vxlan(&Joined::merging(Offloads::ALL, true));
}

/// Streams over both kinds of IP in VXLAN over both, with and without checksums.
fn tcp_in_vxlan(joined: &Joined) {
    for (v6, sums) in [
        (false, "udpcsum"),
        (false, "noudpcsum"),
        (true, "udpcsum"),
        (true, "udp6zerocsumtx udp6zerocsumrx"),
    ] {
        let outside = if v6 { "fd08::" } else { "10.8.0." };
        for (host, us, them) in [(&joined.a, 1, 2), (&joined.b, 2, 1)] {
            let script = format!(
                "set -e; ip link set tun gso_max_size 65536
                ip link add over mtu 1400 type vxlan id 7 dstport 4789 local {outside}{us} remote {outside}{them} {sums}
                ip addr add 10.9.0.{us}/24 dev over; ip addr add fd09::{us}/64 dev over nodad
                ip link set over up"
            );
            let status = host
                .run(|| Command::new("sh").args(["-c", &script]).status())
                .unwrap();
            assert!(status.unwrap().success(), "{sums}");
        }
        for (inside, tcp_type) in [("10.9.0.", GSO_TCPV4), ("fd09::", GSO_TCPV6)] {
            let tunnel = if v6 { GSO_TUNNEL_V6 } else { GSO_TUNNEL_V4 };
            let before = joined.count(usize::from(tunnel | tcp_type));
            stream(&joined.a, &joined.b, &format!("{inside}2"));
            stream(&joined.b, &joined.a, &format!("{inside}1"));
            let carried = joined.count(usize::from(tunnel | tcp_type)) - before;
            assert_eq!(
                carried > 50,
                joined.offloads.tun_tunnel,
                "{sums}: {carried}"
            );
        }
        for host in [&joined.a, &joined.b] {
            let netlink = Netlink::open_in(host).unwrap();
            netlink
                .delete_link(netlink.link("over").unwrap().index)
                .unwrap();
        }
    }
}

#[test]
fn tcp_and_udp_gso_packets_pass_from_one_device_to_the_other() {
    let joined = Joined::new(Offloads::ALL);
    let gso_packets = |gso_type| joined.count(gso_type);
    for (b, tcp_type) in [("10.8.0.2", 1), ("fd08::2", 4)] {
        stream(&joined.a, &joined.b, b);
        assert!(gso_packets(tcp_type) > 0);

        let data: Vec<u8> = (0..20_500_u32).map(|i| (i >> 3).to_le_bytes()[0]).collect();
        let bind = || udp::bind_pair(0, 0, Offloads::ALL).unwrap();
        let pick = |(v4, v6, port): (Option<Udp>, Option<Udp>, u16)| {
            (if ip(b).is_ipv4() { v4 } else { v6 }.unwrap(), port)
        };
        let (from, _) = pick(joined.a.run(bind).unwrap());
        let (to, port) = pick(joined.b.run(bind).unwrap());
        let train = Transmit {
            to: SocketAddr::new(ip(b), port).into(),
            ecn: 0,
            stride: 1000,
            bytes: &data[..20_500],
        };
        let before = gso_packets(5);
        from.send(&[train], &mut SendReport::default());
        let mut batch = RecvBatch::default();
        let mut received = Vec::new();
        let start = Instant::now();
        while received.len() < 20_500 && start.elapsed() < Duration::from_secs(5) {
            match to.recv(&mut batch) {
                Ok(()) => batch
                    .iter_mut()
                    .for_each(|(_, bytes)| received.extend_from_slice(bytes)),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        assert!(received == data[..20_500]);
        assert_eq!(gso_packets(5) > before, joined.offloads.tun_uso);
    }
}

#[test]
fn without_offloads_every_frame_is_one_packet() {
    let joined = Joined::new(Offloads::NONE);
    assert_eq!(joined.offloads, Offloads::NONE);
    let listener = joined
        .b
        .run(|| TcpListener::bind("10.8.0.2:7").unwrap())
        .unwrap();
    let mut client = joined
        .a
        .run(|| TcpStream::connect("10.8.0.2:7").unwrap())
        .unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(&[7; 100_000]).unwrap();
    server.read_exact(&mut [0; 100_000]).unwrap();
    let types: Vec<_> = (0..256).filter(|kind| joined.count(*kind) > 0).collect();
    assert_eq!(types, [0]);
}

#[test]
fn this_kernel_takes_what_it_says_it_takes() {
    let netns = Netns::new().unwrap();
    let tun = netns
        .run(|| Tun::open("probe", 1, Offloads::ALL))
        .unwrap()
        .unwrap()
        .pop()
        .unwrap();
    let offloads = tun.offloads();
    assert!(offloads.tun_tso && offloads.tun_gro_tcp, "{offloads:?}");
    // USO came with Linux 6.2
    assert_eq!(offloads.tun_uso, os::kernel_release() >= (6, 2, 0));

    // GSO packets in UDP tunnels with Linux 6.17.
    assert_eq!(offloads.tun_tunnel, os::kernel_release() >= (6, 17, 0));
    assert_eq!(offloads.tun_gro_tunnel, offloads.tun_tunnel);

    // The probe's answers: down for a good header, refused for a bad one.
    let error = tun.write(&[IoSlice::new(&probe_frame(6))]).unwrap_err();
    assert_eq!(TunErrorKind::of(&error), TunErrorKind::Down);
    let mut bad = probe_frame(6);
    bad[1] = 77;
    let error = tun.write(&[IoSlice::new(&bad)]).unwrap_err();
    assert_eq!(TunErrorKind::of(&error), TunErrorKind::Refused);
}

#[test]
fn a_device_may_be_renamed_moved_changed_and_deleted() {
    let (first, second) = (Netns::new().unwrap(), Netns::new().unwrap());
    let tun = device(&first, "before", &["10.8.0.1"], Offloads::ALL);
    assert_eq!(
        (tun.name().unwrap().as_str(), placed(&tun).mtu),
        ("before", 1500)
    );
    assert_eq!(tun.place().unwrap().netns, first.id().unwrap());
    let at_first = Netlink::open_in(&first).unwrap();
    let index = at_first.link("before").unwrap().index;
    assert_eq!(placed(&tun).index, index);

    // renamed, with another MTU
    let mut change = LinkChange {
        up: Some(false),
        ..LinkChange::default()
    };
    at_first.set_link(index, &change).unwrap();
    change.name = Some("after");
    change.mtu = Some(1280);
    at_first.set_link(index, &change).unwrap();
    assert_eq!(
        (tun.name().unwrap().as_str(), placed(&tun).mtu),
        ("after", 1280)
    );
    assert!(!tun.is_up().unwrap());

    // moved
    let to_second = LinkChange {
        netns: Some(&second),
        ..LinkChange::default()
    };
    at_first.set_link(index, &to_second).unwrap();
    assert_eq!(tun.place().unwrap().netns, second.id().unwrap());
    let at_second = Netlink::open_in(&second).unwrap();
    let index = at_second.link("after").unwrap().index;
    assert_eq!((placed(&tun).index, placed(&tun).mtu), (index, 1280));

    // and it still carries packets, in its new place
    at_second
        .add_address(index, ip("10.8.0.1"), 24, false)
        .unwrap();
    let up = LinkChange {
        up: Some(true),
        ..LinkChange::default()
    };
    at_second.set_link(index, &up).unwrap();
    let socket = second.run(|| StdUdp::bind("10.8.0.1:0").unwrap()).unwrap();
    socket.send_to(b"through", "10.8.0.9:9").unwrap();
    let mut buffer = vec![0; MAX_FRAME];
    let found = (0..100).any(|_| match tun.read(&mut buffer) {
        Ok(len) => buffer[..len].ends_with(b"through"),
        Err(error) => {
            assert_eq!(TunErrorKind::of(&error), TunErrorKind::WouldBlock);
            std::thread::sleep(Duration::from_millis(1));
            false
        }
    });
    assert!(found);

    // deleted
    at_second.delete_link(index).unwrap();
    for error in [
        tun.read(&mut buffer).unwrap_err(),
        tun.write(&[IoSlice::new(&probe_frame(6))]).unwrap_err(),
        tun.name().unwrap_err(),
        tun.place().unwrap_err(),
    ] {
        assert_eq!(TunErrorKind::of(&error), TunErrorKind::Gone, "{error:?}");
    }
}

/// Whenever something changes anywhere, a device is asked several questions.
#[test]
fn the_namespace_of_a_device_is_entered_once() {
    let there = Netns::new().unwrap();
    let tun = device(&there, "tun", &["10.8.0.1"], Offloads::ALL);
    assert_eq!(placed(&tun).mtu, 1500);
    let asks_without_the_right_to_enter = || {
        there.enter().unwrap();
        assert_eq!(placed(&tun).mtu, 1500);
        let net_admin = CapabilitySets {
            effective: CapabilitySet::NET_ADMIN,
            permitted: CapabilitySet::NET_ADMIN,
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, net_admin).unwrap();
        assert!(there.enter().is_err());
        assert_eq!(placed(&tun).mtu, 1500);
        assert!(tun.is_up().unwrap());
        assert!(placed(&tun).index > 1);
    };
    // On a thread of its own, which ends without its rights.
    std::thread::scope(|scope| {
        scope.spawn(asks_without_the_right_to_enter).join().unwrap();
    });
    // Where it goes it is found.
    let other = Netns::new().unwrap();
    let move_it = LinkChange {
        netns: Some(&other),
        mtu: Some(1400),
        ..LinkChange::default()
    };
    let netlink = Netlink::open_in(&there).unwrap();
    netlink.set_link(placed(&tun).index, &move_it).unwrap();
    assert_eq!(placed(&tun).mtu, 1400);
}

#[test]
fn a_device_has_as_many_queues_as_asked_for_and_one_owner() {
    let netns = Netns::new().unwrap();
    netns
        .run(|| {
            let many = Tun::open("many%d", 3, Offloads::ALL).unwrap();
            assert_eq!(many.len(), 3);
            assert!(many.iter().all(|tun| tun.name().unwrap() == "many0"));
            let _one = Tun::open("one", 1, Offloads::ALL).unwrap();
            for queues in [1, 2] {
                let error = Tun::open("one", queues, Offloads::ALL).err().unwrap();
                assert!(error.to_string().contains("one"), "{error}");
            }
            let error = Tun::open("one", 1, Offloads::ALL).err().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
            assert!(error.to_string().contains("in use"), "{error}");
            for name in ["far-too-long-a-name", "a/b", "lo"] {
                let error = Tun::open(name, 1, Offloads::ALL).err().unwrap();
                assert!(error.to_string().contains(name), "{error}");
            }
        })
        .unwrap();
}

#[test]
fn without_rights_the_error_says_which_are_missing() {
    let netns = Netns::new().unwrap();
    let error = netns
        .run(|| {
            // Of this thread only.
            let none = rustix::thread::CapabilitySets {
                effective: rustix::thread::CapabilitySet::empty(),
                permitted: rustix::thread::CapabilitySet::empty(),
                inheritable: rustix::thread::CapabilitySet::empty(),
            };
            rustix::thread::set_capabilities(None, none).unwrap();
            Tun::open("mine", 1, Offloads::ALL).err().unwrap()
        })
        .unwrap();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
}

#[test]
fn only_a_tun_device_is_taken_over_by_descriptor() {
    let netns = Netns::new().unwrap();
    netns
        .run(|| {
            let tun = Tun::open("given", 1, Offloads::ALL).unwrap().pop().unwrap();
            let taken = Tun::from_fd(tun.fd.try_clone().unwrap(), Offloads::ALL).unwrap();
            assert_eq!(taken.name().unwrap(), "given");
            assert_eq!(taken.offloads(), tun.offloads());
            for path in ["/dev/null", "/dev/net/tun"] {
                let file = std::fs::File::open(path).unwrap();
                let error = Tun::from_fd(file.into(), Offloads::ALL).err().unwrap();
                assert!(error.to_string().contains("no TUN device"), "{error}");
            }
        })
        .unwrap();
}

#[test]
fn a_descriptor_given_by_number_is_duplicated() {
    let (given, mut other) = std::os::unix::net::UnixStream::pair().unwrap();
    let own = crate::duplicate(given.as_raw_fd()).unwrap();
    assert_ne!(own.as_raw_fd(), given.as_raw_fd());
    let flags = rustix::io::fcntl_getfd(&own).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    drop(given);
    rustix::io::write(&own, b"?").unwrap();
    other.read_exact(&mut [0]).unwrap();
    // Limits of processes are lower.
    let closed = crate::duplicate(i32::MAX).unwrap_err();
    assert_eq!(closed.raw_os_error(), Some(libc::EBADF));
}

#[test]
fn kernels_that_lose_merged_datagrams_are_known() {
    for (release, loses) in [
        ("6.1.0-49-cloud-amd64", true),
        ("6.8.0-31-generic", true),
        ("6.8.4", true),
        ("6.8.5", false),
        ("6.9.0-rc1", false),
        ("6.18.44", false),
        ("7.2", false),
        ("", true),
    ] {
        let parsed = os::parse_release(release);
        assert_eq!(loses_merged_datagrams(parsed), loses, "{release}");
    }
}

#[test]
fn a_device_knows_where_and_when_a_packet_was_sent() {
    let net = Netns::new().unwrap();
    let tun = device(&net, "tun", &["10.8.0.1"], Offloads::ALL);
    let sender = net.run(|| StdUdp::bind("10.8.0.1:0")).unwrap().unwrap();
    let mut frame = vec![0; MAX_FRAME];
    on_each_cpu(|cpu| {
        for len in [0, 1, 1400] {
            let before = boottime();
            sender.send_to(&vec![7; len], "10.8.0.2:9").unwrap();
            // The kernel sends packets of its own, too.
            let read = loop {
                let read = tun.read(&mut frame).unwrap();
                if frame[VNET_HDR_LEN] == 0x45 {
                    break read;
                }
            };
            assert_eq!(read, VNET_HDR_LEN + 28 + len, "the whole packet");
            let arrival = tun.last_arrival().unwrap();
            assert_eq!(arrival.cpu, cpu);
            assert!(before <= arrival.at && arrival.at <= boottime());
        }
    });
    let queues = net.run(|| Tun::open("many", 2, Offloads::ALL)).unwrap();
    for queue in queues.unwrap() {
        assert_eq!(queue.last_arrival(), None, "of which queue would it be?");
    }
}

/// A device whose queue is limited to 40,000 bytes of long packets and to so many packets, and a
/// function that sends GSO packets through it.
fn limited(mtu: u32, packets: u32) -> (Netns, Tun, impl Fn(usize)) {
    let net = Netns::new().unwrap();
    let mut tun = device(&net, "tun", &["10.8.0.1"], Offloads::ALL);
    let change = LinkChange {
        mtu: Some(mtu),
        txqueuelen: Some(packets),
        ..LinkChange::default()
    };
    let netlink = Netlink::open_in(&net).unwrap();
    netlink.set_link(placed(&tun).index, &change).unwrap();
    let sender = net.run(|| segmenting("10.8.0.1:0")).unwrap();
    let send = move |len: usize| {
        // A packet that is held back is an error for some senders.
        let _ = sender.send_to(&vec![7; len - 28], "10.8.0.2:9");
    };
    tun.egress = tun.limited(40_000).unwrap().into();
    (net, tun, send)
}

/// Counts until the count is the expected one, or for five seconds. A process that another test
/// starts has this process's descriptors until it executes its program, and the BPF program of a
/// queue limit stays attached until the last of them is closed.
fn once_detached(expected: usize, count: impl Fn() -> usize) -> usize {
    let start = Instant::now();
    loop {
        let counted = count();
        if counted == expected || start.elapsed() > Duration::from_secs(5) {
            return counted;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A socket whose datagrams leave as GSO packets, if they are longer than 1,400 bytes.
pub(super) fn segmenting(addr: &str) -> StdUdp {
    let socket = StdUdp::bind(addr).unwrap();
    os::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 1400).unwrap();
    socket
}

/// The length of the next IPv4 packet. The kernel sends packets of its own, too.
fn next(tun: &Tun) -> Option<usize> {
    let mut frame = vec![0; MAX_FRAME];
    while let Ok(read) = tun.read(&mut frame) {
        if frame[VNET_HDR_LEN] == 0x45 {
            return Some(read - VNET_HDR_LEN);
        }
    }
    None
}

#[test]
fn a_limited_queue_takes_no_long_packet_behind_too_many_bytes() {
    let (_net, tun, send) = limited(9000, 20);
    let drain = || std::iter::from_fn(|| next(&tun)).collect::<Vec<_>>();
    for _ in 0..3 {
        // 1. until more than the limit waits
        for _ in 0..10 {
            send(9000);
        }
        // 2. while short ones pass
        send(1500);
        send(4095);
        send(4096);
        assert_eq!(drain(), [9000, 9000, 9000, 9000, 9000, 1500, 4095]);
        // 3. and again as soon as less waits
        for _ in 0..10 {
            send(9000);
        }
        assert_eq!(next(&tun), Some(9000));
        send(4096);
        send(9000);
        assert_eq!(drain(), [9000, 9000, 9000, 9000, 4096]);
    }
}

#[test]
fn a_limited_queue_takes_every_packet_that_is_no_gso_packet() {
    let (net, tun, send) = limited(9000, 20);
    let sender = net.run(|| StdUdp::bind("10.8.0.1:0")).unwrap().unwrap();
    for _ in 0..10 {
        send(9000);
    }
    sender.send_to(&[7; 8972], "10.8.0.2:9").unwrap();
    send(9000);
    let waiting: Vec<_> = std::iter::from_fn(|| next(&tun)).collect();
    assert_eq!(waiting, [9000; 6]);
}

#[test]
fn packets_that_a_limited_queue_drops_are_counted() {
    let (net, tun, send) = limited(9000, 20);
    let forward = || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1");
    net.run(forward).unwrap().unwrap();
    let inner = device(&net, "inner", &["10.7.0.1"], Offloads::ALL);
    // 1. From a socket here: 5 of 10 packets find no room, each of 7 datagrams, as do the 5 of the
    //    next round.
    let mut frame = Vec::new();
    for lost in [35, 70] {
        for _ in 0..10 {
            send(9000);
        }
        assert_eq!(tun.lost_to_limit(), lost);
        frame = vec![0; MAX_FRAME];
        while frame[VNET_HDR_LEN] != 0x45 {
            frame.resize(MAX_FRAME, 0);
            let len = tun.read(&mut frame).unwrap();
            frame.truncate(len);
        }
        while next(&tun).is_some() {}
    }
    // 2. Forwarded, from a TUN that does not say of how many: the same packets from a host behind
    //    it.
    let header = &mut frame[VNET_HDR_LEN..][..20];
    header[10..12].fill(0);
    header[12..16].copy_from_slice(&[10, 7, 0, 2]);
    let sum = adit_offload::checksum::Sum::of(header).checksum();
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    for _ in 0..10 {
        inner.write(&[IoSlice::new(&frame)]).unwrap();
    }
    assert_eq!(std::iter::from_fn(|| next(&tun)).count(), 5);
    assert_eq!(tun.lost_to_limit(), 105);
}

#[test]
fn every_queue_is_limited_to_a_few_megabytes() {
    let (_net, mut tun, send) = limited(65_000, 200);
    tun.egress.take();
    let wait = |tun: &Tun| {
        for _ in 0..150 {
            send(60_000);
        }
        std::iter::from_fn(|| next(tun)).count()
    };
    assert_eq!(once_detached(150, || wait(&tun)), 150);
    let tun = Tun::from_fd(tun.fd.try_clone().unwrap(), Offloads::ALL).unwrap();
    tun.limit_queue();
    assert_eq!(wait(&tun), 70);
}

#[test]
fn what_a_limited_queue_lost_does_not_count_for_ever() {
    // Long packets that are let through find the queue full of short ones.
    let lose = |send: &dyn Fn(usize)| {
        for _ in 0..20 {
            send(100);
        }
        for _ in 0..20 {
            send(4096);
        }
    };
    // 1. It is read to its end.
    let (_net, tun, send) = limited(9000, 20);
    let drain = || std::iter::from_fn(|| next(&tun)).collect::<Vec<_>>();
    lose(&send);
    assert!(drain().iter().all(|len| *len == 100));
    for _ in 0..20 {
        send(4096);
    }
    assert_eq!(drain(), [4096; 10]);
    // 2. It is never empty.
    let (_net, tun, send) = limited(9000, 20);
    lose(&send);
    let mut long = 0;
    for _ in 0..4000 {
        let len = next(&tun).expect("there is always one");
        long += usize::from(len == 4096);
        for len in [4096, 100] {
            send(len);
        }
    }
    assert!(long >= 100, "{long} of 4000 packets were long");
}

#[test]
fn a_limited_queue_is_longer_where_gso_packets_are_short() {
    let (_net, tun, send) = limited(65_000, 200);
    // What the queue takes after it has carried packets of that length for a while.
    let room = |len: usize| {
        let mut carried = 0;
        while carried < 10_000 {
            for _ in 0..20 {
                send(len);
            }
            while next(&tun).is_some() {
                carried += 1;
            }
        }
        for _ in 0..200 {
            send(4096);
        }
        std::iter::from_fn(|| next(&tun)).count()
    };
    for _ in 0..2 {
        assert_eq!(room(50_000), 10);
        assert_eq!(room(20_000), 8 * 40_000 / 4096 + 1);
    }
}

#[test]
fn the_queue_limit_follows_its_device_and_ends_with_it() {
    let (first, mut tun, _) = limited(9000, 20);
    // 1. to another namespace
    let second = Netns::new().unwrap();
    let to_second = LinkChange {
        netns: Some(&second),
        ..LinkChange::default()
    };
    let netlink = Netlink::open_in(&first).unwrap();
    netlink.set_link(placed(&tun).index, &to_second).unwrap();
    let (netlink, index) = (Netlink::open_in(&second).unwrap(), placed(&tun).index);
    let up = LinkChange {
        up: Some(true),
        ..LinkChange::default()
    };
    netlink.set_link(index, &up).unwrap();
    netlink
        .add_address(index, ip("10.8.0.1"), 24, true)
        .unwrap();
    let sender = second.run(|| segmenting("10.8.0.1:0")).unwrap();
    let wait = |tun: &Tun| {
        for _ in 0..10 {
            let _ = sender.send_to(&[7; 8972], "10.8.0.2:9");
        }
        std::iter::from_fn(|| next(tun)).count()
    };
    assert_eq!(wait(&tun), 5);
    // 2. until the process that set it is gone
    tun.egress.take();
    assert_eq!(once_detached(10, || wait(&tun)), 10);
}

#[test]
fn a_limited_queue_takes_an_idle_connections_packets() {
    let (net, tun, send) = limited(9000, 20);
    let other = Netns::new().unwrap();
    let peer = device(&other, "tun", &["10.8.0.2"], Offloads::ALL);
    // Data written at once is one packet of two segments, however slowly answers come.
    let change = LinkChange {
        mtu: Some(4040),
        ..LinkChange::default()
    };
    let netlink = Netlink::open_in(&other).unwrap();
    netlink.set_link(placed(&peer).index, &change).unwrap();
    // Carries what waits to the peer, and back; the lengths of what is long.
    let mut frame = vec![0; MAX_FRAME];
    let mut carry = |from: &Tun, to: &Tun| {
        let mut long = Vec::new();
        while let Ok(len) = from.read(&mut frame) {
            let _ = to.write(&[IoSlice::new(&frame[..len])]);
            long.extend((len >= 4096).then_some(len - VNET_HDR_LEN));
        }
        long
    };
    let listener = other.run(|| TcpListener::bind("10.8.0.2:0")).unwrap();
    let listener = listener.unwrap();
    let to = listener.local_addr().unwrap();
    let mut stream = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| net.run(|| TcpStream::connect(to)).unwrap().unwrap());
        while !connecting.is_finished() {
            carry(&tun, &peer);
            carry(&peer, &tun);
        }
        connecting.join().unwrap()
    });
    carry(&tun, &peer);
    stream.set_nodelay(true).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    accepted
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();

    let start = Instant::now();
    // Whether the other side has not acknowledged all that was sent.
    let in_flight = || {
        let sockets = || std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
        let sockets = net.run(sockets).unwrap();
        !sockets.contains(" 00000000:00000000 ")
    };
    // Three times, each before one of TCP's timers can go off.
    let mut rounds = 0;
    while rounds < 3 {
        assert!(start.elapsed() < Duration::from_secs(60), "{rounds} of 3");
        // 1. Behind too much, the first of two packets passes, and the second does not.
        for _ in 0..10 {
            send(9000);
        }
        let (begin, lost) = (Instant::now(), tun.lost_to_limit());
        for _ in 0..2 {
            stream.write_all(&[rounds; 5000]).unwrap();
        }
        let mut passed = carry(&tun, &peer);
        assert_eq!(tun.lost_to_limit(), lost, "TCP keeps it");
        let early = passed.split_off(passed.len().min(6));
        assert_eq!(passed, [9000, 9000, 9000, 9000, 9000, 5052]);
        // 2. TCP kept it, and sends it, once, when the first was acknowledged.
        let received = AtomicBool::new(false);
        let mut rest = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut bytes = [0; 10_000];
                accepted.read_exact(&mut bytes).unwrap();
                assert_eq!(bytes, [rounds; 10_000]);
                received.store(true, Ordering::Relaxed);
            });
            while !received.load(Ordering::Relaxed) && begin.elapsed() < Duration::from_secs(10) {
                carry(&peer, &tun);
                rest.extend(carry(&tun, &peer));
            }
        });
        if begin.elapsed() < Duration::from_millis(100) {
            assert_eq!((early, rest), (vec![], vec![5052]));
            rounds += 1;
        }
        // 3. Nothing is in flight any more.
        while in_flight() && begin.elapsed() < Duration::from_secs(20) {
            carry(&peer, &tun);
            carry(&tun, &peer);
        }
    }
}

fn placed(tun: &Tun) -> crate::helper::Placed {
    tun.place().unwrap().link.unwrap()
}
