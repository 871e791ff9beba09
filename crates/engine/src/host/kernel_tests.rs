use std::sync::Mutex;
use std::time::{Duration, Instant};

use adit_netlink::LinkChange;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::*;
use crate::Engine;

/// The one right that a container or a unit gives.
fn keep_net_admin_only() {
    let net_admin = CapabilitySets {
        effective: CapabilitySet::NET_ADMIN,
        permitted: CapabilitySet::NET_ADMIN,
        inheritable: CapabilitySet::empty(),
    };
    // Of this thread only.
    set_capabilities(None, net_admin).expect("fewer than before");
}

fn quiet() -> Settings {
    Settings {
        offloads: Offloads::ALL,
        log: Arc::new(|_| {}),
        log_verbose: None,
        listener: None,
        peers_file: None,
        gateway_id: None,
    }
}

/// A TUN device in the namespace of the calling thread.
fn device(name: &str) -> Arc<Tun> {
    let mut tuns = Tun::open(name, 1, Offloads::ALL).expect("a TUN device");
    Arc::new(tuns.remove(0))
}

#[test]
fn a_device_is_tuned_with_net_admin_alone_where_the_process_is() {
    let (here, there) = (
        Netns::new().expect("a namespace"),
        Netns::new().expect("a namespace"),
    );
    let test = || {
        let tun = device("tuned");
        let outside = Netlink::open().expect("a socket");
        keep_net_admin_only();
        let said = Arc::<Mutex<Vec<String>>>::default();
        let log = Arc::clone(&said);
        let settings = Settings {
            offloads: Offloads::ALL,
            log: Arc::new(move |line| log.lock().expect("not poisoned").push(line.into())),
            log_verbose: None,
            listener: None,
            peers_file: None,
            gateway_id: None,
        };
        let kernel = LinuxPlatform::new(Arc::clone(&tun), settings, &Watches::default());
        let mut kernel = kernel.expect("a platform");
        assert!(kernel.namespace.is_some());
        assert!(said.lock().expect("not poisoned").is_empty());

        // Elsewhere it is not, which is said once.
        let change = LinkChange {
            netns: Some(&there),
            ..LinkChange::default()
        };
        let index = index_of(&tun);
        outside.set_link(index, &change).expect("moved");
        kernel.follow();
        kernel.follow();
        assert!(kernel.namespace.is_none());
        let said = said.lock().expect("not poisoned");
        assert!(said[0].contains("entering"), "{said:?}");
        assert_eq!(said.len(), 1, "{said:?}");
    };
    here.run(test).expect("the right to enter");
}

#[test]
fn a_device_out_of_reach_comes_up_and_goes_down() {
    let (here, there) = (
        Netns::new().expect("a namespace"),
        Netns::new().expect("a namespace"),
    );
    let test = || {
        let tun = device("far");
        let (at_home, away) = (
            Netlink::open().expect("a socket"),
            Netlink::open_in(&there).expect("the right to enter"),
        );
        keep_net_admin_only();
        // Its threads have no more rights than this one.
        let kernel = LinuxPlatform::new(Arc::clone(&tun), quiet(), &Watches::default());
        let engine = Engine::start(1).expect("an engine");
        let kernel = kernel.expect("a platform");
        let engine = engine.add(Arc::clone(&tun), kernel, Offloads::ALL);
        let _engine = engine.expect("an engine");
        // There is a line with titles, and one for each socket of the namespace.
        let sockets = || std::fs::read_to_string("/proc/thread-self/net/udp").expect("a list");
        let bound = || sockets().lines().count() > 1;
        assert!(!bound());
        let change = LinkChange {
            netns: Some(&there),
            ..LinkChange::default()
        };
        let index = index_of(&tun);
        at_home.set_link(index, &change).expect("moved");
        let index = away.link("far").expect("it is there").index;
        for up in [true, false, true] {
            let change = LinkChange {
                up: Some(up),
                ..LinkChange::default()
            };
            away.set_link(index, &change).expect("changed");
            let start = Instant::now();
            while bound() != up {
                assert!(start.elapsed() < Duration::from_secs(30), "up: {up}");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    };
    here.run(test).expect("the right to enter");
}

#[test]
fn what_the_kernel_refuses_is_reported() {
    let netns = Netns::new().expect("a namespace");
    let test = || {
        let tun = device("slow");
        let up = LinkChange {
            up: Some(true),
            ..LinkChange::default()
        };
        let index = index_of(&tun);
        let netlink = Netlink::open().expect("a socket");
        netlink.set_link(index, &up).expect("up");
        keep_net_admin_only();
        // Enough for long buffers, but for priority only where RLIMIT_NICE gives it.
        let limit = getrlimit(Resource::Nice).current;
        let expected: &[&str] = match limit {
            Some(limit) if limit < 30 => &["priority"],
            _ => &[],
        };
        let kernel = LinuxPlatform::new(Arc::clone(&tun), quiet(), &Watches::default());
        let engine = Engine::start(1).expect("an engine");
        let kernel = kernel.expect("a platform");
        let interface = engine
            .add(tun, kernel, Offloads::ALL)
            .expect("an interface");
        let start = Instant::now();
        while interface.report().refused != expected {
            let refused = interface.report().refused;
            assert!(start.elapsed() < Duration::from_secs(30), "{refused:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    netns.run(test).expect("the right to enter");
}

#[test]
fn a_device_that_moves_is_watched_where_it_is() {
    let (here, there) = (
        Netns::new().expect("a namespace"),
        Netns::new().expect("a namespace"),
    );
    let test = || {
        let tun = device("moving");
        let (at_home, away) = (
            Netlink::open().expect("a socket"),
            Netlink::open_in(&there).expect("the right to enter"),
        );
        let watches = Watches::default();
        let kernel = LinuxPlatform::new(Arc::clone(&tun), quiet(), &watches);
        let mut kernel = kernel.expect("a platform");
        // It may have changed just before it was watched.
        assert_eq!(kernel.changes.take(Changes::LINK), Changes::LINK);
        // Whether one monitor watches the device and the routes.
        let at_sockets = |kernel: &LinuxPlatform| {
            let namespace = kernel.namespace.as_ref().expect("reached");
            let routes = kernel.routes.as_ref().expect("watched");
            let home = namespace.home.as_ref();
            home.is_some_and(|(link, _)| Arc::ptr_eq(&link.source(), &routes.source()))
        };
        assert!(at_sockets(&kernel));
        let set = |netlink: &Netlink, change: LinkChange<'_>| {
            let index = netlink.link("moving").expect("it is here").index;
            netlink.set_link(index, &change).expect("changed");
        };
        // What the control thread does, until nothing is left.
        let handle = |kernel: &mut LinuxPlatform| {
            while {
                kernel.sources().iter().for_each(|source| source.take());
                let mut events = [PollFd::new(&kernel.changes, PollFlags::IN)];
                rustix::event::poll(&mut events, Some(&Timespec::default())).expect("polled") > 0
            } {
                kernel.handle_events().expect("it is there");
            }
            // Elsewhere the device is looked at from time to time.
            if !kernel.is_watched() {
                kernel.handle_events().expect("it is there");
            }
            kernel.last.up
        };
        let up = |up| LinkChange {
            up: Some(up),
            ..LinkChange::default()
        };
        let to = |netns| LinkChange {
            netns: Some(netns),
            ..LinkChange::default()
        };
        set(&at_home, up(true));
        assert!(handle(&mut kernel));

        // A device that is moved goes down.
        set(&at_home, to(&there));
        assert!(!handle(&mut kernel));
        assert!(!at_sockets(&kernel));
        for state in [true, false, true] {
            set(&away, up(state));
            assert_eq!(handle(&mut kernel), state);
        }

        set(&away, to(&here));
        assert!(!handle(&mut kernel));
        assert!(at_sockets(&kernel));

        // There and back before the platform looks, with an index that it has not seen.
        let before = index_of(&tun);
        away.add_veth("one", "other", None).expect("added");
        away.add_veth("third", "fourth", None).expect("added");
        set(&at_home, up(true));
        assert!(handle(&mut kernel));
        set(&at_home, to(&there));
        set(&away, to(&here));
        assert_ne!(index_of(&tun), before);
        for state in [false, true, false] {
            set(&at_home, up(state));
            assert_eq!(handle(&mut kernel), state);
        }
    };
    here.run(test).expect("the right to enter");
}

/// Where nothing but the interface is left in a namespace, as when a container has ended.
#[test]
fn a_device_ends_with_the_namespace_it_was_moved_to() {
    let here = Netns::new().expect("a namespace");
    let test = |(is_up, is_fair)| {
        let there = Netns::new().expect("a namespace");
        let tun = match is_fair {
            true => Tun::open_fair("moving", Offloads::ALL).map(Arc::new),
            false => Ok(device("moving")),
        };
        let tun = tun.expect("a TUN device");
        let at_home = Netlink::open().expect("a socket");
        let kernel = LinuxPlatform::new(Arc::clone(&tun), quiet(), &Watches::default());
        let mut kernel = kernel.expect("a platform");
        kernel.handle_events().expect("it is there");
        let change = LinkChange {
            netns: Some(&there),
            ..LinkChange::default()
        };
        let index = index_of(&tun);
        at_home.set_link(index, &change).expect("moved");
        let change = LinkChange {
            up: Some(is_up),
            ..LinkChange::default()
        };
        let away = Netlink::open_in(&there).expect("the right to enter");
        let index = away.link("moving").expect("it is there").index;
        away.set_link(index, &change).expect("changed");
        // All that is asked of a device.
        for _ in 0..2 {
            let event = kernel.handle_events().expect("it is there");
            assert_eq!(event.up, is_up);
            kernel.tun_drops();
            kernel.tun_is_behind();
            tun.limit_queue();
        }
        drop((away, there));
        let start = Instant::now();
        while kernel.handle_events().is_ok() {
            let is_soon = start.elapsed() < Duration::from_secs(30);
            assert!(is_soon, "up: {is_up}, fair: {is_fair}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    // Further queues would be opened where the device is.
    let kinds = [(false, false), (true, false), (true, true)];
    here.run(|| kinds.map(test)).expect("the right to enter");
}

#[test]
fn a_change_of_routes_leaves_the_device_alone() {
    let netns = Netns::new().expect("a namespace");
    let test = || {
        let tun = device("still");
        let netlink = Netlink::open().expect("a socket");
        let index = index_of(&tun);
        let up = LinkChange {
            up: Some(true),
            ..LinkChange::default()
        };
        netlink.set_link(index, &up).expect("up");
        let kernel = LinuxPlatform::new(Arc::clone(&tun), quiet(), &Watches::default());
        let mut kernel = kernel.expect("a platform");
        let take =
            |kernel: &LinuxPlatform| kernel.sources().iter().for_each(|source| source.take());
        take(&kernel);
        let event = kernel.handle_events().expect("it is there");
        assert!(event.up);

        let ip = "10.0.0.1".parse().expect("an address");
        netlink.add_address(index, ip, 24, false).expect("added");
        take(&kernel);
        let event = kernel.handle_events().expect("it is there");
        assert!(event.up && event.routes_changed);
        let event = kernel.handle_events().expect("it is there");
        assert!(event.up && !event.routes_changed, "is told once");
    };
    netns.run(test).expect("the right to enter");
}

fn index_of(tun: &Tun) -> u32 {
    let place = tun.place().expect("it is here");
    place.link.expect("it can be seen").index
}
