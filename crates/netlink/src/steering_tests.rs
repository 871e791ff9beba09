//! The rules as `nft` reads them back.

use std::process::Command;

use crate::netns::Netns;
use crate::steering::{Steering, SteeringTarget};

fn inside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    Netns::new().unwrap().run(work).unwrap()
}

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let output = output.expect("programs that scripts/setup installs");
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Devices, and the index of the first.
fn devices() -> u32 {
    let pair = "link add eth0 type veth peer name eth1";
    run("ip", &pair.split(' ').collect::<Vec<_>>());
    let shown = run("ip", &["-o", "link", "show", "eth0"]);
    shown.split(':').next().unwrap().parse().unwrap()
}

fn ruleset() -> String {
    run("nft", &["list", "ruleset"])
}

const TABLE: &str = "adit-steer-wg0";

fn set(devices: &[&str], others: &[(u8, &str)], index: u32) -> crate::Result<()> {
    let devices: Vec<_> = devices.iter().map(|device| (*device).to_owned()).collect();
    let others: Vec<_> = (others.iter())
        .map(|(id, address)| SteeringTarget {
            id: *id,
            address: address.parse().unwrap(),
            device: index,
        })
        .collect();
    let steering = Steering {
        table: TABLE,
        devices: &devices,
        addresses: &["192.0.2.1", "2001:db8::1"].map(|ip| ip.parse().unwrap()),
        port: 51820,
        own: 1,
        others: &others,
    };
    steering.set()
}

/// The text that means the same.
const SCRIPT: &str = "table netdev adit-steer-wg0 {
    chain to-ip {
        @th,64,8 3-4 @th,120,5 1 accept
        @th,64,8 3-4 @th,120,5 2 fwd ip to 10.0.0.2 device eth0
        @th,64,8 2 @th,152,5 2 fwd ip to 10.0.0.2 device eth0
        @th,64,8 3-4 @th,120,5 31 fwd ip to 10.0.0.3 device eth0
        @th,64,8 2 @th,152,5 31 fwd ip to 10.0.0.3 device eth0
    }
    chain to-ip6 {
        @th,64,8 3-4 @th,120,5 1 accept
        @th,64,8 3-4 @th,120,5 2 fwd ip6 to fd00::2 device eth0
        @th,64,8 2 @th,152,5 2 fwd ip6 to fd00::2 device eth0
    }
    chain in0 {
        type filter hook ingress device eth0 priority 0
        ip daddr 192.0.2.1 udp dport 51820 jump to-ip
        ip6 daddr 2001:db8::1 udp dport 51820 jump to-ip6
    }
    chain in1 {
        type filter hook ingress device eth1 priority 0
        ip daddr 192.0.2.1 udp dport 51820 jump to-ip
        ip6 daddr 2001:db8::1 udp dport 51820 jump to-ip6
    }
}";

const OTHERS: [(u8, &str); 3] = [(2, "10.0.0.2"), (2, "fd00::2"), (31, "10.0.0.3")];

#[test]
fn rules_that_steer_are_those_that_nft_makes_of_their_text() {
    let theirs = inside(|| {
        devices();
        run("nft", &[SCRIPT]);
        ruleset()
    });
    let ours = inside(|| {
        let index = devices();
        // It takes the place of what is there.
        set(&["eth1"], &[(7, "10.0.0.7")], index).unwrap();
        set(&["eth0", "eth1"], &OTHERS, index).unwrap();
        ruleset()
    });
    assert!(ours.contains("fwd ip6 to fd00::2"), "{ours}");
    assert_eq!(ours, theirs);
}

#[test]
fn rules_that_steer_are_all_set_or_none_and_go_at_once() {
    inside(|| {
        let index = devices();
        set(&["eth0", "eth1"], &OTHERS, index).unwrap();
        let before = ruleset();
        // No device has such a name. One that may come later is no error since Linux 6.16.
        let long = "a-name-of-20-letters";
        let error = set(&["eth0", long], &OTHERS[..1], index).unwrap_err();
        assert!(error.to_string().contains(long), "{error}");
        assert_eq!(ruleset(), before);
        assert!(Steering::remove(TABLE).unwrap());
        assert_eq!(ruleset(), "");
        assert!(!Steering::remove(TABLE).unwrap());
    });
}
