use adit_netlink::{LinkChange, Netlink};
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, SendFlags, SocketType, sendto, socket};

use super::*;
use adit_netlink::netns::Netns;

const ALL: u8 = Changes::LINK | Changes::ROUTES | Changes::CLONES;
/// The index of no interface.
const NOTHING: u32 = 9999;

fn inside<T: Send>(work: impl FnOnce(&Netns) -> T + Send) -> T {
    let netns = Netns::new().expect("a namespace");
    netns.run(|| work(&netns)).expect("the right to enter")
}

fn changes() -> Arc<Changes> {
    Arc::new(Changes::new().expect("a descriptor"))
}

/// Netlink sockets of the calling thread's namespace that belong to a group, and a line of titles.
fn listeners() -> usize {
    let sockets = std::fs::read_to_string("/proc/thread-self/net/netlink").expect("a list");
    let groups = sockets
        .lines()
        .filter_map(|line| line.split_whitespace().nth(3));
    groups.filter(|groups| *groups != "00000000").count()
}

fn up(up: bool) -> LinkChange<'static> {
    LinkChange {
        up: Some(up),
        ..LinkChange::default()
    }
}

/// An interface that is down.
fn interface(netlink: &Netlink) -> u32 {
    netlink.add_veth("one", "other", None).expect("added");
    netlink.link("one").expect("it is here").index
}

#[test]
fn a_hundred_interfaces_share_one_monitor() {
    inside(|netns| {
        let watches = Watches::default();
        let before = listeners();
        let changes: Vec<_> = (0..100).map(|_| changes()).collect();
        let mut subscriptions = Vec::new();
        for (index, changes) in (1..).zip(&changes) {
            for topic in [Topic::Routes, Topic::Link(index)] {
                let subscription = watches.subscribe(netns, topic, changes);
                subscriptions.push(subscription.expect("a monitor"));
            }
        }
        assert_eq!(listeners(), before + 1);
        let other = Netns::new().expect("a namespace");
        let elsewhere = watches.subscribe(&other, Topic::Routes, &changes[0]);
        let elsewhere = elsewhere.expect("a monitor").source();
        let here = subscriptions[0].source();
        assert!(!Arc::ptr_eq(&here, &elsewhere));
        let is_here = |it: &Subscription| Arc::ptr_eq(&it.source(), &here);
        assert!(subscriptions.iter().all(is_here));
        drop(here);

        // The last one holds it open.
        let last = subscriptions.pop();
        drop(subscriptions);
        assert_eq!(listeners(), before + 1);
        drop(last);
        assert_eq!(listeners(), before);
        let again = watches.subscribe(netns, Topic::Routes, &changes[0]);
        assert!(again.is_ok());
        assert_eq!(listeners(), before + 1);
    });
}

#[test]
fn a_link_wakes_its_interface_and_routes_wake_all() {
    inside(|netns| {
        let netlink = Netlink::open().expect("a socket");
        let index = interface(&netlink);
        let (mine, loopbacks) = (changes(), changes());
        let watches = Watches::default();
        let _subscriptions = [
            watches.subscribe(netns, Topic::Routes, &mine),
            watches.subscribe(netns, Topic::Link(index), &mine),
            watches.subscribe(netns, Topic::Routes, &loopbacks),
            watches.subscribe(netns, Topic::Link(1), &loopbacks),
        ]
        .map(|subscription| subscription.expect("a monitor"));
        let take = || {
            _subscriptions[0].source().take();
            (mine.take(ALL), loopbacks.take(ALL))
        };
        assert_eq!(take(), (0, 0));
        netlink.set_link(index, &up(true)).expect("up");
        let (my, loopback) = take();
        assert_eq!((my & Changes::LINK, loopback & Changes::LINK), (1, 0));

        let ip = "10.0.0.1".parse().expect("an address");
        netlink.add_address(index, ip, 24, false).expect("added");
        let (my, loopback) = take();
        assert_eq!(my & Changes::ROUTES, Changes::ROUTES);
        assert_eq!(loopback, Changes::ROUTES);

        // Only its end is left to tell of.
        netlink.set_link(index, &up(false)).expect("down");
        take();
        netlink.delete_link(index).expect("deleted");
        let (my, loopback) = take();
        assert_eq!((my & Changes::LINK, loopback & Changes::LINK), (1, 0));
    });
}

#[test]
fn lost_events_wake_everybody() {
    inside(|netns| {
        let netlink = Netlink::open().expect("a socket");
        let index = interface(&netlink);
        let (one, other) = (changes(), changes());
        let watches = Watches::default();
        let link = watches.subscribe(netns, Topic::Link(NOTHING), &one);
        let link = link.expect("a monitor");
        let _routes = watches.subscribe(netns, Topic::Routes, &other);
        for state in [true, false].repeat(2) {
            netlink.set_link(index, &up(state)).expect("changed");
        }
        link.source().take();
        assert_eq!(one.take(ALL), 0);
        for state in [true, false].repeat(2000) {
            netlink.set_link(index, &up(state)).expect("changed");
        }
        link.source().take();
        assert_eq!((one.take(ALL), other.take(ALL)), (1, 2));
    });
}

#[test]
fn a_clone_is_told_to_every_interface() {
    inside(|_| {
        let watches = Watches::default();
        let all = [changes(), changes()];
        let subscribe = |changes| watches.subscribe_to_clones(changes).expect("a monitor");
        let [one, other] = all.each_ref().map(subscribe);
        assert!(Arc::ptr_eq(&one.source(), &other.source()));
        one.source().take();
        assert!(all.iter().all(|changes| changes.take(ALL) == 0));

        // A uevent as if the kernel sent it.
        let event = b"change@/devices/x\0ACTION=change\0NEW_VMGENID=1\0";
        let len = u32::try_from(16 + event.len()).expect("short");
        // NLMSG_MIN_TYPE and NLM_F_REQUEST.
        let mut message = [len, 16 | 1 << 16, 0, 0].map(u32::to_ne_bytes).concat();
        message.extend(event);
        let socket = socket(
            AddressFamily::NETLINK,
            SocketType::RAW,
            Some(KOBJECT_UEVENT),
        );
        let socket = socket.expect("a socket");
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&socket, &message, SendFlags::empty(), &kernel).expect("sent");
        one.source().take();
        assert!(
            all.iter()
                .all(|changes| changes.take(ALL) == Changes::CLONES)
        );
    });
}

#[test]
fn flags_that_are_left_wake_again() {
    let changes = changes();
    let is_ready = || {
        let mut fds = [rustix::event::PollFd::new(
            &*changes,
            rustix::event::PollFlags::IN,
        )];
        let now = rustix::event::Timespec::default();
        rustix::event::poll(&mut fds, Some(&now)).expect("polled") == 1
    };
    changes.add(Changes::LINK);
    changes.add(Changes::CLONES);
    assert_eq!(changes.take(Changes::LINK), Changes::LINK);
    assert!(is_ready());
    assert_eq!(changes.take(Changes::CLONES), Changes::CLONES);
    assert!(!is_ready());
}

impl Watches {
    fn subscribe(
        &self,
        netns: &Netns,
        topic: Topic,
        changes: &Arc<Changes>,
    ) -> io::Result<Subscription> {
        self.subscribe_with(netns.id()?, topic, changes, || Monitor::open_in(netns))
    }
}
