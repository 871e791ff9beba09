use super::*;

#[test]
fn what_runs_inside_stays_inside() {
    let (one, two) = (Netns::new().unwrap(), Netns::new().unwrap());
    let before = Netns::current().unwrap();
    assert!(!one.is(&two).unwrap() && !one.is_current().unwrap());
    assert!(one.run(|| one.is_current().unwrap()).unwrap());
    assert!(before.is_current().unwrap(), "the caller did not move");
    assert_eq!(
        Netns::named("no-such-name").err().unwrap().kind(),
        io::ErrorKind::NotFound
    );
    let panic = std::panic::catch_unwind(|| one.run(|| panic!("passed on")));
    assert_eq!(panic.err().unwrap().downcast_ref(), Some(&"passed on"));
}

#[test]
fn run_in_the_own_namespace_needs_no_right_to_enter() {
    let (one, two) = (Netns::new().unwrap(), Netns::new().unwrap());
    one.run(|| {
        // Of this thread only.
        let none = rustix::thread::CapabilitySets {
            effective: rustix::thread::CapabilitySet::empty(),
            permitted: rustix::thread::CapabilitySet::empty(),
            inheritable: rustix::thread::CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, none).unwrap();
        assert!(one.run(|| one.is_current().unwrap()).unwrap());
        let error = two.run(|| ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    })
    .unwrap();
}

#[test]
fn sysctls_are_those_of_the_namespace() {
    let (one, two) = (Netns::new().unwrap(), Netns::new().unwrap());
    one.run(|| set_sysctl("net.ipv4.ip_forward", "1").unwrap())
        .unwrap();
    let forwards = |netns: &Netns| {
        netns
            .run(|| sysctl("net/ipv4/ip_forward").unwrap())
            .unwrap()
    };
    assert_eq!(
        (forwards(&one).as_str(), forwards(&two).as_str()),
        ("1", "0")
    );
    let error = set_sysctl("net.ipv4.no_such", "1").unwrap_err();
    assert!(error.to_string().contains("net.ipv4.no_such=1"));
}

#[test]
fn a_device_says_whether_it_segments_udp() {
    let netns = Netns::new().unwrap();
    netns
        .run(|| {
            let netlink = crate::Netlink::open().unwrap();
            netlink.add_veth("left", "right", None).unwrap();
            // veth has it since Linux 4.18, in software: it passes trains on as they are.
            assert_eq!(crate::ethtool::tx_udp_segmentation("left"), Some(true));
            assert_eq!(crate::ethtool::tx_udp_segmentation("nothing"), None);
        })
        .unwrap();
}
