use std::sync::Mutex;
use std::time::{Duration, Instant};

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

#[test]
fn a_device_is_tuned_with_net_admin_alone_where_the_process_is() {
    let (here, there) = (
        Netns::new().expect("a namespace"),
        Netns::new().expect("a namespace"),
    );
    let test = || {
        let mut tuns = Tun::open("tuned", 1, Offloads::ALL).expect("a TUN device");
        let tun = Arc::new(tuns.remove(0));
        let outside = Netlink::open().expect("a socket");
        keep_net_admin_only();
        let said = Arc::<Mutex<Vec<String>>>::default();
        let log = Arc::clone(&said);
        let settings = Settings {
            offloads: Offloads::ALL,
            log: Arc::new(move |line| log.lock().expect("not poisoned").push(line.into())),
            log_verbose: None,
        };
        let mut kernel = Kernel::new(Arc::clone(&tun), settings);
        assert!(kernel.namespace.is_some());
        assert!(said.lock().expect("not poisoned").is_empty());

        // Elsewhere it is not, which is said once.
        let change = LinkChange {
            netns: Some(&there),
            ..LinkChange::default()
        };
        let index = tun.ifindex().expect("it is here");
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
        let mut tuns = Tun::open("far", 1, Offloads::ALL).expect("a TUN device");
        let tun = Arc::new(tuns.remove(0));
        let (at_home, away) = (
            Netlink::open().expect("a socket"),
            Netlink::open_in(&there).expect("the right to enter"),
        );
        keep_net_admin_only();
        // Its threads have no more rights than this one.
        let settings = Settings {
            offloads: Offloads::ALL,
            log: Arc::new(|_| {}),
            log_verbose: None,
        };
        let kernel = Kernel::new(Arc::clone(&tun), settings);
        let engine = Engine::start(1).expect("an engine");
        let engine = engine.add(vec![Arc::clone(&tun)], kernel, Offloads::ALL);
        let _engine = engine.expect("an engine");
        // There is a line with titles, and one for each socket of the namespace.
        let sockets = || std::fs::read_to_string("/proc/thread-self/net/udp").expect("a list");
        let bound = || sockets().lines().count() > 1;
        assert!(!bound());
        let change = LinkChange {
            netns: Some(&there),
            ..LinkChange::default()
        };
        let index = tun.ifindex().expect("it is here");
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
        let mut tuns = Tun::open("slow", 1, Offloads::ALL).expect("a TUN device");
        let tun = Arc::new(tuns.remove(0));
        let up = LinkChange {
            up: Some(true),
            ..LinkChange::default()
        };
        let index = tun.ifindex().expect("it is here");
        let netlink = Netlink::open().expect("a socket");
        netlink.set_link(index, &up).expect("up");
        keep_net_admin_only();
        // Enough for long buffers, but for priority only where RLIMIT_NICE gives it.
        let limit = getrlimit(Resource::Nice).current;
        let expected: &[&str] = match limit {
            Some(limit) if limit < 30 => &["priority"],
            _ => &[],
        };
        let settings = Settings {
            offloads: Offloads::ALL,
            log: Arc::new(|_| {}),
            log_verbose: None,
        };
        let kernel = Kernel::new(Arc::clone(&tun), settings);
        let engine = Engine::start(1).expect("an engine");
        let interface = engine
            .add(vec![tun], kernel, Offloads::ALL)
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
