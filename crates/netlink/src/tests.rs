use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::rule::RuleMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage};

use super::*;
use crate::clones::{Clocks, hear_log};

fn inside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    Netns::new().unwrap().run(work).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// An interface with a carrier: one end of a veth pair whose other end is up.
fn interface(netlink: &Netlink, name: &str) -> u32 {
    let peer = format!("{name}-peer");
    netlink.add_veth(name, &peer, None).unwrap();
    netlink
        .set_link(netlink.link(&peer).unwrap().index, &up())
        .unwrap();
    let index = netlink.link(name).unwrap().index;
    netlink.set_link(index, &up()).unwrap();
    index
}

/// Waits for the local route of an address: for IPv6 the kernel makes it in its own time, after it
/// has accepted the address.
fn is_usable(netlink: &Netlink, own: IpAddr) {
    let start = Instant::now();
    while !netlink
        .route_get(own, None, 0, None)
        .is_ok_and(|path| path.local)
    {
        assert!(start.elapsed() < Duration::from_secs(10), "{own} unusable");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn up() -> LinkChange<'static> {
    LinkChange {
        up: Some(true),
        ..LinkChange::default()
    }
}

#[test]
fn a_veth_pair_spans_two_namespaces_and_takes_every_change() {
    inside(|| {
        let other = Netns::new().unwrap();
        let netlink = Netlink::open().unwrap();
        netlink.add_veth("here", "there", Some(&other)).unwrap();
        let here = netlink.link("here").unwrap();
        assert_eq!(
            (here.kind.as_deref(), here.up, here.mtu),
            (Some("veth"), false, 1500)
        );
        assert!(!here.loopback);

        let change = LinkChange {
            name: Some("renamed"),
            up: Some(true),
            mtu: Some(1400),
            txqueuelen: Some(321),
            gso_max_size: Some(61_000),
            no_link_local: true,
            address: Some([2, 0, 0, 0, 0, 7]),
            no_arp: true,
            netns: None,
        };
        netlink.set_link(here.index, &change).unwrap();
        let link = netlink.link_by_index(here.index).unwrap();
        assert_eq!(link.name, "renamed");
        assert_eq!(
            (link.up, link.mtu, link.txqueuelen, link.gso_max_size),
            (true, 1400, 321, 61_000)
        );

        let there = Netlink::open_in(&other).unwrap();
        let peer = there.link("there").unwrap();
        assert_eq!(there.links().unwrap().len(), 2, "lo and the peer");
        assert!(there.link("lo").unwrap().loopback);

        let third = Netns::new().unwrap();
        let to_third = LinkChange {
            netns: Some(&third),
            ..LinkChange::default()
        };
        there.set_link(peer.index, &to_third).unwrap();
        assert_eq!(
            there.link("there").unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        Netlink::open_in(&third).unwrap().link("there").unwrap();

        netlink.delete_link(link.index).unwrap();
        assert_eq!(netlink.links().unwrap().len(), 1);
    });
}

#[test]
fn errors_say_what_was_attempted_and_what_the_kernel_thinks() {
    inside(|| {
        let netlink = Netlink::open().unwrap();
        let index = interface(&netlink, "one");
        let error = netlink.add_veth("one", "two", None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert!(
            error
                .to_string()
                .starts_with("making veth interfaces one and two: "),
            "{error}"
        );

        let change = LinkChange {
            mtu: Some(1),
            ..LinkChange::default()
        };
        let error = netlink.set_link(index, &change).unwrap_err();
        assert!(
            error.to_string().contains("mtu less than device minimum"),
            "{error}"
        );

        let error = netlink
            .delete_address(index, ip("10.0.0.1"), 24)
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(
            netlink.link("none").unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    });
}

#[test]
fn addresses_of_both_families_come_and_go() {
    inside(|| {
        let netlink = Netlink::open().unwrap();
        let index = interface(&netlink, "one");
        let (v4, v6) = (ip("10.1.2.3"), ip("fd00::1"));
        netlink.add_address(index, v4, 24, false).unwrap();
        netlink.add_address(index, v6, 64, true).unwrap();
        let error = netlink.add_address(index, v4, 24, false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);

        let mine = |ip: IpAddr| {
            let all = netlink.addresses().unwrap();
            all.into_iter()
                .find(|address| address.ifindex == index && address.ip == ip)
        };
        assert_eq!(mine(v4).unwrap().prefix_len, 24);
        let found = mine(v6).unwrap();
        assert_eq!((found.prefix_len, found.tentative), (64, false), "nodad");

        netlink
            .add_address(index, ip("fd00::2"), 64, false)
            .unwrap();
        assert!(mine(ip("fd00::2")).unwrap().tentative);

        netlink.delete_address(index, v4, 24).unwrap();
        netlink.delete_address(index, v6, 64).unwrap();
        assert_eq!((mine(v4), mine(v6)), (None, None));
    });
}

#[test]
fn routes_and_rules_do_what_wg_quick_needs() {
    inside(|| {
        let netlink = Netlink::open().unwrap();
        let wan = interface(&netlink, "wan");
        let tunnel = interface(&netlink, "tunnel");
        let families = [
            (
                Family::V4,
                "192.0.2.2",
                24,
                "192.0.2.1",
                "0.0.0.0",
                "198.51.100.7",
            ),
            (
                Family::V6,
                "2001:db8::2",
                64,
                "2001:db8::1",
                "::",
                "2001:db8:1::7",
            ),
        ];
        for (family, own, len, router, any, far) in families {
            netlink.add_address(wan, ip(own), len, true).unwrap();
            is_usable(&netlink, ip(own));
            let default = Route {
                gateway: Some(ip(router)),
                metric: Some(700),
                mtu: Some(1380),
                ..Route::through(wan, ip(any), 0)
            };
            netlink.add_route(&default).unwrap();
            let error = netlink.add_route(&default).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
            netlink.replace_route(&default).unwrap();
            assert!(
                netlink.routes(family).unwrap().contains(&default),
                "{:?}",
                netlink.routes(family)
            );

            // `ip route add default dev tunnel table 51820`, and its two rules
            let table = 51_820;
            let all = Route {
                table,
                ..Route::through(tunnel, ip(any), 0)
            };
            netlink.add_route(&all).unwrap();
            let not_marked = Rule {
                family,
                priority: None,
                fwmark: Some(table),
                not: true,
                table,
                suppress_prefixlength: None,
            };
            let suppress = Rule {
                family,
                priority: None,
                fwmark: None,
                not: false,
                table: Route::MAIN,
                suppress_prefixlength: Some(0),
            };
            netlink.add_rule(&not_marked).unwrap();
            netlink.add_rule(&suppress).unwrap();
            let rules = netlink.rules(family).unwrap();
            let find = |wanted: Rule| {
                rules.iter().any(|rule| {
                    Rule {
                        priority: None,
                        ..*rule
                    } == wanted
                })
            };
            assert!(find(not_marked) && find(suppress), "{rules:?}");
            let count = |wanted: Rule| {
                let rules = netlink.rules(family).unwrap();
                let same = |rule: &&Rule| (rule.table, rule.not) == (wanted.table, wanted.not);
                rules.iter().filter(same).count()
            };
            netlink.insert_rule(&not_marked).unwrap();
            assert_eq!(count(not_marked), 2);
            netlink.delete_rule(&not_marked).unwrap();
            assert_eq!(count(not_marked), 1);

            // Where look-ups end when the other route goes.
            let end = Route {
                oif: None,
                metric: Some(u32::MAX),
                unicast: false,
                ..all.clone()
            };
            let ends = || {
                let routes = netlink.routes(family).unwrap();
                let end = |route: &&Route| route.table == table && !route.unicast;
                routes.iter().filter(end).count()
            };
            netlink.add_route(&end).unwrap();
            assert_eq!(ends(), 1);
            netlink.delete_route(&end).unwrap();
            assert_eq!(ends(), 0);

            let path = netlink.route_get(ip(far), None, 0, None).unwrap();
            assert_eq!((path.oif, path.gateway), (tunnel, None));
            let path = netlink.route_get(ip(far), None, table, None).unwrap();
            assert_eq!(
                (path.oif, path.gateway, path.src),
                (wan, Some(ip(router)), Some(ip(own)))
            );
            assert_eq!(path.mtu, Some(1380));
            let path = netlink
                .route_get(ip(router), Some(ip(own)), 0, Some(wan))
                .unwrap();
            assert_eq!(
                (path.oif, path.src, path.local),
                (wan, Some(ip(own)), false),
                "suppressed rule"
            );
            assert!(netlink.route_get(ip(own), None, 0, None).unwrap().local);

            netlink.delete_rule(&not_marked).unwrap();
            netlink.delete_rule(&suppress).unwrap();
            assert_eq!(
                netlink.delete_rule(&suppress).unwrap_err().kind(),
                io::ErrorKind::NotFound
            );
            netlink.delete_route(&all).unwrap();
            netlink.delete_route(&default).unwrap();
            assert_eq!(
                netlink.delete_route(&default).unwrap_err().kind(),
                io::ErrorKind::NotFound
            );
            assert!(netlink.route_get(ip(far), None, 0, None).is_err());
        }
    });
}

#[test]
fn a_monitor_reports_every_change() {
    inside(|| {
        let netlink = Netlink::open().unwrap();
        let monitor = Monitor::open().unwrap();
        let mut events = VecDeque::new();
        monitor.drain(|event| events.push_back(event)).unwrap();
        assert_eq!(events, []);
        let mut wait = |wanted: &dyn Fn(&NetlinkEvent) -> bool| {
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(5) {
                match events.pop_front() {
                    Some(event) if wanted(&event) => return,
                    Some(_) => {}
                    None => {
                        std::thread::sleep(Duration::from_millis(1));
                        monitor.drain(|event| events.push_back(event)).unwrap();
                    }
                }
            }
            panic!("the event did not come");
        };
        let index = interface(&netlink, "one");
        wait(&|event| matches!(event, NetlinkEvent::Link(link) if link.name == "one"));
        wait(&|event| matches!(event, NetlinkEvent::Link(link) if link.up));
        netlink
            .add_address(index, ip("10.0.0.1"), 24, false)
            .unwrap();
        wait(
            &|event| matches!(event, NetlinkEvent::Address(address) if address.ip == ip("10.0.0.1")),
        );
        wait(&|event| *event == NetlinkEvent::Routing);
        netlink.delete_address(index, ip("10.0.0.1"), 24).unwrap();
        wait(
            &|event| matches!(event, NetlinkEvent::AddressGone(address) if address.ip == ip("10.0.0.1")),
        );
        netlink.delete_link(index).unwrap();
        wait(&|event| *event == NetlinkEvent::LinkGone { index });
    });
}

#[test]
fn a_monitor_of_addresses_reports_no_routes() {
    inside(|| {
        let netlink = Netlink::open().unwrap();
        let monitor = Monitor::of_addresses().unwrap();
        let index = interface(&netlink, "one");
        let address = ip("10.0.0.1");
        netlink.add_address(index, address, 24, false).unwrap();
        netlink.delete_address(index, address, 24).unwrap();
        netlink.delete_link(index).unwrap();
        let (mut came, mut went, mut links) = (0, 0, 0);
        let each = |event| match event {
            NetlinkEvent::Address(it) => came += usize::from(it.ip == address),
            NetlinkEvent::AddressGone(it) => went += usize::from(it.ip == address),
            NetlinkEvent::Link(_) | NetlinkEvent::LinkGone { .. } => links += 1,
            other => panic!("{other:?}"),
        };
        // The kernel tells before it answers.
        monitor.drain(each).unwrap();
        assert_eq!((came, went), (1, 1));
        assert!(links >= 2, "{links}");
    });
}

#[test]
fn garbage_from_a_socket_is_no_message() {
    for bytes in [&[][..], &[1], &[16, 0, 0, 0], &[255; 40], &[0; 64]] {
        assert_eq!(Raw::split(bytes).count(), 0);
    }
    // A header that promises more than there is, after a whole message.
    let mut bytes = vec![0; 32];
    bytes[0] = 16;
    bytes[16] = 17;
    assert_eq!(Raw::split(&bytes).count(), 1);
}

#[test]
fn noqueue_replaces_the_default_qdisc_only() {
    inside(|| {
        let netlink = Netlink::open().unwrap();
        let (default, chosen) = (
            interface(&netlink, "unchosen"),
            interface(&netlink, "chosen"),
        );
        // As `tc qdisc add dev chosen root handle 1: pfifo` asks for it.
        let mut message = TcMessage::default();
        message.header.index = chosen.cast_signed();
        message.header.parent = TcHandle::ROOT;
        message.header.handle = TcHandle { major: 1, minor: 0 };
        message
            .attributes
            .push(TcAttribute::Kind("pfifo".to_owned()));
        let add = RouteNetlinkMessage::NewQueueDiscipline(message);
        netlink
            .change("adding", add, NLM_F_CREATE | NLM_F_EXCL)
            .unwrap();

        assert!(netlink.set_noqueue(default).unwrap());
        assert!(!netlink.set_noqueue(chosen).unwrap());
        let kinds = |index: u32| -> Vec<String> {
            let all = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default());
            let answers = netlink.dump("listing", all).unwrap();
            let of_index = answers.into_iter().filter_map(|answer| match answer {
                RouteNetlinkMessage::NewQueueDiscipline(message)
                    if message.header.index == index.cast_signed() =>
                {
                    Some(message.attributes)
                }
                _ => None,
            });
            let kind = |attribute| match attribute {
                TcAttribute::Kind(kind) => Some(kind),
                _ => None,
            };
            of_index.flatten().filter_map(kind).collect()
        };
        assert_eq!(kinds(default), ["noqueue"]);
        assert_eq!(kinds(chosen), ["pfifo"]);
        // It is not the default any more.
        assert!(!netlink.set_noqueue(default).unwrap());
    });
}

#[test]
fn a_family_that_the_kernel_lacks_has_no_rules() {
    inside(|| {
        let mut message = netlink_packet_route::rule::RuleMessage::default();
        message.header.family = netlink_packet_route::AddressFamily::Appletalk;
        let message = RouteNetlinkMessage::GetRule(message);
        let rules = Netlink::open().unwrap().dump("listing rules", message);
        assert_eq!(rules.unwrap(), []);
    });
}

#[test]
fn a_family_that_the_kernel_lacks_has_no_routes() {
    inside(|| {
        let netlink = Netlink::open().unwrap();
        let loopback = netlink.link("lo").unwrap().index;
        netlink.set_link(loopback, &up()).unwrap();
        is_usable(&netlink, ip("127.0.0.1"));
        is_usable(&netlink, ip("::1"));
        for family in Family::BOTH {
            let routes = netlink.routes(family).unwrap();
            let is_of_family = |route: &Route| Family::of(route.destination.0) == family;
            assert!(!routes.is_empty() && routes.iter().all(is_of_family));
        }
        let lacking = netlink_packet_route::AddressFamily::Appletalk;
        assert_eq!(netlink.routes_of(lacking).unwrap(), []);
    });
}

#[test]
fn a_refused_dump_says_what_the_kernel_thinks() {
    inside(|| {
        let netlink = Netlink::open().unwrap();
        let mut address = AddressMessage::default();
        (address.header.family, address.header.prefix_len) = (Family::V4.into(), 8);
        let mut route = RouteMessage::default();
        route.header.address_family = Family::V4.into();
        route.header.destination_prefix_length = 8;
        let mut rule = RuleMessage::default();
        (rule.header.family, rule.header.dst_len) = (Family::V4.into(), 8);
        for (what, message) in [
            ("address", RouteNetlinkMessage::GetAddress(address)),
            ("FIB", RouteNetlinkMessage::GetRoute(route)),
            ("fib rule", RouteNetlinkMessage::GetRule(rule)),
        ] {
            let error = netlink.dump("listing", message).unwrap_err().to_string();
            let reason = format!("nvalid values in header for {what} dump request)");
            assert!(error.ends_with(&reason), "{error}");
        }
    });
}

/// Messages about links as the kernel sends them, which a bridge and IPv6 send too.
#[test]
fn only_a_link_that_leaves_its_namespace_is_gone() {
    use netlink_packet_route::AddressFamily::{Bridge, Inet6, Unspec};
    let of = |family, make: fn(LinkMessage) -> RouteNetlinkMessage| {
        let mut link = LinkMessage::default();
        (link.header.interface_family, link.header.index) = (family, 7);
        link.attributes.push(LinkAttribute::IfName("port".into()));
        let mut message = NetlinkMessage::from(make(link));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        Raw::split(&bytes).map(|raw| NetlinkEvent::of(&raw)).next()
    };
    let (new, gone) = (RouteNetlinkMessage::NewLink, RouteNetlinkMessage::DelLink);
    let link = of(Unspec, new).flatten();
    assert!(matches!(link, Some(NetlinkEvent::Link(link)) if link.name == "port"));
    let index = 7;
    assert_eq!(
        of(Unspec, gone),
        Some(Some(NetlinkEvent::LinkGone { index }))
    );
    for family in [Bridge, Inet6] {
        for make in [new, gone] {
            assert_eq!(
                of(family, make),
                Some(Some(NetlinkEvent::Routing)),
                "{family:?}"
            );
        }
    }
}

#[test]
fn only_the_kernels_own_record_tells_of_a_clone() {
    let of = |record: &str| crate::clones::tells_of_clone(record.as_bytes());
    assert!(of(
        "5,812,5299186,-;random: crng reseeded due to virtual machine fork\n"
    ));
    assert!(!of(
        "13,812,5299186,-;random: crng reseeded due to virtual machine fork\n"
    ));
    assert!(of(
        "5,812,5299186,-,caller=T1;random: crng reseeded due to virtual machine fork\n SUBSYSTEM=x\n"
    ));
    assert!(!of("5,401,1,-;random: crng init done\n"));
    // What a stranger names is quoted.
    for text in [
        "usb 1-1: Product: random: crng reseeded due to virtual machine fork",
        "IN=eth0 random: crng reseeded due to virtual machine fork",
        "random: crng reseeded due to virtual machine fork IN=eth0",
        "x\\x0arandom: crng reseeded due to virtual machine fork",
        "x\n random: crng reseeded due to virtual machine fork",
        "x;random: crng reseeded due to virtual machine fork",
    ] {
        assert!(!of(&format!("5,812,5299186,-;{text}\n")), "{text}");
    }
    assert!(!of(""));
}

/// Has the kernel broadcast a uevent in the calling thread's namespace, as if it were its own.
fn broadcast_uevent(text: &[u8]) {
    let len = u32::try_from(HEADER + text.len()).unwrap();
    let kind_and_flags = 16 | u32::from(NLM_F_REQUEST) << 16;
    let mut bytes = [len, kind_and_flags, 0, 0].map(u32::to_le_bytes).concat();
    bytes.extend(text);
    let socket = open_socket(netlink_sys::protocols::NETLINK_KOBJECT_UEVENT, 0).unwrap();
    socket.send(&bytes, 0).unwrap();
}

#[test]
fn a_uevent_of_a_new_vm_generation_is_heard() {
    inside(|| {
        let monitor = CloneMonitor::open().unwrap();
        assert!(!monitor.was_cloned());
        let of = |field: &str| format!("change@/devices/x\0ACTION=change\0{field}\0SUBSYSTEM=x\0");
        broadcast_uevent(of("NEW_VMGENID=0").as_bytes());
        broadcast_uevent(of("X=NEW_VMGENID=1").as_bytes());
        assert!(!monitor.was_cloned());
        broadcast_uevent(of("NEW_VMGENID=1").as_bytes());
        broadcast_uevent(of("NEW_VMGENID=0").as_bytes());
        assert!(monitor.was_cloned());
        assert!(!monitor.was_cloned(), "is told once");
        // Where uevents were lost, it may have been one of them; but whoever makes many is no clone.
        for _ in 0..20_000 {
            broadcast_uevent(of("NEW_VMGENID=0").as_bytes());
        }
        for _ in 0..1000 {
            assert!(!monitor.was_cloned());
        }
        // Nor does it hide what comes later.
        broadcast_uevent(of("NEW_VMGENID=1").as_bytes());
        assert!(monitor.was_cloned());
    });
}

/// What reading the log gives, one after the other; then there is nothing more.
fn log_of(script: &[Result<&str, i32>]) -> impl FnMut(&mut [u8]) -> io::Result<usize> {
    let mut script = script.iter().copied();
    move |record| match script.next().unwrap_or(Err(libc::EAGAIN)) {
        Ok(text) => {
            record[..text.len()].copy_from_slice(text.as_bytes());
            Ok(text.len())
        }
        Err(errno) => Err(io::Error::from_raw_os_error(errno)),
    }
}

#[test]
fn a_log_that_lost_records_tells_only_what_is_left() {
    let other = "4,9,9,-;IN=eth0 OUT= SRC=203.0.113.9\n";
    let told = "5,8,9,-;random: crng reseeded due to virtual machine fork\n";
    let mut script = vec![Ok(other), Err(libc::EPIPE), Ok(other), Err(libc::EINTR)];
    let heard = hear_log(log_of(&script));
    assert!(heard.lost && !heard.told && !heard.more && !heard.ended);
    script.push(Ok(told));
    assert!(hear_log(log_of(&script)).told, "it was not lost");
    // A flood of records ends no call.
    let mut reads = 0;
    let flood = hear_log(|record| {
        reads += 1;
        let at = reads % 3;
        log_of(&[Ok(other), Ok(other), Err(libc::EPIPE)][at..])(record)
    });
    assert!(flood.more && flood.lost && !flood.told);
    assert!(reads < 1000, "{reads}");
    assert!(hear_log(log_of(&[Err(libc::EINVAL), Ok(told)])).ended);
}

#[test]
fn clocks_tell_of_a_clone_only_if_records_were_lost() {
    let s = Duration::from_secs;
    let start = s(1_000_000);
    // What was known, how much later, how far ahead then, whether records were lost.
    for (later, jump, lost, tells) in [
        (1, 0, true, false),
        (1, 1, true, false),
        (1, 100, false, false),
        (1, 4, true, true),
        (1, 100, true, true),
        // Drift of two days.
        (172_800, 60, true, false),
        (172_800, 3600, true, true),
    ] {
        let mut clocks = Clocks::new(Some((start, s(50))));
        let now = s(50 + later);
        let told = clocks.compare(start + s(jump), now, lost);
        assert_eq!(told, tells, "{later} {jump} {lost}");
        assert!(!clocks.compare(start + s(jump), now, true), "is told once");
    }
    // A clock that is set back, and one that cannot be read.
    let mut clocks = Clocks::new(Some((start, s(50))));
    assert!(!clocks.compare(s(1), s(51), true));
    assert!(!Clocks::new(None).compare(start, s(51), true));
}

/// Somebody may set the hardware's clock again and again.
#[test]
fn clocks_tell_of_a_clone_once_in_two_minutes() {
    let s = Duration::from_secs;
    let mut clocks = Clocks::new(Some((s(1000), s(0))));
    let told = (1..=600).filter(|now| clocks.compare(s(1000 + now * 100), s(*now), true));
    let told: Vec<u64> = told.collect();
    assert!((4..=6).contains(&told.len()), "{told:?}");
}
