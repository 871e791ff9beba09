//! Packets of one flow keep their order across the queues of a device, whatever makes the kernel take
//! them for two: fragments, options, extension headers, flow labels, tunnels around them.

use std::net::{IpAddr, SocketAddr, UdpSocket as StdUdp};
use std::process::Command;
use std::time::{Duration, Instant};

use adit_netlink::netns::Netns;
use adit_offload::VNET_HDR_LEN;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, sendto, socket_with};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::Tun;
use super::fair_queues::tests::fair_device;
use crate::{FrameBatch, TunQueue};

const MARK: u32 = 0x0add_17e5;

/// A text of so many bytes, a multiple of eight, that has its number in every fragment.
fn text(number: u32, len: usize) -> Vec<u8> {
    let word = [MARK.to_be_bytes(), number.to_be_bytes()].concat();
    word.repeat(len / 8)
}

/// The number of the text that ends a frame, if one does.
fn number(frame: &[u8]) -> Option<u32> {
    let (rest, number) = frame.split_last_chunk()?;
    let is_marked = rest.ends_with(&MARK.to_be_bytes());
    is_marked.then(|| u32::from_be_bytes(*number))
}

/// Reads frames until the last of these numbers came: the numbers, in their order.
fn read(tun: &Tun, last: u32) -> Vec<u32> {
    let mut numbers = Vec::new();
    let mut batch = FrameBatch::default();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(10) {
        let is_empty = tun.read_batch(&mut batch).unwrap();
        while let Some(frame) = batch.next_frame() {
            numbers.extend(number(&frame.bytes[VNET_HDR_LEN..]));
        }
        tun.processed(&batch);
        if is_empty && numbers.contains(&last) {
            return numbers;
        }
    }
    panic!("{last} never came: {numbers:?}");
}

fn run(net: &Netns, script: &str) {
    let sh = || Command::new("sh").args(["-ec", script]).status();
    assert!(net.run(sh).unwrap().unwrap().success(), "{script}");
}

/// On one CPU: what is forwarded waits for the CPU that sent it, and CPUs have no order.
fn stay_here() {
    let mut here = CpuSet::new();
    here.set(rustix::thread::sched_getcpu());
    sched_setaffinity(None, &here).unwrap();
}

/// Sends texts of these lengths as one flow, twenty times: none is read before an earlier one.
fn keeps_order(what: &str, tun: &Tun, sender: &StdUdp, to: SocketAddr) {
    // With an MTU of 1400 or so, those of 2,000 and more are fragments.
    let lens = [
        3000, 96, 96, 1200, 2000, 800, 96, 4000, 8, 8, 1200, 3000, 96,
    ];
    let mut next = 0;
    for round in 0..20 {
        for len in lens.iter().cycle().skip(round).take(lens.len()) {
            sender.send_to(&text(next, *len), to).unwrap();
            next += 1;
        }
        let numbers = read(tun, next - 1);
        assert!(numbers.is_sorted(), "{what}: {numbers:?}");
    }
}

#[test]
fn what_sockets_send_keeps_its_order() {
    let (net, tun) = fair_device();
    let behind = Netns::new().unwrap();
    let inside = "/proc/$$/ns/net";
    run(&net, "ip addr add fd08::1/64 dev tun nodad");
    for (name, local, remote, port) in [
        ("over4", "10.8.0.1", "10.8.0.2", 4789),
        ("over6", "fd08::1", "fd08::2", 5000),
    ] {
        let subnet = &name[4..];
        run(
            &net,
            &format!(
                "ip link add {name} type vxlan id 7 dstport {port} local {local} remote {remote}
                ip link set {name} mtu 1400 up
                ip addr add 10.9.{subnet}.1/24 dev {name}
                ip addr add fd09:{subnet}::1/64 dev {name} nodad
                for to in 10.9.{subnet}.2 fd09:{subnet}::2
                do ip neigh add $to lladdr 02:00:00:00:00:02 dev {name} nud permanent; done"
            ),
        );
    }
    let script = format!(
        "ip link add inner type veth peer name outer netns {inside}
        ip addr add 10.7.0.1/24 dev inner; ip addr add fd07::1/64 dev inner nodad
        ip link set inner up
        echo 1 > /proc/sys/net/ipv4/ip_forward
        echo 1 > /proc/sys/net/ipv6/conf/all/forwarding"
    );
    // The shell of the other namespace waits for the end of its input.
    let mut shell = behind
        .run(|| {
            let mut cat = Command::new("cat");
            cat.stdin(std::process::Stdio::piped()).spawn()
        })
        .unwrap()
        .unwrap();
    run(&net, &script.replace("$$", &shell.id().to_string()));
    drop(shell.stdin.take());
    shell.wait().unwrap();
    run(
        &behind,
        "ip addr add 10.7.0.2/24 dev outer; ip addr add fd07::2/64 dev outer nodad
        ip link set outer up
        ip route add default via 10.7.0.1; ip -6 route add default via fd07::1",
    );
    stay_here();
    for labels in [1, 0] {
        for net in [&net, &behind] {
            let label = format!("echo {labels} > /proc/sys/net/ipv6/auto_flowlabels");
            run(net, &label);
        }
        for (what, net, from, to) in [
            ("IPv4", &net, "10.8.0.1", "10.8.0.2"),
            ("IPv6", &net, "fd08::1", "fd08::2"),
            ("IPv4 in VXLAN", &net, "10.9.4.1", "10.9.4.2"),
            ("IPv6 in VXLAN", &net, "fd09:4::1", "fd09:4::2"),
            ("IPv4 in VXLAN over IPv6", &net, "10.9.6.1", "10.9.6.2"),
            ("IPv6 in VXLAN over IPv6", &net, "fd09:6::1", "fd09:6::2"),
            ("IPv4, forwarded", &behind, "10.7.0.2", "10.8.0.2"),
            ("IPv6, forwarded", &behind, "fd07::2", "fd08::2"),
        ] {
            let [from, to] = [(from, 0), (to, 9)]
                .map(|(ip, port)| SocketAddr::new(ip.parse::<IpAddr>().unwrap(), port));
            let sender = net.run(|| StdUdp::bind(from)).unwrap().unwrap();
            keeps_order(&format!("{what}, labels {labels}"), &tun, &sender, to);
        }
    }
}

/// An IPv4 packet. The kernel fills in the checksum.
fn v4(protocol: u8, fragment: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let header = 20 + options.len();
    let words = u8::try_from(header / 4).unwrap();
    let len = u16::try_from(header + payload.len()).unwrap();
    let mut packet = vec![0x40 | words, 0];
    packet.extend(len.to_be_bytes());
    packet.extend([0, 7]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0, 10, 8, 0, 1, 10, 8, 0, 2]);
    [&packet, options, payload].concat()
}

/// An IPv6 packet.
fn v6(next: u8, label: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0];
    packet.extend(label.to_be_bytes());
    packet.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
    packet.extend([next, 64]);
    for host in [1, 2] {
        packet.extend([0xfd, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
    }
    [&packet, payload].concat()
}

fn udp(source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    let mut datagram = source.to_be_bytes().to_vec();
    datagram.extend(destination.to_be_bytes());
    datagram.extend(u16::try_from(8 + payload.len()).unwrap().to_be_bytes());
    [&datagram, &[0; 2][..], payload].concat()
}

/// Packets of one flow of UDP, in every form that it may have.
fn forms(is_v6: bool, text: &[u8]) -> Vec<Vec<u8>> {
    let datagram = udp(1000, 9, text);
    if !is_v6 {
        return vec![
            v4(17, 0, &[], &datagram),
            v4(17, 0, &[1; 4], &datagram),
            v4(17, 0x2000, &[], &datagram),
            v4(17, 0x2010, &[], text),
            v4(17, 0x0020, &[1; 4], text),
        ];
    }
    let behind = |header: u8, first: [u8; 8], payload: &[u8]| {
        let mut first = first;
        first[0] = 17;
        v6(header, 0, &[&first, payload].concat())
    };
    vec![
        v6(17, 0, &datagram),
        v6(17, 7, &datagram),
        v6(17, 8, &datagram),
        behind(0, [0, 0, 1, 4, 0, 0, 0, 0], &datagram),
        behind(60, [0, 0, 1, 4, 0, 0, 0, 0], &datagram),
        behind(43, [0, 0, 4, 0, 0, 0, 0, 0], &datagram),
        // A fragment: the first, and the last.
        behind(44, [0, 0, 0, 1, 0, 0, 0, 7], &datagram),
        behind(44, [0, 0, 0, 0x80, 0, 0, 0, 7], text),
    ]
}

/// What may be around a packet: with the protocol and what precedes it. The number is that of its
/// form, by which UDP tunnels choose a port.
fn around(packet: &[u8], form: u16) -> Vec<(&'static str, u8, Vec<u8>)> {
    let is_v6 = packet[0] >> 4 == 6;
    let [high, low] = if is_v6 { [0x86, 0xdd] } else { [8, 0] };
    let mut frame = vec![2; 12];
    frame.extend([high, low]);
    frame.extend(packet);
    let in_udp = |port: u16, before: &[u8], inner: &[u8]| {
        udp(40_000 + form, port, &[before, inner].concat())
    };
    vec![
        ("IP", if is_v6 { 41 } else { 4 }, packet.to_vec()),
        ("GRE", 47, [&[0, 0, high, low][..], packet].concat()),
        (
            "GRE with Ethernet",
            47,
            [&[0, 0, 0x65, 0x58], &frame[..]].concat(),
        ),
        ("VXLAN", 17, in_udp(4789, &[8, 0, 0, 0, 0, 0, 7, 0], &frame)),
        (
            "Geneve",
            17,
            in_udp(6081, &[0, 0, 0x65, 0x58, 0, 0, 7, 0], &frame),
        ),
        ("UDP", 17, in_udp(5555, &[], packet)),
        ("L2TP", 115, [&[0, 0, 0, 7], &frame[..]].concat()),
    ]
}

/// Every packet of one flow, in each form and each tunnel, by the name of the tunnel.
fn packets(text: &[u8]) -> Vec<(String, Vec<Vec<u8>>)> {
    let mut all = Vec::new();
    for is_v6 in [false, true] {
        let forms = forms(is_v6, text);
        let outer = |protocol: u8, payload: &[u8]| {
            [v4(protocol, 0, &[], payload), v6(protocol, 0, payload)]
        };
        for tunnel in 0..around(&forms[0], 0).len() {
            for outer_v6 in [0, 1] {
                let mut name = "";
                let in_tunnel = (0..).zip(&forms).map(|(form, packet)| {
                    let (what, protocol, payload) = around(packet, form).swap_remove(tunnel);
                    name = what;
                    outer(protocol, &payload)[outer_v6].clone()
                });
                let in_tunnel: Vec<_> = in_tunnel.collect();
                all.push((
                    format!("in {name}, inside IPv6 {is_v6}, outside {outer_v6}"),
                    in_tunnel,
                ));
            }
        }
        all.push((format!("plain, IPv6 {is_v6}"), forms));
    }
    all
}

#[test]
fn every_form_of_a_packet_keeps_its_order() {
    let (net, tun) = fair_device();
    run(&net, "ip addr add fd08::1/64 dev tun nodad");
    let raw = |family| {
        let protocol = Protocol::from_raw(255.try_into().unwrap());
        socket_with(
            family,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(protocol),
        )
        .unwrap()
    };
    let sockets =
        [AddressFamily::INET, AddressFamily::INET6].map(|it| net.run(|| raw(it)).unwrap());
    let send = |packet: &[u8]| {
        let is_v6 = packet[0] >> 4 == 6;
        let to: IpAddr = if is_v6 { "fd08::2" } else { "10.8.0.2" }.parse().unwrap();
        let flags = rustix::net::SendFlags::empty();
        sendto(
            &sockets[usize::from(is_v6)],
            packet,
            flags,
            &SocketAddr::new(to, 0),
        )
        .unwrap();
    };
    let all = [0, 1, 2].map(|number| packets(&text(number, 96)));
    for ((what, first), ((_, second), (_, third))) in all[0].iter().zip(all[1].iter().zip(&all[2]))
    {
        for (before, (first, second)) in first.iter().zip(second).enumerate() {
            for (after, third) in third.iter().enumerate() {
                for packet in [first, second, third] {
                    send(packet);
                }
                let numbers = read(&tun, 2);
                assert_eq!(numbers, [0, 1, 2], "{what}: {after} after {before}");
            }
        }
    }
}
