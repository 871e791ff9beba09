//! The kernel's answers, and the rules as `nft` reads them back.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::process::Command;

use crate::netns::Netns;
use crate::nftables::Firewall;
use crate::{Error, Family};

fn inside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    Netns::new().unwrap().run(work).unwrap()
}

/// The rules in force in the calling thread's namespace.
fn ruleset() -> String {
    let output = Command::new("nft").args(["list", "ruleset"]).output();
    let output = output.expect("nft, which scripts/setup installs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn addresses(list: &[&str]) -> Vec<IpAddr> {
    list.iter().map(|ip| ip.parse().unwrap()).collect()
}

fn firewall(family: Family, addresses: &[IpAddr]) -> Firewall<'_> {
    Firewall {
        family,
        table: "wg-quick-wg0",
        interface: "wg0",
        mark: 51820,
        addresses,
    }
}

/// The text that wg-quick would pipe into `nft -f`.
fn wg_quicks(pf: &str, address: &str) -> String {
    format!(
        "add table {pf} wg-quick-wg0
        add chain {pf} wg-quick-wg0 preraw {{ type filter hook prerouting priority -300; }}
        add chain {pf} wg-quick-wg0 premangle {{ type filter hook prerouting priority -150; }}
        add chain {pf} wg-quick-wg0 postmangle {{ type filter hook postrouting priority -150; }}
        add rule {pf} wg-quick-wg0 preraw iifname != \"wg0\" {pf} daddr {address} fib saddr type != local drop
        add rule {pf} wg-quick-wg0 postmangle meta l4proto udp mark 51820 ct mark set mark
        add rule {pf} wg-quick-wg0 premangle meta l4proto udp meta mark set ct mark"
    )
}

#[test]
fn the_rules_are_those_that_nft_makes_of_wg_quicks_text() {
    let theirs = inside(|| {
        for text in [wg_quicks("ip", "10.9.0.1"), wg_quicks("ip6", "fd00::1")] {
            let status = Command::new("nft").arg(text).status().unwrap();
            assert!(status.success());
        }
        ruleset()
    });
    let ours = inside(|| {
        let addresses = addresses(&["10.9.0.1", "fd00::1"]);
        for family in Family::BOTH {
            firewall(family, &addresses).set().unwrap();
        }
        ruleset()
    });
    assert!(ours.contains("iifname != \"wg0\" ip6 daddr fd00::1 fib saddr type != local drop"));
    assert_eq!(ours, theirs);
}

#[test]
fn setting_a_table_replaces_it_and_removing_says_if_it_was() {
    inside(|| {
        let old = addresses(&["10.9.0.1", "10.9.0.2"]);
        firewall(Family::V4, &old).set().unwrap();
        let new = addresses(&["10.9.0.3"]);
        firewall(Family::V4, &new).set().unwrap();
        let rules = ruleset();
        assert!(rules.contains("10.9.0.3") && !rules.contains("10.9.0.1"));
        assert_eq!(rules.matches("ct mark").count(), 2, "{rules}");

        // Another tunnel's stays.
        let other = Firewall {
            table: "wg-quick-wg01",
            ..firewall(Family::V4, &new)
        };
        other.set().unwrap();
        let remove = |family| Firewall::remove(family, "wg-quick-wg0").unwrap();
        assert!(!remove(Family::V6));
        assert!(remove(Family::V4));
        assert!(!remove(Family::V4));
        let rules = ruleset();
        assert!(
            rules.contains("wg-quick-wg01") && !rules.contains("wg-quick-wg0 "),
            "{rules}"
        );
    });
}

#[test]
fn what_the_kernel_refuses_changes_nothing_and_is_named() {
    inside(|| {
        let own = addresses(&["10.9.0.1"]);
        firewall(Family::V4, &own).set().unwrap();
        let before = ruleset();
        // The kernel's limit for names of tables is 255 bytes: the first message is refused.
        let name = "x".repeat(300);
        let long = Firewall {
            table: &name,
            ..firewall(Family::V4, &own)
        };
        let error = long.set().unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("making nf_tables' table ip xxx"),
            "{error}"
        );
        assert_eq!(ruleset(), before);

        // Refused in the middle: the table that is there must survive that it was to be emptied.
        let error = firewall(Family::V4, &own)
            .set_with_chain_type("none-such")
            .unwrap_err();
        assert!(
            error.to_string().starts_with("making chain preraw of "),
            "{error}"
        );
        assert_eq!(ruleset(), before);
    });
}

#[test]
fn a_kernel_without_nf_tables_gives_an_error_of_its_own_kind() {
    let error = |errno| Error {
        what: "using nf_tables".into(),
        reason: None,
        source: std::io::Error::from_raw_os_error(errno),
    };
    for errno in [libc::EOPNOTSUPP, libc::EPROTONOSUPPORT, libc::EAFNOSUPPORT] {
        assert_eq!(error(errno).kind(), ErrorKind::Unsupported);
    }
    assert_eq!(error(libc::EPERM).kind(), ErrorKind::PermissionDenied);
}
